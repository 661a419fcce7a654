//! What goes beside the log between nodes: live rooms, signals and marks, on nodes of one process with memory ports.

#![allow(clippy::unwrap_used)]

#[path = "beside/ahead.rs"]
mod ahead;
#[path = "support/mod.rs"]
mod support;

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
use support::{Client, Said, ask, eventually, send, text_of};
use tidegate::{
    fault::{Fault, Gate},
    scratch::{ClockNumbers, Numbers, ScratchError},
};
use tidegate_protocol::{
    Code,
    codec::Wire,
    pb::{self, client_frame::Body},
};

/// Numbers from 1 for all rooms together, which may be away, and take a moment as a server does.
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

fn done(client: &mut Client, body: Body) {
    assert!(matches!(client.ask(body), Said::Done(_)));
}

/// Nothing came, and nothing comes while the nodes do what they were asked.
fn nothing(clients: &mut [&mut Client]) {
    for client in clients {
        // What is volatile is told at the end of a turn: after the first pong.
        client.settle();
        client.settle();
        let heard = client.inbox.iter().find(|frame| match &frame.body {
            // That a large group was made goes by the topics of nodes, and may come after a login.
            Some(Said::Push(push)) => {
                push.event.as_ref().is_none_or(|event| event.change() != pb::MemberChange::Created)
            }
            Some(Said::Signal(_) | Said::Receipt(_) | Said::Cleared(_)) => true,
            _ => false,
        });
        assert!(heard.is_none(), "unexpected: {heard:?}");
    }
}

/// The push with that text, after whatever others.
fn hear(client: &mut Client, text: &str) -> pb::Push {
    let is_it =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(Said::Push(push)) if text_of(push) == text);
    match client.take(text, is_it).body {
        Some(Said::Push(push)) => push,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_room_is_heard_on_all_nodes_by_all_but_the_sender_and_no_number_comes_twice() {
    let (mesh, _) = mesh(3);
    let mut members: Vec<Client> =
        (0..6).map(|n| mesh.login(n % 3, Wire::ALL[n % 4], &format!("u{n}"), "phone")).collect();
    let mut outsider = mesh.login(1, Wire::Tcp, "outsider", "phone");
    members.iter_mut().for_each(|member| done(member, ask::join("hall")));
    let mut numbers = BTreeSet::new();
    for round in 0..3 {
        for sender in 0..6 {
            let text = format!("{round} of {sender}");
            let ack = members[sender].send(send("r:hall", &format!("m{round}"), &text));
            assert!(numbers.insert(ack.seq), "{} was shown before", ack.seq);
            for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != sender) {
                let push = member.expect_push();
                assert_eq!((push.seq, text_of(&push)), (ack.seq, text.as_str()), "member {n}");
                assert_eq!((push.sender, push.msg_id), (format!("u{sender}"), format!("m{round}")));
            }
        }
    }
    nothing(&mut members.iter_mut().chain([&mut outsider]).collect::<Vec<_>>());
    // Who left is told nothing, on whatever node; its node is not asked any more once its interest has lapsed.
    done(&mut members[1], ask::leave("hall"));
    members[0].text("r:hall", "last", "without you");
    assert_eq!(text_of(&members[4].expect_push()), "without you");
    nothing(&mut [&mut members[1]]);
}

#[test]
fn what_one_says_in_a_room_at_once_comes_everywhere_in_the_order_in_which_it_was_said() {
    let (mesh, _) = mesh(2);
    let (mut speaker, mut here, mut there) = (
        mesh.login(0, Wire::Tcp, "speaker", "phone"),
        mesh.login(0, Wire::Tcp, "here", "phone"),
        mesh.login(1, Wire::WsText, "there", "phone"),
    );
    [&mut speaker, &mut here, &mut there].into_iter().for_each(|it| done(it, ask::join("hall")));
    let ids: Vec<u64> =
        (0..300).map(|n| speaker.say(ask::send(send("r:hall", &format!("m{n}"), &n.to_string())))).collect();
    let numbers: Vec<u64> = ids.into_iter().map(|id| speaker.expect_ack(id).seq).collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    for listener in [&mut here, &mut there] {
        let heard: Vec<(u64, String)> =
            listener.pushes(300).iter().map(|push| (push.seq, text_of(push).to_owned())).collect();
        let said: Vec<_> = numbers.iter().zip(0..).map(|(seq, n)| (*seq, n.to_string())).collect();
        assert_eq!(heard, said);
    }
}

#[test]
fn a_room_goes_on_while_the_routes_are_away_and_refuses_while_nobody_has_a_number() {
    let (mesh, counter) = mesh(2);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    // Neither joining nor saying waits for routes that are away: all peers are told then.
    mesh.node(1).routes.plan("declare", Fault::Fail);
    mesh.node(0).routes.plan("interested", Fault::Fail);
    done(&mut ann, ask::join("hall"));
    done(&mut bob, ask::join("hall"));
    ann.text("r:hall", "m1", "to whoever is there");
    hear(&mut bob, "to whoever is there");
    // Soon the routes know.
    eventually("bob's node is told of", || {
        ann.text("r:hall", "m2", "are you there?");
        bob.settle();
        // A notice that messages may be missing comes, too.
        bob.inbox.drain(..).find(|frame| matches!(frame.body, Some(Said::Push(_))))
    });
    mesh.introduce(true, 0);
    ann.text("r:hall", "m3", "in doubt, everybody");
    hear(&mut bob, "in doubt, everybody");
    counter.away.store(true, Ordering::SeqCst);
    assert_eq!(ann.refused(ask::send(send("r:hall", "m4", "refused"))), Code::StoreUnavailable);
    counter.away.store(false, Ordering::SeqCst);
    let before = ann.text("r:hall", "m5", "again");
    hear(&mut bob, "again");
    let refused =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(Said::Push(push)) if push.msg_id == "m4");
    assert!(!bob.inbox.iter().any(refused), "what was refused was not said");
    // A loss that is seen: numbers of before are not given again.
    mesh.introduce(true, 1);
    eventually("the numbers are new", || (ann.text("r:hall", "m6", "x") > before + 1_000).then_some(()));
}

#[test]
fn what_a_peer_did_not_take_is_told_as_shed_and_conversations_do_not_notice() {
    let (mesh, _) = mesh(2);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    done(&mut ann, ask::join("hall"));
    done(&mut bob, ask::join("hall"));
    // As a node of an older version does.
    for _ in 0..2 {
        mesh.node(0).link.plan("send_best_effort", Fault::Fail);
    }
    ann.text("r:hall", "m1", "lost");
    assert_eq!(ann.text("bob", "d1", "a message is a message"), 1);
    assert_eq!(text_of(&bob.expect_push()), "a message is a message");
    let shed = bob.take("what was lost", |frame| matches!(frame.body, Some(Said::Shed(_))));
    let expected = pb::Shed { room: "hall".into(), count: 1 };
    assert_eq!(shed.body, Some(Said::Shed(expected)));
    ann.text("r:hall", "m2", "heard");
    assert_eq!(text_of(&bob.expect_push()), "heard");
}

#[test]
fn signals_reach_the_devices_of_other_nodes_and_nobody_who_is_no_member() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let tea = mesh.group("tea", &["ann", "bob", "cid"]);
    let large = mesh.group("large", &["ann", "bob", "cid", "dan", "eve"]);
    let (mut phone, mut desk) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::WsText, "ann", "desk"));
    let (mut bob, mut cid) =
        (mesh.login(1, Wire::JsonLine, "bob", "phone"), mesh.login(0, Wire::WsBinary, "cid", "phone"));
    let (mut dan, mut eve) =
        (mesh.login(1, Wire::Tcp, "dan", "phone"), mesh.login(1, Wire::Tcp, "eve", "phone"));
    done(&mut phone, ask::signal("bob", "typing", "half a w"));
    for client in [&mut bob, &mut desk] {
        let heard = client.expect_signal();
        assert_eq!((heard.sender.as_str(), heard.conversation.as_str()), ("ann", "d:ann:bob"));
        assert_eq!(heard.content, Some(tidegate_protocol::content::Content::text("half a w")));
    }
    nothing(&mut [&mut phone, &mut cid, &mut dan, &mut eve]);
    done(&mut phone, ask::signal(&tea, "typing", ""));
    for client in [&mut bob, &mut cid, &mut desk] {
        assert_eq!(client.expect_signal().conversation, tea);
    }
    nothing(&mut [&mut phone, &mut dan, &mut eve]);
    assert_eq!(phone.refused(ask::signal(&large, "typing", "")), Code::Forbidden);
    assert_eq!(eve.refused(ask::signal(&tea, "typing", "")), Code::NotAMember);
    // Nobody can be found by the routes: everybody is asked, and who is meant hears it.
    mesh.node(0).routes.plan("lookup", Fault::Fail);
    done(&mut phone, ask::signal("bob", "again", ""));
    assert_eq!((bob.expect_signal().kind, desk.expect_signal().kind), ("again".into(), "again".into()));
    nothing(&mut [&mut dan, &mut eve]);
}

#[test]
fn a_removed_member_hears_no_signal_although_its_node_did_not_hear_of_the_removal() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let tea = mesh.group("tea", &["ann", "bob", "cid"]);
    let (mut ann, mut bob, mut cid) = (
        mesh.login(0, Wire::Tcp, "ann", "phone"),
        mesh.login(1, Wire::Tcp, "bob", "phone"),
        mesh.login(1, Wire::Tcp, "cid", "phone"),
    );
    // All tries of the courier: the indexes of bob's node stay as they were.
    for _ in 0..3 {
        mesh.node(0).link.plan("deliver", Fault::Fail);
    }
    mesh.kick("tea", &["bob"]);
    assert_eq!(ann.expect_push().event.expect("the kick").users, ["bob"]);
    done(&mut ann, ask::signal(&tea, "typing", ""));
    assert_eq!(cid.expect_signal().conversation, tea);
    nothing(&mut [&mut bob]);
    assert_eq!(bob.refused(ask::signal(&tea, "typing", "")), Code::NotAMember);
    nothing(&mut [&mut ann, &mut cid]);
}

/// Flaws S1, S2: who is replaced hears so once, whatever becomes of the one who replaced it.
#[test]
fn a_session_is_stopped_although_its_successor_got_no_answer_of_the_routes() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let mut old = mesh.login(0, Wire::Tcp, "ann", "phone");
    let mut desk = mesh.login(0, Wire::Tcp, "ann", "desk");
    // What it finds in its second try is its own first one, and not whom that replaced.
    mesh.node(1).routes.plan("register", Fault::LoseAnswer);
    let mut new = mesh.login(1, Wire::Tcp, "ann", "phone");
    assert_eq!(old.expect_close(), Code::Replaced);
    assert_eq!(mesh.places("ann"), ["n1", "n2"]);
    nothing(&mut [&mut desk, &mut new]);
}

/// Flaws S1, S2, S3: the client does not come again.
#[test]
fn a_login_whose_answer_was_lost_leaves_nobody_behind_neither_its_row_nor_whom_it_replaced() {
    let mesh = Mesh::start(2, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    for (user, nth) in [("ann", 0), ("bob", 1)] {
        let mut old = mesh.login(nth, Wire::Tcp, user, "phone");
        let mut desk = mesh.login(nth, Wire::Tcp, user, "desk");
        // All its tries are lost, and the first one to take a row back is as well.
        (0..100).for_each(|_| mesh.node(1).routes.plan("register", Fault::LoseAnswer));
        mesh.node(1).routes.plan("remove", Fault::Fail);
        let mut refused = mesh.hello(1, Wire::Tcp, user, "phone");
        assert_eq!(refused.expect_close(), Code::Overloaded);
        mesh.node(1).routes.forget("register");
        assert_eq!(old.expect_close(), Code::Replaced);
        let here = format!("n{}", nth + 1);
        eventually("its row is gone", || (mesh.places(user) == [here.as_str()]).then_some(()));
        nothing(&mut [&mut desk]);
    }
}

#[test]
fn a_session_is_stopped_although_its_successor_went_away_before_its_route_stood() {
    let mesh = Mesh::start(1, &(Arc::new(ClockNumbers::new(|| 1)) as Arc<dyn Numbers>));
    let mut old = mesh.login(0, Wire::Tcp, "ann", "phone");
    let gate = Gate::new();
    mesh.node(0).routes.plan("register", Fault::HoldAnswer(gate.clone()));
    let new = mesh.hello(0, Wire::Tcp, "ann", "phone");
    eventually("it is registered", || (gate.reached() == 1).then_some(()));
    drop(new);
    eventually("it is gone", || (mesh.node(0).conns() == 1).then_some(()));
    gate.open();
    assert_eq!(old.expect_close(), Code::Replaced);
}

#[test]
fn read_marks_clears_and_hides_are_heard_by_the_users_devices_on_other_nodes() {
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
    done(&mut phone, ask::read(place, 4));
    let receipt = pb::Receipt { conversation: place.into(), user: "bob".into(), seq: 4 };
    assert_eq!(desk.expect_receipt(), receipt);
    done(&mut desk, ask::clear(place, 2));
    let cleared = phone.take("the clear", |frame| matches!(frame.body, Some(Said::Cleared(_))));
    assert_eq!(cleared.body, Some(Said::Cleared(pb::Cleared { conversation: place.into(), seq: 2 })));
    done(&mut phone, ask::hide(place, &[5]));
    let hidden = desk.take("the hide", |frame| matches!(frame.body, Some(Said::Hidden(_))));
    assert_eq!(hidden.body, Some(Said::Hidden(pb::Hidden { conversation: place.into(), seqs: vec![5] })));
    // Lost on its way, it is in the store.
    mesh.node(0).link.plan("send_best_effort", Fault::Fail);
    done(&mut phone, ask::read(place, 6));
    assert_eq!(desk.state(place).read_seq, 6);
    nothing(&mut [&mut ann, &mut cid]);
}

#[test]
fn who_came_into_a_group_without_its_node_hearing_of_it_signals_and_hears_signals_all_the_same() {
    let (mesh, _) = mesh(2);
    let mut ann = mesh.login(0, Wire::Tcp, "ann", "phone");
    let (mut bob, mut eve) =
        (mesh.login(1, Wire::Tcp, "bob", "phone"), mesh.login(1, Wire::Tcp, "eve", "phone"));
    // All tries of the owner to tell n2 of the group.
    (0..3).for_each(|_| mesh.node(0).link.plan("deliver", Fault::Fail));
    let group = mesh.group("tea", &["ann", "bob"]);
    assert_eq!(ann.expect_push().seq, 1, "the creation");
    eventually("n2 was not told", || (mesh.node(0).link.calls("deliver") >= 3).then_some(()));
    nothing(&mut [&mut bob]);
    done(&mut bob, ask::signal(&group, "typing", ""));
    assert_eq!(ann.expect_signal().sender, "bob");
    done(&mut ann, ask::signal(&group, "typing", ""));
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
fn who_is_removed_while_its_node_asks_whether_it_is_a_member_stays_outside() {
    let (mesh, _) = mesh(2);
    let group = mesh.group("tea", &["ann", "bob", "cid"]);
    let (mut ann, mut bob) =
        (mesh.login(0, Wire::Tcp, "ann", "phone"), mesh.login(1, Wire::Tcp, "bob", "phone"));
    let mut cid = mesh.login(1, Wire::Tcp, "cid", "phone");
    // What ann's node reads now it believes for 2 s, whoever is removed meanwhile.
    done(&mut ann, ask::signal(&group, "typing", ""));
    for client in [&mut bob, &mut cid] {
        assert_eq!(client.expect_signal().sender, "ann");
    }
    let gate = Gate::new();
    mesh.node(1).store.plan("members", Fault::HoldAnswer(gate.clone()));
    let asked = bob.say(ask::signal(&group, "typing", ""));
    eventually("the store has said that he is a member", || (gate.reached() == 1).then_some(()));
    mesh.kick("tea", &["bob"]);
    bob.expect_push();
    gate.open();
    assert!(matches!(bob.reply(asked), Said::Error(error) if error.name == "NOT_A_MEMBER"));
    assert_eq!(bob.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
    ann.expect_push();
    cid.expect_push();
    done(&mut ann, ask::signal(&group, "typing", ""));
    assert_eq!(cid.expect_signal().sender, "ann");
    nothing(&mut [&mut ann, &mut bob]);
    // As soon as he is back his node knows.
    mesh.join("tea", &["bob"]);
    bob.expect_push();
    eventually("he signals again", || {
        matches!(bob.ask(ask::signal(&group, "typing", "")), Said::Done(_)).then_some(())
    });
    assert_eq!(cid.expect_signal().sender, "bob");
}
