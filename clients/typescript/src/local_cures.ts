import type { LocalName } from './error.js';

/** What to do about the codes of the client's own, by their names. */
export const LOCAL_CURES: Readonly<Record<LocalName, string>> = {
  CLOSED: 'Connect again; the outcome of an unanswered message is unknown unless the outbox is persistent.',
  OFFLINE: 'Wait for the state "live", then try again.',
  OUTBOX_FULL: 'Wait for answers before sending more.',
  BAD_REQUEST: 'Check the ids and the content.',
  UNREACHABLE: 'Check the address and the network; for `wss:` and `tls:` also that the certificate names the host and its issuer is trusted (Node: NODE_EXTRA_CA_CERTS).',
  NO_TOKEN: 'Check the function `token`; it is called again after a wait.',
  NO_ADDRESS: 'Check `addresses` or `assign`.',
  UNSUPPORTED: 'Serve tabs.js next to the client, over HTTPS or on localhost, or leave out `tabs` and `outbox`; for `react` and `watch`, connect to a node whose version has them and whose settings allow them.',
  OTHER_USER: 'Close the client and connect another one for the other user.',
};
