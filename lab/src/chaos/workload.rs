//! The load of a run: all clients and the group changes, and how they come to rest.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rand::{RngExt as _, rngs::StdRng};
use tokio::task::JoinHandle;

use super::{
    client, groups, presence,
    world::{Phase, World},
};
use crate::checker::Event;

/// How long everything may take to be quiet once all is healed.
const CONVERGE: Duration = Duration::from_secs(60);

/// Of so many devices one is away when presence is asked for.
const LEAVING: usize = 4;

/// The clients and the administrator; they end with it.
pub(super) struct Workload {
    clients: Vec<JoinHandle<()>>,
    changes: JoinHandle<anyhow::Result<()>>,
}

impl Workload {
    /// Makes the groups, then lets everybody talk.
    pub(super) async fn begin(world: &Arc<World>, rng: &mut StdRng) -> anyhow::Result<Self> {
        groups::create(world).await?;
        let clients = (0..world.clients.len())
            .map(|index| tokio::spawn(client::run(Arc::clone(world), index, rng.random())))
            .collect();
        let changes = tokio::spawn(groups::change(Arc::clone(world), rng.random()));
        Ok(Self { clients, changes })
    }

    /// Waits until everybody has all answers, lets each client send its markers and make sure that it has everything, and
    /// waits for quiet. What follows is not recorded any more.
    pub(super) async fn rest(&mut self, world: &World) -> anyhow::Result<()> {
        world.set_phase(Phase::Settle);
        (&mut self.changes).await.context("the administrator")??;
        let rested = settle(world).await;
        let observed = match rested {
            Ok(()) => self.observe(world).await,
            Err(why) => Err(anyhow!("not converged after {CONVERGE:?}: {why}")),
        };
        world.recorder.seal();
        observed
    }

    /// Takes some devices away, and asks all nodes who is there.
    async fn observe(&self, world: &World) -> anyhow::Result<()> {
        let mut there = BTreeSet::new();
        for (nth, client) in world.clients.iter().enumerate() {
            let (user, device) = (client.user.as_str(), client.device.as_str());
            if nth % LEAVING == 0 {
                self.clients[nth].abort();
                world.recorder.add(Event::Left { user, device });
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
    let deadline = Instant::now() + CONVERGE;
    world.rest(deadline).await?;
    for phase in [Phase::Mark, Phase::Check] {
        world.set_phase(phase);
        world.rest(deadline).await?;
    }
    // Pushes may still be on their way: quiet is when nothing is recorded for a while.
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
