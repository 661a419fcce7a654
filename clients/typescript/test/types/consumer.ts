// What an application writes; it has to compile in strict mode, without the types of Node.
import { connect, indexedDbStore, TidegateError, type Changed, type Entry, type EventName, type Events, type History, type Message, type OutboxStore, type Sent, type State } from '@tidegate/client';
import { CURES } from '@tidegate/client/cures';

const store: OutboxStore = indexedDbStore('alice:phone');
const client = connect({
  assign: 'https://chat.example',
  token: async (): Promise<string> => (await fetch('/token')).text(),
  outbox: store,
  tabs: 'shared',
  from: 'start',
  settings: { unread: 'direct', retention: '7d', presence: 'off' },
  webSocket: (url, protocols) => new WebSocket(url, protocols),
});

const off: () => void = client.on('message', (it: Message) => console.log(it.content.text?.toUpperCase(), it.content['extra']));
client.on('state', ({ name, error, retryAt }) => {
  if (name === 'waiting' && error) console.log(error.cure, retryAt);
});
const names: EventName[] = ['accepted', 'change', 'cleared', 'conversation', 'edit', 'failed', 'gap', 'goAway', 'hidden', 'message', 'notice', 'presence', 'recall', 'receipt', 'sent', 'shed', 'signal', 'state', 'synced'];
for (const name of names) client.on(name, (value: Events[typeof name]) => void value);

const show = (entry: Entry): string => {
  switch (entry.kind) {
    case 'message':
      return entry.content.text ?? '';
    case 'change':
      return `${entry.change} ${entry.users.join()}`;
    case 'recall':
      return `recalls ${entry.recalled}`;
    case 'edit':
      return `${entry.edited} is ${entry.content.text}`;
    case 'recalled':
      return 'recalled';
    case 'expired':
      return `up to ${entry.last}`;
  }
};

export async function talk(): Promise<number> {
  await client.live();
  const state: State = client.state;
  const sent: Sent = await client.send({ user: 'bob' }, { text: 'hi', data: new Uint8Array([1]) }, { chain: false, traceparent: '', flags: 2 });
  const history: History = await client.history(sent.conversation, { before: 10, limit: 50 });
  console.log(state.name, history.entries.map(show), client.unread(), client.conversations()[0]?.last?.kind);
  await client.read(sent.conversation);
  await client.signal('g:team', 'typing');
  await client.edit(sent.conversation, sent.seq, 'better');
  await client.edit(sent.conversation, sent.seq, { json: { stars: 3 }, type: 'rating', replyTo: 1, mentions: ['*'] });
  const { seq, duplicate }: Changed = await client.recall(sent.conversation, sent.seq);
  try {
    await client.join('r:hall');
    await client.watch('g:team');
    const online: string[] | undefined = client.presence('g:team');
    console.log(online?.length);
    await client.unwatch('g:team');
  } catch (error) {
    if (error instanceof TidegateError && !error.temporary) console.log(error.code, error.name, error.cure, CURES[error.name], error.detail?.['field']);
  }
  off();
  await client.close();
  return duplicate ? 0 : seq;
}

// @ts-expect-error: there is no such event.
client.on('messages', () => {});
// @ts-expect-error: mentions are names.
void client.edit('g:team', 1, { text: 'hi', mentions: 'bob' });
// @ts-expect-error: a token is needed.
connect({ addresses: ['ws://a'] });
// @ts-expect-error: a state has no such name.
if (client.state.name === 'open') off();
