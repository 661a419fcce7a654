// Prints a token for a Tidegate client. Needs nothing but Node 16.
//
// usage: node mint.mjs KEY_FILE USER [DEVICE]
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";

/** The key is the 32 bytes that the 64 hex digits in the file stand for, not the digits. */
const readKey = (path) => Buffer.from(readFileSync(path, "ascii").trim(), "hex");

const encode = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function mint(key, user, device, seconds = 3600) {
  const now = Math.floor(Date.now() / 1000);
  const claims = { sub: user, iat: now, exp: now + seconds };
  if (device !== undefined) claims.dev = device;
  const signed = `${encode({ alg: "HS256", typ: "JWT" })}.${encode(claims)}`;
  const signature = createHmac("sha256", key).update(signed).digest("base64url");
  return `${signed}.${signature}`;
}

const [keyFile, user, device] = process.argv.slice(2);
console.log(mint(readKey(keyFile), user, device));
