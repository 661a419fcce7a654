//! Link between the nodes of the world: a call is a letter, which a task of the receiver opens after a while.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate::{
    link::{
        Answer, AnswerStatus, ArchiveStatus, Ask, BestEffortMessage, Landing, Link, LinkError, PeerPush,
        PublishedMark, RoutedSession,
    },
    routes::NodeBoot,
};
use tidegate_protocol::id::NodeId;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// Time from a call to its reply, after which it is in doubt.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Most letters that wait at a node, for each lane.
const LETTERS_MAX: usize = 4_096;

/// Lane of a call: the calls of one lane keep their order, except queries.
#[derive(Clone, Copy)]
enum Lane {
    Ordered,
    BestEffort,
    Query,
}

type Call = Box<dyn FnOnce(Arc<dyn Link>) -> BoxFuture<'static, ()> + Send>;

/// Call on its way, with the time that it takes.
struct Letter {
    latency: Duration,
    call: Call,
}

/// Letter boxes of a run of a node: ordered calls, best effort, queries.
#[derive(Clone)]
struct LetterBox {
    boot: u64,
    lanes: [mpsc::Sender<Letter>; 3],
}

/// Network between the nodes; clones share it.
#[derive(Clone)]
pub(crate) struct Network(Arc<Mutex<State>>);

struct State {
    boxes: BTreeMap<NodeId, LetterBox>,
    rng: StdRng,
    /// Pairs of nodes that do not reach each other.
    cuts: Vec<(NodeId, NodeId)>,
    /// Longest latency of a call while nothing is broken, and now, in ms.
    usual_latency_max: u64,
    latency_max: u64,
    /// Calls whose answer is lost, per thousand.
    lost: u32,
}

/// Caller's end of one node.
pub(crate) struct WorldLink {
    me: NodeBoot,
    network: Network,
    calls: AtomicU64,
}

impl Network {
    /// Creates a network whose calls take that many ms at most while nothing is broken.
    pub(crate) fn new(seed: u64, usual_latency_max: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let (boxes, cuts, latency_max) = (BTreeMap::new(), Vec::new(), usual_latency_max);
        let state = State { boxes, rng, cuts, usual_latency_max, latency_max, lost: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Returns the caller's end of a node.
    pub(crate) fn link(&self, me: NodeBoot) -> Arc<WorldLink> {
        Arc::new(WorldLink { me, network: self.clone(), calls: AtomicU64::new(0) })
    }

    /// Serves the calls to a node by its handler. Must run in the runtime of the node, which ends the service.
    pub(crate) fn serve(&self, me: &NodeBoot, handler: Arc<dyn Link>) {
        let open = |lane: Lane| {
            let (sender, mut letters) = mpsc::channel::<Letter>(LETTERS_MAX);
            let handler = Arc::clone(&handler);
            tokio::spawn(async move {
                while let Some(Letter { latency, call }) = letters.recv().await {
                    if matches!(lane, Lane::Query) {
                        let handler = Arc::clone(&handler);
                        tokio::spawn(async move {
                            crate::pass(latency).await;
                            call(handler).await;
                        });
                    } else {
                        crate::pass(latency).await;
                        call(Arc::clone(&handler)).await;
                    }
                }
            });
            sender
        };
        let lanes = [Lane::Ordered, Lane::BestEffort, Lane::Query].map(open);
        self.0.lock().boxes.insert(me.node.clone(), LetterBox { boot: me.boot, lanes });
    }

    /// Forgets a node that has ended.
    pub(crate) fn remove(&self, me: &NodeBoot) {
        self.0.lock().boxes.remove(&me.node);
    }

    /// Cuts two nodes off from each other.
    pub(crate) fn cut(&self, one: &NodeId, other: &NodeId) {
        let mut state = self.0.lock();
        state.cuts.push((one.clone(), other.clone()));
        state.cuts.push((other.clone(), one.clone()));
    }

    /// Slows calls down, and loses some answers.
    pub(crate) fn degrade(&self, latency_max: u64, lost: u32) {
        let mut state = self.0.lock();
        (state.latency_max, state.lost) = (latency_max, lost);
    }

    pub(crate) fn heal(&self) {
        let mut state = self.0.lock();
        state.cuts.clear();
        (state.latency_max, state.lost) = (state.usual_latency_max, 0);
    }
}

/// Way of one call, as drawn when it begins.
enum Way {
    To(mpsc::Sender<Letter>, Duration, bool),
    Cut,
}

impl WorldLink {
    fn way(&self, to: &NodeBoot, lane: Lane) -> Result<Way, LinkError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut state = self.network.0.lock();
        let latency_max = state.latency_max;
        let latency = Duration::from_micros(state.rng.random_range(0..=latency_max * 1_000));
        let lost = state.lost;
        let is_lost = state.rng.random_ratio(lost, 1_000);
        if state.cuts.contains(&(self.me.node.clone(), to.node.clone())) {
            return Ok(Way::Cut);
        }
        match state.boxes.get(&to.node) {
            Some(found) if found.boot == to.boot => {
                Ok(Way::To(found.lanes[lane as usize].clone(), latency, is_lost))
            }
            Some(_) => Err(LinkError::NotHere),
            None => Err(LinkError::Unavailable("connection refused".to_owned())),
        }
    }

    async fn call<T: Send + 'static>(
        &self,
        to: &NodeBoot,
        lane: Lane,
        work: impl FnOnce(Arc<dyn Link>) -> BoxFuture<'static, Result<T, LinkError>> + Send + 'static,
    ) -> Result<T, LinkError> {
        let late = || Err(LinkError::Unknown("no reply in time".to_owned()));
        let Way::To(lane, latency, is_lost) = self.way(to, lane)? else {
            crate::pass(CALL_TIMEOUT).await;
            return late();
        };
        let (answer, answered) = oneshot::channel();
        let call: Call = Box::new(move |handler| {
            Box::pin(async move {
                let result = work(handler).await;
                // The caller may have given up.
                drop(answer.send(result));
            })
        });
        if lane.try_send(Letter { latency, call }).is_err() {
            return Err(LinkError::Unavailable("the queue to the peer is full".to_owned()));
        }
        let answer = timeout(CALL_TIMEOUT, answered).await;
        match answer {
            Ok(Ok(result)) if !is_lost => result,
            Ok(_) if is_lost => {
                crate::pass(CALL_TIMEOUT).await;
                late()
            }
            // The receiver has ended in between.
            Ok(_) => Err(LinkError::Unknown("the connection broke".to_owned())),
            Err(_) => late(),
        }
    }
}

#[async_trait]
impl Link for WorldLink {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        let at = to.clone();
        self.call(to, Lane::Ordered, |it| Box::pin(async move { it.answers(&at, answers).await })).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<PeerPush>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        let at = to.clone();
        self.call(to, Lane::Ordered, |it| Box::pin(async move { it.deliver(&at, deliveries).await })).await
    }

    async fn stop_sessions(
        &self,
        to: &NodeBoot,
        sessions: Vec<RoutedSession>,
    ) -> Result<Vec<bool>, LinkError> {
        let at = to.clone();
        self.call(to, Lane::Query, |it| Box::pin(async move { it.stop_sessions(&at, sessions).await })).await
    }

    async fn archive_status(
        &self,
        to: &NodeBoot,
        marks: Vec<PublishedMark>,
        within: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        let at = to.clone();
        self.call(to, Lane::Query, move |it| {
            Box::pin(async move { it.archive_status(&at, marks, within).await })
        })
        .await
    }

    async fn answers_again(
        &self,
        from: &NodeBoot,
        to: &NodeBoot,
        asks: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        let (from, at) = (from.clone(), to.clone());
        self.call(to, Lane::Query, |it| Box::pin(async move { it.answers_again(&from, &at, asks).await }))
            .await
    }

    async fn send_best_effort(
        &self,
        to: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        let at = to.clone();
        self.call(to, Lane::BestEffort, |it| {
            Box::pin(async move { it.send_best_effort(&at, messages).await })
        })
        .await
    }
}
