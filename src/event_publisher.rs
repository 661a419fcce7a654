//! Tells events: what was noted goes to the topic, marks once a second, devices in doubt after a look at the routes.
//!
//! What the topic does not take is tried again for as long as the node lives. A departure that was told is settled with the
//! routes, which list its row until then, so that a crash in between leaves it to a reaper (ADR 14).

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    bus::{AppendError, EventSink},
    events::{Events, What},
    metrics::Metrics,
    routes::{LOOK_AGAIN, Route, Routes, RoutesError, sort},
};

/// Between two looks at marks, doubts and counts.
const TICK: Duration = Duration::from_millis(250);

/// How long marks are gathered.
const READS_EVERY: Duration = Duration::from_secs(1);

/// Events told at once, and rows looked up at once.
const BATCH: usize = 500;

/// Between two tries.
const AGAIN: Duration = Duration::from_millis(500);

/// What it takes to tell events.
pub struct Announcer {
    /// What was noted.
    pub events: Arc<Events>,
    /// The routes as they are, which note nothing themselves.
    pub routes: Arc<dyn Routes>,
    /// Where events go; none = nobody but followers of this node hears them.
    pub sink: Option<Arc<dyn EventSink>>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Announcer {
    /// Tells, for as long as the node lives.
    pub async fn run(self) {
        tokio::join!(self.tell(), self.keep());
    }

    async fn tell(&self) {
        loop {
            let batch = self.events.oldest(BATCH);
            if batch.is_empty() {
                self.events.rung().await;
                continue;
            }
            if let Some(sink) = &self.sink {
                let told: Vec<_> =
                    batch.iter().map(|event| (event.user().clone(), self.events.encode(event))).collect();
                match sink.publish(told).await {
                    Ok(()) => {}
                    Err(AppendError::Rejected(why)) => {
                        tracing::error!(why, "events were refused for good");
                        self.metrics.events_lost.increment(batch.len() as u64);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "events wait for Kafka");
                        self.metrics.events_retried.increment(1);
                        time::sleep(AGAIN).await;
                        continue;
                    }
                }
            }
            let departures = batch.iter().filter_map(|event| match &event.what {
                What::Offline(row) => Some(row.clone()),
                What::Online(..) | What::Read(..) | What::OrderBlocked(..) => None,
            });
            self.settle(departures.collect()).await;
            self.events.told(batch.len());
        }
    }

    /// These departures were told: nobody has to find them any more.
    async fn settle(&self, rows: Vec<Route>) {
        if rows.is_empty() {
            return;
        }
        let stood = match self.routes.remove(&rows).await {
            Ok(stood) => stood,
            Err(error) => {
                tracing::debug!(%error, "departures that were told stay listed until their run is swept");
                return;
            }
        };
        for (row, _) in rows.iter().zip(stood).filter(|(_, stood)| *stood) {
            // Somebody had not found its connection, which was about to come and has put the row back meanwhile.
            if let Err(error) = self.routes.reassert(std::slice::from_ref(row)).await {
                tracing::warn!(%error, user = %row.user, "a row that stood again was not put back");
            }
        }
    }

    async fn keep(&self) {
        let mut tick = time::interval(TICK);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut reads_at = Instant::now();
        let (mut noted, mut lost) = (0, 0);
        loop {
            tick.tick().await;
            if reads_at.elapsed() >= READS_EVERY {
                reads_at = Instant::now();
                self.events.tell_reads();
            }
            self.look().await;
            let (noted_now, lost_now, waiting) = self.events.counts();
            self.metrics.events.increment(noted_now - noted);
            self.metrics.events_lost.increment(lost_now - lost);
            self.metrics.events_waiting.set(waiting as f64);
            (noted, lost) = (noted_now, lost_now);
        }
    }

    /// Devices of which it was not clear whether they left.
    async fn look(&self) {
        loop {
            let rows = self.events.due(Instant::now(), BATCH);
            if rows.is_empty() {
                return;
            }
            if let Err(error) = self.resolve(rows.clone()).await {
                tracing::debug!(%error, "whether some devices left is not known yet");
                rows.iter().for_each(|row| self.events.look(row, LOOK_AGAIN));
                return;
            }
        }
    }

    async fn resolve(&self, rows: Vec<Route>) -> Result<(), RoutesError> {
        let sorted = sort(&*self.routes, rows).await?;
        sorted.gone.iter().for_each(|row| self.events.offline(row));
        // Also those that moved: they stay listed until somebody says so.
        let over = [sorted.standing, sorted.moved].concat();
        for (row, removed) in over.iter().zip(self.routes.remove(&over).await?) {
            if removed {
                self.events.offline(row);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
