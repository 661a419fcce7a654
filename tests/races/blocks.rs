//! Block lists over several nodes: notifications, lost notifications, and a store that does not answer.

use std::time::{Duration, Instant};

use tidegate::fault::{Fault, Gate};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{mesh, wait_for_held_call};
use crate::support::{Client, ServerBody, ask, send, text_of};

/// Time within which a change is in force on all nodes.
const IN_FORCE_MAX: Duration = Duration::from_secs(2);

/// Returns the code of a refused send, or `None` if it was accepted.
fn outcome(client: &mut Client, id: &str) -> Option<Code> {
    match client.ask(ask::send(send("bob", id, id))) {
        ServerBody::SendAck(_) => None,
        ServerBody::Error(error) => Code::from_number(u16::try_from(error.code).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// Waits until sends have this outcome; returns how long it took.
fn until(client: &mut Client, wanted: Option<Code>) -> Duration {
    let begun = Instant::now();
    let mut n = 0;
    loop {
        n += 1;
        if outcome(client, &format!("{wanted:?}-{n}").replace(['(', ')'], "")) == wanted {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < IN_FORCE_MAX, "{wanted:?} is not in force");
    }
}

#[test]
fn block_is_in_force_on_the_asked_node_at_once_and_on_all_in_time() {
    let (mesh, _ann) = mesh();
    let mut here = mesh.login(1, Wire::Tcp, "eve", "phone");
    let mut there = mesh.login(2, Wire::Tcp, "eve", "desktop");
    assert_eq!(outcome(&mut there, "m1"), None);
    for _ in 0..3 {
        assert_eq!(mesh.set_block(1, "bob", "eve", true), Vec::<String>::new());
        assert_eq!(outcome(&mut here, "m2"), Some(Code::Forbidden));
        until(&mut there, Some(Code::Forbidden));
        mesh.set_block(1, "bob", "eve", false);
        assert_eq!(outcome(&mut here, "m3"), None);
        until(&mut there, None);
    }
}

#[test]
fn lost_notification_of_a_block_is_made_good_by_the_version() {
    let (mesh, _ann) = mesh();
    let mut there = mesh.login(2, Wire::Tcp, "eve", "phone");
    assert_eq!(outcome(&mut there, "m1"), None);
    (0..2).for_each(|_| mesh.node(1).link.plan("send_best_effort", Fault::Fail));
    let mut pending = mesh.set_block(1, "bob", "eve", true);
    pending.sort();
    assert_eq!(pending, ["n1", "n3"]);
    until(&mut there, Some(Code::Forbidden));
}

#[test]
fn store_without_an_answer_refuses_what_is_unknown_and_nothing_else() {
    let (mesh, mut ann) = mesh();
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let mut eve = mesh.login(0, Wire::Tcp, "eve", "phone");
    mesh.set_block(0, "bob", "eve", true);
    mesh.node(0).store.plan("is_blocked", Fault::Fail);
    assert_eq!(outcome(&mut eve, "m1"), Some(Code::StoreUnavailable), "it may be blocked");
    assert_eq!(outcome(&mut eve, "m2"), Some(Code::Forbidden));
    // Known from now on, also while the store fails.
    (0..9).for_each(|_| mesh.node(0).store.plan("is_blocked", Fault::Fail));
    assert_eq!(outcome(&mut eve, "m3"), Some(Code::Forbidden));
    ann.text("bob", "a1", "no lookup");
    assert_eq!(text_of(&bob.expect_push()), "no lookup");
    bob.ack("d:ann:bob", 1);
    bob.no_push();
}

#[test]
fn sends_behind_a_lookup_keep_their_order_and_hold_up_no_other_connection() {
    let (mesh, mut ann) = mesh();
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let mut eve = mesh.login(0, Wire::Tcp, "eve", "phone");
    mesh.set_block(0, "bob", "eve", true);
    let gate = Gate::new();
    mesh.node(0).store.plan("is_blocked", Fault::Hold(gate.clone()));
    let ids: Vec<u64> = [("bob", "m1"), ("carol", "m2"), ("carol", "m3")]
        .map(|(to, id)| eve.say(ask::send(send(to, id, id))))
        .into();
    wait_for_held_call(&gate, 1);
    eve.listen(Duration::from_millis(20));
    assert!(eve.inbox.is_empty(), "all three wait: {:?}", eve.inbox);
    for n in 1..4 {
        ann.text("bob", &format!("a{n}"), "others go on");
        assert_eq!(bob.expect_push().seq, n);
        bob.ack("d:ann:bob", n);
    }
    gate.open();
    assert_eq!(eve.expect_error(ids[0]), Code::Forbidden);
    assert_eq!([ids[1], ids[2]].map(|id| eve.expect_ack(id).seq), [1, 2]);
}

#[test]
fn login_that_asks_not_to_be_seen_is_refused_while_that_can_not_be_stored() {
    let (mesh, _) = mesh();
    let settings = |presence: &str| Some(pb::Settings { presence: presence.into(), ..Default::default() });
    let login = |presence: &str| mesh.hello_with(0, Wire::Tcp, "eve", "phone", settings(presence));
    (0..2).for_each(|_| mesh.node(0).store.plan("merge_settings", Fault::Fail));
    assert_eq!(login("off").expect_error(1), Code::Overloaded, "others would see the user");
    for presence in ["on", "off"] {
        assert!(matches!(login(presence).reply(1), ServerBody::Welcome(_)), "{presence}");
    }
}
