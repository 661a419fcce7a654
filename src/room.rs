//! Live rooms: the one lossy class. Numbered and fanned out at once, never logged.

use dashmap::DashMap;
use foldhash::quality::RandomState;
use std::{num::NonZeroU64, ops::RangeInclusive, sync::Arc};
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    machine::session::Submit,
};

use crate::{
    mail::{Audience, ConnKey, Delivery},
    scratch::Numbers,
};

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
    /// The next `count` numbers of a room from whoever numbers for the whole cluster; while that is away, from this
    /// node's own count, because a room is worth more than its numbers. These may then fall or be given twice:
    /// receivers go by msg_id (DESIGN 6.6).
    pub async fn number(
        &self,
        numbers: &dyn Numbers,
        room: &ConversationId,
        count: NonZeroU64,
        now_ms: u64,
    ) -> RangeInclusive<u64> {
        match numbers.take(room.as_str(), count).await {
            Ok(range) => {
                self.numbers.insert(room.clone(), *range.end());
                range
            }
            Err(error) => {
                tracing::debug!(%error, %room, "numbered by this node alone");
                let first = self.next(room, now_ms);
                let last = first + (count.get() - 1);
                self.numbers.insert(room.clone(), last);
                first..=last
            }
        }
    }

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
    use std::sync::Mutex;

    use async_trait::async_trait;

    use super::*;
    use crate::scratch::ScratchError;

    /// Gives what it was filled with, then is away.
    struct Filled(Mutex<Vec<RangeInclusive<u64>>>);

    #[async_trait]
    impl Numbers for Filled {
        async fn take(&self, _: &str, _: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
            self.0.lock().unwrap().pop().ok_or_else(|| ScratchError::Unavailable("empty".into()))
        }
        async fn changed(&self) -> Result<(), ScratchError> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_room_goes_on_without_the_numbers_of_the_cluster() {
        let (rooms, room) = (Rooms::default(), ConversationId::parse("r:hall").unwrap());
        let numbers = Filled(Mutex::new(vec![9..=10, 5..=6]));
        let two = NonZeroU64::new(2).unwrap();
        for given in [5..=6, 9..=10, 11..=12, 13..=14] {
            assert_eq!(rooms.number(&numbers, &room, two, 1_000).await, given);
        }
    }

    #[test]
    fn numbers_rise_in_a_room_and_after_a_restart() {
        let room = ConversationId::parse("r:hall").unwrap();
        let rooms = Rooms::default();
        let first = rooms.next(&room, 1_000);
        assert_eq!(rooms.next(&room, 1_500), first + 1);
        assert!(Rooms::default().next(&room, 2_000) > first + 1);
    }
}
