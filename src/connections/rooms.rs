//! Live rooms of all nodes and their members, as they are while the nodes are asked.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use tidegate_protocol::id::ConversationId;
use tokio::{sync::oneshot, time::timeout};

use super::{CALL_TIMEOUT, Connections, OrderOutcome, in_time, noted};
use crate::{
    link::{LinkError, RoomCount, RoomMember, RoomRemoval, RoomsPage, RoomsQuery},
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

/// Refusal of a list: this node makes too many, or its shards are busy.
#[derive(Debug, PartialEq, Eq)]
pub struct RoomListBusy;

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
        let busy = || LinkError::Unavailable("too many lists of rooms at once".to_owned());
        let _place = match query {
            RoomsQuery::One(_) => None,
            RoomsQuery::All { .. } | RoomsQuery::Members { .. } => {
                Some(self.room_lists.take().await.ok_or_else(busy)?)
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
    ///
    /// # Errors
    /// This node is busy.
    pub async fn rooms(
        &self,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<RoomList<RoomOnNodes>, RoomListBusy> {
        let query = RoomsQuery::All { after, limit: limit.saturating_add(1) };
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await?;
        let (mut rows, has_more) = first(counted(pages), limit);
        rows.sort_by(|a, b| a.room.cmp(&b.room));
        Ok(RoomList { rows, has_more, silent })
    }

    /// Returns one live room; without members it has no connections.
    ///
    /// # Errors
    /// This node is busy.
    pub async fn room(&self, room: ConversationId) -> Result<RoomList<RoomOnNodes>, RoomListBusy> {
        let query = RoomsQuery::One(room);
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await?;
        Ok(RoomList { rows: counted(pages), has_more: false, silent })
    }

    /// Returns the members of a live room, in the order of user and device, above `after`.
    ///
    /// # Errors
    /// This node is busy.
    pub async fn room_members(
        &self,
        room: ConversationId,
        after: Option<RoomMember>,
        limit: usize,
    ) -> Result<RoomList<MemberOnNode>, RoomListBusy> {
        let query = RoomsQuery::Members { room, after, limit: limit.saturating_add(1) };
        let RoomReplies { pages, silent } = self.ask_for_rooms(&query).await?;
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
        Ok(RoomList { rows, has_more, silent })
    }

    /// Removes connections of this node from a live room; returns how many.
    ///
    /// # Errors
    /// A shard is busy for too long; it carries the removal out later.
    pub async fn remove_from_room_here(&self, removal: RoomRemoval) -> Result<u64, LinkError> {
        let removal = Arc::new(removal);
        self.order_here(|reply| ConnectionOrder::RemoveFromRoom(Arc::clone(&removal), reply)).await
    }

    /// Removes the connections of a user from a live room on all nodes. They stay open, and may join again.
    pub async fn remove_from_room(&self, removal: &RoomRemoval) -> OrderOutcome {
        let (others, link) = (self.others(), &self.cluster.ports.link);
        let here = Some(self.remove_from_room_here(removal.clone()));
        self.on_nodes(here, &others, |run| link.remove_from_room(run, removal.clone())).await
    }

    async fn ask_for_rooms(&self, query: &RoomsQuery) -> Result<RoomReplies, RoomListBusy> {
        // Those of one node take few places of the others.
        let _place = self.asked_room_lists.take().await.ok_or(RoomListBusy)?;
        let others = self.others();
        let link = &self.cluster.ports.link;
        let calls = join_all(others.iter().map(|run| in_time(link.rooms(run, query.clone()))));
        let (here, answers) = tokio::join!(self.rooms_here(query), calls);
        let here = here.map_err(|error| {
            tracing::debug!(%error, "this node is too busy to list rooms");
            RoomListBusy
        })?;
        let mut replies = RoomReplies { pages: vec![(self.cluster.me.clone(), here)], silent: Vec::new() };
        for (run, answer) in others.into_iter().zip(answers) {
            match answer {
                Ok(page) => replies.pages.push((run, page)),
                // The run has ended, and its connections with it.
                Err(LinkError::NotHere) => {}
                Err(error) => replies.silent.push(noted(run, &error)),
            }
        }
        Ok(replies)
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

/// Lists rooms or members of one shard, which sorts some members at a time before it lists the first of them.
async fn rooms_of(shard: &ShardHandle, query: &RoomsQuery) -> RoomsPage {
    loop {
        let (reply, page) = oneshot::channel();
        let mail = Mail::Connections(ConnectionOrder::Rooms(query.clone(), reply));
        let is_posted = shard.post(mail).await.is_ok();
        match if is_posted { page.await.ok() } else { None } {
            Some(Some(page)) => return page,
            Some(None) => {}
            // A shard that ends has no connection left.
            None => return query.empty_page(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::{
        cluster::Cluster, connections::ROOM_LISTS_MAX, link::LocalLink, mail::ShardHandles, metrics,
        ports::Ports,
    };

    #[tokio::test(start_paused = true)]
    async fn own_refusal_is_an_error_and_a_place_that_frees_is_waited_for() {
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let cluster = Arc::new(Cluster::new(me, Ports::in_memory(Arc::new(LocalLink))));
        let connections = Arc::new(Connections::new(cluster, ShardHandles::default(), metrics::install().0));
        let mut places = Vec::new();
        while let Some(place) = connections.room_lists.take().await {
            places.push(place);
        }
        assert_eq!(places.len(), ROOM_LISTS_MAX);
        assert_eq!(connections.rooms(None, 1).await.map(|_| ()), Err(RoomListBusy));
        assert!(
            connections.room(ConversationId::parse("r:hall").unwrap()).await.is_ok(),
            "one room is cheap"
        );
        let waits = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { connections.rooms(None, 1).await.map(|list| list.silent.len()) }
        });
        tokio::task::yield_now().await;
        drop(places.pop());
        assert_eq!(waits.await.unwrap(), Ok(0));
    }

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
