//! The hook `message.before` over real sockets: verdicts, retries, chains, failures, rooms, and nodes of former rules.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, content::Content, pb, record::mode::UNCHECKED};

use super::{
    hook_server::{App, Behaviour},
    hooks::{Hooked, wrong_answers},
};
use crate::support::{Client, ServerBody, ask, eventually, send};

/// Starts a node with the hook; `allow` is asked about nothing that the tests do.
fn start(app: &App, sets: &[&str]) -> Hooked {
    let url = format!("hooks.before_url=http://{}/before", app.address);
    let fixed = ["hooks.allow_fail=closed", "hooks.allow_actions=[recall]", url.as_str()];
    Hooked::start(app.address, &[&fixed[..], sets].concat())
}

/// Returns the number, the text, and the application's own code of a refusal.
fn refusal(answer: ServerBody) -> (u32, String, Option<String>) {
    let ServerBody::Error(pb::Error { code, message, mut detail, temporary: false, .. }) = answer else {
        panic!("{answer:?}")
    };
    (code, message, detail.remove("app"))
}

fn denied(why: &str) -> (u32, String, Option<String>) {
    (5001, why.to_owned(), Some("5001".to_owned()))
}

/// Text of a refusal whose reason is not known any more.
const UNEXPLAINED: &str = "this id was refused before: send the content under a new id";

/// Returns a send to ann, chained to the next id if there is one.
fn to_ann(id: &str, next_id: &str, attempt: u32, text: &str) -> pb::Send {
    pb::Send { next_id: next_id.into(), attempt, ..send("ann", id, text) }
}

fn bob(it: &Hooked, device: &str) -> Client {
    it.node.login(Wire::Tcp, "bob", device)
}

fn content(push: pb::Push) -> Content {
    push.content.expect("a content")
}

#[test]
fn denial_is_remembered_and_the_chain_goes_on() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=closed"]);
    let mut chained = it.node.login_chained(Wire::Tcp, "bob", "phone", "c1");
    let mut ann = it.node.login(Wire::Tcp, "ann", "phone");
    assert_eq!(chained.send(to_ann("c1", "c2", 0, "hello")).seq, 1);
    let asked = app.asked();
    let item = json!({"conversation": "d:ann:bob", "sender": "bob", "device": "phone", "msgId": "c1",
        "attempt": 0, "content": {"text": "hello"}, "flags": [], "first": true});
    assert_eq!((&asked[0].body, &*asked[0].path), (&json!({ "items": [item] }), "/before"));
    assert!(asked[0].is_signed);
    let refused = chained.say(ask::send(to_ann("c2", "c3", 0, "deny: no links")));
    let next = chained.say(ask::send(to_ann("c3", "c4", 0, "fine")));
    assert_eq!(refusal(chained.reply(refused)), denied("no links"));
    assert_eq!(chained.expect_ack(next).seq, 2, "the chain goes on");
    assert_eq!(ann.pushes(2).iter().map(|push| &*push.msg_id).collect::<Vec<_>>(), ["c1", "c3"]);
    // The first answer stands, whatever the hook answers to a retry.
    app.behave(Behaviour::Json(json!({"items": [{"allow": true}]})));
    let retry = chained.ask(ask::send(to_ann("c2", "", 1, "deny: no links")));
    assert_eq!(refusal(retry), denied(UNEXPLAINED));
    app.behave(Behaviour::Json(json!({"items": [{"deny": {"code": 5002, "message": "not now"}}]})));
    let accepted = chained.send(to_ann("c1", "", 1, "hello"));
    assert_eq!((accepted.seq, accepted.duplicate), (1, true));
    let again = chained.ask(ask::send(to_ann("c2", "", 1, "deny: no links")));
    assert_eq!(refusal(again), denied(UNEXPLAINED));
    app.behave(Behaviour::Usual);
    let again = chained.ask(ask::send(to_ann("c2", "", 1, "deny: no links")));
    assert_eq!(refusal(again), denied("no links"), "the same verdict has its text");
    ann.no_push();
    assert_eq!(chained.send(to_ann("c4", "c5", 0, "the chain goes on")).seq, 3);
    // The API is one to ask, not to be asked about.
    app.asked();
    let body = json!({"from": "bob", "to": "ann", "content": {"text": "deny: x"}}).to_string();
    it.node.http("POST", "/v1/messages", &body);
    assert_eq!((ann.pushes(2).len(), app.asked().len()), (2, 0));
    assert_eq!(it.node.metric("hook_before_denials_total"), 4.0);
}

#[test]
fn replaced_content_is_stored_and_pushed_and_a_retry_is_the_same_message() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=closed"]);
    let (mut bob, mut tablet) = (bob(&it, "phone"), bob(&it, "tablet"));
    let mut ann = it.node.login(Wire::Tcp, "ann", "phone");
    assert_eq!(bob.text("ann", "m1", "replace: clean"), 1);
    let clean = Content { kind: "checked".into(), ..Content::text("clean") };
    assert_eq!(content(ann.expect_push()), clean);
    assert_eq!(content(tablet.expect_push()), clean, "another device of the sender");
    // The hook would answer otherwise now.
    app.behave(Behaviour::Json(json!({"items": [{"replace": {"content": {"text": "other"}}}]})));
    let retry = bob.send(to_ann("m1", "", 1, "replace: clean"));
    assert_eq!((retry.seq, retry.duplicate), (1, true));
    assert_eq!(bob.refused(ask::send(to_ann("m1", "", 1, "clean"))), Code::Conflict);
    app.behave(Behaviour::Usual);
    app.asked();
    let edit = bob.ask(ask::edit("d:ann:bob", 1, "e1", "replace: cleaner"));
    assert!(matches!(edit, ServerBody::SendAck(_)), "{edit:?}");
    let item = &app.asked()[0].body["items"][0];
    assert_eq!((&item["of"], &item["first"], &item["msgId"]), (&json!(1), &json!(false), &json!("e1")));
    let event = ann.expect_push().edit.expect("an edit");
    let cleaner = Content { kind: "checked".into(), ..Content::text("cleaner") };
    assert_eq!(event.content, Some(cleaner.clone()));
    let again = bob.ask(ask::edit("d:ann:bob", 1, "e1", "replace: cleaner"));
    assert!(matches!(again, ServerBody::SendAck(pb::SendAck { seq: 2, duplicate: true, .. })), "{again:?}");
    for attempt in ["first", "again"] {
        let refused = bob.ask(ask::edit("d:ann:bob", 1, "e2", "deny: no links"));
        assert_eq!(refusal(refused), denied("no links"), "{attempt}");
    }
    app.behave(Behaviour::Json(json!({"items": [{"allow": true}]})));
    let refused = bob.ask(ask::edit("d:ann:bob", 1, "e2", "deny: no links"));
    assert_eq!(refusal(refused), denied(UNEXPLAINED), "the first answer stands");
    ann.no_push();
    let page: Value =
        serde_json::from_str(&it.node.http("GET", "/v1/conversations/d:ann:bob/messages", "")).expect("JSON");
    let shown = &page["messages"][0]["content"];
    assert_eq!(shown, &json!({"text": "cleaner", "type": "checked"}), "{page}");
    assert_eq!(it.node.metric("hook_before_replacements_total"), 5.0);
}

#[test]
fn hook_that_fails_open_marks_what_it_has_not_seen() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=open", "hooks.before_timeout_ms=300"]);
    let (mut bob, mut ann) = (bob(&it, "phone"), it.node.login(Wire::Tcp, "ann", "phone"));
    let wrong: Vec<_> = wrong_answers().into_iter().filter(|(name, _)| *name != "timeout").collect();
    let mut unchecked = 0;
    for (n, (name, behaviour)) in wrong.into_iter().enumerate() {
        app.behave(behaviour);
        if ["status 500", "no HTTP", "closed"].contains(&name) {
            bob.text("ann", &format!("m{n}"), "deny: unless it fails");
            assert_eq!(ann.expect_push().flags, UNCHECKED, "{name}");
            unchecked += 1;
        } else {
            // A message may be the cause of an answer that is none.
            let refused = bob.refused(ask::send(to_ann(&format!("m{n}"), "", 0, "deny: unless it fails")));
            assert_eq!(refused, Code::HookUnavailable, "{name}");
        }
        app.behave(Behaviour::Usual);
        for m in 0..2 {
            bob.text("ann", &format!("n{n}-{m}"), "hello");
            assert_eq!(ann.expect_push().flags, 0, "after {name}");
        }
    }
    // The breaker opens after five failures in a row; then nothing is asked.
    app.behave(Behaviour::Raw(String::new()));
    for n in 0..8 {
        bob.text("ann", &format!("o{n}"), "x");
        assert_eq!(ann.expect_push().flags, UNCHECKED);
        unchecked += 1;
    }
    assert_eq!(it.node.metric("breaker_hook_before_open"), 1.0);
    assert_eq!(it.node.metric("hook_before_unchecked_total"), f64::from(unchecked));
    let page = it.node.http("GET", "/v1/conversations/d:ann:bob/messages", "");
    assert_eq!(page.matches("\"unchecked\"").count(), unchecked as usize, "{page}");
}

#[test]
fn hook_that_fails_closed_gives_the_chain_back_in_order() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=closed", "hooks.before_timeout_ms=300"]);
    let mut chained = it.node.login_chained(Wire::Tcp, "bob", "phone", "c1");
    app.behave(Behaviour::Raw("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".into()));
    let ids: Vec<_> = [("c1", "c2"), ("c2", "c3"), ("c3", "c4")]
        .map(|(id, next)| chained.say(ask::send(to_ann(id, next, 0, "hello"))))
        .into();
    for id in ids {
        assert_eq!(chained.expect_error(id), Code::HookUnavailable);
    }
    assert_eq!(app.asked().len(), 1, "what is behind a refused message is refused with it");
    app.behave(Behaviour::Usual);
    for (nth, (id, next)) in (1..).zip([("c1", "c2"), ("c2", "c3"), ("c3", "c4")]) {
        let ack = chained.send(to_ann(id, next, 1, "hello"));
        assert_eq!((ack.seq, ack.duplicate), (nth, false), "nothing was logged before");
    }
}

#[test]
fn slow_hook_stops_one_connection_and_no_other() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=closed", "hooks.before_timeout_ms=800", "node.shards=1"]);
    let (mut slow, mut other) = (bob(&it, "phone"), it.node.login(Wire::Tcp, "dora", "phone"));
    app.behave(Behaviour::HangsFor("bob"));
    let first = slow.say(ask::send(send("ann", "m1", "x")));
    let second = slow.say(ask::send(send("emil", "m2", "x")));
    eventually("the hook is asked", || (app.state.lock().asked.len() == 1).then_some(()));
    for n in 1..=20 {
        assert_eq!(other.text("ann", &format!("m{n}"), "x"), n);
    }
    assert_eq!(slow.expect_error(first), Code::HookUnavailable);
    app.behave(Behaviour::Usual);
    slow.reply(second);
    let about = |asked: &super::hook_server::Asked| asked.body["items"][0]["msgId"].clone();
    let of_bob = app.asked().into_iter().filter(|it| it.body["items"][0]["sender"] == "bob");
    assert_eq!(of_bob.map(|it| about(&it)).collect::<Vec<_>>(), ["m1", "m2"], "one at a time, in order");
}

#[test]
fn rooms_are_checked_only_if_they_are_named_and_refused_at_once() {
    let app = App::start();
    let it = start(&app, &["hooks.before_fail=open", "hooks.before_rooms=[r:hall]"]);
    let (mut bob, mut ann) = (bob(&it, "phone"), it.node.login(Wire::Tcp, "ann", "phone"));
    for room in ["hall", "yard"] {
        bob.expect_done(ask::join(room));
        ann.expect_done(ask::join(room));
    }
    assert_eq!(refusal(bob.ask(ask::send(send("r:hall", "m1", "deny: no links")))), denied("no links"));
    bob.text("r:yard", "m2", "deny: not asked");
    assert_eq!(content(ann.expect_push()), Content::text("deny: not asked"));
    bob.text("r:hall", "m3", "replace: clean");
    assert_eq!(content(ann.expect_push()).kind, "checked");
    app.behave(Behaviour::Raw("HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n".into()));
    bob.text("r:hall", "m4", "hello");
    assert_eq!(ann.expect_push().flags, UNCHECKED);
    app.asked();
    let mut stranger = it.node.login(Wire::Tcp, "emil", "phone");
    assert_eq!(stranger.refused(ask::send(send("r:hall", "m5", "x"))), Code::NotAMember);
    assert_eq!(app.asked().len(), 0);
}

#[test]
fn denials_in_rooms_count_as_messages_do() {
    let app = App::start();
    let sets = ["hooks.before_fail=closed", "hooks.before_rooms=[r:hall]", "limits.sends_per_second=1"];
    let it = start(&app, &sets);
    let mut bob = bob(&it, "phone");
    bob.expect_done(ask::join("hall"));
    let codes: Vec<u32> = (0..20)
        .map(|n| match bob.ask(ask::send(send("r:hall", &format!("m{n}"), "deny: no"))) {
            ServerBody::Error(error) => error.code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes[0], 5001);
    assert!(codes.contains(&u32::from(Code::RateLimited.number())), "{codes:?}");
}

#[test]
fn nodes_that_do_not_know_the_codes_deny_with_forbidden() {
    for rules in [5, 4] {
        let app = App::start();
        let it = start(&app, &["hooks.before_fail=closed", &format!("fault.rules_max={rules}")]);
        let mut chained = it.node.login_chained(Wire::Tcp, "bob", "phone", "c1");
        let id = chained.say(ask::send(to_ann("c1", "c2", 0, "deny: no links")));
        let next = chained.say(ask::send(to_ann("c2", "c3", 0, "fine")));
        // The ledger refuses with this code for reasons of its own: what it answers has not the application's text.
        let (code, words, detail) = refusal(chained.reply(id));
        let has_reason = rules == 4;
        assert_eq!((code, words == "no links", detail.is_some()), (2003, has_reason, has_reason), "{rules}");
        assert_eq!(chained.expect_ack(next).seq, 1, "{rules}");
        app.behave(Behaviour::Json(json!({"items": [{"allow": true}]})));
        // Rules 5 remember the denial, and the former ones do not.
        let retry = chained.ask(ask::send(to_ann("c1", "", 1, "deny: no links")));
        match (rules, retry) {
            (5, ServerBody::Error(error)) => assert_eq!(error.code, 2003),
            (4, ServerBody::SendAck(ack)) => assert_eq!(ack.seq, 2),
            (_, other) => panic!("{rules}: {other:?}"),
        }
    }
}
