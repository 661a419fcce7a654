//! Who of a watched conversation is online: over all framings, for members only, without users who opted out or block.

use serde_json::json;
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    messages::limits::ruled,
    support::{Client, ServerBody, TestNode, ask, eventually, hello},
};

/// Returns who is online by the next report, which must be a complete one.
fn complete(client: &mut Client, conversation: &str) -> Vec<String> {
    let report = client.expect_presence();
    assert_eq!((report.conversation.as_str(), report.complete), (conversation, true), "{report:?}");
    assert!(report.offline.is_empty(), "{report:?}");
    report.online
}

/// Returns the users that are online, and those that no longer are, by the next report, which must be a change.
fn change(client: &mut Client, conversation: &str) -> [Vec<String>; 2] {
    let report = client.expect_presence();
    assert_eq!((report.conversation.as_str(), report.complete), (conversation, false), "{report:?}");
    [report.online, report.offline]
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn watcher_sees_who_comes_and_goes() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob", "w0", "w1", "w2", "w3"]);
    let _ann = node.login(Wire::Tcp, "ann", "phone");
    let watchers = Wire::ALL.into_iter().enumerate();
    let mut watchers: Vec<Client> =
        watchers.map(|(n, wire)| node.login(wire, &format!("w{n}"), "phone")).collect();
    for client in &mut watchers {
        client.expect_done(ask::watch(&group));
    }
    for client in &mut watchers {
        assert_eq!(complete(client, &group), names(&["ann", "w0", "w1", "w2", "w3"]));
    }
    let bob = node.login(Wire::Tcp, "bob", "phone");
    for client in &mut watchers {
        assert_eq!(change(client, &group), [names(&["bob"]), vec![]]);
    }
    watchers[3].expect_done(ask::unwatch(&group));
    drop(bob);
    for client in &mut watchers[..3] {
        assert_eq!(change(client, &group), [vec![], names(&["bob"])]);
    }
    watchers[3].expect_done(ask::unwatch(&group));
    let is_report = |frame: &pb::ServerFrame| matches!(frame.body, Some(ServerBody::Presence(_)));
    assert!(!watchers[3].inbox.iter().any(is_report), "it watches no more");
}

#[test]
fn watch_is_for_members_of_small_conversations() {
    let node = TestNode::start(|config| config.limits.watched_max = 1);
    let many: Vec<String> = (0..501).map(|n| format!("u{n}")).chain(["ann".into()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (tea, large) = (node.group("tea", &["ann", "bob"]), node.group("large", &many));
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut eve = node.login(Wire::WsText, "eve", "phone");
    for _ in 0..2 {
        assert_eq!(eve.refused(ask::watch(&tea)), Code::NotAMember);
        assert_eq!(eve.refused(ask::watch("g:nowhere")), Code::NotAMember);
        assert_eq!(eve.refused(ask::watch("d:ann:bob")), Code::Forbidden);
        assert_eq!(ann.refused(ask::watch("r:hall")), Code::Unsupported);
        assert_eq!(ann.refused(ask::watch(&large)), Code::Forbidden);
    }
    eve.expect_done(ask::unwatch(&tea));
    assert_eq!(ann.refused(ask::watch("d:ann:bob")), Code::NotYet, "the two have not talked");
    ann.expect_done(ask::watch(&tea));
    ann.text("bob", "m1", "hi");
    assert_eq!(ann.refused(ask::watch("d:ann:bob")), Code::Overloaded, "one more than the node takes");
    node.kick(&tea, &["bob"]);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    assert_eq!(bob.refused(ask::watch(&tea)), Code::NotAMember, "a former member");
    drop(ann);
    eventually("a watch ends with its connection", || {
        matches!(bob.ask(ask::watch("d:ann:bob")), ServerBody::Done(_)).then_some(())
    });
}

#[test]
fn node_without_watches_does_not_offer_them_and_reads_nothing() {
    let node = TestNode::start(|config| {
        config.limits.watched_max = 0;
        config.limits.errors_max = 3;
    });
    let tea = node.group("tea", &["bob"]);
    let mut ann = node.connect(Wire::Tcp);
    let features = vec!["watch".to_owned(), "react".to_owned()];
    ann.login(pb::Hello { features, ..hello(&node.token("ann"), "phone") });
    assert_eq!(ann.welcome.features, ["react"]);
    // A read would find that she is no member. As many as are forgiven for mistakes, and more.
    for _ in 0..5 {
        assert_eq!(ann.refused(ask::watch(&tea)), Code::Unsupported);
        assert_eq!(ann.refused(ask::watch("d:ann:bob")), Code::Unsupported);
    }
    ann.expect_done(ask::unwatch(&tea));
}

#[test]
fn node_can_leave_direct_conversations_out() {
    let node = TestNode::start(|config| {
        config.limits.watch_direct = false;
        config.limits.errors_max = 3;
    });
    let tea = node.group("tea", &["ann", "bob"]);
    let mut ann = node.connect(Wire::WsText);
    let features = vec!["watch".to_owned()];
    ann.login(pb::Hello { features, ..hello(&node.token("ann"), "phone") });
    assert_eq!(ann.welcome.features, ["watch"], "of groups");
    ann.text("bob", "m1", "hi");
    // A read would find that she has not talked to Cid.
    for _ in 0..5 {
        assert_eq!(ann.refused(ask::watch("d:ann:bob")), Code::Unsupported);
        assert_eq!(ann.refused(ask::watch("d:ann:cid")), Code::Unsupported);
    }
    ann.expect_done(ask::unwatch("d:ann:bob"));
    ann.expect_done(ask::watch(&tea));
    assert_eq!(complete(&mut ann, &tea), names(&["ann"]));
}

#[test]
fn connection_and_user_have_a_limited_number_of_watches() {
    let node = TestNode::start(|config| {
        config.limits.watches_per_user = 32;
        config.limits.errors_max = 3;
    });
    let mut ann = node.login(Wire::JsonLine, "ann", "phone");
    for n in 0..32 {
        let group = node.group(&format!("g{n}"), &["ann"]);
        ann.expect_done(ask::watch(&group));
    }
    let more = node.group("more", &["ann"]);
    // As many as are forgiven for mistakes, and more: a client can't count what its other connections watch.
    for _ in 0..5 {
        assert_eq!(ann.refused(ask::watch(&more)), Code::TooManyWatches);
    }
    let mut desk = node.login(Wire::Tcp, "ann", "desk");
    assert_eq!(desk.refused(ask::watch(&more)), Code::TooManyWatches, "the user's share is used up");
    ann.expect_done(ask::unwatch("g:g0"));
    desk.expect_done(ask::watch(&more));
    assert_eq!(ann.refused(ask::watch(&more)), Code::TooManyWatches);
    ann.expect_done(ask::unwatch("g:g1"));
    ann.expect_done(ask::watch(&more));
}

#[test]
fn end_of_a_watch_is_never_limited() {
    let node =
        ruled("[[rule]]\nid = \"reads\"\nlevel = \"user\"\ncalls = [\"pull\"]\nwindow = \"1h\"\nlimit = 1\n");
    let group = node.group("tea", &["ann"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.expect_done(ask::watch(&group));
    assert_eq!(ann.refused(ask::watch(&group)), Code::RateLimited);
    ann.expect_done(ask::unwatch(&group));
    ann.expect_done(ask::unwatch(&group));
}

#[test]
fn user_who_opted_out_or_blocks_the_watcher_is_not_seen() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob", "cid"]);
    let mut bob = node.connect(Wire::Tcp);
    let settings = Some(pb::Settings { presence: "off".into(), ..pb::Settings::default() });
    bob.login(pb::Hello { settings, ..hello(&node.token("bob"), "phone") });
    assert_eq!(bob.welcome.settings.as_ref().expect("settings").presence, "off");
    let mut cid = node.login(Wire::Tcp, "cid", "phone");
    let mut ann = node.login(Wire::WsBinary, "ann", "phone");
    cid.text("ann", "c1", "hi");
    bob.text("ann", "b1", "hi");
    let (status, _) = node.admin("PUT", "/v1/users/cid/blocks/ann", &json!({}));
    assert_eq!(status, 200);
    let watched: [(&str, &[&str]); 3] =
        [(&group, &["ann", "cid"]), ("d:ann:cid", &["ann"]), ("d:ann:bob", &["ann"])];
    for (conversation, _) in watched {
        ann.expect_done(ask::watch(conversation));
    }
    cid.expect_done(ask::watch("d:ann:cid"));
    for (conversation, online) in watched {
        assert_eq!(complete(&mut ann, conversation), names(online));
    }
    assert_eq!(complete(&mut cid, "d:ann:cid"), names(&["ann", "cid"]), "the block is one-sided");
}

#[test]
fn watch_ends_with_its_connection_and_is_begun_again() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.expect_done(ask::watch(&group));
    assert_eq!(complete(&mut ann, &group), names(&["ann"]));
    let resume = ann.welcome.session.clone();
    drop(ann);
    let mut ann = node.connect(Wire::Tcp);
    let features = vec!["watch".to_owned()];
    ann.login(pb::Hello { resume, features, ..hello(&node.token("ann"), "phone") });
    assert_eq!(ann.welcome.features, ["watch"]);
    let _bob = node.login(Wire::Tcp, "bob", "phone");
    ann.expect_done(ask::watch(&group));
    assert_eq!(complete(&mut ann, &group), names(&["ann", "bob"]), "the first report of this connection");
    ann.expect_done(ask::watch(&group));
    assert_eq!(complete(&mut ann, &group), names(&["ann", "bob"]), "a repeated watch is answered in full");
}
