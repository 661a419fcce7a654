//! Messages that are published before they are archived (ADR 16): a reader of the store waits for everything published.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    fault::{Fault, Gate, Rates},
    scratch::Numbers,
};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{Counter, Mesh, ServerBody, ask, eventually, mesh, text_of};
use crate::support::Client;

/// Receives and acks the next push, so that it is not resent.
fn expect_acked_push(client: &mut Client, text: &str) {
    let push = client.expect_push();
    assert_eq!(text_of(&push), text);
    client.ack(&push.conversation, push.seq);
}

/// Asserts that nothing arrives within a time in which an unheld message would have arrived.
fn assert_silent(client: &mut Client) {
    client.listen(Duration::from_millis(200));
    assert!(client.inbox.is_empty(), "{:?}", client.inbox);
}

#[test]
fn unarchived_message_is_acked_and_pushed_and_readers_wait() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut readers: Vec<Client> =
        (0..2).map(|n| mesh.login(n, Wire::Tcp, "bob", &format!("device-{n}"))).collect();
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    readers.iter_mut().for_each(|bob| expect_acked_push(bob, "before"));
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    readers.iter_mut().for_each(|bob| expect_acked_push(bob, "ahead"));
    eventually("the archive has begun", || (gate.reached() == 1).then_some(()));
    let asked: Vec<u64> = readers.iter_mut().map(|bob| bob.say(ask::after("d:ann:bob", 1, 10))).collect();
    readers.iter_mut().for_each(assert_silent);
    gate.open();
    for (bob, id) in readers.iter_mut().zip(asked) {
        let said = bob.reply(id);
        let ServerBody::Page(page) = said else { panic!("no page: {said:?}") };
        assert_eq!(page.messages.iter().map(text_of).collect::<Vec<_>>(), ["ahead"]);
        assert_eq!(page.complete_to, 2);
    }
}

#[test]
fn login_sync_includes_unarchived_messages() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    eventually("the archive has begun", || (gate.reached() == 1).then_some(()));
    // This device got no push: it logged in later.
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
fn membership_change_is_published_after_its_archive() {
    let (mesh, _) = mesh(2);
    let group = mesh.group("team", &["ann", "bob"]);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text(&group, "m1", "ahead"), 2);
    // The push of the creation arrives, too, if bob has logged in before it was delivered.
    let is_text =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Push(push)) if push.seq == 2);
    bob.take("the text", is_text);
    bob.inbox.clear();
    bob.ack(&group, 2);
    std::thread::scope(|scope| {
        let change = scope.spawn(|| mesh.join("team", &["carl"]));
        eventually("the archive has begun", || (gate.reached() == 1).then_some(()));
        assert_silent(&mut bob);
        gate.open();
        change.join().unwrap();
    });
    assert!(bob.expect_push().event.is_some());
    assert_eq!(bob.page(ask::after(&group, 0, 10)).messages.len(), 3);
}

#[test]
fn silent_owner_delays_readers_by_a_second_once() {
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
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "one second in all, not one per reader: {:?}",
        began.elapsed()
    );
    gate.open();
}

#[test]
fn many_readers_share_calls_to_the_owner() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut readers: Vec<Client> =
        (0..40).map(|n| mesh.login(1, Wire::Tcp, "bob", &format!("device-{n}"))).collect();
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    readers.iter_mut().for_each(|bob| drop(bob.expect_push()));
    let (gate, before) = (Gate::new(), mesh.node(1).link.calls("archive_status"));
    mesh.node(1).link.plan("archive_status", Fault::Hold(gate.clone()));
    let asked: Vec<u64> = readers.iter_mut().map(|bob| bob.say(ask::after("d:ann:bob", 0, 10))).collect();
    eventually("the first reader asks the owner", || (gate.reached() == 1).then_some(()));
    // The other readers ask in the meantime.
    assert_silent(&mut readers[0]);
    gate.open();
    for (bob, id) in readers.iter_mut().zip(asked) {
        assert!(matches!(bob.reply(id), ServerBody::Page(_)));
    }
    let calls = mesh.node(1).link.calls("archive_status") - before;
    assert!((2..=20).contains(&calls), "{calls} calls for 40 readers");
}

#[test]
fn change_beyond_the_archived_seq_is_refused_not_truncated() {
    const CONVERSATION: &str = "d:ann:bob";
    let (mesh, _) = mesh(2);
    mesh.group("team", &["ann", "bob"]);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
    let mut recalls = mesh.login(1, Wire::Tcp, "ann", "tablet");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    expect_acked_push(&mut bob, "before");
    assert_eq!(bob.page(ask::after(CONVERSATION, 0, 10)).complete_to, 1, "the message is archived");
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    expect_acked_push(&mut bob, "ahead");
    let link = &mesh.node(1).link;
    link.set_rates(Rates { fail: 1_000, ..Rates::default() });
    for asked in [ask::read(CONVERSATION, 2), ask::clear(CONVERSATION, 2), ask::hide(CONVERSATION, &[1, 2])] {
        assert_eq!(bob.refused(asked), Code::NotYet);
    }
    assert_eq!(recalls.refused(ask::recall(CONVERSATION, 2)), Code::NotYet);
    // Entries that are stored can be read, hidden and recalled without asking the owner.
    let before = link.calls("archive_status");
    assert!(before >= 4, "{before}");
    bob.expect_done(ask::read(CONVERSATION, 1));
    bob.expect_done(ask::hide(CONVERSATION, &[1]));
    assert_eq!(bob.refused(ask::recall(CONVERSATION, 1)), Code::Forbidden);
    assert_eq!(link.calls("archive_status"), before);
    // A reader waits for an owner that reports an unfinished archive.
    link.set_rates(Rates::default());
    let asked = bob.say(ask::read(CONVERSATION, 2));
    assert_silent(&mut bob);
    gate.open();
    assert!(matches!(bob.reply(asked), ServerBody::Done(_)));
    bob.expect_done(ask::clear(CONVERSATION, 1_000_000));
    let state = bob.state(CONVERSATION);
    assert_eq!((state.read_seq, state.cleared_seq, state.unread), (2, 2, 0));
    let before = link.calls("archive_status");
    bob.expect_done(ask::leave_group("g:team"));
    assert_eq!(link.calls("archive_status"), before, "leaving reads nothing");
}

/// K2, S75.
#[test]
fn k2_group_that_the_store_lacks_altogether_is_not_yet() {
    for answers_first in [true, false] {
        let numbers: Arc<dyn Numbers> = Arc::new(Counter::default());
        let mesh = Mesh::start_in_order(2, &numbers, answers_first);
        let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
        let mut bob = mesh.login(1, Wire::Tcp, "bob", "phone");
        assert_eq!(ann.text("bob", "m1", "before"), 1);
        expect_acked_push(&mut bob, "before");
        assert_eq!(bob.page(ask::after("d:ann:bob", 0, 10)).complete_to, 1, "the message is archived");
        let copy = mesh.store().save();
        let group = mesh.group("team", &["ann", "bob"]);
        assert!(bob.expect_push().event.is_some());
        assert_eq!(ann.text(&group, "m2", "hi"), 2);
        expect_acked_push(&mut bob, "hi");
        assert_eq!(bob.page(ask::after(&group, 0, 10)).complete_to, 2, "it is archived");
        let present = mesh.store().save();
        let changes = |group: &str| [ask::read(group, 2), ask::clear(group, 2), ask::hide(group, &[2])];
        // The store fails over to a copy from before the creation, which then catches up.
        mesh.store().restore(copy);
        for asked in changes(&group) {
            assert_eq!(bob.refused(asked), Code::NotYet);
        }
        assert_eq!(ann.refused(ask::recall(&group, 2)), Code::NotYet);
        mesh.store().restore(present);
        for asked in changes("g:none").into_iter().chain([ask::recall("g:none", 2)]) {
            assert_eq!(bob.refused(asked), Code::NotAMember);
        }
        changes(&group).into_iter().for_each(|asked| bob.expect_done(asked));
    }
}

#[test]
fn recall_that_only_waited_is_not_reported_as_in_doubt() {
    const CONVERSATION: &str = "d:ann:bob";
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    assert_eq!(ann.text("bob", "m1", "before"), 1);
    let gate = Gate::new();
    mesh.node(0).store.plan("archive", Fault::Hold(gate.clone()));
    assert_eq!(ann.text("bob", "m2", "ahead"), 2);
    eventually("the archive has begun", || (gate.reached() == 1).then_some(()));
    let mut recalls = [0, 1].map(|nth| mesh.login(nth, Wire::Tcp, "ann", &format!("tablet-{nth}")));
    let asked = recalls.each_mut().map(|client| client.say(ask::recall(CONVERSATION, 2)));
    for (client, asked) in recalls.iter_mut().zip(asked) {
        assert_eq!(client.expect_error(asked), Code::StoreUnavailable);
    }
    gate.open();
    match eventually("the message is archived", || match recalls[0].ask(ask::recall(CONVERSATION, 2)) {
        ServerBody::Error(error) if error.temporary => None,
        said => Some(said),
    }) {
        ServerBody::SendAck(ack) => {
            assert_eq!((ack.seq, ack.duplicate), (3, false), "this recall is the first")
        }
        other => panic!("{other:?}"),
    }
}
