"""Two users talk through a running node over a bare socket, one JSON object a line, as `nc` would.

usage: nc.py ADDRESS USER_A TOKEN_A USER_B TOKEN_B; exits 0 when every answer was the expected one.
Needs nothing but Python. Frames are written in two halves, so the node must wait for the rest of a line.
"""

import json
import socket
import sys

import story


class Client:
    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=story.ANSWER_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines = self.socket.makefile("r", encoding="utf-8", newline="\n")

    def send(self, frame):
        line = json.dumps(frame, ensure_ascii=False).encode() + b"\n"
        half = len(line) // 2
        self.socket.sendall(line[:half])
        self.socket.sendall(line[half:])

    def take(self):
        line = self.lines.readline()
        story.expect("a whole line", line.endswith("\n"), True)
        return json.loads(line)

    def expect_end(self):
        story.expect("the end of the stream", self.lines.readline(), "")


def main():
    address, a, token_a, b, token_b = sys.argv[1:]
    story.converse(Client(address), a, token_a, Client(address), b, token_b)
    print("json lines: ok")


if __name__ == "__main__":
    main()
