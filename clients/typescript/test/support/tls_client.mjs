// Two clients that talk over one address, in a process of their own: a process of Node reads NODE_EXTRA_CA_CERTS when it
// starts. Arguments: the address, the tokens of alice and bob, and the number of messages. Writes JSON lines.
import { connect } from '../../dist/index.js';

const [address, aliceToken, bobToken, count] = process.argv.slice(2);
const say = (it) => process.stdout.write(JSON.stringify(it) + '\n');
const random = () => 0.5;
const open = (token) => connect({ addresses: [address], token, device: 'tls', random });

const alice = open(aliceToken);
alice.on('state', ({ name, error }) => say({ state: name, error: error && { ...error.toJSON(), cure: error.cure } }));
await alice.live();
const bob = open(bobToken);
await new Promise((resolve) => bob.on('synced', resolve));
const got = [];
const sent = [];
const all = new Promise((resolve) => bob.on('message', (it) => got.push(it.content.text) === Number(count) && resolve()));
for (let at = 0; at < Number(count); at++) {
  sent.push((await alice.send('bob', `message ${at}`)).seq);
  say({ sent: at });
}
await all;
say({ end: { sent, got } });
await Promise.all([alice.close(), bob.close()]);
