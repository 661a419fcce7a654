//! Topics of the feed: one with everything and the content of messages, and the changes of groups on the topic of events.
//!
//! The delivery is that of an endpoint, so it has the same cursors and the same order. An event is handed to the topic only
//! after the topic has confirmed every earlier one of its conversation. What the topic does not confirm is repeated each second;
//! nothing is set aside, and nothing else waits for it.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc, time::Duration};

use async_trait::async_trait;
use metrics::{Counter, Gauge};
use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{LANES_MAX, WebhookOutcome, WebhookSettings},
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    deliverer::{WebhookDeliverer, WebhookStatus},
    event::{gap_event, without_content, without_data},
    filter::{InvalidFilter, WebhookFilter},
    permits::WebhookPermits,
    plan::{WebhookPlan, WebhookReceiver, WebhookStart},
};
use crate::{
    bus::{AppendError, EventRecord, EventSink, partition_of},
    clock::wall_ms,
    cluster::Owned,
    hooks::{EncodedEvent, WebhookReply, WebhookRequest},
    log_limit::log_limited,
    metrics::Metrics,
    store::{ConsumerName, InvalidCursor, Store},
};

/// Names of the consumers, which no endpoint can have: those have another prefix.
const MESSAGES_CONSUMER: &str = "topic.messages";
const CHANGES_CONSUMER: &str = "topic.changes";

/// Requests at a time on a node. A change repeats what the lanes of the former number have taken ahead.
const LANES: usize = LANES_MAX / 2;

/// Most events of a request.
const BATCH_MAX: usize = 100;

/// Time for the report of a gap, for which everything else of the topic waits: longer than that after which the producer of the
/// topic of messages gives up, so that a slow ack is awaited and none is written twice for it.
const GAP_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which the lag is shown.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// Types of changes of groups and their members.
const CHANGES: [&str; 2] = ["tidegate.group.*", "tidegate.member.*"];

/// Publisher of the feed of the partitions that a node owns to a topic.
pub struct FeedTopic {
    plan: Arc<WebhookPlan>,
    figures: TopicFigures,
    store: Arc<dyn Store>,
    owned: Arc<Owned>,
}

/// What a topic has of the feed.
pub(super) struct TopicContents {
    /// Name of the consumer.
    pub(super) consumer: &'static str,
    pub(super) filter: WebhookFilter,
    pub(super) with_content: bool,
    pub(super) start: WebhookStart,
}

/// Metrics of a topic.
#[derive(Clone)]
pub(super) struct TopicFigures {
    behind: Gauge,
    lag_seconds: Gauge,
    unreadable: Gauge,
    events: Counter,
    failures: Counter,
    repeated: Counter,
    missing: Counter,
    oversized: Counter,
}

/// Receiver that publishes to a topic.
pub(super) struct TopicReceiver {
    pub(super) sink: Arc<dyn EventSink>,
    /// Source of the events.
    pub(super) source: String,
    /// Partitions of the log, for a topic whose partitions are those of the log; otherwise the key decides.
    pub(super) partitions: Option<u32>,
    pub(super) figures: TopicFigures,
}

impl TopicFigures {
    /// Returns those of the topic of messages.
    pub(super) fn of_messages(metrics: &Metrics) -> Self {
        Self {
            behind: metrics.message_topic_behind.clone(),
            lag_seconds: metrics.message_topic_lag_seconds.clone(),
            unreadable: metrics.message_topic_unreadable.clone(),
            events: metrics.message_topic_events.clone(),
            failures: metrics.message_topic_failures.clone(),
            repeated: metrics.message_topic_repeated.clone(),
            missing: metrics.message_topic_missing.clone(),
            oversized: metrics.message_topic_oversized.clone(),
        }
    }

    /// Returns those of changes on the topic of events: only how far it is.
    pub(super) fn of_changes(metrics: &Metrics) -> Self {
        let uncounted = Counter::noop();
        Self {
            behind: metrics.event_changes_behind.clone(),
            lag_seconds: Gauge::noop(),
            unreadable: metrics.event_changes_unreadable.clone(),
            events: metrics.event_changes.clone(),
            failures: uncounted.clone(),
            repeated: uncounted.clone(),
            missing: uncounted.clone(),
            oversized: uncounted,
        }
    }
}

impl TopicContents {
    /// Returns all events with the content of messages, from the oldest one that the feed has.
    pub(super) fn messages() -> Self {
        Self {
            consumer: MESSAGES_CONSUMER,
            filter: WebhookFilter::all(),
            with_content: true,
            start: WebhookStart::Oldest,
        }
    }

    /// Returns the changes of groups and members, from now on.
    ///
    /// # Errors
    /// Never, as long as the types are valid.
    pub(super) fn changes() -> Result<Self, InvalidFilter> {
        let filter = WebhookFilter::new(&CHANGES.map(str::to_owned), &[], &[])?;
        Ok(Self { consumer: CHANGES_CONSUMER, filter, with_content: false, start: WebhookStart::Now })
    }
}

impl FeedTopic {
    /// Creates the publisher of all events with content, over a topic with at least as many partitions as the log; `source` is
    /// that of the events.
    ///
    /// # Errors
    /// Never, as long as the name of the consumer is valid.
    pub fn messages(
        sink: Arc<dyn EventSink>,
        source: &str,
        partitions: u32,
        store: Arc<dyn Store>,
        owned: Arc<Owned>,
        metrics: &Metrics,
    ) -> Result<Self, InvalidCursor> {
        let figures = TopicFigures::of_messages(metrics);
        let receiver = TopicReceiver {
            sink,
            source: source.to_owned(),
            partitions: Some(partitions),
            figures: figures.clone(),
        };
        let plan = Arc::new(plan(receiver, TopicContents::messages())?);
        Ok(Self { plan, figures, store, owned })
    }

    /// Creates the publisher of the changes of groups and members to the topic of events.
    ///
    /// # Errors
    /// Never, as long as the names of the consumer and the types are valid.
    pub fn changes(
        sink: Arc<dyn EventSink>,
        source: &str,
        store: Arc<dyn Store>,
        owned: Arc<Owned>,
        metrics: &Metrics,
    ) -> anyhow::Result<Self> {
        let figures = TopicFigures::of_changes(metrics);
        let receiver =
            TopicReceiver { sink, source: source.to_owned(), partitions: None, figures: figures.clone() };
        let plan = Arc::new(plan(receiver, TopicContents::changes()?)?);
        Ok(Self { plan, figures, store, owned })
    }

    /// Publishes for as long as the node runs.
    pub async fn run(self) {
        let Self { plan, figures, store, owned } = self;
        // Permits of its own: webhooks and topics never wait for each other.
        let (deliverer, status) =
            WebhookDeliverer::new(Arc::clone(&plan), rand::random(), store, Arc::<WebhookPermits>::default());
        let plans = watch::Sender::new(plan);
        tokio::join!(deliverer.run(owned.feeds().subscribe(), plans.subscribe()), show(status, figures));
    }
}

/// Returns the plan of the delivery to a topic.
pub(super) fn plan(receiver: TopicReceiver, contents: TopicContents) -> Result<WebhookPlan, InvalidCursor> {
    let TopicContents { consumer, filter, with_content, start } = contents;
    Ok(WebhookPlan {
        consumer: ConsumerName::new(consumer)?,
        source: receiver.source.clone(),
        filter,
        with_content,
        delivery: WebhookSettings {
            parallel: LANES,
            batch_max: BATCH_MAX,
            batch_wait: Duration::ZERO,
            aside_after: Duration::MAX,
        },
        start,
        is_paused: false,
        waiting: None,
        orders: Vec::new(),
        receiver: Arc::new(receiver),
    })
}

/// Shows in the metrics how far the topic is behind, and what was missing.
async fn show(status: watch::Receiver<WebhookStatus>, figures: TopicFigures) {
    let mut ticks = interval(SHOW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut counted = 0;
    loop {
        ticks.tick().await;
        let (behind, oldest_ms, unreadable, missing) = {
            let status = status.borrow();
            (status.behind, status.oldest_ms, status.unreadable, status.missing.count)
        };
        let lag_ms = oldest_ms.map_or(0, |oldest| wall_ms().saturating_sub(oldest));
        figures.behind.set(behind as f64);
        figures.lag_seconds.set(lag_ms as f64 / 1_000.0);
        figures.unreadable.set(unreadable as f64);
        figures.missing.increment(missing - counted);
        counted = missing;
    }
}

#[async_trait]
impl WebhookReceiver for TopicReceiver {
    async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        let mut handed_over = 0;
        for round in rounds(request.body.events()) {
            handed_over += round.len();
            let Err(error) = self.publish(&round).await else {
                self.figures.events.increment(round.len() as u64);
                continue;
            };
            log_limited!(warn, %error, "events of the feed not published to their topic; retrying");
            self.figures.failures.increment(1);
            self.figures.repeated.increment(handed_over as u64);
            let error = Some(error.to_string());
            return WebhookReply { outcome: WebhookOutcome::Unsent, status: None, error };
        }
        WebhookReply { outcome: WebhookOutcome::Taken, status: None, error: None }
    }

    async fn report_gap(&self, partition: u32, numbers: &RangeInclusive<u64>) -> bool {
        let EncodedEvent { key, json, .. } = gap_event(&self.source, partition, numbers);
        let records = vec![EventRecord { key, partition: self.partitions.map(|_| partition), json }];
        let is_published = matches!(timeout(GAP_TIMEOUT, self.sink.publish(records)).await, Ok(Ok(())));
        if !is_published {
            log_limited!(warn, partition, "gap of the feed not published to its topic; retrying");
        }
        is_published
    }
}

impl TopicReceiver {
    /// Publishes events of different conversations. One that is too large for the topic goes without its content.
    async fn publish(&self, events: &[&EncodedEvent]) -> Result<(), AppendError> {
        let records = events.iter().map(|event| self.record(event, event.json.clone())).collect();
        match self.sink.publish(records).await {
            Err(AppendError::Rejected(_)) => {}
            published => return published,
        }
        for event in events {
            if !self.is_rejected(event, Some(event.json.clone())).await? {
                continue;
            }
            let id = &event.id;
            self.figures.oversized.increment(1);
            if !self.is_rejected(event, without_content(&event.json)).await? {
                log_limited!(error, id, "event too large for its topic; published without content");
            } else if !self.is_rejected(event, without_data(&event.json)).await? {
                log_limited!(error, id, "event too large for its topic; published with its number only");
            } else {
                // Repeating it would hold its lane for ever, and its number shows that it is missing.
                log_limited!(error, id, "event too large for its topic even without data; left out");
            }
        }
        Ok(())
    }

    /// Publishes one event in this form; returns whether it is too large for the topic, or has no such form.
    async fn is_rejected(&self, event: &EncodedEvent, json: Option<Vec<u8>>) -> Result<bool, AppendError> {
        let Some(json) = json else { return Ok(true) };
        match self.sink.publish(vec![self.record(event, json)]).await {
            Ok(()) => Ok(false),
            Err(AppendError::Rejected(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn record(&self, event: &EncodedEvent, json: Vec<u8>) -> EventRecord {
        let conversation = ConversationId::parse(&event.key).ok();
        let partition =
            conversation.zip(self.partitions).map(|(it, partitions)| partition_of(&it, partitions));
        EventRecord { key: event.key.clone(), partition, json }
    }
}

/// Splits events into rounds of at most one for each conversation, in order: a round is published once the former one is
/// confirmed.
fn rounds(events: &[EncodedEvent]) -> Vec<Vec<&EncodedEvent>> {
    let mut rounds: Vec<Vec<&EncodedEvent>> = Vec::new();
    let mut counts = BTreeMap::<&str, usize>::new();
    for event in events {
        let nth = counts.entry(&event.key).or_default();
        match rounds.get_mut(*nth) {
            Some(round) => round.push(event),
            None => rounds.push(vec![event]),
        }
        *nth += 1;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use std::{
        future::pending,
        sync::atomic::{AtomicU64, Ordering::Relaxed},
    };

    use super::*;
    use crate::webhooks::missing::MissingCount;

    fn status(count: u64) -> WebhookStatus {
        WebhookStatus { missing: MissingCount { count, last: None }, ..WebhookStatus::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn metric_of_missing_events_follows_their_count_in_the_status() {
        let counted = Arc::new(AtomicU64::new(0));
        let figures = TopicFigures {
            missing: Counter::from_arc(Arc::clone(&counted)),
            ..TopicFigures::of_changes(&crate::metrics::install().0)
        };
        let (shown, seen) = watch::channel(status(0));
        tokio::spawn(show(seen, figures));
        for count in [3, 3, 10] {
            shown.send_replace(status(count));
            timeout(SHOW_INTERVAL * 2, pending::<()>()).await.ok();
            assert_eq!(counted.load(Relaxed), count);
        }
    }
}
