//! Notices of one endpoint on a node: the machine with the feed, the store and the rounds.

use std::{
    ops::RangeInclusive,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_protocol::machine::{
    waiting::{
        DroppedNotice, Waiting, WaitingLook, WaitingOutcome, WaitingPage, WaitingRound, WaitingSave,
        WaitingSettings,
    },
    webhook::WebhookRead,
};
use tokio::{sync::watch, time::Instant};

use super::{
    WaitingNotices, cursor,
    due::DueTimes,
    recipients::Recipients,
    round::{DecidedRound, RoundTask},
};
use crate::{
    clock::{Now, wall_ms},
    cluster::OwnedFeeds,
    log_limit::log_limited,
    store::{ConsumerName, FeedLimits, FeedPage, StoreError},
    supervised,
    webhooks::{
        CursorSave, FeedConsumer, FeedDriver, NoticeStatus, WaitingPlan, WebhookPermits, WebhookPlan,
        WebhookStart, run_consumer,
    },
};

/// Longest time from an archive to the look at its entries, from which their delay counts at the latest.
const LOOK_DELAY_MAX: Duration = Duration::from_secs(1);

/// Notices of one endpoint on a node. Its tasks are the round that is being decided.
pub(super) struct Notifier {
    driver: FeedDriver<DecidedRound>,
    parts: Arc<WaitingNotices>,
    permits: Arc<WebhookPermits>,
    machine: Waiting,
    due: DueTimes,
    /// Newest order to send again that was carried out.
    resumed: u64,
    status: watch::Sender<NoticeStatus>,
}

impl Notifier {
    pub(super) fn new(
        parts: Arc<WaitingNotices>,
        plan: Arc<WebhookPlan>,
        permits: Arc<WebhookPermits>,
        status: watch::Sender<NoticeStatus>,
    ) -> Self {
        let mut it = Self {
            machine: Waiting::new(settings(&plan)),
            due: DueTimes::default(),
            resumed: plan.waiting.as_ref().map_or(0, |waiting| waiting.resumed),
            driver: FeedDriver::new(Arc::clone(&parts.store), plan),
            parts,
            permits,
            status,
        };
        it.handle_plan();
        it
    }

    /// Sends notices of the feeds that the node owns, by the newest plan, until the sender of either is dropped.
    pub(super) async fn run(
        self,
        owned: watch::Receiver<OwnedFeeds>,
        plans: watch::Receiver<Arc<WebhookPlan>>,
    ) {
        run_consumer(self, owned, plans).await;
    }

    fn delay(&self) -> Duration {
        let waiting = self.driver.plan.waiting.as_ref();
        Duration::from_millis(waiting.map_or(0, |waiting| waiting.form.delay_ms))
    }

    fn decide(&mut self, round: WaitingRound, waiting: WaitingPlan) {
        let task = RoundTask {
            parts: Arc::clone(&self.parts),
            plan: Arc::clone(&self.driver.plan),
            waiting,
            permits: Arc::clone(&self.permits),
        };
        supervised::spawn_in(&mut self.driver.tasks, "a round of notices", task.run(round));
    }
}

impl FeedConsumer for Notifier {
    /// Number of the feed up to which everything is decided.
    type Cursor = u64;
    type Done = DecidedRound;

    const READ: FeedLimits = FeedLimits { entries: 256, bytes: 64 * 1024 };

    fn driver(&self) -> &FeedDriver<DecidedRound> {
        &self.driver
    }

    fn driver_mut(&mut self) -> &mut FeedDriver<DecidedRound> {
        &mut self.driver
    }

    /// Notices that ended and began again have cursors of their own.
    fn place(plan: &WebhookPlan) -> Option<(&ConsumerName, &WebhookStart)> {
        plan.waiting.as_ref().map(|waiting| (&waiting.consumer, &waiting.start))
    }

    fn handle_plan(&mut self) {
        let plan = &self.driver.plan;
        self.machine.handle_settings(settings(plan));
        self.machine.handle_paused(plan.is_paused);
        let Some(waiting) = &plan.waiting else { return };
        // From now on; it costs a connection that acks a few words, so it does not end before the node does.
        self.parts.cluster.notes_acks.store(true, Ordering::Relaxed);
        if waiting.resumed > self.resumed {
            self.resumed = waiting.resumed;
            self.machine.handle_resumed();
        }
    }

    fn cursor_at(&self, number: u64) -> u64 {
        number
    }

    fn encode(cursor: &u64) -> Vec<u8> {
        cursor::encode(*cursor)
    }

    fn decode(bytes: &[u8]) -> Result<u64, String> {
        cursor::decode(bytes).ok_or_else(|| "it is damaged, or of a newer version".to_owned())
    }

    fn handle_owned(&mut self, partition: u32, cursor: u64) {
        self.machine.handle_owned(partition, cursor, self.driver.now());
    }

    fn handle_lost(&mut self, partition: u32) {
        self.machine.handle_lost(partition);
        self.due.forget(partition);
    }

    fn handle_release(&mut self, partition: u32) {
        self.machine.handle_release(partition, self.driver.now());
    }

    fn handle_archived(&mut self, partition: u32) {
        let at = self.driver.now() + self.delay().min(LOOK_DELAY_MAX);
        self.machine.handle_archived(partition, at);
    }

    async fn settle(&mut self) {}

    fn poll_read(&mut self) -> Option<WebhookRead> {
        let (partition, after) = self.machine.poll_read(self.driver.now())?;
        Some(WebhookRead { partition, after })
    }

    /// Takes the entries that are due, with the recipients of their messages.
    async fn handle_page(&mut self, read: WebhookRead, page: FeedPage) -> Result<(), StoreError> {
        let WebhookRead { partition, after } = read;
        let FeedPage { mut entries, newest, .. } = page;
        let (now, delay) = (Now { at: self.driver.now(), wall_ms: wall_ms() }, self.delay());
        self.due.see(partition, after, newest, delay, now.at);
        let mut next = None;
        if let Some(at) = entries.iter().position(|entry| {
            let due = self.due.of(partition, entry, delay, now);
            next = (due > now.at).then_some(WaitingLook::At(due));
            next.is_some()
        }) {
            entries.truncate(at);
        }
        let filter = &self.driver.plan.filter;
        let recipients = Recipients::new(&*self.parts.store, filter, self.parts.small_group_max);
        let (mut end, mut messages) = (after, Vec::new());
        if let Some(last) = entries.last().map(|entry| entry.number) {
            let lacks = || StoreError::Unavailable("it lacks entries of the feed; it fell back".to_owned());
            let addressed = recipients.of(&entries).await?.ok_or_else(lacks)?;
            (end, messages) = (addressed.end, addressed.messages);
            if end < last {
                next = Some(WaitingLook::Now);
            }
        }
        let rest = if end < newest { WaitingLook::Now } else { WaitingLook::Archived };
        let page = WaitingPage { after, end, messages, next: next.unwrap_or(rest) };
        self.machine.handle_page(partition, page, self.driver.now());
        Ok(())
    }

    async fn handle_missing(&mut self, partition: u32, numbers: RangeInclusive<u64>) {
        let (first, last) = (*numbers.start(), *numbers.end());
        let webhook = self.driver.plan.consumer.as_str();
        log_limited!(error, webhook, partition, first, last, "the feed no longer has messages for notices");
        self.machine.handle_moved(partition, last, self.driver.now());
    }

    fn handle_ahead(&mut self, partition: u32, newest: u64) {
        self.machine.handle_moved(partition, newest, self.driver.now());
    }

    fn handle_read_failed(&mut self, partition: u32) {
        self.machine.handle_read_failed(partition, self.driver.now());
    }

    fn poll_save(&mut self) -> Option<CursorSave> {
        let WaitingSave { partition, number } = self.machine.poll_save(self.driver.now())?;
        Some(CursorSave { partition, bytes: cursor::encode(number), is_durable: false })
    }

    fn handle_save(&mut self, partition: u32, is_saved: bool) {
        self.machine.handle_save(partition, is_saved, self.driver.now());
    }

    fn act(&mut self) {
        if let Some(waiting) = self.driver.plan.waiting.clone()
            && let Some(round) = self.machine.poll_round(self.driver.now())
        {
            self.decide(round, waiting);
        }
    }

    fn handle_done(&mut self, done: DecidedRound) {
        let DecidedRound { ticket, outcomes, error } = done;
        let was_failing = self.machine.is_failing();
        let dropped = self.machine.handle_round(ticket, &outcomes, self.driver.now());
        let webhook = self.driver.plan.consumer.as_str();
        for DroppedNotice { user, conversation, seq } in &dropped {
            let (user, conversation) = (user.as_str(), conversation.as_str());
            log_limited!(error, webhook, user, conversation, seq, "notice set aside; it is no longer sent");
        }
        self.status.send_modify(|status| {
            status.set_aside(dropped);
            let is_success = outcomes.contains(&WaitingOutcome::Noticed);
            status.last_error = error.clone().or(status.last_error.take().filter(|_| !is_success));
        });
        if self.machine.is_failing() && !was_failing {
            let error = error.unwrap_or_default();
            log_limited!(warn, webhook, error, "endpoint takes no notices that messages wait; it is probed");
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout(self.driver.now()).map(|at| self.driver.instant(at))
    }

    fn show(&mut self) {
        let shown = (self.machine.held(), self.machine.apart(), self.driver.unreadable.len());
        self.status.send_if_modified(|status| {
            let former = (status.waiting, status.apart, status.unreadable);
            (status.waiting, status.apart, status.unreadable) = shown;
            former != shown
        });
    }
}

fn settings(plan: &WebhookPlan) -> WaitingSettings {
    let repeat = plan.waiting.as_ref().map_or(0, |waiting| waiting.form.repeat_ms);
    WaitingSettings {
        repeat: Duration::from_millis(repeat),
        failing_max: plan.delivery.aside_after,
        alone_max: plan.delivery.parallel,
    }
}
