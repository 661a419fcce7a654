//! Ids on lease: of many nodes that start at once no two get one, and an id is free again only when its run can't come back.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tidegate::routes::{Leases, RedisRoutes, Routes, RoutesError};
use tidegate_protocol::id::NodeId;

use super::{
    node,
    redis::{Server, Version},
    routes::info,
};

fn ids(count: usize) -> Vec<NodeId> {
    (0..count).map(|nth| NodeId::new(&format!("pod-{nth}")).unwrap()).collect()
}

#[tokio::test]
async fn of_many_that_start_at_once_no_two_get_one_id() {
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let routes = Arc::new(RedisRoutes::connect(&server.patient(), Leases::default()).unwrap());
        let mut asking = tokio::task::JoinSet::new();
        for claimant in 0..30 {
            let routes = Arc::clone(&routes);
            asking.spawn(async move { routes.claim_id(&ids(10), claimant).await.unwrap() });
        }
        let all: Vec<Option<NodeId>> = asking.join_all().await;
        let given: BTreeSet<NodeId> = all.iter().flatten().cloned().collect();
        assert_eq!((given.len(), all.iter().flatten().count()), (10, 10), "{all:?}");
    }
}

#[tokio::test]
async fn s3_an_id_is_free_again_when_its_lease_is_over_and_the_run_that_had_it_can_not_come_back() {
    let server = Server::start(Version::V7);
    let routes = RedisRoutes::connect(&server.patient(), Leases::default()).unwrap();
    let ids = ids(1);
    assert_eq!(routes.claim_id(&ids, 7).await.unwrap(), Some(ids[0].clone()));
    assert_eq!(
        routes.claim_id(&ids, 7).await.unwrap(),
        Some(ids[0].clone()),
        "its answer may have been lost"
    );
    assert_eq!(routes.claim_id(&ids, 8).await.unwrap(), None);
    let first = node("pod-0", 70);
    // What has not announced itself keeps its claim.
    routes.settle_id(&first, 7).await.unwrap();
    assert_eq!(routes.claim_id(&ids, 8).await.unwrap(), None);
    routes.renew(&info(&first)).await.unwrap();
    routes.settle_id(&first, 7).await.unwrap();
    assert_eq!(routes.claim_id(&ids, 8).await.unwrap(), None, "its lease holds it now");
    server.age(Duration::from_secs(11));
    assert_eq!(routes.claim_id(&ids, 8).await.unwrap(), Some(ids[0].clone()));
    assert_eq!(routes.renew(&info(&first)).await, Err(RoutesError::LeaseLost), "it was only frozen");
}
