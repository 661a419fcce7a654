//! Tests of the end of a broker's tasks.

use tidegate_protocol::{
    Time,
    id::NodeId,
    machine::threshold::{LoadPressure, PressureSignal},
};

use super::*;
use crate::{
    auth::Verifier,
    broker::{Parts, Peering, Settings, ShardSettings},
    limits::{LimitCall, LimitRefusal, LimitSubjects, RuleSet},
    link::LocalLink,
    metrics,
    ports::Ports,
    routes::NodeBoot,
    scratch::ClockNumbers,
    store::GuardKind,
};

const RULE: &str = "[[rule]]\nid = \"r\"\nlevel = \"org\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n\
                    dynamic = { min = 5, max = 150 }\n";

/// Sends for some seconds of an hour.
fn send(rules: &RuleGuard, seconds: std::ops::Range<u64>) {
    let subjects = LimitSubjects { organisation: Some("acme"), ..LimitSubjects::default() };
    let quiet = LoadPressure { signal: PressureSignal::Memory, shard: None, value: 0.9, target: 1.0 };
    for ms in seconds.map(|second| second * 1_000) {
        let now = Time::from_millis(ms);
        for _ in 0..16 {
            let sent = rules.admit(LimitCall::Send, &subjects, now, false, || Ok::<_, LimitRefusal>(()));
            assert!(sent.is_ok());
        }
        rules.follow_load(&[quiet], now, ms, |_| false);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_stores_what_limits_have_learnt() {
    let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
    let cluster = Arc::new(Cluster::new(me, Ports::in_memory(Arc::new(LocalLink))));
    let (broker, outlets) = Broker::assemble(Parts {
        cluster: Arc::clone(&cluster),
        peering: Peering::Single,
        numbers: Arc::new(ClockNumbers::new(|| 1_000)),
        settings: Settings::new(500),
        metrics: metrics::install().0,
    });
    let rules = RuleSet::parse(RULE, Duration::ZERO).unwrap();
    let settings = ShardSettings { rules, ..ShardSettings::new(Verifier::hs256(&[7; 32])) };
    let rules = broker.shard_context(settings).rules;
    let tasks = broker.start(outlets, None);
    send(&rules, 0..2);
    // The history of a subject that became busy is read first.
    assert!(time::timeout(Duration::from_secs(3), std::future::pending::<()>()).await.is_err());
    send(&rules, 3..3_300);
    send(&rules, 3_600..3_601);
    assert_eq!(rules.changed_profiles().len(), 1);
    tasks.stop(&*cluster.ports.bus).await;
    let stored = cluster.ports.store.guard_since(0, 9).await.unwrap();
    let kinds: Vec<GuardKind> = stored.rows.iter().map(|row| row.key.kind()).collect();
    assert_eq!(kinds, [GuardKind::Profile]);
}
