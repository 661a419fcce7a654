//! Large groups on nodes of one process with memory ports: one record a node, exact members, and nothing missed in silence.

#![allow(clippy::unwrap_used)]

#[path = "support/mod.rs"]
mod support;

#[path = "support/mesh.rs"]
mod mesh;

use std::sync::Arc;

use mesh::Mesh;
use support::{Client, Said, ask, eventually, send, text_of};
use tidegate::{
    fault::{Fault, Gate},
    scratch::{ClockNumbers, Numbers},
};
use tidegate_protocol::{codec::Wire, pb};

/// The first node owns the log; groups of more than four members are large.
fn mesh() -> Mesh {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    Mesh::start(3, &numbers)
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("u{n}")).collect()
}

/// A group `g:big` of so many, and the first of them logged in on the nodes in turn.
fn crowd(mesh: &Mesh, members: usize, online: usize) -> Vec<Client> {
    // Who logs in at once may be told that the group was made. Each node hears of another group behind it, so it is told by then.
    let scouts = ["s0", "s1", "s2"];
    let mut heard: Vec<Client> = (0..3).map(|nth| mesh.login(nth, Wire::Tcp, scouts[nth], "phone")).collect();
    let names = names(members);
    mesh.group("big", &names.iter().map(String::as_str).collect::<Vec<_>>());
    mesh.group("scouts", &[&scouts[..], &["s3", "s4"]].concat());
    heard.iter_mut().for_each(|scout| drop(scout.expect_push()));
    // Nothing more is to be declared for them.
    eventually("their nodes have said so", || {
        (mesh.interested("g:scouts") == ["n1", "n2", "n3"]).then_some(())
    });
    (0..online).map(|n| mesh.login(n % 3, Wire::ALL[n % 4], &names[n], "phone")).collect()
}

fn kind(push: &pb::Push) -> Option<pb::MemberChange> {
    push.event.as_ref().and_then(|event| pb::MemberChange::try_from(event.change).ok())
}

/// Says that, under an id made of it.
fn say(client: &mut Client, text: &str) -> u64 {
    client.text("g:big", &text.replace(' ', "-"), text)
}

/// The text of a push; none where it is an event.
fn word(push: &pb::Push) -> &str {
    if push.content.is_some() { text_of(push) } else { "" }
}

/// Pushes up to the one with that text.
fn up_to(client: &mut Client, text: &str) -> Vec<pb::Push> {
    let mut all = Vec::new();
    loop {
        all.push(client.expect_push());
        if word(&all[all.len() - 1]) == text {
            return all;
        }
    }
}

#[test]
fn a_large_group_is_heard_on_all_nodes_once_and_in_order_and_its_members_are_never_read() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 9, 9);
    let mut outsider = mesh.login(2, Wire::Tcp, "outsider", "phone");
    assert_eq!(mesh.interested("g:big"), ["n1", "n2", "n3"]);
    for round in 0..3 {
        for sender in 0..9 {
            let text = format!("{round} of {sender}");
            let seq = members[sender].text("g:big", &format!("m{round}"), &text);
            for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != sender) {
                let push = member.expect_push();
                assert_eq!((push.seq, word(&push)), (seq, text.as_str()), "u{n}");
            }
        }
    }
    members.iter_mut().chain([&mut outsider]).for_each(Client::no_push);
    for nth in 0..3 {
        assert_eq!(mesh.node(nth).store.calls("members"), 0, "n{} has read a membership", nth + 1);
    }
}

#[test]
fn a_removed_member_hears_nothing_from_then_on_and_one_who_comes_back_everything() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 8, 6);
    for round in 0..6 {
        let (out, text) = (1 + round % 5, |part: &str| format!("{part} {round}"));
        let out_name = format!("u{out}");
        // What is said on both sides of a change, without waiting for anybody to hear it.
        for (part, change) in [("a", Some("kick")), ("b", Some("join")), ("c", None)] {
            say(&mut members[0], &text(part));
            match change {
                Some("kick") => mesh.kick("big", &[&out_name]),
                Some(_) => mesh.join("big", &[&out_name]),
                None => {}
            }
        }
        for (n, member) in members.iter_mut().enumerate().skip(1) {
            let heard = up_to(member, &text("c"));
            let told: Vec<_> = heard.iter().map(|push| (kind(push), word(push).to_owned())).collect();
            let all = [
                (None, text("a")),
                (Some(pb::MemberChange::Kicked), String::new()),
                (None, text("b")),
                (Some(pb::MemberChange::Joined), String::new()),
                (None, text("c")),
            ];
            let expected: Vec<_> =
                all.into_iter().filter(|it| n != out || *it != (None, text("b"))).collect();
            assert_eq!(told, expected, "u{n} in round {round}");
            assert!(heard.is_sorted_by(|a, b| a.seq < b.seq));
        }
        // It hears of both changes, too.
        assert_eq!(members[0].pushes(2).len(), 2);
    }
    members.iter_mut().for_each(Client::no_push);
}

#[test]
fn a_node_that_missed_a_removal_reads_of_it_before_it_pushes_again() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 8, 6);
    members[0].text("g:big", "m1", "before");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "before")));
    // Neither by their topics nor over the link do the other nodes hear that u1, on the second, and u3, on the first, went.
    for (plan, method) in [(&mesh.node(0).bus, "publish_node"), (&mesh.node(0).link, "send_best_effort")] {
        (0..2).for_each(|_| plan.plan(method, Fault::Fail));
    }
    mesh.kick("big", &["u1", "u3"]);
    eventually("the link was tried", || (mesh.node(0).link.calls("send_best_effort") >= 2).then_some(()));
    let seq = members[0].text("g:big", "m2", "after");
    for n in [2, 4, 5] {
        let heard = up_to(&mut members[n], "after");
        assert_eq!(heard[heard.len() - 1].seq, seq, "u{n}");
    }
    assert_eq!(kind(&members[3].expect_push()), Some(pb::MemberChange::Kicked), "its own node knew");
    // Who was removed has had time to hear what is not for it: others hear one more on the same node.
    members[0].text("g:big", "m3", "later");
    for n in [2, 4, 5] {
        up_to(&mut members[n], "later");
    }
    members[1].no_push();
    members[3].no_push();
}

#[test]
fn a_group_that_crosses_the_limit_both_ways_loses_nothing_and_tells_nobody_else() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 4, 3);
    let (mut late, mut heard) = (Vec::new(), vec![Vec::new(); 3]);
    for round in 0..3 {
        let text = |part: &str| format!("{part} {round}");
        let newcomers: Vec<String> = ["x", "y"].iter().map(|name| format!("{name}{round}")).collect();
        let newcomers: Vec<&str> = newcomers.iter().map(String::as_str).collect();
        late.push(mesh.login(1 + round % 2, Wire::Tcp, newcomers[0], "phone"));
        say(&mut members[0], &text("small"));
        mesh.join("big", &newcomers);
        say(&mut members[0], &text("large"));
        mesh.kick("big", &newcomers);
        say(&mut members[0], &text("again"));
        for (member, heard) in members.iter_mut().zip(&mut heard).skip(1) {
            // A push of the small group may be overtaken by one of the large: each comes over a way of its own.
            for push in member.pushes(5) {
                member.ack("g:big", push.seq);
                heard.push((push.seq, word(&push).to_owned()));
            }
        }
        // The way of a small group for the one who went is another, and its last push is that it went.
        let newcomer = &mut late[round];
        let mut told: Vec<_> =
            newcomer.pushes(3).iter().map(|push| (push.seq, word(push).to_owned())).collect();
        told.sort();
        let texts: Vec<&str> = told.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["", &text("large"), ""], "round {round}");
        newcomer.ack("g:big", told[2].0);
    }
    for heard in &mut heard[1..] {
        heard.sort();
        let seqs: Vec<u64> = heard.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(seqs, (2..=16).collect::<Vec<u64>>());
    }
    late.iter_mut().for_each(Client::no_push);
}

#[test]
fn who_logs_in_while_its_node_declares_interest_misses_nothing() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 1);
    let gate = Gate::new();
    mesh.node(1).routes.plan("declare", Fault::Hold(gate.clone()));
    let mut late = std::thread::scope(|scope| {
        let late = scope.spawn(|| mesh.login(1, Wire::Tcp, "u1", "phone"));
        eventually("it waits", || (gate.reached() == 1).then_some(()));
        // Its node hears of these, and has nobody to tell.
        (0..3).for_each(|n| {
            say(&mut members[0], &format!("while it waits {n}"));
        });
        gate.open();
        late.join().unwrap()
    });
    let state = late.state("g:big");
    assert_eq!(state.max_seq, 4, "what was said before its Welcome is in the store by its Sync");
    let seq = members[0].text("g:big", "m9", "after");
    let last = up_to(&mut late, "after").pop().unwrap();
    assert_eq!(last.seq, seq);
}

#[test]
fn a_topic_that_takes_nothing_is_replaced_by_the_link() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 6);
    (0..40).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Fail));
    let ids: Vec<u64> =
        (0..5).map(|n| members[1].say(ask::send(send("g:big", &format!("m{n}"), &n.to_string())))).collect();
    ids.into_iter().for_each(|id| drop(members[1].expect_ack(id)));
    for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != 1) {
        let heard: Vec<String> = member.pushes(5).iter().map(|push| word(push).to_owned()).collect();
        assert_eq!(heard, ["0", "1", "2", "3", "4"], "u{n}");
    }
}

#[test]
fn what_was_lost_on_the_way_to_a_node_its_members_hear_as_behind() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 3);
    members[0].text("g:big", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    // More than their topics hold waits for them at once.
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    members[0].text("g:big", "held", "held");
    eventually("both are held", || (gate.reached() == 2).then_some(()));
    let last = (0..60).map(|n| members[0].text("g:big", &format!("m{n}"), "lost, some of it")).max().unwrap();
    gate.open();
    for member in &mut members[1..] {
        let hint = |frame: &pb::ServerFrame| matches!(&frame.body, Some(Said::Behind(it)) if it.max_seq > 3);
        member.take("Behind", hint);
        let page = member.page(ask::after("g:big", 0, 1_000));
        assert_eq!(page.messages.len() as u64, last, "everything is there to be pulled");
    }
    members[0].text("g:big", "next", "next");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "next")));
}

#[test]
fn interest_that_redis_lost_is_declared_again() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 3);
    mesh.lose_routes();
    eventually("all nodes have said it again", || {
        (mesh.interested("g:big") == ["n1", "n2", "n3"]).then_some(())
    });
    members[0].text("g:big", "m", "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

/// The other nodes hear nothing of what the first one tells them next, neither by their topics nor by the link.
fn deaf(mesh: &Mesh) -> u64 {
    for (plan, method) in [(&mesh.node(0).bus, "publish_node"), (&mesh.node(0).link, "send_best_effort")] {
        (0..2).for_each(|_| plan.plan(method, Fault::Fail));
    }
    mesh.node(0).link.calls("send_best_effort") + 2
}

fn behind(member: &mut Client, seq: u64) {
    let is_hint =
        |frame: &pb::ServerFrame| matches!(&frame.body, Some(Said::Behind(it)) if it.max_seq >= seq);
    member.take("Behind", is_hint);
}

fn all_interested(mesh: &Mesh) {
    eventually("all nodes say that they have members", || {
        (mesh.interested("g:big") == ["n1", "n2", "n3"]).then_some(())
    });
}

#[test]
fn what_was_lost_right_before_a_change_of_members_is_told_with_it() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 3);
    members[0].text("g:big", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    for round in 0..3 {
        let tried = deaf(&mesh);
        let lost = say(&mut members[0], &format!("lost {round}"));
        eventually("the link was tried", || {
            (mesh.node(0).link.calls("send_best_effort") >= tried).then_some(())
        });
        mesh.join("big", &[&format!("late{round}")]);
        members[1..].iter_mut().for_each(|member| behind(member, lost));
    }
}

#[test]
fn a_node_that_missed_that_a_group_became_large_finds_out_and_is_told_from_then_on() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 4, 3);
    let tried = deaf(&mesh);
    mesh.join("big", &["x"]);
    eventually("the link was tried", || (mesh.node(0).link.calls("send_best_effort") >= tried).then_some(()));
    // Nobody says anything there: a hint of what was lost is all that comes.
    all_interested(&mesh);
    members[1..].iter_mut().for_each(|member| behind(member, 2));
    say(&mut members[0], "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

#[test]
fn a_gap_that_took_the_word_that_a_group_became_large_has_its_nodes_look() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 4, 3);
    let names = names(6);
    mesh.group("other", &names.iter().map(String::as_str).collect::<Vec<_>>());
    members[0].text("g:other", "first", "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    members[0].text("g:other", "held", "held");
    eventually("both are held", || (gate.reached() == 2).then_some(()));
    mesh.join("big", &["x"]);
    // More than their topics hold.
    for n in 0..60 {
        members[0].text("g:other", &format!("m{n}"), "lost, some of it");
    }
    gate.open();
    all_interested(&mesh);
    say(&mut members[0], "after");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "after")));
}

#[test]
fn who_comes_in_on_a_node_that_the_owner_does_not_know_yet_hears_of_it() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 2);
    let mut late = mesh.login(2, Wire::Tcp, "late", "phone");
    mesh.know_only(0, &[1]);
    mesh.join("big", &["late"]);
    say(&mut members[0], "told to the one that is known");
    up_to(&mut members[1], "told to the one that is known");
    mesh.introduce(false, 0);
    let push = late.expect_push();
    assert_eq!((kind(&push), push.seq), (Some(pb::MemberChange::Joined), 2));
}

#[test]
fn while_the_node_topics_stand_still_the_log_goes_on_and_all_comes_in_order_then() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 6);
    let gate = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(gate.clone())));
    let said: Vec<String> = (0..8).map(|n| format!("still {n}")).collect();
    let of = |pushes: Vec<pb::Push>| -> Vec<String> { pushes.iter().map(|it| word(it).to_owned()).collect() };
    // From a node that does not own the log: its acks come over the link.
    for text in &said {
        say(&mut members[1], text);
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
fn while_the_log_stands_still_sends_are_refused_and_what_was_taken_is_told_once() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 3);
    mesh.node(1).bus.plan("append", Fault::Fail);
    let code = members[1].refused(ask::send(send("g:big", "m1", "refused for now")));
    assert!(code.temporary(), "{code:?}");
    // The owner can't read what the log has; the node topics run.
    (0..4).for_each(|_| mesh.node(0).bus.plan("read", Fault::Fail));
    let reads = mesh.node(0).bus.calls("read");
    let seq = members[1].text("g:big", "m1", "again");
    eventually("the owner asked in vain", || (mesh.node(0).bus.calls("read") >= reads + 5).then_some(()));
    for n in [0, 2] {
        let push = members[n].expect_push();
        assert_eq!((push.seq, word(&push)), (seq, "again"), "u{n}");
    }
    say(&mut members[0], "next");
    members[1..].iter_mut().for_each(|member| assert_eq!(word(&member.expect_push()), "next"));
    members.iter_mut().for_each(Client::no_push);
}

#[test]
fn a_topic_that_was_not_read_for_a_while_has_its_members_look() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 6, 3);
    say(&mut members[0], "first");
    members[1..].iter_mut().for_each(|member| drop(up_to(member, "first")));
    let taken = mesh.take_topic(1);
    let missed = say(&mut members[0], "missed");
    assert_eq!(word(&members[2].expect_push()), "missed", "the other node goes on");
    members[1].take("a push or a hint", |frame| match &frame.body {
        Some(Said::Push(push)) => push.seq >= missed,
        Some(Said::Behind(behind)) => behind.max_seq >= missed,
        _ => false,
    });
    drop(taken);
    say(&mut members[0], "after");
    up_to(&mut members[1], "after");
}

/// More than are read in place.
fn three_thousand_join(mesh: &Mesh) {
    for thousand in 0..3 {
        let names: Vec<String> = (0..1_000).map(|n| format!("x{thousand}-{n}")).collect();
        mesh.join("big", &names.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn nobody_waits_to_log_in_while_all_members_of_a_very_large_group_are_read() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 4, 3);
    let (topics, gate) = (Gate::new(), Gate::new());
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(topics.clone())));
    // They are many by the time that the other nodes hear of it.
    three_thousand_join(&mesh);
    (0..2).for_each(|_| mesh.node(1).store.plan("members", Fault::None));
    mesh.node(1).store.plan("members", Fault::Hold(gate.clone()));
    topics.open();
    eventually("its second node reads them", || (gate.reached() == 1).then_some(()));
    let mut late = mesh.login(1, Wire::Tcp, "x2-999", "phone");
    let seq = say(&mut members[0], "meanwhile");
    behind(&mut members[1], seq);
    gate.open();
    // What comes before they are read is a hint.
    let (mut count, (first, rest)) = (0, members.split_at_mut(1));
    for member in [&mut rest[0], &mut late] {
        eventually("it is told again", || {
            count += 1;
            let seq = say(&mut first[0], &format!("after {count}"));
            let heard = member.take("a push or a hint", |frame| match &frame.body {
                Some(Said::Push(push)) => push.seq >= seq,
                Some(Said::Behind(behind)) => behind.max_seq >= seq,
                _ => false,
            });
            matches!(heard.body, Some(Said::Push(_))).then_some(())
        });
    }
}

#[test]
fn members_of_a_very_large_group_that_could_not_be_read_are_read_again() {
    let mesh = mesh();
    let mut members = crowd(&mesh, 4, 3);
    let topics = Gate::new();
    (0..2).for_each(|_| mesh.node(0).bus.plan("publish_node", Fault::Hold(topics.clone())));
    three_thousand_join(&mesh);
    let store = Arc::clone(&mesh.node(1).store);
    (0..2).for_each(|_| store.plan("members", Fault::None));
    store.plan("members", Fault::Fail);
    let before = store.calls("members");
    topics.open();
    // Two pages in place, and the one that fails; then all four, beside everything else, from the first on.
    eventually("they are read again", || (store.calls("members") >= before + 3 + 2 + 4).then_some(()));
    let mut count = 0;
    eventually("it is told again", || {
        count += 1;
        let seq = say(&mut members[0], &format!("after {count}"));
        let heard = members[1].take("a push or a hint", |frame| match &frame.body {
            Some(Said::Push(push)) => push.seq >= seq,
            Some(Said::Behind(behind)) => behind.max_seq >= seq,
            _ => false,
        });
        matches!(heard.body, Some(Said::Push(_))).then_some(())
    });
}
