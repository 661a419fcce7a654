//! Pushes: what they are for their room, and the memory that they take; reports of presence.

use std::sync::Arc;

use prost::Message as _;
use tidegate_protocol::{codec::PushFrame, id::ConversationId, pb};

use super::{Audience, ConnKey, Delivery, ENTRY_BYTES};

/// Report of who of a conversation is online, for connections of one shard that watch it.
pub struct PresenceFrame {
    /// Conversation of the report.
    pub conversation: ConversationId,
    /// Connections that get the report.
    pub watchers: Vec<ConnKey>,
    /// Frame, encoded at most once per framing.
    pub frame: Arc<PushFrame>,
    /// Whether it is the last report of the watches.
    pub is_last: bool,
}

impl PresenceFrame {
    /// Returns the approximate bytes that it holds while it waits.
    pub fn weight(&self) -> usize {
        (4 + self.watchers.len()) * ENTRY_BYTES + self.frame.proto().len()
    }
}

impl Delivery {
    /// Creates the push that reports how many messages of a room were left out.
    pub fn left_out(room: &ConversationId, count: u64) -> Self {
        let room_name = room.as_str().trim_start_matches("r:").to_owned();
        Self::room_stats(room, pb::RoomStats { room: room_name, left_out: count, ..Default::default() })
    }

    /// Creates the push of numbers of a room to its members.
    pub fn room_stats(room: &ConversationId, stats: pb::RoomStats) -> Self {
        let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::RoomStats(stats)) };
        Self {
            conversation: room.clone(),
            seq: 0,
            audience: Audience::Members,
            frame: Arc::new(PushFrame::new(&frame)),
            origin: None,
            tracked: false,
            class: 0,
        }
    }

    /// Creates the push that reports to a member how many messages of a room it missed.
    pub fn shed(room: &ConversationId, count: u64) -> Self {
        let shed = pb::Shed { room: room.as_str().trim_start_matches("r:").to_owned(), count };
        let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Shed(shed)) };
        Self { frame: Arc::new(PushFrame::new(&frame)), ..Self::left_out(room, 0) }
    }

    /// Returns how many messages of the room were left out, if it reports that; else 0.
    pub fn left_out_count(&self) -> u64 {
        self.reported().0
    }

    /// Returns the numbers of messages of the room that it reports as left out, and as missed by its receiver.
    pub fn reported(&self) -> (u64, u64) {
        if self.is_message() {
            return (0, 0);
        }
        match pb::ServerFrame::decode(self.frame.proto()).ok().and_then(|frame| frame.body) {
            Some(pb::server_frame::Body::RoomStats(stats)) => (stats.left_out, 0),
            Some(pb::server_frame::Body::Shed(shed)) => (0, shed.count),
            _ => (0, 0),
        }
    }

    /// Returns whether it is a message of its room, which members count if it is lost.
    pub const fn is_message(&self) -> bool {
        self.seq > 0
    }

    /// Returns the approximate bytes that it holds while it waits.
    pub fn weight(&self) -> usize {
        4 * ENTRY_BYTES + self.frame.proto().len()
    }
}
