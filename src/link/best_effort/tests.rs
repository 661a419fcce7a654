//! Best-effort queues are bounded, drop messages by priority, and report a room's losses.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::id::{NodeId, UserId};
use tokio::{sync::Semaphore, time};

use super::*;
use crate::{
    link::{
        Answer, AnswerStatus, ArchiveStatus, ArchivedUpTo, Ask, Delivery, Landing, PublishedMark, Session,
    },
    metrics,
    queue_set::QUEUE_IDLE_TIMEOUT,
};

/// Peer that records the messages it receives.
#[derive(Default)]
struct RecordingPeer {
    messages: Mutex<Vec<BestEffortMessage>>,
    calls: AtomicUsize,
    /// Whether it rejects these calls, like a node of an older version.
    refuses: AtomicBool,
    /// Gate whose permits the calls wait for, if set.
    gate: Option<Semaphore>,
}

#[async_trait]
impl Link for RecordingPeer {
    async fn send_best_effort(
        &self,
        _: &NodeBoot,
        messages: Vec<BestEffortMessage>,
    ) -> Result<(), LinkError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        if self.refuses.load(Ordering::SeqCst) {
            return Err(LinkError::Unavailable("malformed call, perhaps of a newer version".to_owned()));
        }
        self.messages.lock().extend(messages);
        Ok(())
    }
    async fn answers(&self, _: &NodeBoot, _: Vec<Answer>) -> Result<(), LinkError> {
        Ok(())
    }
    async fn deliver(&self, _: &NodeBoot, _: Vec<Delivery>) -> Result<Vec<Vec<Landing>>, LinkError> {
        Ok(Vec::new())
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
}

fn queues(peer: &Arc<RecordingPeer>) -> (Arc<BestEffortQueues>, NodeBoot) {
    let link: Arc<dyn Link> = peer.clone();
    let there = NodeBoot { node: NodeId::new("there").unwrap(), boot: 7 };
    (BestEffortQueues::new(link, Handle::current(), metrics::install().0), there)
}

fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

fn talk(bytes: impl Into<Bytes>) -> BestEffortMessage {
    BestEffortMessage::RoomMessage { room: hall(), push: bytes.into() }
}

fn signal() -> BestEffortMessage {
    let users = vec![UserId::new("ann").unwrap()];
    BestEffortMessage::Signal {
        conversation: ConversationId::parse("d:ann:bob").unwrap(),
        users,
        frame: "s".into(),
    }
}

fn mark() -> BestEffortMessage {
    let conversation = ConversationId::parse("d:ann:bob").unwrap();
    BestEffortMessage::Mark { conversation, user: UserId::new("ann").unwrap(), seq: 1, frame: "m".into() }
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn messages_arrive_in_order_and_batched() {
    let peer = Arc::new(RecordingPeer::default());
    let (queues, there) = queues(&peer);
    let sent: Vec<BestEffortMessage> =
        (0..500).map(|n| talk(n.to_string())).chain([signal(), mark()]).collect();
    sent.iter().for_each(|message| queues.send(&there, message.clone()));
    settle().await;
    assert_eq!(*peer.messages.lock(), sent);
    assert!(peer.calls.load(Ordering::SeqCst) < 10, "{:?}", peer.calls);
    assert_eq!(queues.queues.queued_bytes(&there), 0);
}

#[tokio::test(start_paused = true)]
async fn stalled_peer_drops_signals_first_and_room_losses_are_counted() {
    let peer = Arc::new(RecordingPeer { gate: Some(Semaphore::new(0)), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    // One call is in flight and waits for the gate, then the queue fills up.
    queues.send(&there, talk(vec![0; 8]));
    settle().await;
    for _ in 0..20 {
        queues.send(&there, talk(vec![1; 256 * 1024]));
        queues.send(&there, signal());
        queues.send(&there, mark());
    }
    let waiting = queues.queues.queued_bytes(&there);
    assert!((ROOM_QUEUE_BYTES_MAX / 2..=MARK_QUEUE_BYTES_MAX).contains(&waiting), "{waiting}");
    peer.gate.as_ref().unwrap().add_permits(1_000);
    settle().await;
    let count = |of: fn(&BestEffortMessage) -> bool| peer.messages.lock().iter().filter(|it| of(it)).count();
    let delivered = count(|message| matches!(message, BestEffortMessage::RoomMessage { .. }));
    assert_eq!(count(|message| matches!(message, BestEffortMessage::Mark { .. })), 20);
    assert_eq!(
        count(|message| matches!(message, BestEffortMessage::Signal { .. })),
        0,
        "signals have the lowest priority"
    );
    assert!((10..18).contains(&delivered), "{delivered}");
    let missed = peer.messages.lock().iter().fold(0, |sum, message| match message {
        BestEffortMessage::RoomLoss { count, .. } => sum + count,
        _ => sum,
    });
    assert_eq!(delivered as u64 + missed, 21);
    assert_eq!(queues.queues.queued_bytes(&there), 0, "the queue is empty again");
}

#[tokio::test(start_paused = true)]
async fn losses_at_a_refusing_peer_are_reported_later() {
    let peer = Arc::new(RecordingPeer { refuses: true.into(), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    for n in 0..3_u8 {
        queues.send(&there, talk(vec![n]));
        settle().await;
    }
    assert!(peer.messages.lock().is_empty());
    peer.refuses.store(false, Ordering::SeqCst);
    queues.send(&there, talk("new"));
    settle().await;
    let expected = [BestEffortMessage::RoomLoss { room: hall(), count: 3 }, talk("new")];
    assert_eq!(*peer.messages.lock(), expected);
    // Losses are reported without further messages too, but not indefinitely.
    peer.refuses.store(true, Ordering::SeqCst);
    queues.send(&there, talk("lost"));
    time::sleep(LOSS_REPORT_INTERVAL * 2).await;
    peer.refuses.store(false, Ordering::SeqCst);
    time::sleep(LOSS_REPORT_INTERVAL * 2).await;
    assert_eq!(peer.messages.lock().last(), Some(&BestEffortMessage::RoomLoss { room: hall(), count: 1 }));
    let calls = peer.calls.load(Ordering::SeqCst);
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert_eq!(peer.calls.load(Ordering::SeqCst), calls);
}

#[tokio::test(start_paused = true)]
async fn idle_queue_ends_and_starts_again() {
    let peer = Arc::new(RecordingPeer::default());
    let (queues, there) = queues(&peer);
    queues.send(&there, talk("1"));
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert!(!queues.queues.is_open(&there));
    queues.send(&there, talk("2"));
    settle().await;
    assert_eq!(*peer.messages.lock(), [talk("1"), talk("2")]);
}

#[tokio::test(start_paused = true)]
async fn ended_run_is_removed_and_live_run_keeps_its_losses() {
    let peer = Arc::new(RecordingPeer { refuses: true.into(), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    let ended = NodeBoot { boot: 6, ..there.clone() };
    for run in [&ended, &there] {
        queues.send(run, talk("lost"));
    }
    queues.forget_ended(|_| false);
    assert_eq!(queues.queues.peers().len(), 2, "open queues stay");
    time::sleep(QUEUE_IDLE_TIMEOUT * 3).await;
    queues.forget_ended(|run| *run == there);
    assert_eq!(queues.queues.peers(), [there.clone()]);
    peer.refuses.store(false, Ordering::SeqCst);
    queues.send(&there, talk("new"));
    settle().await;
    assert_eq!(*peer.messages.lock(), [BestEffortMessage::RoomLoss { room: hall(), count: 1 }, talk("new")]);
}
