"""Clients of two addresses reach the limit of connections for each address separately, through a proxy.

usage: limit.py URL LIMIT ADDRESS_A ADDRESS_B; exits 0 when every answer was the expected one. The URL is ws:// or wss://, whose
certificates the authority in the file TIDEGATE_CA has signed.
"""

import os
import socket
import ssl
import sys
import time
from urllib.parse import urlsplit

import story

REQUEST = (
    "GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: tidegate.v1.json\r\n"
    # A claim of the client, which must not count.
    "X-Forwarded-For: 198.51.100.{claim}\r\n\r\n"
)
ACCEPTED = "accepted"
REFUSED = "TOO_MANY_FROM_ADDRESS"


class TlsStream:
    """TLS over a socket, which keeps what arrived before the end of the handshake."""

    def __init__(self, stream, context, host):
        self.stream = stream
        self.received = b""
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=host)

    def call(self, work):
        """Returns the result of `work`, for which bytes are sent and received as needed."""
        while True:
            try:
                result = work()
            except ssl.SSLWantReadError:
                self.stream.sendall(self.outgoing.read())
                received = self.stream.recv(4096)
                self.received += received
                self.incoming.write(received) if received else self.incoming.write_eof()
            else:
                self.stream.sendall(self.outgoing.read())
                return result

    def shake_hands(self):
        self.call(self.tls.do_handshake)

    def sendall(self, data):
        self.call(lambda: self.tls.write(data))

    def recv(self, size):
        return self.call(lambda: self.tls.read(size))

    def close(self):
        self.stream.close()


class Opener:
    """Opens connections from chosen addresses."""

    def __init__(self, url):
        parts = urlsplit(url)
        self.target = (parts.hostname, parts.port)
        self.host = parts.netloc
        ca = os.environ.get("TIDEGATE_CA")
        self.context = ssl.create_default_context(cafile=ca) if parts.scheme == "wss" else None
        self.opened = 0

    def open(self, source):
        """Returns the socket, and `ACCEPTED`, `REFUSED`, or what came instead."""
        self.opened += 1
        stream = socket.create_connection(self.target, story.ANSWER_SECONDS, (source, 0))
        if self.context:
            stream = TlsStream(stream, self.context, self.target[0])
            try:
                stream.shake_hands()
            except (ssl.SSLError, ConnectionError) as error:
                # A node that ends TLS refuses before the handshake, with a line that is no TLS.
                return stream, REFUSED if REFUSED.encode() in stream.received else repr(error)
        answer = b""
        try:
            stream.sendall(REQUEST.format(host=self.host, claim=self.opened).encode())
            while not answer.startswith(b"HTTP/1.1 101") and REFUSED.encode() not in answer:
                received = stream.recv(4096)
                if not received:
                    break
                answer += received
        except (ConnectionError, ssl.SSLError) as error:
            # A refusal may close the connection before the request is there.
            if not answer:
                answer = str(error).encode()
        if answer.startswith(b"HTTP/1.1 101"):
            return stream, ACCEPTED
        return stream, REFUSED if REFUSED.encode() in answer else repr(answer)


def main():
    url, limit, *sources = sys.argv[1:]
    opener = Opener(url)
    held = {source: [] for source in sources}
    for source in sources:
        for number in range(1, int(limit) + 1):
            stream, answer = opener.open(source)
            story.expect(f"connection {number} from {source}", answer, ACCEPTED)
            held[source].append(stream)
        stream, answer = opener.open(source)
        story.expect(f"a connection above the limit from {source}", answer, REFUSED)
        stream.close()
    first = sources[0]
    held[first].pop().close()
    until = time.monotonic() + story.ANSWER_SECONDS
    answer = REFUSED
    while answer == REFUSED and time.monotonic() < until:
        stream, answer = opener.open(first)
        time.sleep(0.02)
    story.expect(f"a connection from {first} after another was closed", answer, ACCEPTED)
    print(f"limit for each address, {url}: ok")


if __name__ == "__main__":
    main()
