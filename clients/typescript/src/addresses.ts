/** Returns the transport of an address: TLS does not matter. */
const family = (address: string): string => address.split(':')[0]!.replace('wss', 'ws').replace('tls', 'tcp');

const isSecure = (address: string): boolean => /^(wss|tls|https):/i.test(address);

/** Addresses of nodes in the order in which they are tried. Once one is secure, plain ones are not used: they would leak the token. */
export class Addresses {
  #secure: boolean;
  #list: readonly string[] = [];
  #at = 0;
  #good: string | undefined;
  /** Addresses that failed since one worked. */
  #failed = new Set<string>();

  /** Creates a list; `assign` is the service that names further addresses, if there is one. */
  constructor(assign = '', list: readonly string[] = []) {
    this.#secure = isSecure(assign);
    this.set(list);
  }

  /** Replaces the list, best first. */
  set(list: readonly string[]): void {
    this.#secure ||= list.some(isSecure);
    this.#list = this.#usable(list);
    this.#at = 0;
  }

  #usable(list: readonly string[]): readonly string[] {
    return this.#secure ? list.filter(isSecure) : list;
  }

  /** Returns the address for the next attempt: the one that worked, or else the next of the list. */
  next(): string | undefined {
    return this.#good ?? this.#list[this.#at % this.#list.length];
  }

  /** Returns the first alternate of the client's own transport that has not failed; `undefined` if there is none. */
  alternate(alternates: readonly string[]): string | undefined {
    const known = this.next() ?? '';
    const scheme = known.slice(0, known.indexOf('://') + 3);
    const complete = alternates.map((it) => (it.includes('://') ? it : scheme + it));
    return this.#usable(complete).find((it) => (!known || family(it) === family(known)) && !this.#failed.has(it));
  }

  /** Takes the outcome of a connection to `address`. */
  judged(address: string, good: boolean): void {
    if (good) {
      this.#good = address;
      this.#failed.clear();
      return;
    }
    this.#failed.add(address);
    if (this.#good === address) this.#good = undefined;
    if (this.#list[this.#at % this.#list.length] === address) this.#at++;
  }

  /** Whether each address of the list has failed since it was set. */
  get exhausted(): boolean {
    return this.#good === undefined && this.#at >= this.#list.length;
  }
}
