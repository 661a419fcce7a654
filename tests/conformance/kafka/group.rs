//! Handover of partitions on a real broker: soon, with no more than a moment without an owner.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    bus::{Bus, Ownership, OwnershipEvent},
    config::KafkaConfig,
};

use crate::{
    bus::World,
    kafka::{ensure, open, settings},
    node,
    time::Stopwatch,
};

async fn next_ownership_event(ownership: &mut Box<dyn Ownership>) -> Option<OwnershipEvent> {
    tokio::time::timeout(Duration::from_secs(20), ownership.next()).await.expect("an ownership event")
}

#[tokio::test]
async fn owner_keeps_a_partition_until_the_new_node_can_take_it() {
    let kafka = settings();
    ensure(&kafka).await;
    let first = World { bus: Arc::new(open(&kafka).await), me: node("a", 1) };
    let second = open(&kafka).await;
    let mut mine = first.own_all().await;
    let began = Instant::now();
    let mut theirs = second.join(&node("b", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(moved)) = next_ownership_event(&mut mine).await else {
        panic!("the partition is revoked")
    };
    // The new node has joined after `began`, and polls again a second later at the soonest.
    assert!(began.elapsed() >= Duration::from_millis(650), "{:?}", began.elapsed());
    mine.release(moved).await;
    assert_eq!(next_ownership_event(&mut theirs).await, Some(OwnershipEvent::Assigned(moved)));
}

/// Releases every revoked partition until the other node owns `count`.
async fn hand_over(mine: &mut Box<dyn Ownership>, theirs: &mut Box<dyn Ownership>, count: usize) -> Duration {
    let (began, mut taken) = (Stopwatch::start(), 0);
    let mut over = false;
    while taken < count {
        tokio::select! {
            event = next_ownership_event(mine), if !over => match event {
                Some(OwnershipEvent::Revoked(partition)) => mine.release(partition).await,
                Some(other) => panic!("{other:?}"),
                None => over = true,
            },
            event = next_ownership_event(theirs) => match event {
                Some(OwnershipEvent::Assigned(_)) => taken += 1,
                other => panic!("{other:?}"),
            },
        }
    }
    began.elapsed()
}

/// Default number of partitions of a cluster. The library has more events the more partitions there are, and reports
/// one at a time: a rebalance that waits for all of them takes as long as a crash.
#[tokio::test]
async fn many_partitions_are_handed_over_as_fast_as_few() {
    let kafka = KafkaConfig { partitions: 64, session_ms: 60_000, ..settings() };
    ensure(&kafka).await;
    let first = World { bus: Arc::new(open(&kafka).await), me: node("a", 1) };
    let second = open(&kafka).await;
    let mut mine = first.own_all().await;
    let mut theirs = second.join(&node("b", 1)).await.unwrap();
    let came = hand_over(&mut mine, &mut theirs, 32).await;
    mine.leave().await;
    let left = hand_over(&mut mine, &mut theirs, 32).await;
    // A handover takes a second or two; a crash is noticed after the session timeout, a minute.
    assert!(came < Duration::from_secs(4) && left < Duration::from_secs(3), "{came:?}, {left:?}");
    println!("half of 64 partitions went over in {came:?}, the other half in {left:?}");
}
