//! Stream of the node's figures: one event a second, and the last 15 minutes at its start.
//!
//! Each second is encoded once, for all streams. A stream that can't keep up ends, and so holds a bounded amount.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::State,
    http::{
        StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, stream};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tidegate_protocol::Code;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, broadcast},
    time::{MissedTickBehavior, interval},
};

mod fields;
mod history;

use self::{fields::Sampler, history::History};
use super::{Api, refusal};
use crate::{ack_times::AckTimes, cluster::Cluster, directory::Directory};

/// Interval of the events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most streams at a time.
const STREAMS_MAX: usize = 8;

/// Most events that wait for one stream; one that is further behind ends.
const BEHIND_MAX: usize = 16;

/// Figures of the node, and the streams that follow them.
pub struct StatsFeed {
    node: String,
    sampler: Mutex<Sampler>,
    history: Mutex<History>,
    streams: Arc<Semaphore>,
}

impl StatsFeed {
    /// Creates the figures of a node, from its metrics and its state.
    pub fn new(
        cluster: Arc<Cluster>,
        metrics: PrometheusHandle,
        directory: Arc<Directory>,
        ack_times: Arc<AckTimes>,
    ) -> Self {
        Self {
            node: cluster.me.node.to_string(),
            sampler: Mutex::new(Sampler::new(cluster, metrics, directory, ack_times)),
            history: Mutex::new(History::new(BEHIND_MAX)),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }

    /// Samples the figures each second until it is dropped.
    pub(super) async fn run(&self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            if let Some(row) = self.sampler.lock().sample(super::now_ms()) {
                self.history.lock().push(&self.node, row);
            }
        }
    }

    /// Ends all streams.
    pub(super) fn end(&self) {
        self.history.lock().end();
    }

    /// Returns the first events of a new stream, and the later ones; `None` once the streams have ended.
    fn follow(&self) -> Option<(Bytes, broadcast::Receiver<Bytes>)> {
        let history = self.history.lock();
        let later = history.subscribe()?;
        let start = format!(
            "event: start\ndata: {{\"everyMs\":{},\"keepMs\":{},\"fields\":{}}}\n\n",
            INTERVAL.as_millis(),
            INTERVAL.as_millis() * history::ROWS_MAX as u128,
            fields::names(),
        );
        Some((history.past(&self.node, start).into(), later))
    }
}

/// Streams the figures of this node.
pub(super) async fn stream(State(api): State<Api>) -> Response {
    let Ok(permit) = Arc::clone(&api.stats.streams).try_acquire_owned() else {
        let message = "8 clients follow the figures of this node already";
        let cure = "Close another console, or read /metrics.";
        return refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message, cure).into_response();
    };
    let Some((start, later)) = api.stats.follow() else {
        let cure = "Connect to another node.";
        return refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Draining, "the node stops", cure)
            .into_response();
    };
    let events = stream::once(async { start }).chain(stream::unfold((later, permit), next));
    let fields = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (fields, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}

/// Returns the next event of a stream; `None` if the node stops or the client is too far behind.
async fn next(
    (mut later, permit): (broadcast::Receiver<Bytes>, OwnedSemaphorePermit),
) -> Option<(Bytes, (broadcast::Receiver<Bytes>, OwnedSemaphorePermit))> {
    let event = later.recv().await.ok()?;
    Some((event, (later, permit)))
}
