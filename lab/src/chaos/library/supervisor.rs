//! Process of an adapter during a run: hands its events to its devices, and kills and restarts it now and then if its
//! library keeps its outbox in files.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::super::world::World;
use crate::{
    adapter::{AdapterEvents, AdapterProcess, Commands},
    person::Phase,
};

/// Time from the start of an adapter to its kill, in ms; the last one before the quiet phase may be missing.
const LIFE_MS: std::ops::Range<u64> = 4_000..16_000;

/// Time from the kill of an adapter to its next start, in ms.
const DOWN_MS: std::ops::Range<u64> = 0..1_000;

/// What a device learns from its adapter.
pub(super) enum FromAdapter {
    Event(Value),
    /// The process was killed. Everything that it had reported came before.
    Killed,
    /// The next process runs, and takes commands.
    Started(Commands),
}

/// Senders to the devices by their names.
pub(super) type Routes = Arc<Mutex<HashMap<String, mpsc::Sender<FromAdapter>>>>;

/// The process of an adapter, and what is needed to start it again.
pub(super) struct Supervisor {
    pub(super) command: String,
    pub(super) name: String,
    pub(super) process: AdapterProcess,
    pub(super) routes: Routes,
    /// Number of kills of all adapters; `None` if this one must not be killed.
    pub(super) kills: Option<Arc<AtomicU64>>,
}

impl Supervisor {
    /// Serves the devices until `stop`. Returns the process that runs then.
    pub(super) async fn run(
        mut self,
        world: Arc<World>,
        events: AdapterEvents,
        seed: u64,
        mut stop: oneshot::Receiver<()>,
    ) -> anyhow::Result<AdapterProcess> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut reading = tokio::spawn(hand_over(events, Arc::clone(&self.routes)));
        loop {
            let end = Instant::now() + Duration::from_millis(rng.random_range(LIFE_MS));
            let kills = tokio::select! {
                read = &mut reading => {
                    read?.context("the adapter has ended by itself")?;
                    bail!("the adapter has ended by itself");
                }
                _ = &mut stop => return Ok(self.process),
                () = sleep_until(end) => self.kills.clone().filter(|_| world.phase() == Phase::Talk),
            };
            let Some(kills) = kills else { continue };
            self.process.kill().await?;
            (&mut reading).await??;
            kills.fetch_add(1, Ordering::Relaxed);
            self.notify(|| FromAdapter::Killed).await;
            tokio::time::sleep(Duration::from_millis(rng.random_range(DOWN_MS))).await;
            let (process, events, description) = AdapterProcess::start(&self.command).await?;
            ensure!(description.name == self.name, "the adapter is another one after its restart");
            self.process = process;
            reading = tokio::spawn(hand_over(events, Arc::clone(&self.routes)));
            self.notify(|| FromAdapter::Started(self.process.commands().clone())).await;
        }
    }

    /// Sends a notice to all devices.
    async fn notify(&self, notice: impl Fn() -> FromAdapter) {
        let routes: Vec<_> = self.routes.lock().values().cloned().collect();
        for route in routes {
            // A device that has left receives nothing more.
            route.send(notice()).await.ok();
        }
    }
}

async fn hand_over(mut events: AdapterEvents, routes: Routes) -> anyhow::Result<()> {
    while let Some(event) = events.next().await? {
        // A device has a client for each of its runs.
        let device = event["client"].as_str().and_then(|name| name.split('/').next());
        let route = device.and_then(|name| routes.lock().get(name).cloned());
        if let Some(route) = route {
            route.send(FromAdapter::Event(event)).await.ok();
        }
    }
    Ok(())
}
