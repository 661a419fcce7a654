//! Best-effort messages between nodes: live rooms, signals and marks, on nodes of one process with memory ports.

#![allow(clippy::unwrap_used)]

#[path = "best_effort/joins.rs"]
mod joins;
#[path = "best_effort/reads.rs"]
mod reads;
#[path = "best_effort/storms.rs"]
mod storms;
#[path = "support/mod.rs"]
mod support;
#[path = "best_effort/tallies.rs"]
mod tallies;
#[path = "best_effort/unarchived.rs"]
mod unarchived;

#[path = "support/mesh.rs"]
mod mesh;

use std::{
    collections::BTreeSet,
    num::NonZeroU64,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use mesh::Mesh;
use support::{Client, ServerBody, ask, eventually, send, text_of};
use tidegate::{
    fault::{Fault, Gate},
    scratch::{ClockNumbers, Numbers, ScratchError},
};
use tidegate_protocol::{Code, codec::Wire, pb};

/// Numbers from 1 for all rooms together. They can be made unavailable, and take a moment as a server does.
#[derive(Default)]
struct Counter {
    last: Mutex<u64>,
    away: AtomicBool,
}

#[async_trait]
impl Numbers for Counter {
    async fn take(&self, _: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        tokio::task::yield_now().await;
        if self.away.load(Ordering::SeqCst) {
            return Err(ScratchError::Unavailable("planned".to_owned()));
        }
        let mut last = self.last.lock().unwrap();
        *last += count.get();
        Ok(*last - count.get() + 1..=*last)
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        *self.last.lock().unwrap() += 1_000;
        Ok(())
    }
}

fn mesh(count: usize) -> (Mesh, Arc<Counter>) {
    let counter = Arc::new(Counter::default());
    let numbers: Arc<dyn Numbers> = counter.clone();
    (Mesh::start(count, &numbers), counter)
}

/// Asserts that nothing arrives until the nodes have done their requests.
fn assert_silent(clients: &mut [&mut Client]) {
    for client in clients {
        // Volatile frames are sent at the end of a turn, which is after the first pong.
        client.settle();
        client.settle();
        let received = client.inbox.iter().find(|frame| match &frame.body {
            // The creation of a large group goes over the node topics, and may arrive after a login.
            Some(ServerBody::Push(push)) => {
                push.event.as_ref().is_none_or(|event| event.change() != pb::MemberChange::Created)
            }
            Some(ServerBody::Signal(_) | ServerBody::Receipt(_) | ServerBody::Cleared(_)) => true,
            _ => false,
        });
        assert!(received.is_none(), "unexpected: {received:?}");
    }
}

/// Receives pushes until the one with that text.
fn expect_text(client: &mut Client, text: &str) -> pb::Push {
    let is_it = |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Push(push)) if text_of(push) == text);
    match client.take(text, is_it).body {
        Some(ServerBody::Push(push)) => push,
        other => panic!("{other:?}"),
    }
}

#[test]
fn room_message_reaches_all_nodes_once_except_its_sender() {
    let (mesh, _) = mesh(3);
    let mut members: Vec<Client> =
        (0..6).map(|n| mesh.login(n % 3, Wire::ALL[n % 4], &format!("u{n}"), "phone")).collect();
    let mut outsider = mesh.login(1, Wire::Tcp, "outsider", "phone");
    members.iter_mut().for_each(|member| member.expect_done(ask::join("hall")));
    let mut numbers = BTreeSet::new();
    for round in 0..3 {
        for sender in 0..6 {
            let text = format!("{round} of {sender}");
            let ack = members[sender].send(send("r:hall", &format!("m{round}"), &text));
            assert!(numbers.insert(ack.seq), "{} was assigned before", ack.seq);
            for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != sender) {
                let push = member.expect_push();
                assert_eq!((push.seq, text_of(&push)), (ack.seq, text.as_str()), "member {n}");
                assert_eq!((push.sender, push.msg_id), (format!("u{sender}"), format!("m{round}")));
            }
        }
    }
    assert_silent(&mut members.iter_mut().chain([&mut outsider]).collect::<Vec<_>>());
    // A user who left gets nothing on any node; its node is not asked after its interest has expired.
    members[1].expect_done(ask::leave("hall"));
    members[0].text("r:hall", "last", "without you");
    assert_eq!(text_of(&members[4].expect_push()), "without you");
    assert_silent(&mut [&mut members[1]]);
}

#[test]
fn room_burst_of_one_sender_keeps_its_order_everywhere() {
    let (mesh, _) = mesh(2);
    let (mut speaker, mut here, mut there) = (
        mesh.login(0, Wire::Tcp, "speaker", "phone"),
        mesh.login(0, Wire::Tcp, "here", "phone"),
        mesh.login(1, Wire::WsText, "there", "phone"),
    );
    [&mut speaker, &mut here, &mut there].into_iter().for_each(|it| it.expect_done(ask::join("hall")));
    let ids: Vec<u64> =
        (0..300).map(|n| speaker.say(ask::send(send("r:hall", &format!("m{n}"), &n.to_string())))).collect();
    let numbers: Vec<u64> = ids.into_iter().map(|id| speaker.expect_ack(id).seq).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for listener in [&mut here, &mut there] {
        let received: Vec<(u64, String)> =
            listener.pushes(300).iter().map(|push| (push.seq, text_of(push).to_owned())).collect();
        let said: Vec<_> = numbers.iter().zip(0..).map(|(seq, n)| (*seq, n.to_string())).collect();
        assert_eq!(received, said);
    }
}

#[test]
fn room_survives_a_routes_outage_and_refuses_without_numbers() {
    let (mesh, counter) = mesh(2);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    // Neither joining nor sending waits for unavailable routes: all peers get the message then.
    mesh.node(1).routes.plan("declare", Fault::Fail);
    mesh.node(0).routes.plan("interested", Fault::Fail);
    ann.expect_done(ask::join("hall"));
    bob.expect_done(ask::join("hall"));
    ann.text("r:hall", "m1", "to the members");
    expect_text(&mut bob, "to the members");
    // The routes list the interest soon after.
    eventually("the routes list bob's node", || {
        ann.text("r:hall", "m2", "are you there?");
        bob.settle();
        // A notice that messages may be missing comes, too.
        bob.inbox.drain(..).find(|frame| matches!(frame.body, Some(ServerBody::Push(_))))
    });
    mesh.set_peers(true, 0);
    ann.text("r:hall", "m3", "in doubt, everybody");
    expect_text(&mut bob, "in doubt, everybody");
    counter.away.store(true, Ordering::SeqCst);
    assert_eq!(ann.refused(ask::send(send("r:hall", "m4", "refused"))), Code::StoreUnavailable);
    counter.away.store(false, Ordering::SeqCst);
    let before = ann.text("r:hall", "m5", "again");
    expect_text(&mut bob, "again");
    let refused =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Push(push)) if push.msg_id == "m4");
    assert!(!bob.inbox.iter().any(refused), "a refused message is not delivered");
    // After a loss that the nodes notice, no earlier number is given again.
    mesh.set_peers(true, 1);
    eventually("the numbers are above the lost ones", || {
        (ann.text("r:hall", "m6", "x") > before + 1_000).then_some(())
    });
}

#[test]
fn room_messages_that_a_peer_refuses_are_reported_as_shed() {
    let (mesh, _) = mesh(2);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    ann.expect_done(ask::join("hall"));
    bob.expect_done(ask::join("hall"));
    // A node of an older version does the same.
    for _ in 0..2 {
        mesh.node(0).link.plan("send_best_effort", Fault::Fail);
    }
    ann.text("r:hall", "m1", "lost");
    assert_eq!(ann.text("bob", "d1", "a message is a message"), 1);
    assert_eq!(text_of(&bob.expect_push()), "a message is a message");
    let shed = bob.take("what was lost", |frame| matches!(frame.body, Some(ServerBody::Shed(_))));
    let expected = pb::Shed { room: "hall".into(), count: 1 };
    assert_eq!(shed.body, Some(ServerBody::Shed(expected)));
    ann.text("r:hall", "m2", "heard");
    assert_eq!(text_of(&bob.expect_push()), "heard");
}

#[test]
fn signals_reach_members_on_other_nodes_only() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let tea = mesh.group("tea", &["ann", "bob", "cid"]);
    let large = mesh.group("large", &["ann", "bob", "cid", "dan", "eve"]);
    let (mut phone, mut desk) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::WsText, "ann", "desk"));
    let (mut bob, mut cid) =
        (mesh.login(1, Wire::JsonLine, "bob", "phone"), mesh.login(0, Wire::WsBinary, "cid", "phone"));
    let (mut dan, mut eve) =
        (mesh.login(1, Wire::Tcp, "dan", "phone"), mesh.login(1, Wire::Tcp, "eve", "phone"));
    phone.expect_done(ask::signal("bob", "typing", "half a w"));
    for client in [&mut bob, &mut desk] {
        let received = client.expect_signal();
        assert_eq!((received.sender.as_str(), received.conversation.as_str()), ("ann", "d:ann:bob"));
        assert_eq!(received.content, Some(tidegate_protocol::content::Content::text("half a w")));
    }
    assert_silent(&mut [&mut phone, &mut cid, &mut dan, &mut eve]);
    phone.expect_done(ask::signal(&tea, "typing", ""));
    for client in [&mut bob, &mut cid, &mut desk] {
        assert_eq!(client.expect_signal().conversation, tea);
    }
    assert_silent(&mut [&mut phone, &mut dan, &mut eve]);
    assert_eq!(phone.refused(ask::signal(&large, "typing", "")), Code::Forbidden);
    assert_eq!(eve.refused(ask::signal(&tea, "typing", "")), Code::NotAMember);
    // The routes find no recipient: all peers are asked, and the recipient still gets the signal.
    mesh.node(0).routes.plan("lookup", Fault::Fail);
    phone.expect_done(ask::signal("bob", "again", ""));
    assert_eq!((bob.expect_signal().kind, desk.expect_signal().kind), ("again".into(), "again".into()));
    assert_silent(&mut [&mut dan, &mut eve]);
}

#[test]
fn x21_group_signal_goes_to_the_nodes_of_its_members_only() {
    let (mesh, _) = mesh(4);
    let tea = mesh.group("tea", &["ann", "bob", "cid"]);
    let (mut ann, mut bob, mut dan) = (
        mesh.login(0, Wire::Tcp, "ann", "phone"),
        mesh.login(1, Wire::Tcp, "bob", "phone"),
        mesh.login(2, Wire::Tcp, "dan", "phone"),
    );
    let calls = || mesh.node(0).link.calls("send_best_effort");
    let before = calls();
    for n in 1..=5 {
        ann.expect_done(ask::signal(&tea, "typing", ""));
        assert_eq!(bob.expect_signal().conversation, tea);
        assert_eq!(calls() - before, n, "only the node of bob is called");
    }
    // While the routes may be incomplete, all of them are, and still only members get the signal.
    mesh.set_peers(true, 0);
    ann.expect_done(ask::signal(&tea, "typing", ""));
    assert_eq!(bob.expect_signal().conversation, tea);
    eventually("all nodes are called", || (calls() - before == 5 + 3).then_some(()));
    assert_silent(&mut [&mut ann, &mut dan]);
}

#[test]
fn removed_member_gets_no_signal_on_an_outdated_node() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let tea = mesh.group("tea", &["ann", "bob", "cid"]);
    let (mut ann, mut bob, mut cid) = (
        mesh.login(0, Wire::Tcp, "ann", "phone"),
        mesh.login(1, Wire::Tcp, "bob", "phone"),
        mesh.login(1, Wire::Tcp, "cid", "phone"),
    );
    // Fails all attempts of the peer queue: the indexes of bob's node stay unchanged.
    for _ in 0..3 {
        mesh.node(0).link.plan("deliver", Fault::Fail);
    }
    mesh.kick("tea", &["bob"]);
    assert_eq!(ann.expect_push().event.expect("the kick").users, ["bob"]);
    ann.expect_done(ask::signal(&tea, "typing", ""));
    assert_eq!(cid.expect_signal().conversation, tea);
    assert_silent(&mut [&mut bob]);
    assert_eq!(bob.refused(ask::signal(&tea, "typing", "")), Code::NotAMember);
    assert_silent(&mut [&mut ann, &mut cid]);
}

/// Flaws S1, S2: a replaced session is notified once, whatever happens to its successor.
#[test]
fn session_is_replaced_when_the_routes_reply_is_lost() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let mut old = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut desk = mesh.login(0, Wire::Tcp, "ann", "desk");
    // The second attempt finds its own first row, not the session that the first replaced.
    mesh.node(1).routes.plan("register", Fault::LoseAnswer);
    let mut new = mesh.login(1, Wire::Tcp, "ann", "phone");
    assert_eq!(old.expect_close(), Code::Replaced);
    assert_eq!(mesh.nodes_of("ann"), ["n1", "n2"]);
    assert_silent(&mut [&mut desk, &mut new]);
}

/// Flaws S1, S2, S3: the client does not connect again.
#[test]
fn login_with_lost_replies_leaves_no_row_or_old_session() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    for (user, nth) in [("ann", 0), ("bob", 1)] {
        let mut old = mesh.login(nth, Wire::Tcp, user, "phone");
        let mut desk = mesh.login(nth, Wire::Tcp, user, "desk");
        // All attempts lose their reply, and so does the first attempt to remove the row.
        (0..100).for_each(|_| mesh.node(1).routes.plan("register", Fault::LoseAnswer));
        mesh.node(1).routes.plan("remove", Fault::Fail);
        let mut refused = mesh.hello(1, Wire::Tcp, user, "phone");
        assert_eq!(refused.expect_close(), Code::Overloaded);
        mesh.node(1).routes.forget("register");
        assert_eq!(old.expect_close(), Code::Replaced);
        let here = format!("n{}", nth + 1);
        eventually("its row is removed", || (mesh.nodes_of(user) == [here.as_str()]).then_some(()));
        assert_silent(&mut [&mut desk]);
    }
}

#[test]
fn session_is_replaced_when_its_successor_closes_early() {
    let mesh = Mesh::start(1, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let mut old = mesh.login(0, Wire::Tcp, "ann", "phone");
    let gate = Gate::new();
    mesh.node(0).routes.plan("register", Fault::HoldAnswer(gate.clone()));
    let new = mesh.hello(0, Wire::Tcp, "ann", "phone");
    eventually("the route is registered", || (gate.reached() == 1).then_some(()));
    drop(new);
    eventually("the connection is closed", || (mesh.node(0).conns() == 1).then_some(()));
    gate.open();
    assert_eq!(old.expect_close(), Code::Replaced);
}

#[test]
fn marks_clears_and_hides_reach_the_users_devices_elsewhere() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let (mut phone, mut desk) =
        (mesh.login(0, Wire::Tcp, "bob", "phone"), mesh.login(1, Wire::WsText, "bob", "desk"));
    let mut cid = mesh.login(1, Wire::Tcp, "cid", "phone");
    for n in 1..=6 {
        assert_eq!(ann.text("bob", &format!("m{n}"), "text"), n);
        assert_eq!((phone.expect_push().seq, desk.expect_push().seq), (n, n));
    }
    let place = "d:ann:bob";
    phone.expect_done(ask::read(place, 4));
    let receipt = pb::Receipt { conversation: place.into(), user: "bob".into(), seq: 4 };
    assert_eq!(desk.expect_receipt(), receipt);
    desk.expect_done(ask::clear(place, 2));
    let cleared = phone.take("the clear", |frame| matches!(frame.body, Some(ServerBody::Cleared(_))));
    assert_eq!(cleared.body, Some(ServerBody::Cleared(pb::Cleared { conversation: place.into(), seq: 2 })));
    phone.expect_done(ask::hide(place, &[5]));
    let hidden = desk.take("the hide", |frame| matches!(frame.body, Some(ServerBody::Hidden(_))));
    assert_eq!(
        hidden.body,
        Some(ServerBody::Hidden(pb::Hidden { conversation: place.into(), seqs: vec![5] }))
    );
    // Lost on the link, the mark is still in the store.
    mesh.node(0).link.plan("send_best_effort", Fault::Fail);
    phone.expect_done(ask::read(place, 6));
    assert_eq!(desk.state(place).read_seq, 6);
    assert_silent(&mut [&mut ann, &mut cid]);
}

#[test]
fn new_member_on_an_outdated_node_sends_and_gets_signals() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let (mut bob, mut eve) =
        (mesh.login(1, Wire::Tcp, "bob", "phone"), mesh.login(1, Wire::Tcp, "eve", "phone"));
    // Fails all attempts of the owner to notify n2 of the group.
    (0..3).for_each(|_| mesh.node(0).link.plan("deliver", Fault::Fail));
    let group = mesh.group("tea", &["ann", "bob"]);
    assert_eq!(ann.expect_push().seq, 1, "the creation");
    eventually("all notifications of n2 failed", || (mesh.node(0).link.calls("deliver") >= 3).then_some(()));
    assert_silent(&mut [&mut bob]);
    bob.expect_done(ask::signal(&group, "typing", ""));
    assert_eq!(ann.expect_signal().sender, "bob");
    ann.expect_done(ask::signal(&group, "typing", ""));
    assert_eq!(bob.expect_signal().sender, "ann");
    assert_eq!(eve.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
    assert_eq!(eve.refused(ask::signal("g:none", "typing", "")), Code::NotAMember);
    let large = mesh.group("large", &["a", "b", "c", "d", "e"]);
    assert_eq!(eve.refused(ask::signal(&large, "typing", "")), Code::NotAMember);
    mesh.kick("tea", &["bob"]);
    bob.expect_push();
    assert_eq!(bob.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
}

#[test]
fn member_removed_during_its_membership_query_stays_removed() {
    let (mesh, _) = mesh(2);
    let group = mesh.group("tea", &["ann", "bob", "cid"]);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    let mut cid = mesh.login(1, Wire::Tcp, "cid", "phone");
    // ann's node caches what it reads now for 2 s, even if a member is removed meanwhile.
    ann.expect_done(ask::signal(&group, "typing", ""));
    for client in [&mut bob, &mut cid] {
        assert_eq!(client.expect_signal().sender, "ann");
    }
    let gate = Gate::new();
    mesh.node(1).store.plan("group_members", Fault::HoldAnswer(gate.clone()));
    let asked = bob.say(ask::signal(&group, "typing", ""));
    eventually("the store has returned his membership", || (gate.reached() == 1).then_some(()));
    mesh.kick("tea", &["bob"]);
    bob.expect_push();
    gate.open();
    assert!(matches!(bob.reply(asked), ServerBody::Error(error) if error.name == "NOT_A_MEMBER"));
    assert_eq!(bob.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
    ann.expect_push();
    cid.expect_push();
    ann.expect_done(ask::signal(&group, "typing", ""));
    assert_eq!(cid.expect_signal().sender, "ann");
    assert_silent(&mut [&mut ann, &mut bob]);
    // His node lets him signal again as soon as he is a member again.
    mesh.join("tea", &["bob"]);
    bob.expect_push();
    eventually("his signals arrive again", || {
        matches!(bob.ask(ask::signal(&group, "typing", "")), ServerBody::Done(_)).then_some(())
    });
    assert_eq!(cid.expect_signal().sender, "bob");
}
