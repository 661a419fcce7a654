"""A receiver of webhooks: verifies, takes each event once and in the order of its conversation, and only then answers."""

import base64
import collections
import hashlib
import hmac
import http.server
import json
import threading
import time


class Receiver(http.server.ThreadingHTTPServer):
    """Listens on an address. `take` is called with each event; an exception in it refuses the event, which comes again."""

    daemon_threads = True
    # Ids of events without a seq, such as tests of the endpoint.
    IDS_MAX = 1000

    def __init__(self, address, take):
        self.take, self.lock = take, threading.Lock()
        # A second secret while the first one is replaced.
        self.secrets = []
        # A back end stores these with what it does, in one transaction.
        self.highest, self.ids = {}, collections.OrderedDict()
        self.again, self.refused = 0, 0
        super().__init__(address, Request)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def is_signed(self, headers, body):
        id, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not at.isdecimal() or abs(time.time() - int(at)) > 300:
            return False
        signed, signatures = f"{id}.{at}.".encode() + body, headers.get("webhook-signature", "").split()
        for secret in self.secrets:
            key = base64.b64decode(secret.removeprefix("whsec_"))
            expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
            if any(hmac.compare_digest(signature.encode(), expected.encode()) for signature in signatures):
                return True
        return False

    def receive(self, body):
        """Takes the events of a request: those that are new, one after the other."""
        events = json.loads(body)
        with self.lock:
            for event in events if isinstance(events, list) else [events]:
                conversation, seq = event["data"].get("conversation"), event["data"].get("seq")
                is_known = seq <= self.highest.get(conversation, 0) if seq else event["id"] in self.ids
                if is_known:
                    self.again += 1
                    continue
                self.take(event)
                if seq:
                    self.highest[conversation] = seq
                else:
                    self.ids[event["id"]] = True
                    if len(self.ids) > self.IDS_MAX:
                        self.ids.popitem(last=False)


class Request(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.server.is_signed(self.headers, body):
            self.server.refused += 1
            return self.answer(401)
        try:
            self.server.receive(body)
        except Exception as error:
            # What was taken before it is known, and is dropped when it comes again.
            print(f"not taken: {error!r}", flush=True)
            return self.answer(500)
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        if status != 204:
            self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass
