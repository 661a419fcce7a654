//! Draining nodes: slots, replies before the close, the pace, and an aborted drain.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::mpsc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tidegate::config::Config;
use tidegate_protocol::{
    Code,
    codec::Wire,
    machine::drain::{DrainOutcome, plan},
    pb,
};

use crate::support::{
    Client, ServerBody, TestNode, WAIT_MAX, ask, code, eventually, hello, let_time_pass_since, send,
};

/// The node and the test round to whole milliseconds independently.
const ROUNDING_TOLERANCE: Duration = Duration::from_millis(5);

fn expect_goaway(client: &mut Client) -> pb::GoAway {
    match client.take("a GoAway", |frame| matches!(frame.body, Some(ServerBody::GoAway(_)))).body {
        Some(ServerBody::GoAway(goaway)) => goaway,
        other => panic!("{other:?}"),
    }
}

/// Returns the time from the GoAway to the end of the slot.
fn slot(goaway: &pb::GoAway) -> Duration {
    Duration::from_millis(u64::from(goaway.after_ms) + u64::from(goaway.window_ms))
}

fn readyz(node: &TestNode) -> (u16, String) {
    let (status, body) = node.admin("GET", "/readyz", &Value::Null);
    (status, body["state"].as_str().expect("a state").to_owned())
}

/// Returns the code of the Close of a node that accepts no clients; it does not wait for a first byte.
fn refusal(node: &TestNode) -> Code {
    let mut guest = node.connect(Wire::JsonLine);
    let frame = guest.take("a close", |frame| matches!(frame.body, Some(ServerBody::Close(_))));
    let Some(ServerBody::Close(close)) = frame.body else { panic!("{frame:?}") };
    code(close.code)
}

#[test]
fn every_client_gets_its_slot_and_is_closed_at_its_end() {
    let node = TestNode::start(|config| config.node.shards = 3);
    let mut clients: Vec<Client> =
        (0..40).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "phone")).collect();
    let began = Instant::now();
    node.drainer().signal();
    let ending = std::thread::spawn(move || node.wait());
    let mut slots: Vec<(Duration, usize)> =
        clients.iter_mut().enumerate().map(|(nth, client)| (slot(&expect_goaway(client)), nth)).collect();
    slots.sort_unstable();
    for (slot, nth) in slots {
        assert_eq!(clients[nth].expect_close(), Code::Draining);
        let closed = began.elapsed();
        assert!(closed + ROUNDING_TOLERANCE >= slot, "closed after {closed:?}, its slot ends after {slot:?}");
        assert!(closed < slot + WAIT_MAX, "closed after {closed:?} only, not {slot:?}");
    }
    assert_eq!(ending.join().expect("it ends"), DrainOutcome::Drained);
}

#[test]
fn sends_in_flight_are_answered_before_the_close() {
    // One shard, so that bob, who connects last, has the last slot and sees what was accepted from the others.
    let node = TestNode::start(|config| {
        (config.node.shards, config.limits.small_group_max) = (1, 1);
        config.drain.max_rate = 10;
    });
    let group = node.group("hall", &["Tcp", "JsonLine", "WsText", "WsBinary", "bob"]);
    let senders = Wire::ALL.map(|wire| node.login(wire, &format!("{wire:?}"), "d"));
    let mut bob = node.login(Wire::Tcp, "bob", "d");
    let writers = senders.map(|sender| {
        let group = group.clone();
        std::thread::spawn(move || write_until_closed(sender, &group))
    });
    let mut received = bob.pushes(101);
    node.drainer().signal();
    let ending = std::thread::spawn(move || node.wait());
    let rest = bob.until_end();
    let acked: BTreeSet<String> =
        writers.into_iter().flat_map(|writer| writer.join().expect("a good end")).collect();
    received.extend(bob.inbox.drain(..).chain(rest).filter_map(|frame| match frame.body {
        Some(ServerBody::Push(push)) => Some(push),
        _ => None,
    }));
    for push in received {
        assert!(acked.contains(&push.msg_id), "{} was accepted, and its sender got no ack", push.msg_id);
    }
    assert_eq!(ending.join().expect("it ends"), DrainOutcome::Drained);
}

#[test]
fn recall_in_flight_is_answered_before_the_close() {
    let node = TestNode::start(|_| {});
    let (busy, is_busy) = mpsc::sync_channel(Wire::ALL.len());
    let senders = Wire::ALL.map(|wire| {
        let (sender, busy) = (node.login(wire, &format!("{wire:?}"), "d"), busy.clone());
        std::thread::spawn(move || recall_until_closed(sender, busy))
    });
    for _ in &senders {
        is_busy.recv_timeout(WAIT_MAX).expect("a recall that is answered");
    }
    let data = node.stop();
    let node = TestNode::start_on(&data, |_| {});
    // Every recall in the log was confirmed to its sender.
    for sender in senders {
        let (wire, said, recall_acks) = sender.join().expect("a good end");
        let mut again = node.login(wire, &format!("{wire:?}"), "d");
        let pages = said.chunks(150).map(|seqs| again.page(ask::seqs(&peer_of(wire), seqs)));
        let recalled: BTreeSet<u64> = pages.flat_map(|page| page.recalled).collect();
        assert_eq!(recalled, recall_acks, "{wire:?}");
    }
}

/// Returns the conversation partner of the client on that wire.
fn peer_of(wire: Wire) -> String {
    format!("d:{wire:?}:zoe")
}

/// Sends messages and recalls them, twenty at a time, so that a recall is always in flight until the close. Signals the
/// first confirmed recall; returns the seqs of its messages, and of those whose recall was acked.
fn recall_until_closed(mut sender: Client, busy: mpsc::SyncSender<()>) -> (Wire, Vec<u64>, BTreeSet<u64>) {
    let (deadline, wire) = (Instant::now() + WAIT_MAX, sender.wire);
    let (mut sends, mut recalls) = (BTreeSet::new(), BTreeMap::new());
    let (mut said, mut recall_acks, mut busy) = (Vec::new(), BTreeSet::new(), Some(busy));
    let mut count = 0..;
    let mut say = |sender: &mut Client| {
        let msg_id = format!("m{}", count.next().unwrap_or(0));
        sender.say(ask::send(send(&peer_of(wire), &msg_id, "text")))
    };
    sends.extend((0..20).map(|_| say(&mut sender)));
    loop {
        while let Some(frame) = sender.inbox.pop_front() {
            match frame.body {
                Some(ServerBody::SendAck(ack)) if sends.remove(&frame.id) => {
                    said.push(ack.seq);
                    recalls.insert(sender.say(ask::recall(&peer_of(wire), ack.seq)), ack.seq);
                }
                Some(ServerBody::SendAck(_)) => {
                    recall_acks.insert(recalls.remove(&frame.id).expect("a recall that was asked for"));
                    if let Some(busy) = busy.take() {
                        busy.send(()).expect("the test waits for it");
                    }
                    sends.insert(say(&mut sender));
                }
                Some(ServerBody::Error(error)) => panic!("{error:?}"),
                _ => {}
            }
        }
        if sender.has_ended() {
            return (wire, said, recall_acks);
        }
        assert!(Instant::now() < deadline, "the node does not close");
        sender.pump(deadline);
    }
}

/// Keeps a hundred sends in flight until the close; returns the acked ones.
fn write_until_closed(mut sender: Client, group: &str) -> Vec<String> {
    let deadline = Instant::now() + WAIT_MAX;
    let mut sent = Vec::new();
    while sender.ended.is_none() {
        assert!(Instant::now() < deadline, "the node does not close");
        for _ in 0..50 {
            let text = format!("{:?}-{}", sender.wire, sent.len());
            sent.push((sender.say(ask::send(send(group, &text, &text))), text));
        }
        while sender.inbox.len() + 100 < sent.len() && sender.pump(deadline) {}
    }
    let last = sender.inbox.back().and_then(|frame| frame.body.clone());
    assert!(matches!(last, Some(ServerBody::Close(_))), "{:?}: Close is last, not {last:?}", sender.wire);
    let acks = sender.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::SendAck(_))));
    let acks: BTreeSet<u64> = acks.map(|frame| frame.id).collect();
    let answered = sent.iter().take_while(|(id, _)| acks.contains(id)).count();
    assert!(answered > 0 && answered == acks.len(), "{answered} in a row of {} answers", acks.len());
    sent.into_iter().take(answered).map(|(_, text)| text).collect()
}

#[test]
fn pace_of_300_clients_is_the_planned_one() {
    const CLIENTS: usize = 300;
    let slow = |config: &mut Config| (config.drain.spread_ms, config.drain.max_rate) = (1_000, 100);
    let mut config = Config::default();
    slow(&mut config);
    let planned = plan(CLIENTS, &config.drain_settings());
    assert_eq!((planned.window, planned.rate), (Duration::from_secs(3), 100));
    let node = TestNode::start(slow);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|n| node.login(Wire::Tcp, &format!("user-{n}"), "phone")).collect();
    let began = Instant::now();
    node.drainer().signal();
    let ending = std::thread::spawn(move || node.wait());
    let mut slots: Vec<(Duration, usize)> =
        clients.iter_mut().enumerate().map(|(nth, client)| (slot(&expect_goaway(client)), nth)).collect();
    slots.sort_unstable();
    let mut closed = Vec::new();
    for (slot, nth) in &slots {
        assert_eq!(clients[*nth].expect_close(), Code::Draining);
        closed.push(began.elapsed());
        assert!(
            closed[closed.len() - 1] + ROUNDING_TOLERANCE >= *slot,
            "no client is closed before the end of its slot"
        );
    }
    // Measured from the end of the first slot: a first client that reads late does not change the pace.
    let took = closed[CLIENTS - 1].saturating_sub(slots[0].0);
    let pace = CLIENTS as f64 / took.as_secs_f64();
    assert!(pace <= 1.2 * f64::from(planned.rate), "{pace} a second over {took:?}");
    // The slots in the GoAways: the rate at which other nodes get the clients.
    for (nth, (from, _)) in slots.iter().enumerate() {
        let second = *from + Duration::from_secs(1);
        let within = slots[nth..].iter().take_while(|(slot, _)| *slot < second).count();
        assert!(within as f64 <= 1.2 * f64::from(planned.rate), "{within} slots in the second from {from:?}");
    }
    assert_eq!(ending.join().expect("it ends"), DrainOutcome::Drained);
}

#[test]
fn aborted_drain_restores_the_node() {
    // Half a second between slots: the last ones are far away when the drain is aborted, also on a slow machine.
    let node = TestNode::start(|config| config.drain.max_rate = 2);
    let clients: Vec<Client> =
        (0..20).map(|n| node.login(Wire::ALL[n % 4], &format!("user-{n}"), "phone")).collect();
    assert_eq!(readyz(&node), (200, "ready".into()));
    assert_eq!(node.admin("DELETE", "/v1/drain", &Value::Null).0, 409, "there is no drain");
    let began = Instant::now();
    assert_eq!(node.admin("POST", "/v1/drain", &Value::Null).0, 202);
    let mut clients: Vec<(Duration, Client)> =
        clients.into_iter().map(|mut client| (slot(&expect_goaway(&mut client)), client)).collect();
    clients.sort_by_key(|(slot, _)| *slot);
    let (status, state) = readyz(&node);
    assert!(status == 503 && ["noticing", "draining"].contains(&state.as_str()), "{status} {state}");
    assert_eq!(refusal(&node), Code::Draining);
    assert_eq!(node.admin("DELETE", "/v1/drain", &Value::Null).0, 200);
    eventually("ready again", || (readyz(&node) == (200, "ready".into())).then_some(()));
    // The listener accepts a moment after the reply; a client that waits is accepted then.
    let mut late = eventually("the listener accepts", || {
        let mut late = node.connect(Wire::JsonLine);
        let id = late.say(ask::hello(hello(&node.token("late"), "phone")));
        let first = late
            .take("an answer", |frame| frame.id == id || matches!(frame.body, Some(ServerBody::Close(_))));
        matches!(first.body, Some(ServerBody::Welcome(_))).then_some(late)
    });
    late.settle();
    // Clients with one of the last slots are connected when the first of those have passed.
    let (slots, mut stayed): (Vec<Duration>, Vec<Client>) = clients.split_off(10).into_iter().unzip();
    let_time_pass_since(began, "some slots are over", slots[2]);
    stayed.iter_mut().for_each(Client::settle);
    node.drainer().signal();
    stayed.iter_mut().for_each(|client| assert!(expect_goaway(client).window_ms > 0, "and again"));
    node.drainer().signal();
    let ending = std::thread::spawn(move || node.wait());
    stayed.iter_mut().chain([&mut late]).for_each(|client| assert_eq!(client.expect_close(), Code::Draining));
    assert_eq!(ending.join().expect("it ends"), DrainOutcome::Fast(0));
}

#[test]
fn drain_until_the_notice_moves_clients_and_leaves_the_node_running() {
    let node = TestNode::start(|config| config.node.shards = 2);
    let notice = json!({"until": "noticed"});
    assert_eq!(node.admin("POST", "/v1/drain", &json!({"until": "never"})).0, 400);
    // Without clients there is nobody to notify.
    assert_eq!(node.admin("POST", "/v1/drain", &notice).0, 202);
    eventually("ready again", || (readyz(&node) == (200, "ready".into())).then_some(()));
    let mut clients: Vec<Client> =
        (0..4).map(|n| node.login(Wire::ALL[n], &format!("user-{n}"), "phone")).collect();
    assert_eq!(node.admin("POST", "/v1/drain", &notice).0, 202);
    clients.iter_mut().for_each(|client| assert!(slot(&expect_goaway(client)) >= Duration::from_secs(2)));
    eventually("ready again", || (readyz(&node) == (200, "ready".into())).then_some(()));
    clients.iter_mut().for_each(Client::settle);
    // A full drain replaces one that would end at the notice.
    assert_eq!(node.admin("POST", "/v1/drain", &notice).0, 202);
    assert_eq!(node.admin("POST", "/v1/drain", &Value::Null).0, 202);
    assert_eq!(node.wait(), DrainOutcome::Drained);
}

#[test]
fn cordoned_node_still_accepts_clients() {
    let node = TestNode::start(|config| config.drain.lb_delay_ms = 4_000);
    let mut early = node.login(Wire::WsText, "early", "phone");
    node.drainer().signal();
    eventually("cordoned", || (readyz(&node) == (503, "cordoned".into())).then_some(()));
    let mut late = node.login(Wire::Tcp, "late", "phone");
    assert_eq!(late.text("early", "m1", "still here?"), 1);
    early.expect_push();
    let ending = std::thread::spawn(move || node.wait());
    for client in [&mut early, &mut late] {
        assert!(expect_goaway(client).after_ms < 1_000);
        assert_eq!(client.expect_close(), Code::Draining);
    }
    assert_eq!(ending.join().expect("it ends"), DrainOutcome::Drained);
}

#[test]
fn idle_node_drains_at_once() {
    let node = TestNode::start(|config| config.drain.lb_delay_ms = 40_000);
    let began = Instant::now();
    node.drainer().signal();
    assert_eq!(node.wait(), DrainOutcome::Drained);
    // A wait for the load balancer would notify the clients after 19 s.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}
