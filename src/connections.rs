//! Connections of users over all nodes: listed, closed by administrators, and closed when their tokens are revoked.
//!
//! Each call asks this node and all others at once, whatever the routes say, so that it works without them. A node that
//! does not answer in time is named as silent.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures_util::future::{OptionFuture, join_all};
use tidegate_protocol::id::UserId;
use tokio::{sync::oneshot, time::timeout};

mod acks;
mod paging;
mod places;
mod revocations;
mod rooms;

use self::places::ListPlaces;
pub use self::{
    acks::{ConnectedDevices, DeviceSeen},
    paging::{PageOfNodes, PagePosition},
    revocations::{RevokeError, Revoked},
    rooms::{MemberOnNode, RoomList, RoomListBusy, RoomOnNodes},
};
use crate::{
    cluster::{Cluster, Follower},
    link::{CloseOrder, ConnectionPage, ConnectionQuery, ConnectionRow, ConnectionSort, LinkError, Selected},
    mail::{ConnectionOrder, Mail, ShardHandle, ShardHandles},
    metrics::Metrics,
    networks::Network,
    routes::{Lease, NodeBoot},
};

/// Time for a node to answer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Most lists of connections that a node makes at once; each walks over all of its connections.
const CONNECTION_LISTS_MAX: usize = 2;

/// Most lists of live rooms and of members that a node makes at once, for itself and for its peers.
const ROOM_LISTS_MAX: usize = 4;

/// Most lists of rooms over all nodes that callers of this node are given at once. A peer that does not answer holds each for
/// the time of a call.
const ASKED_ROOM_LISTS_MAX: usize = 16;

/// Most pages of connections that are read of another node to count the users of networks.
const PAGES_MAX: usize = 4;

/// Distinct users of a network from which on a shard looks for no further ones.
const USERS_MAX: usize = 256;

/// Connections of this node, and those of its peers over the link.
pub struct Connections {
    cluster: Arc<Cluster>,
    shards: ShardHandles,
    lists: ListPlaces,
    room_lists: ListPlaces,
    /// Lists of rooms over all nodes that callers of this node ask for.
    asked_room_lists: ListPlaces,
    revocations: Follower,
    metrics: Metrics,
}

/// Connections of several nodes.
#[derive(Debug, Default)]
pub struct ConnectionList {
    /// Listed connections with the runs of their nodes, in order.
    pub rows: Vec<(NodeBoot, ConnectionRow)>,
    /// Number of all connections that count, on the nodes that answered.
    pub total: u64,
    /// Nodes that did not answer.
    pub silent: Vec<NodeBoot>,
}

/// Outcome of an order over several nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OrderOutcome {
    /// Number of connections for which the order was carried out.
    pub count: u64,
    /// Nodes that did not answer.
    pub silent: Vec<NodeBoot>,
}

impl Connections {
    /// Creates the access to the connections of these shards, and to those of the peers.
    pub fn new(cluster: Arc<Cluster>, shards: ShardHandles, metrics: Metrics) -> Self {
        Self {
            cluster,
            shards,
            lists: ListPlaces::new(CONNECTION_LISTS_MAX),
            room_lists: ListPlaces::new(ROOM_LISTS_MAX),
            asked_room_lists: ListPlaces::new(ASKED_ROOM_LISTS_MAX),
            revocations: Follower::new(None),
            metrics,
        }
    }

    fn shards(&self) -> &[ShardHandle] {
        self.shards.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the other runs that may have connections: the live ones, and those whose lease has lapsed but that may
    /// come back.
    fn others(&self) -> Vec<NodeBoot> {
        let snapshot = self.cluster.peers.snapshot();
        let mut runs: Vec<NodeBoot> = snapshot.others.iter().map(|row| row.info.boot.clone()).collect();
        let lapsed = snapshot.rows.iter().filter(|row| row.lease == Lease::Lapsed);
        runs.extend(lapsed.map(|row| row.info.boot.clone()));
        runs.retain(|run| *run != self.cluster.me);
        runs.sort();
        runs.dedup();
        runs
    }

    /// Lists connections of this node.
    ///
    /// # Errors
    /// Too many lists are made at once, or a shard is busy for too long.
    pub async fn list_here(&self, query: &ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        let busy = || LinkError::Unavailable("too many lists of connections at once".to_owned());
        let _place = match query.selected {
            Selected::All => Some(self.lists.take().await.ok_or_else(busy)?),
            _ => None,
        };
        let all = join_all(self.shards().iter().map(|shard| list_of(shard, query)));
        let late = |_| LinkError::Unknown("the shards are busy".to_owned());
        let mut merged = ConnectionPage::default();
        for page in timeout(CALL_TIMEOUT, all).await.map_err(late)? {
            merged.merge(page, query);
        }
        Ok(merged)
    }

    /// Closes connections of this node; returns how many.
    ///
    /// # Errors
    /// A shard is busy for too long; it carries the order out later.
    pub async fn close_here(&self, order: CloseOrder) -> Result<u64, LinkError> {
        let order = Arc::new(order);
        self.order_here(|reply| ConnectionOrder::Close(Arc::clone(&order), reply)).await
    }

    /// Returns users with a connection from a network on this node, at most [`USERS_MAX`] of each shard; `None` if a shard is
    /// busy for too long.
    async fn users_here(&self, network: &Network) -> Option<HashSet<UserId>> {
        let all = join_all(self.shards().iter().map(|shard| users_of_shard(shard, network)));
        Some(timeout(CALL_TIMEOUT, all).await.ok()?.into_iter().flatten().collect())
    }

    /// Returns the users with a connection from each network, over all nodes; `None` if they can't be counted: a shard is
    /// busy, or another node does not answer in time or has more than [`PAGES_MAX`] pages of connections.
    pub async fn users_of(&self, networks: &[Network]) -> Vec<Option<HashSet<UserId>>> {
        let others = self.others();
        let here = join_all(networks.iter().map(|network| self.users_here(network)));
        let there =
            join_all(others.iter().map(async |run| {
                timeout(CALL_TIMEOUT, self.users_there(run, networks)).await.ok().flatten()
            }));
        let (here, there) = tokio::join!(here, there);
        let all = here.into_iter().enumerate().map(|(nth, here)| {
            let mut users = here?;
            for node in &there {
                users.extend(node.as_ref()?.get(nth)?.iter().cloned());
            }
            Some(users)
        });
        all.collect()
    }

    async fn users_there(&self, run: &NodeBoot, networks: &[Network]) -> Option<Vec<HashSet<UserId>>> {
        let mut users = vec![HashSet::new(); networks.len()];
        let (limit, mut from) = (ConnectionQuery::LIMIT_MAX, 0);
        for _ in 0..PAGES_MAX {
            let query =
                ConnectionQuery { selected: Selected::All, sort: ConnectionSort::KeyFrom(from), limit };
            let page = match self.cluster.ports.link.connections(run, query).await {
                Ok(page) => page,
                // The run has ended, and its connections with it.
                Err(LinkError::NotHere) => return Some(users),
                Err(_) => return None,
            };
            for row in &page.rows {
                for (_, users) in networks.iter().zip(&mut users).filter(|(it, _)| it.contains(row.address)) {
                    users.insert(row.user.clone());
                }
            }
            let last = page.rows.last().filter(|_| page.rows.len() >= limit);
            let Some(last) = last else { return Some(users) };
            if page.total > (PAGES_MAX * limit) as u64 {
                return None;
            }
            from = last.key.saturating_add(1);
        }
        None
    }

    async fn order_here(
        &self,
        order: impl Fn(oneshot::Sender<u64>) -> ConnectionOrder,
    ) -> Result<u64, LinkError> {
        let order = &order;
        let all = join_all(self.shards().iter().map(async |shard| {
            let (reply, count) = oneshot::channel();
            shard.post(Mail::Connections(order(reply))).await.ok()?;
            // A shard that ends has no connection left.
            count.await.ok()
        }));
        let late = |_| LinkError::Unknown("the shards are busy".to_owned());
        Ok(timeout(CALL_TIMEOUT, all).await.map_err(late)?.into_iter().flatten().sum())
    }

    /// Lists connections of all nodes, or of one.
    pub async fn list(&self, query: &ConnectionQuery, only: Option<&NodeBoot>) -> ConnectionList {
        let is_asked = |run: &NodeBoot| only.is_none_or(|only| only == run);
        let others: Vec<NodeBoot> = self.others().into_iter().filter(is_asked).collect();
        let here =
            async { if is_asked(&self.cluster.me) { Some(self.list_here(query).await) } else { None } };
        let link = &self.cluster.ports.link;
        let calls = join_all(others.iter().map(|run| in_time(link.connections(run, query.clone()))));
        let (here, answers) = tokio::join!(here, calls);
        let own = here.into_iter().map(|answer| (self.cluster.me.clone(), answer));
        let mut list = ConnectionList::default();
        for (run, answer) in own.chain(others.into_iter().zip(answers)) {
            match answer {
                Ok(page) => {
                    list.total = list.total.saturating_add(page.total);
                    list.rows.extend(page.rows.into_iter().map(|row| (run.clone(), row)));
                }
                Err(error) => list.silent.push(noted(run, &error)),
            }
        }
        query.sort.cut_by(&mut list.rows, query.limit, |(_, row)| row);
        list
    }

    /// Closes connections on all nodes, or on one.
    pub async fn close(&self, order: &CloseOrder, only: Option<&NodeBoot>) -> OrderOutcome {
        let is_asked = |run: &NodeBoot| only.is_none_or(|only| only == run);
        let here = is_asked(&self.cluster.me).then(|| self.close_here(order.clone()));
        let others: Vec<NodeBoot> = self.others().into_iter().filter(is_asked).collect();
        let link = &self.cluster.ports.link;
        self.on_nodes(here, &others, |run| link.close_connections(run, order.clone())).await
    }

    /// Carries an order out on this node, unless `here` is `None`, and on others at once; returns the sum.
    async fn on_nodes<'a, F>(
        &self,
        here: Option<impl Future<Output = Result<u64, LinkError>>>,
        others: &'a [NodeBoot],
        there: impl Fn(&'a NodeBoot) -> F,
    ) -> OrderOutcome
    where
        F: Future<Output = Result<u64, LinkError>>,
    {
        let calls = join_all(others.iter().map(|run| in_time(there(run))));
        let (here, answers) = tokio::join!(OptionFuture::from(here), calls);
        let own = here.into_iter().map(|answer| (&self.cluster.me, answer));
        let mut outcome = OrderOutcome::default();
        for (run, answer) in own.chain(others.iter().zip(answers)) {
            match answer {
                Ok(count) => outcome.count = outcome.count.saturating_add(count),
                // The run has ended, and its connections with it.
                Err(LinkError::NotHere) => {}
                Err(error) => outcome.silent.push(noted(run.clone(), &error)),
            }
        }
        outcome
    }

    /// Returns the run of that name, if it may have connections.
    pub fn run_of(&self, node: &str) -> Option<NodeBoot> {
        let me = &self.cluster.me;
        let is_named = |run: &NodeBoot| run.node.as_str() == node;
        if is_named(me) { Some(me.clone()) } else { self.others().into_iter().find(is_named) }
    }

    /// Returns whether that run may have connections.
    pub fn is_run(&self, run: &NodeBoot) -> bool {
        *run == self.cluster.me || self.others().contains(run)
    }
}

/// Lists connections of one shard, which walks over some of them at a time.
async fn list_of(shard: &ShardHandle, query: &ConnectionQuery) -> ConnectionPage {
    let mut all = ConnectionPage::default();
    let mut from = Some(0);
    while let Some(slot) = from.take() {
        let (reply, page) = oneshot::channel();
        let mail = Mail::Connections(ConnectionOrder::List(query.clone(), slot, reply));
        // A shard that ends has no connection left.
        if shard.post(mail).await.is_ok()
            && let Ok((page, next)) = page.await
        {
            all.merge(page, query);
            from = next;
        }
    }
    all
}

/// Returns users with a connection of one shard from a network, at most [`USERS_MAX`].
async fn users_of_shard(shard: &ShardHandle, network: &Network) -> HashSet<UserId> {
    let mut all = HashSet::new();
    let mut from = Some(0);
    while let Some(slot) = from.take().filter(|_| all.len() < USERS_MAX) {
        let (reply, page) = oneshot::channel();
        let mail = Mail::Connections(ConnectionOrder::UsersOf(*network, slot, reply));
        if shard.post(mail).await.is_ok()
            && let Ok((users, next)) = page.await
        {
            all.extend(users);
            from = next;
        }
    }
    all
}

async fn in_time<T>(call: impl Future<Output = Result<T, LinkError>>) -> Result<T, LinkError> {
    let late = |_| Err(LinkError::Unknown("no reply in time".to_owned()));
    timeout(CALL_TIMEOUT, call).await.unwrap_or_else(late)
}

fn noted(run: NodeBoot, error: &LinkError) -> NodeBoot {
    tracing::debug!(%error, node = %run.node, "node did not answer about its connections");
    run
}
