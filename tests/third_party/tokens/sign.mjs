// Prints a token that is signed with a private key: RSA (RS256), P-256 (ES256) or Ed25519 (EdDSA). Needs nothing but Node 16.
//
// usage: node sign.mjs PRIVATE_KEY_PEM KID USER [DEVICE]
import { createPrivateKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";

const ALGORITHMS = { rsa: ["RS256", "sha256"], ec: ["ES256", "sha256"], ed25519: ["EdDSA", null] };

const encode = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

function mint(key, kid, user, device, seconds = 3600) {
  const [alg, hash] = ALGORITHMS[key.asymmetricKeyType];
  const now = Math.floor(Date.now() / 1000);
  const claims = { sub: user, iat: now, exp: now + seconds };
  if (device !== undefined) claims.dev = device;
  const signed = `${encode({ alg, typ: "JWT", kid })}.${encode(claims)}`;
  // A JWT has both numbers of an ES256 signature side by side, and not in ASN.1.
  const signature = sign(hash, Buffer.from(signed), { key, dsaEncoding: "ieee-p1363" });
  return `${signed}.${signature.toString("base64url")}`;
}

const [keyFile, kid, user, device] = process.argv.slice(2);
console.log(mint(createPrivateKey(readFileSync(keyFile)), kid, user, device));
