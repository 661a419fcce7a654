import type { WireClose, WireError } from './wire.js';

export type Reconnect = 'now' | 'after' | 'never';

/** Errors of the client's own, which have code 0: whether they are temporary, and the message unless each has its own. Their cures are in local_cures.ts. */
const LOCAL = {
  CLOSED: [false, 'Client closed'],
  OFFLINE: [true, 'No connection'],
  OUTBOX_FULL: [true, 'Outbox full'],
  BAD_REQUEST: [false],
  UNREACHABLE: [true],
  NO_TOKEN: [true],
  NO_ADDRESS: [false, 'No address'],
  UNSUPPORTED: [false],
  OTHER_USER: [false, 'The token names another user'],
} as const;

export type LocalName = keyof typeof LOCAL;

interface Fields {
  code: number;
  name: string;
  message: string;
  temporary: boolean;
  reconnect: Reconnect;
  retryAfterMs?: number | undefined;
  detail?: Record<string, string> | undefined;
}

/** A refusal of a request, or the reason why a connection ended. `name` is the name of the code in docs/errors.md. */
export class TidegateError extends Error {
  /** Sentences on what to do, by the name of the code; `@tidegate/client/cures` fills it. */
  static readonly cures: Record<string, string> = {};
  /** Number in docs/errors.md; 0 for an error of the client itself. */
  declare readonly code: number;
  /** Whether the same request may succeed later without a change. */
  declare readonly temporary: boolean;
  /** Whether the client connects again after this end of a connection. */
  declare readonly reconnect: Reconnect;
  /** Shortest wait before the next attempt, if the node named one. */
  declare readonly retryAfterMs: number | undefined;
  declare readonly detail: Record<string, string> | undefined;

  constructor(fields: Fields) {
    super(fields.message || fields.name);
    Object.assign(this, { ...fields, message: this.message });
  }

  /** What to do about it; empty unless `@tidegate/client/cures` is imported. */
  get cure(): string {
    return TidegateError.cures[this.name] ?? '';
  }

  /** Fields as plain data, for other tabs. */
  toJSON(): Fields {
    return { ...this, message: this.message };
  }
}

/** Returns the error that an `error` frame carries. */
export function fromWire(
  { code = 0, name, message = '', temporary = false, retryAfterMs, detail }: WireError,
  reconnect: Reconnect = temporary ? 'now' : 'never',
): TidegateError {
  return new TidegateError({ code, name: name || `CODE_${code}`, message, temporary, reconnect, retryAfterMs, detail });
}

const CLASSES: Record<string, Reconnect> = { RECONNECT_NOW: 'now', RECONNECT_AFTER: 'after', RECONNECT_NEVER: 'never' };

/** Returns the error that a `close` frame carries. Without a class its number decides: 3500 to 3999 never, others after 1 s. */
export function fromClose({ code = 0, name, reason = '', reconnect: named = '', afterMs }: WireClose): TidegateError {
  const known = CLASSES[named];
  const reconnect = known ?? (code >= 3500 && code < 4000 ? 'never' : 'after');
  const retryAfterMs = reconnect === 'after' ? (afterMs ?? (known ? 0 : 1000)) : undefined;
  return fromWire({ code, name, message: reason, temporary: reconnect !== 'never', retryAfterMs }, reconnect);
}

/** Returns an error of the client itself. */
export function local(name: LocalName, text?: string): TidegateError {
  const [temporary, message = ''] = LOCAL[name];
  return fromWire({ name, message: text || message, temporary });
}

/** Returns the error as it is, or under this name if it is of the platform. */
export const typed = (error: unknown, name: LocalName): TidegateError => (error instanceof TidegateError ? error : local(name, String(error)));
