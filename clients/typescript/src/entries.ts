import type { Change, Content, Entry, History, HistoryOptions, PullOptions, PushEntry } from './types.js';
import type { WireContent, WirePage, WirePush } from './wire.js';

export const isRoom = (conversation: string): boolean => conversation.startsWith('r:');

/** Returns the content as it goes to the wire. */
export function toWire(content: Content): WireContent {
  const { data, ...rest } = content;
  if (data === undefined) return rest;
  if (typeof data === 'string') return { ...rest, data };
  let text = '';
  for (const byte of data) text += String.fromCharCode(byte);
  return { ...rest, data: btoa(text) };
}

/** Returns the content as the application gets it. */
export function fromWireContent(content: WireContent | undefined): Content {
  const { data, ...rest } = content ?? {};
  return data === undefined ? rest : { ...rest, data: Uint8Array.from(atob(data), (c) => c.charCodeAt(0)) };
}

/** Returns what a push is; its kind is the name of the event, too. */
export function entry({ conversation, seq = 0, sender = '', time = 0, msgId = '', content, event, recall, edit }: WirePush): PushEntry {
  const place = { conversation, seq, sender, time };
  if (event) {
    const { change = '', users = [], role, settings } = event;
    return { kind: 'change', ...place, change: String(change).replace('MEMBER_CHANGE_', '') as Change, users, role, settings };
  }
  if (recall) return { kind: 'recall', ...place, recalled: recall.seq ?? 0 };
  if (edit) return { kind: 'edit', ...place, edited: edit.seq ?? 0, content: fromWireContent(edit.content) };
  return { kind: 'message', ...place, msgId, content: fromWireContent(content), room: isRoom(conversation) };
}

/** Returns the fields of the `pull` that asks for this part of a history. */
export function pullFor(options: HistoryOptions): PullOptions {
  const { before, after, around, ...rest } = options;
  if (rest.seqs || rest.time !== undefined) return rest;
  const direction = around !== undefined ? 'AROUND' : after !== undefined ? 'FORWARD' : 'BACKWARD';
  return { ...rest, cursor: around ?? after ?? before ?? 0, direction: `DIRECTION_${direction}` };
}

/** Returns the history that a page holds. */
export function history(conversation: string, page: WirePage, options: HistoryOptions): History {
  const entries: Entry[] = (page.messages ?? []).map(entry);
  for (const seq of page.recalled ?? []) entries.push({ kind: 'recalled', conversation, seq });
  let last = 0;
  for (const range of page.expired ?? []) {
    entries.push({ kind: 'expired', conversation, seq: range.first ?? 0, last: range.last ?? 0 });
    last = Math.max(last, range.last ?? 0);
  }
  entries.sort((a, b) => a.seq - b.seq);
  const first = entries[0]?.seq ?? 0;
  last = Math.max(last, entries.at(-1)?.seq ?? 0);
  const completeTo = page.completeTo ?? 0;
  const forward = options.after !== undefined || options.time !== undefined;
  const complete = !!options.seqs || (forward ? last >= completeTo : options.around !== undefined ? first <= 1 && last >= completeTo : first <= 1);
  return { conversation, entries, first, last, completeTo, complete };
}
