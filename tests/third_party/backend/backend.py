"""A back end that talks to Tidegate: the standard library alone, any number of nodes, every request safe to repeat.

Usage: backend.py http://node1:7801,http://node2:7801
The key of the admin API, where the nodes ask for one, is in the environment as TIDEGATE_API_KEY.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import uuid


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
                return self.once(method, path, body)
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

    def once(self, method, path, body):
        request = urllib.request.Request(self.addresses[0] + path, method=method)
        if self.key:
            request.add_header("Authorization", f"Bearer {self.key}")
        # Required of every request that changes something, with a body or without.
        request.add_header("Content-Type", "application/json")
        if body is not None:
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def history(self, conversation):
        """Yields all messages, oldest first, page by page."""
        page = self.call("GET", f"/v1/conversations/{conversation}/messages?direction=forward&limit=7")
        while True:
            yield from page["messages"]
            if "newer" not in page or not page["messages"]:
                return
            page = self.call("GET", f"/v1/conversations/{conversation}/messages?cursor={page['newer']}&limit=7")


def main():
    broker = Tidegate(sys.argv[1].split(","), os.environ.get("TIDEGATE_API_KEY"))
    order = uuid.uuid4().hex[:8]
    group = f"g:order-{order}"

    broker.call("POST", "/v1/groups", {"id": f"order-{order}", "members": ["shop", "ann"], "requestId": f"open-{order}"})
    print(f"opened {group}", flush=True)

    for step in range(20):
        if step == 10:
            # A node may be killed now: the test does that.
            print("half", flush=True)
            sys.stdin.readline()
        message = {"to": group, "from": "shop", "content": {"text": f"step {step}"}, "requestId": f"{order}-{step}"}
        broker.call("POST", "/v1/messages", message)

    texts = [message["content"]["text"] for message in broker.history(group) if "content" in message]
    assert texts == [f"step {step}" for step in range(20)], texts
    print("all 20 are stored, once each and in order", flush=True)

    [ann] = broker.call("POST", "/v1/unread", {"users": ["ann"]})["users"]
    assert ann["unread"] >= 20, ann
    last = broker.call("GET", f"/v1/users/ann/conversations/{group}")["maxSeq"]
    state = broker.call("PATCH", f"/v1/users/ann/conversations/{group}", {"readSeq": last})
    assert state["unread"] == 0, state
    print("ann has read everything", flush=True)

    taken_back = broker.call("DELETE", f"/v1/conversations/{group}/messages/{last}")
    assert taken_back["of"] == last, taken_back
    broker.call("DELETE", "/v1/users/ann/connections?reconnect=after")
    broker.call("DELETE", f"/v1/groups/order-{order}?requestId=close-{order}")
    try:
        broker.call("POST", "/v1/messages", {"to": group, "from": "shop", "content": {"text": "late"}})
    except Refused as refused:
        print(f"closed: {refused.problem['title']}", flush=True)


if __name__ == "__main__":
    main()
