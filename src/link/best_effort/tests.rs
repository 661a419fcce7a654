//! Best-effort queues are bounded, drop messages by priority, and report a room's losses.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tidegate_protocol::id::{NodeId, UserId};
use tokio::{sync::Semaphore, time};

use super::*;
use crate::{link::recording::RecordingPeer, metrics, queue_set::QUEUE_IDLE_TIMEOUT};

fn queues(peer: &Arc<RecordingPeer>) -> (Arc<BestEffortQueues>, NodeBoot) {
    let link: Arc<dyn Link> = peer.clone();
    let there = NodeBoot { node: NodeId::new("there").unwrap(), boot: 7 };
    (BestEffortQueues::new(link, Handle::current(), metrics::install().0), there)
}

fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

fn room_message(bytes: impl Into<Bytes>) -> BestEffortMessage {
    BestEffortMessage::RoomMessage { room: hall(), push: bytes.into(), class: 0, left_out: 0 }
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
        (0..500).map(|n| room_message(n.to_string())).chain([signal(), mark()]).collect();
    sent.iter().for_each(|message| queues.send(&there, message.clone()));
    settle().await;
    assert_eq!(peer.messages(), sent);
    assert!(peer.best_effort_calls.load(Ordering::SeqCst) < 10, "{:?}", peer.best_effort_calls);
    assert_eq!(queues.queues.queued_bytes(&there), 0);
}

#[tokio::test(start_paused = true)]
async fn stalled_peer_drops_signals_first_and_room_losses_are_counted() {
    let peer = Arc::new(RecordingPeer { gate: Some(Semaphore::new(0)), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    // One call is in flight and waits for the gate, then the queue fills up.
    queues.send(&there, room_message(vec![0; 8]));
    settle().await;
    for _ in 0..20 {
        queues.send(&there, room_message(vec![1; 256 * 1024]));
        queues.send(&there, signal());
        queues.send(&there, mark());
    }
    let waiting = queues.queues.queued_bytes(&there);
    assert!((ROOM_QUEUE_BYTES_MAX / 2..=MARK_QUEUE_BYTES_MAX).contains(&waiting), "{waiting}");
    peer.gate.as_ref().unwrap().add_permits(1_000);
    settle().await;
    let count = |of: fn(&BestEffortMessage) -> bool| peer.messages().iter().filter(|it| of(it)).count();
    let delivered = count(|message| matches!(message, BestEffortMessage::RoomMessage { .. }));
    assert_eq!(count(|message| matches!(message, BestEffortMessage::Mark { .. })), 20);
    assert_eq!(
        count(|message| matches!(message, BestEffortMessage::Signal { .. })),
        0,
        "signals have the lowest priority"
    );
    assert!((10..18).contains(&delivered), "{delivered}");
    let missed = peer.messages().iter().fold(0, |sum, message| match message {
        BestEffortMessage::RoomLoss { count, .. } => sum + count,
        _ => sum,
    });
    assert_eq!(delivered as u64 + missed, 21);
    assert_eq!(queues.queues.queued_bytes(&there), 0, "the queue is empty again");
}

#[tokio::test(start_paused = true)]
async fn losses_at_a_refusing_peer_are_reported_later() {
    let peer = Arc::new(RecordingPeer { rejects_best_effort: true.into(), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    for n in 0..3_u8 {
        queues.send(&there, room_message(vec![n]));
        settle().await;
    }
    assert!(peer.messages().is_empty());
    peer.rejects_best_effort.store(false, Ordering::SeqCst);
    queues.send(&there, room_message("new"));
    settle().await;
    let expected = [BestEffortMessage::RoomLoss { room: hall(), count: 3 }, room_message("new")];
    assert_eq!(peer.messages(), expected);
    // Losses are reported without further messages too, but not indefinitely.
    peer.rejects_best_effort.store(true, Ordering::SeqCst);
    queues.send(&there, room_message("lost"));
    time::sleep(LOSS_REPORT_INTERVAL * 2).await;
    peer.rejects_best_effort.store(false, Ordering::SeqCst);
    time::sleep(LOSS_REPORT_INTERVAL * 2).await;
    assert_eq!(peer.messages().last(), Some(&BestEffortMessage::RoomLoss { room: hall(), count: 1 }));
    let calls = peer.best_effort_calls.load(Ordering::SeqCst);
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert_eq!(peer.best_effort_calls.load(Ordering::SeqCst), calls);
}

#[tokio::test(start_paused = true)]
async fn idle_queue_ends_and_starts_again() {
    let peer = Arc::new(RecordingPeer::default());
    let (queues, there) = queues(&peer);
    queues.send(&there, room_message("1"));
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert!(!queues.queues.is_open(&there));
    queues.send(&there, room_message("2"));
    settle().await;
    assert_eq!(peer.messages(), [room_message("1"), room_message("2")]);
}

#[tokio::test(start_paused = true)]
async fn ended_run_is_removed_and_live_run_keeps_its_losses() {
    let peer = Arc::new(RecordingPeer { rejects_best_effort: true.into(), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    let ended = NodeBoot { boot: 6, ..there.clone() };
    for run in [&ended, &there] {
        queues.send(run, room_message("lost"));
    }
    queues.forget_ended(|_| false);
    assert_eq!(queues.queues.peers().len(), 2, "open queues stay");
    time::sleep(QUEUE_IDLE_TIMEOUT * 3).await;
    queues.forget_ended(|run| *run == there);
    assert_eq!(queues.queues.peers(), std::slice::from_ref(&there));
    peer.rejects_best_effort.store(false, Ordering::SeqCst);
    queues.send(&there, room_message("new"));
    settle().await;
    assert_eq!(
        peer.messages(),
        [BestEffortMessage::RoomLoss { room: hall(), count: 1 }, room_message("new")]
    );
}

#[tokio::test(start_paused = true)]
async fn numbers_of_left_out_messages_are_reported_later() {
    let peer = Arc::new(RecordingPeer { rejects_best_effort: true.into(), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    let report = |push: &'static str, left_out| BestEffortMessage::RoomMessage {
        room: hall(),
        push: push.into(),
        class: 0,
        left_out,
    };
    queues.send(&there, report("lost", 4));
    settle().await;
    queues.send(&there, report("", 3));
    settle().await;
    peer.rejects_best_effort.store(false, Ordering::SeqCst);
    queues.send(&there, room_message("new"));
    settle().await;
    let lost = BestEffortMessage::RoomLoss { room: hall(), count: 1 };
    assert_eq!(
        peer.messages(),
        [lost, report("", 7), room_message("new")],
        "a number alone is no lost message"
    );
}

#[tokio::test(start_paused = true)]
async fn tallies_are_dropped_long_before_messages_of_rooms() {
    let peer = Arc::new(RecordingPeer { gate: Some(Semaphore::new(0)), ..RecordingPeer::default() });
    let (queues, there) = queues(&peer);
    queues.send(&there, room_message(vec![0; 8]));
    settle().await;
    for _ in 0..10_000 {
        queues.send(&there, BestEffortMessage::RoomTally { room: hall(), tally: Box::default() });
    }
    let waiting = queues.queues.queued_bytes(&there);
    assert!((TALLY_QUEUE_BYTES_MAX / 2..=TALLY_QUEUE_BYTES_MAX).contains(&waiting), "{waiting}");
    queues.send(&there, room_message("hi"));
    assert!(queues.queues.queued_bytes(&there) > waiting, "a message of a room fits");
}
