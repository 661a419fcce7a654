import { entry } from './entries.js';
import type { Conversation } from './types.js';
import type { WirePush, WireState } from './wire.js';

/** What is known of the user's conversations: the states of the last sync, kept current by pushes and marks. */
export class Conversations {
  #all = new Map<string, Conversation>();
  /** Seqs of other users' messages that came after the last state and are not read. */
  #fresh = new Map<string, number[]>();

  get(conversation: string): Conversation {
    let it = this.#all.get(conversation);
    if (!it) {
      it = { conversation, maxSeq: 0, minSeq: 1, readSeq: 0, unread: 0, clearedSeq: 0, hidden: [] };
      this.#all.set(conversation, it);
    }
    return it;
  }

  /** Takes a state of a sync; returns what is newly cleared and hidden. */
  state(state: WireState): { cleared: number | undefined; hidden: number[] } {
    const it = this.get(state.conversation);
    const cleared = (state.clearedSeq ?? 0) > it.clearedSeq ? state.clearedSeq : undefined;
    const hidden = (state.hidden ?? []).filter((seq) => !it.hidden.includes(seq));
    it.maxSeq = Math.max(it.maxSeq, state.maxSeq ?? 0);
    it.minSeq = state.minSeq ?? 0;
    it.readSeq = Math.max(it.readSeq, state.readSeq ?? 0);
    it.unread = state.unread ?? 0;
    it.clearedSeq = state.clearedSeq ?? 0;
    it.hidden = state.hidden ?? [];
    if (state.last) it.last = entry(state.last);
    this.#fresh.delete(state.conversation);
    return { cleared, hidden };
  }

  /** Takes an entry that was handed over; `others` says that it is a message of another user. */
  push(push: WirePush, others: boolean): void {
    const it = this.get(push.conversation);
    const seq = push.seq ?? 0;
    const isNew = seq > it.maxSeq;
    if (isNew) it.maxSeq = seq;
    const known = entry(push);
    if (known.kind === 'recall') {
      if (it.last?.kind === 'message' && it.last.seq === known.recalled) {
        it.last = { kind: 'recalled', conversation: push.conversation, seq: known.recalled };
      }
    } else if (!push.edit && !(seq <= it.last?.seq!)) {
      // An edit is never the last entry, as in a state.
      it.last = known;
    }
    // The count of the last state covers everything up to its highest seq.
    if (isNew && others && seq > it.readSeq) {
      it.unread++;
      const fresh = this.#fresh.get(push.conversation);
      if (fresh) fresh.push(seq);
      else this.#fresh.set(push.conversation, [seq]);
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

  cleared(conversation: string, seq: number): void {
    const it = this.get(conversation);
    it.clearedSeq = Math.max(it.clearedSeq, seq);
    it.minSeq = Math.max(it.minSeq, seq + 1);
    it.hidden = it.hidden.filter((at) => at > seq);
    if (it.last && it.last.seq <= seq) delete it.last;
  }

  hidden(conversation: string, seqs: readonly number[]): void {
    const it = this.get(conversation);
    it.hidden = [...new Set([...it.hidden, ...seqs])].sort((a, b) => a - b);
    if (it.last && seqs.includes(it.last.seq)) delete it.last;
  }
}
