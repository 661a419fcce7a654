//! Leased node ids: a node without a fixed name takes the first of `node.ids` that no live node holds.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tidegate_protocol::id::NodeId;

use super::ports::leases;
use crate::{
    config::Config,
    routes::{Lapses, NodeBoot, RedisRoutes},
};

/// Time to wait for a free id; a dead node holds its id until its lease expires.
const FREE_ID_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two attempts to claim an id.
const CLAIM_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Claim to an id under which the node is not announced yet.
pub(super) struct IdClaim {
    routes: RedisRoutes,
    claimant: u64,
}

/// Returns the ids of which a node leases one; empty if nodes have fixed names.
///
/// # Errors
/// `node.id` is not a valid name.
pub fn all(config: &Config) -> anyhow::Result<Vec<NodeId>> {
    let ids = (0..config.node.ids).map(|nth| NodeId::new(&format!("{}-{nth}", config.node.id)));
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Returns the configuration with the id of the node, and the claim if the id is leased. Repeated calls of the same
/// claimant get the same id, even if a reply was lost.
///
/// # Errors
/// All ids are held, or Redis does not answer.
pub(super) async fn leased(config: &Config, claimant: u64) -> anyhow::Result<(Config, Option<IdClaim>)> {
    let mut config = config.clone();
    if config.node.ids == 0 {
        return Ok((config, None));
    }
    let ids = all(&config)?;
    let claim = IdClaim { routes: RedisRoutes::connect(&config.redis, leases())?, claimant };
    let (deadline, mut lapses) = (Instant::now() + FREE_ID_TIMEOUT, Lapses::default());
    loop {
        // If Redis is unavailable, the caller retries with fresh observations: no lease could be renewed in that
        // time, so an unchanged one must not count as lapsed.
        let claimed = claim.routes.claim_id(&ids, claim.claimant, &mut lapses).await;
        if let Some(id) = claimed.context("redis.urls: an id could not be leased (node.ids)")? {
            tracing::info!(%id, "node id leased");
            config.node.id = id.to_string();
            return Ok((config, Some(claim)));
        }
        if Instant::now() > deadline {
            bail!(
                "all {} ids are held by live nodes: raise node.ids above the number of nodes, by one for each node that a \
                 rollout starts before it stops another",
                config.node.ids
            );
        }
        tracing::info!("no node id is free; retrying");
        tokio::time::sleep(CLAIM_RETRY_INTERVAL).await;
    }
}

impl IdClaim {
    /// Confirms the claim after the node was announced; from then on the lease holds the id.
    pub(super) async fn confirm(&self, me: &NodeBoot) {
        if let Err(error) = self.routes.settle_id(me, self.claimant).await {
            tracing::debug!(%error, "claim to a node id not cleared; it expires");
        }
    }

    /// Releases the id to other nodes, because this node could not start.
    pub(super) async fn release(&self, id: &str) {
        let Ok(id) = NodeId::new(id) else { return };
        if let Err(error) = self.routes.give_back_id(&id, self.claimant).await {
            tracing::debug!(%error, "claim to a node id not cleared; it expires");
        }
    }
}
