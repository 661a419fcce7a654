//! Budget of frames of each connection: a flood is read slowly, then closed; other clients and honest frames are not
//! affected.

use std::time::Duration;

use tidegate::mail::{Item, Mail};
use tidegate_protocol::Code;

use crate::{
    id, login, login_as,
    manual_shards::{ManualShards, push_to},
    network::{Memory, Network as _},
    support::{Client, ServerBody, ask, hello, send},
};

const MS: Duration = Duration::from_millis(1);

/// Creates a shard whose connections have a budget of frames, and a deadline for incomplete ones that would pass within
/// a pause.
fn limited(frames_per_second: u32) -> ManualShards<Memory> {
    ManualShards::new(1, |context, _| {
        context.conn_settings.change(|it| {
            it.limits.frames_per_second = frames_per_second;
            it.frame_deadline = 50 * MS;
        });
    })
}

fn say_pings(client: &mut Client, count: usize) {
    (0..count).for_each(|_| client.say_as(0, ask::ping()));
}

/// Returns the number of pongs that have arrived; nothing else may have.
fn take_pongs(client: &mut Client) -> usize {
    client.listen(MS);
    let pongs = client.inbox.drain(..).map(|frame| {
        assert!(matches!(frame.body, Some(ServerBody::Pong(_))), "{frame:?}");
    });
    pongs.count()
}

fn is_answered(shards: &mut ManualShards<Memory>, client: &mut Client) -> bool {
    let id = client.say(ask::ping());
    shards.turn(0);
    client.listen(MS);
    let before = client.inbox.len();
    client.inbox.retain(|frame| frame.id != id);
    client.inbox.len() < before
}

#[test]
fn x9_flood_is_read_at_the_rate_and_delays_nobody_else() {
    let mut shards = limited(50);
    let mut flooder = login(&mut shards, 0, "flooder", &[]);
    let mut honest = login(&mut shards, 0, "honest", &[]);
    say_pings(&mut flooder, 400);
    (0..4).for_each(|_| shards.turn(0));
    assert_eq!(take_pongs(&mut flooder), 200, "those of four seconds at once");
    assert!(is_answered(&mut shards, &mut honest));
    let mut read = 0;
    for n in 1..=42 {
        shards.now = shards.now + 100 * MS;
        (0..2).for_each(|_| shards.turn(0));
        read += take_pongs(&mut flooder);
        assert!(read <= n * 5, "{read} frames after {} ms", n * 100);
        assert!(is_answered(&mut shards, &mut honest));
    }
    assert_eq!(read, 200, "a pause costs no frame");
    // As many at once again, once the budget is refilled.
    shards.now = shards.now + 4_000 * MS;
    (0..3).for_each(|_| shards.turn(0));
    assert!(is_answered(&mut shards, &mut flooder));
    say_pings(&mut flooder, 199);
    shards.turn(0);
    assert_eq!(take_pongs(&mut flooder), 199);
}

#[test]
fn x9_client_that_floods_on_is_closed() {
    let mut shards = limited(50);
    let mut flooder = login(&mut shards, 0, "flooder", &[]);
    let mut honest = login(&mut shards, 0, "honest", &[]);
    say_pings(&mut flooder, 2_000);
    let began = shards.now;
    while shards.handles[0].conns() == 2 {
        assert!(shards.now < began + 11_000 * MS, "it is still read");
        shards.turn(0);
        assert!(is_answered(&mut shards, &mut honest));
        shards.now = shards.now + 100 * MS;
        flooder.listen(MS);
        if flooder.inbox.iter().any(|frame| matches!(frame.body, Some(ServerBody::Close(_)))) {
            break;
        }
    }
    assert!(shards.now >= began + 10_000 * MS, "closed at {}", shards.now);
    let pongs = flooder.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Pong(_)))).count();
    assert!((600..=710).contains(&pongs), "{pongs} frames were read");
    assert_eq!(flooder.expect_close(), Code::TooManyFrames);
    assert!(is_answered(&mut shards, &mut honest));
}

#[test]
fn x9_sends_and_due_acks_are_not_slowed_down() {
    let mut shards = limited(1);
    let conversation = id("d:alice:bob");
    let mut bob = login(&mut shards, 0, "bob", &[]);
    for seq in 1..=500 {
        assert!(shards.push(0, push_to("bob", &conversation, seq, "hi")));
        shards.turn(0);
        bob.expect_push();
        bob.say_as(0, ask::ack(conversation.as_str(), seq));
        shards.turn(0);
    }
    // No answer comes, so these are all that may be in flight, but one.
    for n in 0..255 {
        bob.say(ask::send(send("alice", &format!("m{n}"), "hi")));
    }
    (0..2).for_each(|_| shards.turn(0));
    assert!(is_answered(&mut shards, &mut bob));
    // Nothing waits for these any more.
    (0..3).for_each(|_| bob.say_as(0, ask::ack(conversation.as_str(), 500)));
    assert!(!is_answered(&mut shards, &mut bob));
    shards.now = shards.now + 1_200 * MS;
    (0..3).for_each(|_| shards.turn(0));
    bob.listen(MS);
    assert!(!bob.inbox.is_empty(), "answered later");
}

/// Frames that are received but not handled yet come before those that are not received, and before the end.
#[test]
fn x9_turn_handles_a_bounded_number_of_frames_of_a_connection() {
    let mut shards = limited(0);
    let mut flooder = login(&mut shards, 0, "flooder", &[]);
    let mut honest = login(&mut shards, 0, "honest", &[]);
    say_pings(&mut flooder, 1_000);
    assert!(is_answered(&mut shards, &mut honest), "in the same turn");
    assert_eq!(take_pongs(&mut flooder), 255, "the budget of a turn, and the other client's frame");
    shards.turn(0);
    assert_eq!(take_pongs(&mut flooder), 256);
    say_pings(&mut flooder, 23);
    flooder.link.half_close();
    (0..6).for_each(|_| shards.turn(0));
    flooder.listen(MS);
    let pongs = flooder.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Pong(_))));
    assert_eq!(pongs.count(), 512);
    assert_eq!(flooder.expect_close(), Code::Bye);
    assert!(!Memory::is_reset(&flooder));
}

/// S70.
#[test]
fn s70_turn_is_bounded_for_all_connections_together_and_all_progress() {
    const FLOODERS: usize = 40;
    let mut shards = limited(0);
    let mut flooders: Vec<Client> =
        (0..FLOODERS).map(|n| login(&mut shards, 0, &format!("flooder-{n}"), &[])).collect();
    let mut honest = login(&mut shards, 0, "honest", &[]);
    flooders.iter_mut().for_each(|flooder| say_pings(flooder, 400));
    let mut read = [0; FLOODERS];
    for turn in 1..=50 {
        shards.turn(0);
        let before: usize = read.iter().sum();
        for (count, flooder) in read.iter_mut().zip(&mut flooders) {
            *count += take_pongs(flooder);
        }
        let sum: usize = read.iter().sum();
        assert!(sum - before <= 256 + 32, "{} frames in turn {turn}", sum - before);
        if turn > 10 {
            let (least, most) = (read.iter().min().unwrap_or(&0), read.iter().max().unwrap_or(&0));
            assert!(*least > 0 && most - least <= 64, "{least} to {most} frames after {turn} turns");
        }
    }
    assert!(read.iter().all(|count| *count < 400), "they still flood");
    assert!(is_answered(&mut shards, &mut honest), "in the same turn");
}

/// S70.
#[test]
fn s70_large_frames_count_by_their_size() {
    let mut shards = limited(0);
    let mut flooders: Vec<Client> =
        (0..10).map(|n| login(&mut shards, 0, &format!("flooder-{n}"), &[])).collect();
    let text = "x".repeat(16 * 1024);
    for flooder in &mut flooders {
        for n in 0..20 {
            flooder.say(ask::send(send("nobody:else", &format!("m{n}"), &text)));
        }
    }
    shards.turn(0);
    let answered = |flooder: &mut Client| {
        flooder.listen(MS);
        flooder.inbox.drain(..).count()
    };
    let first: usize = flooders.iter_mut().map(answered).sum();
    assert!((10..=25).contains(&first), "{first} frames of 17 each");
    (0..20).for_each(|_| shards.turn(0));
    assert_eq!(first + flooders.iter_mut().map(answered).sum::<usize>(), 200);
}

/// S70.
#[test]
fn s70_pushes_to_many_devices_count_one_by_one() {
    const DEVICES: usize = 20;
    let mut shards = limited(0);
    let token = shards.token("mallory");
    let mut devices: Vec<Client> =
        (0..DEVICES).map(|n| login_as(&mut shards, hello(&token, &format!("d{n}")))).collect();
    let mut bob = login(&mut shards, 0, "bob", &[]);
    let own = id("d:mallory:mallory");
    let pushes = (1..=200).map(|seq| Item::Push(push_to("mallory", &own, seq, "hi"))).collect();
    shards.post(0, Mail::Deliver(pushes));
    assert!(shards.push(0, push_to("bob", &id("d:alice:bob"), 1, "direct")));
    let mut turns = 0;
    let mut next = [1; DEVICES];
    while bob.inbox.is_empty() {
        turns += 1;
        shards.turn(0);
        let before: u64 = next.iter().sum();
        for (next, device) in next.iter_mut().zip(&mut devices) {
            device.listen(Duration::ZERO);
            for frame in device.inbox.drain(..) {
                let Some(ServerBody::Push(push)) = frame.body else { panic!("{frame:?}") };
                assert_eq!(push.seq, *next, "in order");
                *next += 1;
            }
        }
        assert!(next.iter().sum::<u64>() - before <= 256 + DEVICES as u64);
        bob.listen(Duration::ZERO);
        assert!(turns < 100);
    }
    assert_eq!(next, [201; DEVICES], "what was posted first comes first");
    assert!(turns >= 15, "{turns} turns");
}
