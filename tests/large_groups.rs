//! Large groups on nodes of one process with memory ports: one record per node, exact members, and no silent loss.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

#[path = "support/mesh.rs"]
mod mesh;

use std::sync::Arc;

use mesh::Mesh;
use support::{Client, ServerBody, ask, eventually, send, text_of};
use tidegate::{
    fault::{Fault, Gate},
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{codec::Wire, pb};

/// Returns a mesh whose first node owns the log; groups of more than four members are large.
fn mesh() -> Mesh {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    Mesh::start(3, &numbers)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("u{n}")).collect()
}

/// Creates a group `g:big` of `members`, and logs the first `online` of them in on the nodes in turn.
fn large_group(mesh: &Mesh, members: usize, online: usize) -> Vec<Client> {
    // A member who logs in at once may get the creation as a push. Each node gets a change of another group after it,
    // and so has both by then.
    let scouts = ["s0", "s1", "s2"];
    let mut scout_clients: Vec<Client> =
        (0..3).map(|nth| mesh.login(nth, Wire::Tcp, scouts[nth], "phone")).collect();
    let names = names(members);
    mesh.group("big", &names.iter().map(String::as_str).collect::<Vec<_>>());
    mesh.group("scouts", &[&scouts[..], &["s3", "s4"]].concat());
    scout_clients.iter_mut().for_each(|scout| drop(scout.expect_push()));
    // The nodes have nothing more to declare for them.
    eventually("their nodes have declared interest", || {
        (mesh.interested("g:scouts") == ["n1", "n2", "n3"]).then_some(())
    });
    (0..online).map(|n| mesh.login(n % 3, Wire::ALL[n % 4], &names[n], "phone")).collect()
}

fn kind(push: &pb::Push) -> Option<pb::MemberChange> {
    push.event.as_ref().and_then(|event| pb::MemberChange::try_from(event.change).ok())
}

/// Sends a text under an id derived from it.
fn send_text(client: &mut Client, text: &str) -> u64 {
    client.text("g:big", &text.replace(' ', "-"), text)
}

/// Returns the text of a push, or an empty one for an event.
fn text_or_empty(push: &pb::Push) -> &str {
    if push.content.is_some() { text_of(push) } else { "" }
}

/// Receives pushes up to the one with that text.
fn up_to(client: &mut Client, text: &str) -> Vec<pb::Push> {
    let mut all = Vec::new();
    loop {
        all.push(client.expect_push());
        if text_or_empty(&all[all.len() - 1]) == text {
            return all;
        }
    }
}

#[test]
fn large_group_reaches_all_nodes_once_without_member_reads() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 9, 9);
    let mut outsider = mesh.login(2, Wire::Tcp, "outsider", "phone");
    assert_eq!(mesh.interested("g:big"), ["n1", "n2", "n3"]);
    for round in 0..3 {
        for sender in 0..9 {
            let text = format!("{round} of {sender}");
            let seq = members[sender].text("g:big", &format!("m{round}"), &text);
            for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != sender) {
                let push = member.expect_push();
                assert_eq!((push.seq, text_or_empty(&push)), (seq, text.as_str()), "u{n}");
            }
        }
    }
    members.iter_mut().chain([&mut outsider]).for_each(Client::no_push);
    for nth in 0..3 {
        assert_eq!(mesh.node(nth).store.calls("members"), 0, "n{} has read a membership", nth + 1);
    }
}

#[test]
fn removed_member_gets_nothing_until_it_joins_again() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 8, 6);
    for round in 0..6 {
        let (out, text) = (1 + round % 5, |part: &str| format!("{part} {round}"));
        let out_name = format!("u{out}");
        // Messages on both sides of a change, without waiting for their pushes.
        for (part, change) in [("a", Some("kick")), ("b", Some("join")), ("c", None)] {
            send_text(&mut members[0], &text(part));
            match change {
                Some("kick") => mesh.kick("big", &[&out_name]),
                Some(_) => mesh.join("big", &[&out_name]),
                None => {}
            }
        }
        for (n, member) in members.iter_mut().enumerate().skip(1) {
            let received = up_to(member, &text("c"));
            let seen_pushes: Vec<_> =
                received.iter().map(|push| (kind(push), text_or_empty(push).to_owned())).collect();
            let all = [
                (None, text("a")),
                (Some(pb::MemberChange::Kicked), String::new()),
                (None, text("b")),
                (Some(pb::MemberChange::Joined), String::new()),
                (None, text("c")),
            ];
            let expected: Vec<_> =
                all.into_iter().filter(|it| n != out || *it != (None, text("b"))).collect();
            assert_eq!(seen_pushes, expected, "u{n} in round {round}");
            assert!(received.is_sorted_by(|a, b| a.seq < b.seq));
        }
        // The removed member gets both changes, too.
        assert_eq!(members[0].pushes(2).len(), 2);
    }
    members.iter_mut().for_each(Client::no_push);
}

#[test]
fn node_that_missed_a_removal_reads_it_before_its_next_push() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 8, 6);
    members[0].text("g:big", "m1", "before");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "before")));
    // The other nodes get the removal of u1, on the second, and of u3, on the first, neither by their topics nor over
    // the link.
    for (plan, method) in [(&mesh.node(0).bus, "publish_node"), (&mesh.node(0).link, "send_best_effort")] {
        (0..2).for_each(|_| plan.plan(method, Fault::Fail));
    }
    mesh.kick("big", &["u1", "u3"]);
    eventually("the link was used", || (mesh.node(0).link.calls("send_best_effort") >= 2).then_some(()));
    let seq = members[0].text("g:big", "m2", "after");
    for n in [2, 4, 5] {
        let received = up_to(&mut members[n], "after");
        assert_eq!(received[received.len() - 1].seq, seq, "u{n}");
    }
    assert_eq!(
        kind(&members[3].expect_push()),
        Some(pb::MemberChange::Kicked),
        "the node of the removed member had the change"
    );
    // A push to the removed members would have arrived by now: others get one more on the same node.
    members[0].text("g:big", "m3", "later");
    for n in [2, 4, 5] {
        up_to(&mut members[n], "later");
    }
    members[1].no_push();
    members[3].no_push();
}

#[test]
fn group_crossing_the_size_limit_loses_and_leaks_nothing() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 4, 3);
    let (mut late, mut received) = (Vec::new(), vec![Vec::new(); 3]);
    for round in 0..3 {
        let text = |part: &str| format!("{part} {round}");
        let newcomers: Vec<String> = ["x", "y"].iter().map(|name| format!("{name}{round}")).collect();
        let newcomers: Vec<&str> = newcomers.iter().map(String::as_str).collect();
        late.push(mesh.login(1 + round % 2, Wire::Tcp, newcomers[0], "phone"));
        send_text(&mut members[0], &text("small"));
        mesh.join("big", &newcomers);
        send_text(&mut members[0], &text("large"));
        mesh.kick("big", &newcomers);
        send_text(&mut members[0], &text("again"));
        for (member, received) in members.iter_mut().zip(&mut received).skip(1) {
            // A push of the small group may arrive after one of the large: they take different paths.
            for push in member.pushes(5) {
                member.ack("g:big", push.seq);
                received.push((push.seq, text_or_empty(&push).to_owned()));
            }
        }
        // The removed user's last push, its removal, takes the path of a small group.
        let newcomer = &mut late[round];
        let mut seen_pushes: Vec<_> =
            newcomer.pushes(3).iter().map(|push| (push.seq, text_or_empty(push).to_owned())).collect();
        seen_pushes.sort();
        let texts: Vec<&str> = seen_pushes.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["", &text("large"), ""], "round {round}");
        newcomer.ack("g:big", seen_pushes[2].0);
    }
    for received in &mut received[1..] {
        received.sort();
        let seqs: Vec<u64> = received.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, (2..=16).collect::<Vec<u64>>());
    }
    late.iter_mut().for_each(Client::no_push);
}

#[test]
fn login_during_the_declaration_of_interest_misses_nothing() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 1);
    let gate = Gate::new();
    mesh.node(1).routes.plan("declare", Fault::Hold(gate.clone()));
    let mut late = std::thread::scope(|scope| {
        let late = scope.spawn(|| mesh.login(1, Wire::Tcp, "u1", "phone"));
        eventually("it waits", || (gate.reached() == 1).then_some(()));
        // Its node gets these records, and has no member.
        (0..3).for_each(|n| {
            send_text(&mut members[0], &format!("while it waits {n}"));
        });
        gate.open();
        late.join().unwrap()
    });
    let state = late.state("g:big");
    assert_eq!(state.max_seq, 4, "messages from before its Welcome are in its sync");
    let seq = members[0].text("g:big", "m9", "after");
    let last = up_to(&mut late, "after").pop().unwrap();
    assert_eq!(last.seq, seq);
}

#[test]
fn refusing_topic_is_replaced_by_the_link() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 6);
    (0..40).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Fail));
    let ids: Vec<u64> =
        (0..5).map(|n| members[1].say(ask::send(send("g:big", &format!("m{n}"), &n.to_string())))).collect();
    ids.into_iter().for_each(|id| drop(members[1].expect_ack(id)));
    for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != 1) {
        let received: Vec<String> =
            member.pushes(5).iter().map(|push| text_or_empty(push).to_owned()).collect();
        assert_eq!(received, ["0", "1", "2", "3", "4"], "u{n}");
    }
}

#[test]
fn records_lost_on_a_node_topic_are_reported_as_behind() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 3);
    members[0].text("g:big", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    // More records than their topics hold wait for them at once.
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    members[0].text("g:big", "held", "held");
    eventually("both readers are held", || (gate.reached() == 2).then_some(()));
    let last = (0..60).map(|n| members[0].text("g:big", &format!("m{n}"), "lost, some of it")).max().unwrap();
    gate.open();
    for member in &mut members[1..] {
        let hint =
            |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Behind(it)) if it.max_seq > 3);
        member.take("Behind", hint);
        let page = member.page(ask::after("g:big", 0, 1_000));
        assert_eq!(page.messages.len() as u64, last, "all messages can be pulled");
    }
    members[0].text("g:big", "next", "next");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "next")));
}

#[test]
fn lost_interest_is_declared_again() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 3);
    mesh.lose_routes();
    eventually("all nodes have declared interest again", || {
        (mesh.interested("g:big") == ["n1", "n2", "n3"]).then_some(())
    });
    members[0].text("g:big", "m", "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

/// Makes the other nodes miss the next records of the first one, both by their topics and over the link.
fn disconnect_others(mesh: &Mesh) -> u64 {
    for (plan, method) in [(&mesh.node(0).bus, "publish_node"), (&mesh.node(0).link, "send_best_effort")] {
        (0..2).for_each(|_| plan.plan(method, Fault::Fail));
    }
    mesh.node(0).link.calls("send_best_effort") + 2
}

fn expect_behind(member: &mut Client, seq: u64) {
    let is_hint =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(ServerBody::Behind(it)) if it.max_seq >= seq);
    member.take("Behind", is_hint);
}

fn all_interested(mesh: &Mesh) {
    eventually("all nodes have declared interest", || {
        (mesh.interested("g:big") == ["n1", "n2", "n3"]).then_some(())
    });
}

#[test]
fn loss_before_a_membership_change_is_reported_with_it() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 3);
    members[0].text("g:big", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    for round in 0..3 {
        let tried = disconnect_others(&mesh);
        let lost = send_text(&mut members[0], &format!("lost {round}"));
        eventually("the link was used", || {
            (mesh.node(0).link.calls("send_best_effort") >= tried).then_some(())
        });
        mesh.join("big", &[&format!("late{round}")]);
        members[1..].iter_mut().for_each(|member| expect_behind(member, lost));
    }
}

#[test]
fn node_that_missed_a_group_becoming_large_catches_up() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 4, 3);
    let tried = disconnect_others(&mesh);
    mesh.join("big", &["x"]);
    eventually("the link was used", || (mesh.node(0).link.calls("send_best_effort") >= tried).then_some(()));
    // No message follows: a hint of the loss is all that arrives.
    all_interested(&mesh);
    members[1..].iter_mut().for_each(|member| expect_behind(member, 2));
    send_text(&mut members[0], "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

#[test]
fn gap_over_a_group_becoming_large_triggers_a_check() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 4, 3);
    let names = names(6);
    mesh.group("other", &names.iter().map(String::as_str).collect::<Vec<_>>());
    members[0].text("g:other", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    members[0].text("g:other", "held", "held");
    eventually("both readers are held", || (gate.reached() == 2).then_some(()));
    mesh.join("big", &["x"]);
    // More records than their topics hold.
    for n in 0..60 {
        members[0].text("g:other", &format!("m{n}"), "lost, some of it");
    }
    gate.open();
    all_interested(&mesh);
    send_text(&mut members[0], "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

#[test]
fn member_joining_on_an_undiscovered_node_gets_the_change() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 2);
    let mut late = mesh.login(2, Wire::Tcp, "late", "phone");
    mesh.limit_peers(0, &[1]);
    mesh.join("big", &["late"]);
    send_text(&mut members[0], "pushed to the discovered node");
    up_to(&mut members[1], "pushed to the discovered node");
    mesh.set_peers(false, 0);
    let push = late.expect_push();
    assert_eq!((kind(&push), push.seq), (Some(pb::MemberChange::Joined), 2));
}

#[test]
fn stalled_node_topics_delay_no_ack_and_keep_the_order() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 6);
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    let said: Vec<String> = (0..8).map(|n| format!("still {n}")).collect();
    let of = |pushes: Vec<pb::Push>| -> Vec<String> {
        pushes.iter().map(|it| text_or_empty(it).to_owned()).collect()
    };
    // From a node that does not own the log: its acks travel over the link.
    for text in &said {
        send_text(&mut members[1], text);
    }
    for n in [0, 3] {
        assert_eq!(of(members[n].pushes(8)), said, "u{n} is on the owner's node");
    }
    gate.open();
    for n in [2, 4, 5] {
        assert_eq!(of(members[n].pushes(8)), said, "u{n}");
    }
    members.iter_mut().for_each(Client::no_push);
}

#[test]
fn stalled_log_refuses_sends_and_publishes_accepted_ones_once() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 3);
    mesh.node(1).bus.plan("append", Fault::Fail);
    let code = members[1].refused(ask::send(send("g:big", "m1", "refused for now")));
    assert!(code.temporary(), "{code:?}");
    // The owner can't read the log; the node topics work.
    (0..4).for_each(|_| mesh.node(0).bus.plan("read", Fault::Fail));
    let reads = mesh.node(0).bus.calls("read");
    let seq = members[1].text("g:big", "m1", "again");
    eventually("the owner's reads failed", || (mesh.node(0).bus.calls("read") >= reads + 5).then_some(()));
    for n in [0, 2] {
        let push = members[n].expect_push();
        assert_eq!((push.seq, text_or_empty(&push)), (seq, "again"), "u{n}");
    }
    send_text(&mut members[0], "next");
    members[1..].iter_mut().for_each(|member| assert_eq!(text_or_empty(&member.expect_push()), "next"));
    members.iter_mut().for_each(Client::no_push);
}

#[test]
fn topic_not_read_for_a_while_triggers_a_check() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 6, 3);
    send_text(&mut members[0], "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    let taken = mesh.take_topic(1);
    let missed = send_text(&mut members[0], "missed");
    assert_eq!(text_or_empty(&members[2].expect_push()), "missed", "the other node's feed continues");
    members[1].take("a push or a hint", |frame| match &frame.body {
        Some(ServerBody::Push(push)) => push.seq >= missed,
        Some(ServerBody::Behind(behind)) => behind.max_seq >= missed,
        _ => false,
    });
    drop(taken);
    send_text(&mut members[0], "after");
    up_to(&mut members[1], "after");
}

/// More members than are read in the subscriber task.
fn three_thousand_join(mesh: &Mesh) {
    for thousand in 0..3 {
        let names: Vec<String> = (0..1_000).map(|n| format!("x{thousand}-{n}")).collect();
        mesh.join("big", &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn login_does_not_wait_for_a_read_of_a_very_large_group() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 4, 3);
    let (topics, gate) = (Gate::new(), Gate::new());
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(topics.clone())));
    // The group is large by the time the other nodes learn of it.
    three_thousand_join(&mesh);
    (0..2).for_each(|_| mesh.node(1).store.plan("members", Fault::None));
    mesh.node(1).store.plan("members", Fault::Hold(gate.clone()));
    topics.open();
    eventually("the second node reads the members", || (gate.reached() == 1).then_some(()));
    let mut late = mesh.login(1, Wire::Tcp, "x2-999", "phone");
    let seq = send_text(&mut members[0], "meanwhile");
    expect_behind(&mut members[1], seq);
    gate.open();
    // A push before the members are read is replaced by a hint.
    let (mut count, (first, rest)) = (0, members.split_at_mut(1));
    for member in [&mut rest[0], &mut late] {
        eventually("the push is repeated", || {
            count += 1;
            let seq = send_text(&mut first[0], &format!("after {count}"));
            let received = member.take("a push or a hint", |frame| match &frame.body {
                Some(ServerBody::Push(push)) => push.seq >= seq,
                Some(ServerBody::Behind(behind)) => behind.max_seq >= seq,
                _ => false,
            });
            matches!(received.body, Some(ServerBody::Push(_))).then_some(())
        });
    }
}

#[test]
fn failed_read_of_a_very_large_group_is_repeated() {
    let mesh = mesh();
    let mut members = large_group(&mesh, 4, 3);
    let topics = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(topics.clone())));
    three_thousand_join(&mesh);
    let store = Arc::clone(&mesh.node(1).store);
    (0..2).for_each(|_| store.plan("members", Fault::None));
    store.plan("members", Fault::Fail);
    let before = store.calls("members");
    topics.open();
    // Two pages in the subscriber task, and the one that fails; then all four in the background, from the first on.
    eventually("the members are read again", || (store.calls("members") >= before + 3 + 2 + 4).then_some(()));
    let mut count = 0;
    eventually("the push is repeated", || {
        count += 1;
        let seq = send_text(&mut members[0], &format!("after {count}"));
        let received = members[1].take("a push or a hint", |frame| match &frame.body {
            Some(ServerBody::Push(push)) => push.seq >= seq,
            Some(ServerBody::Behind(behind)) => behind.max_seq >= seq,
            _ => false,
        });
        matches!(received.body, Some(ServerBody::Push(_))).then_some(())
    });
}
