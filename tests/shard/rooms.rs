//! Live rooms that are busier than the fan-out, or over their rate: they delay themselves, and no other mail.

use std::{sync::Arc, time::Duration};

use tidegate::{
    link::RoomRemoval,
    live::Live,
    load::{GateSettings, LoadFigures, LoadWatch, PressureInputs},
    mail::{ConnectionOrder, Mail},
    metrics,
    priorities::UserPriority,
    room_rules::{RoomRule, RoomRules},
};
use tidegate_protocol::{
    Time,
    id::{ConversationId, RoomId, UserId},
};
use tokio::sync::oneshot;

use crate::{
    connect, id, join, login,
    manual_shards::{ManualShards, push, push_to},
    network::Memory,
    support::{Client, ServerBody, ask, send, text_of},
};

/// Members of the busy room.
const MEMBERS: usize = 30;

/// Creates a shard with members of a room.
fn with_members(room: &str) -> (ManualShards<Memory>, Vec<Client>) {
    let mut shards = ManualShards::new(1, |context, _| context.mailbox_bytes = 16 << 20);
    let members = (0..MEMBERS).map(|n| {
        let mut member = login(&mut shards, 0, &format!("member-{n}"), &[]);
        join(&mut shards, 0, &mut member, room);
        member
    });
    let members = members.collect();
    (shards, members)
}

/// Posts frames of a room until neither the fan-out nor the lane of the mailbox takes any more.
fn fill(shards: &mut ManualShards<Memory>, room: &ConversationId) {
    let text = "x".repeat(8_192);
    let mut seq = 0;
    for _ in 0..4 {
        while shards.handles[0].try_post(Mail::RoomFrames(vec![push(room, seq, &text)])) {
            seq += 1;
        }
        shards.turn(0);
    }
    while shards.handles[0].try_post(Mail::RoomFrames(vec![push(room, seq, &text)])) {}
}

#[test]
fn s69_busy_room_delays_no_other_mail() {
    let (mut shards, _members) = with_members("hall");
    let mut bob = login(&mut shards, 0, "bob", &[]);
    let mut carl = connect(&mut shards, 0, "carl");
    shards.turn(0);
    let (hall, group, more) = (id("r:hall"), id("g:harbour"), "x".repeat(8_192));
    fill(&mut shards, &hall);
    assert!(shards.push(0, push_to("bob", &id("d:alice:bob"), 1, "direct")));
    assert!(shards.answer_logins(0, std::slice::from_ref(&group)), "carl's login waits");
    assert!(shards.push(0, push(&group, 1, "to the group")));
    shards.turn(0);
    assert!(!shards.handles[0].try_post(Mail::RoomFrames(vec![push(&hall, 1, &more)])), "still full");
    assert_eq!(text_of(&bob.expect_push()), "direct");
    assert!(matches!(carl.reply(1), ServerBody::Welcome(_)));
    shards.turn(0);
    assert_eq!(text_of(&carl.expect_push()), "to the group");
}

#[test]
fn s69_messages_to_a_busy_room_wait_and_none_is_lost() {
    const MESSAGES: usize = 50;
    let (mut shards, mut members) = with_members("hall");
    let mut speaker = login(&mut shards, 0, "speaker", &[]);
    join(&mut shards, 0, &mut speaker, "hall");
    let mut other = login(&mut shards, 0, "other", &[]);
    join(&mut shards, 0, &mut other, "tea");
    // Less than the fan-out of all rooms takes, but more than the share of one.
    let text = "x".repeat(8_192);
    let frames = (0..200).map(|seq| push(&id("r:hall"), seq, &text)).collect();
    shards.post(0, Mail::RoomFrames(frames));
    shards.turn(0);
    let say =
        |client: &mut Client, room: &str, n: usize| client.say(ask::send(send(room, &format!("m{n}"), "hi")));
    let sent: Vec<u64> = (0..MESSAGES).map(|n| say(&mut speaker, "r:hall", n)).collect();
    let elsewhere = say(&mut other, "r:tea", 0);
    shards.turn(0);
    assert!(matches!(other.reply(elsewhere), ServerBody::SendAck(_)), "another room is not busy");
    speaker.listen(std::time::Duration::from_millis(1));
    assert!(!speaker.inbox.iter().any(|frame| sent.contains(&frame.id)), "{:?}", speaker.inbox);
    let mut turns = 0;
    while !speaker.inbox.iter().any(|frame| frame.id == sent[MESSAGES - 1]) {
        turns += 1;
        assert!(turns < 2_000, "the messages wait for ever");
        shards.turn(0);
        speaker.listen(std::time::Duration::ZERO);
        members.iter_mut().for_each(|member| {
            member.listen(std::time::Duration::ZERO);
            member.inbox.clear();
        });
    }
    let mut seqs = Vec::new();
    for request in sent {
        let ServerBody::SendAck(ack) = speaker.reply(request) else { panic!("a message was refused") };
        seqs.push(ack.seq);
    }
    assert!(seqs.is_sorted_by(|a, b| a < b), "{seqs:?}");
}

/// Creates a shard whose rooms have a rule, and where the user `vip` has priority 2.
fn with_rule(rate: u32, tick_ms: u64) -> ManualShards<Memory> {
    ManualShards::new(1, |context, _| {
        let rule = RoomRule { rate, tick: Duration::from_millis(tick_ms), last: 3, ..RoomRule::default() };
        context.room_rules = Arc::new(Live::new(RoomRules::parse(rule, &[]).expect("a good rule")));
        let important = UserPriority { class: 2, until_ms: None };
        context.cluster.priorities.set(&UserId::new("vip").expect("a good id"), Some(important));
    })
}

fn in_room(shards: &mut ManualShards<Memory>, user: &str) -> Client {
    let mut client = login(shards, 0, user, &[]);
    join(shards, 0, &mut client, "hall");
    client
}

fn say(client: &mut Client, msg_id: &str) -> u64 {
    client.say(ask::send(send("r:hall", msg_id, "hi")))
}

fn advance(shards: &mut ManualShards<Memory>, ms: u64) {
    for _ in 0..ms / 10 {
        shards.now = shards.now + Duration::from_millis(10);
        shards.turn(0);
    }
}

#[test]
fn room_over_its_rate_is_sampled_by_priority_and_its_members_learn_the_number() {
    let mut shards = with_rule(10, 0);
    let [mut ann, mut vip, mut viewer] = ["ann", "vip", "viewer"].map(|user| in_room(&mut shards, user));
    let plain: Vec<u64> = (0..150).map(|n| say(&mut ann, &format!("a{n}"))).collect();
    shards.turn(0);
    let important: Vec<u64> = (0..5).map(|n| say(&mut vip, &format!("v{n}"))).collect();
    shards.turn(0);
    for request in important {
        assert!(matches!(vip.reply(request), ServerBody::SendAck(_)), "it does not wait");
    }
    ann.listen(Duration::from_millis(1));
    assert!(!ann.inbox.iter().any(|frame| frame.id == plain[149]), "it waits for the choice");
    advance(&mut shards, 100);
    let (mut passed, mut left_out) = (0, 0);
    for request in plain {
        match ann.reply(request) {
            ServerBody::SendAck(_) => passed += 1,
            ServerBody::Error(error) => {
                assert_eq!((error.name.as_str(), error.temporary), ("LEFT_OUT", false));
                left_out += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((10..=11).contains(&passed) && passed + left_out == 150, "{passed} and {left_out}");
    advance(&mut shards, 1_000);
    let request = say(&mut ann, "later");
    shards.turn(0);
    assert!(matches!(ann.reply(request), ServerBody::SendAck(_)), "140 refusals do not close it");
    let stats = viewer.take("the report", |frame| matches!(frame.body, Some(ServerBody::RoomStats(_))));
    let Some(ServerBody::RoomStats(stats)) = stats.body else { panic!("a report") };
    assert_eq!((stats.room.as_str(), stats.left_out), ("hall", left_out));
}

#[test]
fn room_that_goes_quiet_reports_what_was_left_out() {
    let mut shards = with_rule(10, 0);
    let [mut ann, mut viewer] = ["ann", "viewer"].map(|user| in_room(&mut shards, user));
    for n in 0..50 {
        say(&mut ann, &format!("a{n}"));
    }
    advance(&mut shards, 1_500);
    viewer.listen(Duration::ZERO);
    let reported = viewer.inbox.iter().filter_map(|frame| match &frame.body {
        Some(ServerBody::RoomStats(stats)) => Some(stats.left_out),
        _ => None,
    });
    let reported: Vec<u64> = reported.collect();
    assert!(matches!(reported[..], [39..=40]), "{reported:?}");
}

#[test]
fn user_that_reacts_first_in_many_rooms_is_refused_and_others_are_not() {
    let mut shards: ManualShards<Memory> = ManualShards::new(1, |_, _| ());
    let [mut ann, mut bob] = ["ann", "bob"].map(|user| login(&mut shards, 0, user, &[]));
    let react = |shards: &mut ManualShards<Memory>, client: &mut Client, room: &str| {
        join(shards, 0, client, room);
        let request = client.say(ask::react(room, "like"));
        shards.turn(0);
        shards.now = shards.now + Duration::from_millis(200);
        match client.reply(request) {
            ServerBody::Done(_) => None,
            ServerBody::Error(error) => Some((error.name, error.message)),
            other => panic!("{other:?}"),
        }
    };
    for n in 0..32 {
        assert_eq!(react(&mut shards, &mut ann, &format!("own-{n}")), None);
    }
    let (name, why) = react(&mut shards, &mut ann, "one-more").expect("a refusal");
    assert!(name == "BUSY" && why.contains("react after others"), "{name}: {why}");
    assert_eq!(react(&mut shards, &mut bob, "one-more"), None);
    assert_eq!(react(&mut shards, &mut ann, "one-more"), None, "another one has begun");
}

#[test]
fn reaction_counts_for_members_only_and_is_bounded_in_kinds() {
    let mut rooms = None;
    let mut shards: ManualShards<Memory> = ManualShards::new(1, |context, _| {
        rooms = Some(Arc::clone(&context.rooms));
        let rules = RoomRules::parse(RoomRule { members: true, ..RoomRule::default() }, &[]);
        context.room_rules = Arc::new(Live::new(rules.expect("a good rule")));
    });
    let (rooms, hall) = (rooms.expect("the rooms of the shards"), id("r:hall"));
    let [mut ann, mut bob] = ["ann", "bob"].map(|user| in_room(&mut shards, user));
    let mut out = login(&mut shards, 0, "out", &[]);
    let answer = |shards: &mut ManualShards<Memory>, client: &mut Client, kind: &str| {
        let request = client.say(ask::react("hall", kind));
        shards.turn(0);
        match client.reply(request) {
            ServerBody::Done(_) => "DONE".to_owned(),
            ServerBody::Error(error) => error.name,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(answer(&mut shards, &mut out, "like"), "NOT_A_MEMBER");
    for n in 0..16 {
        let client = if n % 2 == 0 { &mut ann } else { &mut bob };
        assert_eq!(answer(&mut shards, client, &format!("k{n}")), "DONE");
    }
    assert_eq!(answer(&mut shards, &mut ann, "one-more"), "BUSY");
    assert_eq!(answer(&mut shards, &mut ann, "k3"), "DONE");
    assert_eq!(answer(&mut shards, &mut ann, "k3"), "RATE_LIMITED", "ten a second");
    advance(&mut shards, 200);
    rooms.tallies().poll(Time::ZERO, |_| true);
    let due = rooms.tallies().poll(Time::from_millis(2_000), |_| true).pop().expect("numbers");
    assert_eq!(due.stats.expect("a frame").members, Some(2), "the sweep has counted them");
    let mut late = in_room(&mut shards, "late");
    let stats = late.expect_stats("the numbers at the join", |_| true);
    assert_eq!((stats.members, stats.reactions.len()), (Some(2), 16));
    assert_eq!(stats.reactions.iter().map(|it| it.total).sum::<u64>(), 17);
    drop(late);
    shards.turn(0);
    ann.say(ask::leave("hall"));
    advance(&mut shards, 300);
    let due = rooms.tallies().poll(Time::from_millis(9_000), |room| *room == hall).pop().expect("numbers");
    assert_eq!(due.stats.expect("a frame").members, Some(1));
}

/// Creates a shard whose load level the returned function raises to 3, by the memory in use.
fn with_load() -> (ManualShards<Memory>, impl FnOnce(&mut ManualShards<Memory>)) {
    let load = Arc::new(LoadFigures::default());
    let shards = ManualShards::new(1, |context, _| {
        context.load = Arc::clone(&load);
        context.gates = GateSettings { is_enabled: true, ..GateSettings::default() };
        let important = UserPriority { class: 2, until_ms: None };
        context.cluster.priorities.set(&UserId::new("vip").expect("a good id"), Some(important));
    });
    let overload = move |shards: &mut ManualShards<Memory>| {
        let full = PressureInputs { memory: 1.5, ..PressureInputs::default() };
        LoadWatch::new(Arc::clone(&load), metrics::install().0).sample(full, shards.now);
        assert_eq!(load.level(), 3);
        advance(shards, 110);
    };
    (shards, overload)
}

#[test]
fn members_of_low_priority_get_fewer_passes_under_overload_and_learn_what_they_missed() {
    let (mut shards, overload) = with_load();
    let [mut ann, mut vip, mut viewer] = ["ann", "vip", "viewer"].map(|user| in_room(&mut shards, user));
    let received = |client: &mut Client| {
        client.listen(Duration::ZERO);
        let (mut messages, mut shed) = (Vec::new(), Vec::new());
        for frame in client.inbox.drain(..) {
            match frame.body {
                Some(ServerBody::Push(push)) => messages.push(push.msg_id),
                Some(ServerBody::Shed(it)) => shed.push((messages.len(), it.count)),
                _ => {}
            }
        }
        (messages, shed)
    };
    let mut say_all = |shards: &mut ManualShards<Memory>, ids: std::ops::Range<u32>| {
        for n in ids {
            say(&mut ann, &format!("m{n}"));
            shards.turn(0);
        }
    };
    say_all(&mut shards, 0..3);
    assert_eq!(received(&mut viewer).0.len(), 3, "not overloaded");
    overload(&mut shards);
    say_all(&mut shards, 1..10);
    let (messages, shed) = received(&mut viewer);
    assert_eq!(messages, ["m4", "m8"]);
    assert_eq!(shed, [(0, 3), (1, 3)], "before each pass that it gets");
    advance(&mut shards, 1_200);
    assert_eq!(received(&mut viewer), (vec![], vec![(0, 1)]), "the room is quiet");
    let (messages, shed) = received(&mut vip);
    assert_eq!((messages.len(), shed.len()), (12, 0), "priority 2 gets all");
}

/// Sends large messages to the hall; 100 are more than the pipe and the outbox of a member take.
fn flood(shards: &mut ManualShards<Memory>, client: &mut Client, prefix: &str, count: usize) {
    let text = "x".repeat(20_000);
    for n in 0..count {
        client.say(ask::send(send("r:hall", &format!("{prefix}{n}"), &text)));
        shards.turn(0);
        client.listen(Duration::ZERO);
    }
}

/// Returns all that waits for a client, in order.
fn read_all(shards: &mut ManualShards<Memory>, client: &mut Client) -> Vec<ServerBody> {
    let mut frames = Vec::new();
    for _ in 0..400 {
        client.listen(Duration::ZERO);
        shards.turn(0);
        frames.extend(client.inbox.drain(..).filter_map(|frame| frame.body));
    }
    frames
}

/// Removes a user from the hall; returns how many connections were in it.
pub(crate) fn remove_from_hall(shards: &mut ManualShards<Memory>, user: &str) -> u64 {
    let (reply, mut removed) = oneshot::channel();
    let (room, user) = (RoomId::new("hall").expect("a good id"), UserId::new(user).expect("a good id"));
    let removal = RoomRemoval { room, user, device: None, reason: "spam".to_owned() };
    shards.post(0, Mail::Connections(ConnectionOrder::RemoveFromRoom(Arc::new(removal), reply)));
    shards.turn(0);
    removed.try_recv().expect("the shard has replied")
}

#[test]
fn member_that_reads_slowly_gets_nothing_of_a_room_after_its_removal() {
    let mut shards = with_rule(0, 0);
    let [mut ann, mut viewer] = ["ann", "viewer"].map(|user| in_room(&mut shards, user));
    join(&mut shards, 0, &mut viewer, "attic");
    flood(&mut shards, &mut ann, "a", 100);
    assert_eq!(remove_from_hall(&mut shards, "viewer"), 1);
    shards.post(0, Mail::RoomFrames(vec![push(&id("r:attic"), 7, "goes on")]));
    let frames = read_all(&mut shards, &mut viewer);
    let is_notice = |frame: &ServerBody| matches!(frame, ServerBody::Notice(_));
    let notice = frames.iter().position(is_notice).expect("the notice");
    assert!(notice > 0, "something waited");
    match &frames[notice + 1..] {
        [ServerBody::Push(push)] => assert_eq!(push.conversation, "r:attic"),
        after => panic!("{} frames follow: {:?}", after.len(), after.last()),
    }
    assert_eq!(remove_from_hall(&mut shards, "viewer"), 0);
}

#[test]
fn member_that_reads_slowly_loses_messages_of_lower_priority_first() {
    let mut shards = with_rule(0, 0);
    let [mut ann, mut vip, mut viewer] = ["ann", "vip", "viewer"].map(|user| in_room(&mut shards, user));
    flood(&mut shards, &mut ann, "a", 100);
    flood(&mut shards, &mut vip, "v", 5);
    let (mut received, mut shed) = (Vec::new(), 0);
    for frame in read_all(&mut shards, &mut viewer) {
        match frame {
            ServerBody::Push(push) => received.push(push.msg_id),
            ServerBody::Shed(it) => shed += it.count,
            _ => {}
        }
    }
    assert_eq!(received.iter().filter(|it| it.starts_with('v')).count(), 5, "{received:?}");
    assert!(shed > 5, "{shed}");
    assert_eq!(received.len() as u64 + shed, 105, "all are received or counted");
}

#[test]
fn room_with_a_tick_writes_what_was_sent_in_it_together() {
    let mut shards = with_rule(0, 50);
    let [mut ann, mut viewer] = ["ann", "viewer"].map(|user| in_room(&mut shards, user));
    let count = |viewer: &mut Client| {
        viewer.listen(Duration::ZERO);
        let is_push =
            |frame: &tidegate_protocol::pb::ServerFrame| matches!(frame.body, Some(ServerBody::Push(_)));
        viewer.inbox.iter().filter(|frame| is_push(frame)).count()
    };
    for n in 0..4 {
        say(&mut ann, &format!("m{n}"));
        shards.turn(0);
        shards.now = shards.now + Duration::from_millis(10);
    }
    assert_eq!(count(&mut viewer), 1, "the first is written at once");
    shards.turn(0);
    assert_eq!(count(&mut viewer), 1);
    advance(&mut shards, 10);
    assert_eq!(count(&mut viewer), 4);
}

#[test]
fn member_that_joins_gets_recent_messages_once_and_in_order() {
    let mut shards = with_rule(0, 0);
    let [mut ann, mut first] = ["ann", "first"].map(|user| in_room(&mut shards, user));
    let texts = |client: &mut Client| -> Vec<String> {
        client.listen(Duration::ZERO);
        let texts = client.inbox.drain(..).filter_map(|frame| match frame.body {
            Some(ServerBody::Push(push)) => Some(push.msg_id),
            _ => None,
        });
        texts.collect()
    };
    // The rules of rooms are read with each sweep.
    advance(&mut shards, 200);
    for n in 0..5 {
        say(&mut ann, &format!("m{n}"));
        shards.turn(0);
    }
    let mut late = in_room(&mut shards, "late");
    say(&mut ann, "m5");
    shards.turn(0);
    shards.turn(0);
    assert_eq!(texts(&mut late), ["m2", "m3", "m4", "m5"]);
    assert_eq!(texts(&mut first).len(), 6);
    let again = late.say(ask::join("hall"));
    shards.turn(0);
    assert!(matches!(late.reply(again), ServerBody::Done(_)));
    assert_eq!(texts(&mut late), Vec::<String>::new(), "it was in the room already");
}
