//! Live rooms: the one lossy class. Numbered and fanned out at once, never logged.

use dashmap::DashMap;
use foldhash::quality::RandomState;
use std::sync::Arc;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    machine::session::Submit,
};

use crate::mail::{Audience, ConnKey, Delivery};

/// Rooms remembered; above it the numbers of idle rooms start over, which clients tell by the msg_id.
const ROOMS_MAX: usize = 100_000;

/// The last number of each room that was talked in.
///
/// Numbers rise per room from the node's clock at the first message, so that a restart does not repeat them; receivers
/// tell room messages apart by msg_id, never by number (DESIGN 6.6).
#[derive(Default)]
pub struct Rooms {
    numbers: DashMap<ConversationId, u64, RandomState>,
}

/// Numbers a message to a room and makes its delivery; `now_ms` is the wall clock.
pub fn publish(
    rooms: &Rooms,
    sender: &UserId,
    origin: ConnKey,
    submit: Submit,
    now_ms: u64,
) -> (u64, Delivery) {
    let seq = rooms.next(&submit.conversation, now_ms);
    let frame = PushFrame::from_parts(
        submit.conversation.as_str(),
        seq,
        sender.as_str(),
        submit.msg_id.as_str(),
        now_ms,
        &submit.content,
    );
    let delivery = Delivery {
        conversation: submit.conversation,
        seq,
        audience: Audience::Members,
        frame: Arc::new(frame),
        origin: Some(origin),
        tracked: false,
    };
    (seq, delivery)
}

impl Rooms {
    fn next(&self, room: &ConversationId, now_ms: u64) -> u64 {
        if self.numbers.len() > ROOMS_MAX && !self.numbers.contains_key(room) {
            self.numbers.clear();
        }
        let mut number = self.numbers.entry(room.clone()).or_insert(now_ms);
        *number += 1;
        *number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_in_a_room_and_after_a_restart() {
        let room = ConversationId::parse("r:hall").unwrap();
        let rooms = Rooms::default();
        let first = rooms.next(&room, 1_000);
        assert_eq!(rooms.next(&room, 1_500), first + 1);
        assert!(Rooms::default().next(&room, 2_000) > first + 1);
    }
}
