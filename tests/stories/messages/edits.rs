//! Edits and flags: what members get, what later readers find, and what counts as unread.

use tidegate_protocol::{
    Code,
    codec::Wire,
    content::Content,
    pb,
    record::mode::{NO_PUSH, SILENT, TRANSIENT},
};

use crate::support::{Client, ServerBody, TestNode, ask, eventually, text_of};

/// Starts a node, and waits until its log has the newest rules.
pub(crate) fn switched(change: impl Fn(&mut tidegate::config::Config)) -> TestNode {
    let node = TestNode::start(change);
    let edit = serde_json::json!({"content": {"text": "."}});
    eventually("the log has the newest rules", || {
        let answer = node.admin("PATCH", "/v1/conversations/g:none/messages/1", &edit).1;
        (answer["title"] == "NOT_FOUND").then_some(())
    });
    node
}

fn edited(client: &mut Client, place: &str, seq: u64, id: &str, text: &str) -> pb::SendAck {
    let id = client.say(ask::edit(place, seq, id, text));
    client.expect_ack(id)
}

fn edit_of(push: &pb::Push) -> (u64, Option<String>) {
    let edit = push.edit.as_ref().expect("an edit");
    let shown = |content: &Content| {
        text_of(&pb::Push { content: Some(content.clone()), ..pb::Push::default() }).to_owned()
    };
    (edit.seq, edit.content.as_ref().map(shown))
}

fn flagged(to: &str, id: &str, flags: u32) -> crate::support::ClientBody {
    let content = Some(Content::text(id));
    ask::send(pb::Send { to_user: to.into(), msg_id: id.into(), content, flags, ..pb::Send::default() })
}

#[test]
fn edit_takes_a_seq_and_replaces_the_content_for_all() {
    let node = switched(|_| {});
    for (wire, peer) in Wire::ALL.into_iter().zip(["bob", "cid", "dan", "eve"]) {
        let mut alice = node.login(wire, "alice", "phone");
        let mut other = node.login(wire, peer, "phone");
        let place = format!("d:alice:{peer}");
        alice.text(peer, "m1", "tpyo");
        let ack = edited(&mut alice, &place, 1, "e1", "typo");
        assert_eq!((ack.seq, ack.msg_id.as_str(), ack.duplicate), (2, "e1", false));
        let pushes = other.pushes(2);
        let push = &pushes[1];
        assert_eq!((push.seq, push.sender.as_str(), push.msg_id.as_str()), (2, "alice", "e1"));
        assert_eq!(edit_of(push), (1, Some("typo".to_owned())));
        assert!(push.content.is_none(), "a client of a former version shows no second message");
        other.ack(&place, 2);
        assert_eq!(edit_of(&alice.expect_push()).0, 1, "the requester gets it as well");
        let again = edited(&mut alice, &place, 1, "e1", "typo");
        assert_eq!((again.seq, again.time, again.duplicate), (2, ack.time, true));
        assert_eq!(alice.refused(ask::edit(&place, 1, "e1", "else")), Code::Conflict);
        assert_eq!(edited(&mut alice, &place, 1, "e2", "text").seq, 3);
        let page = other.page(ask::after(&place, 0, 10));
        assert_eq!(text_of(&page.messages[0]), "text");
        let newest = page.messages[0].edited.expect("it was edited");
        assert_eq!((newest.seq, page.complete_to), (3, 3));
        let edits: Vec<_> = page.messages[1..].iter().map(edit_of).collect();
        assert_eq!(edits, [(1, None), (1, Some("text".to_owned()))], "only the newest has the content");
        let tail = other.page(ask::after(&place, 1, 10));
        assert_eq!(edit_of(&tail.messages[1]), (1, Some("text".to_owned())), "also without the message");
        let state = other.state(&place);
        assert_eq!((state.unread, state.last.map(|last| last.seq)), (1, Some(1)), "an edit is no message");
        let id = alice.say(ask::recall(&place, 1));
        alice.expect_ack(id);
        let page = other.page(ask::after(&place, 0, 10));
        assert_eq!((page.recalled, page.messages[1].edit.clone().unwrap().content), (vec![1], None));
        assert_eq!(alice.refused(ask::edit(&place, 1, "e3", "again")), Code::NotFound);
        let late = edited(&mut alice, &place, 1, "e2", "text");
        assert_eq!(
            (late.seq, late.duplicate),
            (3, true),
            "a repeated edit gets its answer after the recall, too"
        );
    }
}

#[test]
fn edit_is_for_the_sender_in_time_and_the_groups_owner() {
    let node = switched(|config| config.limits.edit_ms = 0);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    alice.text("bob", "m1", "text");
    assert_eq!(alice.refused(ask::edit("d:alice:bob", 1, "e1", "new")), Code::TooLate);
    assert_eq!(bob.refused(ask::edit("d:alice:bob", 1, "e1", "new")), Code::Forbidden);
    assert_eq!(alice.refused(ask::edit("d:alice:bob", 0, "e2", "new")), Code::Malformed);
    assert_eq!(alice.refused(ask::edit("d:alice:bob", 9, "e3", "new")), Code::NotFound);
    assert_eq!(alice.refused(ask::edit("d:bob:eve", 1, "e4", "new")), Code::Forbidden);
    assert_eq!(alice.refused(ask::edit("r:hall", 1, "e5", "new")), Code::NotFound);
    let body = serde_json::json!({"id": "tea", "owner": "olga", "members": ["alice", "bob"]});
    assert_eq!(node.admin("POST", "/v1/groups", &body).0, 201);
    let seq = alice.text("g:tea", "g1", "text");
    let mut olga = node.login(Wire::JsonLine, "olga", "phone");
    assert_eq!(
        edited(&mut olga, "g:tea", seq, "o1", "moderated").seq,
        seq + 1,
        "the owner has no time limit"
    );
    let mut eve = node.login(Wire::Tcp, "eve", "phone");
    assert_eq!(eve.refused(ask::edit("g:tea", seq, "e1", "new")), Code::NotAMember);
}

#[test]
fn user_who_has_left_gets_no_content_from_a_later_edit() {
    let node = switched(|_| {});
    let group = node.group("tea", &["alice", "bob"]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let (early, late) = (alice.text(&group, "m1", "one"), alice.text(&group, "m2", "two"));
    edited(&mut alice, &group, early, "e1", "first");
    node.kick("tea", &["bob"]);
    edited(&mut alice, &group, late, "e2", "the new code of the door");
    let page = bob.page(ask::after(&group, 0, 10));
    let texts: Vec<&str> = page.messages.iter().filter(|it| it.content.is_some()).map(text_of).collect();
    assert_eq!(texts, ["first"], "an edit of that time is read, a later one is not");
    assert!(page.expired.iter().any(|range| (range.first..=range.last).contains(&late)), "{page:?}");
    let single = node.admin(
        "GET",
        &format!("/v1/conversations/g:tea/messages/{late}?as=bob"),
        &serde_json::Value::Null,
    );
    assert_eq!(single.0, 404, "{}", single.1);
    let page = alice.page(ask::after(&group, 0, 10));
    assert_eq!(page.messages.iter().filter(|it| it.content.is_some()).count(), 2, "a member reads both");
}

#[test]
fn edit_survives_a_restart_with_its_seq() {
    let node = switched(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    alice.text("bob", "m1", "tpyo");
    let ack = edited(&mut alice, "d:alice:bob", 1, "e1", "typo");
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let again = edited(&mut alice, "d:alice:bob", 1, "e1", "typo");
    assert_eq!((again.seq, again.time, again.duplicate), (ack.seq, ack.time, true));
    let page = alice.page(ask::after("d:alice:bob", 0, 10));
    assert_eq!((text_of(&page.messages[0]), page.messages[0].edited.unwrap().seq), ("typo", 2));
}

#[test]
fn flags_decide_what_counts_and_what_is_kept() {
    let node = switched(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    for (id, flags) in [("plain", 0), ("silent", SILENT), ("brief", TRANSIENT), ("quiet", NO_PUSH)] {
        let request = alice.say(flagged("bob", id, flags));
        alice.expect_ack(request);
    }
    let pushes = bob.pushes(4);
    let shown: Vec<_> = pushes.iter().map(|push| (text_of(push), push.flags)).collect();
    let expected = [("plain", 0), ("silent", SILENT), ("brief", TRANSIENT), ("quiet", NO_PUSH)];
    assert_eq!(shown, expected);
    assert_eq!(bob.state("d:alice:bob").unread, 3, "all but the silent one");
    let id = bob.say(ask::read("d:alice:bob", 2));
    assert!(matches!(bob.reply(id), ServerBody::Done(_)));
    assert_eq!(bob.state("d:alice:bob").unread, 2);
    let page = bob.page(ask::after("d:alice:bob", 0, 10));
    let seqs: Vec<_> = page.messages.iter().map(|push| (push.seq, push.flags)).collect();
    assert_eq!(seqs, [(1, 0), (2, SILENT), (4, NO_PUSH)]);
    assert_eq!(page.expired, [pb::SeqRange { first: 3, last: 3 }], "its content was never stored");
    assert_eq!(alice.refused(ask::edit("d:alice:bob", 3, "e1", "new")), Code::NotFound);
    assert_eq!(alice.refused(flagged("bob", "odd", 8)), Code::BadContent);
    let room = ask::send(pb::Send {
        conversation: "r:hall".into(),
        msg_id: "r1".into(),
        content: Some(Content::text("o/")),
        flags: SILENT,
        ..pb::Send::default()
    });
    assert_eq!(alice.refused(room), Code::BadContent);
}

#[test]
fn json_content_reaches_all_framings_as_it_was_written() {
    let node = switched(|_| {});
    let mut bobs: Vec<Client> =
        Wire::ALL.iter().map(|wire| node.login(*wire, &format!("bob{wire:?}"), "phone")).collect();
    let names: Vec<String> = Wire::ALL.iter().map(|wire| format!("bob{wire:?}")).collect();
    node.group("tea", &[&["alice"][..], &names.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    bobs.iter_mut().for_each(|bob| drop(bob.expect_push()));
    for (n, wire) in Wire::ALL.into_iter().enumerate() {
        let mut alice = node.login(wire, "alice", "phone");
        let content = Content {
            kind: "card".into(),
            json: r#"{"b":1.50,"a":["x"]}"#.into(),
            reply_to: 1,
            mentions: vec!["bob".into(), "*".into()],
            ..Content::text("see")
        };
        let send = |content, attempt| {
            let (conversation, msg_id) = ("g:tea".into(), format!("m{n}"));
            ask::send(pb::Send {
                conversation,
                msg_id,
                attempt,
                content: Some(content),
                ..pb::Send::default()
            })
        };
        let id = alice.say(send(content.clone(), 0));
        alice.expect_ack(id);
        for bob in &mut bobs {
            assert_eq!(bob.expect_push().content.as_ref(), Some(&content));
        }
        let id = alice.say(send(content.clone(), 1));
        assert!(alice.expect_ack(id).duplicate);
        let wrong = [
            Content { kind: "tg.x".into(), ..content.clone() },
            Content { mentions: vec!["bob".into(); 51], ..content.clone() },
            Content { json: r#"{"a":1,"a":2}"#.into(), ..content.clone() },
            Content { reply_to: 1, ..Content::default() },
        ];
        for content in wrong {
            assert_eq!(alice.refused(send(content.clone(), 0)), Code::BadContent, "{content:?}");
        }
    }
}

#[test]
fn large_edited_message_leaves_its_place_in_a_page_to_the_others() {
    let node = switched(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let place = "d:alice:bob";
    (0..4).for_each(|n| assert_eq!(alice.text("bob", &format!("m{n}"), "text"), n + 1));
    let large = "x".repeat(30_000);
    for (seq, text) in [(1, large.as_str()), (2, "two"), (3, large.as_str()), (4, "four")] {
        edited(&mut alice, place, seq, &format!("e{seq}"), text);
    }
    // The messages are not in the page, only their edits.
    let page = alice.page(ask::after(place, 4, 10));
    let edits: Vec<_> = page.messages.iter().map(edit_of).collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(edits, [(1, None), (2, text("two")), (3, None), (4, text("four"))]);
}
