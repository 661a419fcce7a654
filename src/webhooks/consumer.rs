//! Driver of a consumer of the feed: begins and ends partitions as their owner does, reads their feeds, and saves cursors
//! under the fence of the owner. A pure machine decides the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{Time, machine::webhook::WebhookRead};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    plan::{WebhookPlan, WebhookStart},
    start::number_before,
};
use crate::{
    cluster::{OwnedFeed, OwnedFeeds},
    log_limit::log_limited,
    store::{
        ConsumerName, CursorOutcome, FeedCursor, FeedLimits, FeedPage, FeedRead, Fence, Store, StoreError,
    },
};

/// Most reads of feeds until outcomes and changes are looked at.
const READS_MAX: usize = 8;

/// Delay until a store is asked again that failed.
pub(crate) const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Longest wait without an input.
const IDLE_MAX: Duration = Duration::from_secs(3_600);

/// Cursor that is to be saved.
pub(crate) struct CursorSave {
    pub(crate) partition: u32,
    pub(crate) bytes: Vec<u8>,
    /// Whether it has to be on the disk before the save ends.
    pub(crate) is_durable: bool,
}

/// Consumer of the feeds that a node owns: a pure machine, and what its inputs and outputs mean.
pub(crate) trait FeedConsumer: Send + Sync {
    /// Point at which a partition begins.
    type Cursor: Send;
    /// Result of a task that the consumer has started.
    type Done: Send + 'static;

    /// Limits of one read of a feed.
    const READ: FeedLimits;

    /// Returns the state that the driver has of the consumer.
    fn driver(&self) -> &FeedDriver<Self::Done>;
    /// Returns that state to be changed.
    fn driver_mut(&mut self) -> &mut FeedDriver<Self::Done>;

    /// Returns where a plan has the cursors, and where a partition without one starts; `None` if it consumes nothing.
    fn place(plan: &WebhookPlan) -> Option<(&ConsumerName, &WebhookStart)>;
    /// Applies a plan, which the driver has already.
    fn handle_plan(&mut self);
    /// Returns the cursor behind a number of the feed.
    fn cursor_at(&self, number: u64) -> Self::Cursor;
    /// Encodes a cursor.
    fn encode(cursor: &Self::Cursor) -> Vec<u8>;
    /// Decodes a cursor.
    ///
    /// # Errors
    /// The bytes are damaged, or of a newer version.
    fn decode(bytes: &[u8]) -> Result<Self::Cursor, String>;

    /// Begins a partition.
    fn handle_owned(&mut self, partition: u32, cursor: Self::Cursor);
    /// Forgets a partition.
    fn handle_lost(&mut self, partition: u32);
    /// Begins to hand a partition over.
    fn handle_release(&mut self, partition: u32);
    /// Notes that the owner has archived.
    fn handle_archived(&mut self, partition: u32);
    /// Does what follows from the partitions that have begun; not while a failed store rests.
    fn settle(&mut self) -> impl Future<Output = ()> + Send;

    /// Returns a feed that is to be read.
    fn poll_read(&mut self) -> Option<WebhookRead>;
    /// Takes a part of a feed.
    fn handle_page(
        &mut self,
        read: WebhookRead,
        page: FeedPage,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Takes numbers that a feed no longer has.
    fn handle_missing(
        &mut self,
        partition: u32,
        numbers: RangeInclusive<u64>,
    ) -> impl Future<Output = ()> + Send;
    /// Takes the newest number of a feed that ends before what was read of it: the store fell back.
    fn handle_ahead(&mut self, partition: u32, newest: u64);
    /// Notes that a feed could not be read.
    fn handle_read_failed(&mut self, partition: u32);

    /// Returns a cursor that is to be saved. Each needs one [`Self::handle_save`], unless its partition ends.
    fn poll_save(&mut self) -> Option<CursorSave>;
    /// Notes whether a cursor was saved.
    fn handle_save(&mut self, partition: u32, is_saved: bool);

    /// Starts what the machine asks for now.
    fn act(&mut self);
    /// Takes the result of a task.
    fn handle_done(&mut self, done: Self::Done);
    /// Returns when the consumer has to act again.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Shows the state to operators, once in each turn.
    fn show(&mut self) {}
}

/// What the driver of a consumer knows.
pub(crate) struct FeedDriver<D> {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) plan: Arc<WebhookPlan>,
    /// Tasks of the consumer, which bounds them.
    pub(crate) tasks: JoinSet<D>,
    began: Instant,
    /// Feeds that the machine follows.
    pub(super) feeds: OwnedFeeds,
    /// Fences under which partitions have ended: only a new owner begins again.
    ended: BTreeMap<u32, Fence>,
    /// Partitions of these whose cursor can't be read.
    pub(crate) unreadable: BTreeSet<u32>,
    /// Time of the next try to begin partitions, after a failure.
    retry_at: Option<Instant>,
}

impl<D> FeedDriver<D> {
    /// Creates the state of a consumer without partitions.
    pub(crate) fn new(store: Arc<dyn Store>, plan: Arc<WebhookPlan>) -> Self {
        Self {
            store,
            plan,
            tasks: JoinSet::new(),
            began: Instant::now(),
            feeds: OwnedFeeds::new(),
            ended: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            retry_at: None,
        }
    }

    /// Returns the time of the machine.
    pub(crate) fn now(&self) -> Time {
        Time::ZERO + self.began.elapsed()
    }

    /// Returns a time of the machine on the clock.
    pub(crate) fn instant(&self, at: Time) -> Instant {
        self.began + Duration::from_millis(at.as_millis())
    }

    /// Tries to begin partitions, and what follows from it, again later.
    pub(super) fn retry(&mut self, partition: Option<u32>, error: &StoreError) {
        let consumer = self.plan.consumer.as_str();
        log_limited!(warn, %error, consumer, partition, "store not read for a consumer of the feed; retrying");
        self.retry_at = Some(Instant::now() + STORE_RETRY_INTERVAL);
    }
}

/// Runs a consumer of the feeds that the node owns, by the newest plan, until the sender of either is dropped.
pub(crate) async fn run<C: FeedConsumer>(
    mut it: C,
    mut owned: watch::Receiver<OwnedFeeds>,
    mut plans: watch::Receiver<Arc<WebhookPlan>>,
) {
    loop {
        // Taken at each turn, so that a stream of changes delays no outcome, and no stream of outcomes a change.
        while let Some(done) = it.driver_mut().tasks.try_join_next() {
            note(&mut it, done.ok());
        }
        if owned.has_changed().is_err() || plans.has_changed().is_err() {
            return;
        }
        let plan = Arc::clone(&plans.borrow_and_update());
        adopt(&mut it, plan);
        let feeds = owned.borrow_and_update().clone();
        let mut has_more = false;
        if C::place(&it.driver().plan).is_some() {
            follow(&mut it, feeds).await;
            has_more = pump(&mut it).await;
        }
        it.show();
        let wake_at = if has_more { Instant::now() } else { wake_at(&it) };
        tokio::select! {
            biased;
            Some(done) = it.driver_mut().tasks.join_next() => note(&mut it, done.ok()),
            _ = owned.changed() => {}
            _ = plans.changed() => {}
            () = sleep_until(wake_at) => {}
        }
    }
}

fn note<C: FeedConsumer>(it: &mut C, done: Option<C::Done>) {
    // Only a task that panics has no result, and that ends the process.
    if let Some(done) = done {
        it.handle_done(done);
    }
}

fn wake_at<C: FeedConsumer>(it: &C) -> Instant {
    let idle = Instant::now() + IDLE_MAX;
    it.poll_timeout().into_iter().chain(it.driver().retry_at).fold(idle, Instant::min)
}

/// Applies a plan, if it is another one. Under another name, all partitions begin again.
fn adopt<C: FeedConsumer>(it: &mut C, plan: Arc<WebhookPlan>) {
    let former = std::mem::replace(&mut it.driver_mut().plan, Arc::clone(&plan));
    if Arc::ptr_eq(&plan, &former) {
        return;
    }
    let name = |plan| C::place(plan).map(|(name, _)| name);
    if name(&plan) != name(&former) {
        for partition in std::mem::take(&mut it.driver_mut().feeds).into_keys() {
            it.handle_lost(partition);
        }
        let driver = it.driver_mut();
        driver.ended.clear();
        driver.unreadable.clear();
        driver.retry_at = None;
    }
    it.handle_plan();
}

/// Begins and ends partitions as the node does.
async fn follow<C: FeedConsumer>(it: &mut C, feeds: OwnedFeeds) {
    let driver = it.driver_mut();
    let is_kept = |partition: &u32, known: &OwnedFeed| {
        feeds.get(partition).is_some_and(|feed| feed.fence == known.fence)
    };
    let gone = driver.feeds.extract_if(.., |partition, known| !is_kept(partition, known));
    let gone: Vec<u32> = gone.map(|(partition, _)| partition).collect();
    driver.ended.retain(|partition, fence| feeds.get(partition).is_some_and(|feed| feed.fence == *fence));
    driver.unreadable.retain(|partition| driver.ended.contains_key(partition));
    gone.into_iter().for_each(|partition| it.handle_lost(partition));
    let mut begun = BTreeMap::new();
    for (partition, feed) in feeds {
        let driver = it.driver_mut();
        let Some(known) = driver.feeds.get_mut(&partition) else {
            if !feed.is_leaving && !driver.ended.contains_key(&partition) {
                begun.insert(partition, feed);
            }
            continue;
        };
        let former = std::mem::replace(known, feed);
        if former.archives != feed.archives {
            it.handle_archived(partition);
        }
        if feed.is_leaving {
            it.handle_release(partition);
        }
    }
    if it.driver().retry_at.is_none_or(|at| at <= Instant::now()) {
        // Also if nothing is left to begin: a time in the past would wake the task without end.
        it.driver_mut().retry_at = None;
        begin(it, begun).await;
        it.settle().await;
    }
}

/// Begins partitions. One that can't begin keeps no other from it.
async fn begin<C: FeedConsumer>(it: &mut C, begun: OwnedFeeds) {
    let plan = Arc::clone(&it.driver().plan);
    let Some((consumer, start)) = C::place(&plan).filter(|_| !begun.is_empty()) else { return };
    let cursors = match it.driver().store.cursors(consumer).await {
        Ok(cursors) => cursors,
        Err(error) => return it.driver_mut().retry(None, &error),
    };
    for (partition, feed) in begun {
        let saved = cursors.iter().find(|cursor| cursor.partition() == partition);
        let cursor = match saved.map(|cursor| C::decode(cursor.bytes())) {
            Some(Ok(cursor)) => Ok(Some(cursor)),
            // Another start could skip events, or repeat all.
            Some(Err(error)) => {
                let consumer = consumer.as_str();
                tracing::error!(
                    consumer,
                    partition,
                    error,
                    "cursor can't be read; the partition is not delivered"
                );
                it.driver_mut().unreadable.insert(partition);
                Ok(None)
            }
            None => first_cursor(it, partition, feed.fence, start).await.map(Some),
        };
        match cursor {
            Ok(Some(cursor)) => {
                it.driver_mut().feeds.insert(partition, feed);
                it.handle_owned(partition, cursor);
            }
            // Another owner has it, or the cursor can't be read.
            Ok(None) | Err(StoreError::Fenced) => drop(it.driver_mut().ended.insert(partition, feed.fence)),
            Err(error) => it.driver_mut().retry(Some(partition), &error),
        }
    }
}

/// Returns the cursor at which a partition begins that has none, once it is stored.
async fn first_cursor<C: FeedConsumer>(
    it: &C,
    partition: u32,
    fence: Fence,
    start: &WebhookStart,
) -> Result<C::Cursor, StoreError> {
    let cursor = it.cursor_at(number_before(&*it.driver().store, partition, start).await?);
    // Durable before anything is sent: a crash must not move the start.
    let save = CursorSave { partition, bytes: C::encode(&cursor), is_durable: true };
    save_bytes(it, fence, save).await?;
    Ok(cursor)
}

/// Ends a partition, until there is a new owner.
pub(super) fn end<C: FeedConsumer>(it: &mut C, partition: u32) {
    let driver = it.driver_mut();
    if let Some(feed) = driver.feeds.remove(&partition) {
        driver.ended.insert(partition, feed.fence);
    }
    it.handle_lost(partition);
}

/// Does all that the machine asks for now. Returns whether a feed is still to be read.
async fn pump<C: FeedConsumer>(it: &mut C) -> bool {
    for _ in 0..READS_MAX {
        // First, so that a former owner learns of the next one before it sends more.
        while let Some(save) = it.poll_save() {
            save_cursor(it, save).await;
        }
        it.act();
        let Some(read) = it.poll_read() else { return false };
        if let Err(error) = read_feed(it, read).await {
            let (partition, consumer) = (read.partition, it.driver().plan.consumer.as_str());
            log_limited!(warn, %error, consumer, partition, "feed not read for a consumer; retrying");
            it.handle_read_failed(partition);
        }
    }
    true
}

async fn read_feed<C: FeedConsumer>(it: &mut C, read: WebhookRead) -> Result<(), StoreError> {
    let WebhookRead { partition, after } = read;
    match it.driver().store.read_feed(partition, after, C::READ).await? {
        FeedRead::Page(page) => it.handle_page(read, page).await?,
        FeedRead::Missing(numbers) => it.handle_missing(partition, numbers).await,
        FeedRead::Ahead(newest) => it.handle_ahead(partition, newest),
    }
    Ok(())
}

async fn save_cursor<C: FeedConsumer>(it: &mut C, save: CursorSave) {
    let partition = save.partition;
    let Some(fence) = it.driver().feeds.get(&partition).map(|feed| feed.fence) else {
        return end(it, partition);
    };
    match save_bytes(it, fence, save).await {
        Ok(()) => it.handle_save(partition, true),
        Err(StoreError::Fenced) => end(it, partition),
        Err(error) => {
            let consumer = it.driver().plan.consumer.as_str();
            log_limited!(warn, %error, consumer, partition, "cursor not saved; nothing is sent meanwhile");
            it.handle_save(partition, false);
        }
    }
}

async fn save_bytes<C: FeedConsumer>(it: &C, fence: Fence, save: CursorSave) -> Result<(), StoreError> {
    let FeedDriver { store, plan, .. } = it.driver();
    let Some((consumer, _)) = C::place(plan) else { return Ok(()) };
    let cursor = FeedCursor::new(consumer.clone(), save.partition, save.bytes.into());
    let cursor = cursor.map_err(|error| StoreError::Damaged(error.to_string()))?;
    let saved = match save.is_durable {
        true => store.save_cursor_durably(fence, &cursor).await?,
        false => store.save_cursor(fence, &cursor).await?,
    };
    match saved {
        CursorOutcome::Saved => Ok(()),
        CursorOutcome::Full => Err(StoreError::Unavailable("too many consumers of the feed".into())),
    }
}
