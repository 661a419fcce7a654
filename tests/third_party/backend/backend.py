"""A back end that talks to Tidegate: the standard library alone, any number of nodes, every request safe to repeat.

Usage: backend.py http://node1:7801,http://node2:7801 [CLIENT_HOST:PORT TOKEN_KEY_FILE]
The key of the admin API, where the nodes ask for one, is in the environment as TIDEGATE_API_KEY. With a client port, a user
logs in there by a token that this program signs, and is kicked. With TIDEGATE_WEBHOOK_PORT in the environment, the nodes also
send the events to that port of this machine (0: any).
"""

import base64
import hashlib
import hmac
import http.client
import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid

from webhooks import Receiver


class Refused(Exception):
    """An answer that no repetition changes; `problem` is its JSON."""

    def __init__(self, problem):
        super().__init__(f"{problem['title']}: {problem['detail']} {problem.get('cure', '')}")
        self.problem = problem


class Tidegate:
    """Calls any of the nodes, and the next one when a node can't answer."""

    def __init__(self, addresses, key=None, give_up_after=30):
        self.addresses = list(addresses)
        self.key = key
        self.give_up_after = give_up_after

    def call(self, method, path, body=None):
        """Returns the answer. A request is repeated as it is, so give those that create something a `requestId`."""
        end = time.monotonic() + self.give_up_after
        while True:
            try:
                with self.open(self.addresses[0], method, path, body, timeout=10) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                problem = json.load(error)
                if not problem["temporary"]:
                    raise Refused(problem) from None
                wait = problem.get("retryAfterMs", 200) / 1000
            except (OSError, ValueError, http.client.HTTPException):
                wait = 0.2
            if time.monotonic() > end:
                raise TimeoutError(f"no node answered {method} {path}")
            self.addresses.append(self.addresses.pop(0))
            time.sleep(wait)

    def open(self, address, method, path, body=None, timeout=10, headers=()):
        request = urllib.request.Request(address + path, method=method)
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        # Required of every request that changes something, with a body or without.
        request.add_header("Content-Type", "application/json")
        for name, value in headers:
            request.add_header(name, value)
        if body is not None:
            request.data = json.dumps(body).encode()
        return urllib.request.urlopen(request, timeout=timeout)

    def history(self, conversation):
        """Yields all entries, oldest first, page by page."""
        page = self.call("GET", f"/v1/conversations/{conversation}/messages?direction=forward&limit=7")
        while True:
            yield from page["messages"]
            if "newer" not in page or not page["messages"]:
                return
            page = self.call("GET", f"/v1/conversations/{conversation}/messages?cursor={page['newer']}&limit=7")

    def events(self, query, opened):
        """Yields type and data of the events of all nodes, without an end. After a cut it continues at the next node."""
        addresses, last_id = list(self.addresses), []
        while True:
            try:
                # A node that has nothing else to send sends a comment after 15 s.
                with self.open(addresses[0], "GET", f"/v1/events/stream?{query}", timeout=20, headers=last_id) as stream:
                    for line in stream:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name == "event":
                            kind = value
                        elif name == "data":
                            yield kind, json.loads(value)
                        elif name == "id":
                            last_id = [("Last-Event-ID", value)]
                            opened.set()
            except urllib.error.HTTPError as error:
                problem = json.load(error)
                if not problem["temporary"]:
                    raise Refused(problem) from None
            except (OSError, http.client.HTTPException):
                pass
            addresses.append(addresses.pop(0))
            time.sleep(0.2)


class Listener(threading.Thread):
    """Follows what is accepted: the events of a conversation come in the order of their seqs, some of them again."""

    def __init__(self, broker, query):
        super().__init__(daemon=True)
        self.broker, self.query, self.opened = broker, query, threading.Event()
        self.received, self.again, self.wrong = {}, 0, []

    def run(self):
        for kind, event in self.broker.events(self.query, self.opened):
            if kind == "gap":
                # What happened meanwhile is in the history.
                self.wrong.append(event)
                continue
            if kind == "tidegate.message.pruned":
                # It names what retention has removed, not an entry.
                continue
            conversation, seq = event["data"]["conversation"], event["data"]["seq"]
            highest = self.received.get(conversation, 0)
            if seq <= highest:
                self.again += 1
            elif seq > highest + 1:
                self.wrong.append(event)
            else:
                # Here a back end would store what it does, and the highest seq with it.
                self.received[conversation] = seq


class Endpoint:
    """Receives the events of conversations by webhook, and checks that each has the seq after the one before."""

    def __init__(self, broker, port, conversations):
        self.broker, self.received, self.wrong = broker, {}, []
        self.receiver = Receiver(("127.0.0.1", port), self.take)
        self.path, port = f"/v1/webhooks/back-end-{uuid.uuid4().hex[:8]}", self.receiver.server_address[1]
        endpoint = {"url": f"http://127.0.0.1:{port}/", "types": ["tidegate.*"], "conversations": conversations}
        [secret] = broker.call("PUT", self.path, endpoint)["secrets"]
        self.receiver.secrets.append(secret["secret"])
        print(f"webhooks come to port {port}", flush=True)

    def take(self, event):
        conversation, seq = event["data"]["conversation"], event["data"].get("seq")
        if event["type"] == "tidegate.message.pruned":
            return
        if seq != self.received.get(conversation, 0) + 1:
            self.wrong.append(event)
        self.received[conversation] = seq

    def remove(self):
        self.broker.call("DELETE", self.path)


def mint(key_file, user, seconds=3600):
    """Returns a token that a client logs in with."""
    with open(key_file, encoding="ascii") as file:
        key = bytes.fromhex(file.read().strip())
    encode = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    now = int(time.time())
    parts = {"alg": "HS256", "typ": "JWT"}, {"sub": user, "iat": now, "exp": now + seconds}
    signed = ".".join(encode(json.dumps(part).encode()) for part in parts)
    return f"{signed}.{encode(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def log_in(address, token):
    """Logs a user in, as an app would, and returns the frames that the node sends: one JSON object a line."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=10)
    connection.sendall(json.dumps({"id": 1, "hello": {"version": 1, "token": token, "device": "phone"}}).encode() + b"\n")
    frames = map(json.loads, connection.makefile("r", encoding="utf-8"))
    assert "welcome" in next(frames)
    return frames


def main():
    nodes, *client = sys.argv[1:]
    broker = Tidegate(nodes.split(","), os.environ.get("TIDEGATE_API_KEY"))
    order = uuid.uuid4().hex[:8]
    group, ann, direct = f"g:order-{order}", f"ann-{order}", f"d:ann-{order}:system"
    accepted = {}

    def change(method, path, body=None):
        answer = broker.call(method, path, body)
        accepted.setdefault(answer["conversation"], set()).add(answer["seq"])
        return answer

    listener = Listener(broker, f"conversations={group},{direct}")
    listener.start()
    assert listener.opened.wait(10), "no stream"

    port = os.environ.get("TIDEGATE_WEBHOOK_PORT")
    endpoint = port and Endpoint(broker, int(port), [group, direct])

    change("POST", "/v1/groups", {"id": f"order-{order}", "members": ["shop", ann], "requestId": f"open-{order}"})
    print(f"opened {group}", flush=True)

    if client:
        address, key_file = client
        frames = log_in(address, mint(key_file, ann))
        broker.call("DELETE", f"/v1/users/{ann}/connections?reconnect=after")
        [close] = [frame["close"] for frame in frames if "close" in frame]
        print(f"ann was connected: {close['name']}", flush=True)

    for step in range(20):
        if step == 10:
            # A node may be killed now: the test does that.
            print("half", flush=True)
            sys.stdin.readline()
        message = {"to": group, "from": "shop", "content": {"text": f"step {step}"}, "requestId": f"{order}-{step}"}
        sent = change("POST", "/v1/messages", message)
        if step % 5 == 0:
            change("POST", "/v1/messages", {"to": ann, "content": {"text": f"at step {step}"}, "requestId": f"{order}-{step}"})
    better = {"content": {"text": "step 19, packed"}, "requestId": f"{order}-better"}
    change("PATCH", f"/v1/conversations/{group}/messages/{sent['seq']}", better)

    texts = [entry["content"]["text"] for entry in broker.history(group) if entry["kind"] == "message"]
    assert texts == [f"step {step}" for step in range(19)] + ["step 19, packed"], texts
    print("all 20 are stored, once each and in order", flush=True)

    [unread] = broker.call("POST", "/v1/unread", {"users": [ann]})["users"]
    assert unread["unread"] >= 20, unread
    last = broker.call("GET", f"/v1/users/{ann}/conversations/{group}")["maxSeq"]
    state = broker.call("PATCH", f"/v1/users/{ann}/conversations/{group}", {"readSeq": last})
    assert state["unread"] == 0, state
    print("ann has read everything", flush=True)

    taken_back = change("DELETE", f"/v1/conversations/{group}/messages/{sent['seq']}")
    assert taken_back["of"] == sent["seq"], taken_back
    change("DELETE", f"/v1/groups/order-{order}?requestId=close-{order}")
    try:
        broker.call("POST", "/v1/messages", {"to": group, "from": "shop", "content": {"text": "late"}})
    except Refused as refused:
        print(f"closed: {refused.problem['title']}", flush=True)

    wanted = {conversation: max(seqs) for conversation, seqs in accepted.items()}
    assert all(seqs == set(range(1, max(seqs) + 1)) for seqs in accepted.values()), accepted
    end = time.monotonic() + 10
    while listener.received != wanted and time.monotonic() < end:
        time.sleep(0.05)
    assert listener.received == wanted and not listener.wrong, (listener.received, wanted, listener.wrong)
    print(f"all {sum(wanted.values())} events were received in order, {listener.again} of them again", flush=True)

    if endpoint:
        end = time.monotonic() + 20
        while endpoint.received != wanted and time.monotonic() < end:
            time.sleep(0.05)
        assert endpoint.received == wanted and not endpoint.wrong, (endpoint.received, wanted, endpoint.wrong)
        endpoint.remove()
        print(f"and by webhook, {endpoint.receiver.again} of them again", flush=True)


if __name__ == "__main__":
    main()
