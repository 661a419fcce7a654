//! Message tracing: a bounded ring with the steps of messages on this node, recorded for a few messages per second
//! and for watched ones.
//!
//! An untraced message costs a check of a counter. A traced one takes a lock for each of its steps, so the rate of
//! traced messages is limited, whatever clients request. Steps hold ids, never content.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use serde::Serialize;
use tidegate_protocol::trace::TraceContext;

/// Most ids and users that are watched at a time; beyond it the one queried longest ago is dropped.
const WATCHED_MAX: usize = 256;

/// How long an id or user is watched after a query for it, in ms.
pub const WATCH_MS: u64 = 600_000;

/// Most traces in the answer of one node; the newest are returned.
pub const FOUND_TRACES: usize = 100;
/// Most steps in the answer of one node; the newest are returned.
const FOUND_STEPS_MAX: usize = 2_000;

/// Kind of step of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// The sender's node has accepted the message, checked and in its position in the chain.
    Received,
    /// The log has confirmed the record.
    Appended,
    /// The log has refused the record, or not confirmed it in time.
    NotAppended,
    /// The owner of the partition has assigned a seq, or a reason for refusal.
    Decided,
    /// The store has the message.
    Archived,
    /// The owner's reply was sent to the sender's node, or has arrived there.
    Answered,
    /// A peer has delivered the message for recipients on this node.
    Arrived,
    /// This node sends the message to a device, or to a part of a group.
    Pushed,
    /// A device has acked the message.
    Acked,
}

impl Step {
    const ALL: [Self; 9] = [
        Self::Received,
        Self::Appended,
        Self::NotAppended,
        Self::Decided,
        Self::Archived,
        Self::Answered,
        Self::Arrived,
        Self::Pushed,
        Self::Acked,
    ];

    /// Returns the step with that name; `None` if it comes from a newer version.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.word() == word)
    }

    /// Returns the name of the step, in one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Appended => "appended",
            Self::NotAppended => "notappended",
            Self::Decided => "decided",
            Self::Archived => "archived",
            Self::Answered => "answered",
            Self::Arrived => "arrived",
            Self::Pushed => "pushed",
            Self::Acked => "acked",
        }
    }
}

/// Attributes of a message that are known at a step; unknown ones are empty or 0.
#[derive(Clone, Copy, Default)]
pub struct Facts<'a> {
    /// Id of the message.
    pub msg: &'a str,
    /// Conversation of the message.
    pub conversation: &'a str,
    /// Seq of the message in the conversation.
    pub seq: u64,
    /// User of the step: the sender or a recipient.
    pub user: &'a str,
    /// Device of that user.
    pub device: &'a str,
}

/// Recorded step of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceEvent {
    /// Trace id, as 32 hex digits.
    pub trace: String,
    /// Time by this node's clock, in µs since 1970.
    #[serde(rename = "timeUs")]
    pub time_us: u64,
    /// Kind of step.
    pub step: Step,
    /// As [`Facts::msg`]; this and the following are omitted if unknown.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub msg: Box<str>,
    /// As [`Facts::conversation`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub conversation: Box<str>,
    /// As [`Facts::seq`].
    #[serde(skip_serializing_if = "is_zero")]
    pub seq: u64,
    /// As [`Facts::user`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub user: Box<str>,
    /// As [`Facts::device`].
    #[serde(skip_serializing_if = "str::is_empty")]
    pub device: Box<str>,
    /// Free text with details.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub note: Box<str>,
    #[serde(skip)]
    id: u128,
}

impl TraceEvent {
    /// Builds the record of a step at a time in µs since 1970.
    pub fn new(id: u128, time_us: u64, step: Step, facts: Facts<'_>, note: &str) -> Self {
        let Facts { msg, conversation, seq, user, device } = facts;
        Self {
            trace: format!("{id:032x}"),
            time_us,
            step,
            msg: msg.into(),
            conversation: conversation.into(),
            seq,
            user: user.into(),
            device: device.into(),
            note: note.into(),
            id,
        }
    }

    /// Returns the trace id.
    pub const fn id(&self) -> u128 {
        self.id
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Query for whole traces, by message, user or trace id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceFilter {
    /// Id of the wanted messages.
    pub msg: Option<String>,
    /// Sender or recipient of the wanted messages.
    pub user: Option<String>,
    /// Ids of the wanted traces.
    pub traces: Vec<u128>,
    /// Whether the query only reads, and does not make the node watch the message or user.
    pub is_passive: bool,
}

/// Recorder of the steps on this node.
#[derive(Default)]
pub struct Tracer {
    per_second: u64,
    events_max: usize,
    /// Second in which `traced` counts.
    second: AtomicU64,
    /// Messages traced in that second.
    traced: AtomicU64,
    /// Size of `watch`, so that an empty one needs no lock.
    watched: AtomicUsize,
    /// Watched ids and users, with the end of the watch in ms since 1970.
    watch: Mutex<HashMap<String, u64>>,
    ring: Mutex<VecDeque<TraceEvent>>,
}

impl Tracer {
    /// Creates a tracer of `per_second` new messages per second and all watched ones, with room for `events_max` steps.
    pub fn new(per_second: u32, events_max: usize) -> Self {
        Self { per_second: u64::from(per_second), events_max, ..Self::default() }
    }

    /// Decides whether a new message is traced, and returns its trace: the one that the client names, or a new one.
    ///
    /// `users` names those of its users that are known without a lookup.
    pub fn begin<'a>(
        &self,
        now_ms: u64,
        given: Option<TraceContext>,
        msg: &str,
        users: impl IntoIterator<Item = &'a str>,
    ) -> Option<TraceContext> {
        if !self.is_due(now_ms) && !self.is_watched(now_ms, msg, users) {
            return None;
        }
        Some(given.unwrap_or_else(|| TraceContext::new(rand::random(), rand::random())))
    }

    /// Counts a message against the rate. The count is approximate if several threads begin a second at once.
    ///
    /// The time is that of a turn, so a shard may still be in the second before the current one: its messages count in
    /// the current one. A clock that was set back by more begins a second of its own.
    fn is_due(&self, now_ms: u64) -> bool {
        let (second, current) = (now_ms / 1_000, self.second.load(Ordering::Relaxed));
        if second != current && second + 1 != current {
            self.second.store(second, Ordering::Relaxed);
            self.traced.store(0, Ordering::Relaxed);
        }
        self.traced.load(Ordering::Relaxed) < self.per_second
            && self.traced.fetch_add(1, Ordering::Relaxed) < self.per_second
    }

    fn is_watched<'a>(&self, now_ms: u64, msg: &str, users: impl IntoIterator<Item = &'a str>) -> bool {
        if self.watched.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let watch = self.watch.lock();
        let is = |name: &str| watch.get(name).is_some_and(|until| *until > now_ms);
        is(msg) || users.into_iter().any(is)
    }

    /// Returns for how many ms this node watches one of these ids and users still.
    pub fn watched_for<'a>(&self, now_ms: u64, names: impl IntoIterator<Item = &'a str>) -> u64 {
        let watch = self.watch.lock();
        let left = |name: &str| Some(watch.get(name)?.saturating_sub(now_ms));
        names.into_iter().filter_map(left).max().unwrap_or(0)
    }

    /// Traces every message with that id, or from or directly to that user, for [`WATCH_MS`].
    pub fn watch(&self, name: &str, now_ms: u64) {
        if self.events_max == 0 {
            return;
        }
        let mut watch = self.watch.lock();
        watch.retain(|_, until| *until > now_ms);
        if watch.len() >= WATCHED_MAX
            && let Some(oldest) = watch.iter().min_by_key(|(_, until)| **until).map(|(name, _)| name.clone())
        {
            watch.remove(&oldest);
        }
        watch.insert(name.to_owned(), now_ms + WATCH_MS);
        self.watched.store(watch.len(), Ordering::Relaxed);
    }

    /// Records a step of a traced message.
    pub fn note(&self, trace: &TraceContext, step: Step, facts: Facts<'_>, more: fmt::Arguments<'_>) {
        let Facts { msg, conversation, seq, user, device } = facts;
        let id = trace.id();
        tracing::debug!(
            trace = format_args!("{id:032x}"),
            step = step.word(),
            msg,
            conversation,
            seq,
            user,
            device,
            "{more}"
        );
        if self.events_max == 0 {
            return;
        }
        let event = TraceEvent::new(id, now_us(), step, facts, &more.to_string());
        let mut ring = self.ring.lock();
        while ring.len() >= self.events_max {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    /// Returns the matching steps on this node, and watches the message and the user for later queries, unless the
    /// query is passive.
    pub fn find_and_watch(&self, query: &TraceFilter) -> Vec<TraceEvent> {
        for name in [&query.msg, &query.user].into_iter().flatten().filter(|_| !query.is_passive) {
            self.watch(name, now_us() / 1_000);
        }
        self.find(query)
    }

    /// Returns all steps of the matching traces on this node, in the order of their recording.
    pub fn find(&self, query: &TraceFilter) -> Vec<TraceEvent> {
        let ring = self.ring.lock();
        let mut traces: BTreeSet<u128> = query.traces.iter().copied().collect();
        let is_wanted =
            |wanted: &Option<String>, name: &str| wanted.as_deref() == Some(name) && !name.is_empty();
        for event in ring.iter().rev() {
            if traces.len() >= FOUND_TRACES {
                break;
            }
            if is_wanted(&query.msg, &event.msg) || is_wanted(&query.user, &event.user) {
                traces.insert(event.id);
            }
        }
        let mut found: Vec<TraceEvent> = ring
            .iter()
            .rev()
            .filter(|event| traces.contains(&event.id))
            .take(FOUND_STEPS_MAX)
            .cloned()
            .collect();
        found.reverse();
        found
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Formats a trace for peers; empty without one.
pub(crate) fn traceparent(trace: Option<TraceContext>) -> String {
    trace.map(|trace| trace.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(msg: &'a str, user: &'a str) -> Facts<'a> {
        Facts { msg, user, ..Facts::default() }
    }

    fn query(msg: Option<&str>, user: Option<&str>, traces: &[u128]) -> TraceFilter {
        let (msg, user) = (msg.map(str::to_owned), user.map(str::to_owned));
        TraceFilter { msg, user, traces: traces.to_vec(), is_passive: false }
    }

    #[test]
    fn begin_traces_at_a_rate_and_watched_messages_besides() {
        let tracer = Tracer::new(2, 100);
        let begun = |now, msg: &str, user: &str| tracer.begin(now, None, msg, [user]).is_some();
        assert_eq!([1, 2, 3].map(|n| begun(1_000 + n, "m", "ann")), [true, true, false]);
        assert!(begun(2_000, "m", "ann"), "the next second");
        assert_eq!([0, 1].map(|n| begun(2_001 + n, "m", "ann")), [true, false]);
        tracer.watch("bob", 2_500);
        tracer.watch("m7", 2_500);
        assert!(begun(2_600, "m", "bob") && begun(2_600, "m7", "ann") && !begun(2_600, "m", "ann"));
        let off = Tracer::default();
        off.watch("ann", 0);
        assert!(off.begin(5, None, "m", ["ann"]).is_none(), "a node that keeps no steps traces nothing");
        let given = TraceContext::new(5, 6);
        assert_eq!(tracer.begin(9_000, Some(given), "m", ["ann"]), Some(given));
        tracer.begin(9_000, None, "m", ["ann"]);
        assert!(tracer.begin(9_001, Some(given), "m", ["ann"]).is_none(), "a client can't have more");
    }

    #[test]
    fn late_turn_of_the_last_second_does_not_raise_the_rate() {
        let tracer = Tracer::new(2, 100);
        let begun = |now| tracer.begin(now, None, "m", ["ann"]).is_some();
        assert_eq!([5_000, 4_999, 5_000, 4_999].map(begun), [true, true, false, false]);
        assert!(begun(3_999), "the clock was set back");
        assert!(begun(6_000), "a later second");
    }

    #[test]
    fn watch_expires_and_the_oldest_is_dropped_at_the_limit() {
        let tracer = Tracer::new(0, 100);
        tracer.watch("ann", 1_000);
        assert!(tracer.begin(WATCH_MS, None, "m", ["ann"]).is_some());
        assert_eq!(tracer.watched_for(WATCH_MS, ["m", "ann"]), 1_000);
        assert_eq!(tracer.watched_for(WATCH_MS, ["m"]), 0);
        assert_eq!(tracer.watched_for(2_000 + WATCH_MS, ["ann"]), 0);
        assert!(tracer.begin(1_000 + WATCH_MS, None, "m", ["ann"]).is_none());
        for n in 0..WATCHED_MAX as u64 {
            tracer.watch(&format!("u{n}"), 2_000 + n);
        }
        assert!(tracer.begin(3_000, None, "m", ["ann"]).is_none());
        assert!(tracer.begin(3_000, None, "m", ["u0"]).is_some());
    }

    #[test]
    fn passive_query_watches_nothing() {
        let tracer = Tracer::new(0, 100);
        let is_watched = || tracer.begin(now_us() / 1_000, None, "m", ["ann"]).is_some();
        tracer.find_and_watch(&TraceFilter { is_passive: true, ..query(Some("m"), Some("ann"), &[]) });
        assert!(!is_watched());
        tracer.find_and_watch(&query(None, Some("ann"), &[]));
        assert!(is_watched());
    }

    #[test]
    fn find_returns_whole_traces_and_drops_the_oldest_steps() {
        let tracer = Tracer::new(0, 4);
        let (one, two) = (TraceContext::new(1, 1), TraceContext::new(2, 1));
        tracer.note(&one, Step::Received, facts("m1", "ann"), format_args!("gone soon"));
        tracer.note(&one, Step::Decided, Facts { seq: 7, ..facts("m1", "ann") }, format_args!(""));
        tracer.note(&two, Step::Received, facts("m2", "ann"), format_args!(""));
        tracer.note(&one, Step::Pushed, facts("", "bob"), format_args!("by n2"));
        tracer.note(&two, Step::Pushed, facts("", "cat"), format_args!(""));
        let steps =
            |query: TraceFilter| tracer.find(&query).iter().map(|it| (it.id, it.step)).collect::<Vec<_>>();
        let whole = [(1, Step::Decided), (1, Step::Pushed)];
        assert_eq!(steps(query(Some("m1"), None, &[])), whole);
        assert_eq!(steps(query(None, Some("bob"), &[])), whole);
        assert_eq!(steps(query(None, None, &[1])), whole);
        assert_eq!(steps(query(None, Some("ann"), &[])).len(), 4);
        assert!(steps(query(Some(""), None, &[])).is_empty());
        let json = serde_json::to_value(&tracer.find(&query(None, Some("bob"), &[]))[1]).unwrap();
        assert_eq!((json["step"].as_str(), json["note"].as_str()), (Some("pushed"), Some("by n2")));
        assert!(json.get("msg").is_none(), "{json}");
        assert!(Step::ALL.iter().all(|step| Step::named(step.word()) == Some(*step)));
        assert_eq!(Step::named("teleported"), None);
    }
}
