//! Clients that stop reading: the others get everything in order; the stalled ones get `Behind`, or are closed `SLOW`.

use std::time::Instant;

use tidegate_protocol::{Code, codec::Wire, pb};

use crate::support::{Client, Process, ServerBody, WAIT_MAX, ask, text_of};

const MEMBERS: usize = 120;
const STALLED: usize = 20;
/// More than the kernel and the outbox hold for a client that does not read.
const MESSAGES: usize = 120;
const TEXT_BYTES: usize = 4_000;

fn text(n: usize) -> String {
    format!("{n:04}{}", "x".repeat(TEXT_BYTES))
}

/// Setting under which a client that reads again is not closed, however late it is.
const PATIENT: &str = "timing.write_ms=600000";

fn start(write: &str) -> Process {
    let caps = [
        "limits.outbox_bytes_max=24576",
        "limits.small_group_max=10",
        "socket.send_buffer_bytes=32768",
        write,
    ];
    Process::start(&caps)
}

#[test]
fn stalled_group_members_get_behind_and_delay_no_other() {
    let node = start(PATIENT);
    let names: Vec<String> = (0..MEMBERS).map(|n| format!("member-{n}")).chain(["sender".into()]).collect();
    let group = node.group("hall", &names);
    let mut members: Vec<Client> =
        (0..MEMBERS).map(|n| node.login(Wire::ALL[n % 4], &names[n], "d")).collect();
    let mut stalled = members.split_off(MEMBERS - STALLED);
    let mut sender = node.login(Wire::Tcp, "sender", "d");
    let before = node.rss();
    let last = flood_group(&mut sender, &group, &mut members, 0);
    let grown = node.rss().saturating_sub(before);
    // The messages in the log and in flight; the outboxes share them.
    assert!(grown < 24 << 20, "memory grew by {grown} bytes");
    for member in &mut stalled {
        expect_pushes_or_behind(member, &group, last + 1 - MESSAGES as u64, last);
    }
    assert_eq!(sender.text(&group, "after", "after"), last + 1);
    for member in members.iter_mut().chain(&mut stalled) {
        assert_eq!(text_of(&member.expect_push()), "after");
    }
}

#[test]
fn group_members_that_never_read_again_are_closed() {
    let node = start("timing.write_ms=2000");
    let names: Vec<String> = (0..STALLED).map(|n| format!("member-{n}")).chain(["sender".into()]).collect();
    let group = node.group("hall", &names);
    let mut members: Vec<Client> =
        (0..STALLED).map(|n| node.login(Wire::ALL[n % 4], &names[n], "d")).collect();
    let _stalled = members.split_off(STALLED / 2);
    let mut sender = node.login(Wire::Tcp, "sender", "d");
    let (mut last, mut round) = (flood_group(&mut sender, &group, &mut members, 0), 0);
    // One whose last bytes just fit into the kernel is not slow before there is more for it.
    let (began, stalled) = (Instant::now(), (STALLED - members.len()) as f64);
    while node.metric("slow_closes_total") < stalled {
        assert!(began.elapsed() < WAIT_MAX, "{} of {stalled} are closed", node.metric("slow_closes_total"));
        round += 1;
        last = flood_group(&mut sender, &group, &mut members, round);
    }
    node.metric_becomes("connections", (members.len() + 1) as f64);
    assert_eq!(sender.text(&group, "after", "after"), last + 1);
    for member in &mut members {
        assert_eq!(text_of(&member.expect_push()), "after");
    }
}

/// Sends more to a group than fits for members that do not read; the others get all of it in order. Returns the last
/// seq.
fn flood_group(sender: &mut Client, group: &str, members: &mut [Client], round: usize) -> u64 {
    let mut last = 0;
    for n in 0..MESSAGES {
        last = sender.text(group, &format!("m{round}-{n}"), &text(n));
        if n % 4 == 3 {
            for member in &mut *members {
                for n in n - 3..=n {
                    let push = member.expect_push();
                    assert_eq!(text_of(&push)[..4], text(n)[..4], "in order, none left out");
                }
            }
        }
    }
    last
}

/// Expects pushes in order up to the last one; `Behind` names the missing ones, at least once.
fn expect_pushes_or_behind(member: &mut Client, group: &str, first: u64, last: u64) {
    let (mut next, mut hints) = (first, 0);
    while next <= last {
        match member.take("pushes and behind", |_| true).body {
            Some(ServerBody::Push(push)) => {
                assert_eq!(push.seq, next, "a hole without `Behind`");
                next += 1;
            }
            Some(ServerBody::Behind(behind)) => {
                assert_eq!(behind.conversation, group);
                assert!(behind.max_seq >= next, "behind at {next}, but only up to {}", behind.max_seq);
                next = behind.max_seq + 1;
                hints += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(hints > 0, "the member was not slow enough for this test");
}

#[test]
fn stalled_room_member_learns_the_number_of_shed_frames() {
    let node = start(PATIENT);
    for wire in Wire::ALL {
        let mut sender = node.login(Wire::Tcp, "sender", "d");
        let mut healthy = node.login(wire, "healthy", "d");
        let mut stalled = node.login(wire, "stalled", "d");
        for client in [&mut sender, &mut healthy, &mut stalled] {
            assert!(matches!(client.ask(ask::join("hall")), ServerBody::Done(_)));
        }
        for n in 0..MESSAGES {
            sender.text("r:hall", &format!("m{n}"), &text(n));
            assert_eq!(text_of(&healthy.expect_push())[..4], text(n)[..4]);
        }
        let (mut received, mut shed, mut latest) = (0, 0, String::new());
        while received + shed < MESSAGES {
            match stalled.take("pushes, then shed", |_| true).body {
                Some(ServerBody::Push(push)) => {
                    let number = text_of(&push)[..4].to_owned();
                    assert!(number > latest, "{number} after {latest}");
                    latest = number;
                    received += 1;
                }
                Some(ServerBody::Shed(pb::Shed { room, count })) => {
                    assert_eq!(room, "hall");
                    shed += count as usize;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received + shed, MESSAGES, "{wire:?}: every frame came or was counted");
        assert!(shed > 0, "{wire:?}: the member was not slow enough for this test");
        stalled.settle();
        sender.text("r:hall", "after", "after");
        assert_eq!(text_of(&stalled.expect_push()), "after");
        for mut client in [sender, healthy, stalled] {
            client.say(ask::bye());
            assert_eq!(client.expect_close(), Code::Bye);
        }
    }
}
