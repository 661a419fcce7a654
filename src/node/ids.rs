//! Which node this is, where nobody says so: an id on lease, the first of `node.ids` that no live node has.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tidegate_protocol::id::NodeId;

use super::ports::leases;
use crate::{
    config::Config,
    routes::{Lapses, NodeBoot, RedisRoutes},
};

/// How long a free id is waited for: a node that died holds its own until its lease is over.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two tries.
const AGAIN: Duration = Duration::from_secs(1);

/// An id that is this node's, and not announced yet.
pub(super) struct Claim {
    routes: RedisRoutes,
    claimant: u64,
}

/// The ids of which a node leases one; none where each has a name of its own.
///
/// # Errors
/// `node.id` is no name.
pub fn all(config: &Config) -> anyhow::Result<Vec<NodeId>> {
    let ids = (0..config.node.ids).map(|nth| NodeId::new(&format!("{}-{nth}", config.node.id)));
    Ok(ids.collect::<Result<_, _>>()?)
}

/// The settings with the id that the node has, and the claim to it where it is leased. Asked again, the same claimant finds what it had claimed
/// when an answer was lost.
///
/// # Errors
/// All ids are held, or Redis does not say.
pub(super) async fn leased(config: &Config, claimant: u64) -> anyhow::Result<(Config, Option<Claim>)> {
    let mut config = config.clone();
    if config.node.ids == 0 {
        return Ok((config, None));
    }
    let ids = all(&config)?;
    let claim = Claim { routes: RedisRoutes::connect(&config.redis, leases())?, claimant };
    let (deadline, mut seen) = (Instant::now() + PATIENCE, Lapses::default());
    loop {
        // Redis that is away is waited for elsewhere, and while nobody can renew, nobody is seen to stand still: a new look begins then.
        let claimed = claim.routes.claim_id(&ids, claim.claimant, &mut seen).await;
        if let Some(id) = claimed.context("redis.urls: an id could not be leased (node.ids)")? {
            tracing::info!(%id, "this node has leased an id");
            config.node.id = id.to_string();
            return Ok((config, Some(claim)));
        }
        if Instant::now() > deadline {
            bail!(
                "all {} ids are held by nodes that live: raise node.ids above the number of nodes, by one for each that a \
                 rollout starts before another ends",
                config.node.ids
            );
        }
        tracing::info!("no id is free yet");
        tokio::time::sleep(AGAIN).await;
    }
}

impl Claim {
    /// The node has announced itself.
    pub(super) async fn settle(&self, me: &NodeBoot) {
        if let Err(error) = self.routes.settle_id(me, self.claimant).await {
            tracing::debug!(%error, "a claim to an id was left to end by itself");
        }
    }

    /// The node could not start: others may have the id.
    pub(super) async fn give_back(&self, id: &str) {
        let Ok(id) = NodeId::new(id) else { return };
        if let Err(error) = self.routes.give_back_id(&id, self.claimant).await {
            tracing::debug!(%error, "a claim to an id was left to end by itself");
        }
    }
}
