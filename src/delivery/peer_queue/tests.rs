//! Queues keep order, are bounded, do not wait for each other, and have stale routes removed.

use std::sync::atomic::Ordering;

use tidegate_protocol::{
    Time,
    id::{DeviceId, NodeId, UserId},
    machine::ledger::Outcome,
};

use super::*;
use crate::{
    link::recording::{RecordingPeer, RecordingPeers},
    metrics,
    ports::Ports,
    queue_set::QUEUE_IDLE_TIMEOUT,
    routes::{Leases, MemoryRoutes, Registration, Routes},
};

fn node(name: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).unwrap(), boot: 7 }
}

fn memory_routes() -> Arc<MemoryRoutes> {
    Arc::new(MemoryRoutes::new(1, Leases::default(), || Time::from_millis(1)))
}

fn peer_queues(peers: &[(NodeBoot, Arc<RecordingPeer>)], routes: Arc<MemoryRoutes>) -> Arc<PeerQueues> {
    let cluster = Cluster::new(
        node("me"),
        Ports { routes, ..Ports::in_memory(Arc::new(RecordingPeers(peers.iter().cloned().collect()))) },
    );
    PeerQueues::new(&Arc::new(cluster), metrics::install().0)
}

fn answer(request: u64) -> Answer {
    Answer { conn: 1, request, outcome: Outcome::Noted, traceparent: String::new() }
}

fn push(bytes: impl Into<bytes::Bytes>, epoch: u64) -> PeerPush {
    let (user, device) = (UserId::new("ann").unwrap(), DeviceId::new("d").unwrap());
    let to = vec![Target::Conn(RoutedSession { user, device, epoch })];
    PeerPush { push: bytes.into(), to, tracked: true, sent_by: None, traceparent: String::new() }
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn k7_settle_waits_for_lookups_and_for_slow_peers() {
    let peer = Arc::new(RecordingPeer { gate: Some(tokio::sync::Semaphore::new(0)), ..Default::default() });
    let queues = peer_queues(&[(node("n2"), Arc::clone(&peer))], memory_routes());
    queues.on_lookup_queued();
    let settled = tokio::spawn({
        let queues = Arc::clone(&queues);
        async move { queues.settle(Duration::from_secs(1)).await }
    });
    time::advance(Duration::from_millis(300)).await;
    assert!(!settled.is_finished(), "a lookup is under way");
    queues.pushes(&node("n2"), vec![push("last", 1)]);
    queues.on_looked_up(1);
    time::advance(Duration::from_millis(300)).await;
    assert!(!settled.is_finished(), "the peer has not answered");
    peer.gate.as_ref().unwrap().add_permits(1);
    settled.await.unwrap();
    assert_eq!(*peer.pushes.lock(), [b"last"]);
    // A peer that never answers delays a stop by the limit only.
    queues.pushes(&node("n2"), vec![push("more", 1)]);
    let begun = time::Instant::now();
    queues.settle(Duration::from_secs(1)).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn replies_stay_in_order_when_the_peer_accepts_the_third_try() {
    let (there, peer) = (node("there"), Arc::new(RecordingPeer::default()));
    peer.failures.store(2, Ordering::SeqCst);
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&peer))], memory_routes());
    for request in 0..100 {
        peer_queues.answers(&there, vec![answer(request)]);
    }
    time::sleep(PEER_RETRY_INTERVAL * 3).await;
    assert_eq!(*peer.requests.lock(), (0..100).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn stalled_peer_delays_no_other_and_its_queue_is_bounded() {
    let (slow, quick) = (node("slow"), node("quick"));
    let stuck = Arc::new(RecordingPeer { gate: Some(Semaphore::new(0)), ..RecordingPeer::default() });
    let peer = Arc::new(RecordingPeer::default());
    let peers = [(slow.clone(), Arc::clone(&stuck)), (quick.clone(), Arc::clone(&peer))];
    let peer_queues = peer_queues(&peers, memory_routes());
    for _ in 0..40 {
        peer_queues.pushes(&slow, vec![push(vec![0; 1 << 20], 1)]);
        peer_queues.pushes(&quick, vec![push(vec![1; 8], 1)]);
        settle().await;
    }
    assert_eq!(peer.pushes.lock().len(), 40);
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
    let (there, peer, routes) = (node("there"), Arc::new(RecordingPeer::default()), memory_routes());
    peer.is_empty.store(true, Ordering::SeqCst);
    let wish = Registration {
        user: UserId::new("ann").unwrap(),
        device: DeviceId::new("d").unwrap(),
        at: there.clone(),
        above: 0,
        only_if: None,
        policy: crate::routes::DevicePolicy::default(),
    };
    let old = routes.register(wish.clone()).await.unwrap().token;
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&peer))], Arc::clone(&routes));
    peer_queues.pushes(&there, vec![push("x", old.epoch)]);
    time::sleep(LOGIN_MAX / 2).await;
    let rows = || async { routes.lookup(&[UserId::new("ann").unwrap()]).await.unwrap()[0].len() };
    assert_eq!(rows().await, 1, "not at once: it may be logging in");
    time::sleep(LOGIN_MAX).await;
    assert_eq!(rows().await, 0);
    let pushes = peer.pushes.lock().clone();
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
    let (there, peer) = (node("there"), Arc::new(RecordingPeer::default()));
    let peer_queues = peer_queues(&[(there.clone(), Arc::clone(&peer))], memory_routes());
    peer_queues.answers(&there, vec![answer(1)]);
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert!(!peer_queues.queues.is_open(&there));
    peer_queues.answers(&there, vec![answer(2)]);
    settle().await;
    assert_eq!(*peer.requests.lock(), [1, 2]);
}

#[tokio::test(start_paused = true)]
async fn ended_runs_leave_no_queues() {
    let runs: Vec<NodeBoot> = (1..=50).map(|boot| NodeBoot { boot, ..node("there") }).collect();
    let peers: Vec<_> = runs.iter().map(|run| (run.clone(), Arc::new(RecordingPeer::default()))).collect();
    let peer_queues = peer_queues(&peers, memory_routes());
    for run in &runs {
        peer_queues.answers(run, vec![answer(1)]);
        time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    }
    assert_eq!(peer_queues.queues.peers(), [runs[49].clone()]);
}
