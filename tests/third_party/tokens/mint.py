"""Prints a token for a Tidegate client. Needs nothing but Python 3.7.

usage: mint.py KEY_FILE USER [DEVICE]
"""

import base64
import hashlib
import hmac
import json
import sys
import time


def read_key(path):
    """The key is the 32 bytes that the 64 hex digits in the file stand for, not the digits."""
    with open(path, encoding="ascii") as file:
        return bytes.fromhex(file.read().strip())


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def mint(key, user, device=None, seconds=3600):
    now = int(time.time())
    claims = {"sub": user, "iat": now, "exp": now + seconds}
    if device is not None:
        claims["dev"] = device
    head = {"alg": "HS256", "typ": "JWT"}
    signed = ".".join(encode(json.dumps(part).encode()) for part in (head, claims))
    signature = hmac.new(key, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encode(signature)}"


if __name__ == "__main__":
    key_file, user, *device = sys.argv[1:]
    print(mint(read_key(key_file), user, *device))
