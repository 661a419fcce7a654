//! Live rooms of a node and their members, as the admin API lists them over the link.

use tidegate_protocol::id::{ConversationId, DeviceId, RoomId, UserId};

use crate::routes::Route;

/// Query of the live rooms that have members on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomsQuery {
    /// Rooms in the order of their keys, above `after`.
    All {
        /// Last room of the previous page, exclusive.
        after: Option<ConversationId>,
        /// Most rooms.
        limit: usize,
    },
    /// One room.
    One(ConversationId),
    /// Members of a room in the order of user and device, above `after`.
    Members {
        /// Room.
        room: ConversationId,
        /// Last member of the previous page, exclusive.
        after: Option<RoomMember>,
        /// Most members.
        limit: usize,
    },
}

/// Removal of a user from a live room. The connections stay open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomRemoval {
    /// Room.
    pub room: RoomId,
    /// User.
    pub user: UserId,
    /// Device of the user; `None` for all.
    pub device: Option<DeviceId>,
    /// Reason for the client, at most `CloseOrder::REASON_BYTES_MAX`; may be empty.
    pub reason: String,
}

/// Rooms or members of a room, as the query asks, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomsPage {
    /// Rooms with members.
    Rooms(Vec<RoomCount>),
    /// Members of the room.
    Members(Vec<RoomMember>),
}

/// Live room with its connections on a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoomCount {
    /// Room.
    pub room: ConversationId,
    /// Number of connections in it; at least one.
    pub connections: u64,
}

/// Device of a user in a live room.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoomMember {
    /// User.
    pub user: UserId,
    /// Device of the user.
    pub device: DeviceId,
}

impl RoomMember {
    /// Returns user and device of a route.
    pub fn of(route: &Route) -> Self {
        Self { user: route.user.clone(), device: route.device.clone() }
    }
}

impl RoomsQuery {
    /// Most rooms or members that one query lists.
    pub const LIMIT_MAX: usize = 1_001;

    /// Returns the most rows of a page.
    pub const fn limit(&self) -> usize {
        match self {
            Self::All { limit, .. } | Self::Members { limit, .. } => *limit,
            Self::One(_) => 1,
        }
    }

    /// Returns an empty page.
    pub const fn empty_page(&self) -> RoomsPage {
        match self {
            Self::All { .. } | Self::One(_) => RoomsPage::Rooms(Vec::new()),
            Self::Members { .. } => RoomsPage::Members(Vec::new()),
        }
    }
}

impl RoomsPage {
    /// Adds the rows of a page of the same query, sums up the connections of each room, and keeps the first rows.
    ///
    /// A page that has as many rows as its limit may lack later ones, but none before its last: so the first rows of all
    /// pages together lack none.
    pub fn merge(&mut self, other: Self, limit: usize) {
        match (self, other) {
            (Self::Rooms(rooms), Self::Rooms(more)) => {
                rooms.extend(more);
                rooms.sort_unstable();
                rooms.dedup_by(|next, kept| {
                    let is_same = next.room == kept.room;
                    if is_same {
                        kept.connections = kept.connections.saturating_add(next.connections);
                    }
                    is_same
                });
                rooms.truncate(limit);
            }
            (Self::Members(members), Self::Members(more)) => {
                members.extend(more);
                members.sort_unstable();
                members.dedup();
                members.truncate(limit);
            }
            (Self::Rooms(_), Self::Members(_)) | (Self::Members(_), Self::Rooms(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn room(n: u64) -> ConversationId {
        ConversationId::parse(&format!("r:{n}")).unwrap()
    }

    proptest! {
        /// Pages of several nodes, each cut at the limit, together have the first rooms with all of their connections.
        #[test]
        fn merged_pages_have_the_first_rooms_of_all_nodes(
            nodes in prop::collection::vec(prop::collection::btree_map(0..9u64, 1..9u64, 0..9), 1..4),
            limit in 1..6usize,
        ) {
            let mut all = BTreeMap::new();
            let mut merged = RoomsPage::Rooms(Vec::new());
            for node in &nodes {
                node.iter().for_each(|(n, count)| *all.entry(room(*n)).or_default() += count);
                let page = node.iter().map(|(n, count)| RoomCount { room: room(*n), connections: *count });
                merged.merge(RoomsPage::Rooms(page.take(limit).collect()), limit);
            }
            let expected = all.into_iter().take(limit).map(|(room, connections)| RoomCount { room, connections });
            let expected = RoomsPage::Rooms(expected.collect());
            prop_assert_eq!(merged, expected);
        }
    }
}
