//! Several nodes over one log: users on different nodes exchange messages as on one node, whichever node stops, and
//! however.

#[path = "cluster/access/mod.rs"]
mod access;
#[path = "cluster/assign.rs"]
mod assign;
#[path = "cluster/crashes.rs"]
mod crashes;
#[path = "cluster/degraded.rs"]
mod degraded;
#[path = "cluster/drain.rs"]
mod drain;
#[path = "cluster/events.rs"]
mod events;
#[path = "support/cluster/exchange.rs"]
mod exchange;
#[path = "cluster/figures.rs"]
mod figures;
#[path = "cluster/ids.rs"]
mod ids;
#[path = "cluster/import.rs"]
mod import;
#[path = "cluster/kafka_metrics.rs"]
mod kafka_metrics;
#[path = "cluster/large_groups.rs"]
mod large_groups;
#[path = "cluster/log.rs"]
mod log;
#[path = "cluster/reads/mod.rs"]
mod reads;
#[path = "cluster/reaper.rs"]
mod reaper;
#[path = "cluster/rebalance.rs"]
mod rebalance;
#[path = "cluster/rules.rs"]
mod rules;
#[path = "cluster/standby.rs"]
mod standby;
#[path = "cluster/starting.rs"]
mod starting;
#[path = "support/mod.rs"]
mod support;
#[path = "cluster/trace.rs"]
mod trace;
#[path = "cluster/unarchived.rs"]
mod unarchived;
#[path = "cluster/up.rs"]
mod up;
#[path = "cluster/watch.rs"]
mod watch;

use std::{collections::BTreeSet, time::Duration};

use exchange::{history, send_until_acked};
use rustix::process::Signal;
use support::{Client, Cluster, OwnPostgres, ServerBody, Stopwatch, ask, eventually, send, text_of};
use tidegate_protocol::{Code, codec::Wire, pb};

#[test]
fn users_on_two_nodes_get_each_push_once_in_order() {
    let cluster = Cluster::start(2, &[]);
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob"));
    let mut desk = cluster.node(1).login(Wire::JsonLine, "ann", "desk");
    for n in 1..=20 {
        let (from, to, name) =
            if n % 2 == 0 { (&mut bob, &mut ann, "ann") } else { (&mut ann, &mut bob, "bob") };
        assert_eq!(from.text(name, &format!("m{n}"), &format!("hi {n}")), n);
        let push = to.expect_push();
        assert_eq!((push.seq, text_of(&push)), (n, format!("hi {n}").as_str()));
        to.ack("d:ann:bob", n);
        // The sender's other device gets the message too, on whatever node.
        let copy = desk.expect_push();
        assert_eq!(copy.seq, n);
        desk.ack("d:ann:bob", n);
    }
    ann.no_push();
    bob.no_push();
    desk.no_push();
    let expected: Vec<_> = (1..=20).map(|n| (n, format!("hi {n}"))).collect();
    assert_eq!(history(&mut ann, "d:ann:bob"), expected);
    assert_eq!(history(&mut bob, "d:ann:bob"), expected);
}

#[test]
fn retry_through_another_node_gets_the_same_ack() {
    let cluster = Cluster::start(2, &[]);
    let (mut first, mut second) = (cluster.login(0, Wire::Tcp, "ann"), None);
    let seq = first.text("bob", "once", "hello");
    for attempt in 1..4 {
        drop(second.take());
        let mut client = cluster.login(1, Wire::Tcp, "ann");
        let again = client.send(pb::Send { attempt, ..send("bob", "once", "hello") });
        assert_eq!((again.seq, again.duplicate), (seq, true));
        let conflict = client.refused(ask::send(pb::Send { attempt, ..send("bob", "once", "other") }));
        assert_eq!(conflict, Code::Conflict);
        second = Some(client);
    }
}

#[test]
fn group_over_three_nodes_is_in_order_and_removal_is_exact() {
    let cluster = Cluster::start(3, &[]);
    let names = ["ann", "bob", "cat", "dan"];
    let mut members: Vec<Client> =
        names.iter().enumerate().map(|(n, name)| cluster.login(n % 3, Wire::ALL[n % 4], name)).collect();
    let group = cluster.node(1).group("team", &names.map(str::to_owned));
    for client in &mut members {
        assert_eq!(client.expect_push().seq, 1, "the creation");
    }
    for n in 0..12_usize {
        let seq = members[n % 4].text(&group, &format!("m{n}"), &format!("text {n}"));
        assert_eq!(seq, n as u64 + 2);
        for (other, client) in members.iter_mut().enumerate() {
            if other != n % 4 {
                let push = client.expect_push();
                assert_eq!((push.seq, text_of(&push)), (seq, format!("text {n}").as_str()));
                client.ack(&group, seq);
            }
        }
    }
    let removed = cluster.node(2).change_members("team", &serde_json::json!({"remove": ["bob"]}));
    for (n, client) in members.iter_mut().enumerate() {
        assert_eq!(client.expect_push().seq, removed, "member {n}");
    }
    let seq = members[0].text(&group, "after", "without bob");
    for n in [2, 3] {
        assert_eq!(members[n].expect_push().seq, seq);
    }
    members[1].no_push();
    assert_eq!(members[1].refused(ask::send(send(&group, "mine", "still here?"))), Code::NotAMember);
}

#[test]
fn newest_login_of_a_device_replaces_the_old_one_once() {
    let cluster = Cluster::start(3, &[]);
    let mut old = cluster.login(0, Wire::Tcp, "ann");
    for turn in 1..6 {
        let new = cluster.login(turn % 3, Wire::Tcp, "ann");
        assert_eq!(old.expect_close(), Code::Replaced, "turn {turn}");
        old = new;
    }
    let mut bob = cluster.login(1, Wire::Tcp, "bob");
    bob.text("ann", "m1", "are you there?");
    assert_eq!(text_of(&old.expect_push()), "are you there?");
}

#[test]
fn killed_owner_is_replaced_without_loss_or_renumbering() {
    let mut cluster = Cluster::start(3, &[]);
    let mut clients: Vec<Client> =
        (0..8).map(|n| cluster.login(1 + n % 2, Wire::Tcp, &format!("user-{n}"))).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        for nth in 1..=5 {
            assert_eq!(client.text(&format!("peer-{n}"), &format!("m{nth}"), &format!("m{nth}")), nth);
        }
    }
    cluster.kill(0);
    for (n, client) in clients.iter_mut().enumerate() {
        let (seq, took) = send_until_acked(client, &format!("peer-{n}"), "m6");
        assert_eq!(seq, 6);
        // The promise: session timeout (6 s) plus 2 s.
        assert!(took < Duration::from_secs(8), "user-{n} waited {took:?}");
        let expected: Vec<_> = (1..=6).map(|nth| (nth, format!("m{nth}"))).collect();
        assert_eq!(history(client, &format!("d:peer-{n}:user-{n}")), expected);
    }
}

#[test]
fn frozen_owner_is_refused_by_the_fence() {
    let mut cluster = Cluster::start(2, &[]);
    let mut clients: Vec<Client> =
        (0..8).map(|n| cluster.login(1, Wire::Tcp, &format!("user-{n}"))).collect();
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.text(&format!("peer-{n}"), "m1", "m1"), 1);
    }
    cluster.node(0).signal(Signal::STOP);
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(send_until_acked(client, &format!("peer-{n}"), "m2").0, 2);
    }
    cluster.node(0).signal(Signal::CONT);
    for nth in 3..=10 {
        for (n, client) in clients.iter_mut().enumerate() {
            let (place, id) = (format!("peer-{n}"), format!("m{nth}"));
            assert_eq!(send_until_acked(client, &place, &id).0, nth);
        }
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let expected: Vec<_> = (1..=10).map(|nth| (nth, format!("m{nth}"))).collect();
        assert_eq!(history(client, &format!("d:peer-{n}:user-{n}")), expected);
    }
    cluster.kill(0);
}

#[test]
fn planned_stop_hands_its_partitions_over_at_once() {
    // A long session timeout, so that a crash is not mistaken for a handover on any machine.
    let mut cluster = Cluster::start(2, &["kafka.session_ms=20000"]);
    let mut clients: Vec<Client> =
        (0..8).map(|n| cluster.login(1, Wire::Tcp, &format!("user-{n}"))).collect();
    assert_eq!(cluster.stop(0), Some(0));
    let mut longest = Duration::ZERO;
    for (n, client) in clients.iter_mut().enumerate() {
        let (seq, took) = send_until_acked(client, &format!("peer-{n}"), "m1");
        assert_eq!(seq, 1);
        longest = longest.max(took);
    }
    assert!(longest < Duration::from_secs(3), "the wait of a handover, not of a crash: {longest:?}");
}

#[test]
fn sends_are_refused_while_the_archive_lags_by_half_the_log() {
    // Half of the bound is 32 KiB.
    let cluster = Cluster::start(2, &["kafka.retention_bytes=65536"]);
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::Tcp, "bob"));
    assert_eq!(ann.text("bob", "m1", "hi"), 1);
    // An unacked push would end his connection after 20 s.
    assert_eq!(bob.expect_push().seq, 1);
    bob.ack("d:ann:bob", 1);
    let held = cluster.hold_archive();
    let large = "x".repeat(8_000);
    let sent: Vec<u64> = (2..10).map(|n| ann.say(ask::send(send("bob", &format!("m{n}"), &large)))).collect();
    for id in sent {
        assert_eq!(ann.expect_error(id), Code::Unknown);
    }
    for nth in 0..2 {
        cluster.node(nth).metric_becomes("archive_behind_partitions", 1.0);
    }
    // The refusal is before the append, so nothing waits until timing.reply_ms.
    let began = Stopwatch::start();
    assert_eq!(ann.refused(ask::send(send("bob", "m10", "still?"))), Code::ArchiveBehind);
    assert_eq!(bob.refused(ask::send(send("ann", "n1", "still?"))), Code::ArchiveBehind);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The lag is as of the last renewed lease, so it shows after a while.
    let behind = eventually("the owner reports the lag of its archive", || {
        let behind: Vec<_> = cluster.owners().into_iter().filter(|it| it["behindRecords"] != 0).collect();
        behind.iter().any(|it| it["behindMs"].as_u64() > Some(4_000)).then_some(behind)
    });
    assert_eq!(behind.len(), 1, "{behind:?}");
    assert_eq!(behind[0]["behindRecords"], 8);
    drop(held);
    for nth in 0..2 {
        cluster.node(nth).metric_becomes("archive_behind_partitions", 0.0);
    }
    // Every appended message has its seq, and a refused one has none.
    for n in 2..10 {
        let again = ann.send(pb::Send { attempt: 1, ..send("bob", &format!("m{n}"), &large) });
        assert_eq!((again.seq, again.duplicate), (n, true));
    }
    assert_eq!(ann.text("bob", "m10", "still?"), 10);
    assert_eq!(bob.text("ann", "n1", "still?"), 11);
}

#[test]
fn live_room_over_three_nodes_shows_no_number_twice() {
    let mut cluster = Cluster::start(3, &[]);
    cluster.all_linked();
    let mut members: Vec<Client> =
        (0..6).map(|n| cluster.login(n % 3, Wire::ALL[n % 4], &format!("user-{n}"))).collect();
    let mut outsider = cluster.login(2, Wire::Tcp, "outsider");
    // A member whose join is confirmed gets every later message.
    members.iter_mut().for_each(|member| member.expect_done(ask::join("hall")));
    let mut numbers = BTreeSet::new();
    for round in 0..5 {
        for sender in 0..6 {
            let text = format!("{round} of {sender}");
            let ack = members[sender].send(send("r:hall", &format!("m{round}"), &text));
            assert!(numbers.insert(ack.seq), "{} was assigned before", ack.seq);
            for (n, member) in members.iter_mut().enumerate().filter(|(n, _)| *n != sender) {
                let push = member.expect_push();
                assert_eq!((push.seq, text_of(&push)), (ack.seq, text.as_str()), "member {n}");
            }
        }
    }
    // Many messages at once, from all nodes.
    let asked: Vec<Vec<u64>> = members
        .iter_mut()
        .map(|it| (0..50).map(|n| it.say(ask::send(send("r:hall", &format!("at-once-{n}"), "x")))).collect())
        .collect();
    for (member, ids) in members.iter_mut().zip(asked) {
        let mine: Vec<u64> = ids.into_iter().map(|id| member.expect_ack(id).seq).collect();
        assert!(mine.is_sorted_by(|a, b| a < b), "the numbers of one sender rise: {mine:?}");
        assert!(mine.into_iter().all(|seq| numbers.insert(seq)), "shown before");
    }
    for member in &mut members {
        assert_eq!(member.pushes(250).len(), 250);
        member.no_push();
    }
    outsider.no_push();
    // The room survives the loss of a node.
    cluster.kill(0);
    for (speaker, listener) in [(1, 2), (2, 1), (4, 5)] {
        let text = format!("after the crash, {speaker}");
        let seq = members[speaker].text("r:hall", &format!("crash-{speaker}"), &text);
        assert!(numbers.insert(seq));
        members[listener].take(&text, |frame| {
            matches!(
                &frame.body,
                Some(ServerBody::Push(push)) if (push.seq, text_of(push)) == (seq, text.as_str())
            )
        });
    }
}

#[test]
fn signals_and_marks_reach_other_nodes_but_no_removed_member() {
    let cluster = Cluster::start(2, &[]);
    cluster.all_linked();
    let group = cluster.node(0).group("tea", &["ann", "bob", "cid"].map(str::to_owned));
    let (mut ann, mut bob) = (cluster.login(0, Wire::Tcp, "ann"), cluster.login(1, Wire::WsText, "bob"));
    let mut desk = cluster.node(1).login(Wire::JsonLine, "ann", "desk");
    let (mut cid, mut eve) = (cluster.login(1, Wire::Tcp, "cid"), cluster.login(1, Wire::Tcp, "eve"));
    ann.expect_done(ask::signal("bob", "typing", "half a w"));
    for client in [&mut bob, &mut desk] {
        let received = client.expect_signal();
        assert_eq!((received.sender.as_str(), received.conversation.as_str()), ("ann", "d:ann:bob"));
    }
    ann.expect_done(ask::signal(&group, "typing", ""));
    for client in [&mut bob, &mut desk, &mut cid] {
        assert_eq!(client.expect_signal().conversation, group);
    }
    assert_eq!(eve.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
    // A removal that bob's node has received ends signals, both ways.
    let removed = cluster.node(0).change_members("tea", &serde_json::json!({"remove": ["bob"]}));
    assert_eq!(bob.expect_push().seq, removed);
    assert_eq!(bob.refused(ask::signal(&group, "typing", "")), Code::NotAMember);
    ann.expect_done(ask::signal(&group, "again", ""));
    // ann's two devices on n2 and cid get the signal; the removal that they have to ack does not delay it.
    for client in [&mut desk, &mut cid] {
        assert_eq!(client.expect_signal().kind, "again");
    }
    for client in [&mut bob, &mut eve] {
        client.settle();
        client.settle();
        let received = client.inbox.iter().find(|frame| matches!(frame.body, Some(ServerBody::Signal(_))));
        assert!(received.is_none(), "unexpected: {received:?}");
    }
    for n in 1..=3 {
        assert_eq!(bob.text("ann", &format!("m{n}"), "text"), n);
    }
    let place = "d:ann:bob";
    ann.expect_done(ask::read(place, 2));
    assert_eq!(desk.expect_receipt(), pb::Receipt { conversation: place.into(), user: "ann".into(), seq: 2 });
    desk.expect_done(ask::clear(place, 1));
    let cleared = ann.take("the clear", |frame| matches!(frame.body, Some(ServerBody::Cleared(_))));
    assert_eq!(cleared.body, Some(ServerBody::Cleared(pb::Cleared { conversation: place.into(), seq: 1 })));
    ann.expect_done(ask::hide(place, &[3]));
    let hidden = desk.take("the hide", |frame| matches!(frame.body, Some(ServerBody::Hidden(_))));
    assert_eq!(
        hidden.body,
        Some(ServerBody::Hidden(pb::Hidden { conversation: place.into(), seqs: vec![3] }))
    );
    let state = desk.state(place);
    assert_eq!((state.read_seq, state.cleared_seq, state.hidden), (2, 1, vec![3]));
}

/// Returns the epoch of a device's route from its row in Redis: node, boot, epoch.
fn epoch_of(cluster: &Cluster, user: &str, device: &str) -> u64 {
    let row: String = cluster.redis(&["HGET", &format!("{{}}:route:{{{user}}}"), device]);
    row.rsplit('/').next().and_then(|epoch| epoch.parse().ok()).expect("an epoch")
}

#[test]
fn s37_epochs_rise_although_the_redis_clock_was_set_back() {
    let cluster = Cluster::start(3, &[]);
    // A connection from before: its epoch is of a clock that is 30 years ahead.
    let ahead = 2_700_000_000_000_000_u64;
    let route = |user: &str| format!("{{}}:route:{{{user}}}");
    for user in ["ann", "cat"] {
        let _: i64 = cluster.redis(&["HSET", &route(user), "phone", &format!("gone/1/{ahead}")]);
        let mut before = cluster.login(0, Wire::Tcp, user);
        assert_eq!(before.text("bob", "m1", "before"), 1);
        assert!(epoch_of(&cluster, user, "phone") > ahead);
        drop(before);
        // Only the ledger remembers the connection.
        eventually("its row is removed", || {
            let left: Vec<String> = cluster.redis(&["HKEYS", &route(user)]);
            let _: i64 = cluster.redis(&["DEL", &route(user)]);
            (!left.contains(&"phone".to_owned())).then_some(())
        });
    }
    let mut ann = cluster.login(1, Wire::Tcp, "ann");
    assert!(epoch_of(&cluster, "ann", "phone") < ahead, "the epoch follows the clock of Redis");
    // The first reply is unknown, and the retry is appended under the newer epoch, on the same connection.
    let id = ann.say(ask::send(send("bob", "m2", "after")));
    assert_eq!(ann.expect_error(id), Code::Unknown);
    let again = ann.send(pb::Send { attempt: 1, ..send("bob", "m2", "after") });
    assert_eq!((again.seq, again.duplicate), (2, false));
    assert!(epoch_of(&cluster, "ann", "phone") > ahead);
    assert_eq!(ann.text("bob", "m3", "and on"), 3);
    // The user is still reachable, and the session is still replaced once.
    let mut bob = cluster.login(0, Wire::Tcp, "bob");
    bob.text("ann", "b1", "hear me?");
    assert_eq!(text_of(&ann.expect_push()), "hear me?");
    let _newer = cluster.login(0, Wire::Tcp, "ann");
    assert_eq!(ann.expect_close(), Code::Replaced);
    // A chain starts again once, and then continues.
    let chained =
        |msg_id: &str, next_id: &str| pb::Send { next_id: next_id.into(), ..send("bob", msg_id, msg_id) };
    let mut cat = cluster.node(2).login_chained(Wire::Tcp, "cat", "phone", "c1");
    cat.say(ask::send(chained("c1", "c2")));
    assert_eq!(cat.expect_close(), Code::Resync);
    let mut cat = cluster.node(2).login_chained(Wire::Tcp, "cat", "phone", "c1");
    assert_eq!(cat.send(pb::Send { attempt: 1, ..chained("c1", "c2") }).seq, 2);
    assert_eq!(cat.send(chained("c2", "c3")).seq, 3);
}

#[test]
fn s8_restored_postgres_is_refilled_from_the_log() {
    let mut postgres = OwnPostgres::start();
    let cluster = Cluster::start(2, &[&format!("postgres.url={}", postgres.url())]);
    let mut clients: Vec<Client> =
        (0..8).map(|n| cluster.login(n % 2, Wire::Tcp, &format!("user-{n}"))).collect();
    let say = |clients: &mut Vec<Client>, nths: std::ops::RangeInclusive<u64>| {
        for (n, client) in clients.iter_mut().enumerate() {
            for nth in nths.clone() {
                assert_eq!(send_until_acked(client, &format!("peer-{n}"), &format!("m{nth}")).0, nth);
            }
        }
    };
    say(&mut clients, 1..=3);
    postgres.keep_a_copy();
    say(&mut clients, 4..=6);
    postgres.restore_copy();
    let all = |up_to: u64| (1..=up_to).map(|nth| (nth, format!("m{nth}"))).collect::<Vec<_>>();
    // Half of the conversations get no new message: their owners notice the loss by themselves.
    for (n, client) in clients.iter_mut().enumerate() {
        if n % 2 == 0 {
            assert_eq!(send_until_acked(client, &format!("peer-{n}"), "m7").0, 7);
        }
        let up_to = if n % 2 == 0 { 7 } else { 6 };
        eventually("every acked message is restored at its seq", || {
            let page = client.try_page(ask::after(&format!("d:peer-{n}:user-{n}"), 0, 1_000))?;
            let found: Vec<_> =
                page.messages.iter().map(|push| (push.seq, text_of(push).to_owned())).collect();
            assert!(all(7).starts_with(&found), "renumbered: {found:?}");
            (found == all(up_to)).then_some(())
        });
    }
    // Retries of the lost rows are still recognised.
    let again = clients[1].send(pb::Send { attempt: 1, ..send("peer-1", "m5", "m5") });
    assert_eq!((again.seq, again.duplicate), (5, true));
}

#[test]
fn recreated_log_stops_its_partitions_and_resets_nothing() {
    let mut cluster = Cluster::start(1, &[]);
    let mut ann = cluster.login(0, Wire::Tcp, "ann");
    for n in 1..=3 {
        assert_eq!(ann.text("bob", &format!("m{n}"), "hi"), n);
    }
    eventually("all is archived", || (cluster.number("SELECT count(*) FROM messages") == 3).then_some(()));
    cluster.replace_log();
    let is_stopped = |cluster: &Cluster| {
        let node = cluster.node(0);
        (node.metric("partitions_owned") == 3.0 && node.stderr().contains("LOG_REPLACED")).then_some(())
    };
    eventually("the archived partition is released", || is_stopped(&cluster));
    let nothing_is_reset = |cluster: &Cluster| {
        assert_eq!(cluster.number("SELECT max(log_offset) FROM partitions"), 3);
        assert_eq!(cluster.number("SELECT count(*) FROM messages"), 3);
    };
    // Its conversations accept nothing: no number is assigned twice.
    let refused = ann.refused(ask::send(send("bob", "m4", "hi")));
    assert!(matches!(refused, Code::Unknown | Code::BusUnavailable), "{refused:?}");
    assert_eq!(history(&mut ann, "d:ann:bob").len(), 3);
    nothing_is_reset(&cluster);
    // Another run refuses them too.
    cluster.kill(0);
    cluster.restart(0);
    eventually("the partition is refused again", || is_stopped(&cluster));
    nothing_is_reset(&cluster);
}
