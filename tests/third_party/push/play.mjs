// Plays push.mjs against fakes of the three services, which record what they get and check signatures and encryption.
//
// Usage: node play.mjs. It prints the URL that takes webhooks, reads their secret from the standard input, and prints a line
// of JSON for each push that a fake has taken. The first try of each device fails, so that a notice has to come again.

import assert from 'node:assert';
import crypto from 'node:crypto';
import http from 'node:http';
import http2 from 'node:http2';
import readline from 'node:readline';

import { encrypted, service } from './push.mjs';

const json = (part) => JSON.parse(Buffer.from(part, 'base64url'));
const pem = (key) => key.export({ type: 'pkcs8', format: 'pem' });
const record = (kind, of) => console.log(JSON.stringify({ kind, ...of }));

/** Checks a JSON Web Token, and returns its claims. */
function claims(token, key) {
  const [header, body, signature] = token.split('.');
  const options = json(header).alg === 'ES256' ? { key, dsaEncoding: 'ieee-p1363' } : key;
  const text = Buffer.from(`${header}.${body}`);
  assert(crypto.verify('sha256', text, options, Buffer.from(signature, 'base64url')), 'a token is signed');
  return json(body);
}

/** Decrypts what a browser gets (RFC 8291). */
function decrypted(body, browser, auth) {
  const [salt, server] = [body.subarray(0, 16), body.subarray(21, 21 + body[20])];
  const derive = (secret, saltOf, info, length) => Buffer.from(crypto.hkdfSync('sha256', secret, saltOf, info, length));
  const info = Buffer.concat([Buffer.from('WebPush: info\0'), browser.getPublicKey(), server]);
  const secret = derive(browser.computeSecret(server), auth, info, 32);
  const key = derive(secret, salt, 'Content-Encoding: aes128gcm\0', 16);
  const cipher = crypto.createDecipheriv('aes-128-gcm', key, derive(secret, salt, 'Content-Encoding: nonce\0', 12));
  cipher.setAuthTag(body.subarray(-16));
  const text = Buffer.concat([cipher.update(body.subarray(21 + body[20], -16)), cipher.final()]);
  assert.equal(text.at(-1), 2, 'the last record');
  return JSON.parse(text.subarray(0, -1));
}

/** The example of RFC 8291, appendix A. */
function checkExample() {
  const made = encrypted(
    'When I grow up, I want to be a watermelon',
    'BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4',
    'BTBZMqHH6r4Tts7J_aSIgg',
    Buffer.from('DGv6ra1nlYgDCS1FRnbzlw', 'base64url'),
    Buffer.from('yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw', 'base64url'),
  );
  assert.equal(
    made.toString('base64url'),
    'DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN',
  );
}

const ec = () => crypto.generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
const [apple, vapid, google] = [ec(), ec(), crypto.generateKeyPairSync('rsa', { modulusLength: 2048 })];
const [browser, auth] = [crypto.createECDH('prime256v1'), crypto.randomBytes(16)];
browser.generateKeys();

const tried = new Set();
/** Returns whether it is the first try of a device. */
const isFirst = (device) => !tried.has(device) && Boolean(tried.add(device));

const apnsFake = http2.createServer();
apnsFake.on('stream', async (stream, headers) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  const device = headers[':path'];
  assert.equal(claims(headers.authorization.replace(/^bearer /, ''), apple.publicKey).iss, 'TEAM');
  if (isFirst(device)) return stream.respond({ ':status': 503 }, { endStream: true });
  const { aps, conversation, seq } = JSON.parse(Buffer.concat(parts));
  record('apns', { device, collapse: headers['apns-collapse-id'], topic: headers['apns-topic'], aps, conversation, seq });
  stream.respond({ ':status': 200 }, { endStream: true });
});

const httpFake = http.createServer(async (request, response) => {
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = Buffer.concat(parts);
  const { url, headers } = request;
  if (url === '/token') {
    const assertion = new URLSearchParams(body.toString()).get('assertion');
    assert.equal(claims(assertion, google.publicKey).iss, 'push@example');
    return response.end(JSON.stringify({ access_token: 'access', expires_in: 3600 }));
  }
  if (isFirst(url)) return response.writeHead(500).end();
  if (url === '/browser/1') {
    const [token, key] = /^vapid t=([^,]+), k=(.+)$/.exec(headers.authorization).slice(1);
    assert.equal(claims(token, vapid.publicKey).aud, `http://${headers.host}`);
    assert.equal(Buffer.from(key, 'base64url').length, 65);
    record('web', { topic: headers.topic, ttl: headers.ttl, ...decrypted(body, browser, auth) });
    return response.writeHead(201).end();
  }
  assert.equal(headers.authorization, 'Bearer access');
  record('fcm', JSON.parse(body).message);
  response.end('{}');
});

const listening = (server) => new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server.address().port)));

checkExample();
const [apnsPort, httpPort] = [await listening(apnsFake), await listening(httpFake)];
const secrets = [];
const fake = `http://127.0.0.1:${httpPort}`;
const server = service({
  secrets,
  tokens: {
    cat: [
      { kind: 'apns', token: 'a1' },
      { kind: 'fcm', token: 'f1' },
      { kind: 'web', endpoint: `${fake}/browser/1`, p256dh: browser.getPublicKey('base64url'), auth: auth.toString('base64url') },
    ],
  },
  apns: { url: `http://127.0.0.1:${apnsPort}`, topic: 'com.example.app', team: 'TEAM', keyId: 'K1', key: pem(apple.privateKey) },
  fcm: { url: fake, project: 'app', account: { client_email: 'push@example', private_key: pem(google.privateKey), token_uri: `${fake}/token` } },
  vapid: { subject: 'mailto:ops@example.com', key: pem(vapid.privateKey) },
});
console.log(`http://127.0.0.1:${await listening(server)}/tg`);
readline.createInterface({ input: process.stdin }).on('line', (secret) => secrets.push(secret)).on('close', () => process.exit(0));
