//! Leased node ids: a node without a fixed name takes the first free id.
//!
//! An id is held by the lease of its run, and by a claim until the run has announced itself. An id whose run failed to
//! renew is free once that run is retired, so that the run can't return alongside the new one (flaws S3, S5). After an
//! outage of Redis all leases have expired at once. A run therefore counts as dead only after it was observed for a
//! while without a renewal, and ids without any run are taken first.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use tidegate_protocol::id::NodeId;

use super::{Lease, NodeBoot, NodeRow, RedisRoutes, Retire, Routes as _, RoutesError};
use crate::{
    redis::{Call, RedisKey, Script},
    routes::DEAD_AFTER,
};

static ID_CLAIM: Script = Script::new(include_str!("../../redis/id_claim.lua"));
static ID_GIVE_BACK: Script = Script::new(include_str!("../../redis/id_give_back.lua"));

/// Lifetime of a claim, within which the node must announce itself. A node that dies in between blocks the id for as
/// long.
const ID_CLAIM_TTL: Duration = Duration::from_secs(300);

/// Observations of runs with expired leases: the renewal counter, and since when it is unchanged.
#[derive(Debug, Default)]
pub struct Lapses(HashMap<NodeBoot, (u64, Instant)>);

impl Lapses {
    /// Updates the observations, and returns the runs that count as dead.
    fn observe(&mut self, rows: &[NodeRow], now: Instant) -> Vec<NodeBoot> {
        let lapsed = rows.iter().filter(|row| row.lease == Lease::Lapsed);
        let before = std::mem::take(&mut self.0);
        for row in lapsed {
            let since = before
                .get(&row.info.boot)
                .filter(|(renewals, _)| *renewals == row.renewals)
                .map(|(_, since)| *since);
            self.0.insert(row.info.boot.clone(), (row.renewals, since.unwrap_or(now)));
        }
        let dead = self.0.iter().filter(|(_, (_, since))| now.duration_since(*since) >= DEAD_AFTER);
        dead.map(|(boot, _)| boot.clone()).collect()
    }
}

impl RedisRoutes {
    /// Claims the first of these ids without a run, or else one whose runs are dead. `None` if all are held.
    ///
    /// # Errors
    /// Returns errors of the routes. After one, call again with the same `lapses`: the claimant finds its own claim.
    pub async fn claim_id(
        &self,
        ids: &[NodeId],
        claimant: u64,
        lapses: &mut Lapses,
    ) -> Result<Option<NodeId>, RoutesError> {
        let rows = self.nodes().await?;
        let dead = lapses.observe(&rows, Instant::now());
        // 0: no run has the id; 1: only dead runs; 2: a run that may be live.
        let rank = |id: &NodeId| {
            let runs = rows.iter().filter(|row| row.info.boot.node == *id && row.lease != Lease::Retired);
            let ranks = runs.map(|row| if dead.contains(&row.info.boot) { 1 } else { 2 });
            ranks.max().unwrap_or(0)
        };
        let mut free: Vec<(u8, &NodeId)> =
            ids.iter().map(|id| (rank(id), id)).filter(|(rank, _)| *rank < 2).collect();
        free.sort_by_key(|(rank, _)| *rank);
        for (_, id) in free {
            let call = Call::script(&ID_CLAIM, [self.id_key(id)])
                .arg(format!("{claimant:x}"))
                .arg(ID_CLAIM_TTL.as_millis());
            let claimed: i64 = self.client.one(call).await?;
            if claimed == 0 {
                continue;
            }
            if self.vacate(id, &dead).await? {
                return Ok(Some(id.clone()));
            }
            self.give_back_id(id, claimant).await?;
        }
        Ok(None)
    }

    /// Ends the claim if its run has announced itself under the id; otherwise the claim stays.
    ///
    /// # Errors
    /// Returns errors of the routes; the claim then expires.
    pub async fn settle_id(&self, of: &NodeBoot, claimant: u64) -> Result<(), RoutesError> {
        let is_live = self.nodes().await?.iter().any(|row| row.info.boot == *of && row.lease == Lease::Live);
        if is_live { self.give_back_id(&of.node, claimant).await } else { Ok(()) }
    }

    /// Retires the dead runs of a claimed id, and returns whether no other run has it.
    async fn vacate(&self, id: &NodeId, dead: &[NodeBoot]) -> Result<bool, RoutesError> {
        for row in self.nodes().await?.iter().filter(|row| row.info.boot.node == *id) {
            let is_retired = match row.lease {
                Lease::Live => false,
                Lease::Lapsed if !dead.contains(&row.info.boot) => false,
                Lease::Lapsed => self.retire(&row.info.boot, Retire::Lapsed).await?,
                Lease::Retired => true,
            };
            if !is_retired {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends a claim that is no longer needed, because a run holds the id or the node failed to start.
    ///
    /// # Errors
    /// Returns errors of the routes; the claim then expires.
    pub async fn give_back_id(&self, id: &NodeId, claimant: u64) -> Result<(), RoutesError> {
        let call = Call::script(&ID_GIVE_BACK, [self.id_key(id)]).arg(format!("{claimant:x}"));
        let _: i64 = self.client.one(call).await?;
        Ok(())
    }

    fn id_key(&self, id: &NodeId) -> String {
        self.client.key(RedisKey::NodeClaim, &format!("{{{id}}}"))
    }
}
