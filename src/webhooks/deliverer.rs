//! Deliverer of one endpoint on a node: drives the delivery machine with the feed, the store and a receiver.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tidegate_protocol::{
    Time,
    machine::webhook::{
        WebhookBatch, WebhookCursor, WebhookDelivery, WebhookEvent, WebhookEventKind, WebhookItem,
        WebhookNotice, WebhookOutcome, WebhookPage, WebhookRead, WebhookSave, WebhookSettings, WebhookState,
    },
};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{content, event::EventEncoder, filter::WebhookFilter};
use crate::{
    hooks::{EncodedEvent, WebhookReply, WebhookSender},
    log_limit::log_limited,
    store::{
        ConsumerName, CursorOutcome, FeedCursor, FeedEntry, FeedKind, FeedLimits, FeedRead, Fence, Store,
        StoreError,
    },
    supervised,
};

/// Most requests of all endpoints of a node at a time.
pub const FEED_REQUESTS_MAX: usize = 64;

/// Limits of one read of the feed.
const READ: FeedLimits = FeedLimits { entries: 512, bytes: 128 * 1024 };

/// Delay until a cursor is read again that could not be read.
const CURSOR_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait without an input.
const IDLE_MAX: Duration = Duration::from_secs(3_600);

/// Feeds of the partitions that this node owns, by partition.
pub type OwnedFeeds = BTreeMap<u32, OwnedFeed>;

/// Feed of a partition that this node owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnedFeed {
    /// Fence of the owner.
    pub fence: Fence,
    /// Counts the archives of the owner; a change means that the feed may have grown.
    pub archives: u64,
    /// Whether the partition is handed over: requests in flight get a moment to end.
    pub is_leaving: bool,
}

/// Where an endpoint starts in a partition without a cursor of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookStart {
    /// Behind what the feed has now.
    Now,
    /// At the oldest entry that the feed has.
    Oldest,
}

/// Receiver of the events of an endpoint.
#[async_trait]
pub trait WebhookReceiver: Send + Sync {
    /// Sends events in one request; `attempt` counts the tries from 1.
    async fn send(&self, events: &[EncodedEvent], attempt: u32) -> WebhookReply;
}

#[async_trait]
impl WebhookReceiver for WebhookSender {
    async fn send(&self, events: &[EncodedEvent], attempt: u32) -> WebhookReply {
        self.send(events, attempt).await
    }
}

/// Settings of a deliverer.
#[derive(Clone, Debug)]
pub struct DelivererSettings {
    /// Id of the endpoint, under which its cursors are stored.
    pub consumer: ConsumerName,
    /// Source of the events.
    pub source: String,
    /// Events that the endpoint wants.
    pub filter: WebhookFilter,
    /// Whether events have the content of messages.
    pub with_content: bool,
    /// Lanes, batches and patience.
    pub delivery: WebhookSettings,
    /// Where it starts without a cursor.
    pub start: WebhookStart,
    /// Seed of the jitter of retries.
    pub seed: u64,
}

/// State of an endpoint on a node, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookStatus {
    /// State of the endpoint on this node.
    pub state: WebhookState,
    /// Entries of the feed behind which it is.
    pub behind: u64,
    /// Conversations that are delivered apart, because their next event keeps failing.
    pub parked: usize,
    /// Events that are no longer sent.
    pub aside: usize,
    /// Reason of the last failure since the last success.
    pub last_error: Option<String>,
}

/// Outcome of a request, and how many events it had.
struct Delivered {
    ticket: u64,
    count: usize,
    reply: WebhookReply,
}

/// Deliverer of one endpoint on a node.
pub struct WebhookDeliverer {
    settings: DelivererSettings,
    encoder: Arc<EventEncoder>,
    store: Arc<dyn Store>,
    receiver: Arc<dyn WebhookReceiver>,
    /// Shared by all endpoints of the node.
    permits: Arc<Semaphore>,
    machine: WebhookDelivery,
    began: Instant,
    /// Feeds that the machine delivers.
    feeds: OwnedFeeds,
    /// Fences under which the delivery ended, by partition: only a new owner begins again.
    ended: BTreeMap<u32, Fence>,
    /// Partitions whose newest number has to be read.
    archived: BTreeSet<u32>,
    requests: JoinSet<Delivered>,
    retry_at: Option<Instant>,
    last_error: Option<String>,
    status: watch::Sender<WebhookStatus>,
}

impl WebhookDeliverer {
    /// Creates a deliverer and what shows its status. `permits` bounds the requests of all endpoints of the node.
    pub fn new(
        settings: DelivererSettings,
        store: Arc<dyn Store>,
        receiver: Arc<dyn WebhookReceiver>,
        permits: Arc<Semaphore>,
    ) -> (Self, watch::Receiver<WebhookStatus>) {
        let encoder = EventEncoder {
            source: settings.source.clone(),
            filter: settings.filter.clone(),
            with_content: settings.with_content,
        };
        let (state, last_error) = (WebhookState::Active, None);
        let (status, shown) =
            watch::channel(WebhookStatus { state, behind: 0, parked: 0, aside: 0, last_error });
        let it = Self {
            encoder: Arc::new(encoder),
            machine: WebhookDelivery::new(settings.delivery, settings.seed),
            settings,
            store,
            receiver,
            permits,
            began: Instant::now(),
            feeds: OwnedFeeds::new(),
            ended: BTreeMap::new(),
            archived: BTreeSet::new(),
            requests: JoinSet::new(),
            retry_at: None,
            last_error: None,
            status,
        };
        (it, shown)
    }

    /// Delivers the feeds that the node owns until their sender is dropped.
    pub async fn run(mut self, mut owned: watch::Receiver<OwnedFeeds>) {
        loop {
            let feeds = owned.borrow_and_update().clone();
            self.follow(feeds).await;
            self.pump().await;
            self.show();
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                changed = owned.changed() => if changed.is_err() {
                    return;
                },
                Some(delivered) = self.requests.join_next() => {
                    if let Ok(delivered) = delivered {
                        self.note(delivered);
                    }
                }
                () = sleep_until(wake_at) => {}
            }
        }
    }

    fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    fn wake_at(&self) -> Instant {
        let idle = Instant::now() + IDLE_MAX;
        let due = self.machine.poll_timeout(self.now());
        let due = due.map(|at| self.began + Duration::from_millis(at.as_millis()));
        due.into_iter().chain(self.retry_at).fold(idle, Instant::min)
    }

    /// Begins and ends partitions as the node does, and asks for the newest numbers of those that have archived.
    async fn follow(&mut self, feeds: OwnedFeeds) {
        let now = self.now();
        let gone: Vec<u32> = self.feeds.keys().filter(|it| !feeds.contains_key(it)).copied().collect();
        for partition in gone {
            self.feeds.remove(&partition);
            self.machine.handle_lost(partition);
        }
        self.ended.retain(|partition, fence| feeds.get(partition).is_some_and(|feed| feed.fence == *fence));
        let mut begun = BTreeMap::new();
        for (partition, feed) in feeds {
            let former = self.feeds.get(&partition).copied();
            if self.ended.get(&partition) == Some(&feed.fence) {
                continue;
            }
            if former.is_none_or(|former| former.fence != feed.fence) {
                self.machine.handle_lost(partition);
                self.feeds.remove(&partition);
                if !feed.is_leaving {
                    begun.insert(partition, feed);
                }
                continue;
            }
            if former.is_some_and(|former| former.archives != feed.archives) {
                self.archived.insert(partition);
            }
            if feed.is_leaving {
                self.machine.handle_release(partition, now);
            }
            self.feeds.insert(partition, feed);
        }
        self.retry_at = None;
        if let Err(error) = self.catch_up(begun).await {
            log_limited!(warn, %error, "position of a webhook not read; retrying");
            self.retry_at = Some(Instant::now() + CURSOR_RETRY_INTERVAL);
        }
    }

    async fn catch_up(&mut self, begun: OwnedFeeds) -> Result<(), StoreError> {
        self.begin(begun).await?;
        self.ask_newest().await
    }

    async fn begin(&mut self, begun: OwnedFeeds) -> Result<(), StoreError> {
        if begun.is_empty() {
            return Ok(());
        }
        let cursors = self.store.cursors(&self.settings.consumer).await?;
        for (partition, feed) in begun {
            let saved = cursors.iter().find(|cursor| cursor.partition() == partition);
            let cursor = match saved.map(|cursor| WebhookCursor::decode(cursor.bytes())) {
                Some(Ok(cursor)) => cursor,
                // Another start could skip events, or repeat all.
                Some(Err(error)) => {
                    let webhook = self.settings.consumer.as_str();
                    tracing::error!(webhook, partition, %error, "cursor can't be read; the partition is not delivered");
                    self.ended.insert(partition, feed.fence);
                    continue;
                }
                None => {
                    let number = match self.settings.start {
                        WebhookStart::Now => self.store.feed_position(partition).await?,
                        WebhookStart::Oldest => 0,
                    };
                    let cursor = WebhookCursor::at(number, self.settings.delivery.parallel);
                    // Saved before anything is sent: a crash must not move the start.
                    self.save_bytes(partition, feed.fence, cursor.encode()).await?;
                    cursor
                }
            };
            self.machine.handle_owned(partition, cursor, self.now());
            self.feeds.insert(partition, feed);
            self.archived.insert(partition);
        }
        Ok(())
    }

    async fn ask_newest(&mut self) -> Result<(), StoreError> {
        if self.archived.is_empty() {
            return Ok(());
        }
        for position in self.store.feed_positions().await? {
            if self.archived.contains(&position.partition) {
                self.machine.handle_newest(position.partition, position.newest);
            }
        }
        self.archived.clear();
        Ok(())
    }

    /// Does all that the machine asks for now.
    async fn pump(&mut self) {
        loop {
            while let Some(read) = self.machine.poll_read(self.now()) {
                self.read(read).await;
            }
            while let Some(batch) = self.machine.poll_send(self.now()) {
                self.send(batch);
            }
            let Some(save) = self.machine.poll_save(self.now()) else { break };
            self.save(save).await;
            self.report();
        }
        self.report();
    }

    async fn read(&mut self, read: WebhookRead) {
        let WebhookRead { partition, after } = read;
        let result = self.store.read_feed(partition, after, READ).await;
        let now = self.now();
        match result {
            Ok(FeedRead::Page(page)) => {
                let end = page.entries.last().map_or(after, |last| last.number);
                let items = page.entries.into_iter().map(|entry| self.item(entry)).collect();
                let page = WebhookPage { after, end, newest: page.newest, items };
                self.machine.handle_page(partition, &page, now);
            }
            Ok(FeedRead::Missing(numbers)) => self.machine.handle_gap(partition, &numbers, now),
            // The store fell back to an older state. What is missing comes again, under the same numbers.
            Ok(FeedRead::Ahead(_)) => self.machine.handle_read_failed(partition, now),
            Err(error) => {
                log_limited!(warn, %error, partition, "feed not read for a webhook; retrying");
                self.machine.handle_read_failed(partition, now);
            }
        }
    }

    fn item(&self, entry: FeedEntry) -> WebhookItem {
        let FeedEntry { number, conversation, seq, kind, .. } = entry;
        let is_wanted = self.settings.filter.may_want(&conversation, kind);
        let kind = match kind {
            FeedKind::Prune => WebhookEventKind::Pruned,
            _ => WebhookEventKind::Entry,
        };
        let event = WebhookEvent { conversation, seq, kind };
        WebhookItem { number, event, is_wanted }
    }

    fn send(&mut self, batch: WebhookBatch) {
        let (store, receiver) = (Arc::clone(&self.store), Arc::clone(&self.receiver));
        let (permits, encoder) = (Arc::clone(&self.permits), Arc::clone(&self.encoder));
        supervised::spawn_in(&mut self.requests, "a request of a webhook", async move {
            // The semaphore is never closed.
            let _permit = permits.acquire_owned().await.ok();
            deliver(&*store, &*receiver, &encoder, batch).await
        });
    }

    fn note(&mut self, delivered: Delivered) {
        let Delivered { ticket, count, reply } = delivered;
        match (reply.outcome, reply.error) {
            (WebhookOutcome::Taken, _) => self.last_error = None,
            (_, Some(error)) => self.last_error = Some(error),
            (_, None) => {}
        }
        let now = self.now();
        self.machine.handle_shortened(ticket, count);
        self.machine.handle_outcome(ticket, reply.outcome, now);
    }

    async fn save(&mut self, save: WebhookSave) {
        let WebhookSave { partition, bytes, .. } = save;
        let Some(fence) = self.feeds.get(&partition).map(|feed| feed.fence) else { return };
        match self.save_bytes(partition, fence, bytes).await {
            Ok(()) => self.machine.handle_save(partition, true, self.now()),
            Err(StoreError::Fenced) => self.end(partition),
            Err(error) => {
                log_limited!(warn, %error, partition, "cursor of a webhook not saved; nothing is sent meanwhile");
                self.machine.handle_save(partition, false, self.now());
            }
        }
    }

    async fn save_bytes(&self, partition: u32, fence: Fence, bytes: Vec<u8>) -> Result<(), StoreError> {
        let cursor = FeedCursor::new(self.settings.consumer.clone(), partition, bytes.into());
        let cursor = cursor.map_err(|error| StoreError::Damaged(error.to_string()))?;
        match self.store.save_cursor(fence, &cursor).await? {
            CursorOutcome::Saved => Ok(()),
            CursorOutcome::Full => Err(StoreError::Unavailable("too many consumers of the feed".into())),
        }
    }

    /// Ends the delivery of a partition that has another owner.
    fn end(&mut self, partition: u32) {
        if let Some(feed) = self.feeds.remove(&partition) {
            self.ended.insert(partition, feed.fence);
        }
        self.machine.handle_lost(partition);
    }

    fn report(&mut self) {
        let webhook = self.settings.consumer.as_str().to_owned();
        while let Some(notice) = self.machine.poll_notice() {
            match notice {
                WebhookNotice::Failing => {
                    log_limited!(error, webhook, "webhook fails; it is probed until it succeeds")
                }
                WebhookNotice::Recovered => log_limited!(warn, webhook, "webhook succeeds again"),
                WebhookNotice::Disabled => {
                    log_limited!(error, webhook, "webhook answered 410; it is stopped")
                }
                WebhookNotice::Parked(event) => {
                    let (conversation, seq) = (event.conversation.as_str(), event.seq);
                    log_limited!(
                        warn,
                        webhook,
                        conversation,
                        seq,
                        "event keeps failing; its conversation is sent apart"
                    );
                }
                WebhookNotice::Aside(event) => {
                    let (conversation, seq) = (event.conversation.as_str(), event.seq);
                    log_limited!(error, webhook, conversation, seq, "event set aside; it is no longer sent");
                }
                WebhookNotice::Gap { partition, first, last } => {
                    log_limited!(
                        error,
                        webhook,
                        partition,
                        first,
                        last,
                        "the feed no longer has events of a webhook"
                    );
                }
                WebhookNotice::Released(partition) => self.end(partition),
            }
        }
    }

    fn show(&self) {
        let status = WebhookStatus {
            state: self.machine.state(),
            behind: self.machine.behind(),
            parked: self.machine.parked(),
            aside: self.machine.aside().count(),
            last_error: self.last_error.clone(),
        };
        self.status.send_if_modified(|shown| {
            let is_new = *shown != status;
            if is_new {
                *shown = status;
            }
            is_new
        });
    }
}

/// Sends the events of a batch that the endpoint wants, up to the size of a request.
async fn deliver(
    store: &dyn Store,
    receiver: &dyn WebhookReceiver,
    encoder: &EventEncoder,
    batch: WebhookBatch,
) -> Delivered {
    let WebhookBatch { ticket, attempt, events, .. } = batch;
    let unsent =
        |error: String| WebhookReply { outcome: WebhookOutcome::Unsent, status: None, error: Some(error) };
    let found = match content::read(store, &events).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let reply = unsent("the store lacks the events; it fell back to an older state".into());
            return Delivered { ticket, count: events.len(), reply };
        }
        Err(error) => return Delivered { ticket, count: events.len(), reply: unsent(error.to_string()) },
    };
    let encoded = events.iter().zip(&found).filter_map(|(event, found)| encoder.encode(event, found));
    let encoded: Vec<EncodedEvent> = encoded.collect();
    let reply = match encoded.is_empty() {
        true => WebhookReply { outcome: WebhookOutcome::Taken, status: None, error: None },
        false => receiver.send(&encoded, attempt).await,
    };
    Delivered { ticket, count: found.len(), reply }
}

#[cfg(test)]
mod tests;
