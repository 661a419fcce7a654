//! Repeated crashes over a real Redis: two reapers sweep the rows of dead nodes concurrently, and nothing leaks.

use std::{sync::Arc, time::Duration};

use tidegate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    cluster::Cluster,
    lease::reap,
    link::LocalLink,
    metrics,
    ports::Ports,
    routes::{Lease, Leases, NodeBoot, NodeInfo, RedisRoutes, Registration, Routes, Token},
    scratch::MemoryScratch,
    store::MemoryStore,
};

use super::{
    device, group, node,
    redis::{Server, Version},
    user,
};

const CRASHES: u64 = 200;
/// Number of users on each node that crashes.
const USERS: usize = 6;

fn info(boot: &NodeBoot) -> NodeInfo {
    NodeInfo { capacity: 10, ..NodeInfo::new(boot.clone()) }
}

async fn login(routes: &RedisRoutes, name: &str, at: &NodeBoot) -> Token {
    let wish = Registration {
        user: user(name),
        device: device("phone"),
        at: at.clone(),
        above: 0,
        only_if: None,
        policy: tidegate::routes::DevicePolicy::default(),
    };
    routes.register(wish).await.expect("a route").token
}

/// Returns the cluster state of a node that has nothing but routes.
fn cluster(me: &NodeBoot, routes: &Arc<RedisRoutes>) -> Arc<Cluster> {
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 16,
        max_bytes: 1 << 16,
        node_max_records: 16,
        node_max_bytes: 1 << 16,
    };
    Arc::new(Cluster::new(
        me.clone(),
        Ports {
            bus: Arc::new(LocalBus::new(log)),
            store: Arc::new(MemoryStore::default()),
            routes: routes.clone(),
            scratch: Arc::new(MemoryScratch::new(1 << 20, || 0)),
            link: Arc::new(LocalLink),
        },
    ))
}

#[tokio::test]
async fn two_hundred_crashes_leave_no_row_behind() {
    let server = Server::start(Version::V7);
    let routes = Arc::new(RedisRoutes::connect(&server.patient(), Leases::default()).expect("Redis is up"));
    let (counted, _) = metrics::install();
    let stays = node("stays", 1);
    let room = group("all");
    let mut came_back = Vec::new();
    for boot in 1..=CRASHES {
        let crashes = node("crashes", boot);
        for run in [&stays, &crashes] {
            routes.renew(&info(run)).await.expect("a lease");
        }
        routes.declare(&crashes, &[(room.clone(), boot)]).await.expect("an interest");
        for nth in 0..USERS {
            login(&routes, &format!("u{boot}-{nth}"), &crashes).await;
        }
        // The lease of the run expires; one of its users connects elsewhere before the sweep.
        server.age(Duration::from_secs(11));
        routes.renew(&info(&stays)).await.expect("a lease");
        came_back.push((format!("u{boot}-0"), login(&routes, &format!("u{boot}-0"), &stays).await));
        let reaper = || reap(cluster(&stays, &routes), vec![crashes.clone()], counted.clone());
        tokio::join!(reaper(), reaper());
    }
    let rows = routes.nodes().await.expect("it answers");
    let left: Vec<String> = rows.iter().map(|row| row.info.boot.to_string()).collect();
    assert_eq!((left, rows[0].lease), (vec![stays.to_string()], Lease::Live));
    assert_eq!(routes.interested(&[room]).await.expect("it answers"), [vec![]]);
    for (name, token) in &came_back {
        let found = routes.lookup(&[user(name)]).await.expect("it answers");
        assert_eq!(found, [vec![(device("phone"), token.clone())]], "{name}");
    }
    for boot in 1..=CRASHES {
        let gone: Vec<_> = (1..USERS).map(|nth| user(&format!("u{boot}-{nth}"))).collect();
        let found = routes.lookup(&gone).await.expect("it answers");
        assert!(found.iter().all(Vec::is_empty), "{boot}: {found:?}");
        let rows = routes.rows_of(&node("crashes", boot), None, 100).await.expect("it answers");
        assert!(rows.is_empty(), "{boot}: {rows:?}");
    }
    // What deleted rows leave expires by itself; nothing else is in the database.
    server.age(Duration::from_secs(61));
    let keys: Vec<String> = server.ask(&["KEYS", "*"]);
    let leaked: Vec<&String> =
        keys.iter().filter(|key| key.contains("rows:") && key.contains("crashes")).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
    let routes_left = keys.iter().filter(|key| key.contains("route:")).count();
    assert_eq!(routes_left, came_back.len(), "one key for each online user");
}
