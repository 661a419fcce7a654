import type { Feed } from './feed.js';
import type { Requests } from './requests.js';
import { Subscriptions } from './subscriptions.js';
import type { WirePresence } from './wire.js';

/** Conversations whose presence the node reports, with the users that are online there. */
export class Watches extends Subscriptions {
  #online = new Map<string, Set<string>>();
  #feed: Feed;

  constructor(requests: Requests, feed: Feed) {
    super(requests, (conversation, stop) => ({ body: { watch: { conversation, stop } }, needs: 'watch' }));
    this.#feed = feed;
  }

  /** Takes a report of the node, which is complete or names the changes since the last one. */
  report({ conversation, online = [], offline = [], complete, ended }: WirePresence): void {
    const known = complete ? new Set<string>() : this.#online.get(conversation);
    if (!known || !this.has(conversation)) return;
    for (const user of online) known.add(user);
    for (const user of offline) known.delete(user);
    this.#online.set(conversation, known);
    if (ended) return this.lapsed(conversation);
    this.#feed.emit('presence', { conversation, online: [...known].sort() });
  }

  /** Without a connection it is not known who is online. */
  lost(): void {
    for (const conversation of this.#online.keys()) this.gone(conversation);
  }

  protected override gone(conversation: string): void {
    if (this.#online.delete(conversation)) this.#feed.emit('presence', { conversation, online: undefined });
  }
}
