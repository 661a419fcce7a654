//! One shard at a time, turn by turn: what it does when something is full, late, closed or frozen.
//!
//! The stories run over sockets and over pipes in memory, which checks the pipes against the kernel.

#[path = "support/mod.rs"]
mod support;

#[path = "support/manual_shards.rs"]
mod manual_shards;

#[path = "support/pipes.rs"]
mod pipes;

#[path = "support/seed.rs"]
mod seed;

#[path = "shard/closed_rooms.rs"]
mod closed_rooms;

#[path = "shard/faults.rs"]
mod faults;

#[path = "shard/frames.rs"]
mod frames;

#[path = "shard/limits.rs"]
mod limits;

#[path = "shard/logins.rs"]
mod logins;

#[path = "shard/network.rs"]
mod network;

#[path = "shard/overload.rs"]
mod overload;

#[path = "shard/rooms.rs"]
mod rooms;

#[path = "shard/rules.rs"]
mod rules;

#[path = "shard/user_sends.rs"]
mod user_sends;

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use manual_shards::{ManualShards, Sockets, push, push_to};
use network::{Memory, Network};
use support::{Client, ServerBody, ask, hello, text_of};
use tidegate::{
    mail::{Audience, ConnKey, DrainCommand, DrainProgress, Item, Lag, Mail, Reassert},
    routes::Route,
};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::drain::Pace,
    pb,
};

/// Runs each story over both transports.
macro_rules! over_both {
    ($($story:ident),+ $(,)?) => {
        mod over_sockets {
            $(#[test]
            fn $story() {
                super::$story::<super::Sockets>();
            })+
        }

        mod over_pipes {
            $(#[test]
            fn $story() {
                super::$story::<super::Memory>();
            })+
        }
    };
}

over_both!(
    omitted_pushes_show_as_behind_at_their_position,
    room_frames_lost_between_shards_are_counted_in_shed,
    push_before_welcome_waits_for_welcome,
    new_member_gets_no_push_from_before_its_join,
    full_stream_is_not_written_to_until_it_takes_bytes,
    close_while_reading_is_paused_arrives_without_a_reset,
    routes_are_listed_in_pages_and_lost_ones_close_replaced,
    frozen_shard_reads_input_before_it_judges_silence,
    connection_queued_behind_the_end_of_a_drain_is_served,
    stopped_shard_counts_no_connection_that_was_queued,
);

fn id(text: &str) -> ConversationId {
    ConversationId::parse(text).expect("a good id")
}

/// Connects and sends Hello; the shard has the user but not the groups.
fn connect<N: Network>(shards: &mut ManualShards<N>, shard: usize, user: &str) -> Client {
    let hello = hello(&shards.token(user), "d");
    connect_as(shards, shard, hello)
}

fn connect_as<N: Network>(shards: &mut ManualShards<N>, shard: usize, hello: pb::Hello) -> Client {
    let mut client = N::connect(shards);
    shards.accept(shard);
    shards.turn(shard);
    client.say(ask::hello(hello));
    client
}

/// Logs in on the first shard as a user in no group.
fn login_as<N: Network>(shards: &mut ManualShards<N>, hello: pb::Hello) -> Client {
    let mut client = connect_as(shards, 0, hello);
    shards.admit(0, &[]);
    assert!(matches!(client.reply(1), ServerBody::Welcome(_)));
    client
}

fn login<N: Network>(
    shards: &mut ManualShards<N>,
    shard: usize,
    user: &str,
    groups: &[ConversationId],
) -> Client {
    let mut client = connect(shards, shard, user);
    shards.admit(shard, groups);
    assert!(matches!(client.reply(1), ServerBody::Welcome(_)));
    client
}

fn join<N: Network>(shards: &mut ManualShards<N>, shard: usize, client: &mut Client, room: &str) {
    let id = client.say(ask::join(room));
    shards.turn(shard);
    assert!(matches!(client.reply(id), ServerBody::Done(_)));
}

/// Half-closed clients log in as ever, except after a freeze.
#[test]
fn s81_login_given_up_during_a_freeze_replaces_no_newer_one() {
    give_up_logins::<Sockets>();
    give_up_logins::<Memory>();
}

fn give_up_logins<N: Network>() {
    let mut shards = ManualShards::<N>::new(1, |_, _| {});
    for (frozen_ms, is_registered) in [(100, true), (10_000, false), (100, false)] {
        let mut alice = connect(&mut shards, 0, "alice");
        alice.link.half_close();
        shards.now = shards.now + Duration::from_millis(frozen_ms);
        (0..3).for_each(|_| shards.turn(0));
        assert_eq!(shards.answer_logins(0, &[]), is_registered, "after {frozen_ms} ms");
        shards.turn(0);
        match alice.reply(1) {
            ServerBody::Welcome(_) => assert!(is_registered),
            ServerBody::Error(error) => {
                assert_eq!((error.name.as_str(), is_registered), ("OVERLOADED", false))
            }
            other => panic!("{other:?}"),
        }
    }
    connect(&mut shards, 0, "bob");
    shards.now = shards.now + Duration::from_millis(10_000);
    (0..3).for_each(|_| shards.turn(0));
    assert!(!shards.answer_logins(0, &[]), "its client is gone");
    let _carol = login(&mut shards, 0, "carol", &[]);
    shards.now = shards.now + Duration::from_millis(10_000);
    let _dave = login(&mut shards, 0, "dave", &[]);
}

fn omitted_pushes_show_as_behind_at_their_position<N: Network>() {
    let (mut shards, g) = (ManualShards::<N>::new(1, |_, _| {}), id("g:harbour"));
    let mut bob = login(&mut shards, 0, "bob", std::slice::from_ref(&g));
    let direct = id("d:alice:bob");
    let bobs = Audience::Users([UserId::new("bob").expect("a good id")].into());
    let left_out = [
        Item::Push(push(&g, 1, "one")),
        Item::Behind(Lag { conversation: g.clone(), max_seq: 3, audience: Audience::Members }),
        Item::Push(push(&g, 4, "four")),
        Item::Behind(Lag { conversation: direct.clone(), max_seq: 9, audience: bobs }),
    ];
    shards.post(0, Mail::Deliver(left_out.into()));
    (0..3).for_each(|_| shards.turn(0));
    let mut shown = Vec::new();
    while shown.len() < 3 {
        match bob.take("pushes and hints", |_| true).body {
            Some(ServerBody::Push(push)) => shown.push((push.conversation, push.seq)),
            Some(ServerBody::Behind(behind)) => shown.push((behind.conversation, behind.max_seq)),
            other => panic!("{other:?}"),
        }
    }
    // A push after omitted ones is omitted too, until the hint is sent.
    let mut groups: Vec<u64> =
        shown.iter().filter(|(at, _)| *at == g.as_str()).map(|(_, seq)| *seq).collect();
    groups.dedup();
    assert_eq!(groups, [1, 4], "{shown:?}");
    assert!(shown.contains(&(direct.to_string(), 9)), "{shown:?}");
}

fn room_frames_lost_between_shards_are_counted_in_shed<N: Network>() {
    const FRAMES: u64 = 40;
    // The mailbox has capacity for a few of them.
    let mut shards = ManualShards::<N>::new(2, |context, _| context.mailbox_bytes = 8 * 1_400);
    let mut speaker = login(&mut shards, 0, "speaker", &[]);
    let mut guest = login(&mut shards, 1, "guest", &[]);
    join(&mut shards, 0, &mut speaker, "hall");
    join(&mut shards, 1, &mut guest, "hall");
    let text = "x".repeat(1_000);
    for n in 0..FRAMES {
        let id = speaker.say(ask::send(support::send("r:hall", &format!("m{n}"), &text)));
        shards.turn(0);
        assert!(matches!(speaker.reply(id), ServerBody::SendAck(_)), "the room continues");
    }
    (0..4).for_each(|_| shards.turn(1));
    // The next sweep reports what did not fit then.
    shards.now = shards.now + std::time::Duration::from_secs(1);
    shards.turn(0);
    (0..4).for_each(|_| shards.turn(1));
    let (mut got, mut shed) = (0, 0);
    while got + shed < FRAMES {
        match guest.take("frames, then how many were shed", |_| true).body {
            Some(ServerBody::Push(push)) => got += u64::from(text_of(&push) == text),
            Some(ServerBody::Shed(shown)) => shed += shown.count,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(got + shed, FRAMES);
    assert!((1..20).contains(&got), "{got} frames fitted");
}

fn push_before_welcome_waits_for_welcome<N: Network>() {
    let (mut shards, g) = (ManualShards::<N>::new(1, |_, _| {}), id("g:harbour"));
    let mut bob = connect(&mut shards, 0, "bob");
    shards.turn(0);
    // The route is registered and the user is indexed; the owner has not answered yet.
    assert!(shards.push(0, push_to("bob", &id("d:alice:bob"), 1, "early")));
    (0..3).for_each(|_| shards.turn(0));
    bob.listen(std::time::Duration::from_millis(50));
    assert!(bob.inbox.is_empty(), "{:?}", bob.inbox);
    shards.admit(0, std::slice::from_ref(&g));
    let welcome = bob.take("the first frame", |_| true);
    assert!(matches!(welcome.body, Some(ServerBody::Welcome(_))), "{welcome:?}");
    assert_eq!(text_of(&bob.expect_push()), "early");
}

fn new_member_gets_no_push_from_before_its_join<N: Network>() {
    let (mut shards, g) = (ManualShards::<N>::new(1, |_, _| {}), id("g:harbour"));
    let mut alice = login(&mut shards, 0, "alice", std::slice::from_ref(&g));
    let mut bob = connect(&mut shards, 0, "bob");
    (0..3).for_each(|_| shards.turn(0));
    // The mailbox has it all when the turn begins: two messages, bob's groups, one more message.
    for (seq, text) in [(1, "before"), (2, "before")] {
        assert!(shards.push(0, push(&g, seq, text)));
    }
    assert!(shards.answer_logins(0, std::slice::from_ref(&g)), "bob's login waits");
    assert!(shards.push(0, push(&g, 3, "after")));
    (0..4).for_each(|_| shards.turn(0));
    let seqs: Vec<u64> = (0..3).map(|_| alice.expect_push().seq).collect();
    assert_eq!(seqs, [1, 2, 3]);
    assert_eq!(bob.expect_push().seq, 3);
    bob.listen(std::time::Duration::from_millis(30));
    let late = bob.inbox.iter().filter(|frame| matches!(frame.body, Some(ServerBody::Push(_)))).count();
    assert_eq!(late, 0, "{:?}", bob.inbox);
}

fn full_stream_is_not_written_to_until_it_takes_bytes<N: Network>() {
    let mut shards = ManualShards::<N>::new(1, |context, socket| {
        socket.send_buffer_bytes = 16 * 1024;
        context.conn_settings.change(|it| it.caps.data = 64 * 1024);
    });
    let g = id("g:harbour");
    let mut bob = login(&mut shards, 0, "bob", std::slice::from_ref(&g));
    let text = "x".repeat(4_000);
    let mut seq = 0;
    let mut wasted = Vec::new();
    for _ in 0..750 {
        for _ in 0..2 {
            seq += 1;
            assert!(shards.push(0, push(&g, seq, &text)));
        }
        let before = shards.transport.writes();
        shards.turn(0);
        wasted.push(shards.transport.writes() - before);
    }
    // One try per turn would be 300. The kernel may move bytes to the reader and report it a few times.
    let tries: u64 = wasted.iter().rev().take(300).sum();
    assert!(tries <= 10, "{tries} useless tries");
    // Bob reads at last: each push arrives, or a hint about it.
    let mut next = 1;
    while next <= seq {
        shards.turn(0);
        bob.listen(std::time::Duration::from_millis(1));
        while let Some(frame) = bob.inbox.pop_front() {
            match frame.body {
                Some(ServerBody::Push(push)) => {
                    assert_eq!(std::mem::replace(&mut next, push.seq + 1), push.seq)
                }
                Some(ServerBody::Behind(behind)) => next = behind.max_seq + 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(bob.ended.is_none(), "{:?}", bob.ended);
    }
}

fn close_while_reading_is_paused_arrives_without_a_reset<N: Network>() {
    let mut shards = ManualShards::<N>::new(1, |context, _| {
        context.conn_settings.change(|it| it.limits.in_flight_max = 1)
    });
    let mut bob = login(&mut shards, 0, "bob", &[]);
    // The owner never answers: the shard stops reading after the first send, and the rest waits in the stream.
    for n in 0..2_000 {
        bob.say(ask::send(support::send("alice", &format!("m{n}"), &"x".repeat(500))));
        if n % 100 == 0 {
            shards.turn(0);
        }
    }
    shards.post(0, Mail::Stop(Code::Draining));
    // The shard waits for the answer to the send, then writes the last frames, then discards input for a while.
    for _ in 0..40 {
        shards.turn(0);
        shards.now = shards.now + std::time::Duration::from_millis(300);
    }
    assert_eq!(shards.handles[0].conns(), 0, "the shard has closed it");
    assert!(!N::is_reset(&bob), "a reset");
    assert_eq!(bob.expect_close(), Code::Draining);
}

fn routes_are_listed_in_pages_and_lost_ones_close_replaced<N: Network>() {
    let mut routes = None;
    let mut shards =
        ManualShards::<N>::new(1, |context, _| routes = Some(Arc::clone(&context.cluster.ports.routes)));
    let routes = routes.expect("the context was built");
    let mut stays = login(&mut shards, 0, "ann", &[]);
    let mut other = login(&mut shards, 0, "bob", &[]);
    let guest = N::connect(&mut shards);
    shards.accept(0);
    shards.turn(0);
    let collect = |shards: &mut ManualShards<N>, from| {
        let (reply, mut slice) = tokio::sync::oneshot::channel();
        shards.post(0, Mail::Reassert(Reassert::Collect(from, reply)));
        shards.turn(0);
        slice.try_recv().expect("the shard answers in the same turn")
    };
    let all = collect(&mut shards, 0);
    let users = |rows: &[(ConnKey, Route)]| -> Vec<String> {
        rows.iter().map(|(_, route)| route.user.to_string()).collect()
    };
    assert_eq!((users(&all.rows), all.next), (vec!["ann".to_owned(), "bob".to_owned()], None));
    assert_eq!(users(&collect(&mut shards, 1).rows), ["bob"], "from that slot on");
    assert!(collect(&mut shards, 9).rows.is_empty(), "beyond the last slot");
    drop(guest);
    // A row whose connection closed during the re-assertion has no owner.
    let (key, mut gone) = all.rows[0].clone();
    gone.user = UserId::new("gone").expect("a good id");
    let put =
        routes.reassert(std::slice::from_ref(&gone)).now_or_never().expect("at once").expect("it answers");
    assert_eq!(put, [true]);
    let settled = vec![
        (all.rows[0].0, all.rows[0].1.clone(), true),
        (all.rows[1].0, all.rows[1].1.clone(), false),
        (key, gone.clone(), true),
    ];
    shards.post(0, Mail::Reassert(Reassert::Settle(settled)));
    (0..3).for_each(|_| shards.turn(0));
    assert_eq!(other.expect_close(), Code::Replaced);
    let places = [gone.user, all.rows[0].1.user.clone(), all.rows[1].1.user.clone()];
    let rows = routes.lookup(&places).now_or_never().expect("at once").expect("it answers");
    let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 1, 0], "the row without an owner and that of the closed connection are removed");
    stays.say(ask::ping());
    shards.turn(0);
    assert!(matches!(stays.take("a pong", |_| true).body, Some(ServerBody::Pong(_))));
}

fn frozen_shard_reads_input_before_it_judges_silence<N: Network>() {
    let mut shards = ManualShards::<N>::new(1, |_, _| {});
    let mut clients: Vec<Client> =
        (0..12).map(|n| login(&mut shards, 0, &format!("user-{n}"), &[])).collect();
    shards.limit_events(4);
    let mut silent = clients.split_off(11);
    let asked: Vec<u64> = clients.iter_mut().map(|client| client.say(ask::ping())).collect();
    shards.now = shards.now + Duration::from_secs(3_600);
    (0..6).for_each(|_| shards.turn(0));
    for (client, id) in clients.iter_mut().zip(asked) {
        assert!(matches!(client.reply(id), ServerBody::Pong(_)));
    }
    assert_eq!(silent[0].expect_close(), Code::HeartbeatMissed);
    for client in &mut clients {
        let id = client.say(ask::ping());
        (0..3).for_each(|_| shards.turn(0));
        assert!(matches!(client.reply(id), ServerBody::Pong(_)));
    }
}

fn connection_queued_behind_the_end_of_a_drain_is_served<N: Network>() {
    let mut lone = ManualShards::<N>::new(1, |_, _| {});
    let pace = Pace { start: lone.now, window: Duration::from_secs(60), handover: Duration::ZERO };
    let progress = Arc::new(DrainProgress::not_begun(1));
    lone.post(0, Mail::Drain(DrainCommand::Begin(pace, progress)));
    lone.turn(0);
    // The abort and the connection wait for the same turn.
    lone.post(0, Mail::Drain(DrainCommand::Forget));
    let mut bob = login(&mut lone, 0, "bob", &[]);
    let id = bob.say(ask::ping());
    lone.turn(0);
    assert!(matches!(bob.reply(id), ServerBody::Pong(_)));
}

fn stopped_shard_counts_no_connection_that_was_queued<N: Network>() {
    let mut lone = ManualShards::<N>::new(1, |_, _| {});
    let _early = N::connect(&mut lone);
    lone.accept(0);
    lone.post(0, Mail::Stop(Code::Draining));
    lone.turn(0);
    let _late = N::connect(&mut lone);
    lone.accept(0);
    assert_eq!(lone.handles[0].conns(), 2, "one lingers, the other is queued");
    lone.turn(0);
    assert_eq!(lone.handles[0].conns(), 1, "the later one is dropped");
    // The first turns after this time count as a freeze, so the sweep comes a little later.
    lone.now = lone.now + Duration::from_secs(60);
    (0..3).for_each(|_| lone.turn(0));
    assert_eq!(lone.handles[0].conns(), 0, "the shard can end");
}
