//! What may be lost is bounded for each peer, is dropped in its order of worth, and what a room lost is told.

use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use bytes::Bytes;
use tidegate_protocol::id::{NodeId, UserId};
use tokio::sync::Semaphore;

use super::*;
use crate::{
    link::{Answer, Ask, Delivery, Landing, Level, Session, Settled, Told, Word},
    metrics,
};

/// A peer that writes down what strays come.
#[derive(Default)]
struct End {
    strays: Mutex<Vec<Stray>>,
    calls: AtomicUsize,
    /// Takes no strays, as a node of an older version.
    refuses: AtomicBool,
    /// Calls wait for a permit, where there is one.
    gate: Option<Semaphore>,
}

#[async_trait]
impl Link for End {
    async fn strays(&self, _: &NodeBoot, strays: Vec<Stray>) -> Result<(), LinkError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            gate.acquire().await.unwrap().forget();
        }
        if self.refuses.load(Ordering::SeqCst) {
            return Err(LinkError::Unavailable("a malformed call, perhaps of a newer version".to_owned()));
        }
        self.strays.lock().unwrap().extend(strays);
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
    async fn settled(&self, _: &NodeBoot, _: Vec<Told>, _: Duration) -> Result<Settled, LinkError> {
        Ok(Settled::Level(Level::default()))
    }
    async fn answers_again(&self, _: &NodeBoot, _: &NodeBoot, _: Vec<Ask>) -> Result<Vec<Word>, LinkError> {
        Ok(Vec::new())
    }
}

fn lanes(end: &Arc<End>) -> (Arc<StrayLanes>, NodeBoot) {
    let link: Arc<dyn Link> = end.clone();
    let there = NodeBoot { node: NodeId::new("there").unwrap(), boot: 7 };
    (StrayLanes::new(link, Handle::current(), metrics::install().0), there)
}

fn hall() -> ConversationId {
    ConversationId::parse("r:hall").unwrap()
}

fn talk(bytes: impl Into<Bytes>) -> Stray {
    Stray::Talk { room: hall(), push: bytes.into() }
}

fn signal() -> Stray {
    let users = vec![UserId::new("ann").unwrap()];
    Stray::Signal { conversation: ConversationId::parse("d:ann:bob").unwrap(), users, frame: "s".into() }
}

fn mark() -> Stray {
    let conversation = ConversationId::parse("d:ann:bob").unwrap();
    Stray::Mark { conversation, user: UserId::new("ann").unwrap(), seq: 1, frame: "m".into() }
}

async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn strays_come_in_order_and_many_in_a_call() {
    let end = Arc::new(End::default());
    let (lanes, there) = lanes(&end);
    let sent: Vec<Stray> = (0..500).map(|n| talk(n.to_string())).chain([signal(), mark()]).collect();
    sent.iter().for_each(|stray| lanes.send(&there, stray.clone()));
    settle().await;
    assert_eq!(*end.strays.lock().unwrap(), sent);
    assert!(end.calls.load(Ordering::SeqCst) < 10, "{:?}", end.calls);
    assert_eq!(lanes.lane(&there).waiting.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_stands_still_costs_a_bound_signals_go_first_and_what_a_room_lost_is_told() {
    let end = Arc::new(End { gate: Some(Semaphore::new(0)), ..End::default() });
    let (lanes, there) = lanes(&end);
    // One call is under way, and waits; then the lane fills up.
    lanes.send(&there, talk(vec![0; 8]));
    settle().await;
    for _ in 0..20 {
        lanes.send(&there, talk(vec![1; 256 * 1024]));
        lanes.send(&there, signal());
        lanes.send(&there, mark());
    }
    let waiting = lanes.lane(&there).waiting.load(Ordering::SeqCst);
    assert!((TALK_BYTES / 2..=MARK_BYTES).contains(&waiting), "{waiting}");
    end.gate.as_ref().unwrap().add_permits(1_000);
    settle().await;
    let count = |of: fn(&Stray) -> bool| end.strays.lock().unwrap().iter().filter(|it| of(it)).count();
    let talked = count(|stray| matches!(stray, Stray::Talk { .. }));
    assert_eq!(count(|stray| matches!(stray, Stray::Mark { .. })), 20);
    assert_eq!(
        count(|stray| matches!(stray, Stray::Signal { .. })),
        0,
        "there were better things to wait for"
    );
    assert!((10..18).contains(&talked), "{talked}");
    let missed = end.strays.lock().unwrap().iter().fold(0, |sum, stray| match stray {
        Stray::Missed { count, .. } => sum + count,
        _ => sum,
    });
    assert_eq!(talked as u64 + missed, 21);
    assert_eq!(lanes.lane(&there).waiting.load(Ordering::SeqCst), 0, "all room is given back");
}

#[tokio::test(start_paused = true)]
async fn a_peer_of_an_older_version_costs_what_it_does_not_take_and_hears_of_it_later() {
    let end = Arc::new(End { refuses: true.into(), ..End::default() });
    let (lanes, there) = lanes(&end);
    for n in 0..3_u8 {
        lanes.send(&there, talk(vec![n]));
        settle().await;
    }
    assert!(end.strays.lock().unwrap().is_empty());
    end.refuses.store(false, Ordering::SeqCst);
    lanes.send(&there, talk("new"));
    settle().await;
    let expected = [Stray::Missed { room: hall(), count: 3 }, talk("new")];
    assert_eq!(*end.strays.lock().unwrap(), expected);
    // Without anything to say, it is told all the same, and not for ever.
    end.refuses.store(true, Ordering::SeqCst);
    lanes.send(&there, talk("lost"));
    time::sleep(AGAIN * 2).await;
    end.refuses.store(false, Ordering::SeqCst);
    time::sleep(AGAIN * 2).await;
    assert_eq!(end.strays.lock().unwrap().last(), Some(&Stray::Missed { room: hall(), count: 1 }));
    let calls = end.calls.load(Ordering::SeqCst);
    time::sleep(IDLE * 2).await;
    assert_eq!(end.calls.load(Ordering::SeqCst), calls);
}

#[tokio::test(start_paused = true)]
async fn a_lane_that_ended_for_want_of_traffic_begins_again() {
    let end = Arc::new(End::default());
    let (lanes, there) = lanes(&end);
    lanes.send(&there, talk("1"));
    time::sleep(IDLE * 2).await;
    assert!(lanes.lanes.lock().unwrap()[&there].strays.is_closed());
    lanes.send(&there, talk("2"));
    settle().await;
    assert_eq!(*end.strays.lock().unwrap(), [talk("1"), talk("2")]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_is_forgotten_and_one_that_lives_is_still_owed_what_it_missed() {
    let end = Arc::new(End { refuses: true.into(), ..End::default() });
    let (lanes, there) = lanes(&end);
    let over = NodeBoot { boot: 6, ..there.clone() };
    for run in [&over, &there] {
        lanes.send(run, talk("lost"));
    }
    lanes.forget_ended(|_| false);
    assert_eq!(lanes.lanes.lock().unwrap().len(), 2, "what is under way goes on");
    time::sleep(IDLE * 3).await;
    lanes.forget_ended(|run| *run == there);
    assert_eq!(lanes.lanes.lock().unwrap().keys().collect::<Vec<_>>(), [&there]);
    end.refuses.store(false, Ordering::SeqCst);
    lanes.send(&there, talk("new"));
    settle().await;
    assert_eq!(*end.strays.lock().unwrap(), [Stray::Missed { room: hall(), count: 1 }, talk("new")]);
}
