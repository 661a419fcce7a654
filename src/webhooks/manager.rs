//! Endpoints in force on a node: follows those that the store has, and runs a deliverer for each.

mod trust;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_protocol::machine::webhook::WebhookSettings;
use tokio::{sync::watch, task::JoinSet, time::interval};

use self::trust::EndpointTrust;
use super::{
    deliverer::{WebhookDeliverer, WebhookStatus},
    endpoint::{CONSUMER_PREFIX, NOTICE_PREFIX, START_MARGIN_MS, StartForm, StoredAction, StoredEndpoint},
    filter::WebhookFilter,
    measured::MeasuredReceiver,
    notice_status::NoticeStatus,
    permits::WebhookPermits,
    plan::{WaitingPlan, WebhookAction, WebhookOrder, WebhookPlan, WebhookReceiver, WebhookStart},
};
use crate::{
    cluster::{Owned, OwnedFeeds},
    hooks::{SenderSettings, WebhookSender, WebhookTarget},
    log_limit::log_limited,
    metrics::Metrics,
    net::endpoint::ServerTrust,
    store::{ConsumerName, GuardKey, GuardKind, GuardRow, Store, StoreError},
    supervised,
};

/// Interval at which cursors of removed endpoints are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// Time after which an endpoint that can't be used is tried again, in ms.
const UNUSABLE_RETRY_MS: u64 = 10_000;

/// What the configuration says about endpoints.
#[derive(Clone, Debug, Default)]
pub struct WebhookPolicy {
    /// Source of the events.
    pub source: String,
    /// Whether URLs of `http` to private addresses are allowed.
    pub allows_plain: bool,
    /// Hosts that may get content.
    pub content_hosts: Vec<String>,
    /// PEM file of the authorities, until a reload replaces them; empty for those of the system.
    pub ca_file: PathBuf,
    /// Time after which a failing event is set aside, instead of that of its endpoint; for tests.
    pub aside_after_ms: Option<u64>,
}

/// What else runs for an endpoint while it is in force, of a layer above.
#[async_trait]
pub trait EndpointCompanion: Send + Sync {
    /// Runs for one endpoint, by its newest plan, until the sender of either is dropped. Its requests share the permits, and
    /// it shows its status.
    async fn accompany(
        self: Arc<Self>,
        owned: watch::Receiver<OwnedFeeds>,
        plans: watch::Receiver<Arc<WebhookPlan>>,
        permits: Arc<WebhookPermits>,
        status: watch::Sender<NoticeStatus>,
    );
}

/// Endpoints in force on a node.
pub struct Webhooks {
    policy: WebhookPolicy,
    store: Arc<dyn Store>,
    owned: Arc<Owned>,
    permits: Arc<WebhookPermits>,
    metrics: Metrics,
    companion: OnceLock<Arc<dyn EndpointCompanion>>,
    trust: EndpointTrust,
    state: Mutex<EndpointTable>,
}

#[derive(Default)]
struct EndpointTable {
    endpoints: BTreeMap<String, Running>,
    /// Ids since all entries follow again; `None` while only changes follow.
    followed: Option<BTreeSet<String>>,
    /// Whether all entries have been read since the start.
    is_complete: bool,
}

/// Endpoint with its deliverer.
struct Running {
    stored: StoredEndpoint,
    version: u64,
    /// Time at which the plan changes, such as by the end of a secret, in ms since 1970.
    changes_at_ms: Option<u64>,
    delivery: Result<Delivery, String>,
}

/// Endpoint as the store has it at a time, with its plan.
struct Present {
    stored: StoredEndpoint,
    version: u64,
    now_ms: u64,
    /// Generation of the authorities before the plan was built with them.
    trust: u64,
    plan: Result<Arc<WebhookPlan>, String>,
}

/// Running deliverer. Dropping it ends its task.
struct Delivery {
    plans: watch::Sender<Arc<WebhookPlan>>,
    status: watch::Receiver<WebhookStatus>,
    notices: watch::Receiver<NoticeStatus>,
    _task: JoinSet<()>,
}

/// Endpoint as a node has it in force.
#[derive(Clone, Debug)]
pub struct EndpointView {
    /// Stored endpoint.
    pub stored: StoredEndpoint,
    /// Version of its entry.
    pub version: u64,
    /// Status of its delivery on this node, or the reason why there is none.
    pub status: Result<WebhookStatus, String>,
    /// Status of its notices on this node.
    pub notices: NoticeStatus,
}

impl Webhooks {
    /// Creates the endpoints of a node, of which there are none before the store is read.
    pub fn new(policy: WebhookPolicy, store: Arc<dyn Store>, owned: Arc<Owned>, metrics: Metrics) -> Self {
        let (permits, companion, state) = (Arc::default(), OnceLock::new(), Mutex::default());
        let trust = EndpointTrust::default();
        Self { policy, store, owned, permits, metrics, companion, trust, state }
    }

    /// Runs the companion for each endpoint that comes into force from now on. Only the first one counts.
    pub fn accompany_with(&self, companion: Arc<dyn EndpointCompanion>) {
        self.companion.set(companion).ok();
    }

    /// Returns the policy.
    pub const fn policy(&self) -> &WebhookPolicy {
        &self.policy
    }

    /// Returns an endpoint.
    pub fn endpoint(&self, id: &str) -> Option<EndpointView> {
        self.state.lock().endpoints.get(id).map(Running::view)
    }

    /// Returns all endpoints, by id.
    pub fn endpoints(&self) -> Vec<(String, EndpointView)> {
        let state = self.state.lock();
        state.endpoints.iter().map(|(id, running)| (id.clone(), running.view())).collect()
    }

    /// Returns the plan of an endpoint that is in force.
    pub fn plan(&self, id: &str) -> Option<Arc<WebhookPlan>> {
        let state = self.state.lock();
        let delivery = state.endpoints.get(id)?.delivery.as_ref().ok()?;
        Some(Arc::clone(&delivery.plans.borrow()))
    }

    /// Builds the plan of an endpoint, as it is delivered at a time.
    ///
    /// # Errors
    /// The definition can't be used on this node, for the reason given.
    pub fn plan_of(&self, id: &str, stored: &StoredEndpoint, now_ms: u64) -> Result<WebhookPlan, String> {
        let form = &stored.form;
        if let Some(problem) = form.problems().into_iter().next() {
            return Err(problem);
        }
        let headers: Vec<(String, String)> = form.headers.clone().unwrap_or_default().into_iter().collect();
        let target = WebhookTarget::new(&form.url, &headers, self.policy.allows_plain);
        let target = target.map_err(|why| format!("url or headers: {why}"))?;
        if form.content && !target.may_get_content(&self.policy.content_hosts) {
            return Err("content: the host of the URL is none of webhooks.content_hosts".to_owned());
        }
        let filter = WebhookFilter::new(&form.types, &form.conversations, &form.users);
        let filter = filter.map_err(|why| why.to_string())?;
        let consumer = stored.consumer(id).ok_or("the id has another form")?;
        let secrets = stored.signing(now_ms);
        let settings = SenderSettings {
            name: id,
            secrets: &secrets,
            trust: &|| self.trust.get(&self.policy.ca_file),
            timeout: Duration::from_millis(form.timeout_ms),
        };
        let sender = WebhookSender::new(&target, settings).map_err(|error| error.to_string())?;
        let receiver: Arc<dyn WebhookReceiver> =
            Arc::new(MeasuredReceiver::new(Arc::new(sender), self.metrics.clone()));
        Ok(WebhookPlan {
            consumer,
            source: self.policy.source.clone(),
            filter,
            with_content: form.content,
            delivery: WebhookSettings {
                parallel: form.parallel,
                batch_max: form.batch.max,
                batch_wait: Duration::from_millis(form.batch.wait_ms),
                aside_after: Duration::from_millis(self.policy.aside_after_ms.unwrap_or(form.aside_after_ms)),
            },
            start: start(form.from, stored),
            is_paused: stored.paused,
            orders: stored.orders.iter().filter_map(|it| order(it.number, &it.action, stored)).collect(),
            waiting: waiting(id, stored),
            receiver,
        })
    }

    /// Replaces the authorities of the certificates. Endpoints use them within a second.
    pub(crate) fn set_trust(&self, trust: ServerTrust) {
        self.trust.replace(trust);
        for it in self.state.lock().endpoints.values_mut() {
            it.changes_at_ms = Some(0);
        }
    }

    fn apply(&self, row: &GuardRow, now_ms: u64) {
        let id = row.key.name();
        let Some(value) = &row.value else {
            self.state.lock().endpoints.remove(id);
            return;
        };
        let Some(stored) = StoredEndpoint::decode(value) else {
            log_limited!(
                error,
                webhook = id,
                "endpoint of a newer version is unreadable; this node does not deliver it"
            );
            self.state.lock().endpoints.remove(id);
            return;
        };
        let present = self.present(id, stored, row.version, now_ms);
        self.start(&mut self.state.lock(), id, present);
    }

    /// Builds the plan of an endpoint, which takes too long for the lock of the state.
    fn present(&self, id: &str, stored: StoredEndpoint, version: u64, now_ms: u64) -> Present {
        let trust = self.trust.generation();
        let plan = self.plan_of(id, &stored, now_ms).map(Arc::new);
        Present { stored, version, now_ms, trust, plan }
    }

    /// Starts the delivery of an endpoint, or changes the one that runs.
    fn start(&self, state: &mut EndpointTable, id: &str, present: Present) {
        let Present { stored, version, now_ms, trust, plan } = present;
        let former = state.endpoints.remove(id).filter(|it| it.stored.instance == stored.instance);
        let delivery = match (plan, former.map(|former| former.delivery)) {
            (Err(why), _) => {
                log_limited!(
                    error,
                    webhook = id,
                    why,
                    "endpoint can't be used; this node does not deliver it"
                );
                Err(why)
            }
            (Ok(plan), Some(Ok(running))) => {
                running.plans.send_replace(plan);
                Ok(running)
            }
            (Ok(plan), _) => Ok(self.deliver(plan)),
        };
        // What can't be used now may be soon, such as after the file of the authorities was replaced.
        let retry_at_ms = delivery.is_err().then(|| now_ms.saturating_add(UNUSABLE_RETRY_MS));
        // Authorities that were replaced while the plan was built: it is built again.
        let outdated_ms = (trust != self.trust.generation()).then_some(0);
        let changes_at_ms = stored.next_end(now_ms).into_iter().chain(retry_at_ms).chain(outdated_ms).min();
        state.endpoints.insert(id.to_owned(), Running { stored, version, changes_at_ms, delivery });
    }

    fn deliver(&self, plan: Arc<WebhookPlan>) -> Delivery {
        let (store, permits) = (Arc::clone(&self.store), Arc::clone(&self.permits));
        let (deliverer, status) = WebhookDeliverer::new(Arc::clone(&plan), rand::random(), store, permits);
        let plans = watch::Sender::new(plan);
        let (shown, notices) = watch::channel(NoticeStatus::default());
        let mut task = JoinSet::new();
        let running = deliverer.run(self.owned.feeds().subscribe(), plans.subscribe());
        supervised::spawn_in(&mut task, "the delivery to an endpoint", running);
        if let Some(companion) = self.companion.get() {
            let (owned, permits) = (self.owned.feeds().subscribe(), Arc::clone(&self.permits));
            let running = Arc::clone(companion).accompany(owned, plans.subscribe(), permits, shown);
            supervised::spawn_in(&mut task, "the notices of an endpoint", running);
        }
        Delivery { plans, status, notices, _task: task }
    }

    /// Removes the cursors of endpoints that no longer exist, for as long as the node runs. An owner that learns of a
    /// removal late may have written one again.
    pub async fn sweep(self: Arc<Self>) {
        let mut ticks = interval(SWEEP_INTERVAL);
        let mut suspected = BTreeSet::new();
        loop {
            ticks.tick().await;
            match self.sweep_once(&suspected).await {
                Ok(found) => suspected = found,
                Err(error) => log_limited!(warn, %error, "cursors of removed webhooks not found; retrying"),
            }
        }
    }

    /// Removes those that were found by the former call, too, and returns the others: another node may know an endpoint
    /// that this one does not yet.
    async fn sweep_once(
        &self,
        suspected: &BTreeSet<ConsumerName>,
    ) -> Result<BTreeSet<ConsumerName>, StoreError> {
        if self.owned.list().is_empty() || !self.state.lock().is_complete {
            return Ok(BTreeSet::new());
        }
        let known: BTreeSet<ConsumerName> = {
            let state = self.state.lock();
            let consumers = |(id, it): (&String, &Running)| {
                [it.stored.consumer(id), it.stored.notice_consumer(id)].into_iter().flatten()
            };
            state.endpoints.iter().flat_map(consumers).collect()
        };
        let consumers = self.store.consumers().await?;
        let unknown: BTreeSet<ConsumerName> =
            consumers.into_iter().filter(|it| rest_of(it).is_some() && !known.contains(it)).collect();
        for gone in unknown.intersection(suspected) {
            if !self.is_stored(gone).await? {
                self.store.forget_consumer(gone).await?;
            }
        }
        Ok(unknown.difference(suspected).cloned().collect())
    }

    /// Returns whether the store has the endpoint of a consumer, also one that this version can't read.
    async fn is_stored(&self, consumer: &ConsumerName) -> Result<bool, StoreError> {
        let id = rest_of(consumer).and_then(|rest| rest.rsplit_once('.'));
        let key = id.and_then(|(id, _)| GuardKey::new(GuardKind::Webhook, id).ok());
        let Some(key) = key else { return Ok(false) };
        let row = self.store.guard_get(&key).await?;
        let stored = row.and_then(|row| row.value).map(|value| StoredEndpoint::decode(&value));
        Ok(match stored {
            None => false,
            Some(None) => true,
            Some(Some(stored)) => {
                let all = [stored.consumer(key.name()), stored.notice_consumer(key.name())];
                all.iter().flatten().any(|it| it == consumer)
            }
        })
    }

    /// Shows how far each endpoint is in the metrics.
    pub fn show(&self) {
        let state = self.state.lock();
        let (mut behind, mut parked, mut aside, mut failing) = (0, 0, 0, 0);
        let (mut missing, mut notices_aside) = (0, 0);
        for it in state.endpoints.values() {
            match &it.delivery {
                Ok(delivery) => {
                    let status = delivery.status.borrow();
                    behind += status.behind;
                    parked += status.parked;
                    aside += status.aside;
                    missing += status.missing.count;
                    let notices = delivery.notices.borrow();
                    notices_aside += notices.aside_count;
                    failing += u32::from(status.is_failing() || notices.unreadable > 0);
                }
                Err(_) => failing += 1,
            }
        }
        self.metrics.webhooks.set(state.endpoints.len() as f64);
        self.metrics.webhook_behind.set(behind as f64);
        self.metrics.webhook_parked.set(parked as f64);
        self.metrics.webhook_aside.set(aside as f64);
        self.metrics.webhook_missing.set(missing as f64);
        self.metrics.webhook_notices_aside.set(notices_aside as f64);
        self.metrics.webhooks_failing.set(f64::from(failing));
    }
}

impl Running {
    fn view(&self) -> EndpointView {
        let (status, notices) = match &self.delivery {
            Ok(delivery) => (Ok(delivery.status.borrow().clone()), delivery.notices.borrow().clone()),
            Err(why) => (Err(why.clone()), NoticeStatus::default()),
        };
        EndpointView { stored: self.stored.clone(), version: self.version, status, notices }
    }
}

/// Returns what follows the prefix in the name of a consumer that is an endpoint, or its notices.
fn rest_of(consumer: &ConsumerName) -> Option<&str> {
    [CONSUMER_PREFIX, NOTICE_PREFIX].iter().find_map(|prefix| consumer.as_str().strip_prefix(prefix))
}

fn waiting(id: &str, stored: &StoredEndpoint) -> Option<WaitingPlan> {
    let resumes = stored.orders.iter().filter(|order| order.action == StoredAction::Resume);
    Some(WaitingPlan {
        consumer: stored.notice_consumer(id)?,
        form: stored.form.waiting?,
        start: match stored.waiting_since_ms {
            Some(since) => WebhookStart::At(since.saturating_sub(START_MARGIN_MS)),
            None => start(stored.form.from, stored),
        },
        resumed: resumes.map(|order| order.number).max().unwrap_or(0),
    })
}

fn start(form: StartForm, stored: &StoredEndpoint) -> WebhookStart {
    match form {
        StartForm::Now if stored.starts.is_empty() => {
            WebhookStart::At(stored.created_ms.saturating_sub(START_MARGIN_MS))
        }
        StartForm::Now => WebhookStart::After(Arc::new(stored.starts.clone())),
        StartForm::Oldest => WebhookStart::Oldest,
        StartForm::At(time) => WebhookStart::At(time),
    }
}

/// Returns an order for the deliverer; `None` if this version can't read what it names.
fn order(number: u64, action: &StoredAction, stored: &StoredEndpoint) -> Option<WebhookOrder> {
    let action = match action {
        StoredAction::Replay(form) => WebhookAction::Replay(start(*form, stored)),
        StoredAction::Resume => WebhookAction::Resume,
        StoredAction::Drop(..) => {
            let (conversation, seq) = action.dropped()?;
            WebhookAction::Drop { conversation, seq }
        }
    };
    Some(WebhookOrder { number, action })
}

impl Webhooks {
    /// Notes that all entries follow again.
    pub(super) fn restarted(&self) {
        self.state.lock().followed = Some(BTreeSet::new());
    }

    /// Applies changed entries, in the order of their versions.
    pub(super) fn changed(&self, rows: &[GuardRow], now_ms: u64) {
        for row in rows {
            if let (Some(followed), true) = (&mut self.state.lock().followed, row.value.is_some()) {
                followed.insert(row.key.name().to_owned());
            }
            self.apply(row, now_ms);
        }
    }

    /// Notes that all changes up to now were applied, and ends the endpoints that no longer exist.
    pub(super) fn caught_up(&self) {
        let mut state = self.state.lock();
        if let Some(followed) = state.followed.take() {
            state.endpoints.retain(|id, _| followed.contains(id));
        }
        state.is_complete = true;
    }

    /// Builds the plans again that change by the store's clock, such as by the end of a secret.
    pub(super) fn time_passed(&self, now_ms: u64) {
        let due: Vec<(String, StoredEndpoint, u64)> = {
            let state = self.state.lock();
            let is_due = |it: &Running| it.changes_at_ms.is_some_and(|at| at <= now_ms);
            let due = state.endpoints.iter().filter(|(_, it)| is_due(it));
            due.map(|(id, it)| (id.clone(), it.stored.clone(), it.version)).collect()
        };
        for (id, stored, version) in due {
            let present = self.present(&id, stored, version, now_ms);
            let mut state = self.state.lock();
            // It may have changed meanwhile.
            if state.endpoints.get(&id).is_some_and(|it| it.version == version) {
                self.start(&mut state, &id, present);
            }
        }
        self.show();
    }
}

#[cfg(test)]
mod tests;
