//! Access to the admin port: keys and their scopes, the limit of failed tries, and the audit log.
//!
//! Without a file of keys every caller on loopback has every right, under the rules of `same_origin`.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    Extension, Json,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION},
    middleware::Next,
    response::Response,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tidegate_protocol::{Code, id::check_id};
use tokio::{sync::Semaphore, time::timeout};

mod change;
mod failures;
pub(super) mod keys;
mod message_places;
mod refused;
mod request_id;
mod route;
mod targets;

pub use self::route::{AdminRoute, Effect, RouteNeed};
use self::{
    change::change, failures::FailureLimit, message_places::MessagePlaces, request_id::RequestId,
    targets::Targets,
};
pub(super) use self::{
    change::{CallerPresence, MessageIdForNow},
    refused::Refused,
    request_id::{idempotency_key, with_request_id},
};
use super::caller::Ends;
use crate::{
    audit::{Actor, AuditEntry, AuditFile},
    clock::wall_ms,
    cluster::Cluster,
    events::Events,
    evidence::{EvidenceBoard, EvidenceKind, EvidenceSource},
    keys::{KeyRing, Scope},
    limits::{LimitCall, LimitRefusal, LimitSubjects, LimitWaits, RuleGuard},
    log_limit::LogLimit,
    metrics::Metrics,
    supervised,
};

/// Longest wait for a line of the audit file.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Most changes at a time, except requests for messages. They go on after their callers have left, so that each is recorded.
const CHANGES_MAX: usize = 64;

/// Entries of refused keys: 60 at once, then one each second, so that strangers push no changes out of the file.
static REFUSALS: LogLimit = LogLimit::of(60, 1_000);

/// Entries of requests that rules refused: few, because callers repeat them, and no refused key lacks its entry for them.
static LIMITED: LogLimit = LogLimit::of(10, 1_000);

/// Entries of reads of content: few, because they are many and push changes out of the file. Each entry has the number of
/// those that were left out before it.
static CONTENT_READS: LogLimit = LogLimit::of(60, 1_000);

/// Guard of the routes of a node.
pub struct AdminGate {
    ring: Option<Arc<KeyRing>>,
    audit: Arc<AuditFile>,
    events: Arc<Events>,
    evidence: Arc<EvidenceBoard>,
    node: Arc<str>,
    boot: u64,
    entries: AtomicU64,
    failures: FailureLimit,
    changes: Arc<Semaphore>,
    message_places: Arc<MessagePlaces>,
    is_development: bool,
    /// Whether reads of content are recorded.
    records_reads: bool,
    rules: Arc<RuleGuard>,
    metrics: Metrics,
}

/// Mark of a response that streams what people wrote, which is recorded like a read of content.
#[derive(Clone, Copy)]
pub(super) struct StreamsContent;

/// Caller of a request that passed the gate.
#[derive(Clone)]
pub(super) struct Caller {
    actor: Actor,
    /// Scopes of the key; `None` if the port has no keys.
    scopes: Option<Vec<Scope>>,
    /// Key as it was presented, for requests that are passed on.
    pub(super) authorization: Option<HeaderValue>,
}

impl Caller {
    /// Returns the id of the key, or the kind of the caller.
    pub(super) fn id(&self) -> &str {
        self.actor.id()
    }

    /// Returns the id of the key; `None` if the port has no keys.
    pub(super) fn key(&self) -> Option<&str> {
        match &self.actor {
            Actor::Key { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Checks that the caller has the right.
    pub(super) fn require(&self, need: RouteNeed) -> Result<(), Refused> {
        match (need, &self.scopes) {
            (RouteNeed::Scope(scope), Some(scopes)) if !scopes.iter().any(|it| it.includes(scope)) => {
                Err(Refused::Scope(scope))
            }
            _ => Ok(()),
        }
    }
}

impl AdminGate {
    /// Creates the guard of a node; `ring` is `None` if it has no keys.
    pub fn new(
        ring: Option<Arc<KeyRing>>,
        audit: Arc<AuditFile>,
        cluster: &Cluster,
        is_development: bool,
        rules: Arc<RuleGuard>,
        metrics: Metrics,
    ) -> Self {
        Self {
            ring,
            audit,
            events: Arc::clone(&cluster.events),
            evidence: Arc::clone(&cluster.evidence),
            node: cluster.me.node.as_str().into(),
            boot: cluster.me.boot,
            entries: AtomicU64::new(0),
            failures: FailureLimit::new(),
            changes: Arc::new(Semaphore::new(CHANGES_MAX)),
            message_places: Arc::default(),
            is_development,
            records_reads: true,
            rules,
            metrics,
        }
    }

    /// Determines whether reads of content are recorded.
    #[must_use]
    pub fn recording_reads(self, records_reads: bool) -> Self {
        Self { records_reads, ..self }
    }

    /// Counts a request in the rules of its key, its address, its channel and the node.
    ///
    /// # Errors
    /// A rule refuses it.
    async fn limit(
        &self,
        route: &AdminRoute,
        caller: &Caller,
        address: Option<IpAddr>,
        channel: Option<&str>,
    ) -> Result<(), Refused> {
        let Some(call) = LimitCall::of_api(route.method) else { return Ok(()) };
        let subjects = LimitSubjects { key: caller.key(), address, channel, ..LimitSubjects::default() };
        let mut waits = LimitWaits::default();
        loop {
            let now = self.rules.now();
            let admitted = self.rules.admit(call, &subjects, now, waits, || Ok::<_, LimitRefusal>(()));
            match admitted {
                Ok(()) => return Ok(()),
                Err(LimitRefusal { asking: Some(asking), .. }) => {
                    waits = asking.waits;
                    asking.answered().await;
                }
                Err(refusal) => return Err(Refused::Limit(refusal.wait)),
            }
        }
    }

    /// Returns whether the caller of a request may send messages, before its body is read.
    pub(super) fn may_send_messages(&self, headers: &HeaderMap, from: Option<IpAddr>) -> bool {
        let Some(ring) = &self.ring else { return true };
        let (Some(authorization), Some(from)) = (bearer(headers), from) else { return false };
        let holder = ring.check(presented(authorization), from);
        holder.is_ok_and(|holder| holder.scopes.iter().any(|it| it.includes(Scope::Messages)))
    }

    /// Returns whether callers need keys.
    pub fn has_keys(&self) -> bool {
        self.ring.is_some()
    }

    /// Reads the keys again, and opens the audit file again. Blocks, for as long as the disk takes.
    ///
    /// # Errors
    /// The file of keys can't be used, for the reason given; the keys that were read before stay in force.
    pub fn reload(&self) -> Result<(), String> {
        self.audit.reopen();
        match &self.ring {
            Some(ring) => ring.reload(),
            None => Ok(()),
        }
    }

    fn identify(&self, headers: &HeaderMap, from: Option<IpAddr>) -> Result<Caller, Refused> {
        let Some(ring) = &self.ring else {
            let actor = if self.is_development { Actor::Development } else { Actor::Loopback };
            return Ok(Caller { actor, scopes: None, authorization: None });
        };
        let Some(authorization) = bearer(headers) else { return Err(Refused::NoKey) };
        // A connection without an address has just ended.
        let from = from.ok_or(Refused::NoKey)?;
        match ring.check(presented(authorization), from) {
            Ok(holder) => Ok(Caller {
                actor: Actor::Key { id: holder.id, name: holder.name },
                scopes: Some(holder.scopes),
                authorization: Some(authorization.clone()),
            }),
            Err(rejection) => match self.failures.count(from) {
                Ok(()) => Err(Refused::Key(rejection)),
                Err(wait) => Err(Refused::TooMany(rejection, wait)),
            },
        }
    }

    /// Writes an entry to the audit file and the events. Returns whether it is in the file.
    async fn record(self: &Arc<Self>, entry: AuditEntry, is_change: bool) -> bool {
        let line = entry.line();
        self.events.audit(Arc::new(entry));
        let audit = Arc::clone(&self.audit);
        let written = supervised::run_blocking(move || audit.append(line, is_change).is_ok());
        matches!(timeout(AUDIT_TIMEOUT, written).await, Ok(Ok(true)))
    }

    /// Returns whether changes can be recorded.
    async fn can_record(&self) -> bool {
        let audit = Arc::clone(&self.audit);
        let recovered = supervised::run_blocking(move || audit.recover().is_ok());
        matches!(timeout(AUDIT_TIMEOUT, recovered).await, Ok(Ok(true)))
    }

    /// Counts a refusal in its metric, and notes what it is evidence of.
    pub(super) fn count(&self, refused: &Refused, address: Option<IpAddr>) {
        let kind = match refused {
            Refused::Key(_) | Refused::TooMany(..) => Some(EvidenceKind::KeyRefused),
            Refused::Scope(_) => Some(EvidenceKind::ScopeMissing),
            Refused::Limit(_) => Some(EvidenceKind::LimitHit),
            Refused::NoKey => None,
        };
        if let (Some(kind), Some(address)) = (kind, address) {
            self.evidence.note(kind, EvidenceSource::of_address(address));
        }
        match refused {
            Refused::NoKey => self.metrics.admin_keys_missing.increment(1),
            Refused::Key(_) | Refused::TooMany(..) => self.metrics.admin_keys_refused.increment(1),
            Refused::Scope(_) => self.metrics.admin_scopes_missing.increment(1),
            // The rules count their refusals themselves.
            Refused::Limit(_) => {}
        }
    }
}

/// Scheme of a key in `Authorization`, with the space after it.
const BEARER: &str = "Bearer ";

/// Returns the header with the key. Other schemes, which proxies use, are no keys; neither are two headers.
fn bearer(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_bearer = |value: &HeaderValue| {
        value
            .as_bytes()
            .get(..BEARER.len())
            .is_some_and(|begin| begin.eq_ignore_ascii_case(BEARER.as_bytes()))
    };
    let mut found = headers.get_all(AUTHORIZATION).iter().filter(|value| is_bearer(value));
    found.next().filter(|_| found.next().is_none())
}

/// Returns the key of the header.
fn presented(authorization: &HeaderValue) -> &str {
    let text = authorization.to_str().ok().and_then(|text| text.get(BEARER.len()..)).unwrap_or_default();
    text.trim_ascii()
}

/// Header with the channel of a request: the product or campaign on whose behalf the caller sends it.
const CHANNEL_HEADER: &str = "tidegate-channel";

/// Returns the channel of a request, of the form of the claim `chan`.
pub(super) fn channel_of(headers: &HeaderMap) -> Option<String> {
    let channel = headers.get(CHANNEL_HEADER)?.to_str().ok()?;
    check_id(channel).ok().map(|()| channel.to_owned())
}

/// What an entry says of a request, before its outcome is known.
struct Draft {
    gate: Arc<AdminGate>,
    route: &'static AdminRoute,
    address: Option<IpAddr>,
    method: String,
    request: String,
    targets: Targets,
    at_ms: u64,
    began: Instant,
}

impl Draft {
    fn entry(&self, actor: Actor, status: Option<StatusCode>, code: Option<Code>) -> AuditEntry {
        let number = self.gate.entries.fetch_add(1, Ordering::Relaxed);
        AuditEntry {
            at_ms: self.at_ms,
            node: Arc::clone(&self.gate.node),
            id: format!("{:x}-{number}", self.gate.boot),
            actor,
            address: self.address,
            method: self.method.clone(),
            route: self.route.path,
            targets: self.targets.ids.clone(),
            more_targets: self.targets.more,
            request: self.request.clone(),
            request_id: self.targets.request_id.clone(),
            status: status.map_or(0, |status| status.as_u16()),
            code: code.map(Code::name),
            reason: None,
            suppressed: 0,
            ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Records a read of content.
    async fn record_read(self, actor: Actor, status: StatusCode, code: Option<Code>) {
        if let Some(suppressed) = CONTENT_READS.pass() {
            let entry = self.entry(actor, Some(status), code);
            self.gate.record(AuditEntry { suppressed, ..entry }, false).await;
        }
    }

    /// Records and counts a refusal, and returns its response.
    async fn refuse(self, caller: Option<Actor>, refused: Refused) -> Response {
        self.gate.count(&refused, self.address);
        let response = refused.response();
        // Without a key there is no one to name, and a page that has none yet asks often.
        let limit = if matches!(refused, Refused::Limit(_)) { &LIMITED } else { &REFUSALS };
        if !matches!(refused, Refused::NoKey)
            && let Some(suppressed) = limit.pass()
        {
            let actor = caller.unwrap_or_else(|| refused.actor());
            let entry = self.entry(actor, Some(response.status()), response.extensions().get().copied());
            let entry = AuditEntry { reason: Some(refused.reason()), suppressed, ..entry };
            self.gate.record(entry, false).await;
        }
        response
    }
}

/// Passes a request on if its caller may send it, and records changes before they are answered.
pub(super) async fn check(
    State((gate, route)): State<(Arc<AdminGate>, &'static AdminRoute)>,
    mut request: Request,
    next: Next,
) -> Response {
    if route.need == RouteNeed::Open {
        return next.run(request).await;
    }
    let address = request.extensions().get::<Ends>().map(|ends| ends.caller.ip().to_canonical());
    let is_change = matches!(route.effect, Effect::Change | Effect::Crash);
    let caller = gate.identify(request.headers(), address);
    // Whatever the route needs, its response has content only for those who may read it.
    let is_content_read = route.effect == Effect::ContentRead
        && gate.records_reads
        && caller.as_ref().is_ok_and(|it| it.require(RouteNeed::Scope(Scope::Content)).is_ok());
    let is_named =
        caller.is_ok() && (is_change || matches!(route.effect, Effect::ContentRead | Effect::Stream));
    let draft = Draft {
        gate: Arc::clone(&gate),
        route,
        address,
        method: request.method().as_str().to_owned(),
        request: RequestId::of(&request),
        // Strangers cause no work.
        targets: if is_named { Targets::of(route, &mut request).await } else { Targets::default() },
        at_ms: wall_ms(),
        began: Instant::now(),
    };
    let caller = match caller {
        Ok(caller) => caller,
        Err(refused) => return draft.refuse(None, refused).await,
    };
    if let Err(refused) = caller.require(route.need) {
        return draft.refuse(Some(caller.actor), refused).await;
    }
    // Rules can always be corrected: a wrong one would otherwise lock its author out.
    let is_cure = is_change && (route.path == "/v1/rules/{rule}" || route.path == "/v1/reload");
    if !is_cure {
        let channel = channel_of(request.headers());
        if let Err(refused) = gate.limit(route, &caller, address, channel.as_deref()).await {
            return draft.refuse(Some(caller.actor), refused).await;
        }
    }
    request.extensions_mut().insert(caller.clone());
    match route.effect {
        Effect::ContentRead if is_content_read => {
            let response = next.run(request).await;
            let (status, code) = (response.status(), response.extensions().get().copied());
            draft.record_read(caller.actor, status, code).await;
            response
        }
        Effect::Query | Effect::ContentRead => next.run(request).await,
        Effect::Stream => {
            let response = next.run(request).await;
            if gate.records_reads && response.extensions().get::<StreamsContent>().is_some() {
                let (status, code) = (response.status(), response.extensions().get().copied());
                draft.record_read(caller.actor.clone(), status, code).await;
            }
            ended_with_key(&gate, caller.actor, response)
        }
        Effect::Change | Effect::Crash => change(draft, caller.actor, request, next).await,
    }
}

/// Ends the body of a response when the key of its caller is no longer in force.
fn ended_with_key(gate: &AdminGate, actor: Actor, response: Response) -> Response {
    match (&gate.ring, actor) {
        (Some(ring), Actor::Key { id, .. }) => {
            let ended = Arc::clone(ring).ended(id);
            response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
        }
        _ => response,
    }
}

/// Returns the id, name and scopes of the caller's key.
pub(super) async fn own_key(Extension(caller): Extension<Caller>) -> Json<Value> {
    let name = match &caller.actor {
        Actor::Key { name, .. } => Some(name),
        _ => None,
    };
    let scopes = caller.scopes.as_deref().unwrap_or(Scope::ALL);
    Json(json!({"id": caller.actor.id(), "name": name, "scopes": scopes}))
}
