//! Logins that race with messages, with each other and with a logout between nodes, and pushes that overtake each
//! other. Held calls force each order; in all of them nothing is missed, repeated or early, and one connection of a
//! device stays.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

#[path = "races/blocks.rs"]
mod blocks;

#[path = "races/guard.rs"]
mod guard;

#[path = "support/mesh.rs"]
mod mesh;

use std::{sync::Arc, time::Duration};

use mesh::Mesh;
use support::{Client, ServerBody, ask, eventually, text_of};
use tidegate::{
    fault::{Fault, Gate},
    routes::{DevicePolicy, OnePer},
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{Code, codec::Wire, pb};

const CONVERSATION: &str = "d:ann:bob";

/// Returns three nodes, of which the first owns the log, and ann, the sender, on it.
fn mesh() -> (Mesh, Client) {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(3, &numbers);
    let ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    (mesh, ann)
}

fn wait_for_held_call(gate: &Gate, calls: u64) {
    eventually("the call is held", || (gate.reached() == calls).then_some(()));
}

/// Asserts that a sync has everything up to that seq, and a pull returns it.
fn assert_synced(client: &mut Client, conversation: &str, last: u64) {
    assert_eq!(client.state(conversation).max_seq, last);
    let seqs: Vec<u64> =
        client.page(ask::after(conversation, 0, 100)).messages.iter().map(|it| it.seq).collect();
    assert_eq!(seqs, (1..=last).collect::<Vec<u64>>());
}

/// Asserts that the next message is pushed, and nothing else is.
fn assert_next_push(ann: &mut Client, other: &mut Client, id: &str) {
    let seq = ann.text("bob", id, id);
    let push = other.expect_push();
    assert_eq!((push.seq, text_of(&push)), (seq, id));
    other.ack(CONVERSATION, seq);
    other.no_push();
}

/// Whether the node has closed the connection because of a newer one; any other end is a failure.
fn is_replaced(client: &mut Client) -> bool {
    client.listen(Duration::from_millis(5));
    let closed = client.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::Close(_))));
    if closed {
        assert_eq!(client.expect_close(), Code::Replaced);
    }
    closed
}

#[test]
fn message_in_flight_to_a_node_is_in_a_sync_elsewhere() {
    for device in ["phone", "tablet"] {
        let (mesh, mut ann) = mesh();
        let mut old = mesh.login(1, Wire::WsText, "bob", "phone");
        let gate = Gate::new();
        mesh.node(0).link.plan("deliver", Fault::Hold(gate.clone()));
        assert_eq!(ann.text("bob", "m1", "m1"), 1);
        wait_for_held_call(&gate, 1);
        let mut new = mesh.login(2, Wire::Tcp, "bob", device);
        assert_synced(&mut new, CONVERSATION, 1);
        if device == "phone" {
            assert_eq!(old.expect_close(), Code::Replaced);
        }
        gate.open();
        if device == "tablet" {
            assert_eq!(old.expect_push().seq, 1);
            old.ack(CONVERSATION, 1);
        }
        assert_next_push(&mut ann, &mut new, "m2");
    }
}

#[test]
fn message_in_flight_to_a_left_node_is_in_the_next_sync() {
    let (mesh, mut ann) = mesh();
    let mut old = mesh.login(1, Wire::Tcp, "bob", "phone");
    let gate = Gate::new();
    mesh.node(0).link.plan("deliver", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m1", "m1"), 1);
    wait_for_held_call(&gate, 1);
    old.say(ask::bye());
    old.until_end();
    gate.open();
    let mut new = mesh.login(2, Wire::Tcp, "bob", "phone");
    assert_synced(&mut new, CONVERSATION, 1);
    assert_next_push(&mut ann, &mut new, "m2");
}

#[test]
fn message_routed_before_a_login_is_in_its_sync() {
    let (mesh, mut ann) = mesh();
    let gate = Gate::new();
    mesh.node(0).routes.plan("lookup", Fault::HoldAnswer(gate.clone()));
    assert_eq!(ann.text("bob", "m1", "m1"), 1);
    // The owner has found no route by now, and does not know of the login yet.
    wait_for_held_call(&gate, 1);
    let mut bob = mesh.login(2, Wire::Tcp, "bob", "phone");
    assert_synced(&mut bob, CONVERSATION, 1);
    gate.open();
    assert_next_push(&mut ann, &mut bob, "m2");
}

#[test]
fn message_and_join_at_any_step_of_a_login_are_not_missed() {
    // The route is not set; set but not confirmed to its node; indexed before the groups are read; after that.
    let hold: fn(Gate) -> Fault = Fault::Hold;
    for (method, fault) in [
        ("register", hold),
        ("register", Fault::HoldAnswer),
        ("memberships", hold),
        ("memberships", Fault::HoldAnswer),
    ] {
        let (mesh, mut ann) = mesh();
        let tea = mesh.group("tea", &["ann"]);
        let gate = Gate::new();
        let node = mesh.node(2);
        let plan = if method == "register" { &node.routes } else { &node.store };
        plan.plan(method, fault(gate.clone()));
        let mut bob = mesh.hello(2, Wire::Tcp, "bob", "phone");
        wait_for_held_call(&gate, 1);
        ann.text("bob", "m1", "m1");
        mesh.join("tea", &["bob"]);
        ann.text(&tea, "g1", "g1");
        gate.open();
        bob.take("the welcome", |frame| matches!(frame.body, Some(ServerBody::Welcome(_))));
        assert_synced(&mut bob, CONVERSATION, 1);
        assert_eq!(bob.state(&tea).max_seq, 3, "{method}");
        // A push during the login may arrive in addition, once.
        ann.text("bob", "m2", "m2");
        ann.text(&tea, "g2", "g2");
        let mut seqs = [Vec::new(), Vec::new()];
        while seqs[0].last() != Some(&2) || seqs[1].last() != Some(&4) {
            let push = bob.expect_push();
            bob.ack(&push.conversation, push.seq);
            seqs[usize::from(push.conversation == tea)].push(push.seq);
        }
        assert!(seqs.iter().all(|seqs| seqs.is_sorted_by(|a, b| a < b)), "{method}: {seqs:?}");
        bob.no_push();
        // His node lists him as a member.
        eventually("he gets a signal", || {
            let said = ann.ask(ask::signal(&tea, "typing", ""));
            assert!(matches!(said, ServerBody::Done(_)), "{said:?}");
            bob.listen(Duration::from_millis(20));
            bob.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::Signal(_)))).then_some(())
        });
    }
}

#[test]
fn login_confirmed_late_is_replaced_by_a_newer_one() {
    let (mesh, mut ann) = mesh();
    let gate = Gate::new();
    mesh.node(1).routes.plan("register", Fault::HoldAnswer(gate.clone()));
    let mut first = mesh.hello(1, Wire::WsBinary, "bob", "phone");
    wait_for_held_call(&gate, 1);
    // The other node has no session to stop.
    let mut second = mesh.login(2, Wire::Tcp, "bob", "phone");
    gate.open();
    assert_eq!(first.expect_close(), Code::Replaced);
    assert_next_push(&mut ann, &mut second, "m1");
}

#[test]
fn one_of_two_racing_logins_of_a_device_stays() {
    let hold: fn(Gate) -> Fault = Fault::Hold;
    let (mesh, mut ann) = mesh();
    let mut round = 0;
    for (fault, first_hears_first) in
        [(hold, true), (hold, false), (Fault::HoldAnswer, true), (Fault::HoldAnswer, false)]
    {
        for _ in 0..3 {
            round += 1;
            let gates = [Gate::new(), Gate::new()];
            let mut both = [1, 2].map(|nth| {
                mesh.node(nth).routes.plan("register", fault(gates[nth - 1].clone()));
                let client = mesh.hello(nth, Wire::Tcp, "bob", "phone");
                wait_for_held_call(&gates[nth - 1], 1);
                client
            });
            let order = if first_hears_first { [0, 1] } else { [1, 0] };
            order.iter().for_each(|nth| gates[*nth].open());
            let lost = eventually("one connection is closed", || both.iter_mut().position(is_replaced));
            let stays = &mut both[1 - lost];
            // Before its Welcome it gets no pushes, and would learn of the message by its sync.
            stays.take("the welcome", |frame| matches!(frame.body, Some(ServerBody::Welcome(_))));
            let (id, last) = (format!("m{round}"), u64::from(round as u32));
            assert_next_push(&mut ann, stays, &id);
            assert_synced(stays, CONVERSATION, last);
            assert!(!is_replaced(stays));
        }
    }
}

/// Logins of different devices, of which one may stay: of each order in which they register and learn of it.
#[test]
fn one_of_two_racing_logins_of_a_class_or_a_user_stays() {
    let hold: fn(Gate) -> Fault = Fault::Hold;
    let oldest = DevicePolicy { max: 1, replaces_oldest: true, ..DevicePolicy::default() };
    let [class, user] =
        [OnePer::Class, OnePer::User].map(|one_per| DevicePolicy { one_per, ..DevicePolicy::default() });
    for (policy, other) in [(class, "phone-b"), (user, "desktop"), (oldest, "desktop")] {
        let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
        let mesh = Mesh::start_with_devices(3, &numbers, policy);
        let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
        let mut round = 0;
        for (method, fault) in [
            ("register", hold),
            ("register", Fault::HoldAnswer),
            ("lookup", hold),
            ("lookup", Fault::HoldAnswer),
        ] {
            for order in [[0, 1], [1, 0]] {
                round += 1;
                let gates = [Gate::new(), Gate::new()];
                let mut both = [(1, "phone-a"), (2, other)].map(|(nth, device)| {
                    mesh.node(nth).routes.plan(method, fault(gates[nth - 1].clone()));
                    let client = mesh.hello(nth, Wire::Tcp, "bob", device);
                    wait_for_held_call(&gates[nth - 1], 1);
                    client
                });
                order.iter().for_each(|nth| gates[*nth].open());
                let lost = eventually("one session is closed", || both.iter_mut().position(is_replaced));
                let [stays, gone] = [1 - lost, lost];
                both[stays].take("the welcome", |frame| matches!(frame.body, Some(ServerBody::Welcome(_))));
                let is_close = |frame: &pb::ServerFrame| matches!(frame.body, Some(ServerBody::Close(_)));
                assert!(!both[gone].inbox.iter().any(is_close), "its end comes once");
                let stays = &mut both[stays];
                assert_next_push(&mut ann, stays, &format!("m{round}"));
                assert_synced(stays, CONVERSATION, round);
                assert!(!is_replaced(stays), "{policy:?} {method}");
                eventually("one route is left", || (mesh.nodes_of("bob").len() == 1).then_some(()));
                stays.say(ask::bye());
                stays.until_end();
                eventually("none is left", || mesh.nodes_of("bob").is_empty().then_some(()));
            }
        }
    }
}

/// The reply to its registration is lost: the retry finds the same older session again.
#[test]
fn session_is_replaced_by_a_login_whose_registration_was_repeated() {
    let policy = DevicePolicy { one_per: OnePer::User, ..DevicePolicy::default() };
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start_with_devices(3, &numbers, policy);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut old = mesh.login(1, Wire::Tcp, "bob", "phone");
    mesh.node(2).routes.plan("register", Fault::LoseAnswer);
    let mut new = mesh.login(2, Wire::Tcp, "bob", "desktop");
    assert_eq!(old.expect_close(), Code::Replaced);
    assert_next_push(&mut ann, &mut new, "m1");
    assert!(!is_replaced(&mut new));
}

#[test]
fn late_logout_removes_no_route_of_a_login_elsewhere() {
    for _ in 0..5 {
        let (mesh, mut ann) = mesh();
        let mut old = mesh.login(1, Wire::Tcp, "bob", "phone");
        let gate = Gate::new();
        mesh.node(1).routes.plan("remove", Fault::Hold(gate.clone()));
        old.say(ask::bye());
        old.until_end();
        wait_for_held_call(&gate, 1);
        let mut new = mesh.login(2, Wire::Tcp, "bob", "phone");
        gate.open();
        for id in ["m1", "m2", "m3"] {
            assert_next_push(&mut ann, &mut new, id);
        }
        assert_eq!(mesh.nodes_of("bob"), ["n3"]);
    }
}

#[test]
fn logout_during_a_newer_login_removes_no_route() {
    let (mesh, mut ann) = mesh();
    let mut old = mesh.login(1, Wire::Tcp, "bob", "phone");
    let gate = Gate::new();
    mesh.node(2).routes.plan("register", Fault::HoldAnswer(gate.clone()));
    let mut new = mesh.hello(2, Wire::Tcp, "bob", "phone");
    wait_for_held_call(&gate, 1);
    old.say(ask::bye());
    old.until_end();
    eventually("the connection is closed", || (mesh.node(1).conns() == 0).then_some(()));
    gate.open();
    new.take("the welcome", |frame| matches!(frame.body, Some(ServerBody::Welcome(_))));
    for id in ["m1", "m2", "m3"] {
        assert_next_push(&mut ann, &mut new, id);
    }
    assert_eq!(mesh.nodes_of("bob"), ["n3"]);
}

#[test]
fn s2_connection_closed_during_its_login_leaves_no_route() {
    let (mesh, _ann) = mesh();
    let (gate, node) = (Gate::new(), mesh.node(1));
    node.routes.plan("lookup", Fault::Hold(gate.clone()));
    let bob = mesh.hello(1, Wire::Tcp, "bob", "phone");
    wait_for_held_call(&gate, 1);
    assert_eq!(mesh.nodes_of("bob"), ["n2"]);
    drop(bob);
    eventually("its row is removed", || mesh.nodes_of("bob").is_empty().then_some(()));
    let before = node.routes.calls("remove");
    gate.open();
    // The login finds no row, treats it as lost and restores it.
    eventually("the row is removed again", || (node.routes.calls("remove") > before).then_some(()));
    eventually("no route is left", || mesh.nodes_of("bob").is_empty().then_some(()));
    assert_eq!(node.routes.calls("reassert"), 1);
}

#[test]
fn small_group_changes_and_messages_keep_their_order() {
    let (mesh, mut ann) = mesh();
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let tea = mesh.group("tea", &["ann", "bob"]);
    let mut last_seq = 0;
    for round in 0..100 {
        if round % 2 == 0 {
            mesh.join("tea", &["cid"])
        } else {
            mesh.kick("tea", &["cid"])
        }
        ann.text(&tea, &format!("m{round}"), "text");
        // Its creation, and two in each round. Pushes that are not acked for 5 s are resent.
        if round % 10 == 9 {
            for seq in last_seq + 1..=2 * round + 3 {
                assert_eq!(bob.expect_push().seq, seq);
            }
            last_seq = 2 * round + 3;
            bob.ack(&tea, last_seq);
        }
    }
    assert_eq!(last_seq, 201);
}

/// Creates a large group of ann and others, waits until each has its creation, and until all nodes list `nodes` as
/// those with members.
fn large_group(mesh: &Mesh, members: &mut [&mut Client], names: &[&str], nodes: &[&str]) {
    mesh.group("big", &[names, &["x", "y", "z", "zz"]].concat());
    members.iter_mut().for_each(|member| drop(member.expect_push()));
    eventually("the nodes declare interest", || (mesh.interested("g:big") == nodes).then_some(()));
}

fn texts_up_to(client: &mut Client, last: &str) -> Vec<String> {
    let mut texts = Vec::new();
    while texts.last().is_none_or(|text| text != last) {
        let push = client.expect_push();
        texts.push(if push.content.is_some() { text_of(&push).to_owned() } else { String::new() });
    }
    texts
}

#[test]
fn record_by_topic_and_link_is_pushed_once() {
    let (mesh, mut ann) = mesh();
    let [mut bob, mut cid] =
        [(1, "bob"), (2, "cid")].map(|(nth, name)| mesh.login(nth, Wire::Tcp, name, "phone"));
    large_group(&mesh, &mut [&mut ann, &mut bob, &mut cid], &["ann", "bob", "cid"], &["n1", "n2", "n3"]);
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::LoseAnswer));
    let before = mesh.node(0).link.calls("send_best_effort");
    ann.text("g:big", "m1", "twice");
    eventually("the record takes both paths", || {
        (mesh.node(0).link.calls("send_best_effort") >= before + 2).then_some(())
    });
    ann.text("g:big", "m2", "then");
    ann.text("g:big", "m3", "last");
    for client in [&mut bob, &mut cid] {
        assert_eq!(texts_up_to(client, "last"), ["twice", "then", "last"]);
        client.no_push();
    }
}

#[test]
fn new_member_gets_no_earlier_record_in_flight() {
    let (mesh, mut ann) = mesh();
    let [mut bob, mut cid] =
        [(1, "bob"), (2, "cid")].map(|(nth, name)| mesh.login(nth, Wire::Tcp, name, "phone"));
    large_group(&mesh, &mut [&mut ann, &mut bob, &mut cid], &["ann", "bob", "cid"], &["n1", "n2", "n3"]);
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    ann.text("g:big", "m1", "before");
    wait_for_held_call(&gate, 2);
    mesh.join("big", &["late"]);
    let mut late = mesh.login(1, Wire::Tcp, "late", "phone");
    gate.open();
    ann.text("g:big", "m2", "after");
    assert_eq!(texts_up_to(&mut bob, "after"), ["before", "", "after"]);
    // A hint that is not written yet absorbs the push.
    let news = |frame: &pb::ServerFrame| match &frame.body {
        Some(ServerBody::Push(push)) => push.seq == 4,
        Some(ServerBody::Behind(behind)) => behind.max_seq == 4,
        _ => false,
    };
    late.take("what came after its join", news);
    late.no_push();
}
