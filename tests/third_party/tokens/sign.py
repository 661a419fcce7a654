"""Prints a token that is signed with a private RSA key (RS256). Needs nothing but Python 3.7 and openssl.

usage: sign.py PRIVATE_KEY_PEM KID USER [DEVICE]
"""

import base64
import json
import subprocess
import sys
import time


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(key_file, signed):
    """The standard library has no RSA."""
    command = ["openssl", "dgst", "-sha256", "-sign", key_file]
    return subprocess.run(command, input=signed, stdout=subprocess.PIPE, check=True).stdout


def mint(key_file, kid, user, device=None, seconds=3600):
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + seconds}
    if device is not None:
        claims["dev"] = device
    head = {"alg": "RS256", "typ": "JWT", "kid": kid}
    signed = ".".join(encode(json.dumps(part).encode()) for part in (head, claims))
    return f"{signed}.{encode(sign(key_file, signed.encode()))}"


if __name__ == "__main__":
    key_file, kid, user, *device = sys.argv[1:]
    print(mint(key_file, kid, user, *device))
