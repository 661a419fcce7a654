//! Queues keep order, are bounded, do not wait for each other, and have stale routes removed.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    id::{DeviceId, NodeId, UserId},
    machine::ledger::Outcome,
};

use super::*;
use crate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    link::{AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, BestEffortMessage, Link, PublishedMark},
    metrics,
    ports::Ports,
    queue_set::QUEUE_IDLE_TIMEOUT,
    routes::{Leases, MemoryRoutes, Registration, Routes},
    scratch::MemoryScratch,
    store::MemoryStore,
};

/// Peer that records what it receives.
#[derive(Default)]
struct End {
    requests: Mutex<Vec<u64>>,
    pushes: Mutex<Vec<Vec<u8>>>,
    /// Calls that fail before one succeeds.
    failures: AtomicUsize,
    /// Whether no target is connected.
    empty: AtomicBool,
    /// Permits that calls wait for, if any.
    gate: Option<Semaphore>,
}

#[async_trait]
impl Link for End {
    async fn answers(&self, _: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.wait().await?;
        self.requests.lock().extend(answers.iter().map(|answer| answer.request));
        Ok(())
    }

    async fn deliver(&self, _: &NodeBoot, deliveries: Vec<Delivery>) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.wait().await?;
        let landing = match self.empty.load(Ordering::SeqCst) {
            true => Landing::NotHere,
            false => Landing::Delivered,
        };
        self.pushes.lock().extend(deliveries.iter().map(|it| it.push.to_vec()));
        Ok(deliveries.iter().map(|it| vec![landing; it.to.len()]).collect())
    }

    async fn stop_sessions(&self, _: &NodeBoot, _: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        Ok(Vec::new())
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        _: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        Ok(ArchiveStatus::ArchivedUpTo(ArchivedUpTo::default()))
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        _: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        Ok(Vec::new())
    }

    async fn send_best_effort(&self, _: &NodeBoot, _: Vec<BestEffortMessage>) -> Result<(), LinkError> {
        Ok(())
    }
}

impl End {
    async fn wait(&self) -> Result<(), LinkError> {
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        let failing = self
            .failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        if failing { Err(LinkError::Unavailable("planned".to_owned())) } else { Ok(()) }
    }
}

/// Several peers reached through one link.
struct Ends(HashMap<NodeBoot, Arc<End>>);

#[async_trait]
impl Link for Ends {
    async fn answers(&self, to: &NodeBoot, answers: Vec<Answer>) -> Result<(), LinkError> {
        self.0[to].answers(to, answers).await
    }

    async fn deliver(
        &self,
        to: &NodeBoot,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<Vec<Landing>>, LinkError> {
        self.0[to].deliver(to, deliveries).await
    }

    async fn stop_sessions(&self, _: &NodeBoot, _: Vec<Session>) -> Result<Vec<bool>, LinkError> {
        Ok(Vec::new())
    }

    async fn archive_status(
        &self,
        _: &NodeBoot,
        _: Vec<PublishedMark>,
        _: Duration,
    ) -> Result<ArchiveStatus, LinkError> {
        Ok(ArchiveStatus::ArchivedUpTo(ArchivedUpTo::default()))
    }

    async fn answers_again(
        &self,
        _: &NodeBoot,
        _: &NodeBoot,
        _: Vec<Ask>,
    ) -> Result<Vec<AnswerStatus>, LinkError> {
        Ok(Vec::new())
    }

    async fn send_best_effort(&self, _: &NodeBoot, _: Vec<BestEffortMessage>) -> Result<(), LinkError> {
        Ok(())
    }
}

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 7 }
}

fn memory_routes() -> Arc<MemoryRoutes> {
    Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::from_millis(1)))
}

fn peer_queues(ends: &[(NodeBoot, Arc<End>)], routes: Arc<MemoryRoutes>) -> Arc<PeerQueues> {
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 1,
        max_bytes: 1,
        node_max_records: 1,
        node_max_bytes: 1,
    };
    let cluster = Cluster::new(
        node("me"),
        Ports {
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(MemoryStore::default()),
            routes,
            scratch: Arc::new(MemoryScratch::new(1, || Time::from_millis(1))),
            link: Arc::new(Ends(ends.iter().cloned().collect())),
        },
    );
    PeerQueues::new(&Arc::new(cluster), metrics::install().0)
}

fn answer(request: u64) -> Answer {
    Answer { conn: 1, request, outcome: Outcome::Noted, traceparent: String::new() }
}

fn push(bytes: impl Into<bytes::Bytes>, epoch: u64) -> Delivery {
    let (user, device) = (UserId::new("ann").unwrap(), DeviceId::new("d").unwrap());
    let to = vec![Target::Conn(Session { user, device, epoch })];
    Delivery { push: bytes.into(), to, tracked: true, sent_by: None, traceparent: String::new() }
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn replies_stay_in_order_when_the_peer_accepts_the_third_try() {
    let (there, end) = (node("there"), Arc::new(End::default()));
    end.failures.store(2, Ordering::SeqCst);
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&end))], memory_routes());
    for request in 0..100 {
        peer_queues.answers(&there, vec![answer(request)]);
    }
    time::sleep(PEER_RETRY_INTERVAL * 3).await;
    assert_eq!(*end.requests.lock(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn stalled_peer_delays_no_other_and_its_queue_is_bounded() {
    let (slow, quick) = (node("slow"), node("quick"));
    let stuck = Arc::new(End { gate: Some(Semaphore::new(0)), ..End::default() });
    let end = Arc::new(End::default());
    let ends = [(slow.clone(), Arc::clone(&stuck)), (quick.clone(), Arc::clone(&end))];
    let peer_queues = peer_queues(&ends, memory_routes());
    for _ in 0..40 {
        peer_queues.pushes(&slow, vec![push(vec![0; 1 << 20], 1)]);
        peer_queues.pushes(&quick, vec![push(vec![1; 8], 1)]);
        settle().await;
    }
    assert_eq!(end.pushes.lock().len(), 40);
    let waiting = peer_queues.queues.queued_bytes(&slow);
    assert!((1 << 20..=QUEUE_BYTES_MAX).contains(&waiting), "{waiting}");
    stuck.gate.as_ref().unwrap().add_permits(1_000);
    settle().await;
    peer_queues.pushes(&slow, vec![push(vec![2; 8], 1)]);
    settle().await;
    assert_eq!(stuck.pushes.lock().last().unwrap(), &[2; 8], "later pushes are sent");
    assert_eq!(peer_queues.queues.queued_bytes(&slow), 0, "all capacity is released");
}

#[tokio::test(start_paused = true)]
async fn stale_route_is_removed_after_a_recheck_by_its_full_token() {
    let (there, end, routes) = (node("there"), Arc::new(End::default()), memory_routes());
    end.empty.store(true, Ordering::SeqCst);
    let wish = Registration {
        user: UserId::new("ann").unwrap(),
        device: DeviceId::new("d").unwrap(),
        at: there.clone(),
        above: 0,
        only_if: None,
    };
    let old = routes.register(wish.clone()).await.unwrap().token;
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&end))], Arc::clone(&routes));
    peer_queues.pushes(&there, vec![push("x", old.epoch)]);
    time::sleep(LOGIN_MAX / 2).await;
    let rows = || async { routes.lookup(&[UserId::new("ann").unwrap()]).await.unwrap()[0].len() };
    assert_eq!(rows().await, 1, "not at once: it may be logging in");
    time::sleep(LOGIN_MAX).await;
    assert_eq!(rows().await, 0);
    let pushes = end.pushes.lock().clone();
    assert_eq!(
        pushes,
        [b"x".to_vec(), Vec::new()],
        "a missing client reads the store: nothing is pushed late"
    );
    // S1, S2: the late removal of an old route leaves the new one alone.
    routes.register(wish).await.unwrap();
    peer_queues.pushes(&there, vec![push("x", old.epoch)]);
    time::sleep(LOGIN_MAX * 2).await;
    assert_eq!(rows().await, 1);
}

#[tokio::test(start_paused = true)]
async fn idle_queue_ends_and_starts_again_with_the_next_batch() {
    let (there, end) = (node("there"), Arc::new(End::default()));
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&end))], memory_routes());
    peer_queues.answers(&there, vec![answer(1)]);
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert!(!peer_queues.queues.is_open(&there));
    peer_queues.answers(&there, vec![answer(2)]);
    settle().await;
    assert_eq!(*end.requests.lock(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn ended_runs_leave_no_queues() {
    let runs: Vec<NodeBoot> = (1..=50).map(|boot| NodeBoot { boot, ..node("there") }).collect();
    let ends: Vec<_> = runs.iter().map(|run| (run.clone(), Arc::new(End::default()))).collect();
    let peer_queues = peer_queues(&ends, memory_routes());
    for run in &runs {
        peer_queues.answers(run, vec![answer(1)]);
        time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    }
    assert_eq!(peer_queues.queues.peers(), [runs[49].clone()]);
}
