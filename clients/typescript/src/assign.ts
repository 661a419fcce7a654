import type { Options } from './types.js';
import type { WireClose } from './wire.js';

const TIMEOUT_MS = 5000;

export interface Assigned {
  addresses: string[];
  ttlMs: number;
  /** The token was refused: counts as a close by the node. */
  close?: WireClose;
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
  const url = new URL('/v1/assign', base);
  url.searchParams.set('transport', transport);
  if (zone) url.searchParams.set('zone', zone);
  const isSecure = url.protocol === 'https:';
  const scheme = transport === 'ws' ? (isSecure ? 'wss' : 'ws') : isSecure ? 'tls' : 'tcp';
  const own = `${scheme}://${url.hostname}:${url.port || (isSecure ? 443 : 80)}`;
  try {
    const headers = { authorization: `Bearer ${token}` };
    const response = await fetch(url, { headers, credentials, signal: AbortSignal.timeout(TIMEOUT_MS) });
    const body = (await response.json()) as {
      addresses?: { address: string }[];
      ttlMs?: number;
      code?: number;
      name?: string;
      message?: string;
    };
    if (response.status === 401) {
      const { code = 0, name = '', message = '' } = body;
      return { addresses: [], ttlMs: 0, close: { code, name, reason: message, reconnect: 'RECONNECT_NEVER' } };
    }
    const addresses = (body.addresses ?? []).map((it) => it.address);
    return { addresses: [...addresses.filter((it) => it !== own), own], ttlMs: body.ttlMs ?? 0 };
  } catch {
    return { addresses: [own], ttlMs: 0 };
  }
}
