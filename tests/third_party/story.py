"""The conversation that every Python client here holds: two users, a retry, a conflict, an answer, a goodbye."""

ANSWER_SECONDS = 10


class Surprise(Exception):
    """An answer that was not the expected one."""


def expect(what, got, wanted):
    if got != wanted:
        raise Surprise(f"{what}: expected {wanted!r}, got {got!r}")


def log_in(client, token):
    client.send({"id": 1, "hello": {"version": 1, "token": token, "device": "third-party"}})
    reply = client.take()
    welcome = reply.get("welcome", {})
    expect("id of Welcome", reply.get("id"), 1)
    named = bool(welcome.get("session")) and bool(welcome.get("node")) and welcome.get("heartbeatMs", 0) > 0
    expect(f"session, node, heartbeat in {reply}", named, True)
    expect("resumed", welcome.get("resumed", False), False)


def ask(client, frame):
    client.send(frame)
    reply = client.take()
    expect(f"id of the reply {reply}", reply.get("id"), frame["id"])
    return reply


def take_push(client, conversation, seq, sender, msg_id, text):
    frame = client.take()
    push = frame.get("push", {})
    expect("id of a push", frame.get("id", 0), 0)
    got = [push.get(name) for name in ("conversation", "seq", "sender", "msgId")]
    expect(f"push {frame}", got, [conversation, seq, sender, msg_id])
    expect("content", push.get("content"), {"text": text})
    client.send({"ack": {"conversation": conversation, "seq": seq}})


def say_bye(client):
    expect("Done", "done" in ask(client, {"id": 6, "bye": {}}), True)
    close = client.take().get("close", {})
    got = [close.get(name) for name in ("code", "name", "reconnect")]
    expect("Close", got, [3000, "BYE", "RECONNECT_NOW"])
    client.expect_end()


def converse(alice, a, token_a, bob, b, token_b):
    """`alice` and `bob` have send(frame), take() -> frame and expect_end()."""
    log_in(alice, token_a)
    log_in(bob, token_b)
    conversation = "d:" + ":".join(sorted([a, b]))
    text = "hi · 你好 · 👋"
    first = {"toUser": b, "msgId": "m1", "content": {"text": text}}

    ack = ask(alice, {"id": 2, "send": first}).get("sendAck", {})
    expect("SendAck", [ack.get(name) for name in ("conversation", "msgId", "seq")], [conversation, "m1", 1])
    expect("duplicate", ack.get("duplicate", False), False)
    take_push(bob, conversation, 1, a, "m1", text)

    retry = ask(alice, {"id": 3, "send": first | {"attempt": 1}}).get("sendAck", {})
    expect("SendAck of a retry", [retry.get("seq"), retry.get("time"), retry.get("duplicate")], [1, ack["time"], True])

    other = first | {"attempt": 1, "content": {"text": "something else"}}
    error = ask(alice, {"id": 4, "send": other}).get("error", {})
    expect("Error", [error.get("code"), error.get("name"), error.get("temporary", False)], [4000, "CONFLICT", False])

    answer = {"conversation": conversation, "msgId": "x9", "content": {"text": "hey"}}
    expect("SendAck", ask(bob, {"id": 2, "send": answer}).get("sendAck", {}).get("seq"), 2)
    take_push(alice, conversation, 2, b, "x9", "hey")

    expect("a Pong", "pong" in ask(alice, {"id": 5, "ping": {}}), True)
    say_bye(alice)
    say_bye(bob)
