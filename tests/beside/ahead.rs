//! Messages that are told before they are archived (ADR 16): who reads the store then waits for what anybody was told.

use std::time::{Duration, Instant};

use tidegate::fault::{Fault, Gate, Rates};
use tidegate_protocol::{Code, codec::Wire};

use super::{Said, ask, done, eventually, mesh, text_of};
use crate::support::Client;

/// The next push, acked, so that it comes once.
fn heard(client: &mut Client, text: &str) {
    let push = client.expect_push();
    assert_eq!(text_of(&push), text);
    client.ack(&push.conversation, push.seq);
}

/// Nothing comes for a moment in which what is not held would have come long ago.
fn nothing_comes(client: &mut Client) {
    client.listen(Duration::from_millis(200));
    assert!(client.inbox.is_empty(), "{:?}", client.inbox);
}

#[test]
fn a_message_is_acked_and_pushed_before_it_is_archived_and_whoever_reads_waits_for_that() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut readers: Vec<Client> =
        (0..2).map(|n| mesh.login(n, Wire::Tcp, "bob", &format!("device-{n}"))).collect();
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    readers.iter_mut().for_each(|bob| heard(bob, "before"));
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    readers.iter_mut().for_each(|bob| heard(bob, "ahead"));
    eventually("it is being archived", || (gate.reached() == 1).then_some(()));
    let asked: Vec<u64> = readers.iter_mut().map(|bob| bob.say(ask::after("d:ann:bob", 1, 10))).collect();
    readers.iter_mut().for_each(nothing_comes);
    gate.open();
    for (bob, id) in readers.iter_mut().zip(asked) {
        let said = bob.reply(id);
        let Said::Page(page) = said else { panic!("no page: {said:?}") };
        assert_eq!(page.messages.iter().map(text_of).collect::<Vec<_>>(), ["ahead"]);
        assert_eq!(page.complete_to, 2);
    }
}

#[test]
fn who_logs_in_and_syncs_sees_what_was_told_before() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    eventually("it is being archived", || (gate.reached() == 1).then_some(()));
    // Nobody pushed it to this one: the login came later.
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| {
            let mut late = mesh.login(1, Wire::WsText, "bob", "phone");
            late.state("d:ann:bob")
        });
        eventually("it asks", || (mesh.node(1).link.calls("archive_status") > 0).then_some(()));
        gate.open();
        late.join().unwrap()
    });
    assert_eq!((late.max_seq, late.unread), (2, 2));
}

#[test]
fn a_change_of_members_is_told_when_it_is_archived_and_what_waits_before_it_too() {
    let (mesh, _) = mesh(2);
    let group = mesh.group("team", &["ann", "bob"]);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text(&group, "m1", "ahead"), 2);
    heard(&mut bob, "ahead");
    std::thread::scope(|scope| {
        let change = scope.spawn(|| mesh.join("team", &["carl"]));
        eventually("it is being archived", || (gate.reached() == 1).then_some(()));
        nothing_comes(&mut bob);
        gate.open();
        change.join().unwrap();
    });
    assert!(bob.expect_push().event.is_some());
    assert_eq!(bob.page(ask::after(&group, 0, 10)).messages.len(), 3);
}

#[test]
fn an_owner_that_does_not_say_what_it_archived_holds_readers_up_for_a_second_and_then_for_a_moment() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    bob.expect_push();
    let gate = Gate::new();
    (0..6).for_each(|_| mesh.node(1).link.plan("archive_status", Fault::Hold(gate.clone())));
    let began = Instant::now();
    assert_eq!(bob.page(ask::after("d:ann:bob", 0, 10)).messages.len(), 1);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    let began = Instant::now();
    (0..5).for_each(|_| assert_eq!(bob.page(ask::after("d:ann:bob", 0, 10)).messages.len(), 1));
    assert!(began.elapsed() < Duration::from_secs(5), "not a second for each: {:?}", began.elapsed());
    gate.open();
}

#[test]
fn many_readers_share_the_calls_to_an_owner() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut readers: Vec<Client> =
        (0..40).map(|n| mesh.login(1, Wire::Tcp, "bob", &format!("device-{n}"))).collect();
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    readers.iter_mut().for_each(|bob| drop(bob.expect_push()));
    let (gate, before) = (Gate::new(), mesh.node(1).link.calls("archive_status"));
    mesh.node(1).link.plan("archive_status", Fault::Hold(gate.clone()));
    let asked: Vec<u64> = readers.iter_mut().map(|bob| bob.say(ask::after("d:ann:bob", 0, 10))).collect();
    eventually("the first asks", || (gate.reached() == 1).then_some(()));
    // The others ask meanwhile, too.
    nothing_comes(&mut readers[0]);
    gate.open();
    for (bob, id) in readers.iter_mut().zip(asked) {
        assert!(matches!(bob.reply(id), Said::Page(_)));
    }
    let calls = mesh.node(1).link.calls("archive_status") - before;
    assert!((2..=20).contains(&calls), "{calls} calls for 40 readers");
}

#[test]
fn what_a_user_does_up_to_a_seq_that_may_not_be_stored_is_refused_and_not_cut_to_what_is() {
    const PLACE: &str = "d:ann:bob";
    let (mesh, _) = mesh(2);
    mesh.group("team", &["ann", "bob"]);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let mut recalls = mesh.login(1, Wire::Tcp, "ann", "tablet");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    heard(&mut bob, "before");
    assert_eq!(bob.page(ask::after(PLACE, 0, 10)).complete_to, 1, "it is archived");
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    heard(&mut bob, "ahead");
    let link = &mesh.node(1).link;
    link.set_rates(Rates { fail: 1_000, ..Rates::default() });
    for asked in [ask::read(PLACE, 2), ask::clear(PLACE, 2), ask::hide(PLACE, &[1, 2])] {
        assert_eq!(bob.refused(asked), Code::NotYet);
    }
    assert_eq!(recalls.refused(ask::recall(PLACE, 2)), Code::NotYet);
    // What is stored is there to be read, hidden and taken back: nobody is asked whether it is.
    let before = link.calls("archive_status");
    assert!(before >= 4, "{before}");
    done(&mut bob, ask::read(PLACE, 1));
    done(&mut bob, ask::hide(PLACE, &[1]));
    assert_eq!(bob.refused(ask::recall(PLACE, 1)), Code::Forbidden);
    assert_eq!(link.calls("archive_status"), before);
    // An owner that says that it is not yet is waited for.
    link.set_rates(Rates::default());
    let asked = bob.say(ask::read(PLACE, 2));
    nothing_comes(&mut bob);
    gate.open();
    assert!(matches!(bob.reply(asked), Said::Done(_)));
    done(&mut bob, ask::clear(PLACE, 1_000_000));
    let state = bob.state(PLACE);
    assert_eq!((state.read_seq, state.cleared_seq, state.unread), (2, 2, 0));
    let before = link.calls("archive_status");
    done(&mut bob, ask::leave_group("g:team"));
    assert_eq!(link.calls("archive_status"), before, "who leaves reads nothing");
}

#[test]
fn a_recall_that_only_waited_says_so_and_not_that_it_may_be_done() {
    const PLACE: &str = "d:ann:bob";
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    eventually("it is being archived", || (gate.reached() == 1).then_some(()));
    let mut recalls = [0, 1].map(|nth| mesh.login(nth, Wire::Tcp, "ann", &format!("tablet-{nth}")));
    let asked = recalls.each_mut().map(|client| client.say(ask::recall(PLACE, 2)));
    for (client, asked) in recalls.iter_mut().zip(asked) {
        assert_eq!(client.expect_error(asked), Code::StoreUnavailable);
    }
    gate.open();
    match eventually("it is archived", || match recalls[0].ask(ask::recall(PLACE, 2)) {
        Said::Error(error) if error.temporary => None,
        said => Some(said),
    }) {
        Said::SendAck(ack) => assert_eq!((ack.seq, ack.duplicate), (3, false), "nobody had done it"),
        other => panic!("{other:?}"),
    }
}
