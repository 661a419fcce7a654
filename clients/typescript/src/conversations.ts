import { entry, fromWireContent } from './entries.js';
import { kept } from './maps.js';
import type { Conversation } from './types.js';
import type { WirePush, WireState } from './wire.js';

/** Most recalls and edits of a conversation that wait for its last entry; older ones are left out. */
const CHANGES_MAX = 100;

/** What is known of the user's conversations: the states of the last sync, kept current by pushes and marks. */
export class Conversations {
  #all = new Map<string, Conversation>();
  /** Seqs of other users' messages that came after the last state and are not read. */
  #fresh = new Map<string, number[]>();
  /** Recalls and edits that came while the last entry was unknown: the next state may be older than they are. */
  #changes = new Map<string, WirePush[]>();

  get(conversation: string): Conversation {
    return kept(this.#all, conversation, () => ({ conversation, maxSeq: 0, minSeq: 1, readSeq: 0, unread: 0, clearedSeq: 0, hidden: [] }));
  }

  /** Takes a state of a sync; returns what is newly cleared (0: nothing) and hidden. */
  state(state: WireState): { cleared: number; hidden: number[] } {
    const { conversation, minSeq = 0, maxSeq = 0, clearedSeq = 0, hidden = [], readSeq = 0, unread = 0, last } = state;
    const it = this.get(conversation);
    const news = { cleared: clearedSeq > it.clearedSeq ? clearedSeq : 0, hidden: hidden.filter((seq) => !it.hidden.includes(seq)) };
    // What was pushed meanwhile is newer than this state, and may have changed the last entry.
    if (last && !(it.last && maxSeq < it.maxSeq)) it.last = entry(last);
    Object.assign(it, { minSeq, maxSeq: Math.max(it.maxSeq, maxSeq), clearedSeq, hidden, readSeq: Math.max(it.readSeq, readSeq), unread });
    this.#fresh.delete(conversation);
    for (const push of this.#changes.get(conversation)?.splice(0) ?? []) this.push(push, false);
    return news;
  }

  /** Takes an entry that was handed over; `others` says that it is a message of another user. */
  push(push: WirePush, others: boolean): void {
    const it = this.get(push.conversation);
    const seq = push.seq ?? 0;
    const isNew = seq > it.maxSeq;
    if (isNew) it.maxSeq = seq;
    const { last } = it;
    const { conversation, recall, edit } = push;
    const changed = recall ?? edit;
    // As in a state, a recall or an edit is never the last entry, but changes it.
    if (!changed) {
      if (!(seq <= last?.seq!)) it.last = entry(push);
    } else if (last?.kind === 'message' && last.seq === changed.seq) {
      if (recall) it.last = { kind: 'recalled', conversation, seq: last.seq };
      // Without content a later edit follows.
      else if (edit!.content && !(last.edit! > seq)) it.last = { ...last, content: fromWireContent(edit!.content), edit: seq };
    } else if (!last) {
      const changes = kept(this.#changes, conversation, () => []);
      if (changes.push(push) > CHANGES_MAX) changes.shift();
    }
    // The count of the last state covers everything up to its highest seq.
    if (isNew && others && seq > it.readSeq) {
      it.unread++;
      kept(this.#fresh, conversation, () => []).push(seq);
    }
  }

  /** Moves the read mark. Returns whether the unread count is only an estimate now, so that a sync is needed. */
  read(conversation: string, seq: number): boolean {
    const it = this.get(conversation);
    if (seq <= it.readSeq) return false;
    it.readSeq = seq;
    const all = this.#fresh.get(conversation) ?? [];
    const fresh = all.filter((at) => at > seq);
    const counted = it.unread - all.length;
    this.#fresh.set(conversation, fresh);
    // What the last state counted lies below the first fresh message.
    const below = seq >= (all[0] ?? it.maxSeq) ? 0 : counted;
    it.unread = below + fresh.length;
    return below > 0;
  }

  /** The user has cleared up to `seq` (0: nothing), and hidden `seqs`. */
  remove(conversation: string, seq: number, seqs: readonly number[]): void {
    const it = this.get(conversation);
    it.clearedSeq = Math.max(it.clearedSeq, seq);
    it.minSeq = Math.max(it.minSeq, seq && seq + 1);
    it.hidden = [...new Set([...it.hidden, ...seqs])].filter((at) => at > seq).sort((a, b) => a - b);
    const last = it.last?.seq!;
    if (last <= seq || seqs.includes(last)) delete it.last;
  }
}
