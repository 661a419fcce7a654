//! Closed live rooms: a shard removes the members in parts, and refuses requests for a closed room without an end of the
//! connection.

use std::{sync::Arc, time::Duration};

use tidegate::{
    bans::{Ban, BanRecord},
    cluster::ClosedRooms,
};
use tidegate_protocol::{Code, pb};

use crate::{
    id, join, login,
    manual_shards::ManualShards,
    network::Memory,
    support::{Client, ServerBody, ask, send},
};

/// Creates a shard with members of the hall, and returns its closed rooms as well.
fn with_members(count: usize) -> (ManualShards<Memory>, Arc<ClosedRooms>, Vec<Client>) {
    let mut rooms = None;
    let mut shards = ManualShards::new(1, |context, _| {
        rooms = Some(Arc::clone(&context.cluster.closed_rooms));
    });
    let members = (0..count).map(|n| {
        let mut member = login(&mut shards, 0, &format!("u{n}"), &[]);
        join(&mut shards, 0, &mut member, "hall");
        member
    });
    let members = members.collect();
    (shards, rooms.expect("the context was built"), members)
}

fn close(rooms: &ClosedRooms, room: &str) {
    let record = BanRecord { reason: "over".to_owned(), ..BanRecord::default() };
    rooms.set(&id(room), Some(Ban { record, until_ms: None }));
}

/// Returns how many of the clients have been removed.
fn removed(clients: &mut [Client]) -> usize {
    let is_notice = |frame: &pb::ServerFrame| match &frame.body {
        Some(ServerBody::Notice(notice)) => {
            (notice.kind(), &*notice.message) == (pb::NoticeKind::RoomRemoved, "over")
        }
        _ => false,
    };
    let notices = clients.iter_mut().map(|client| {
        client.listen(Duration::ZERO);
        client.inbox.iter().filter(|frame| is_notice(frame)).count()
    });
    notices.sum()
}

#[test]
fn members_of_a_large_room_are_removed_in_parts_until_none_is_left() {
    let (mut shards, rooms, mut members) = with_members(300);
    // More than the names of changed rooms that are remembered.
    (0..300).for_each(|n| close(&rooms, &format!("r:other-{n}")));
    close(&rooms, "r:hall");
    shards.turn(0);
    assert_eq!(removed(&mut members), 256);
    let late = members[299].say(ask::send(send("r:hall", "m1", "hi")));
    shards.turn(0);
    assert_eq!(removed(&mut members), 300);
    assert_eq!(members[299].expect_error(late), Code::RoomClosed);
}

#[test]
fn room_that_is_opened_at_once_keeps_its_members() {
    let (mut shards, rooms, mut members) = with_members(1);
    close(&rooms, "r:hall");
    rooms.set(&id("r:hall"), None);
    shards.turn(0);
    let request = members[0].say(ask::send(send("r:hall", "m1", "hi")));
    shards.turn(0);
    assert!(matches!(members[0].reply(request), ServerBody::SendAck(_)));
}

#[test]
fn refusals_of_a_closed_room_do_not_close_the_connection() {
    let (mut shards, rooms, mut members) = with_members(1);
    close(&rooms, "r:hall");
    let ann = &mut members[0];
    for n in 0..40 {
        let request = ann.say(ask::send(send("r:hall", &format!("m{n}"), "hi")));
        shards.turn(0);
        assert_eq!(ann.expect_error(request), Code::RoomClosed);
    }
    let request = ann.say(ask::ping());
    shards.turn(0);
    assert!(matches!(ann.reply(request), ServerBody::Pong(_)));
}
