//! Messages of the API to live rooms: numbered and passed on at once, never stored.

use std::{num::NonZeroU64, sync::Arc};

use tidegate_protocol::codec::PushFrame;

use super::sender::{MessageSender, OutgoingMessage, SenderParts, SentMessage};
use crate::{
    api::{Problem, ProblemDetails, now_ms},
    mail::{Audience, Delivery, Mail},
};

impl MessageSender {
    /// Numbers a message to a live room, and passes it to the members here and to the other nodes. Its sender need not be in
    /// the room, and it is none of those that the rate of the room counts.
    pub(super) async fn publish(&self, message: OutgoingMessage) -> Result<SentMessage, ProblemDetails> {
        let OutgoingMessage { conversation: room, sender, msg_id, content, .. } = message;
        let SenderParts { cluster, rooms, directory, shards, metrics, .. } = &self.parts;
        let numbered = rooms.assign_numbers(&room, NonZeroU64::MIN).await;
        let numbered = numbered.map_err(|code| {
            ProblemDetails::from(Problem(code, String::new())).with("msgId", msg_id.as_str())
        })?;
        let (seq, time, class) =
            (*numbered.numbers.start(), now_ms(), cluster.priorities.class(&sender, None));
        let frame =
            PushFrame::from_parts(room.as_str(), seq, sender.as_str(), msg_id.as_str(), time, &content, 0);
        if let Some(push) = frame.push().filter(|_| !numbered.nodes.is_empty()) {
            rooms.forward(&numbered.nodes, &room, &push, class, 0);
        }
        let delivery = Delivery {
            conversation: room.clone(),
            seq,
            audience: Audience::Members,
            frame: Arc::new(frame),
            origin: None,
            tracked: false,
            class,
        };
        for shard in directory.conversation(&room).iter() {
            let handle = shards.get().and_then(|shards| shards.get(shard));
            if !handle.is_none_or(|handle| handle.try_post(Mail::RoomFrames(vec![delivery.clone()]))) {
                metrics.count_shed(class, 1);
            }
        }
        Ok(SentMessage { conversation: room, msg_id, seq, time, is_duplicate: false, is_stored: false })
    }
}
