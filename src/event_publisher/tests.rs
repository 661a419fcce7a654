//! Offline events: over routes in memory, with faults, on a clock that runs ahead.

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
    events::AnnouncedRoutes,
    fault::{Fault, FaultPlan, Faulty},
    metrics,
    routes::{Leases, MemoryRoutes, NodeBoot, Registration, Token},
};

/// A topic that may be unavailable.
#[derive(Default)]
struct Topic {
    is_unavailable: AtomicBool,
    published: Mutex<Vec<String>>,
}

#[async_trait]
impl EventSink for Topic {
    async fn publish(&self, events: Vec<EventRecord>) -> Result<(), AppendError> {
        if self.is_unavailable.load(Ordering::SeqCst) {
            return Err(AppendError::Unknown("unavailable".to_owned()));
        }
        let id = |text: &[u8]| {
            let event: Value = serde_json::from_slice(text).unwrap();
            format!("{} {}", event["subject"].as_str().unwrap(), event["id"].as_str().unwrap())
        };
        self.published.lock().unwrap().extend(events.iter().map(|event| id(&event.json)));
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

/// The world of node n1.
fn world() -> World {
    let memory = Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO));
    let plan = FaultPlan::none();
    let faulty: Arc<dyn Routes> =
        Arc::new(Faulty::<dyn Routes>::new(Arc::clone(&memory) as Arc<dyn Routes>, Arc::clone(&plan)));
    let (events, topic) = (Arc::new(Events::new("/tidegate/t", 1, 1 << 20)), Arc::new(Topic::default()));
    let publisher = EventPublisher {
        events: Arc::clone(&events),
        routes: Arc::clone(&faulty),
        sink: Some(Arc::clone(&topic) as Arc<dyn EventSink>),
        metrics: metrics::install().0,
    };
    tokio::spawn(Box::pin(publisher.run()));
    let routes = AnnouncedRoutes::new(faulty, Arc::clone(&events), run("n1"));
    World { memory, plan, events, topic, routes }
}

fn registration(user: &str, at: &str) -> Registration {
    Registration {
        user: UserId::new(user).unwrap(),
        device: DeviceId::new("phone").unwrap(),
        at: run(at),
        above: 0,
        only_if: None,
        policy: crate::routes::DevicePolicy::default(),
    }
}

impl World {
    async fn login(&self, user: &str) -> Route {
        let registration = registration(user, "n1");
        let (user, device) = (registration.user.clone(), registration.device.clone());
        Route { user, device, token: self.routes.register(registration).await.unwrap().token }
    }

    /// Logs in through another node.
    async fn login_elsewhere(&self, user: &str) -> Token {
        self.memory.register(registration(user, "n2")).await.unwrap().token
    }

    /// Waits, then returns the offline events published so far, with their users.
    async fn offlines(&self, after: Duration) -> Vec<String> {
        let mut ticks = time::interval(after);
        ticks.tick().await;
        ticks.tick().await;
        let published = self.topic.published.lock().unwrap();
        published.iter().filter(|it| it.contains("offline")).cloned().collect()
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn left(row: &Route) -> String {
    format!("{} offline/{}", row.user, row.token)
}

#[tokio::test(start_paused = true)]
async fn replaced_device_gets_no_offline_event() {
    let world = world();
    let old = world.login("ann").await;
    let new = world.login("ann").await;
    assert_eq!(world.routes.remove(std::slice::from_ref(&old)).await, Ok(vec![false]));
    let bob = world.login("bob").await;
    world.login_elsewhere("bob").await;
    assert_eq!(world.routes.remove(std::slice::from_ref(&bob)).await, Ok(vec![false]));
    assert_eq!(world.offlines(SECOND).await, [""; 0]);
    // The newer connection ends before the older one is looked up.
    world.routes.remove(std::slice::from_ref(&new)).await.unwrap();
    assert_eq!(world.offlines(SECOND).await, [left(&new)]);
    let published = world.topic.published.lock().unwrap().clone();
    assert_eq!(published.len(), 4, "three onlines and one offline: {published:?}");
}

#[tokio::test(start_paused = true)]
async fn offline_is_published_after_route_failures_and_losses() {
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
async fn events_are_published_once_when_the_topic_is_back() {
    let world = world();
    world.topic.is_unavailable.store(true, Ordering::SeqCst);
    let rows = [world.login("ann").await, world.login("bob").await];
    world.routes.remove(&rows).await.unwrap();
    assert_eq!(world.offlines(60 * SECOND).await, [""; 0]);
    // A reaper finds the rows again while their events are queued.
    rows.iter().for_each(|row| world.events.offline(row));
    world.topic.is_unavailable.store(false, Ordering::SeqCst);
    assert_eq!(world.offlines(SECOND).await, rows.each_ref().map(left));
    world.events.quiet().await;
    let published = world.topic.published.lock().unwrap().clone();
    assert_eq!(published.len(), 4, "two onlines as well, and nothing twice: {published:?}");
    assert_eq!(world.events.counts().1, 0, "no event was dropped");
}

#[tokio::test(start_paused = true)]
async fn device_has_five_seconds_to_reconnect_in_a_drain() {
    let world = world();
    let rows = [world.login("ann").await, world.login("bob").await];
    world.events.hold_while(|| true);
    world.routes.remove(&rows).await.unwrap();
    assert_eq!(world.offlines(4 * SECOND).await, [""; 0]);
    world.login_elsewhere("bob").await;
    assert_eq!(world.offlines(2 * SECOND).await, [left(&rows[0])], "bob moved");
}

#[tokio::test(start_paused = true)]
async fn reasserted_row_survives_the_confirmation() {
    let world = world();
    world.topic.is_unavailable.store(true, Ordering::SeqCst);
    let ann = world.login("ann").await;
    // A node did not find her connection, which was about to be indexed.
    world.routes.remove(std::slice::from_ref(&ann)).await.unwrap();
    assert_eq!(world.routes.reassert(std::slice::from_ref(&ann)).await, Ok(vec![true]));
    world.topic.is_unavailable.store(false, Ordering::SeqCst);
    assert_eq!(world.offlines(2 * SECOND).await, [left(&ann)]);
    let rows = world.memory.lookup(std::slice::from_ref(&ann.user)).await.unwrap();
    assert_eq!(rows, [[(ann.device, ann.token)]]);
}
