//! Stream of the feed as server-sent events: what was accepted on all nodes, from whichever node is asked.
//!
//! Each stream reads the feed of all partitions from the store, a bounded number of reads of all streams at a time. While
//! there are streams, one task of the node polls the newest numbers of the feed, and wakes those that are behind. A stream
//! is the body of its response: it reads nothing more until its client has taken what it has.
//!
//! Changes of the cluster, as this node sees them, come between the events of the feed to those that ask for their types.
//! They have no number, and no `id:` line confirms them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{CACHE_CONTROL, CONTENT_TYPE},
    },
    response::{IntoResponse as _, Response},
};
use futures_util::stream::unfold;
use parking_lot::Mutex;
use tidegate_protocol::{Code, machine::drain::NodePhase};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, watch},
    time::{interval, sleep, timeout},
};

mod batch;
mod follower;
mod query;

use self::{
    follower::EventFollower,
    query::{StreamQuery, StreamStart},
};
use super::super::{
    Api, ProblemDetails,
    access::{Caller, RouteNeed, StreamsContent},
    caller::Ends,
    conversations::{Parameters, checked, turns},
    refusal,
};
use crate::{
    events::Events,
    keys::Scope,
    log_limit::log_limited,
    metrics::Metrics,
    store::{FeedPosition, Store},
};

/// Most streams of a node.
const STREAMS_MAX: usize = 32;

/// Most streams of one key, so that none takes all places.
const STREAMS_OF_KEY_MAX: usize = 16;

/// Most reads of all streams of a node at a time. Those that wait have their turn in the order in which they came.
const READS_MAX: usize = 2;

/// Interval at which the newest numbers of the feed are polled while there are streams.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Delay of the next poll after a failed one.
const POLL_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which a poll counts as failed.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of an entry of the feed, by partition.
type FeedNumbers = BTreeMap<u32, u64>;

/// Streams of the feed on a node, and what they share.
pub struct EventStreams {
    store: Arc<dyn Store>,
    /// Events of this node; their source names the cluster, or a single node.
    events: Arc<Events>,
    metrics: Metrics,
    places: Arc<Semaphore>,
    /// Number of streams of each key that has any.
    of_keys: Arc<Mutex<BTreeMap<String, usize>>>,
    reads: Arc<Semaphore>,
    news: watch::Sender<FeedNews>,
    /// Notified when a stream is opened.
    opened: Notify,
    /// Sum of the numbers up to which each stream has sent everything.
    progress: Mutex<Vec<Weak<AtomicU64>>>,
}

/// What the streams of a node wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FeedNews {
    /// Newest numbers, as they were polled last.
    newest: Arc<FeedNumbers>,
    /// Number of times that all streams had to end.
    ends: u64,
    is_stopped: bool,
}

/// Place of a stream among those of its node.
struct StreamPlace {
    _permit: OwnedSemaphorePermit,
    metrics: Metrics,
    key: Option<String>,
    of_keys: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.metrics.event_streams.decrement(1);
        let mut of_keys = self.of_keys.lock();
        if let Some(key) = &self.key
            && let Some(count) = of_keys.get_mut(key)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                of_keys.remove(key);
            }
        }
    }
}

impl EventStreams {
    /// Creates the streams of a node over its store and its own events.
    pub fn new(store: &Arc<dyn Store>, events: &Arc<Events>, metrics: Metrics) -> Self {
        Self {
            store: store.for_back_ends().unwrap_or_else(|| Arc::clone(store)),
            events: Arc::clone(events),
            metrics,
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
            of_keys: Arc::default(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            news: watch::Sender::default(),
            opened: Notify::new(),
            progress: Mutex::default(),
        }
    }

    /// Polls the feed while there are streams, and ends all streams when a drain begins, until it is dropped.
    pub(in crate::api) async fn run(&self, is_draining: impl Fn() -> bool) {
        tokio::join!(self.poll(), self.follow_drain(is_draining));
    }

    /// Ends all streams; no further one begins.
    pub(in crate::api) fn stop(&self) {
        self.news.send_modify(|news| news.is_stopped = true);
    }

    async fn poll(&self) {
        loop {
            if self.places.available_permits() == STREAMS_MAX {
                self.measure();
                self.opened.notified().await;
            }
            let delay = match timeout(POLL_TIMEOUT, self.store.feed_positions()).await {
                Ok(Ok(positions)) => {
                    self.note(&positions);
                    POLL_INTERVAL
                }
                Ok(Err(error)) => {
                    log_limited!(warn, %error, "feed not polled for streams of events; retrying");
                    POLL_RETRY_INTERVAL
                }
                Err(_) => {
                    log_limited!(warn, "feed not polled in time for streams of events; retrying");
                    POLL_RETRY_INTERVAL
                }
            };
            self.measure();
            sleep(delay).await;
        }
    }

    fn note(&self, positions: &[FeedPosition]) {
        let newest: FeedNumbers = positions.iter().map(|it| (it.partition, it.newest)).collect();
        self.news.send_if_modified(|news| {
            let is_new = *news.newest != newest;
            if is_new {
                news.newest = Arc::new(newest);
            }
            is_new
        });
    }

    async fn follow_drain(&self, is_draining: impl Fn() -> bool) {
        let (mut ticks, mut was_draining) = (interval(POLL_INTERVAL), false);
        loop {
            ticks.tick().await;
            let is_draining = is_draining();
            if is_draining && !was_draining {
                self.news.send_modify(|news| news.ends += 1);
            }
            was_draining = is_draining;
        }
    }

    fn measure(&self) {
        self.metrics.event_stream_lag.set(self.lag() as f64);
    }

    /// Returns how many entries the stream has not sent that is furthest behind.
    fn lag(&self) -> u64 {
        let newest = self.news.borrow().newest.values().fold(0, |sum: u64, it| sum.saturating_add(*it));
        let progress = self.progress.lock();
        let least = progress.iter().filter_map(Weak::upgrade).map(|it| it.load(Ordering::Relaxed)).min();
        least.map_or(0, |least| newest.saturating_sub(least))
    }

    /// Takes a place for a stream of a key; `None` if all are taken, or the share of the key is. Without keys all callers are
    /// one, and may take all.
    fn take_place(&self, key: Option<&str>) -> Option<StreamPlace> {
        let mut of_keys = self.of_keys.lock();
        if key.and_then(|key| of_keys.get(key)).is_some_and(|count| *count >= STREAMS_OF_KEY_MAX) {
            return None;
        }
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        if let Some(key) = key {
            *of_keys.entry(key.to_owned()).or_default() += 1;
        }
        self.metrics.event_streams.increment(1);
        let (key, of_keys) = (key.map(str::to_owned), Arc::clone(&self.of_keys));
        Some(StreamPlace { _permit: permit, metrics: self.metrics.clone(), key, of_keys })
    }

    /// Returns what a new stream notes its progress in.
    fn progress(&self) -> Arc<AtomicU64> {
        let new = Arc::new(AtomicU64::new(0));
        let mut progress = self.progress.lock();
        progress.retain(|it| it.strong_count() > 0);
        progress.push(Arc::downgrade(&new));
        new
    }
}

/// Streams the events of the feed.
pub(in crate::api) async fn stream(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    ends: Option<Extension<Ends>>,
    headers: HeaderMap,
    query: Parameters<StreamQuery>,
) -> Response {
    let query = match checked(query) {
        Ok(query) => query,
        Err(problem) => return problem.into_response(),
    };
    let with_content = query.with_content();
    if with_content && let Err(refused) = caller.require(RouteNeed::Scope(Scope::Content)) {
        api.gate.count(&refused, ends.map(|Extension(ends)| ends.caller.ip().to_canonical()));
        return refused.response();
    }
    let mut response = open(&api, &caller, &headers, query).await.unwrap_or_else(|it| it.into_response());
    if with_content {
        response.extensions_mut().insert(StreamsContent);
    }
    response
}

async fn open(
    api: &Api,
    caller: &Caller,
    headers: &HeaderMap,
    query: StreamQuery,
) -> Result<Response, ProblemDetails> {
    let streams = Arc::clone(&api.event_streams);
    let (filter, start) = query.parse(headers, streams.events.source())?;
    if !streams.store.has_feed() {
        let message = "the nodes keep no feed (events.feed = false), so there are no events to follow";
        let cure = "Set events.feed = true on all nodes and restart them.";
        return Err(refusal(StatusCode::CONFLICT, Code::Unsupported, message, cure));
    }
    let Some(place) = streams.take_place(caller.key()) else {
        let message = "32 clients follow the events of this node already, or 16 with this key";
        let cure = "Connect to another node, or close another stream.";
        return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message, cure));
    };
    // Before the check of the phase: a drain that begins after it ends the stream.
    let news = streams.news.subscribe();
    let ends = news.borrow().ends;
    if api.drainer.phase() > NodePhase::Ready || news.borrow().is_stopped {
        let cure = "Connect to another node.";
        return Err(refusal(StatusCode::SERVICE_UNAVAILABLE, Code::Draining, "the node stops", cure));
    }
    let numbers = match start {
        StreamStart::After(numbers) => numbers,
        StreamStart::Now | StreamStart::Oldest => {
            let positions = turns::in_turn(api, caller, async {}, |store, ()| async move {
                store.feed_positions().await.map_err(turns::unavailable)
            });
            let of = |it: FeedPosition| match start {
                StreamStart::Oldest => (it.partition, it.oldest.saturating_sub(1)),
                _ => (it.partition, it.newest),
            };
            positions.await?.into_iter().map(of).collect()
        }
    };
    let follower = EventFollower::new(Arc::clone(&streams), place, news, ends, filter, numbers);
    streams.opened.notify_one();
    let chunks = unfold(follower, |mut follower| async move {
        let chunk = follower.next().await?;
        Some((Ok::<_, Infallible>(Bytes::from(chunk)), follower))
    });
    let fields = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    Ok((fields, Body::from_stream(chunks)).into_response())
}

#[cfg(test)]
mod tests;
