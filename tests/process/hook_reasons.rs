//! The hook `allow` over real sockets: reasons of the application, the further actions, and blocked senders.

use std::fs;

use serde_json::json;
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{
    hook_server::{App, Behaviour},
    hooks::Hooked,
};
use crate::support::{Client, ServerBody, ask, code, eventually, fresh_data, hello, http, send};

/// Returns the code, the message, and the application's own code of a refusal.
fn refusal(answer: ServerBody) -> (Code, String, Option<String>) {
    let ServerBody::Error(pb::Error { code: number, message, mut detail, .. }) = answer else {
        panic!("{answer:?}")
    };
    (code(number), message, detail.remove("app"))
}

#[test]
fn client_gets_the_reason_of_the_application() {
    let app = App::start();
    let it =
        Hooked::start(app.address, &["hooks.allow_fail=closed", "hooks.allow_actions=[join,write,signal]"]);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    let reason = (Code::Forbidden, "the trial is over".to_owned(), Some("5001".to_owned()));
    app.behave(Behaviour::Json(json!({"allow": false, "code": 5001, "message": "the trial is over"})));
    for request in [ask::send(send("ann", "m1", "x")), ask::join("hall"), ask::signal("ann", "typing", "x")] {
        assert_eq!(refusal(bob.ask(request)), reason);
    }
    assert_eq!(refusal(bob.ask(ask::send(send("ann", "m2", "x")))), reason, "from the cache");
    assert_eq!(app.asked().len(), 3);
    app.behave(Behaviour::Json(json!({"allow": false, "message": 7, "code": "no code"})));
    let plain = (Code::Forbidden, "the application does not allow this".to_owned(), None);
    assert_eq!(refusal(bob.ask(ask::send(send("emil", "m3", "x")))), plain);
    app.behave(Behaviour::Json(json!({"deny": {"code": "banned", "message": "see you in May"}})));
    for from in ["the hook", "the cache"] {
        let mut eve = Client::connect(it.node.address(), Wire::Tcp);
        let id = eve.say(ask::hello(hello("ticket-of-eve", "phone")));
        let denied = (Code::TokenInvalid, "see you in May".to_owned(), Some("banned".to_owned()));
        assert_eq!(refusal(eve.reply(id)), denied, "from {from}");
        assert_eq!(eve.expect_close(), Code::TokenInvalid);
    }
}

#[test]
fn signals_and_recalls_are_asked_about_only_if_they_are_named() {
    for is_named in [false, true] {
        let app = App::start();
        let actions = if is_named { "hooks.allow_actions=[signal,recall]" } else { "node.shards=1" };
        let sets = ["hooks.allow_fail=closed", "hooks.allow_timeout_ms=3000", actions];
        let it = Hooked::start(app.address, &sets);
        let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
        let seq = bob.text("ann", "m1", "x");
        app.asked();
        let mut ann = it.try_login(&it.node.token("ann")).expect("a token");
        bob.expect_done(ask::signal("ann", "typing", "x"));
        ann.expect_signal();
        bob.expect_done(ask::signal("bob", "typing", "to my own devices"));
        if is_named {
            assert_eq!(bob.refused(ask::signal("carl", "typing", "x")), Code::Forbidden);
            // What comes after a signal that waits keeps its order.
            app.behave(Behaviour::Held);
            let signal = bob.say(ask::signal("dora", "typing", "x"));
            let next = bob.say(ask::ping());
            eventually("the hook is asked", || (app.state.lock().asked.len() == 3).then_some(()));
            app.behave(Behaviour::Usual);
            let first = bob.take("an answer", |frame| [signal, next].contains(&frame.id));
            assert_eq!(first.id, signal);
        } else {
            bob.expect_done(ask::signal("carl", "typing", "x"));
        }
        app.behave(Behaviour::Json(json!({"allow": false, "message": "too late to take it back"})));
        let answer = bob.ask(ask::recall("d:ann:bob", seq));
        let asked: Vec<_> = app.asked().into_iter().map(|asked| asked.body).collect();
        if is_named {
            let denied = (Code::Forbidden, "too late to take it back".to_owned(), Some(String::new()));
            assert_eq!(refusal(answer), denied);
            let ask = |action: &str, target: &str| json!({"user": "bob", "action": action, "target": target});
            let expected = [("signal", "ann"), ("signal", "carl"), ("signal", "dora"), ("recall", "ann")];
            assert_eq!(asked, expected.map(|(action, target)| ask(action, target)));
        } else {
            assert!(matches!(answer, ServerBody::SendAck(_)) && asked.is_empty(), "{answer:?} {asked:?}");
        }
    }
}

#[test]
fn hook_is_not_asked_about_a_sender_who_is_blocked() {
    let app = App::start();
    let sets = ["hooks.allow_fail=closed", "hooks.allow_actions=[write,start,signal]"];
    let it = Hooked::start(app.address, &sets);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    it.node.http("PUT", "/v1/users/ann/blocks/bob", "");
    for n in 0..2 {
        let refused = refusal(bob.ask(ask::send(send("ann", &format!("m{n}"), "x"))));
        assert_eq!((refused.0, refused.2), (Code::Forbidden, None));
    }
    assert_eq!(bob.refused(ask::signal("ann", "typing", "x")), Code::Forbidden);
    assert_eq!(app.asked().len(), 0);
    it.node.http("DELETE", "/v1/users/ann/blocks/bob", "");
    assert_eq!(bob.text("ann", "m0", "the id is free"), 1);
    assert_eq!(app.asked()[0].body["action"], "start");
}

#[test]
fn message_over_a_rule_costs_no_question_and_one_that_the_hook_refuses_counts_in_no_rule() {
    let app = App::start();
    let folder = fresh_data();
    fs::create_dir_all(&folder).expect("a folder");
    let rules = folder.join("limits.toml");
    let rule = "[[rule]]\nid = \"few\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1h\"\nlimit = 2\n";
    fs::write(&rules, rule).expect("a file");
    let sets = ["hooks.allow_fail=closed", &format!("limits.rules_file={}", rules.display())];
    let it = Hooked::start(app.address, &sets);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    let mut say = |to: &str, id: &str| match bob.ask(ask::send(send(to, id, "x"))) {
        ServerBody::SendAck(_) => None,
        ServerBody::Error(error) => Some(code(error.code)),
        other => panic!("{other:?}"),
    };
    for n in 0..3 {
        assert_eq!(say("carl", &format!("c{n}")), Some(Code::Forbidden), "by the hook");
    }
    assert!(!app.asked().is_empty());
    assert_eq!([say("ann", "a1"), say("dora", "d1")], [None, None], "nothing was counted before");
    assert!(!app.asked().is_empty());
    for to in ["emil", "fred"] {
        assert_eq!(say(to, to), Some(Code::RateLimited));
    }
    assert_eq!(app.asked().len(), 0);
    assert_eq!(say("r:hall", "r1"), Some(Code::NotAMember), "which no wait would change");
    fs::remove_dir_all(&folder).ok();
}

#[test]
fn suspension_that_begins_while_the_hook_answers_refuses_the_send_and_the_edit() {
    let app = App::start();
    let sets =
        ["hooks.allow_fail=closed", "hooks.allow_timeout_ms=3000", "hooks.allow_actions=[write,signal]"];
    let it = Hooked::start(app.address, &sets);
    let mut bob = it.try_login(&it.node.token("bob")).expect("a token");
    let requests = [
        ask::send(send("dora", "m1", "x")),
        ask::edit("d:bob:emil", 1, "e1", "x"),
        ask::signal("fred", "typing", "x"),
    ];
    for request in requests {
        app.behave(Behaviour::Held);
        let id = bob.say(request.clone());
        eventually("the hook is asked", || (!app.asked().is_empty()).then_some(()));
        let suspend = json!({"subject": "user:bob", "reason": "spam", "ttlMs": 60_000});
        assert_eq!(http::ask(it.node.admin(), "POST", "/v1/suspensions", &suspend.to_string()).0, 200);
        app.behave(Behaviour::Usual);
        assert_eq!(bob.expect_error(id), Code::Suspended, "{request:?}");
        assert_eq!(http::ask(it.node.admin(), "DELETE", "/v1/suspensions/user:bob", "").0, 200);
    }
    assert_eq!(bob.text("dora", "m1", "x"), 1, "nothing of them was sent");
}
