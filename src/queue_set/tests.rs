//! Bounds of a queue, and what remains after it has ended.

use tidegate_protocol::id::NodeId;

use super::*;

type Set = QueueSet<u8, Mutex<u32>>;

fn peer(n: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new("n1").unwrap(), boot: n }
}

/// Starts a task that counts the items and sends none.
fn start(mut queue: Queue<u8, Mutex<u32>>) {
    tokio::spawn(async move {
        while let Some(Next::Item(bytes)) = queue.next(None).await {
            *queue.state.lock() += 1;
            queue.release(bytes.into());
        }
    });
}

#[tokio::test(start_paused = true)]
async fn queue_is_bounded_and_an_oversized_item_fits_alone() {
    let set = Set::new(3, EndedQueues::Drop);
    assert!(set.send(&peer(1), 200, 200, 100, start).is_ok());
    assert!(matches!(set.send(&peer(1), 1, 1, 100, start), Err(Rejected::Full(1))), "bytes");
    assert!(set.send(&peer(2), 1, 1, 100, start).is_ok(), "another peer is not delayed");
    time::sleep(Duration::from_millis(1)).await;
    assert!(set.is_empty());
    for _ in 0..3 {
        assert!(set.send(&peer(1), 1, 1, 100, start).is_ok());
    }
    assert!(matches!(set.send(&peer(1), 9, 9, 100, start), Err(Rejected::Full(9))), "items");
    assert_eq!(set.queued_bytes(&peer(1)), 3, "a rejected item is not charged");
}

#[tokio::test(start_paused = true)]
async fn idle_queue_ends_and_keeps_its_state_only_if_asked_to() {
    for (ended, kept) in [(EndedQueues::Drop, 0), (EndedQueues::KeepState, 1)] {
        let set = Set::new(3, ended);
        assert!(set.send(&peer(1), 1, 1, 100, start).is_ok());
        time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
        assert!(!set.is_open(&peer(1)));
        assert_eq!(*set.state(&peer(1), start).lock(), kept);
        assert!(set.is_open(&peer(1)));
    }
}

#[tokio::test(start_paused = true)]
async fn idle_queue_takes_the_item_that_is_being_added() {
    let set = Set::new(3, EndedQueues::KeepState);
    assert!(set.send(&peer(1), 1, 1, 100, start).is_ok());
    let items = set.lock()[&peer(1)].items.clone();
    // A send on another thread that was stopped halfway.
    let adding = items.try_reserve().unwrap();
    time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
    assert!(!set.is_open(&peer(1)));
    adding.send(0);
    time::sleep(Duration::from_millis(1)).await;
    assert_eq!(*set.state(&peer(1), start).lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn ended_queues_are_removed() {
    let (dropping, keeping) = (Set::new(3, EndedQueues::Drop), Set::new(3, EndedQueues::KeepState));
    for set in [&dropping, &keeping] {
        assert!(set.send(&peer(1), 1, 1, 100, start).is_ok());
        time::sleep(QUEUE_IDLE_TIMEOUT * 2).await;
        assert!(set.send(&peer(2), 1, 1, 100, start).is_ok());
    }
    assert_eq!(dropping.peers(), [peer(2)]);
    assert_eq!(keeping.peers(), [peer(1), peer(2)]);
    keeping.forget_ended(|run| *run == peer(1));
    assert_eq!(keeping.peers(), [peer(1), peer(2)], "live, and open");
    keeping.forget_ended(|_| false);
    assert_eq!(keeping.peers(), [peer(2)]);
}
