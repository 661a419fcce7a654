//! Live rooms that are busier than the fan-out: they delay themselves, and no other mail.

use tidegate::mail::Mail;
use tidegate_protocol::id::ConversationId;

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
