//! Topic of messages: publishes the feed with the content of messages to a topic, for consumers that read everything.
//!
//! The delivery is that of an endpoint, so it has the same cursors and the same order. An event is handed to the topic only
//! after the topic has confirmed every earlier one of its conversation. What the topic does not confirm is repeated each second;
//! nothing is set aside, and nothing else waits for it.

use std::{collections::BTreeMap, ops::RangeInclusive, sync::Arc, time::Duration};

use async_trait::async_trait;
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
    event::{gap_event, without_content},
    filter::WebhookFilter,
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

/// Name of the consumer, which no endpoint can have: those have a prefix.
const CONSUMER: &str = "topic.messages";

/// Requests at a time on a node. A change repeats what the lanes of the former number have taken ahead.
const LANES: usize = LANES_MAX / 2;

/// Most events of a request.
const BATCH_MAX: usize = 100;

/// Time for the report of a gap, for which everything else of the topic waits.
const GAP_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which the lag is shown.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// Publisher of the feed of the partitions that a node owns to the topic of messages.
pub struct MessageTopic {
    plan: Arc<WebhookPlan>,
    store: Arc<dyn Store>,
    owned: Arc<Owned>,
    metrics: Metrics,
}

/// Receiver that publishes to a topic.
pub(super) struct TopicReceiver {
    pub(super) sink: Arc<dyn EventSink>,
    /// Source of the events.
    pub(super) source: String,
    /// Partitions of the log.
    pub(super) partitions: u32,
    pub(super) metrics: Metrics,
}

impl MessageTopic {
    /// Creates the publisher over a topic with at least as many partitions as the log; `source` is that of the events.
    ///
    /// # Errors
    /// Never, as long as the name of the consumer is valid.
    pub fn new(
        sink: Arc<dyn EventSink>,
        source: &str,
        partitions: u32,
        store: Arc<dyn Store>,
        owned: Arc<Owned>,
        metrics: Metrics,
    ) -> Result<Self, InvalidCursor> {
        let receiver =
            TopicReceiver { sink, source: source.to_owned(), partitions, metrics: metrics.clone() };
        let plan = Arc::new(plan(receiver)?);
        Ok(Self { plan, store, owned, metrics })
    }

    /// Publishes for as long as the node runs.
    pub async fn run(self) {
        let Self { plan, store, owned, metrics } = self;
        // Permits of its own: webhooks and the topic never wait for each other.
        let (deliverer, status) =
            WebhookDeliverer::new(Arc::clone(&plan), rand::random(), store, Arc::<WebhookPermits>::default());
        let plans = watch::Sender::new(plan);
        tokio::join!(deliverer.run(owned.feeds().subscribe(), plans.subscribe()), show(status, metrics));
    }
}

/// Returns the plan of the delivery to a topic.
pub(super) fn plan(receiver: TopicReceiver) -> Result<WebhookPlan, InvalidCursor> {
    Ok(WebhookPlan {
        consumer: ConsumerName::new(CONSUMER)?,
        source: receiver.source.clone(),
        filter: WebhookFilter::all(),
        with_content: true,
        delivery: WebhookSettings {
            parallel: LANES,
            batch_max: BATCH_MAX,
            batch_wait: Duration::ZERO,
            aside_after: Duration::MAX,
        },
        start: WebhookStart::Oldest,
        is_paused: false,
        orders: Vec::new(),
        receiver: Arc::new(receiver),
    })
}

/// Shows in the metrics how far the topic is behind.
async fn show(status: watch::Receiver<WebhookStatus>, metrics: Metrics) {
    let mut ticks = interval(SHOW_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (behind, oldest_ms, unreadable) = {
            let status = status.borrow();
            (status.behind, status.oldest_ms, status.unreadable)
        };
        let lag_ms = oldest_ms.map_or(0, |oldest| wall_ms().saturating_sub(oldest));
        metrics.message_topic_behind.set(behind as f64);
        metrics.message_topic_lag_seconds.set(lag_ms as f64 / 1_000.0);
        metrics.message_topic_unreadable.set(unreadable as f64);
    }
}

#[async_trait]
impl WebhookReceiver for TopicReceiver {
    async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        let mut handed_over = 0;
        for round in rounds(request.body.events()) {
            handed_over += round.len();
            let Err(error) = self.publish(&round).await else {
                self.metrics.message_topic_events.increment(round.len() as u64);
                continue;
            };
            log_limited!(warn, %error, "events not published to the topic of messages; retrying");
            self.metrics.message_topic_failures.increment(1);
            self.metrics.message_topic_repeated.increment(handed_over as u64);
            let error = Some(error.to_string());
            return WebhookReply { outcome: WebhookOutcome::Unsent, status: None, error };
        }
        WebhookReply { outcome: WebhookOutcome::Taken, status: None, error: None }
    }

    async fn report_gap(&self, partition: u32, numbers: &RangeInclusive<u64>) -> bool {
        let EncodedEvent { key, json, .. } = gap_event(&self.source, partition, numbers);
        let records = vec![EventRecord { key, partition: Some(partition), json }];
        let is_published = matches!(timeout(GAP_TIMEOUT, self.sink.publish(records)).await, Ok(Ok(())));
        if is_published {
            let missing = numbers.end().saturating_sub(*numbers.start()).saturating_add(1);
            self.metrics.message_topic_missing.increment(missing);
        } else {
            log_limited!(warn, partition, "gap of the feed not published to the topic of messages; retrying");
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
            let rejected = match self.sink.publish(vec![self.record(event, event.json.clone())]).await {
                Err(AppendError::Rejected(why)) => why,
                published => {
                    published?;
                    continue;
                }
            };
            let json = without_content(&event.json).ok_or(AppendError::Rejected(rejected))?;
            self.sink.publish(vec![self.record(event, json)]).await?;
            let id = &event.id;
            log_limited!(error, id, "event too large for the topic of messages; published without content");
            self.metrics.message_topic_oversized.increment(1);
        }
        Ok(())
    }

    fn record(&self, event: &EncodedEvent, json: Vec<u8>) -> EventRecord {
        let conversation = ConversationId::parse(&event.key).ok();
        let partition = conversation.map(|conversation| partition_of(&conversation, self.partitions));
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
