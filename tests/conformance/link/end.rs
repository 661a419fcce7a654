//! Called end of the suite: records each call, and replies by simple rules.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate::{
    figures::{CodesRow, FiguresPage, FiguresQuery, Flow, FlowsRow, StatsRow},
    link::{
        AckQuery, Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, BestEffortMessage, CloseOrder,
        ConnectionPage, ConnectionQuery, DeviceAck, Landing, Link, LinkError, PartitionOffset, PeerPush,
        PublishedMark, RoomRemoval, RoomsPage, RoomsQuery, RoutedSession, Target,
    },
    revocation::Revocation,
    routes::NodeBoot,
    storms::{StormDetails, StormParts, StormView, StormsPage, StormsQuery},
    trace::{Facts, Step, TraceEvent, TraceFilter},
};
use tidegate_protocol::machine::{ledger::Outcome, storm::StormPhase};
use tokio::sync::Semaphore;

use crate::{group, node, user};

/// Epoch of connections that are on this node.
pub(super) const HERE: u64 = 7;
/// The partition that this node owns.
pub(super) const OWNED: u32 = 3;

/// Returns the archived and the published position.
pub(super) fn level() -> ArchivedUpTo {
    let up_to = |partition, offset| PartitionOffset { partition, offset };
    ArchivedUpTo { archived: vec![up_to(0, 0), up_to(OWNED, u64::MAX)], unarchived: vec![up_to(u32::MAX, 7)] }
}

#[derive(Default)]
pub(super) struct End {
    pub(super) answers: Mutex<Vec<Answer>>,
    pub(super) deliveries: Mutex<Vec<PeerPush>>,
    pub(super) stops: Mutex<Vec<RoutedSession>>,
    /// Number of queries whether everything is archived.
    pub(super) settles: AtomicUsize,
    pub(super) best_effort: Mutex<Vec<BestEffortMessage>>,
    /// Repeated queries, with their callers.
    pub(super) asks: Mutex<Vec<(NodeBoot, Vec<Ask>)>>,
    /// Trace queries.
    pub(super) looks: Mutex<Vec<TraceFilter>>,
    /// Queries for figures.
    pub(super) figures_queries: Mutex<Vec<FiguresQuery>>,
    /// Queries for storms.
    pub(super) storms_queries: Mutex<Vec<StormsQuery>>,
    /// Calls about connections.
    pub(super) queries: Mutex<Vec<ConnectionQuery>>,
    /// Removals from live rooms.
    pub(super) removals: Mutex<Vec<RoomRemoval>>,
    /// Queries of live rooms.
    pub(super) room_queries: Mutex<Vec<RoomsQuery>>,
    pub(super) orders: Mutex<Vec<CloseOrder>>,
    pub(super) revocations: Mutex<Vec<Revocation>>,
    /// Errors of the next deliveries.
    pub(super) fails: Mutex<Vec<LinkError>>,
    /// Deliveries wait until it is closed, if it is set.
    gate: Mutex<Option<Arc<Semaphore>>>,
    /// Number of deliveries so far, held ones included.
    pub(super) begun: AtomicUsize,
    under_way: AtomicUsize,
    /// Highest number of concurrent answers and deliveries.
    pub(super) at_once: AtomicUsize,
}

/// Returns figures with each kind of row.
pub(super) fn figures() -> FiguresPage {
    let name = |name: &str| Some(node(name, 1).node);
    let flows = vec![
        Flow { from: name("n1"), to: name("there"), count: 3 },
        Flow { from: None, to: name("there"), count: 1 },
        Flow { from: name("there"), to: None, count: 2 },
    ];
    FiguresPage {
        now_ms: 1_763_712_009_123,
        stats: (1..=900)
            .map(|n| StatsRow { at_ms: n * 1_000, values: (0..40).map(|at| n << at).collect() })
            .collect(),
        stats_next: u64::MAX,
        codes: vec![CodesRow { at_ms: 10_000, counts: vec![(1_000, 1), (4_014, 7)] }],
        codes_next: 5,
        flows: vec![FlowsRow { at_ms: 1_000, flows }, FlowsRow { at_ms: 2_000, flows: Vec::new() }],
    }
}

/// Returns a watch in each phase, with and without a storm.
pub(super) fn storms() -> StormsPage {
    let view = |name: &str, phase, storm| StormView {
        conversation: group(name),
        phase,
        count: u32::MAX,
        threshold: 100,
        window_ms: 60_000,
        storm,
    };
    let storm = |profile| StormDetails { seq: u64::MAX, since_ms: 1_763_712_000_123, peak: 7, profile };
    let profile = StormParts { start_ms: 1_763_711_940_000, part_ms: 2_000, counts: (0..600).collect() };
    let storms = vec![
        view("a", StormPhase::Storm, Some(storm(Some(profile)))),
        view("b", StormPhase::Cooling, Some(storm(None))),
        view("c", StormPhase::Quiet, None),
        view("d", StormPhase::Unknown, None),
    ];
    StormsPage { storms, total: u64::MAX }
}

/// Returns the status of a record by its offset.
pub(super) fn status_of(offset: u64) -> AnswerStatus {
    match offset % 4 {
        0 => AnswerStatus::Answered(Outcome::Accepted { seq: offset, ordinal: 2, time: 3 }),
        1 => AnswerStatus::NotYet,
        2 => AnswerStatus::Forgotten,
        _ => AnswerStatus::NotOwner,
    }
}

/// Returns the steps of a trace.
pub(super) fn steps() -> Vec<TraceEvent> {
    let facts = Facts { msg: "m1", conversation: "d:ann:bob", seq: 7, user: "ann", device: "phone" };
    let first = TraceEvent::new(u128::MAX - 1, 5, Step::Received, facts, "attempt 0");
    vec![first, TraceEvent::new(u128::MAX - 1, 6, Step::NotAppended, Facts::default(), "")]
}

fn landing(target: &Target) -> Landing {
    let here = match target {
        Target::Conn(session) => session.epoch == HERE,
        Target::Anywhere(whose) => *whose == user("ann"),
    };
    if here { Landing::Delivered } else { Landing::NotHere }
}

impl End {
    /// Makes deliveries wait until the returned semaphore is closed.
    pub(super) fn hold(&self) -> Arc<Semaphore> {
        let gate = Arc::new(Semaphore::new(0));
        *self.gate.lock().unwrap() = Some(Arc::clone(&gate));
        gate
    }

    async fn in_order(&self) {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.at_once.fetch_max(now, Ordering::SeqCst);
        // A concurrent call would show here.
        tokio::task::yield_now().await;
    }

    fn done(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Link for End {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.in_order().await;
        self.answers.lock().unwrap().extend(answers);
        self.done();
        Ok(())
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<PeerPush>) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.in_order().await;
        self.begun.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            drop(gate.acquire().await);
        }
        let failure = self.fails.lock().unwrap().pop();
        let landings = deliveries.iter().map(|it| it.to.iter().map(landing).collect()).collect();
        self.deliveries.lock().unwrap().extend(deliveries);
        self.done();
        failure.map_or(Ok(landings), Err)
    }

    async fn stop_sessions(
        &self,
        _: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        let stopped = sessions.iter().map(|session| session.epoch == HERE).collect();
        self.stops.lock().unwrap().extend(sessions);
        Ok(stopped)
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        marks: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        self.settles.fetch_add(1, Ordering::SeqCst);
        let gate = self.gate.lock().unwrap().clone();
        if let Some(gate) = gate {
            drop(gate.acquire().await);
        }
        Ok(if marks.is_empty() { ArchiveStatus::ArchivedUpTo(level()) } else { ArchiveStatus::NotYet(marks) })
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        _: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        let words = asks.iter().map(|ask| status_of(ask.offset)).collect();
        self.asks.lock().unwrap().push((from.clone(), asks));
        Ok(words)
    }

    async fn send_best_effort(
        &self,
        _: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        tokio::task::yield_now().await;
        self.best_effort.lock().unwrap().extend(messages);
        Ok(())
    }

    async fn traces(&self, _: &NodeBoot, query: TraceFilter) -> Result<Vec<TraceEvent>, LinkError> {
        self.looks.lock().unwrap().push(query);
        Ok(steps())
    }

    async fn figures(&self, _: &NodeBoot, query: FiguresQuery) -> Result<FiguresPage, LinkError> {
        self.figures_queries.lock().unwrap().push(query);
        Ok(figures())
    }

    async fn storms(&self, _: &NodeBoot, query: StormsQuery) -> Result<StormsPage, LinkError> {
        self.storms_queries.lock().unwrap().push(query);
        Ok(storms())
    }

    async fn connections(&self, _: &NodeBoot, query: ConnectionQuery) -> Result<ConnectionPage, LinkError> {
        self.queries.lock().unwrap().push(query);
        Ok(super::connections::page())
    }

    async fn acks(&self, _: &NodeBoot, queries: Vec<AckQuery>) -> Result<Vec<Vec<DeviceAck>>, LinkError> {
        Ok(super::connections::acks(&queries))
    }

    async fn remove_from_room(&self, _: &NodeBoot, removal: RoomRemoval) -> Result<u64, LinkError> {
        self.removals.lock().unwrap().push(removal);
        Ok(2)
    }

    async fn rooms(&self, _: &NodeBoot, query: RoomsQuery) -> Result<RoomsPage, LinkError> {
        let page = super::rooms::page(&query);
        self.room_queries.lock().unwrap().push(query);
        Ok(page)
    }

    async fn close_connections(&self, _: &NodeBoot, order: CloseOrder) -> Result<u64, LinkError> {
        self.orders.lock().unwrap().push(order);
        Ok(3)
    }

    async fn revoke(&self, _: &NodeBoot, revocation: Revocation) -> Result<u64, LinkError> {
        self.revocations.lock().unwrap().push(revocation);
        Ok(4)
    }
}
