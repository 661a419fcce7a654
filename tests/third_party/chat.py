"""Two users talk through a running node with the Python `websockets` client, as JSON.

usage: chat.py ADDRESS USER_A TOKEN_A USER_B TOKEN_B; exits 0 when every answer was the expected one.
"""

import json
import sys

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import story

SUBPROTOCOL = "tidegate.v1.json"


class Client:
    def __init__(self, socket):
        self.socket = socket
        story.expect("sub-protocol", socket.subprotocol, SUBPROTOCOL)

    def send(self, frame):
        self.socket.send(json.dumps(frame))

    def take(self):
        frame = self.socket.recv(timeout=story.ANSWER_SECONDS)
        story.expect("a text frame", type(frame), str)
        return json.loads(frame)

    def expect_end(self):
        try:
            frame = self.socket.recv(timeout=story.ANSWER_SECONDS)
        except ConnectionClosed as closed:
            story.expect("close code", closed.rcvd and closed.rcvd.code, 1000)
        else:
            raise story.Surprise(f"a frame after Close: {frame}")


def dial(address):
    return connect(f"ws://{address}/", subprotocols=[SUBPROTOCOL], compression=None)


def main():
    address, a, token_a, b, token_b = sys.argv[1:]
    with dial(address) as alice, dial(address) as bob:
        story.converse(Client(alice), a, token_a, Client(bob), b, token_b)
    print("python websockets: ok")


if __name__ == "__main__":
    main()
