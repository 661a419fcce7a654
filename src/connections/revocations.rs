//! Revocations of tokens: stored, put in force on this node, and announced to the others, which also follow the store.

use std::{future, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time;

use super::{Connections, OrderOutcome};
use crate::{
    clock::wall_ms,
    cluster::{Followed, FollowedPage},
    link::LinkError,
    log_limit::log_limited,
    mail::ConnectionOrder,
    revocation::{REVOCATIONS_MAX, Revocation, RevokedTokens},
    store::StoreError,
};

/// Checks, one each [`crate::cluster::FOLLOW_INTERVAL`], after which the revocations that are over are removed.
const CHECKS_PER_PRUNE: u32 = 60;

/// Revocations that are read at once while the node runs.
const PAGE_ROWS: usize = 10_000;

/// Revocations that are read at once at the start: the embedded store reads all of them for each page.
const LOAD_PAGE_ROWS: usize = REVOCATIONS_MAX;

/// Pause after a failed read at the start.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Outcome of a revocation that is in force on this node.
pub type Revoked = OrderOutcome;

/// Refusal of a revocation, which changed nothing.
#[derive(Debug)]
pub enum RevokeError {
    /// The user has the maximum number.
    UserFull,
    /// All users together have the maximum number.
    Full,
    /// The store did not take it, or did not answer.
    Store(StoreError),
}

impl Connections {
    /// Stores a revocation and puts it in force on this node, then on all others; names those that did not confirm it.
    /// One that takes back the others of its user ([`RevokedTokens::Cleared`]) takes the same way.
    ///
    /// # Errors
    /// Nothing was revoked, unless the store's answer was lost; the call may be repeated.
    pub async fn revoke(&self, revocation: Revocation) -> Result<Revoked, RevokeError> {
        let most = match revocation.tokens {
            // One of all tokens of a user ends an attack, so it has room of its own.
            RevokedTokens::Before(_) => 2 * REVOCATIONS_MAX,
            RevokedTokens::Cleared => usize::MAX,
            RevokedTokens::Id(_) | RevokedTokens::Device(..) => REVOCATIONS_MAX,
        };
        if self.cluster.revocations.count() >= most {
            return Err(RevokeError::Full);
        }
        let stored = self.cluster.ports.store.revoke(&revocation, wall_ms()).await;
        if !stored.map_err(RevokeError::Store)? {
            return Err(RevokeError::UserFull);
        }
        let here = self.revoke_here(revocation.clone()).await;
        let (others, link) = (self.others(), &self.cluster.ports.link);
        let here = Some(future::ready(here));
        Ok(self.on_nodes(here, &others, |run| link.revoke(run, revocation.clone())).await)
    }

    /// Puts a stored revocation in force on this node; returns how many connections were closed.
    ///
    /// # Errors
    /// The revocation is in force, but a shard is busy for too long; it closes its connections later.
    pub async fn revoke_here(&self, revocation: Revocation) -> Result<u64, LinkError> {
        // First: a login that the order below does not find has yet to be checked.
        self.cluster.revocations.add(&revocation);
        self.metrics.revocations.set(self.cluster.revocations.count() as f64);
        let revocation = Arc::new(revocation);
        self.order_here(|reply| ConnectionOrder::Revoke(Arc::clone(&revocation), reply)).await
    }

    /// Reads all revocations before the node accepts clients; waits for as long as the store is unavailable.
    ///
    /// # Errors
    /// The store can't be read.
    pub async fn load_revocations(&self) -> Result<(), StoreError> {
        loop {
            match self.read_revocations(false).await {
                Ok(()) => return Ok(()),
                Err(
                    error @ (StoreError::Unavailable(_)
                    | StoreError::NoConnection(_)
                    | StoreError::Unknown(_)),
                ) => log_limited!(warn, %error, "revocations not read yet; the node waits"),
                Err(error) => return Err(error),
            }
            time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Follows the revocations that other nodes store, if there are any, and removes those that are over. Runs until the
    /// node stops.
    pub async fn follow_revocations(self: Arc<Self>, is_clustered: bool) {
        let mut checks = 0_u32;
        loop {
            if is_clustered && let Err(error) = self.read_revocations(true).await {
                self.metrics.revocation_read_errors.increment(1);
                log_limited!(warn, %error, "revocations not read; the known ones stay in force");
            }
            checks = checks.wrapping_add(1);
            if checks.is_multiple_of(CHECKS_PER_PRUNE) {
                self.cluster.revocations.prune(wall_ms());
                self.metrics.revocations.set(self.cluster.revocations.count() as f64);
            }
            self.revocations.due().await;
        }
    }

    /// Reads the revocations that were stored since the last call, and puts them in force; `has_clients` says whether
    /// there may be connections to close.
    async fn read_revocations(&self, has_clients: bool) -> Result<(), StoreError> {
        self.revocations.catch_up(&StoredRevocations { connections: self, has_clients }).await
    }
}

/// Revocations in the store, which are put in force on this node. They stay if the store falls back.
struct StoredRevocations<'a> {
    connections: &'a Connections,
    has_clients: bool,
}

#[async_trait]
impl Followed for StoredRevocations<'_> {
    type Row = Revocation;

    async fn read(&self, after: u64) -> Result<FollowedPage<Revocation>, StoreError> {
        let rows_max = if self.has_clients { PAGE_ROWS } else { LOAD_PAGE_ROWS };
        let page = self.connections.cluster.ports.store.revocations(after, rows_max).await?;
        let last = page.rows.last().filter(|_| page.rows.len() == rows_max);
        let read_to = last.map_or(page.newest, |(number, _)| *number);
        let rows = page.rows.into_iter().map(|(_, it)| it).collect();
        Ok(FollowedPage { newest: page.newest, read_to, now_ms: None, rows })
    }

    async fn changed(&self, rows: Vec<Revocation>, _: Option<u64>) {
        let (connections, now_ms) = (self.connections, wall_ms());
        for revocation in rows.into_iter().filter(|it| !it.is_over(now_ms)) {
            if !self.has_clients {
                connections.cluster.revocations.add(&revocation);
            } else if let Err(error) = connections.revoke_here(revocation).await {
                tracing::debug!(%error, "connections of revoked tokens are closed later");
            }
        }
    }

    async fn caught_up(&self, _: Option<u64>) {
        let connections = self.connections;
        connections.metrics.revocations.set(connections.cluster.revocations.count() as f64);
    }
}
