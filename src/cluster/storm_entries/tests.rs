//! Entries about storms as a node reads them: slow mode and rules of single groups, over changes and a store that falls
//! back.

use bytes::Bytes;
use tidegate_protocol::{
    id::{NodeId, UserId},
    machine::storm::{StormAction, StormInForce, StormRule},
};

use super::*;
use crate::{
    cluster::Cluster,
    link::LocalLink,
    ports::Ports,
    routes::NodeBoot,
    store::{GuardBatch, GuardEntry, GuardKey, GuardPut, GuardStore as _, MemoryStore},
};

const NOW: u64 = 1_000_000;

fn world() -> (Arc<Cluster>, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::default());
    store.set_now_ms(NOW);
    let ports = Ports { store: store.clone(), ..Ports::in_memory(Arc::new(LocalLink)) };
    let cluster = Cluster::new(NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 }, ports);
    cluster.guard.add_handler(Arc::new(StormHandler::new(Arc::clone(&cluster.storms))));
    (Arc::new(cluster), store)
}

fn group() -> ConversationId {
    ConversationId::parse("g:tea").unwrap()
}

async fn put(store: &MemoryStore, kind: GuardKind, value: Bytes, until_ms: Option<u64>) {
    let key = GuardKey::new(kind, group().as_str()).unwrap();
    let entry = GuardEntry::new(key, value, until_ms).unwrap();
    store.put_guard(&GuardBatch::new(vec![GuardPut { entry, expected: None }]).unwrap()).await.unwrap();
}

fn slow_entry() -> Bytes {
    let storm = StormInForce { seq: 7, since_ms: 5, peak: 9, cooling_since_ms: None };
    let action = Some(StormAction::Slow(Duration::from_secs(5)));
    // As many names as an entry takes, and more.
    let exempt = (0..100).map(|n| UserId::new(&format!("{n:060}")).unwrap()).collect();
    let entry = StormEntry { storm, action, exempt, changes: 0 };
    let encoded = entry.encode();
    let decoded = StormEntry::decode(&encoded).unwrap();
    assert_eq!((decoded.storm, decoded.action), (storm, action));
    assert!(decoded.exempt.len() > 40 && decoded.exempt == entry.exempt[..decoded.exempt.len()]);
    encoded
}

fn is_slow(cluster: &Cluster) -> bool {
    cluster.storms.entries().slow().refuses_second(&group(), &UserId::new("bob").unwrap())
}

#[tokio::test(start_paused = true)]
async fn slow_mode_of_another_node_is_in_force_until_its_end() {
    let (cluster, store) = world();
    put(&store, GuardKind::Storm, slow_entry(), Some(NOW + 20_000)).await;
    cluster.read_guard().await.unwrap();
    assert!(is_slow(&cluster));
    tokio::time::advance(Duration::from_secs(19)).await;
    assert!(is_slow(&cluster));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!is_slow(&cluster), "it ends although the store is not read");
    put(&store, GuardKind::Storm, slow_entry(), Some(NOW + 20_000)).await;
    cluster.read_guard().await.unwrap();
    assert!(is_slow(&cluster));
    store.remove_guard(&GuardKey::new(GuardKind::Storm, "g:tea").unwrap(), None).await.unwrap();
    cluster.read_guard().await.unwrap();
    assert!(!is_slow(&cluster));
}

#[tokio::test(start_paused = true)]
async fn rule_of_a_group_replaces_the_configured_one_until_it_is_removed() {
    let (cluster, store) = world();
    cluster.storms.set_rule(StormRule::new(100, Duration::from_secs(60)), Some(StormAction::Admins));
    let saved = store.save();
    let in_force = || {
        let rules = cluster.storms.rules();
        (rules.of(&group()).threshold(), rules.of(&group()).window().as_secs(), rules.action_of(&group()))
    };
    put(&store, GuardKind::StormRule, r#"{"threshold":5,"actions":["alert"]}"#.into(), None).await;
    cluster.read_guard().await.unwrap();
    assert_eq!(in_force(), (5, 60, None));
    for unusable in [r#"{"threshold":0}"#, r#"{"actions":["shout"]}"#, "?"] {
        put(&store, GuardKind::StormRule, unusable.into(), None).await;
        cluster.read_guard().await.unwrap();
        assert_eq!(in_force(), (100, 60, Some(StormAction::Admins)), "{unusable}");
    }
    put(&store, GuardKind::StormRule, r#"{"windowMs":2000}"#.into(), None).await;
    cluster.read_guard().await.unwrap();
    assert_eq!(in_force(), (100, 2, Some(StormAction::Admins)));
    // A store that falls back has no such rule.
    store.restore(saved);
    cluster.read_guard().await.unwrap();
    assert_eq!(in_force(), (100, 60, Some(StormAction::Admins)));
}
