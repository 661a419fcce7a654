//! Stream of the figures of all nodes: one event a second and node, and the last 15 minutes at its start.
//!
//! Each event is encoded once, for all streams. A stream that can't keep up ends, and so holds a bounded amount. Peers
//! are queried while there is a stream, and not otherwise.

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
use parking_lot::Mutex;
use tidegate_protocol::Code;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, broadcast},
    time::{Interval, MissedTickBehavior, interval},
};

mod events;
mod fields;
mod peers;

use self::{
    fields::Sampler,
    peers::{FollowedPeers, NodePast},
};
use super::{
    Api,
    observe::flows::FlowsCache,
    peer_figures::{self, PeerFigures},
    refusal,
};
use crate::{
    ack_times::AckTimes,
    cluster::Cluster,
    directory::Directory,
    figures::{CodePeriods, STATS_ROWS_MAX},
    metrics::{Metrics, MetricsPage},
};

/// Interval of the events of a node.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most streams at a time.
const STREAMS_MAX: usize = 8;

/// Most events that wait for one stream; one that is further behind ends. Two are sent each second: one for this node,
/// and one for all others.
const BEHIND_MAX: usize = 32;

/// Figures of the nodes, and the streams that follow them.
pub struct StatsFeed {
    cluster: Arc<Cluster>,
    sampler: Mutex<Sampler>,
    metrics: Metrics,
    state: Mutex<Feed>,
    streams: Arc<Semaphore>,
    /// Queries of the peers, for streams and for flows.
    pub(super) peer_figures: PeerFigures,
    /// Answers that requests for flows share.
    pub(super) flows: FlowsCache,
}

/// State that a new stream begins with.
struct Feed {
    /// Sender of the events; `None` once the streams have ended.
    sender: Option<broadcast::Sender<Bytes>>,
    peers: FollowedPeers,
}

impl Feed {
    fn send(&self, events: String) {
        if let Some(sender) = self.sender.as_ref().filter(|_| !events.is_empty()) {
            // The last stream may have ended just now.
            sender.send(events.into()).ok();
        }
    }

    fn is_followed(&self) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }
}

impl StatsFeed {
    /// Creates the figures of a node, from its metrics and its state.
    pub fn new(
        cluster: Arc<Cluster>,
        rendered: MetricsPage,
        metrics: Metrics,
        directory: Arc<Directory>,
        ack_times: Arc<AckTimes>,
    ) -> Self {
        let sender = Some(broadcast::Sender::new(BEHIND_MAX));
        Self {
            sampler: Mutex::new(Sampler::new(Arc::clone(&cluster), rendered, directory, ack_times)),
            cluster,
            peer_figures: PeerFigures::new(metrics.clone()),
            metrics,
            state: Mutex::new(Feed { sender, peers: FollowedPeers::new(fields::COUNT) }),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
            flows: FlowsCache::default(),
        }
    }

    /// Samples the figures each second, and follows those of the peers, until it is dropped.
    pub(super) async fn run(&self) {
        tokio::join!(self.sample(), self.follow_peers());
    }

    async fn sample(&self) {
        let (mut ticks, mut periods) = (each_second(), CodePeriods::default());
        loop {
            ticks.tick().await;
            let now_ms = super::now_ms();
            let row = self.sampler.lock().sample(now_ms);
            let codes = periods.take(&self.metrics.codes, now_ms);
            let state = self.state.lock();
            let (node, mut events) = (self.cluster.me.node.as_str(), String::new());
            if state.is_followed() {
                row.iter().for_each(|row| events::put_now(node, row, fields::COUNT, &mut events));
                if codes.is_some() {
                    events::put_codes(node, codes.iter(), &mut events);
                }
            }
            state.send(events);
            row.into_iter().for_each(|row| self.cluster.figures.push_stats(row));
            codes.into_iter().for_each(|row| self.cluster.figures.push_codes(row));
        }
    }

    async fn follow_peers(&self) {
        let mut ticks = each_second();
        loop {
            ticks.tick().await;
            let live =
                if self.state.lock().is_followed() { peer_figures::live(&self.cluster) } else { Vec::new() };
            let queries = {
                let mut state = self.state.lock();
                state.peers.retain(&live);
                live.iter().map(|run| (run.clone(), state.peers.query(run))).collect()
            };
            let answers = self.peer_figures.query(&*self.cluster.ports.link, queries).await;
            let (mut state, mut events) = (self.state.lock(), String::new());
            let now_ms = super::now_ms();
            for (run, answer) in answers {
                state.peers.take(&run, now_ms, answer, &mut events);
            }
            state.send(events);
        }
    }

    /// Ends all streams.
    pub(super) fn end(&self) {
        self.state.lock().sender = None;
    }

    /// Returns the first events of a new stream, and the later ones; `None` once the streams have ended.
    fn follow(&self) -> Option<(impl Iterator<Item = String> + use<>, broadcast::Receiver<Bytes>)> {
        let state = self.state.lock();
        let later = state.sender.as_ref().map(broadcast::Sender::subscribe)?;
        // Only shared under the lock: as text, the rows of many nodes would delay the events of all streams.
        let (stats, codes) = self.cluster.figures.recent();
        let mut past = vec![NodePast { node: self.cluster.me.node.clone(), stats, codes }];
        past.extend(state.peers.past());
        drop(state);
        let start = format!(
            "event: start\ndata: {{\"everyMs\":{},\"keepMs\":{},\"fields\":{}}}\n\n",
            INTERVAL.as_millis(),
            INTERVAL.as_millis() * STATS_ROWS_MAX as u128,
            fields::names(),
        );
        let past = past.into_iter().map(|past| past.events(fields::COUNT));
        Some((std::iter::once(start).chain(past), later))
    }
}

fn each_second() -> Interval {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Streams the figures of all nodes.
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
    let events = stream::iter(start.map(Bytes::from)).chain(stream::unfold((later, permit), next));
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

#[cfg(test)]
mod tests;
