//! One stream of events: reads the partitions in turn, and marks how far its client has everything.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    EventStreams, FeedNews, FeedNumbers, StreamPlace,
    batch::{self, BATCH_EVENTS_MAX, BatchRead, StreamFilter},
    query::cursor,
};
use crate::{
    events::{Cursor, EventsPage},
    log_limit::log_limited,
    store::StoreError,
    supervised,
};

/// Longest time from progress to the `id:` line that confirms it, unless [`BATCH_EVENTS_MAX`] events come first.
const MARK_INTERVAL: Duration = Duration::from_secs(1);

/// Time of silence after which a comment shows that the connection is open.
const COMMENT_INTERVAL: Duration = Duration::from_secs(15);

/// Time after which a read counts as failed.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Delay until a partition is read again that could not be read.
const READ_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Most changes of the cluster that are sent at once.
const NODE_EVENTS_MAX: usize = 100;

/// Comment in place of changes of the cluster that came faster than the client took them.
const NODE_EVENTS_LOST: &str = ": changes of the cluster were lost\n\n";

/// Time after which clients should connect again, as browsers understand it.
const RECONNECT: &str = "retry: 1000\n";

/// Reader of the feed for one stream.
pub(super) struct EventFollower {
    streams: Arc<EventStreams>,
    filter: Arc<StreamFilter>,
    news: watch::Receiver<FeedNews>,
    /// Value of [`FeedNews::ends`] at the start.
    ends: u64,
    /// Numbers up to which everything was sent.
    sent: FeedNumbers,
    /// Newest numbers, as far as known.
    newest: FeedNumbers,
    /// Newest numbers that were taken over from the news last.
    noted: Arc<FeedNumbers>,
    /// Partition that was read last; the next one has its turn.
    last_read: Option<u32>,
    /// Position among the changes of the cluster; `None` if none are wanted.
    nodes: Option<Cursor>,
    /// Read that runs.
    reading: Option<RunningRead>,
    /// Time until which partitions rest that could not be read.
    rests: BTreeMap<u32, Instant>,
    unmarked: Unmarked,
    sent_at: Instant,
    stage: StreamStage,
    /// Sum of the numbers up to which everything was sent.
    progress: Arc<AtomicU64>,
    _place: StreamPlace,
}

/// Read of a partition.
struct RunningRead {
    partition: u32,
    /// Number after which it reads.
    after: u64,
    task: JoinHandle<Result<BatchRead, StoreError>>,
    /// Ends the wait for a turn with the stream.
    _left: DropGuard,
}

/// Progress that no `id:` line has confirmed.
#[derive(Default)]
struct Unmarked {
    events: u64,
    since: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StreamStage {
    Opening,
    Following,
    Ended,
}

impl EventFollower {
    /// Creates a stream that goes on after these numbers, and ends once all streams have had to end more than `ends` times.
    pub(super) fn new(
        streams: Arc<EventStreams>,
        place: StreamPlace,
        mut news: watch::Receiver<FeedNews>,
        ends: u64,
        filter: StreamFilter,
        sent: FeedNumbers,
    ) -> Self {
        let noted = Arc::clone(&news.borrow_and_update().newest);
        let nodes = filter.wants_nodes().then(|| streams.events.node_ring().end());
        let it = Self {
            progress: streams.progress(),
            streams,
            filter: Arc::new(filter),
            news,
            ends,
            sent,
            newest: FeedNumbers::clone(&noted),
            noted,
            last_read: None,
            nodes,
            reading: None,
            rests: BTreeMap::new(),
            unmarked: Unmarked::default(),
            sent_at: Instant::now(),
            stage: StreamStage::Opening,
            _place: place,
        };
        it.measure();
        it
    }

    /// Returns the next part of the stream; `None` at its end.
    pub(super) async fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        match self.stage {
            StreamStage::Opening => {
                // A client that is cut off before the first event continues here.
                text.push_str(RECONNECT);
                self.put_mark(&mut text);
                self.stage = StreamStage::Following;
            }
            StreamStage::Following => self.follow(&mut text).await,
            StreamStage::Ended => return None,
        }
        self.sent_at = Instant::now();
        (!text.is_empty()).then_some(text)
    }

    /// Waits until there is something to send. Leaves the text empty at the end of a stream that has confirmed everything.
    async fn follow(&mut self, text: &mut String) {
        while text.is_empty() {
            if !self.learn() {
                self.stage = StreamStage::Ended;
                if self.unmarked.since.is_some() {
                    self.put_mark(text);
                }
                return;
            }
            if self.reading.is_none()
                && let Some(partition) = self.next_partition()
            {
                self.begin_read(partition);
            }
            self.wait(text).await;
            let is_due = self.unmarked.since.is_some_and(|since| since.elapsed() >= MARK_INTERVAL);
            if is_due || self.unmarked.events >= BATCH_EVENTS_MAX as u64 {
                self.put_mark(text);
            }
            if text.is_empty() && self.sent_at.elapsed() >= COMMENT_INTERVAL {
                text.push_str(": open\n\n");
            }
        }
    }

    /// Takes the newest numbers over; returns false if the stream has to end.
    fn learn(&mut self) -> bool {
        let now = Instant::now();
        self.rests.retain(|_, until| *until > now);
        let is_served = self.news.has_changed().is_ok();
        let FeedNews { newest, ends, is_stopped } = self.news.borrow_and_update().clone();
        if !Arc::ptr_eq(&newest, &self.noted) {
            self.newest.extend(newest.iter());
            self.noted = newest;
            self.measure();
        }
        is_served && !is_stopped && ends == self.ends
    }

    /// Returns the next partition that has something new, in turn. Another number than the one that was sent last is new,
    /// also a lower one: the store may have fallen back.
    fn next_partition(&self) -> Option<u32> {
        let first = self.last_read.map_or(0, |last| last.wrapping_add(1));
        let is_new = |(partition, newest): (&u32, &u64)| {
            let is_new = *newest != self.sent_of(*partition) && !self.rests.contains_key(partition);
            is_new.then_some(*partition)
        };
        self.newest.range(first..).chain(self.newest.range(..first)).find_map(is_new)
    }

    /// Waits for the read that runs, for news, for changes of the cluster, or until something is due.
    async fn wait(&mut self, text: &mut String) {
        let marked = self.unmarked.since.map(|since| since + MARK_INTERVAL);
        let rested = self.rests.values().copied();
        let due = rested.chain(marked).fold(self.sent_at + COMMENT_INTERVAL, Instant::min);
        let Self { reading, news, streams, nodes, .. } = self;
        let changes = async {
            match nodes {
                Some(from) => {
                    streams.events.node_ring().wait(Some(*from), NODE_EVENTS_MAX, COMMENT_INTERVAL).await
                }
                None => pending().await,
            }
        };
        let read = async {
            match reading {
                Some(read) => (&mut read.task).await,
                None => pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = read => outcome,
            page = changes => return self.put_nodes(&page, text),
            // Without a sender the stream ends, as the caller finds.
            _ = news.changed() => return,
            () = sleep_until(due) => return,
        };
        if let Some(read) = self.reading.take() {
            let stopping = |_| Err(StoreError::Unavailable("the node stops".into()));
            self.note(&read, outcome.unwrap_or_else(stopping), text);
            self.measure();
        }
    }

    /// Appends changes of the cluster. A comment stands for those that were evicted before this stream took them.
    fn put_nodes(&mut self, page: &EventsPage, text: &mut String) {
        self.nodes = Some(page.cursor);
        if page.missed {
            text.push_str(NODE_EVENTS_LOST);
        }
        let count = self.filter.put_nodes(&self.streams.events, page, text);
        self.streams.metrics.stream_events.increment(count);
    }

    /// Begins to read what follows the number that was sent, in a turn of the streams of this node. The read is a task that
    /// keeps the turn, so that those of clients that left do not exceed the bound while the store still works on them.
    fn begin_read(&mut self, partition: u32) {
        self.last_read = Some(partition);
        let after = self.sent_of(partition);
        let (reads, store) = (Arc::clone(&self.streams.reads), Arc::clone(&self.streams.store));
        let (filter, left) = (Arc::clone(&self.filter), CancellationToken::new());
        let has_left = left.clone();
        let task = supervised::spawn("a read for a stream of events", async move {
            let failed = |why: &str| StoreError::Unavailable(why.to_owned());
            let _turn = tokio::select! {
                biased;
                () = has_left.cancelled() => return Err(failed("the client has left")),
                // The semaphore is never closed.
                turn = reads.acquire_owned() => turn.ok(),
            };
            let read = timeout(READ_TIMEOUT, batch::read(&*store, &filter, partition, after)).await;
            read.unwrap_or_else(|_| Err(failed("no answer in time")))
        });
        self.reading = Some(RunningRead { partition, after, task, _left: left.drop_guard() });
    }

    /// Takes the outcome of a read.
    fn note(&mut self, read: &RunningRead, outcome: Result<BatchRead, StoreError>, text: &mut String) {
        let (partition, sent) = (read.partition, read.after);
        match outcome {
            Ok(BatchRead::Batch(batch)) => {
                self.streams.metrics.stream_events.increment(batch.events);
                self.unmarked.events += batch.events;
                text.push_str(&batch.text);
                // What was polled during the read may be newer than what it saw.
                let newest = self.newest.entry(partition).or_default();
                *newest = batch.newest.max(*newest);
                if batch.to == sent {
                    self.rest(partition);
                }
                self.advance(partition, sent, batch.to);
            }
            Ok(BatchRead::Gap(numbers)) => {
                self.streams.metrics.stream_gaps.increment(1);
                batch::put_gap(partition, &numbers, text);
                self.advance(partition, sent, *numbers.end());
            }
            Ok(BatchRead::FellBack(newest)) => {
                log_limited!(
                    warn,
                    partition,
                    sent,
                    newest,
                    "feed fell back; a stream of events goes on from its end"
                );
                // What was above comes again, under the same numbers.
                self.newest.insert(partition, newest);
                self.advance(partition, sent, newest);
            }
            Ok(BatchRead::Lacking) => {
                log_limited!(
                    warn,
                    partition,
                    "the store lacks what the feed names; a stream of events waits"
                );
                self.rest(partition);
            }
            Err(error) => {
                log_limited!(warn, %error, partition, "feed not read for a stream of events; retrying");
                self.rest(partition);
            }
        }
    }

    fn rest(&mut self, partition: u32) {
        self.rests.insert(partition, Instant::now() + READ_RETRY_INTERVAL);
    }

    fn advance(&mut self, partition: u32, from: u64, to: u64) {
        if to != from {
            self.sent.insert(partition, to);
            self.unmarked.since.get_or_insert_with(Instant::now);
        }
    }

    /// Appends an `id:` line: up to here the client has everything.
    fn put_mark(&mut self, text: &mut String) {
        self.unmarked = Unmarked::default();
        write!(text, "id: {}\n\n", cursor(self.streams.events.source(), &self.sent)).ok();
    }

    /// Returns the number up to which everything of a partition was sent.
    fn sent_of(&self, partition: u32) -> u64 {
        self.sent.get(&partition).copied().unwrap_or(0)
    }

    fn measure(&self) {
        let sent = self.newest.keys().map(|partition| self.sent_of(*partition));
        self.progress.store(sent.fold(0, u64::saturating_add), Ordering::Relaxed);
    }
}
