import { connect, type Client, type State } from "@tidegate/client";
import { effect, signal } from "@preact/signals";
import { boot } from "../live/boot.ts";
import { post } from "../live/api.ts";
import { mayConnect } from "../live/policy.ts";
import { addressesFor } from "./addresses.ts";
import { Tap, type TapSink } from "./tap.ts";

/** A line in a person's chat: a message by its id, or a remark of the page. */
export type Line = { readonly cid: string } | { readonly remark: string; readonly tone: "red" | "amber" | "quiet" };

/** Device of the people of this page. */
export const DEVICE = "phone";

/** How long the node waits for an ack of these people's devices before it sends a push again. */
const ACK_TIMEOUT_MS = 2000;

/** How long the page names an absence that ended. */
const AWAY_NAMED_MS = 8000;

/** How long a token is used before the next login asks for a new one; it is valid for an hour. */
const TOKEN_MS = 50 * 60_000;

/** An absence that ended: how long it was, and until when the page names it. */
export interface Away {
  readonly ms: number;
  readonly at: number;
  readonly until: number;
}

interface Token {
  readonly token: string;
  readonly expiresMs: number;
}

/** One person of the page: a client of the project's library, its link and its chat. */
export class Person {
  readonly name: string;
  readonly device: string;
  readonly tap: Tap;
  readonly state = signal<State>({ name: "connecting" });
  /** The node that the person is, or was last, connected to. */
  node = "";
  /** Whether the client has learned what there was: what is sent from then on it shows. */
  isSynced = false;
  /** The connection of the link, as the recording numbers it. */
  session = 0;
  /** When the link ended, and how long it was away the last time. */
  goneAt: number | undefined;
  away: Away | undefined;
  lines: Line[] = [];
  /** Sends whose frame has not been seen yet: it names their ids. */
  readonly unnamed: { text: string; cid: string }[] = [];
  typingUntil = 0;
  private it: Client | undefined;
  private token: (Token & { readonly at: number }) | undefined;
  private readonly index: number;
  private unfollow = () => {};

  constructor(name: string, index: number, sink: TapSink, device = DEVICE) {
    this.name = name;
    this.index = index;
    this.device = device;
    this.tap = new Tap(sink);
  }

  /** Logs in. */
  start(onState: () => void): Client {
    // The client reads the list at each attempt. Nodes that appear later are added if the browser
    // allows them, and none is removed.
    const addresses: string[] = [];
    this.unfollow = effect(() => {
      const known = addressesFor(this.index, boot.value?.clients.ws ?? [], (boot.value?.peers ?? []).map((peer) => peer.ws));
      addresses.push(...known.filter((it) => !addresses.includes(it) && mayConnect(it)));
    });
    const client = connect({
      addresses,
      token: () => this.login(),
      device: this.device,
      user: this.name,
      chain: true,
      from: "now",
      outbox: "memory",
      settings: { ackTimeoutMs: ACK_TIMEOUT_MS, ackTries: 3 },
      webSocket: (url: string, protocols?: string | string[]) => this.tap.open(url, protocols),
    });
    this.it = client;
    client.on("synced", () => {
      this.isSynced = true;
      onState();
    });
    client.on("state", (state: State) => {
      const now = performance.now();
      if (state.error?.name.startsWith("TOKEN_")) this.token = undefined;
      if (state.name === "closed" && state.error && state.error.name !== "REPLACED" && state.error.code > 0) {
        const { name, message } = state.error;
        this.lines.push({ remark: `Closed by the node: ${name}${message && message !== name ? `, “${message}”` : ""}`, tone: "red" });
      }
      if (state.name === "live") {
        if (this.goneAt !== undefined) {
          this.away = { ms: now - this.goneAt, at: now, until: now + AWAY_NAMED_MS };
          window.setTimeout(onState, AWAY_NAMED_MS + 100);
        }
        this.goneAt = undefined;
        this.node = state.node ?? this.node;
      } else if (this.state.value.name === "live") this.goneAt = now;
      this.state.value = state;
      onState();
    });
    return client;
  }

  /**
   * Returns the token of a login. It is kept, because the node of this page creates it: with that node gone, the person
   * still logs in at another one.
   */
  private async login(): Promise<string> {
    const kept = this.token;
    if (kept && performance.now() - kept.at < TOKEN_MS) return kept.token;
    try {
      const it = await post<Token>("/v1/dev/token", { user: this.name, device: this.device });
      this.token = { ...it, at: performance.now() };
      return it.token;
    } catch (error) {
      if (kept && Date.now() < kept.expiresMs) return kept.token;
      throw error;
    }
  }

  /** The client of the library. */
  get client(): Client {
    if (!this.it) throw new Error(`${this.name} has not started`);
    return this.it;
  }

  /** Whether the person is connected. */
  get isLive(): boolean {
    return this.state.value.name === "live" && this.tap.isOpen;
  }

  /** Ends the client. */
  stop(): void {
    this.unfollow();
    this.tap.hold = undefined;
    this.tap.setCut(false);
    void this.it?.close().catch(() => {});
  }
}
