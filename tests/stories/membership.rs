//! The whole life of a group, and which members see which part of it on every path: push, pull, sync, positions,
//! resend.

mod single;

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, TestNode, ask, send, text_of};

fn post(node: &TestNode, path: &str, body: &Value) -> (u16, Value) {
    node.admin("POST", &format!("/v1/groups/{path}"), body)
}

fn done(node: &TestNode, path: &str, body: &Value) -> u64 {
    let (status, answer) = post(node, path, body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer["seq"].as_u64().expect("a seq")
}

fn refused(node: &TestNode, path: &str, body: &Value) -> (u16, String) {
    let (status, answer) = post(node, path, body);
    (status, answer["name"].as_str().unwrap_or_default().to_owned())
}

fn event(push: &pb::Push) -> (pb::MemberChange, &pb::MemberEvent) {
    let event = push.event.as_ref().expect("an event");
    (event.change(), event)
}

/// Returns the seqs that the user can pull, and the ranges reported as unavailable.
fn all(client: &mut Client, conversation: &str) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut seen, mut gone, mut cursor) = (Vec::new(), Vec::new(), 0);
    loop {
        match client.ask(ask::after(conversation, cursor, 0)) {
            ServerBody::Page(page) => {
                seen.extend(page.messages.iter().map(|push| push.seq));
                gone.extend(page.expired.iter().map(|range| (range.first, range.last)));
                let ends = page.expired.iter().map(|range| range.last);
                let named = page.messages.iter().map(|push| push.seq).chain(ends).max();
                cursor = named.expect("a page has a reason");
            }
            ServerBody::Error(_) => return (seen, gone),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn admin_api_creates_changes_and_dissolves_a_group() {
    let node = TestNode::start(|_| {});
    let body = json!({"id": "tea", "owner": "ann", "members": ["bob", "cid"], "settings": {"post": "all"}});
    assert_eq!(node.admin("POST", "/v1/groups", &body).0, 201);
    let mut bob = node.login(Wire::JsonLine, "bob", "phone");

    assert_eq!(
        refused(&node, "tea/members", &json!({"add": ["dan"], "by": "bob"})),
        (403, "FORBIDDEN".into())
    );
    assert_eq!(
        refused(&node, "tea/members", &json!({"add": ["dan"], "by": "eve"})),
        (403, "NOT_A_MEMBER".into())
    );
    assert_eq!(done(&node, "tea/roles", &json!({"users": ["bob"], "role": "admin", "by": "ann"})), 2);
    let promoted = bob.expect_push();
    assert_eq!((event(&promoted).0, event(&promoted).1.role.as_str()), (pb::MemberChange::Role, "admin"));
    assert_eq!(done(&node, "tea/members", &json!({"add": ["dan"], "by": "bob"})), 3);
    assert_eq!(
        refused(&node, "tea/members", &json!({"remove": ["ann"], "by": "bob"})),
        (403, "FORBIDDEN".into())
    );
    let owner = json!({"users": ["bob"], "role": "owner", "by": "bob"});
    assert_eq!(refused(&node, "tea/roles", &owner), (403, "FORBIDDEN".into()));
    let boss = json!({"users": ["bob"], "role": "boss"});
    assert_eq!(refused(&node, "tea/roles", &boss), (400, "BAD_CONTENT".into()));

    let mute = json!({"mute": ["cid"], "by": "bob", "requestId": "r1"});
    assert_eq!(done(&node, "tea/members", &mute), 4);
    let (_, again) = post(&node, "tea/members", &mute);
    assert_eq!((again["seq"].as_u64(), again["duplicate"].as_bool()), (Some(4), Some(true)));
    let mut cid = node.login(Wire::Tcp, "cid", "phone");
    assert_eq!(cid.refused(ask::send(send("g:tea", "m1", "mmh"))), Code::Muted);
    let (_, shown) = node.admin("GET", "/v1/groups/tea", &Value::Null);
    assert_eq!(shown["roles"], json!({"ann": "owner", "bob": "admin"}));
    assert_eq!((&shown["muted"], &shown["settings"]), (&json!(["cid"]), &json!({"post": "all"})));
    assert_eq!(done(&node, "tea/members", &json!({"unmute": ["cid"]})), 5);
    assert_eq!(cid.text("g:tea", "m2", "at last"), 6);

    assert_eq!(done(&node, "tea/settings", &json!({"settings": {"post": "admins"}, "by": "bob"})), 7);
    let unmuted = cid.expect_push();
    assert_eq!(event(&unmuted).0, pb::MemberChange::Unmuted);
    let posts = cid.expect_push();
    assert_eq!(event(&posts).1.settings.get("post").map(String::as_str), Some("admins"));
    assert_eq!(cid.refused(ask::send(send("g:tea", "m3", "but"))), Code::Forbidden);
    for bad in [json!({"post": "nobody"}), json!({"pots": "all"})] {
        assert_eq!(refused(&node, "tea/settings", &json!({"settings": bad})), (400, "BAD_SETTING".into()));
    }

    assert_eq!(done(&node, "tea/members", &json!({"leave": ["dan"], "by": "dan"})), 8);
    assert_eq!(cid.expect_push().seq, 8);
    assert_eq!(node.admin("DELETE", "/v1/groups/tea?by=bob", &Value::Null).0, 403);
    assert_eq!(node.admin("DELETE", "/v1/groups/tea?who=ann", &Value::Null).0, 400);
    let (status, ended) = node.admin("DELETE", "/v1/groups/tea?by=ann&requestId=r2", &Value::Null);
    assert_eq!((status, ended["seq"].as_u64()), (200, Some(9)));
    assert_eq!(
        node.admin("DELETE", "/v1/groups/tea?by=ann&requestId=r2", &Value::Null).1["duplicate"],
        json!(true)
    );
    let ended = cid.expect_push();
    assert_eq!((ended.seq, event(&ended).0), (9, pb::MemberChange::Deleted));
    assert_eq!(cid.refused(ask::send(send("g:tea", "m4", "hello?"))), Code::NotFound);
    assert_eq!(node.admin("GET", "/v1/groups/tea", &Value::Null).0, 404);
    assert_eq!(node.admin("POST", "/v1/groups", &body).0, 409, "a dissolved group keeps its id");
    assert_eq!(all(&mut cid, "g:tea").0, (1..=9).collect::<Vec<_>>(), "the history stays");
    assert_eq!(cid.refused(ask::after("g:tea", 9, 0)), Code::NotAMember, "no messages follow");
}

#[test]
fn member_that_leaves_gets_nothing_more() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    for wire in Wire::ALL {
        let mut bob = node.login(wire, "bob", "phone");
        assert!(matches!(bob.ask(ask::leave_group(&group)), ServerBody::Done(_)), "{wire:?}");
        let left = ann.expect_push();
        assert_eq!(
            (event(&left).0, event(&left).1.users.clone()),
            (pb::MemberChange::Left, vec!["bob".into()])
        );
        assert_eq!(bob.expect_push().seq, left.seq, "the leave itself is pushed");
        assert_eq!(bob.refused(ask::leave_group(&group)), Code::NotAMember);
        ann.text(&group, &format!("{wire:?}"), "gone?");
        bob.no_push();
        node.add(&group, &["bob"]);
        ann.expect_push();
    }
}

#[test]
fn every_path_shows_a_member_only_its_stays() {
    // An unacked push is resent, so that copies are covered as well. Three tries give a slow machine 8 s.
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 2_000);
    let group = node.group("tea", &["ann", "bob"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let say = |ann: &mut Client, name: &str| ann.text("g:tea", name, name);
    assert_eq!(say(&mut ann, "m2"), 2);
    assert_eq!(node.kick(&group, &["bob"]), 3);
    assert_eq!((say(&mut ann, "m4"), say(&mut ann, "m5")), (4, 5));
    let got: Vec<u64> = bob.pushes(2).iter().map(|push| push.seq).collect();
    assert_eq!(got, [2, 3]);
    // Copies are of the same two; the state, the pong and the pages end there as well.
    assert!(bob.pushes(2).iter().all(|push| push.seq <= 3), "a copy of a message after bob's removal");
    bob.ack(&group, 3);
    bob.inbox.clear();
    let mut gone = node.login(Wire::JsonLine, "bob", "tablet");
    let state = gone.state(&group);
    assert_eq!((state.max_seq, state.min_seq, state.unread), (3, 1, 1));
    assert_eq!(state.last.expect("an entry").seq, 3);
    assert_eq!(all(&mut gone, &group).0, [1, 2, 3]);
    match gone.ask(ask::seqs(&group, &[3, 4, 5])) {
        ServerBody::Page(page) => assert!(page.messages.iter().all(|push| push.seq == 3), "{page:?}"),
        other => panic!("{other:?}"),
    }
    match gone.ask(ask::ping_with(&[(&group, 3)])) {
        ServerBody::Pong(pong) => assert_eq!(pong.positions, []),
        other => panic!("{other:?}"),
    }
    bob.no_push_for(Duration::from_millis(400));

    assert_eq!(node.add(&group, &["bob"]), 6);
    assert_eq!(say(&mut ann, "m7"), 7);
    assert_eq!(bob.pushes(2).iter().map(|push| push.seq).collect::<Vec<_>>(), [6, 7]);
    assert_eq!(all(&mut bob, &group), (vec![1, 2, 3, 6, 7], vec![(4, 5)]));
    let state = bob.state(&group);
    assert_eq!((state.max_seq, state.min_seq, state.unread), (7, 1, 2), "m2 and m7, not m4 and m5");

    // The group opens its history: a member who joins again now sees the gap, too; the other former members do not.
    assert_eq!(done(&node, "tea/members", &json!({"add": ["cid"]})), 8);
    assert_eq!(done(&node, "tea/settings", &json!({"settings": {"history": "all"}})), 9);
    assert_eq!(done(&node, "tea/members", &json!({"remove": ["bob"]})), 10);
    assert_eq!(done(&node, "tea/members", &json!({"add": ["bob", "dan"]})), 11);
    let mut dan = node.login(Wire::WsBinary, "dan", "phone");
    for client in [&mut bob, &mut dan] {
        assert_eq!(all(client, &group), ((1..=11).collect(), vec![]));
    }
    let state = dan.state(&group);
    assert_eq!((state.max_seq, state.min_seq, state.unread), (11, 1, 0), "earlier messages are not unread");
    let mut cid = node.login(Wire::Tcp, "cid", "phone");
    assert_eq!(all(&mut cid, &group), ((8..=11).collect(), vec![(1, 7)]));
    assert_eq!(say(&mut ann, "m12"), 12);
    assert_eq!((bob.state(&group).unread, dan.state(&group).unread), (3, 1));
}

/// More pushes than fit into the window: the rest becomes Behind, which names nothing after the removal.
#[test]
fn behind_names_nothing_after_the_removal() {
    let node = TestNode::start(|config| config.limits.window_max = 2);
    let group = node.group("tea", &["ann", "bob"]);
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let texts = |ann: &mut Client, from: u64, to: u64| {
        (from..=to).for_each(|n| assert_eq!(ann.text("g:tea", &format!("m{n}"), "x"), n));
    };
    texts(&mut ann, 2, 6);
    assert_eq!(node.kick(&group, &["bob"]), 7);
    texts(&mut ann, 8, 12);
    let newest = |frame: &pb::ServerFrame| match &frame.body {
        Some(ServerBody::Behind(behind)) => Some(behind.max_seq),
        Some(ServerBody::Push(push)) => Some(push.seq),
        _ => None,
    };
    bob.take(
        "behind up to the removal",
        |frame| matches!(&frame.body, Some(ServerBody::Behind(behind)) if behind.max_seq == 7),
    );
    bob.settle();
    assert!(bob.inbox.iter().filter_map(newest).all(|seq| seq <= 7), "{:?}", bob.inbox);
    assert_eq!(all(&mut bob, &group).0, (1..=7).collect::<Vec<_>>());
}

#[test]
fn direct_conversation_appears_on_both_sides() {
    for store in ["embedded", "memory"] {
        let node = TestNode::start(|config| config.node.store = store.into());
        let mut ann = node.login(Wire::JsonLine, "ann", "phone");
        let mut bob = node.login(Wire::Tcp, "bob", "phone");
        assert!(
            ann.sync(&[]).is_empty() && bob.sync(&[]).is_empty(),
            "no conversation exists before the first message"
        );
        let ack = ann.send(send("bob", "m1", "hi"));
        assert_eq!((ack.conversation.as_str(), ack.seq), ("d:ann:bob", 1));
        let push = bob.expect_push();
        assert_eq!((push.conversation.as_str(), text_of(&push)), ("d:ann:bob", "hi"));
        for client in [&mut ann, &mut bob] {
            let states = client.sync(&[]);
            assert_eq!(states.len(), 1);
            assert_eq!((states[0].conversation.as_str(), states[0].max_seq), ("d:ann:bob", 1));
        }
        assert_eq!((ann.state("d:ann:bob").unread, bob.state("d:ann:bob").unread), (0, 1));
        let mut eve = node.login(Wire::Tcp, "eve", "phone");
        assert_eq!(eve.refused(ask::after("d:ann:bob", 0, 0)), Code::Forbidden);
        assert_eq!(eve.refused(ask::leave_group("d:ann:bob")), Code::Forbidden);
    }
}
