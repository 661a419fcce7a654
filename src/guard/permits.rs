//! Permits of rules in cluster scope: carries the asks of this node to Redis, and its answers back.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::machine::permit::{ANSWER_TIMEOUT, LimitSource, PermitAsk, PermitRule};
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    cluster::Cluster,
    limits::{RuleGuard, TakenAsk},
    metrics::Metrics,
    scratch::{PermitCall, ScratchError},
    supervised,
};

/// Most keys of one batch.
const BATCH_KEYS_MAX: usize = 1_024;

/// Most batches without an answer; further keys wait, and their requests are decided by share.
const BATCHES_MAX: usize = 8;

/// Time between two refreshes of the list of nodes, and two probes while Redis is unavailable.
const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// Returns the hash of a node's id by which shares are given out.
pub fn node_hash(node: &str) -> u64 {
    xxh3_64(node.as_bytes())
}

/// Carries asks for as long as the runtime lives. One batch is in flight at a time, unless its answer is late.
pub async fn carry_asks(rules: Arc<RuleGuard>, cluster: Arc<Cluster>, metrics: Metrics) {
    let in_flight = Arc::new(Semaphore::new(BATCHES_MAX));
    loop {
        tokio::select! {
            biased;
            () = rules.asked() => {}
            // Without such rules too: the last one may have been removed while shares decided.
            () = sleep(REFRESH_INTERVAL) => refresh(&rules, &cluster).await,
        }
        set_nodes(&rules, &cluster);
        let Ok(permit) = Arc::clone(&in_flight).acquire_owned().await else { return };
        let asks = rules.take_asks(BATCH_KEYS_MAX);
        if asks.is_empty() {
            continue;
        }
        metrics.limit_asks.increment(asks.len() as u64);
        let (rules, cluster, metrics) = (Arc::clone(&rules), Arc::clone(&cluster), metrics.clone());
        let batch = supervised::spawn("an ask for permits", async move {
            let _permit = permit;
            ask(&rules, &cluster, asks, &metrics).await;
        });
        drop(timeout(ANSWER_TIMEOUT, batch).await);
    }
}

async fn ask(rules: &RuleGuard, cluster: &Cluster, asks: Vec<TakenAsk>, metrics: &Metrics) {
    let call = |it: &TakenAsk| PermitCall {
        rule: Arc::clone(it.rule()),
        subject: it.subject(),
        limit: it.limit(),
        ask: it.ask(),
    };
    let calls: Vec<PermitCall> = asks.iter().map(call).collect();
    match cluster.ports.scratch.grant_permits(&calls).await {
        Ok(answers) => rules.handle_grants(asks, &answers.grants, answers.server),
        Err(error) => {
            metrics.limit_asks_failed.increment(asks.len() as u64);
            tracing::debug!(%error, "Redis granted no permits");
            if matches!(error, ScratchError::Unavailable(_)) {
                rules.handle_unavailable();
            }
        }
    }
}

fn set_nodes(rules: &RuleGuard, cluster: &Cluster) {
    let others = cluster.peers.others();
    let mut nodes: Vec<u64> = others.iter().map(|row| node_hash(row.info.boot.node.as_str())).collect();
    nodes.push(node_hash(cluster.me.node.as_str()));
    nodes.sort_unstable();
    nodes.dedup();
    rules.set_nodes(&nodes);
}

/// Returns to permits if it is time for that; while shares decide, asks Redis for nothing, to find out when it is back.
async fn refresh(rules: &RuleGuard, cluster: &Cluster) {
    if rules.poll_source() != Some(LimitSource::Shares) {
        return;
    }
    let probe = PermitCall {
        rule: "probe".into(),
        subject: 0,
        limit: PermitRule::new(1, Duration::from_secs(1)),
        ask: PermitAsk { id: 0, want: 0, charge: 0 },
    };
    match timeout(REFRESH_INTERVAL, cluster.ports.scratch.grant_permits(&[probe])).await {
        Ok(Ok(answers)) => rules.handle_grants(Vec::new(), &[], answers.server),
        Ok(Err(ScratchError::Unavailable(_))) => rules.handle_unavailable(),
        Ok(Err(ScratchError::Unknown(_))) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::{
        fault::{FaultPlan, Faulty},
        limits::RuleSet,
        link::LocalLink,
        metrics,
        ports::Ports,
        routes::NodeBoot,
        scratch::Scratch,
    };

    #[tokio::test(start_paused = true)]
    async fn redis_is_probed_while_shares_decide_though_no_rule_is_left() {
        let (plan, ports) = (FaultPlan::none(), Ports::in_memory(Arc::new(LocalLink)));
        let scratch = Arc::new(Faulty::<dyn Scratch>::new(Arc::clone(&ports.scratch), Arc::clone(&plan)));
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let cluster = Arc::new(Cluster::new(me, Ports { scratch, ..ports }));
        let metrics = metrics::install().0;
        let none = RuleSet::parse("", Duration::ZERO).unwrap();
        let rules = RuleGuard::clustered(&none, metrics.clone(), Instant::now(), 0);
        rules.handle_unavailable();
        let carrying = carry_asks(Arc::new(rules), cluster, metrics);
        assert!(timeout(4 * REFRESH_INTERVAL, carrying).await.is_err(), "it never ends");
        assert!((2..=4).contains(&plan.calls("grant_permits")));
    }
}
