//! Event publisher: sends events to their topic, read marks once a second, and looks up devices that may have left.
//!
//! Events that the topic does not accept are retried for as long as the node lives. A published departure is confirmed
//! to the routes, which list its row until then, so that a crash in between leaves it to a reaper (ADR 14).

use std::{sync::Arc, time::Duration};

use tokio::time::{self, Instant};

use crate::{
    bus::{AppendError, EventRecord, EventSink},
    events::{DEPARTURE_RECHECK_DELAY, Events, What, sort},
    log_limit::log_limited,
    metrics::Metrics,
    routes::{Route, Routes, RoutesError},
};

/// Interval of the checks for read marks, possible departures and counts.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(250);

/// Time for which read marks are collected, so that only a user's last one is published.
const READ_MARKS_INTERVAL: Duration = Duration::from_secs(1);

/// Most events published at once, and most rows looked up at once.
const BATCH_MAX: usize = 500;

const PUBLISH_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Publisher of a node's events.
pub struct EventPublisher {
    /// Events noted by this node.
    pub events: Arc<Events>,
    /// Routes that emit no events.
    pub routes: Arc<dyn Routes>,
    /// Topic of events; `None` if only followers of this node get them.
    pub sink: Option<Arc<dyn EventSink>>,
    /// Metrics of the node.
    pub metrics: Metrics,
}

impl EventPublisher {
    /// Publishes events for as long as the node lives.
    pub async fn run(self) {
        tokio::join!(self.publish_events(), self.maintain());
    }

    async fn publish_events(&self) {
        loop {
            let batch = self.events.oldest(BATCH_MAX);
            if batch.is_empty() {
                self.events.rung().await;
                continue;
            }
            if let Some(sink) = &self.sink {
                let encoded = batch.iter().map(|event| EventRecord {
                    key: event.subject(),
                    partition: None,
                    json: self.events.encode(event),
                });
                match sink.publish(encoded.collect()).await {
                    Ok(()) => {}
                    Err(AppendError::Rejected(why)) => {
                        log_limited!(error, why, count = batch.len(), "events permanently rejected; dropped");
                        self.metrics.events_lost.increment(batch.len() as u64);
                    }
                    Err(error) => {
                        tracing::debug!(%error, "publishing events failed; retrying");
                        self.metrics.events_retried.increment(1);
                        time::sleep(PUBLISH_RETRY_INTERVAL).await;
                        continue;
                    }
                }
            }
            let departures = batch.iter().filter_map(|event| match &event.what {
                What::Offline(row) => Some(row.clone()),
                What::Online(..)
                | What::Read(..)
                | What::OrderBlocked(..)
                | What::Audit(_)
                | What::Storm(_)
                | What::Security(_)
                | What::Node(_) => None,
            });
            self.confirm_departures(departures.collect()).await;
            self.events.confirm(batch.len());
        }
    }

    /// Removes the rows of published departures from the routes, so that no reaper publishes them again.
    async fn confirm_departures(&self, rows: Vec<Route>) {
        if rows.is_empty() {
            return;
        }
        let was_live = match self.routes.remove(&rows).await {
            Ok(was_live) => was_live,
            Err(error) => {
                tracing::debug!(%error, "departures not confirmed; listed until their run is reaped");
                return;
            }
        };
        for (row, _) in rows.iter().zip(was_live).filter(|(_, was_live)| *was_live) {
            // A node had deleted the row because the connection was not indexed yet, and the connection has re-asserted
            // it since. It is live, so restore it.
            if let Err(error) = self.routes.reassert(std::slice::from_ref(row)).await {
                log_limited!(warn, %error, user = %row.user, "live route not restored");
            }
        }
    }

    async fn maintain(&self) {
        let mut tick = time::interval(MAINTENANCE_INTERVAL);
        tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let mut reads_at = Instant::now();
        let (mut noted, mut lost) = (0, 0);
        loop {
            tick.tick().await;
            if reads_at.elapsed() >= READ_MARKS_INTERVAL {
                reads_at = Instant::now();
                self.events.tell_reads();
            }
            self.look_up_departures().await;
            let (noted_now, lost_now, waiting) = self.events.counts();
            self.metrics.events.increment(noted_now - noted);
            self.metrics.events_lost.increment(lost_now - lost);
            self.metrics.events_waiting.set(waiting as f64);
            (noted, lost) = (noted_now, lost_now);
        }
    }

    /// Looks up devices that may have left.
    async fn look_up_departures(&self) {
        loop {
            let rows = self.events.due(Instant::now(), BATCH_MAX);
            if rows.is_empty() {
                return;
            }
            if let Err(error) = self.resolve(rows.clone()).await {
                tracing::debug!(%error, "lookup of possible departures failed; retrying");
                rows.iter().for_each(|row| self.events.look(row, DEPARTURE_RECHECK_DELAY));
                return;
            }
        }
    }

    async fn resolve(&self, rows: Vec<Route>) -> Result<(), RoutesError> {
        let sorted = sort(&*self.routes, rows).await?;
        sorted.gone.iter().for_each(|row| self.events.offline(row));
        // Moved rows too, which stay listed until they are removed once more.
        let ended = [sorted.registered, sorted.moved].concat();
        for (row, removed) in ended.iter().zip(self.routes.remove(&ended).await?) {
            if removed {
                self.events.offline(row);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
