//! Load of a run: all clients and the changes of groups, and how they come to rest.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rand::{RngExt as _, rngs::StdRng};
use tokio::task::JoinHandle;

use super::{client, groups, presence, world::World};
use crate::{checker::HistoryEvent, person::Phase};

/// Time for everything to be quiet once all faults are healed.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// One of this many devices is disconnected when presence is checked.
const LEAVING: usize = 4;

/// The clients and the administrator, which end when it is dropped.
pub(super) struct Workload {
    clients: Vec<JoinHandle<()>>,
    changes: JoinHandle<anyhow::Result<()>>,
}

impl Workload {
    /// Creates the groups, then starts the clients.
    pub(super) async fn begin(world: &Arc<World>, rng: &mut StdRng) -> anyhow::Result<Self> {
        groups::create(world).await?;
        let clients = (0..world.clients.len())
            .map(|index| tokio::spawn(client::run(Arc::clone(world), index, rng.random())))
            .collect();
        let changes = tokio::spawn(groups::change(Arc::clone(world), rng.random()));
        Ok(Self { clients, changes })
    }

    /// Waits until all clients have all answers, has them send their markers and check that they have everything, and
    /// waits for quiet. Later events are not recorded.
    pub(super) async fn rest(&mut self, world: &World) -> anyhow::Result<()> {
        world.set_phase(Phase::Settle);
        (&mut self.changes).await.context("the administrator")??;
        let rested = settle(world).await;
        let observed = match rested {
            Ok(()) => self.observe(world).await,
            Err(why) => Err(anyhow!("not converged after {CONVERGENCE_TIMEOUT:?}: {why}")),
        };
        world.recorder.seal();
        observed
    }

    /// Disconnects some devices, and asks all nodes for presence.
    async fn observe(&self, world: &World) -> anyhow::Result<()> {
        let mut there = BTreeSet::new();
        for (nth, client) in world.clients.iter().enumerate() {
            let (user, device) = (client.profile.user.as_str(), client.profile.device.as_str());
            if nth % LEAVING == 0 {
                self.clients[nth].abort();
                world.recorder.add(HistoryEvent::Left { user, device });
            } else {
                there.insert((user.to_owned(), device.to_owned()));
            }
        }
        presence::observe(world, &there).await
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.clients.iter().for_each(JoinHandle::abort);
        self.changes.abort();
    }
}

async fn settle(world: &World) -> Result<(), String> {
    let deadline = Instant::now() + CONVERGENCE_TIMEOUT;
    world.rest(deadline).await?;
    for phase in [Phase::Mark, Phase::Check] {
        world.set_phase(phase);
        world.rest(deadline).await?;
    }
    // Pushes may still be in flight: it is quiet when nothing is recorded for a while.
    let mut before = 0;
    while before != world.recorder.len() {
        if Instant::now() > deadline {
            return Err("there is no quiet".to_owned());
        }
        before = world.recorder.len();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}
