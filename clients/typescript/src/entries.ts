import type { Change, Content, Entry, History, HistoryOptions, PullOptions, PushEntry } from './types.js';
import type { WireContent, WirePage, WirePush } from './wire.js';

export const isRoom = (conversation: string): boolean => conversation.startsWith('r:');

/** Returns the name of a live room, which may be given with the prefix of its key. */
export const roomOf = (key: string): string => key.replace(/^r:/, '');

/** Returns the content as it goes to the wire. */
export function toWire(content: Content): WireContent {
  const { data, ...rest } = content;
  if (data === undefined) return rest;
  return { ...rest, data: typeof data === 'string' ? data : btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join('')) };
}

/** Returns the content as the application gets it. */
export function fromWireContent(content: WireContent | undefined): Content {
  const { data, ...rest } = content ?? {};
  return data === undefined ? rest : { ...rest, data: Uint8Array.from(atob(data), (c) => c.charCodeAt(0)) };
}

/** Returns what a push is; its kind is the name of the event, too. */
export function entry({ conversation, seq = 0, sender = '', time = 0, msgId = '', content, event, recall, edit, edited, flags }: WirePush): PushEntry {
  const place = { conversation, seq, sender, time };
  if (event) {
    const { change = '', users = [], role, settings } = event;
    return { kind: 'change', ...place, change: String(change).replace('MEMBER_CHANGE_', '') as Change, users, role, settings };
  }
  if (recall) return { kind: 'recall', ...place, recalled: recall.seq ?? 0 };
  if (edit) return { kind: 'edit', ...place, edited: edit.seq ?? 0, content: fromWireContent(edit.content) };
  return { kind: 'message', ...place, msgId, content: fromWireContent(content), edit: edited?.seq, room: isRoom(conversation), flags };
}

/** Returns the fields of the `pull` that asks for this part of a history. */
export function pullFor(options: HistoryOptions): PullOptions {
  const { before, after, around, ...rest } = options;
  if (rest.seqs || rest.time !== undefined) return rest;
  const direction = around !== undefined ? 'AROUND' : after !== undefined ? 'FORWARD' : 'BACKWARD';
  return { ...rest, cursor: around ?? after ?? before ?? 0, direction: `DIRECTION_${direction}` };
}

/** Returns the history that a page holds; nothing follows an empty one. */
export function history(conversation: string, page: WirePage, options: HistoryOptions): History {
  const entries: Entry[] = (page.messages ?? []).map(entry);
  for (const seq of page.recalled ?? []) entries.push({ kind: 'recalled', conversation, seq });
  for (const { first = 0, last = 0 } of page.expired ?? []) entries.push({ kind: 'expired', conversation, seq: first, last });
  entries.sort((a, b) => a.seq - b.seq);
  const first = entries[0]?.seq ?? 0;
  const last = Math.max(0, ...entries.map((it) => (it.kind === 'expired' ? it.last : it.seq)));
  const completeTo = page.completeTo ?? 0;
  const forward = options.after !== undefined || options.time !== undefined;
  const reachesEnd = last >= completeTo;
  const complete = !last || !!options.seqs || (forward ? reachesEnd : first <= 1 && (options.around === undefined || reachesEnd));
  return { conversation, entries, first, last, completeTo, complete };
}
