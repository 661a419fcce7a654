//! User settings at login: stored, limited by bounds, returned, and applied.

use std::time::{Duration, Instant};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, ServerBody, Stopwatch, TestNode, ask, hello, send};

fn login(
    node: &TestNode,
    wire: Wire,
    user: &str,
    device: &str,
    settings: pb::Settings,
) -> (Client, pb::Settings) {
    let mut client = node.connect(wire);
    let hello = pb::Hello { settings: Some(settings), ..hello(&node.token(user), device) };
    let id = client.say(ask::hello(hello));
    let ServerBody::Welcome(welcome) = client.reply(id) else { panic!("no welcome") };
    (client, welcome.settings.expect("what counts"))
}

fn user_settings(unread: &str, retention: &str, search: &str) -> pb::Settings {
    pb::Settings {
        unread: unread.into(),
        retention: retention.into(),
        search: search.into(),
        ..pb::Settings::default()
    }
}

/// Returns settings as a node reports those of a user who did not opt out of presence.
fn visible(settings: pb::Settings) -> pb::Settings {
    pb::Settings { presence: "on".into(), ..settings }
}

#[test]
fn user_settings_hold_for_all_devices_and_after_a_restart() {
    let mut node = TestNode::start(|_| {});
    let nothing = pb::Settings::default();
    let (_client, welcome_settings) = login(&node, Wire::JsonLine, "ann", "phone", nothing.clone());
    let defaults = pb::Settings {
        ack_timeout_ms: 5_000,
        ack_tries: 3,
        heartbeat_ms: 30_000,
        ..visible(user_settings("all", "forever", "on"))
    };
    assert_eq!(welcome_settings, defaults);
    let asked = pb::Settings { ack_tries: 200, heartbeat_ms: 60_000, ..user_settings("direct", "7d", "") };
    let (_client, welcome_settings) = login(&node, Wire::Tcp, "ann", "phone", asked);
    let granted = pb::Settings { heartbeat_ms: 60_000, ..visible(user_settings("direct", "7d", "on")) };
    let granted = pb::Settings { ack_timeout_ms: 5_000, ack_tries: 3, ..granted };
    assert_eq!(welcome_settings, granted, "within the bounds of the node");
    let (_client, welcome_settings) =
        login(&node, Wire::WsText, "ann", "tablet", user_settings("", "1d", "off"));
    let both = pb::Settings { retention: "1d".into(), search: "off".into(), ..granted };
    assert_eq!(welcome_settings, both, "settings are stored one by one, also for the other device");
    let data = node.stop();
    node = TestNode::start_on(&data, |_| {});
    let (_client, welcome_settings) = login(&node, Wire::WsBinary, "ann", "phone", nothing.clone());
    assert_eq!(welcome_settings, both, "after a restart");
    let (_client, welcome_settings) = login(&node, Wire::WsBinary, "bob", "phone", nothing);
    assert_eq!(welcome_settings, defaults, "another user");
    node.stop();
    std::fs::remove_dir_all(data).ok();
}

#[test]
fn invalid_user_setting_is_refused() {
    let node = TestNode::start(|_| {});
    let mut client = node.connect(Wire::JsonLine);
    let settings = Some(user_settings("", "2d", ""));
    let id = client.say(ask::hello(pb::Hello { settings, ..hello(&node.token("ann"), "phone") }));
    assert_eq!(client.expect_error(id), Code::BadSetting);
    assert_eq!(client.expect_close(), Code::BadSetting);
}

/// The stored timeout and tries pace the copies of a push, for a login that does not repeat them.
#[test]
fn stored_settings_pace_the_copies_and_the_close() {
    let node = TestNode::start(|config| config.timing.ack_timeout_ms = 1_000);
    let impatient = pb::Settings { ack_timeout_ms: 300, ack_tries: 2, ..pb::Settings::default() };
    login(&node, Wire::Tcp, "bob", "phone", impatient);
    let patient = pb::Settings { ack_timeout_ms: 4_000, ..pb::Settings::default() };
    let (mut cid, welcome_settings) = login(&node, Wire::Tcp, "cid", "phone", patient);
    assert_eq!(welcome_settings.ack_timeout_ms, 4_000);
    let mut bob = node.login(Wire::JsonLine, "bob", "tablet");
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let (since, watch) = (Instant::now(), Stopwatch::start());
    for user in ["bob", "cid"] {
        ann.text(user, user, "are you there?");
    }
    assert_eq!(bob.pushes(3).len(), 3, "the push and two copies");
    assert!(since.elapsed() >= Duration::from_millis(600), "two waits of 300 ms: {:?}", since.elapsed());
    assert_eq!(bob.expect_close(), Code::Slow);
    assert!(since.elapsed() >= Duration::from_millis(900), "three waits of 300 ms: {:?}", since.elapsed());
    assert!(
        watch.elapsed() < Duration::from_millis(3_000),
        "the node's default would take 4 s: {:?}",
        since.elapsed()
    );
    cid.settle();
    let copies = cid.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Push(_)))).count();
    assert_eq!(copies, 1, "no copy is sent before the configured 4 s");
}

#[test]
fn unread_is_counted_as_configured() {
    let node = TestNode::start(|_| {});
    let group = node.group("tea", &["ann", "bob"]);
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    ann.text(&group, "m1", "x");
    ann.text("bob", "m2", "x");
    for (mode, in_group, direct) in [("all", 1, 1), ("direct", 0, 1), ("none", 0, 0)] {
        let (mut bob, _) = login(&node, Wire::WsText, "bob", "phone", user_settings(mode, "", ""));
        assert_eq!((bob.state(&group).unread, bob.state("d:ann:bob").unread), (in_group, direct), "{mode}");
    }
}

#[test]
fn no_retention_hides_read_messages_from_that_user_only() {
    let node = TestNode::start(|_| {});
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    for n in 1..=5 {
        ann.text("bob", &format!("m{n}"), "x");
    }
    let (mut bob, _) = login(&node, Wire::JsonLine, "bob", "phone", user_settings("", "none", ""));
    let place = "d:ann:bob";
    let pull = |client: &mut Client| -> (Vec<u64>, Vec<(u64, u64)>) {
        let page = client.page(ask::before(place, 0, 0));
        let gone = page.expired.iter().map(|range| (range.first, range.last)).collect();
        (page.messages.iter().map(|push| push.seq).collect(), gone)
    };
    assert_eq!(pull(&mut bob), (vec![5, 4, 3, 2, 1], vec![]));
    assert!(matches!(bob.ask(ask::read(place, 3)), ServerBody::Done(_)));
    assert_eq!(pull(&mut bob), (vec![5, 4], vec![(1, 3)]));
    let state = bob.state(place);
    assert_eq!((state.min_seq, state.max_seq, state.unread), (4, 5, 2));
    let page = bob.page(ask::seqs(place, &[2, 3, 4]));
    assert_eq!(page.messages.iter().map(|push| push.seq).collect::<Vec<_>>(), [4]);
    assert!(matches!(bob.ask(ask::read(place, 5)), ServerBody::Done(_)));
    let state = bob.state(place);
    assert_eq!((state.min_seq, state.max_seq, state.last), (6, 5, None));
    assert_eq!(pull(&mut bob), (vec![], vec![(1, 5)]));
    assert_eq!(pull(&mut ann).0, [5, 4, 3, 2, 1], "no message was deleted");
    let (mut again, _) = login(&node, Wire::Tcp, "bob", "phone", user_settings("", "forever", ""));
    assert_eq!(pull(&mut again).0, [5, 4, 3, 2, 1], "not even for the user");
    ann.send(send("bob", "m6", "x"));
}
