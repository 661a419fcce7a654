//! Memory watch of the node: adjusts admission and the owners' caches to the memory pressure and makes shards shed.

use std::{sync::Arc, time::Duration};

use crate::{
    broker::Broker,
    budget::{self, Admission, CacheBudget, Pressure},
    config::LimitsConfig,
    ingest::intake::Intake,
    log_limit::log_limited,
    mail::{Mail, ShardHandle},
    metrics::Metrics,
    storms::StormBoard,
};

/// Interval at which memory is measured.
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Sets admission and `cache` by the memory pressure and makes the shards shed, for as long as the node runs.
pub(super) fn watch(
    admission: &Arc<Admission>,
    broker: &Broker,
    cache: Arc<CacheBudget>,
    metrics: Metrics,
    limits: &LimitsConfig,
) -> impl Future<Output = ()> + Send + use<> {
    let (admission, intake) = (Arc::clone(admission), Arc::clone(&broker.intake));
    let (shards, storms) = (broker.shards().to_vec(), Arc::clone(&broker.cluster.storms));
    let (limit, with_sockets) = (budget::memory_limit(limits.memory_bytes), limits.memory_counts_sockets);
    MemoryWatch { admission, intake, cache, storms, shards, metrics, limit, with_sockets }.run()
}

/// Inputs and outputs of the watch.
struct MemoryWatch {
    admission: Arc<Admission>,
    intake: Arc<Intake>,
    cache: Arc<CacheBudget>,
    storms: Arc<StormBoard>,
    shards: Vec<ShardHandle>,
    metrics: Metrics,
    limit: u64,
    with_sockets: bool,
}

impl MemoryWatch {
    async fn run(self) {
        let Self { admission, intake, cache, storms, shards, metrics, limit, with_sockets } = self;
        let mut tick = tokio::time::interval(MEMORY_CHECK_INTERVAL);
        metrics.memory_limit.set(limit as f64);
        let (mut before, mut sheds) = (Pressure::Fine, false);
        loop {
            tick.tick().await;
            let used = budget::memory_used(with_sockets);
            metrics.memory_used.set(used as f64);
            let pressure = admission.note_memory(used, limit);
            intake.note_memory(pressure == Pressure::Full);
            cache.note_pressure(pressure);
            metrics.ledger_cache.set(cache.used() as f64);
            metrics.storm_watches_bytes.set(storms.bytes() as f64);
            metrics.memory_checks.increment(1);
            if pressure != before {
                log_limited!(warn, used, limit, ?pressure, "memory pressure changed");
                before = pressure;
            }
            // Until new clients are admitted again: what fills the memory up to there would keep them out.
            sheds = pressure >= Pressure::Shed || (sheds && pressure > Pressure::Fine);
            if sheds {
                for shard in &shards {
                    if !shard.try_post(Mail::ShedMemory) {
                        log_limited!(warn, "shard mailbox full; the shard does not shed memory this time");
                    }
                }
            }
        }
    }
}
