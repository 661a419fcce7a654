import { mayConnect } from "../live/policy.ts";
import { type Frame, parseFrame } from "./frames.ts";

/** What a tap reports. Times are those of the page's monotonic clock, in milliseconds. */
export interface TapSink {
  opened(connection: number, at: number): void;
  frame(connection: number, direction: "out" | "in", frame: Frame, at: number): void;
  closed(connection: number, code: number, at: number): void;
}

/** Ids of frames that the page sends by itself; the client's own ids are far below. */
const OWN_IDS = 2 ** 40;

let connections = 0;

/**
 * The link of one person: hands out sockets that the client takes for the browser's own, and shows every frame. Faults
 * of the link are made here: a cut network lets no socket open, a frozen client's acks stay back, and so on.
 */
export class Tap {
  /** Decides whether a frame of the client stays back. */
  hold: ((frame: Frame) => boolean) | undefined;
  /** While set, a new socket waits: the network is gone. */
  private gate: { readonly open: Promise<void>; readonly release: () => void } | undefined;
  /** Sockets that have not closed, oldest first. A client that moves has two, and keeps the first if the second fails. */
  private sockets: TapSocket[] = [];
  private next = OWN_IDS;
  private readonly answers = new Map<number, { socket: TapSocket; isShown: boolean; take: (frame: Frame) => boolean; fail: (error: Error) => void }>();
  private readonly sink: TapSink;

  constructor(sink: TapSink) {
    this.sink = sink;
  }

  /** Opens a socket for the client. */
  open(url: string | URL, protocols?: string | string[]): WebSocket {
    const socket = new TapSocket(this, String(url), protocols);
    this.sockets.push(socket);
    return socket as unknown as WebSocket;
  }

  /** Whether the network is gone. */
  get isCut(): boolean {
    return this.gate !== undefined;
  }

  /** Takes the network away, or gives it back. It does not end a socket that is open. */
  setCut(cut: boolean): void {
    if (cut === this.isCut) return;
    this.gate?.release();
    this.gate = undefined;
    if (!cut) return;
    let release = () => {};
    const open = new Promise<void>((resolve) => (release = resolve));
    this.gate = { open, release };
  }

  /** Resolves when the network is there. */
  async passable(): Promise<void> {
    while (this.gate) await this.gate.open;
  }

  /** The newest socket that is logged in. */
  private get socket(): TapSocket | undefined {
    return this.sockets.findLast((it) => it.readyState === WebSocket.OPEN && it.isLoggedIn);
  }

  /** Whether a socket is open and logged in. */
  get isOpen(): boolean {
    return this.socket !== undefined;
  }

  /**
   * Sends a frame outside the client. `take` gets its answers, which the client does not see, until it returns true.
   */
  request(kind: string, body: Record<string, unknown>, take: (frame: Frame) => boolean, isShown = false): Promise<void> {
    const id = this.next++;
    const raw = JSON.stringify({ id, [kind]: body });
    return new Promise((resolve, reject) => {
      const fail = (error: Error) => {
        this.answers.delete(id);
        reject(error);
      };
      const socket = this.socket;
      if (!socket) return fail(new Error("not connected"));
      const done = (frame: Frame) => {
        const isLast = take(frame);
        if (isLast) {
          this.answers.delete(id);
          resolve();
        }
        return isLast;
      };
      this.answers.set(id, { socket, isShown, take: done, fail });
      socket.sendRaw(raw, isShown);
    });
  }

  /** Sends a frame that was held back, as the client wrote it. */
  release(frame: Frame): void {
    this.socket?.sendRaw(frame.raw, true);
  }

  /** Reports a frame; returns whether the client may have it. */
  report(socket: TapSocket, direction: "out" | "in", raw: string, isShown: boolean): boolean {
    const frame = parseFrame(raw);
    if (!frame) return true;
    if (direction === "in" && frame.kind === "welcome") socket.isLoggedIn = true;
    if (direction === "out" && this.hold?.(frame)) return false;
    const answer = direction === "in" && frame.id >= OWN_IDS ? this.answers.get(frame.id) : undefined;
    if (isShown && (frame.id < OWN_IDS || direction === "out" || answer?.isShown)) {
      this.sink.frame(socket.connection, direction, frame, performance.now());
    }
    if (frame.id >= OWN_IDS && direction === "in") {
      answer?.take(frame);
      return false;
    }
    return true;
  }

  opened(connection: number): void {
    this.sink.opened(connection, performance.now());
  }

  closed(socket: TapSocket, code: number): void {
    this.sockets = this.sockets.filter((it) => it !== socket);
    for (const answer of [...this.answers.values()]) {
      if (answer.socket === socket) answer.fail(new Error("the connection ended"));
    }
    this.sink.closed(socket.connection, code, performance.now());
  }
}

/** A socket between a client and the browser's own. It has what a client uses of `WebSocket`. */
class TapSocket extends EventTarget {
  static readonly CONNECTING = 0;
  static readonly OPEN = 1;
  static readonly CLOSING = 2;
  static readonly CLOSED = 3;
  readonly CONNECTING = 0;
  readonly OPEN = 1;
  readonly CLOSING = 2;
  readonly CLOSED = 3;
  readonly url: string;
  readonly connection = ++connections;
  isLoggedIn = false;
  onopen: ((event: Event) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  onerror: ((event: Event) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  private type: BinaryType = "blob";
  private inner: WebSocket | undefined;
  private state = 0;
  private readonly tap: Tap;

  constructor(tap: Tap, url: string, protocols?: string | string[]) {
    super();
    this.tap = tap;
    this.url = url;
    void tap.passable().then(() => this.begin(protocols));
  }

  get readyState(): number {
    return this.state;
  }

  get bufferedAmount(): number {
    return this.inner?.bufferedAmount ?? 0;
  }

  get protocol(): string {
    return this.inner?.protocol ?? "";
  }

  get extensions(): string {
    return this.inner?.extensions ?? "";
  }

  get binaryType(): BinaryType {
    return this.type;
  }

  set binaryType(type: BinaryType) {
    this.type = type;
    if (this.inner) this.inner.binaryType = type;
  }

  send(data: string): void {
    if (this.tap.report(this, "out", data, true)) this.inner?.send(data);
  }

  /** Sends a frame of the page. */
  sendRaw(raw: string, isShown: boolean): void {
    this.tap.report(this, "out", raw, isShown);
    this.inner?.send(raw);
  }

  close(code?: number, reason?: string): void {
    if (this.state >= 2) return;
    if (this.inner) {
      this.state = 2;
      this.inner.close(code, reason);
    } else this.end(new CloseEvent("close", { code: 1006 }));
  }

  private begin(protocols?: string | string[]): void {
    if (this.state !== 0) return;
    // A node may name one as an alternate that the page may not connect to. The banner says so.
    if (!mayConnect(this.url)) return this.end(new CloseEvent("close", { code: 1006 }));
    const inner = new WebSocket(this.url, protocols);
    this.inner = inner;
    inner.binaryType = this.type;
    inner.onopen = () => {
      this.state = 1;
      this.tap.opened(this.connection);
      this.emit("onopen", new Event("open"));
    };
    inner.onmessage = (event: MessageEvent) => {
      const isForClient = typeof event.data !== "string" || this.tap.report(this, "in", event.data, true);
      if (isForClient) this.emit("onmessage", new MessageEvent("message", { data: event.data }));
    };
    inner.onerror = () => this.emit("onerror", new Event("error"));
    inner.onclose = (event) => this.end(new CloseEvent("close", { code: event.code, reason: event.reason, wasClean: event.wasClean }));
  }

  private end(event: CloseEvent): void {
    if (this.state === 3) return;
    this.state = 3;
    this.tap.closed(this, event.code);
    this.emit("onclose", event);
  }

  private emit(name: "onopen" | "onmessage" | "onerror" | "onclose", event: Event): void {
    (this[name] as ((event: Event) => void) | null)?.call(this, event);
    this.dispatchEvent(event);
  }
}
