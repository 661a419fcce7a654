//! Live rooms of all nodes and their members, as they are while the nodes are asked.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use tidegate_protocol::id::ConversationId;
use tokio::{sync::oneshot, time::timeout};

use super::{CALL_TIMEOUT, Connections, in_time, noted};
use crate::{
    link::{LinkError, RoomCount, RoomMember, RoomsPage, RoomsQuery},
    mail::{ConnectionOrder, Mail, ShardHandle},
    routes::NodeBoot,
};

/// Live room with its connections on all nodes that answered.
#[derive(Debug, PartialEq, Eq)]
pub struct RoomOnNodes {
    /// Room.
    pub room: ConversationId,
    /// Number of connections in it.
    pub connections: u64,
    /// Number of nodes that have some of them.
    pub nodes: u64,
}

/// Page of rooms or of members.
#[derive(Debug)]
pub struct RoomList<T> {
    /// Rows, in order.
    pub rows: Vec<T>,
    /// Whether more rows follow.
    pub has_more: bool,
    /// Nodes that did not answer.
    pub silent: Vec<NodeBoot>,
}

/// Device in a live room, with the run of its node.
#[derive(Debug, PartialEq, Eq)]
pub struct MemberOnNode {
    /// User and device.
    pub member: RoomMember,
    /// Run of the node that it is connected to.
    pub run: NodeBoot,
}

/// Replies of the nodes to one query.
struct RoomReplies {
    pages: Vec<(NodeBoot, RoomsPage)>,
    silent: Vec<NodeBoot>,
}

impl Connections {
    /// Lists the live rooms of this node, or the members of one.
    ///
    /// # Errors
    /// Too many lists are made at once, or a shard is busy for too long.
    pub async fn rooms_here(&self, query: &RoomsQuery) -> Result<RoomsPage, LinkError> {
        let busy = |_| LinkError::Unavailable("too many lists of connections at once".to_owned());
        let _permit = match query {
            RoomsQuery::One(_) => None,
            RoomsQuery::All { .. } | RoomsQuery::Members { .. } => {
                Some(self.lists.try_acquire().map_err(busy)?)
            }
        };
        let all = join_all(self.shards().iter().map(|shard| rooms_of(shard, query)));
        let late = |_| LinkError::Unknown("the shards are busy".to_owned());
        let mut merged = query.empty_page();
        for page in timeout(CALL_TIMEOUT, all).await.map_err(late)? {
            merged.merge(page, query.limit());
        }
        Ok(merged)
    }

    /// Returns the live rooms that have members now, in the order of their keys, above `after`.
    pub async fn rooms(&self, after: Option<ConversationId>, limit: usize) -> RoomList<RoomOnNodes> {
        let query = RoomsQuery::All { after, limit: limit.saturating_add(1) };
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await;
        let (mut rows, has_more) = first(counted(pages), limit);
        rows.sort_by(|a, b| a.room.cmp(&b.room));
        RoomList { rows, has_more, silent }
    }

    /// Returns one live room; without members it has no connections.
    pub async fn room(&self, room: ConversationId) -> RoomList<RoomOnNodes> {
        let query = RoomsQuery::One(room);
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await;
        RoomList { rows: counted(pages), has_more: false, silent }
    }

    /// Returns the members of a live room, in the order of user and device, above `after`.
    pub async fn room_members(
        &self,
        room: ConversationId,
        after: Option<RoomMember>,
        limit: usize,
    ) -> RoomList<MemberOnNode> {
        let query = RoomsQuery::Members { room, after, limit: limit.saturating_add(1) };
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await;
        let on_node = |(run, page): (NodeBoot, RoomsPage)| {
            let members = match page {
                RoomsPage::Members(members) => members,
                RoomsPage::Rooms(_) => Vec::new(),
            };
            members.into_iter().map(move |member| MemberOnNode { member, run: run.clone() })
        };
        let mut rows: Vec<MemberOnNode> = pages.into_iter().flat_map(on_node).collect();
        // A device that moves between two nodes may be on both for a moment.
        rows.sort_by(|a, b| a.member.cmp(&b.member));
        rows.dedup_by(|next, kept| next.member == kept.member);
        let (rows, has_more) = first(rows, limit);
        RoomList { rows, has_more, silent }
    }

    async fn ask_for_rooms(&self, query: &RoomsQuery) -> RoomReplies {
        let others = self.others();
        let link = &self.cluster.ports.link;
        let calls = join_all(others.iter().map(|run| in_time(link.rooms(run, query.clone()))));
        let (here, answers) = tokio::join!(self.rooms_here(query), calls);
        let own = std::iter::once((self.cluster.me.clone(), here));
        let mut replies = RoomReplies { pages: Vec::new(), silent: Vec::new() };
        for (run, answer) in own.chain(others.into_iter().zip(answers)) {
            match answer {
                Ok(page) => replies.pages.push((run, page)),
                // The run has ended, and its connections with it.
                Err(LinkError::NotHere) => {}
                Err(error) => replies.silent.push(noted(run, &error)),
            }
        }
        replies
    }
}

/// Sums up the connections of each room over the nodes, in the order of the keys.
fn counted(pages: Vec<(NodeBoot, RoomsPage)>) -> Vec<RoomOnNodes> {
    let mut rooms: BTreeMap<ConversationId, RoomOnNodes> = BTreeMap::new();
    for (_, page) in pages {
        let RoomsPage::Rooms(counts) = page else { continue };
        for RoomCount { room, connections } in counts {
            let new = RoomOnNodes { room: room.clone(), connections: 0, nodes: 0 };
            let sum = rooms.entry(room).or_insert(new);
            sum.connections = sum.connections.saturating_add(connections);
            sum.nodes += 1;
        }
    }
    rooms.into_values().collect()
}

fn first<T>(mut rows: Vec<T>, limit: usize) -> (Vec<T>, bool) {
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    (rows, has_more)
}

/// Lists rooms or members of one shard, which walks over some of them at a time.
async fn rooms_of(shard: &ShardHandle, query: &RoomsQuery) -> RoomsPage {
    let mut all = query.empty_page();
    let mut from = Some(0);
    while let Some(start) = from.take() {
        let (reply, page) = oneshot::channel();
        let mail = Mail::Connections(ConnectionOrder::Rooms(query.clone(), start, reply));
        // A shard that ends has no connection left.
        if shard.post(mail).await.is_ok()
            && let Ok((page, next)) = page.await
        {
            all.merge(page, query.limit());
            from = next;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;

    #[test]
    fn connections_and_nodes_of_a_room_are_summed_up() {
        let run = |name| NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 };
        let room = |name| ConversationId::parse(name).unwrap();
        let count = |name, connections| RoomCount { room: room(name), connections };
        let pages = vec![
            (run("n1"), RoomsPage::Rooms(vec![count("r:b", 2), count("r:c", 1)])),
            (run("n2"), RoomsPage::Rooms(vec![count("r:a", 5), count("r:b", 3)])),
            (run("n3"), RoomsPage::Rooms(Vec::new())),
        ];
        let found: Vec<(String, u64, u64)> =
            counted(pages).iter().map(|it| (it.room.to_string(), it.connections, it.nodes)).collect();
        let expected = [("r:a", 5, 1), ("r:b", 5, 2), ("r:c", 1, 1)];
        assert_eq!(found, expected.map(|(room, count, nodes)| (room.to_owned(), count, nodes)));
        assert_eq!(first(vec![1, 2, 3], 2), (vec![1, 2], true));
        assert_eq!(first(vec![1, 2], 2), (vec![1, 2], false));
    }
}
