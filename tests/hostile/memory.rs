//! The memory budget: new clients are refused first, then the fullest outboxes are closed; other clients stay.

use std::time::{Duration, Instant};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    chat::{Chat, Pair},
    raw::Raw,
    support::{Client, Process, ServerBody, WAIT_MAX, ask, eventually, send},
};

const MIB: u64 = 1 << 20;

/// Starts a node whose memory is at 85 % of its budget with 32 MiB more than an idle node uses; also returns that use, in
/// bytes.
fn start_nearly_full(sets: &[&str]) -> (Process, f64) {
    // The tests measure MiB: the store's caches and other processes of this machine would blur it.
    let quiet = ["node.store=memory", "limits.memory_counts_sockets=false"];
    let probe = Process::start(&quiet);
    Pair::login(&probe).round();
    let base = eventually("memory was checked", || {
        Some(probe.metric("memory_used_bytes")).filter(|used| *used > 0.0)
    });
    drop(probe);
    let budget = format!("limits.memory_bytes={}", (base as u64 + 32 * MIB) * 100 / 85);
    (Process::start(&[&quiet[..], &[budget.as_str()], sets].concat()), base)
}

/// Memory is filled with room frames for members who do not read; each has its own room.
#[test]
fn node_short_of_memory_refuses_clients_then_closes_fullest() {
    let (node, base) = start_nearly_full(&["limits.outbox_bytes_max=67108864", "timing.write_ms=60000"]);
    let chat = Chat::begin(&node);
    let mut talker = node.login(Wire::Tcp, "talker", "d");
    let mut readers = Vec::new();
    let refused = fill(&node, &mut talker, &mut readers);
    assert!(refused, "new clients are refused while memory is short");
    while node.metric("slow_closes_total") < 1.0 {
        say(&mut talker, 0, 40);
        wait_for_check(&node);
    }
    talker.settle();
    drop(readers);
    let fine = node.metric("memory_limit_bytes") * 0.8;
    let mut lowest = f64::MAX;
    let deadline = Instant::now() + WAIT_MAX - Duration::from_secs(1);
    eventually("new clients are accepted again", || {
        lowest = lowest.min(node.metric("memory_used_bytes"));
        assert!(
            Instant::now() < deadline,
            "memory stays at {lowest}, {fine} would be fine, {base} was the base"
        );
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.send(b"{}\n").ok();
        (raw.until_end().close() == Some(Code::BadState)).then_some(())
    });
    chat.end();
}

/// X1, S52: sends to always new recipients, each of which makes a conversation that the owner caches.
#[test]
fn x1_cache_stays_in_its_bound_beside_a_flood_of_new_conversations() {
    const BOUND: f64 = 4.0 * MIB as f64;
    let cache = format!("limits.ledger_cache_bytes_max={BOUND}");
    let node = Process::start(&[&cache, "limits.new_conversations_per_minute=0"]);
    let chat = Chat::begin(&node);
    let mut eve = node.login(Wire::Tcp, "eve", "d");
    let mut highest = 0.0f64;
    for round in 0..40 {
        let say = |n: usize| send(&format!("u-{round}-{n}"), &format!("m-{round}-{n}"), "x");
        let ids: Vec<u64> = (0..500).map(|n| eve.say(ask::send(say(n)))).collect();
        for id in ids {
            eve.expect_ack(id);
        }
        highest = highest.max(node.metric("ledger_cache_bytes"));
    }
    assert!(highest > BOUND / 2.0, "the flood fills the cache: {highest}");
    assert!(highest < BOUND * 1.5, "{highest} of {BOUND}");
    chat.end();
}

/// X7, S63: memory is filled with chained messages that wait for one that never comes.
#[test]
fn x7_messages_held_for_a_missing_one_are_shed() {
    let (node, _) = start_nearly_full(&["timing.order_timeout_ms=60000"]);
    let chat = Chat::begin(&node);
    let mut holding: Vec<Client> = (0..240)
        .map(|n| {
            let (user, device) = (format!("eve-{}", n / 16), format!("d{n}"));
            node.login_chained(Wire::Tcp, &user, &device, "missing")
        })
        .collect();
    let text = "m".repeat(30_000);
    for (n, client) in holding.iter_mut().enumerate() {
        for k in 0..8 {
            let early = pb::Send { next_id: format!("m{}", k + 1), ..send("bob", &format!("m{k}"), &text) };
            client.say(ask::send(early));
        }
        if n % 10 == 9 {
            wait_for_check(&node);
        }
        if node.metric("slow_closes_total") >= 1.0 {
            break;
        }
    }
    eventually("holding connections are closed", || (node.metric("slow_closes_total") >= 1.0).then_some(()));
    eventually("new clients are accepted again", || {
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.send(b"{}\n").ok();
        (raw.until_end().close() == Some(Code::BadState)).then_some(())
    });
    chat.end();
    Pair::login(&node).round();
}

/// Adds clients that do not read, and frames for them, until the node refuses the next.
fn fill(node: &Process, talker: &mut Client, readers: &mut Vec<Client>) -> bool {
    for n in 0..16 {
        let mut probe = Raw::connect(node.address(), Wire::JsonLine);
        probe.send(b"{}\n").ok();
        if probe.until_end().close() == Some(Code::Overloaded) {
            return true;
        }
        let room = format!("room-{n}");
        let Some(reader) = reader(node, n, &room) else { return true };
        readers.push(reader);
        assert!(matches!(talker.ask(ask::join(&room)), ServerBody::Done(_)));
        say(talker, n, 160);
        wait_for_check(node);
    }
    false
}

/// Waits until the node has measured what was just added, so that the next step is not blind, and messages are not
/// refused as well (from 95 % on).
fn wait_for_check(node: &Process) {
    let checks = node.metric("memory_checks_total");
    // The check in progress may have begun before.
    eventually("memory was checked", || (node.metric("memory_checks_total") >= checks + 2.0).then_some(()));
}

fn reader(node: &Process, n: usize, room: &str) -> Option<Client> {
    let mut reader = Client::connect(node.address(), Wire::Tcp);
    reader.say(ask::hello(crate::support::hello(&node.token(&format!("reader-{n}")), "d")));
    reader.say(ask::join(room));
    let welcome = reader.take("a welcome or a refusal", |_| true);
    matches!(welcome.body, Some(ServerBody::Welcome(_))).then(|| {
        reader.take("joined", |frame| matches!(frame.body, Some(ServerBody::Done(_))));
        reader
    })
}

fn say(talker: &mut Client, room: usize, times: usize) {
    let text = "m".repeat(30_000);
    for n in 0..times {
        talker.send(send(&format!("r:room-{room}"), &format!("m{n}"), &text));
    }
}
