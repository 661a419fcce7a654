import base64, hashlib, hmac, http.server, json, sys, time

SECRET = base64.b64decode(open(sys.argv[1]).read().split()[0].removeprefix("whsec_"))
TICKETS = {"ticket-of-ann": "ann"}


class Hooks(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.is_signed(body):
            return self.answer(401, {})
        ask = json.loads(body)
        if self.path == "/login":
            user = TICKETS.get(ask["credential"])
            if user is None:
                return self.answer(200, {"deny": True})
            end = int((time.time() + 3600) * 1000)
            return self.answer(200, {"user": user, "expiresAt": end, "claims": {"prio": 1}})
        if self.path == "/allow":
            is_blocked = ask["action"] in ("write", "start") and ask["target"] == "carl"
            return self.answer(200, {"allow": not is_blocked, "ttlMs": 10000})
        if self.path == "/before":
            return self.answer(200, {"items": [self.verdict(item) for item in ask["items"]]})
        self.answer(404, {})

    def verdict(self, item):
        text = item["content"].get("text", "")
        if "https://" in text and item["first"]:
            return {"deny": {"code": 5001, "message": "No links in a first message"}}
        if "darn" in text:
            return {"replace": {"content": {**item["content"], "text": text.replace("darn", "****")}}}
        return {"allow": True}

    def is_signed(self, body):
        id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        if abs(time.time() - int(at)) > 300:
            return False
        mac = hmac.new(SECRET, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
        expected = "v1," + base64.b64encode(mac).decode()
        return any(hmac.compare_digest(it, expected) for it in self.headers["webhook-signature"].split())

    def answer(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Hooks)
print("port", server.server_port, flush=True)
server.serve_forever()
