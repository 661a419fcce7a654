//! Ids on lease: a node that has no name of its own takes the first that nobody has.
//!
//! What holds an id is the lease of the run that has it; a claim stands in for that until the run has announced itself. An
//! id whose run has not renewed its lease in time is free once that run is retired, so that it can't come back beside
//! the new one (flaws S3, S5). After an outage of Redis all leases have run out at once, so a run is taken for dead only when it has been
//! seen to renew nothing for a while, and ids that nobody had come first.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use tidegate_protocol::id::NodeId;

use super::{Lease, NodeBoot, NodeRow, RedisRoutes, Retire, Routes as _, RoutesError};
use crate::{
    redis::{Call, Script},
    routes::STILL_MIN,
};

static ID_CLAIM: Script = Script::new(include_str!("../../redis/id_claim.lua"));
static ID_GIVE_BACK: Script = Script::new(include_str!("../../redis/id_give_back.lua"));

/// How long a node may take from its claim to its announcement; one that dies in between keeps the id for as long.
const CLAIM: Duration = Duration::from_secs(300);

/// What one who wants an id has seen of runs whose leases are over: their beats, and since when.
#[derive(Debug, Default)]
pub struct Lapses(HashMap<NodeBoot, (u64, Instant)>);

impl Lapses {
    /// Which of these runs are over, as far as can be seen by now.
    fn look(&mut self, rows: &[NodeRow], now: Instant) -> Vec<NodeBoot> {
        let lapsed = rows.iter().filter(|row| row.lease == Lease::Lapsed);
        let before = std::mem::take(&mut self.0);
        for row in lapsed {
            let since =
                before.get(&row.info.boot).filter(|(beat, _)| *beat == row.beat).map(|(_, since)| *since);
            self.0.insert(row.info.boot.clone(), (row.beat, since.unwrap_or(now)));
        }
        let still = self.0.iter().filter(|(_, (_, since))| now.duration_since(*since) >= STILL_MIN);
        still.map(|(boot, _)| boot.clone()).collect()
    }
}

impl RedisRoutes {
    /// Claims the first of these ids that no run has, or else one whose run is over, for that claimant; none when all are held.
    ///
    /// # Errors
    /// Those of the routes. Asked again, with what was seen before, the claimant finds what it has claimed.
    pub async fn claim_id(
        &self,
        ids: &[NodeId],
        claimant: u64,
        seen: &mut Lapses,
    ) -> Result<Option<NodeId>, RoutesError> {
        let rows = self.nodes().await?;
        let over = seen.look(&rows, Instant::now());
        // How much is in the way of it: nothing, runs that are over, or one that may live.
        let ground = |id: &NodeId| {
            let runs = rows.iter().filter(|row| row.info.boot.node == *id && row.lease != Lease::Retired);
            let way = runs.map(|row| if over.contains(&row.info.boot) { 1 } else { 2 });
            way.max().unwrap_or(0)
        };
        let mut free: Vec<(u8, &NodeId)> =
            ids.iter().map(|id| (ground(id), id)).filter(|(way, _)| *way < 2).collect();
        free.sort_by_key(|(way, _)| *way);
        for (_, id) in free {
            let call = Call::script(&ID_CLAIM, [self.id_key(id)])
                .arg(format!("{claimant:x}"))
                .arg(CLAIM.as_millis());
            let claimed: i64 = self.client.one(call).await?;
            if claimed == 0 {
                continue;
            }
            if self.vacate(id, &over).await? {
                return Ok(Some(id.clone()));
            }
            self.give_back_id(id, claimant).await?;
        }
        Ok(None)
    }

    /// The claim has done its work: the run that made it has announced itself under the id. One that could not keeps it.
    ///
    /// # Errors
    /// Those of the routes; the claim ends by itself then.
    pub async fn settle_id(&self, of: &NodeBoot, claimant: u64) -> Result<(), RoutesError> {
        let is_there = self.nodes().await?.iter().any(|row| row.info.boot == *of && row.lease == Lease::Live);
        if is_there { self.give_back_id(&of.node, claimant).await } else { Ok(()) }
    }

    /// Whether no run has the id, as of after the claim; one that is over is retired.
    async fn vacate(&self, id: &NodeId, over: &[NodeBoot]) -> Result<bool, RoutesError> {
        for row in self.nodes().await?.iter().filter(|row| row.info.boot.node == *id) {
            let gone = match row.lease {
                Lease::Live => false,
                Lease::Lapsed if !over.contains(&row.info.boot) => false,
                Lease::Lapsed => self.retire(&row.info.boot, Retire::Lapsed).await?,
                Lease::Retired => true,
            };
            if !gone {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends a claim that is not needed any more: the id is held otherwise, or the node could not start.
    ///
    /// # Errors
    /// Those of the routes; the claim ends by itself then.
    pub async fn give_back_id(&self, id: &NodeId, claimant: u64) -> Result<(), RoutesError> {
        let call = Call::script(&ID_GIVE_BACK, [self.id_key(id)]).arg(format!("{claimant:x}"));
        let _: i64 = self.client.one(call).await?;
        Ok(())
    }

    fn id_key(&self, id: &NodeId) -> String {
        self.client.key("id", &format!("{{{id}}}"))
    }
}
