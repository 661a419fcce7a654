//! How partitions change hands on a real broker: soon, and for a moment only nobody's.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    bus::{Bus, Ownership, OwnershipEvent},
    config::Kafka,
};

use crate::{
    bus::World,
    kafka::{ensure, open, settings},
    node,
    time::Stopwatch,
};

async fn told(ownership: &mut Box<dyn Ownership>) -> Option<OwnershipEvent> {
    tokio::time::timeout(Duration::from_secs(20), ownership.next()).await.expect("the owner is told")
}

#[tokio::test]
async fn an_owner_keeps_a_partition_until_the_node_that_came_can_take_it() {
    let kafka = settings();
    ensure(&kafka).await;
    let first = World { bus: Arc::new(open(&kafka).await), me: node("a", 1) };
    let second = open(&kafka).await;
    let mut mine = first.own_all().await;
    let began = Instant::now();
    let mut theirs = second.join(&node("b", 1)).await.unwrap();
    let Some(OwnershipEvent::Revoked(moved)) = told(&mut mine).await else { panic!("it is asked back") };
    // The one that came has joined after `began`, and does so again a second later at the soonest.
    assert!(began.elapsed() >= Duration::from_millis(650), "{:?}", began.elapsed());
    mine.release(moved).await;
    assert_eq!(told(&mut theirs).await, Some(OwnershipEvent::Assigned(moved)));
}

/// Gives back whatever is asked, until the other has so many.
async fn hand_over(mine: &mut Box<dyn Ownership>, theirs: &mut Box<dyn Ownership>, count: usize) -> Duration {
    let (began, mut taken) = (Stopwatch::start(), 0);
    let mut over = false;
    while taken < count {
        tokio::select! {
            event = told(mine), if !over => match event {
                Some(OwnershipEvent::Revoked(partition)) => mine.release(partition).await,
                Some(other) => panic!("{other:?}"),
                None => over = true,
            },
            event = told(theirs) => match event {
                Some(OwnershipEvent::Assigned(_)) => taken += 1,
                other => panic!("{other:?}"),
            },
        }
    }
    began.elapsed()
}

/// As many as a cluster has unless it says otherwise. The library has more to say the more there are, and says one thing at a
/// time: a plan that waits for all of it takes as long as a crash.
#[tokio::test]
async fn many_partitions_change_hands_as_soon_as_few() {
    let kafka = Kafka { partitions: 64, session_ms: 60_000, ..settings() };
    ensure(&kafka).await;
    let first = World { bus: Arc::new(open(&kafka).await), me: node("a", 1) };
    let second = open(&kafka).await;
    let mut mine = first.own_all().await;
    let mut theirs = second.join(&node("b", 1)).await.unwrap();
    let came = hand_over(&mut mine, &mut theirs, 32).await;
    mine.leave().await;
    let left = hand_over(&mut mine, &mut theirs, 32).await;
    // Alone it takes a second or two; a crash would be noticed after the session timeout, a minute.
    assert!(came < Duration::from_secs(4) && left < Duration::from_secs(3), "{came:?}, {left:?}");
    println!("half of 64 partitions went over in {came:?}, the other half in {left:?}");
}
