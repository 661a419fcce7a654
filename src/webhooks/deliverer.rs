//! Deliverer of one endpoint on a node: drives the delivery machine with the feed, the store and a receiver.

mod partitions;
mod report;
mod request;

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
};

use tidegate_protocol::machine::webhook::{
    WebhookBatch, WebhookCursor, WebhookDelivery, WebhookEvent, WebhookItem, WebhookOutcome, WebhookPage,
    WebhookRead, WebhookSave, WebhookState,
};
use tokio::{sync::watch, time::Instant};

pub(crate) use self::request::body;
use self::request::{Delivered, deliver};
use super::{
    consumer::{self, CursorSave, FeedConsumer, FeedDriver},
    event::{EventEncoder, event_kind},
    missing::{MissingCount, MissingEvents},
    permits::WebhookPermits,
    plan::{WebhookPlan, WebhookStart},
    read_times::ReadTimes,
};
use crate::{
    clock::wall_ms,
    cluster::OwnedFeeds,
    store::{ConsumerName, FeedEntry, FeedLimits, FeedPage, FeedPosition, Store, StoreError},
    supervised,
};

/// State of an endpoint on a node, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookStatus {
    /// State of the endpoint on this node.
    pub state: WebhookState,
    /// Entries of the feed behind which it is.
    pub behind: u64,
    /// Conversations that are delivered apart, because their next event keeps failing.
    pub parked: usize,
    /// Events that are no longer sent.
    pub aside: usize,
    /// Partitions that are not delivered, because their cursor is damaged or of a newer version.
    pub unreadable: usize,
    /// Events that the feed no longer had, since the node delivers to the endpoint.
    pub missing: MissingCount,
    /// Receive time of the oldest event that was read and not taken, in ms since 1970; `None` without one.
    pub oldest_ms: Option<u64>,
    /// Reason of the last failure since the last success.
    pub last_error: Option<String>,
}

impl WebhookStatus {
    /// Returns whether nothing succeeds on this node, or a partition can't be delivered.
    pub fn is_failing(&self) -> bool {
        self.state == WebhookState::Failing || self.unreadable > 0
    }

    /// Returns the name of the state.
    pub const fn state_name(&self) -> &'static str {
        match self.state {
            WebhookState::Active => "active",
            WebhookState::Failing => "failing",
            WebhookState::Paused => "paused",
            WebhookState::Disabled => "disabled",
        }
    }
}

/// Result of a task of the deliverer.
pub(crate) enum DeliveryDone {
    /// A request has ended.
    Delivered(Delivered),
    /// The newest numbers were read for these partitions.
    Newest(BTreeSet<u32>, Result<Arc<Vec<FeedPosition>>, StoreError>),
}

/// Deliverer of one endpoint on a node. Its tasks are requests, at most those that the machine has in flight, and one read
/// of the newest numbers.
pub struct WebhookDeliverer {
    driver: FeedDriver<DeliveryDone>,
    encoder: Arc<EventEncoder>,
    /// Shared by all endpoints of the node.
    permits: Arc<WebhookPermits>,
    machine: WebhookDelivery,
    /// Receive times of what was read of these feeds.
    read_times: BTreeMap<u32, ReadTimes>,
    /// Partitions whose newest number has to be read, and the mark since which.
    archived: BTreeSet<u32>,
    archived_mark: u64,
    is_asking_newest: bool,
    /// Time of the next try to read the newest numbers, after a failure.
    newest_retry_at: Option<Instant>,
    missing: MissingEvents,
    last_error: Option<String>,
    status: watch::Sender<WebhookStatus>,
}

impl WebhookDeliverer {
    /// Creates a deliverer and what shows its status. The seed chooses the jitter of retries; all deliverers of the node
    /// share the permits.
    pub fn new(
        plan: Arc<WebhookPlan>,
        seed: u64,
        store: Arc<dyn Store>,
        permits: Arc<WebhookPermits>,
    ) -> (Self, watch::Receiver<WebhookStatus>) {
        let (status, shown) = watch::channel(WebhookStatus::default());
        let mut machine = WebhookDelivery::new(plan.delivery, seed, wall_ms());
        machine.handle_paused(plan.is_paused);
        let it = Self {
            encoder: Arc::new(EventEncoder::new(&plan)),
            machine,
            driver: FeedDriver::new(store, plan),
            permits,
            read_times: BTreeMap::new(),
            archived: BTreeSet::new(),
            archived_mark: 0,
            is_asking_newest: false,
            newest_retry_at: None,
            missing: MissingEvents::default(),
            last_error: None,
            status,
        };
        (it, shown)
    }

    /// Delivers the feeds that the node owns, by the newest plan, until the sender of either is dropped.
    pub async fn run(self, owned: watch::Receiver<OwnedFeeds>, plans: watch::Receiver<Arc<WebhookPlan>>) {
        consumer::run(self, owned, plans).await;
    }

    fn item(&self, entry: FeedEntry) -> WebhookItem {
        let FeedEntry { number, conversation, seq, kind, .. } = entry;
        let event = WebhookEvent { conversation, seq, kind: event_kind(kind) };
        let is_wanted = self.driver.plan.filter.may_want(&event.conversation, kind);
        WebhookItem { number, event, is_wanted }
    }

    fn send(&mut self, batch: WebhookBatch) {
        let (store, permits) = (Arc::clone(&self.driver.store), Arc::clone(&self.permits));
        let (plan, encoder) = (Arc::clone(&self.driver.plan), Arc::clone(&self.encoder));
        supervised::spawn_in(&mut self.driver.tasks, "a request of a webhook", async move {
            let _permit = permits.acquire(&plan.consumer, plan.delivery.parallel).await;
            DeliveryDone::Delivered(deliver(&*store, &plan, &encoder, batch).await)
        });
    }

    fn note_delivered(&mut self, delivered: Delivered) {
        let Delivered { ticket, count, reply } = delivered;
        match (reply.outcome, reply.error) {
            (WebhookOutcome::Taken, _) => self.last_error = None,
            (_, Some(error)) => self.last_error = Some(error),
            (_, None) => {}
        }
        self.machine.handle_shortened(ticket, count);
        self.machine.handle_outcome(ticket, reply.outcome, self.driver.now());
    }
}

impl FeedConsumer for WebhookDeliverer {
    type Cursor = WebhookCursor;
    type Done = DeliveryDone;

    const READ: FeedLimits = FeedLimits { entries: 512, bytes: 128 * 1024 };

    fn driver(&self) -> &FeedDriver<DeliveryDone> {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut FeedDriver<DeliveryDone> {
        &mut self.driver
    }

    fn place(plan: &WebhookPlan) -> Option<(&ConsumerName, &WebhookStart)> {
        Some((&plan.consumer, &plan.start))
    }

    fn handle_plan(&mut self) {
        let plan = &self.driver.plan;
        self.encoder = Arc::new(EventEncoder::new(plan));
        self.machine.handle_settings(plan.delivery, self.driver.now());
        self.machine.handle_paused(plan.is_paused);
    }

    fn cursor_at(&self, number: u64) -> WebhookCursor {
        // It has carried out no order: one that was given meanwhile counts here, too.
        WebhookCursor::at(number, self.driver.plan.delivery.parallel)
    }

    fn encode(cursor: &WebhookCursor) -> Vec<u8> {
        cursor.encode()
    }

    fn decode(bytes: &[u8]) -> Result<WebhookCursor, String> {
        WebhookCursor::decode(bytes).map_err(|error| error.to_string())
    }

    fn handle_owned(&mut self, partition: u32, cursor: WebhookCursor) {
        self.machine.handle_owned(partition, cursor, self.driver.now());
        self.handle_archived(partition);
    }

    fn handle_lost(&mut self, partition: u32) {
        self.machine.handle_lost(partition);
    }

    fn handle_release(&mut self, partition: u32) {
        self.machine.handle_release(partition, self.driver.now());
    }

    fn handle_archived(&mut self, partition: u32) {
        self.archived.insert(partition);
        self.archived_mark = self.permits.newest.mark();
    }

    async fn settle(&mut self) {
        self.give_orders().await;
    }

    fn poll_read(&mut self) -> Option<WebhookRead> {
        self.machine.poll_read(self.driver.now())
    }

    async fn handle_page(&mut self, read: WebhookRead, page: FeedPage) -> Result<(), StoreError> {
        let WebhookRead { partition, after } = read;
        self.missing.note_newest(partition, page.newest);
        let entries = page.entries.iter().map(|it| (it.number, it.time));
        self.read_times.entry(partition).or_default().note(entries, page.newest);
        let end = page.entries.last().map_or(after, |last| last.number);
        let items = page.entries.into_iter().map(|entry| self.item(entry)).collect();
        let page = WebhookPage { after, end, newest: page.newest, items };
        self.machine.handle_page(partition, &page, self.driver.now());
        Ok(())
    }

    async fn handle_missing(&mut self, partition: u32, numbers: RangeInclusive<u64>) {
        let is_reported = self.driver.plan.receiver.report_gap(partition, &numbers).await;
        let now = self.driver.now();
        match is_reported {
            true => self.machine.handle_gap(partition, &numbers, now),
            false => self.machine.handle_read_failed(partition, now),
        }
    }

    fn handle_ahead(&mut self, partition: u32, newest: u64) {
        self.missing.note_newest(partition, newest);
        self.machine.handle_ahead(partition, newest, self.driver.now());
    }

    fn handle_read_failed(&mut self, partition: u32) {
        self.machine.handle_read_failed(partition, self.driver.now());
    }

    fn poll_save(&mut self) -> Option<CursorSave> {
        let save = self.machine.poll_save(self.driver.now())?;
        let WebhookSave { partition, bytes, is_durable, .. } = save;
        Some(CursorSave { partition, bytes, is_durable })
    }

    fn handle_save(&mut self, partition: u32, is_saved: bool) {
        self.machine.handle_save(partition, is_saved, self.driver.now());
    }

    fn act(&mut self) {
        self.ask_newest();
        while let Some(batch) = self.machine.poll_send(self.driver.now()) {
            self.send(batch);
        }
        self.report();
    }

    fn handle_done(&mut self, done: DeliveryDone) {
        match done {
            DeliveryDone::Delivered(delivered) => self.note_delivered(delivered),
            DeliveryDone::Newest(partitions, result) => self.note_newest(partitions, result),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.machine.poll_timeout(self.driver.now()).map(|at| self.driver.instant(at));
        due.into_iter().chain(self.newest_retry_at).min()
    }

    fn show(&mut self) {
        self.report();
        self.show_status();
    }
}

#[cfg(test)]
pub(super) mod tests;
