//! Leased ids: nodes that start at once never share one, and an id is free again only when its run can't return.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate::routes::{Lapses, Leases, RedisRoutes, Routes, RoutesError};
use tidegate_protocol::id::NodeId;

use super::{
    kafka::eventually,
    node,
    redis::{Server, Version},
    routes::info,
};

fn ids(count: usize) -> Vec<NodeId> {
    (0..count).map(|nth| NodeId::new(&format!("pod-{nth}")).unwrap()).collect()
}

#[tokio::test]
async fn concurrent_starts_get_different_ids() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let routes = Arc::new(RedisRoutes::connect(&server.patient(), Leases::default()).unwrap());
        let mut asking = tokio::task::JoinSet::new();
        for claimant in 0..30 {
            let routes = Arc::clone(&routes);
            asking.spawn(async move {
                routes.claim_id(&ids(10), claimant, &mut Lapses::default()).await.unwrap()
            });
        }
        let all: Vec<Option<NodeId>> = asking.join_all().await;
        let given: BTreeSet<NodeId> = all.iter().flatten().cloned().collect();
        assert_eq!((given.len(), all.iter().flatten().count()), (10, 10), "{all:?}");
    }
}

#[tokio::test]
async fn s3_id_is_free_when_its_run_can_not_return() {
    let server = Server::start(Version::V7);
    let routes = RedisRoutes::connect(&server.patient(), Leases::default()).unwrap();
    let ids = ids(1);
    let mut seen = Lapses::default();
    let mut claim = async |claimant| routes.claim_id(&ids, claimant, &mut seen).await.unwrap();
    let it = Some(ids[0].clone());
    assert_eq!(claim(7).await, it);
    assert_eq!(claim(7).await, it, "a repeated claim returns the same id");
    assert_eq!(claim(8).await, None);
    let first = node("pod-0", 70);
    // A run that has not announced itself keeps its claim.
    routes.settle_id(&first, 7).await.unwrap();
    assert_eq!(claim(8).await, None);
    routes.renew(&info(&first)).await.unwrap();
    routes.settle_id(&first, 7).await.unwrap();
    assert_eq!(claim(8).await, None, "the lease holds the id");
    server.age(Duration::from_secs(11));
    assert_eq!(claim(8).await, None, "the missing renewal is not observed long enough yet");
    eventually(async || (claim(8).await == it).then_some(())).await;
    assert_eq!(
        routes.renew(&info(&first)).await,
        Err(RoutesError::LeaseLost),
        "the frozen run finds its lease lost"
    );
}

#[tokio::test]
async fn s3_node_started_after_a_redis_outage_takes_no_live_id() {
    let server = Server::start(Version::V7);
    let routes = RedisRoutes::connect(&server.patient(), Leases::default()).unwrap();
    let (one, two) = (ids(1), ids(2));
    let (lives, mut seen) = (node("pod-0", 70), Lapses::default());
    routes.renew(&info(&lives)).await.unwrap();
    // All leases have expired, and no node has renewed its own yet.
    server.age(Duration::from_secs(60));
    assert_eq!(routes.claim_id(&one, 8, &mut seen).await.unwrap(), None);
    assert_eq!(
        routes.claim_id(&two, 8, &mut seen).await.unwrap(),
        Some(two[1].clone()),
        "an id that no run had"
    );
    let renewed = routes.renew(&info(&lives)).await;
    assert_eq!(renewed, Ok(2), "it lives");
    assert_eq!(routes.claim_id(&one, 9, &mut seen).await.unwrap(), None);
    // A node that could not start leaves its id to the next one.
    assert_eq!(routes.claim_id(&two, 9, &mut Lapses::default()).await.unwrap(), None);
    routes.give_back_id(&two[1], 9).await.unwrap();
    assert_eq!(
        routes.claim_id(&two, 9, &mut Lapses::default()).await.unwrap(),
        None,
        "the claim of the other run stays"
    );
    routes.give_back_id(&two[1], 8).await.unwrap();
    assert_eq!(routes.claim_id(&two, 9, &mut Lapses::default()).await.unwrap(), Some(two[1].clone()));
}
