import { Conversations } from './conversations.js';
import { entry, fromWireContent, isRoom } from './entries.js';
import type { EventName, Events } from './types.js';
import type { ServerFrame, WirePush, WireState } from './wire.js';

/** One event for the application. */
export type Emitted = { [N in EventName]: { name: N; value: Events[N] } }[EventName];

/** Turns what the node says into events for the application, and keeps the states of the conversations. */
export class Feed {
  readonly conversations = new Conversations();
  /** Events that the driver hands over after each call of the session, in order. */
  readonly events: Emitted[] = [];
  user: string | undefined;
  /** Conversations that count unread messages: `all`, `direct` or `none`. */
  counting = 'all';
  #removed: (conversation: string, seq: number, seqs: readonly number[]) => void;
  #uncertain: () => void;

  /**
   * Creates a feed. `removed` is called with entries that the user has removed, `uncertain` after a change from which
   * the unread counts can't be derived.
   */
  constructor(removed: (conversation: string, seq: number, seqs: readonly number[]) => void, uncertain: () => void) {
    this.#removed = removed;
    this.#uncertain = uncertain;
  }

  emit<N extends EventName>(name: N, value: Events[N]): void {
    this.events.push({ name, value } as Emitted);
  }

  /** Hands over an entry, which is the next one of its conversation. */
  deliver(push: WirePush, own: boolean): void {
    const { conversation } = push;
    if (isRoom(conversation)) return this.#say(push, own);
    const counts = this.counting === 'all' || (this.counting === 'direct' && conversation.startsWith('d:'));
    this.conversations.push(push, counts && !!push.content && !(push.flags! & 2) && push.sender !== this.user);
    this.#say(push, own);
    this.#changed(conversation);
  }

  #say(push: WirePush, own: boolean): void {
    const { kind, ...value } = entry(push);
    this.emit(own && kind === 'message' ? 'sent' : kind, value as never);
  }

  #changed(conversation: string): void {
    this.emit('conversation', { ...this.conversations.get(conversation) });
  }

  /** Takes a state of a sync. */
  state(state: WireState): void {
    const news = this.conversations.state(state);
    const { conversation } = state;
    if (news.cleared) this.emit('cleared', { conversation, seq: news.cleared });
    if (news.hidden.length > 0) this.emit('hidden', { conversation, seqs: news.hidden });
    this.#changed(conversation);
  }

  /** Takes a frame that informs and needs no answer. */
  inform({ shed, receipt, cleared, hidden, signal, roomStats }: ServerFrame): void {
    if (shed) this.emit('shed', { count: 0, ...shed });
    if (roomStats) this.emit('roomStats', roomStats);
    if (receipt) {
      const { conversation, seq = 0 } = receipt;
      this.read(conversation, seq);
      this.emit('receipt', { conversation, seq });
    }
    if (cleared) {
      const { conversation, seq = 0 } = cleared;
      this.emit('cleared', { conversation, seq });
      this.remove(conversation, seq, []);
    }
    if (hidden) {
      const { conversation, seqs = [] } = hidden;
      this.emit('hidden', { conversation, seqs });
      this.remove(conversation, 0, seqs);
    }
    if (signal) {
      const { conversation, sender = '', kind = '', content } = signal;
      this.emit('signal', { conversation, sender, kind, content: content && fromWireContent(content) });
    }
  }

  /** The user has read up to `seq`. */
  read(conversation: string, seq: number): void {
    if (this.conversations.read(conversation, seq)) this.#uncertain();
    this.#changed(conversation);
  }

  /** The user has cleared up to `seq` (0: nothing), or hidden `seqs`. */
  remove(conversation: string, seq: number, seqs: readonly number[]): void {
    this.conversations.remove(conversation, seq, seqs);
    this.#removed(conversation, seq, seqs);
    this.#changed(conversation);
    this.#uncertain();
  }
}
