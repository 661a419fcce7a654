import { post } from "./api.ts";
import { userPath } from "./connections.ts";

/** A device of a user that is connected, or whose chain is saved. */
export interface KnownDevice {
  readonly device: string;
  readonly online: boolean;
  readonly node: string | null;
  /** Whether a chain of it is saved. */
  readonly chain: boolean;
}

/** The chain of a device, as it was saved last. */
export interface Chain {
  readonly expected: string;
  /** Messages that wait for the expected one. */
  readonly held: number;
  readonly blockedMs: number;
  readonly done: number;
  readonly skipped: number;
  readonly node: string | null;
  readonly silent: readonly string[];
}

/** What came of the removal of a chain. */
export interface ChainReset {
  readonly chain: boolean;
  readonly closed: number;
  readonly silent: readonly string[];
}

/** Path of the chain of a device. */
export function chainPath(user: string, device: string): string {
  return userPath(user, `devices/${encodeURIComponent(device)}/chain`);
}

/** Removes the chain of a device, and closes the connection that it has. */
export function resetChain(user: string, device: string): Promise<ChainReset> {
  return post<ChainReset>(chainPath(user, device), undefined, "DELETE");
}
