//! Histories of limits, as the guard stores and reads them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    bus::{LocalBus, LocalBusConfig, TopicId},
    cluster::Cluster,
    guard::profiles::{keep_profiles, store_last},
    limits::{LimitCall, LimitLevel, LimitRefusal, LimitSubjects, RuleGuard, RuleSet},
    link::LocalLink,
    metrics,
    ports::Ports,
    routes::{Leases, MemoryRoutes},
    scratch::MemoryScratch,
    store::{GuardKind, Store},
};
use tidegate_protocol::{
    Time,
    machine::threshold::{LoadPressure, PROFILE_BYTES, PressureSignal},
};

use super::super::{
    node,
    time::{WAIT_MAX, eventually_async},
};

const RULE: &str = "[[rule]]\nid = \"r\"\nlevel = \"org\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n\
                    dynamic = { min = 5, max = 150 }\n";

const HOUR_MS: u64 = 3_600_000;
const WEEK_MS: u64 = 168 * HOUR_MS;

fn rules() -> Arc<RuleGuard> {
    let rules = RuleSet::parse(RULE, Duration::ZERO).unwrap();
    Arc::new(RuleGuard::new(&rules, metrics::install().0, Instant::now()))
}

/// Creates the state of a node, which uses no port but the store.
fn cluster(store: &Arc<dyn Store>, name: &str) -> Arc<Cluster> {
    let log = LocalBusConfig {
        partitions: 1,
        topic: TopicId(1),
        max_records: 16,
        max_bytes: 1 << 16,
        node_max_records: 16,
        node_max_bytes: 1 << 16,
    };
    let ports = Ports {
        bus: Arc::new(LocalBus::new(log)),
        store: Arc::clone(store),
        routes: Arc::new(MemoryRoutes::new(0, Leases::default(), || Time::ZERO)),
        scratch: Arc::new(MemoryScratch::new(1 << 20, || 0)),
        link: Arc::new(LocalLink),
    };
    Arc::new(Cluster::new(node(name, 1), ports))
}

/// Sends for some seconds from then on.
fn send(rules: &RuleGuard, from_ms: u64, seconds: u64) {
    let subjects = LimitSubjects { organisation: Some("acme"), ..LimitSubjects::default() };
    let quiet = LoadPressure { signal: PressureSignal::Memory, shard: None, value: 0.9, target: 1.0 };
    for ms in (0..seconds).map(|second| from_ms + second * 1_000) {
        let now = Time::from_millis(ms);
        for _ in 0..16 {
            let sent = rules.admit(LimitCall::Send, &subjects, now, false, || Ok::<_, LimitRefusal>(()));
            assert!(sent.is_ok());
        }
        rules.follow_load(&[quiet], now, ms, |_| false);
    }
}

fn history(rules: &RuleGuard) -> String {
    let states = rules.states(LimitLevel::Organisation, "acme", Time::ZERO).unwrap();
    states[0].threshold.unwrap().to_string()
}

pub(super) async fn history_of_a_subject_survives_a_restart_of_its_node(store: &Arc<dyn Store>) {
    let (here, first) = (cluster(store, "n1"), rules());
    for week in 0..2 {
        send(&first, week * WEEK_MS, 2);
        // The store has none yet.
        first.unread_profiles(9).iter().for_each(|unread| first.handle_profile(unread, None));
        send(&first, week * WEEK_MS + 2_000, 3_400);
        send(&first, week * WEEK_MS + HOUR_MS, 1);
        assert_eq!(first.changed_profiles().len(), 1, "the hour has ended");
        store_last(&first, &here, Duration::from_secs(10)).await;
        assert_eq!(first.changed_profiles().len(), 0, "stored");
    }
    let rows = store.guard_since(0, 9).await.unwrap().rows;
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!(row.key.kind(), GuardKind::Profile);
    assert!(row.key.name().starts_with("n1/r/org/") && !row.key.name().contains("acme"), "{row:?}");
    assert!(row.value.as_ref().is_some_and(|value| value.len() > PROFILE_BYTES));

    for (name, has_history) in [("n2", false), ("n1", true)] {
        let restarted = rules();
        send(&restarted, 2 * WEEK_MS, 1);
        assert!(!history(&restarted).contains("weeks"));
        let keeping = keep_profiles(Arc::clone(&restarted), cluster(store, name), metrics::install().0);
        let keeping = tokio::spawn(keeping);
        let is_read = async || restarted.unread_profiles(9).is_empty().then_some(());
        eventually_async(WAIT_MAX, "the history is read", is_read).await;
        keeping.abort();
        assert_eq!(history(&restarted).ends_with("2 weeks"), has_history, "{name}: {}", history(&restarted));
    }
}
