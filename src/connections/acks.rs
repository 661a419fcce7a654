//! Devices of users that are connected to any node, and whether they have acked a message.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use futures_util::future::join_all;
use tidegate_protocol::id::{DeviceId, UserId};
use tokio::{sync::oneshot, time::timeout};

use super::{CALL_TIMEOUT, Connections, in_time, noted};
use crate::{
    link::{ACK_QUERIES_MAX, AckQuery, DEVICES_PER_QUERY_MAX, DeviceAck, LinkError},
    mail::{ConnectionOrder, Mail, ShardHandle},
    routes::{NodeBoot, Token},
};

/// State of a connected device in regard to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceSeen {
    /// The node of the device did not answer.
    Unknown,
    /// The device is connected, and has not acked the message.
    Unacked,
    /// The device has acked the message, or a later one of its conversation.
    Acked,
}

/// Connected devices of the recipient of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectedDevices {
    /// Devices by name.
    pub devices: BTreeMap<DeviceId, DeviceSeen>,
    /// Whether the routes did not answer, so that devices of other nodes may be missing.
    pub is_partial: bool,
}

/// Reply of another node to the queries at these places.
struct NodeReply<'a> {
    run: &'a NodeBoot,
    answer: Result<Vec<Vec<DeviceAck>>, LinkError>,
    places: Vec<usize>,
}

impl Connections {
    /// Returns for each query, in order, the devices of its user that are connected to this node. Further queries than
    /// [`ACK_QUERIES_MAX`] are left out.
    ///
    /// # Errors
    /// A shard is busy for too long.
    pub async fn acks_here(&self, mut queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        queries.truncate(ACK_QUERIES_MAX);
        let queries = Arc::new(queries);
        let all = join_all(self.shards().iter().map(|shard| acks_of(shard, &queries)));
        let late = |_| LinkError::Unknown("the shards are busy".to_owned());
        let mut merged = vec![Vec::new(); queries.len()];
        for of_shard in timeout(CALL_TIMEOUT, all).await.map_err(late)? {
            for (of_query, devices) in merged.iter_mut().zip(of_shard) {
                of_query.extend(devices);
                of_query.truncate(DEVICES_PER_QUERY_MAX);
            }
        }
        Ok(merged)
    }

    /// Returns for each query, in order, the connected devices of its user on all nodes: one call to the routes, and one to
    /// each node that has some of them. What does not answer counts as not acked.
    pub async fn acks(&self, queries: &[AckQuery]) -> Vec<ConnectedDevices> {
        let mut all = vec![ConnectedDevices::default(); queries.len()];
        for (chunk, found) in queries.chunks(ACK_QUERIES_MAX).zip(all.chunks_mut(ACK_QUERIES_MAX)) {
            let (here, routed) = tokio::join!(self.acks_here(chunk.to_vec()), self.routed(chunk));
            match here {
                Ok(devices) => devices.into_iter().zip(&mut *found).for_each(|(of, found)| found.add(of)),
                Err(error) => {
                    tracing::debug!(%error, "the shards of this node did not answer about acks");
                    found.iter_mut().for_each(|it| it.is_partial = true);
                }
            }
            let Some(routed) = routed else {
                found.iter_mut().for_each(|it| it.is_partial = true);
                continue;
            };
            self.ask_nodes(chunk, &routed, found).await;
        }
        all
    }

    /// Returns the devices of the users that are connected to other nodes; `None` if the routes can't be read.
    async fn routed(&self, queries: &[AckQuery]) -> Option<Vec<Vec<(DeviceId, Token)>>> {
        if self.others().is_empty() {
            return Some(vec![Vec::new(); queries.len()]);
        }
        let mut users: Vec<UserId> = queries.iter().map(|query| query.user.clone()).collect();
        users.sort();
        users.dedup();
        let rows = match self.cluster.ports.routes.lookup(&users).await {
            Ok(rows) => rows,
            Err(error) => {
                tracing::debug!(%error, "the routes of users whose acks are asked for can't be read");
                return None;
            }
        };
        let by_user: HashMap<UserId, Vec<(DeviceId, Token)>> = users.into_iter().zip(rows).collect();
        let me = &self.cluster.me;
        let of_query = |query: &AckQuery| {
            let rows = by_user.get(&query.user).map_or(&[][..], Vec::as_slice);
            rows.iter().filter(|(_, token)| token.at != *me).cloned().collect()
        };
        Some(queries.iter().map(of_query).collect())
    }

    async fn ask_node<'a>(
        &self,
        run: &'a NodeBoot,
        asked: Vec<AckQuery>,
        places: Vec<usize>,
    ) -> NodeReply<'a> {
        NodeReply { run, answer: in_time(self.cluster.ports.link.acks(run, asked)).await, places }
    }

    async fn ask_nodes(
        &self,
        queries: &[AckQuery],
        routed: &[Vec<(DeviceId, Token)>],
        found: &mut [ConnectedDevices],
    ) {
        let mut by_node = BTreeMap::<&NodeBoot, Vec<usize>>::new();
        for (place, rows) in routed.iter().enumerate() {
            for (device, token) in rows {
                found[place].devices.entry(device.clone()).or_insert(DeviceSeen::Unknown);
                let places = by_node.entry(&token.at).or_default();
                if places.last() != Some(&place) {
                    places.push(place);
                }
            }
        }
        let mut calls = Vec::with_capacity(by_node.len());
        for (run, places) in by_node {
            let asked = places.iter().map(|place| queries[*place].clone()).collect();
            calls.push(self.ask_node(run, asked, places));
        }
        for NodeReply { run, answer, places } in join_all(calls).await {
            match answer {
                Ok(answers) => {
                    for (place, devices) in places.iter().zip(answers) {
                        // A device that its node does not have is no longer connected there.
                        let gone = routed[*place].iter().filter(|(_, token)| token.at == *run);
                        for (device, _) in gone {
                            found[*place].forget_unknown(device);
                        }
                        found[*place].add(devices);
                    }
                }
                Err(error) => drop(noted(run.clone(), &error)),
            }
        }
    }
}

impl ConnectedDevices {
    fn add(&mut self, devices: Vec<DeviceAck>) {
        for DeviceAck { device, has_acked } in devices {
            let seen = if has_acked { DeviceSeen::Acked } else { DeviceSeen::Unacked };
            let known = self.devices.entry(device).or_insert(seen);
            *known = seen.max(*known);
        }
    }

    fn forget_unknown(&mut self, device: &DeviceId) {
        if self.devices.get(device) == Some(&DeviceSeen::Unknown) {
            self.devices.remove(device);
        }
    }

    /// Returns whether one of the devices has acked the message.
    pub fn has_acked(&self) -> bool {
        self.devices.values().any(|seen| *seen == DeviceSeen::Acked)
    }

    /// Returns whether one of the devices is connected, as its node says.
    pub fn is_online(&self) -> bool {
        self.devices.values().any(|seen| *seen != DeviceSeen::Unknown)
    }
}

/// Asks a shard; one that ends has no connection left.
async fn acks_of(shard: &ShardHandle, queries: &Arc<Vec<AckQuery>>) -> Vec<Vec<DeviceAck>> {
    let (reply, devices) = oneshot::channel();
    match shard.post(Mail::Connections(ConnectionOrder::Acks(Arc::clone(queries), reply))).await {
        Ok(()) => devices.await.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}
