//! X17: what clients do at will costs a node a bounded number of log lines, and the log says how many it left out.

use std::{fs, time::Instant};

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    chat::Chat,
    raw::Raw,
    support::{Client, Process, ask, eventually, fresh_data, hello, needs_planted_faults, send},
};

/// Clients that cause the same line.
const CLIENTS: usize = 300;

/// Lines of one place at once.
const BURST: usize = 10;

/// Lines of a log that one place wrote.
struct Lines {
    count: usize,
    /// Sum of the numbers of suppressed lines in them.
    suppressed: usize,
}

fn lines(node: &Process, what: &str) -> Lines {
    let log = node.stderr();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains(what)).collect();
    let number = |line: &&str| -> Option<usize> {
        let digits = line.split_once("suppressed=")?.1;
        digits.split_whitespace().next()?.parse().ok()
    };
    Lines { count: lines.len(), suppressed: lines.iter().filter_map(number).sum() }
}

/// Asserts that the place wrote at most a burst and one line each second since `since`, and that it wrote any.
fn assert_bounded(node: &Process, what: &str, since: Instant) {
    let most = BURST + 1 + since.elapsed().as_secs() as usize;
    let count = lines(node, what).count;
    assert!((1..=most).contains(&count), "{count} lines `{what}`, {most} allowed");
    assert!(most < CLIENTS / 2, "the machine was too slow for this test to show anything");
}

/// Fills the hold of a chain, which the node logs.
fn fill_hold(node: &Process, user: &str) {
    let mut client = node.login_chained(Wire::Tcp, user, "d", "a");
    for (id, next) in [("b", "c"), ("c", "e")] {
        client.say(ask::send(pb::Send { next_id: next.into(), ..send("nobody", id, "too early") }));
    }
    assert_eq!(client.expect_notice().kind(), pb::NoticeKind::OrderWindowFull);
}

#[test]
fn x17_clients_cause_few_log_lines() {
    needs_planted_faults();
    let node = Process::start(&["limits.hold_max=1", "fault.panic_on_msg_id=boom"]);
    let chat = Chat::begin(&node);
    let began = Instant::now();
    for n in 0..CLIENTS {
        let mut stranger = Client::connect(node.address(), Wire::ALL[n % 4]);
        assert_eq!(stranger.refused(ask::hello(hello("no\nsuch\u{1b}[2Jtoken", "d"))), Code::TokenInvalid);
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.send(b"{\"hello\":\x1b[2J\n").expect("the node reads");
        raw.until_end();
        fill_hold(&node, &format!("eager-{n}"));
        let mut panics = node.login(Wire::Tcp, &format!("panics-{n}"), "d");
        panics.say(ask::send(send("nobody", "boom", "!")));
        assert_eq!(panics.expect_close(), Code::Internal);
    }
    let full = "chain hold full";
    for what in [full, "panic in a connection", "panicked at"] {
        assert_bounded(&node, what, began);
    }
    assert!(!node.stderr().contains('\u{1b}'), "{}", node.stderr());
    // The line that passes next says how many did not.
    let (mut alarms, before) = (CLIENTS, lines(&node, full).count);
    eventually("a further line", || {
        fill_hold(&node, &format!("late-{alarms}"));
        alarms += 1;
        (lines(&node, full).count > before).then_some(())
    });
    let said = lines(&node, full);
    assert_eq!(said.count + said.suppressed, alarms, "{}", node.stderr());
    chat.end();
}

#[test]
fn x17_logins_without_a_store_cause_few_log_lines() {
    const WHAT: &str = "failed to store the settings";
    let switch = fresh_data().with_extension("fault");
    let node = Process::start(&[&format!("fault.disk_file={}", switch.display())]);
    let settings = pb::Settings { retention: "1d".into(), ..Default::default() };
    let login = |user: &str| {
        let mut client = Client::connect(node.address(), Wire::Tcp);
        client.login(pb::Hello { settings: Some(settings.clone()), ..hello(&node.token(user), "d") });
    };
    fs::write(&switch, "full enospc").expect("a file");
    let mut users = 0;
    eventually("the store finds no space", || {
        login(&format!("early-{users}"));
        users += 1;
        (lines(&node, WHAT).count > 0).then_some(())
    });
    let began = Instant::now();
    (0..CLIENTS).for_each(|n| login(&format!("user-{n}")));
    assert_bounded(&node, WHAT, began);
    let all = node.stderr().lines().count();
    assert!(all < 4 * BURST + began.elapsed().as_secs() as usize, "{}", node.stderr());
    fs::remove_file(switch).ok();
}
