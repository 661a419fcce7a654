//! Closed live rooms: what follows from their entries in the store.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_protocol::id::{ConversationId, RoomId};

use super::GuardHandler;
use crate::{
    bans::{Ban, BanRecord},
    entry_board::EntryBoard,
    log_limit::log_limited,
    metrics::Metrics,
    store::{GuardKind, GuardRow},
};

/// Live rooms that an administrator has closed, with reason, author, time and end. Members get the reason.
pub type ClosedRooms = EntryBoard<ConversationId, Ban>;

/// Most rooms that are closed, without those that were opened again and whose entries are still there.
pub const CLOSED_ROOMS_MAX: usize = 10_000;

/// Part of the node that puts closed rooms in force.
pub struct ClosedRoomHandler {
    rooms: Arc<ClosedRooms>,
    metrics: Metrics,
}

impl ClosedRoomHandler {
    /// Creates the handler of a node.
    pub fn new(rooms: Arc<ClosedRooms>, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { rooms, metrics })
    }

    fn count(&self) {
        self.metrics.closed_rooms.set(self.rooms.count() as f64);
    }
}

#[async_trait]
impl GuardHandler for ClosedRoomHandler {
    fn handles(&self, kind: GuardKind) -> bool {
        kind == GuardKind::ClosedRoom
    }

    async fn restarted(&self) {
        self.rooms.restart();
    }

    async fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        for row in rows {
            let Ok(room) = RoomId::new(row.key.name()) else {
                log_limited!(warn, name = row.key.name(), "malformed name of a closed room; it stays open");
                continue;
            };
            let value = row.value.as_deref().filter(|_| !row.has_ended(now_ms));
            let closed = value.map(|it| Ban { record: BanRecord::decoded(it), until_ms: row.until_ms });
            self.rooms.set(&ConversationId::room(&room), closed);
        }
    }

    async fn caught_up(&self, _: u64) {
        self.rooms.finish();
        self.count();
    }

    async fn time_passed(&self, now_ms: u64) {
        self.rooms.expire(|closed| closed.has_ended(now_ms));
        self.count();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{metrics, store::GuardKey};

    #[tokio::test]
    async fn room_is_closed_until_its_entry_ends_or_is_removed_whatever_its_value() {
        let rooms = Arc::new(ClosedRooms::default());
        let handler = ClosedRoomHandler::new(Arc::clone(&rooms), metrics::install().0);
        let row = |name: &str, value: Option<&'static [u8]>, until_ms| {
            let key = GuardKey::new(GuardKind::ClosedRoom, name).unwrap();
            GuardRow { key, version: 1, value: value.map(Bytes::from_static), until_ms }
        };
        let closed = || {
            let rooms = rooms.list(None, 9).into_iter();
            rooms.map(|(room, it)| format!("{room} {}", it.record.reason)).collect::<Vec<_>>().join(", ")
        };
        let all = [
            row("hall", Some(br#"{"reason":"over","later":1}"#), None),
            row("tea", Some(b"of a later version"), Some(11)),
            row("old", Some(b"{}"), Some(10)),
            row("no room", Some(b"{}"), None),
        ];
        handler.restarted().await;
        handler.changed(&all, 10).await;
        handler.caught_up(10).await;
        assert_eq!(closed(), "r:hall over, r:tea ");
        handler.time_passed(11).await;
        assert_eq!(closed(), "r:hall over");
        handler.changed(&[row("hall", None, None)], 12).await;
        assert_eq!(closed(), "");
    }
}
