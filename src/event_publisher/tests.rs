//! Who is told to have left: over routes in memory, with faults, on a clock that runs ahead.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;
use serde_json::Value;
use tidegate_protocol::{
    Time,
    id::{DeviceId, NodeId, UserId},
};

use super::*;
use crate::{
    fault::{Fault, FaultPlan, Faulty},
    metrics,
    routes::{AnnouncedRoutes, Leases, MemoryRoutes, NodeBoot, Registration, Token},
};

/// A topic that may be away.
#[derive(Default)]
struct Topic {
    away: AtomicBool,
    told: Mutex<Vec<String>>,
}

#[async_trait]
impl EventSink for Topic {
    async fn publish(&self, events: Vec<(UserId, Vec<u8>)>) -> Result<(), AppendError> {
        if self.away.load(Ordering::SeqCst) {
            return Err(AppendError::Unknown("away".to_owned()));
        }
        let id = |text: &[u8]| {
            let said: Value = serde_json::from_slice(text).unwrap();
            format!("{} {}", said["subject"].as_str().unwrap(), said["id"].as_str().unwrap())
        };
        self.told.lock().unwrap().extend(events.iter().map(|(_, event)| id(event)));
        Ok(())
    }
}

struct World {
    memory: Arc<MemoryRoutes>,
    plan: Arc<FaultPlan>,
    events: Arc<Events>,
    topic: Arc<Topic>,
    routes: AnnouncedRoutes,
}

fn run(node: &str) -> NodeBoot {
    NodeBoot { node: NodeId::new(node).unwrap(), boot: 1 }
}

/// Node n1.
fn world() -> World {
    let memory = Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO));
    let plan = FaultPlan::none();
    let faulty: Arc<dyn Routes> =
        Arc::new(Faulty::<dyn Routes>::new(Arc::clone(&memory) as Arc<dyn Routes>, Arc::clone(&plan)));
    let (events, topic) = (Arc::new(Events::new("/tidegate/t", 1, 1 << 20)), Arc::new(Topic::default()));
    let announcer = Announcer {
        events: Arc::clone(&events),
        routes: Arc::clone(&faulty),
        sink: Some(Arc::clone(&topic) as Arc<dyn EventSink>),
        metrics: metrics::install().0,
    };
    tokio::spawn(Box::pin(announcer.run()));
    let routes = AnnouncedRoutes::new(faulty, Arc::clone(&events), run("n1"));
    World { memory, plan, events, topic, routes }
}

fn wish(user: &str, at: &str) -> Registration {
    Registration {
        user: UserId::new(user).unwrap(),
        device: DeviceId::new("phone").unwrap(),
        at: run(at),
        above: 0,
        only_if: None,
    }
}

impl World {
    async fn login(&self, user: &str) -> Route {
        let wish = wish(user, "n1");
        let (user, device) = (wish.user.clone(), wish.device.clone());
        Route { user, device, token: self.routes.register(wish).await.unwrap().token }
    }

    /// Not through this node.
    async fn login_elsewhere(&self, user: &str) -> Token {
        self.memory.register(wish(user, "n2")).await.unwrap().token
    }

    /// Offlines that were told, with their user.
    async fn offlines(&self, after: Duration) -> Vec<String> {
        let mut ticks = time::interval(after);
        ticks.tick().await;
        ticks.tick().await;
        let told = self.topic.told.lock().unwrap();
        told.iter().filter(|it| it.contains("offline")).cloned().collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn left(row: &Route) -> String {
    format!("{} offline/{}", row.user, row.token)
}

#[tokio::test(start_paused = true)]
async fn a_device_that_moved_to_a_newer_connection_is_not_told_to_have_left() {
    let world = world();
    let old = world.login("ann").await;
    let new = world.login("ann").await;
    assert_eq!(world.routes.remove(std::slice::from_ref(&old)).await, Ok(vec![false]));
    let bob = world.login("bob").await;
    world.login_elsewhere("bob").await;
    assert_eq!(world.routes.remove(std::slice::from_ref(&bob)).await, Ok(vec![false]));
    assert_eq!(world.offlines(SECOND).await, [""; 0]);
    // The newer one left before anybody looked what became of the older.
    world.routes.remove(std::slice::from_ref(&new)).await.unwrap();
    assert_eq!(world.offlines(SECOND).await, [left(&new)]);
    let told = world.topic.told.lock().unwrap().clone();
    assert_eq!(told.len(), 4, "three onlines and one offline: {told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_departure_is_told_although_the_routes_did_not_answer_or_lost_everything() {
    for fault in [Fault::Fail, Fault::LoseAnswer] {
        let world = world();
        let ann = world.login("ann").await;
        world.plan.plan("remove", fault.clone());
        world.plan.plan("lookup", Fault::Fail);
        assert!(world.routes.remove(std::slice::from_ref(&ann)).await.is_err());
        assert_eq!(world.offlines(5 * SECOND).await, [left(&ann)], "{fault:?}");
        assert_eq!(world.memory.lookup(std::slice::from_ref(&ann.user)).await.unwrap(), [[]]);
    }
    let world = world();
    let ann = world.login("ann").await;
    world.memory.lose_everything();
    assert_eq!(world.routes.remove(std::slice::from_ref(&ann)).await, Ok(vec![false]));
    assert_eq!(world.offlines(SECOND).await, [left(&ann)]);
}

#[tokio::test(start_paused = true)]
async fn what_the_topic_does_not_take_is_told_when_it_is_back_each_once_and_settled_then() {
    let world = world();
    world.topic.away.store(true, Ordering::SeqCst);
    let rows = [world.login("ann").await, world.login("bob").await];
    world.routes.remove(&rows).await.unwrap();
    assert_eq!(world.offlines(60 * SECOND).await, [""; 0]);
    // Somebody who sweeps finds them again, and they wait already.
    rows.iter().for_each(|row| world.events.offline(row));
    world.topic.away.store(false, Ordering::SeqCst);
    assert_eq!(world.offlines(SECOND).await, rows.each_ref().map(left));
    world.events.quiet().await;
    let told = world.topic.told.lock().unwrap().clone();
    assert_eq!(told.len(), 4, "two onlines as well, and nothing twice: {told:?}");
    assert_eq!(world.events.counts().1, 0, "none was lost");
}

#[tokio::test(start_paused = true)]
async fn in_a_drain_a_device_has_five_seconds_to_come_back_elsewhere() {
    let world = world();
    let rows = [world.login("ann").await, world.login("bob").await];
    world.events.hold_while(|| true);
    world.routes.remove(&rows).await.unwrap();
    assert_eq!(world.offlines(4 * SECOND).await, [""; 0]);
    world.login_elsewhere("bob").await;
    assert_eq!(world.offlines(2 * SECOND).await, [left(&rows[0])], "bob moved");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_its_connection_put_back_is_not_settled_away() {
    let world = world();
    world.topic.away.store(true, Ordering::SeqCst);
    let ann = world.login("ann").await;
    // Somebody did not find her connection, which was about to be indexed.
    world.routes.remove(std::slice::from_ref(&ann)).await.unwrap();
    assert_eq!(world.routes.reassert(std::slice::from_ref(&ann)).await, Ok(vec![true]));
    world.topic.away.store(false, Ordering::SeqCst);
    assert_eq!(world.offlines(2 * SECOND).await, [left(&ann)]);
    let stands = world.memory.lookup(std::slice::from_ref(&ann.user)).await.unwrap();
    assert_eq!(stands, [[(ann.device, ann.token)]]);
}
