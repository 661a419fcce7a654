//! World of the tests: a store with an owned partition, a deliverer, and a receiver that a script decides.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::Value;
use tidegate_protocol::{
    content::Content,
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::{
        ledger::{Delta, Head, Row},
        webhook::{WebhookCursor, WebhookOutcome, WebhookSettings},
    },
    record::{Body, Message, Position, SenderOrder},
};
use tokio::{sync::watch, task::JoinHandle};

use crate::{
    bus::TopicId,
    cluster::{OwnedFeed, OwnedFeeds},
    fault::{FaultPlan, Faulty},
    hooks::{WebhookBody, WebhookReply, WebhookRequest},
    store::{ConsumerName, FeedBounds, FeedStore as _, Fence, MemoryStore, Store},
    webhooks::{
        WebhookDeliverer, WebhookFilter, WebhookPermits, WebhookPlan, WebhookReceiver, WebhookStart,
        WebhookStatus,
    },
};

pub(crate) const PARTITION: u32 = 0;
pub(crate) const TOPIC: TopicId = TopicId(7);

/// Receive time of the first record; each offset is a second.
pub(crate) const BEGIN_MS: u64 = 1_795_269_992_559;

/// Receiver that takes everything except what the script refuses.
#[derive(Default)]
pub(crate) struct Script {
    /// Ids of the events of each request, with its number of tries.
    pub(crate) requests: Mutex<Vec<(Vec<String>, u32)>>,
    pub(crate) bodies: Mutex<HashMap<String, Value>>,
    /// Requests that were no list, and those that were sent once more.
    pub(crate) singles: AtomicUsize,
    pub(crate) resent: AtomicUsize,
    /// Whether a request takes no time.
    pub(crate) is_instant: AtomicBool,
    pub(crate) outcomes: Mutex<HashMap<String, WebhookOutcome>>,
}

#[async_trait]
impl WebhookReceiver for Script {
    async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        if !self.is_instant.load(SeqCst) {
            pass_time(Duration::from_millis(5)).await;
        }
        self.singles.fetch_add(usize::from(matches!(request.body, WebhookBody::Single(_))), SeqCst);
        self.resent.fetch_add(usize::from(request.is_resent), SeqCst);
        let (events, attempt) = (request.body.events(), request.attempt);
        let ids: Vec<String> = events.iter().map(|event| event.id.clone()).collect();
        let outcomes = self.outcomes.lock();
        let outcome = ids.iter().find_map(|id| outcomes.get(id)).copied().unwrap_or(WebhookOutcome::Taken);
        for event in events {
            self.bodies.lock().insert(event.id.clone(), serde_json::from_slice(&event.json).unwrap());
        }
        self.requests.lock().push((ids, attempt));
        let error = (outcome != WebhookOutcome::Taken).then(|| "refused".to_owned());
        WebhookReply { outcome, status: None, error }
    }
}

impl Script {
    pub(crate) fn ids(&self) -> Vec<String> {
        self.requests.lock().iter().flat_map(|(ids, _)| ids.clone()).collect()
    }

    pub(crate) fn data(&self, id: &str) -> Value {
        self.bodies.lock()[id]["data"].clone()
    }

    pub(crate) fn kind(&self, id: &str) -> String {
        self.bodies.lock()[id]["type"].as_str().unwrap().to_owned()
    }

    pub(crate) fn refuse(&self, id: &str, outcome: WebhookOutcome) {
        self.outcomes.lock().insert(id.to_owned(), outcome);
    }
}

/// Store with an owned partition, its feed and its deliverer. A second partition has no events unless a test adds some.
pub(crate) struct World {
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) faults: Arc<FaultPlan>,
    pub(crate) script: Arc<Script>,
    pub(crate) feeds: watch::Sender<OwnedFeeds>,
    pub(crate) plans: Option<watch::Sender<Arc<WebhookPlan>>>,
    pub(crate) fence: Fence,
    pub(crate) permits: Arc<WebhookPermits>,
    /// Fence that the node believes to have.
    pub(crate) believed: Fence,
    pub(crate) position: Position,
    pub(crate) seqs: HashMap<ConversationId, u64>,
    pub(crate) task: Option<JoinHandle<()>>,
    pub(crate) status: Option<watch::Receiver<WebhookStatus>>,
}

impl World {
    pub(crate) async fn new() -> Self {
        let (store, fence) = (Arc::new(MemoryStore::default()), Fence(1));
        store.take_over(PARTITION, fence, TOPIC).await.unwrap();
        Self {
            store,
            faults: FaultPlan::none(),
            script: Arc::default(),
            feeds: watch::Sender::new(OwnedFeeds::new()),
            plans: None,
            fence,
            permits: Arc::default(),
            believed: fence,
            position: Position::START,
            seqs: HashMap::new(),
            task: None,
            status: None,
        }
    }

    pub(crate) fn plan(&self, types: &[&str]) -> WebhookPlan {
        let types: Vec<String> = types.iter().map(|it| (*it).to_owned()).collect();
        WebhookPlan {
            consumer: ConsumerName::new("crm").unwrap(),
            source: "/tidegate/log".to_owned(),
            filter: WebhookFilter::new(&types, &[], &[]).unwrap(),
            with_content: true,
            delivery: WebhookSettings {
                parallel: 2,
                batch_max: 4,
                batch_wait: Duration::ZERO,
                aside_after: Duration::from_secs(86_400),
            },
            start: WebhookStart::Oldest,
            is_paused: false,
            orders: Vec::new(),
            waiting: None,
            receiver: Arc::clone(&self.script) as Arc<dyn WebhookReceiver>,
        }
    }

    /// Starts a deliverer of events of these types.
    pub(crate) fn start(&mut self, types: &[&str]) {
        let plan = self.plan(types);
        self.start_with(plan);
    }

    pub(crate) fn start_with(&mut self, plan: WebhookPlan) {
        let plan = Arc::new(plan);
        let permits = Arc::clone(&self.permits);
        let (deliverer, status) = WebhookDeliverer::new(Arc::clone(&plan), 7, self.faulty(), permits);
        let plans = watch::Sender::new(plan);
        self.task = Some(tokio::spawn(deliverer.run(self.feeds.subscribe(), plans.subscribe())));
        (self.status, self.plans) = (Some(status), Some(plans));
        self.own(false);
    }

    /// Returns the store with the planned faults.
    pub(crate) fn faulty(&self) -> Arc<dyn Store> {
        let store = Arc::clone(&self.store) as Arc<dyn Store>;
        Arc::new(Faulty::new(store, Arc::clone(&self.faults)))
    }

    /// Changes the plan of the deliverer that runs.
    pub(crate) fn change(&self, change: impl FnOnce(&mut WebhookPlan)) {
        let mut plan = self.plan(&["tidegate.*"]);
        change(&mut plan);
        self.plans.as_ref().unwrap().send_replace(Arc::new(plan));
    }

    /// Starts another deliverer of the same events, and forgets it.
    pub(crate) fn start_other(&self, name: &str) {
        let consumer = ConsumerName::new(name).unwrap();
        let plan = Arc::new(WebhookPlan { consumer, ..self.plan(&["tidegate.*"]) });
        let (store, permits) = (self.faulty(), Arc::clone(&self.permits));
        let (deliverer, _) = WebhookDeliverer::new(Arc::clone(&plan), 8, store, permits);
        let (feeds, plans) = (self.feeds.subscribe(), watch::Sender::new(plan));
        tokio::spawn(async move { deliverer.run(feeds, plans.subscribe()).await });
    }

    /// Returns the stored cursor of the partition.
    pub(crate) async fn cursor(&self) -> WebhookCursor {
        let cursors = self.store.cursors(&ConsumerName::new("crm").unwrap()).await.unwrap();
        let cursor = cursors.iter().find(|it| it.partition() == PARTITION).unwrap();
        WebhookCursor::decode(cursor.bytes()).unwrap()
    }

    pub(crate) fn own(&self, is_leaving: bool) {
        let archives = self.position.offset;
        let feed = OwnedFeed { fence: self.believed, archives, is_leaving };
        self.feeds.send_modify(|feeds| {
            feeds.insert(PARTITION, feed);
        });
    }

    /// Takes the partition over, without the knowledge of the deliverer.
    pub(crate) async fn take_over(&mut self) {
        self.fence = Fence(self.fence.0 + 1);
        self.store.take_over(PARTITION, self.fence, TOPIC).await.unwrap();
    }

    /// Removes what the feed has from before a time, in ms since 1970.
    pub(crate) async fn trim_before(&self, before_ms: u64) {
        let bounds = FeedBounds { before_ms, bytes_max: u64::MAX };
        self.store.trim_feed(PARTITION, self.fence, bounds).await.unwrap();
    }

    /// Ends the task as a crash does.
    pub(crate) fn kill(&mut self) {
        self.task.take().unwrap().abort();
    }

    pub(crate) async fn archive(&mut self, rows: Vec<(ConversationId, Row)>, more: impl FnOnce(&mut Delta)) {
        let to = Position { offset: self.position.offset + rows.len() as u64 + 1, hash: [0; 16] };
        let head = |(conversation, last_seq): (&ConversationId, &u64)| {
            let head = Head { last_seq: *last_seq, ..Head::default() };
            (conversation.clone(), head)
        };
        let mut delta = Delta {
            heads: self.seqs.iter().map(head).collect(),
            rows: rows.into_iter().map(|(_, row)| row).collect(),
            ..Delta::new(self.position, to)
        };
        more(&mut delta);
        self.store.archive(PARTITION, self.fence, &delta).await.unwrap();
        self.position = to;
        self.own(false);
    }

    pub(crate) fn row(
        &mut self,
        key: &str,
        body: impl FnOnce(ConversationId) -> Body,
    ) -> (ConversationId, Row) {
        let conversation = ConversationId::parse(key).unwrap();
        let seq = self.seqs.entry(conversation.clone()).or_default();
        *seq += 1;
        let offset = self.position.offset;
        let body = body(conversation.clone());
        (
            conversation,
            Row { seq: *seq, ordinal: *seq, own: *seq, time: BEGIN_MS + offset * 1_000, offset, body },
        )
    }

    pub(crate) fn message(&mut self, key: &str) -> (ConversationId, Row) {
        self.message_of(key, "ann", Content::text("hi"))
    }

    pub(crate) fn message_of(&mut self, key: &str, sender: &str, content: Content) -> (ConversationId, Row) {
        let content = content.encode_to_vec().into();
        self.row(key, |conversation| {
            Body::Message(Message {
                conversation,
                sender: UserId::new(sender).unwrap(),
                device: DeviceId::new("phone").unwrap(),
                msg_id: MsgId::new("m").unwrap(),
                attempt: 0,
                content,
                order: SenderOrder { epoch: 1, n: 0, chained: false },
                flags: 0,
                body_hash: [0; 16],
                mode: Default::default(),
            })
        })
    }

    pub(crate) async fn messages(&mut self, keys: &[&str]) {
        let rows = keys.iter().map(|key| self.message(key)).collect();
        self.archive(rows, |_| {}).await;
    }

    pub(crate) fn shown(&self) -> WebhookStatus {
        self.status.as_ref().unwrap().borrow().clone()
    }
}

/// Lets time pass on the paused clock.
pub(crate) async fn pass(seconds: u64) {
    pass_time(Duration::from_secs(seconds)).await;
}

/// Lets a time pass on the paused clock.
pub(crate) async fn pass_time(time: Duration) {
    tokio::time::timeout(time, std::future::pending::<()>()).await.ok();
}
