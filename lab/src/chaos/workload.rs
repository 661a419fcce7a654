//! Load of a run: all clients, the changes of groups and the edits, and how they come to rest.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};
use rand::{RngExt as _, rngs::StdRng};
use tokio::task::JoinHandle;

use super::{
    client, edits, groups,
    library::{self, Libraries},
    presence,
    stream::StreamReader,
    topic::TopicReader,
    webhook::WebhookReceiver,
    world::{Device, World},
};
use crate::{
    checker::{Budget, HistoryEvent},
    person::Phase,
};

/// Time for everything to be quiet once all faults are healed.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval at which a run asks whether the closing messages have come.
const CLOSINGS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// One of this many devices is disconnected when presence is checked.
const LEAVING: usize = 4;

/// The clients and the administrator, which end when it is dropped.
pub(super) struct Workload {
    clients: Vec<JoinHandle<()>>,
    changes: JoinHandle<anyhow::Result<()>>,
    libraries: Libraries,
    consumers: Option<FeedConsumers>,
}

/// Consumers of the feed.
pub(super) struct FeedConsumers {
    pub(super) webhook: Arc<WebhookReceiver>,
    pub(super) stream: Arc<StreamReader>,
    /// Consumer of the topic of messages of a cluster.
    pub(super) topic: Option<TopicReader>,
}

impl FeedConsumers {
    /// Waits until each has everything.
    async fn catch_up(&self, world: &World) -> anyhow::Result<()> {
        self.webhook.catch_up(world).await?;
        let all = self.webhook.taken.highest();
        self.stream.taken.catch_up_with(&all).await;
        if let Some(topic) = &self.topic {
            topic.taken.catch_up_with(&all).await;
        }
        Ok(())
    }
}

impl Workload {
    /// Creates the groups, then starts the clients.
    pub(super) async fn begin(
        world: &Arc<World>,
        mut libraries: Libraries,
        rng: &mut StdRng,
    ) -> anyhow::Result<Self> {
        groups::create(world).await?;
        libraries.listen(world, || rng.random());
        let start = |(index, device): (usize, &Device)| {
            let (world, seed) = (Arc::clone(world), rng.random());
            let link = device.library.and_then(|nth| libraries.link(nth, &format!("device{index}")));
            match link {
                Some(link) => tokio::spawn(library::run(world, index, seed, link)),
                None => tokio::spawn(client::run(world, index, seed)),
            }
        };
        let clients = world.clients.iter().enumerate().map(start).collect();
        let (changed, edited) =
            (groups::change(Arc::clone(world), rng.random()), edits::edit(Arc::clone(world), rng.random()));
        // An adapter that reports no edits would seem to lose them.
        let may_edit = libraries.report_edits();
        let changes =
            tokio::spawn(
                async move { if may_edit { tokio::join!(changed, edited).0 } else { changed.await } },
            );
        Ok(Self { clients, changes, libraries, consumers: None })
    }

    /// Lets consumers of the feed take part.
    pub(super) fn with_consumers(mut self, consumers: FeedConsumers) -> Self {
        self.consumers = Some(consumers);
        self
    }

    /// Waits until all clients have all answers, has them send their markers and check that they have everything, and
    /// waits for quiet. Later events are not recorded.
    pub(super) async fn rest(&mut self, world: &World) -> anyhow::Result<()> {
        world.set_phase(Phase::Settle);
        (&mut self.changes).await.context("the administrator")??;
        let rested = tokio::select! {
            rested = settle(world) => rested,
            why = world.failed() => return Err(why),
        };
        let observed = match rested {
            Ok(()) => {
                if let Some(consumers) = &self.consumers {
                    consumers.catch_up(world).await?;
                }
                self.observe(world).await
            }
            Err(why) => Err(anyhow!("not converged after {CONVERGENCE_TIMEOUT:?}: {why}")),
        };
        world.recorder.seal();
        observed?;
        self.end_libraries(world).await
    }

    /// Ends the libraries, whose adapters have to be there still.
    async fn end_libraries(&mut self, world: &World) -> anyhow::Result<()> {
        for (client, device) in self.clients.iter_mut().zip(&world.clients) {
            if device.library.is_some() {
                client.abort();
                // A task that was aborted is no failure; one that ended by itself has reported why.
                client.await.ok();
            }
        }
        std::mem::take(&mut self.libraries).finish().await
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
    let healed = Instant::now();
    let deadline = healed + CONVERGENCE_TIMEOUT;
    world.rest(deadline).await?;
    world.recorder.begin_closings();
    world.set_phase(Phase::Mark);
    world.rest(deadline).await?;
    let marked = Instant::now();
    world.set_phase(Phase::Check);
    world.rest(deadline).await?;
    // Pushes may still be in flight: it is quiet when nothing is recorded for a while.
    let mut before = 0;
    while before != world.recorder.len() {
        if Instant::now() > deadline {
            return Err("there is no quiet".to_owned());
        }
        before = world.recorder.len();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    await_closings(world, healed, marked).await;
    world.recorder.add(HistoryEvent::<&str>::Quiet {});
    Ok(())
}

/// Waits until the closing messages of live rooms had time to come; if one is missing, until the checker judges it after
/// the last fault.
async fn await_closings(world: &World, healed: Instant, marked: Instant) {
    let budget = Budget::default();
    let due = marked + Duration::from_nanos(budget.excuse_ns);
    let overdue = due.max(healed + Duration::from_nanos(budget.settle_ns));
    let is_pending = || Instant::now() < overdue && !world.recorder.have_closings_come();
    while Instant::now() < due || is_pending() {
        tokio::time::sleep(CLOSINGS_POLL_INTERVAL).await;
    }
}
