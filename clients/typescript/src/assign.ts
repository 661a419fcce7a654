import type { Options } from './types.js';
import type { WireClose } from './wire.js';

const TIMEOUT_MS = 5000;

export interface Assigned {
  addresses: string[];
  ttlMs: number;
  /** The token was refused: counts as a close by the node. */
  close?: WireClose;
}

/** Body of an answer: addresses, or an error. */
interface Answer {
  addresses?: { address: string }[];
  ttlMs?: number;
  code?: number;
  name?: string;
  message?: string;
}

/**
 * Asks any node for the addresses of nodes, best first (docs/http.md). The address of the service itself comes last, so
 * the answer is never empty: that node says by itself when to try again.
 */
export async function askAssign(
  base: string,
  transport: 'ws' | 'tcp',
  token: string,
  zone?: string,
  credentials: Options['credentials'] = 'same-origin',
): Promise<Assigned> {
  const url = new URL(`/v1/assign?transport=${transport}`, base);
  if (zone) url.searchParams.set('zone', zone);
  const isSecure = url.protocol === 'https:';
  const scheme = isSecure ? { ws: 'wss', tcp: 'tls' }[transport] : transport;
  const own = `${scheme}://${url.hostname}:${url.port || (isSecure ? 443 : 80)}`;
  try {
    const headers = { authorization: `Bearer ${token}` };
    const response = await fetch(url, { headers, credentials, signal: AbortSignal.timeout(TIMEOUT_MS) });
    const { addresses = [], ttlMs = 0, message: reason = '', ...error } = (await response.json()) as Answer;
    if (response.status === 401) return { addresses: [], ttlMs, close: { ...error, reason, reconnect: 'RECONNECT_NEVER' } };
    return { addresses: [...addresses.map((it) => it.address).filter((it) => it !== own), own], ttlMs };
  } catch {
    return { addresses: [own], ttlMs: 0 };
  }
}
