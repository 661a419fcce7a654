// A push service for Tidegate: takes `tidegate.message.waiting`, and sends it by APNs, FCM HTTP v1 and Web Push.
// Node's standard library alone.
//
// Usage: node push.mjs CONFIG.json
//
// {"port": 9100, "secrets": ["whsec_…"], "tokens": {"bob": [{"kind": "apns", "token": "…"}, {"kind": "fcm", "token": "…"},
//   {"kind": "web", "endpoint": "https://…", "p256dh": "…", "auth": "…"}]},
//  "apns": {"url": "https://api.push.apple.com", "topic": "com.example.app", "team": "…", "keyId": "…", "key": "-----BEGIN PRIVATE KEY-----…"},
//  "fcm": {"url": "https://fcm.googleapis.com", "project": "…", "account": {"client_email": "…", "private_key": "…", "token_uri": "…"}},
//  "vapid": {"subject": "mailto:ops@example.com", "key": "-----BEGIN PRIVATE KEY-----…"}}
//
// A real service has the tokens in its database; an app registers its token there after each start.

import crypto from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import http2 from 'node:http2';
import { pathToFileURL } from 'node:url';

const BODY_BYTES_MAX = 2 << 20;
const SENT_MAX = 10_000;
const TIMEOUT_MS = 5_000;

const base64url = (bytes) => Buffer.from(bytes).toString('base64url');
const hash = (text) => crypto.createHash('sha256').update(text).digest('base64url');
const seconds = () => Math.floor(Date.now() / 1000);

/** Returns whether one of the secrets has signed the request, not more than five minutes ago (Standard Webhooks). */
export function isSigned(headers, body, secrets) {
  const [id, time] = [headers['webhook-id'], headers['webhook-timestamp']];
  if (!id || !(Math.abs(seconds() - Number(time)) <= 300)) return false;
  const given = String(headers['webhook-signature']).split(' ');
  return secrets.some((secret) => {
    const key = Buffer.from(secret.replace(/^whsec_/, ''), 'base64');
    const mac = crypto.createHmac('sha256', key).update(`${id}.${time}.`).update(body).digest('base64');
    return given.some((it) => {
      const [one, other] = [Buffer.from(it), Buffer.from(`v1,${mac}`)];
      return one.length === other.length && crypto.timingSafeEqual(one, other);
    });
  });
}

/** Returns a signed JSON Web Token. */
export function jwt(header, claims, key) {
  const text = [header, claims].map((it) => base64url(JSON.stringify(it))).join('.');
  const options = header.alg === 'ES256' ? { key, dsaEncoding: 'ieee-p1363' } : key;
  return `${text}.${base64url(crypto.sign('sha256', Buffer.from(text), options))}`;
}

/** Returns a token that is made again after `ms`. */
function renewed(ms, make) {
  let made = null;
  return () => {
    if (!made || Date.now() > made.at + ms) {
      const [at, token] = [Date.now(), make()];
      made = { at, token };
      // One that could not be made is tried again with the next notice.
      Promise.resolve(token).catch(() => (made = null));
    }
    return made.token;
  };
}

/** What a user sees. With `preview: none` the app reads the message itself, by its conversation and seq. */
function shown({ from, preview, count }) {
  const title = from ?? 'New message';
  return { title, body: preview?.text ?? (count > 1 ? `${count} messages` : 'Open the app to read it') };
}

const sent = (status, gone, retryAfter) => ({
  isTaken: status >= 200 && status < 300,
  isGone: gone,
  status,
  // A date counts as none.
  wait: Number(retryAfter) || 0,
});

async function post(url, headers, body) {
  const answer = await fetch(url, { method: 'POST', headers, body, signal: AbortSignal.timeout(TIMEOUT_MS) });
  return { status: answer.status, text: await answer.text(), retryAfter: answer.headers.get('retry-after') };
}

/** Sender by APNs: one HTTP/2 connection, and a token of the provider that is signed every 40 minutes. */
export function apns({ url, topic, team, keyId, key }) {
  const token = renewed(40 * 60_000, () => jwt({ alg: 'ES256', kid: keyId }, { iss: team, iat: seconds() }, key));
  let session = null;
  const connected = () => {
    if (!session || session.closed || session.destroyed) {
      session = http2.connect(url);
      session.on('error', () => {});
      session.unref();
    }
    return session;
  };
  return (device, data) =>
    new Promise((resolve, reject) => {
      const alert = shown(data);
      const aps = { alert, 'thread-id': data.conversation, sound: 'default', ...(data.badge !== undefined && { badge: data.badge }) };
      const request = connected().request({
        ':method': 'POST',
        ':path': `/3/device/${device.token}`,
        authorization: `bearer ${token()}`,
        'apns-topic': topic,
        'apns-push-type': 'alert',
        // At most 64 bytes; a later notice of the conversation replaces this one.
        'apns-collapse-id': hash(data.conversation),
        'apns-expiration': String(seconds() + 86_400),
      });
      let [status, text, retryAfter] = [0, '', null];
      request.setTimeout(TIMEOUT_MS, () => request.close(http2.constants.NGHTTP2_CANCEL));
      request.on('response', (headers) => ([status, retryAfter] = [headers[':status'], headers['retry-after']]));
      request.on('data', (part) => (text += part));
      request.on('error', reject);
      request.on('close', () =>
        status ? resolve(sent(status, status === 410 || text.includes('BadDeviceToken'), retryAfter)) : reject(new Error('no answer')),
      );
      request.end(JSON.stringify({ aps, conversation: data.conversation, seq: data.seq }));
    });
}

/** Sender by FCM HTTP v1: an access token of the service account, and one call for each device. */
export function fcm({ url, project, account }) {
  const access = renewed(50 * 60_000, async () => {
    const scope = 'https://www.googleapis.com/auth/firebase.messaging';
    const claims = { iss: account.client_email, scope, aud: account.token_uri, iat: seconds(), exp: seconds() + 3600 };
    const assertion = jwt({ alg: 'RS256', typ: 'JWT' }, claims, account.private_key);
    const form = new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion });
    const { status, text } = await post(account.token_uri, {}, form);
    if (status !== 200) throw new Error(`the token endpoint answered ${status}`);
    return JSON.parse(text).access_token;
  });
  return async (device, data) => {
    const tag = hash(data.conversation);
    const message = {
      token: device.token,
      notification: shown(data),
      data: { conversation: data.conversation, seq: String(data.seq) },
      android: { collapse_key: tag, ttl: '86400s', priority: 'HIGH', notification: { tag } },
    };
    const headers = { authorization: `Bearer ${await access()}`, 'content-type': 'application/json' };
    const { status, text, retryAfter } = await post(`${url}/v1/projects/${project}/messages:send`, headers, JSON.stringify({ message }));
    return sent(status, status === 404 && text.includes('UNREGISTERED'), retryAfter);
  };
}

/** Encrypts a message for a browser (RFC 8291). The last two arguments are for tests. */
export function encrypted(text, p256dh, auth, salt = crypto.randomBytes(16), privateKey = null) {
  const own = crypto.createECDH('prime256v1');
  if (privateKey) own.setPrivateKey(privateKey);
  else own.generateKeys();
  const [browser, publicKey] = [Buffer.from(p256dh, 'base64url'), own.getPublicKey()];
  const derive = (secret, saltOf, info, length) => Buffer.from(crypto.hkdfSync('sha256', secret, saltOf, info, length));
  const info = Buffer.concat([Buffer.from('WebPush: info\0'), browser, publicKey]);
  const secret = derive(own.computeSecret(browser), Buffer.from(auth, 'base64url'), info, 32);
  const key = derive(secret, salt, 'Content-Encoding: aes128gcm\0', 16);
  const nonce = derive(secret, salt, 'Content-Encoding: nonce\0', 12);
  const cipher = crypto.createCipheriv('aes-128-gcm', key, nonce);
  const size = Buffer.alloc(5);
  size.writeUInt32BE(4096);
  size[4] = publicKey.length;
  const body = [cipher.update(Buffer.concat([Buffer.from(text), Buffer.from([2])])), cipher.final(), cipher.getAuthTag()];
  return Buffer.concat([salt, size, publicKey, ...body]);
}

/** Sender by Web Push, with a token of this server for each push service (RFC 8292). */
export function webPush({ subject, key }) {
  const { x, y } = crypto.createPublicKey(key).export({ format: 'jwk' });
  const publicKey = base64url(Buffer.concat([Buffer.from([4]), Buffer.from(x, 'base64url'), Buffer.from(y, 'base64url')]));
  return async (device, data) => {
    const claims = { aud: new URL(device.endpoint).origin, exp: seconds() + 12 * 3600, sub: subject };
    const body = JSON.stringify({ ...shown(data), conversation: data.conversation, seq: data.seq, badge: data.badge });
    const headers = {
      authorization: `vapid t=${jwt({ typ: 'JWT', alg: 'ES256' }, claims, key)}, k=${publicKey}`,
      'content-encoding': 'aes128gcm',
      'content-type': 'application/octet-stream',
      ttl: '86400',
      urgency: 'high',
      // At most 32 characters; a later notice of the conversation replaces one that waits for the browser.
      topic: hash(data.conversation).slice(0, 32),
    };
    const { status, retryAfter } = await post(device.endpoint, headers, encrypted(body, device.p256dh, device.auth));
    return sent(status, status === 404 || status === 410, retryAfter);
  };
}

/** Push service: the server that takes the webhook, and what it sends. */
export function service({ secrets, tokens, apns: apple, fcm: google, vapid }) {
  const senders = { apns: apple && apns(apple), fcm: google && fcm(google), web: vapid && webPush(vapid) };
  const done = new Set();

  /** Sends a notice to all devices of its user. Returns whether nothing of it is left to send, and the longest wait, in
   * seconds, that a provider asked for. */
  async function notify({ id, data }) {
    // A user may be called `constructor`.
    const devices = Object.hasOwn(tokens, data.user) ? tokens[data.user] : [];
    let longest = 0;
    const results = devices.map(async (device) => {
      // A notice that comes again is sent only to devices that did not take it.
      const key = `${id} ${device.token ?? device.endpoint}`;
      if (done.has(key)) return true;
      const { isTaken, isGone, status, wait } = await senders[device.kind](device, data);
      if (isGone) tokens[data.user] = tokens[data.user].filter((it) => it !== device);
      // The provider refuses this very push, and would again. All else may pass, such as 403 until the credentials are mended.
      const isDone = isTaken || isGone || status === 400 || status === 413;
      if (!isDone) longest = Math.max(longest, wait);
      if (!isTaken) console.error(`${device.kind} answered ${status} for ${data.user}`);
      if (isDone) done.add(key);
      if (done.size > SENT_MAX) done.delete(done.values().next().value);
      return isDone;
    });
    const all = await Promise.allSettled(results);
    all.filter((it) => it.reason).forEach((it) => console.error(`not sent: ${it.reason.message}`));
    return { isTaken: all.every((it) => it.value === true), wait: longest };
  }

  async function take(request, response) {
    const parts = [];
    let size = 0;
    for await (const part of request) {
      size += part.length;
      if (size > BODY_BYTES_MAX) return response.writeHead(413).end();
      parts.push(part);
    }
    const body = Buffer.concat(parts);
    if (!isSigned(request.headers, body, secrets)) return response.writeHead(401).end();
    const events = [JSON.parse(body)].flat().filter((event) => event.type === 'tidegate.message.waiting');
    const results = await Promise.all(events.map(notify));
    const [isTaken, wait] = [results.every((it) => it.isTaken), Math.max(0, ...results.map((it) => it.wait))];
    // A 2xx takes the notices; with another status they come again, unless they were read meanwhile.
    response.writeHead(isTaken ? 204 : 503, !isTaken && wait > 0 ? { 'retry-after': String(Math.ceil(wait)) } : {}).end();
  }

  return http.createServer((request, response) =>
    take(request, response).catch((error) => {
      // Such as a request that broke off, or is no JSON.
      console.error(`request failed: ${error.message}`);
      if (!response.headersSent) response.writeHead(500);
      response.end();
    }),
  );
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) {
  const config = JSON.parse(fs.readFileSync(process.argv[2]));
  service(config).listen(config.port, () => console.log(`listening on ${config.port}`));
}
