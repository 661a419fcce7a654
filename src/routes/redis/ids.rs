//! Ids on lease: a node that has no name of its own takes the first that nobody has.
//!
//! What holds an id is the lease of the run that has it; a claim stands in for that until the run has announced itself. An
//! id whose run has not renewed its lease in time is free once that run is retired, so that it can't come back beside
//! the new one (flaws S3, S5).

use std::time::Duration;

use tidegate_protocol::id::NodeId;

use super::{Lease, NodeBoot, RedisRoutes, Retire, Routes as _, RoutesError};
use crate::redis::{Call, Script};

static ID_CLAIM: Script = Script::new(include_str!("../../redis/id_claim.lua"));
static ID_GIVE_BACK: Script = Script::new(include_str!("../../redis/id_give_back.lua"));

/// How long a node may take from its claim to its announcement; one that dies in between keeps the id for as long.
const CLAIM: Duration = Duration::from_secs(300);

impl RedisRoutes {
    /// Claims the first of these ids that no live run has, for that claimant; none when all are held.
    ///
    /// # Errors
    /// Those of the routes. Asked again, the claimant finds what it has claimed.
    pub async fn claim_id(&self, ids: &[NodeId], claimant: u64) -> Result<Option<NodeId>, RoutesError> {
        let rows = self.nodes().await?;
        let held =
            |id: &&NodeId| rows.iter().any(|row| row.lease == Lease::Live && row.info.boot.node == **id);
        for id in ids.iter().filter(|id| !held(id)) {
            let call = Call::script(&ID_CLAIM, [self.id_key(id)])
                .arg(format!("{claimant:x}"))
                .arg(CLAIM.as_millis());
            let claimed: i64 = self.client.one(call).await?;
            if claimed == 0 {
                continue;
            }
            if self.vacate(id).await? {
                return Ok(Some(id.clone()));
            }
            self.drop_claim(id, claimant).await?;
        }
        Ok(None)
    }

    /// The claim has done its work: the run that made it has announced itself under the id. One that could not keeps it.
    ///
    /// # Errors
    /// Those of the routes; the claim ends by itself then.
    pub async fn settle_id(&self, of: &NodeBoot, claimant: u64) -> Result<(), RoutesError> {
        let is_there = self.nodes().await?.iter().any(|row| row.info.boot == *of && row.lease == Lease::Live);
        if is_there { self.drop_claim(&of.node, claimant).await } else { Ok(()) }
    }

    /// Whether no run has the id, as of after the claim; one whose lease has lapsed is retired.
    async fn vacate(&self, id: &NodeId) -> Result<bool, RoutesError> {
        for row in self.nodes().await?.iter().filter(|row| row.info.boot.node == *id) {
            let gone = match row.lease {
                Lease::Live => false,
                Lease::Lapsed => self.retire(&row.info.boot, Retire::Lapsed).await?,
                Lease::Retired => true,
            };
            if !gone {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn drop_claim(&self, id: &NodeId, claimant: u64) -> Result<(), RoutesError> {
        let call = Call::script(&ID_GIVE_BACK, [self.id_key(id)]).arg(format!("{claimant:x}"));
        let _: i64 = self.client.one(call).await?;
        Ok(())
    }

    fn id_key(&self, id: &NodeId) -> String {
        self.client.key("id", &format!("{{{id}}}"))
    }
}
