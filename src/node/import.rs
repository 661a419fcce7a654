//! Import of a single node's export into the empty services of a cluster, before its first node starts.

use std::{io::BufRead, time::Duration};

use anyhow::{Context as _, bail};
use tokio::runtime::Handle;

use tidegate_protocol::record::Position;

use super::ports;
use crate::{
    bus::{Bounds, Bus, KafkaBus, partition_of},
    clock::wall_ms,
    config::Config,
    metrics, redis,
    routes::{Lease, RedisRoutes, Routes},
    store::{
        Importing, PostgresStore,
        dump::{self, ReadDumpError},
        import::{self, FillError, Filling},
    },
};

/// Time to disconnect from the brokers.
const KAFKA_CLOSE_MAX: Duration = Duration::from_secs(1);

/// Imports an export (`docs/store.md`) into the configured cluster and returns the number of lines; with `dry` it
/// only checks.
///
/// A failed import leaves nothing behind. After an interrupted one, no node starts until the import is run again.
///
/// # Errors
/// A service is unavailable or not empty, nodes run, or a line is invalid; the text names the cure.
pub fn into_cluster(config: &Config, from: &mut dyn BufRead, dry: bool) -> anyhow::Result<u64> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let log = runtime.block_on(async {
        check_no_live_nodes(config).await?;
        check_empty_log(config).await
    })?;
    let opened = runtime.block_on(Box::pin(PostgresStore::open_for_import(&config.postgres)));
    let (store, importing) = opened.map_err(|error| anyhow::anyhow!("nothing was imported: {error}"))?;
    let mut filling = Filling::new(&store, &log, partition_of);
    if dry {
        return Ok(read(from, &mut filling, None)?);
    }
    runtime.block_on(importing.mark())?;
    let filled = fill(&mut filling, &log, from, runtime.handle());
    let filled = filled.and_then(|lines| {
        runtime.block_on(async {
            let behind_markers = append_markers(config).await?;
            Ok::<_, anyhow::Error>(filling.finish(&behind_markers).await?)
        })?;
        Ok(lines)
    });
    runtime.block_on(conclude(filled, importing))
}

/// Completes a successful import, or undoes a failed one.
async fn conclude(filled: anyhow::Result<u64>, importing: Importing) -> anyhow::Result<u64> {
    match filled {
        Ok(lines) => {
            let why = "all lines were imported, but the import could not be marked as complete: import again";
            importing.finish().await.context(why)?;
            Ok(lines)
        }
        Err(error) => {
            if let Err(left) = importing.undo().await {
                tracing::warn!(error = %left, "failed import not undone; the next import undoes it");
            }
            Err(error.context("nothing was imported"))
        }
    }
}

/// Fails if a node runs: it would have state in memory that the import contradicts.
async fn check_no_live_nodes(config: &Config) -> anyhow::Result<()> {
    let routes = RedisRoutes::over(redis::RedisClient::new(&config.redis)?.into(), ports::leases());
    let nodes = routes.nodes().await.context("redis: the running nodes can't be listed")?;
    let live = nodes.iter().filter(|row| row.lease == Lease::Live);
    let live: Vec<&str> = live.map(|row| row.info.boot.node.as_str()).collect();
    if !live.is_empty() {
        bail!(
            "nothing was imported: nodes of this cluster run ({}); stop them first; a killed node counts for 10 s",
            live.join(", ")
        );
    }
    Ok(())
}

/// Appends the marker of the import to each partition, and returns the positions behind them. After a failure the topic
/// is not empty any more: the next import needs another one.
async fn append_markers(config: &Config) -> anyhow::Result<Vec<Position>> {
    let (metrics, _) = metrics::install();
    let bus =
        KafkaBus::connect(&config.kafka, Duration::from_millis(config.timing.reply_ms), &metrics).await?;
    let marker = import::marker(wall_ms())?;
    let mut behind = Vec::new();
    for partition in 0..config.kafka.partitions {
        let appended = bus.append(partition, vec![marker.clone()]).await;
        let appended =
            appended.with_context(|| format!("the log accepts no record in partition {partition}"))?;
        behind.push(Position::behind(appended.last, &marker));
    }
    bus.close(KAFKA_CLOSE_MAX).await.context("the log did not confirm all records")?;
    Ok(behind)
}

/// Checks that the log is empty, and returns the bounds from which each partition continues.
async fn check_empty_log(config: &Config) -> anyhow::Result<Vec<Bounds>> {
    let (metrics, _) = metrics::install();
    let bus =
        KafkaBus::connect(&config.kafka, Duration::from_millis(config.timing.reply_ms), &metrics).await?;
    let mut log = Vec::new();
    for partition in 0..config.kafka.partitions {
        let bounds = bus.bounds(partition).await?;
        if bounds.next > bounds.first {
            bail!(
                "nothing was imported: partition {partition} of {} has records, so a cluster has used it; name another topic in \
                 kafka.topic, and create it with `tidegate topics ensure`",
                config.kafka.topic
            );
        }
        log.push(bounds);
    }
    if let Err(error) = bus.close(KAFKA_CLOSE_MAX).await {
        tracing::debug!(%error, "log not closed cleanly; nothing was appended to it");
    }
    Ok(log)
}

fn fill(
    filling: &mut Filling<'_>,
    log: &[Bounds],
    from: &mut dyn BufRead,
    runtime: &Handle,
) -> anyhow::Result<u64> {
    runtime.block_on(filling.take_over(log))?;
    Ok(read(from, filling, Some(runtime))?)
}

fn read(
    from: &mut dyn BufRead,
    filling: &mut Filling<'_>,
    runtime: Option<&Handle>,
) -> Result<u64, ReadDumpError> {
    dump::read(from, |entry| {
        let write = |filling: &mut Filling<'_>| match runtime {
            Some(runtime) => runtime.block_on(filling.write()),
            None => {
                filling.forget();
                Ok(())
            }
        };
        let staged = filling.stage(entry);
        let done = staged.and_then(|full| if full { write(filling) } else { Ok::<_, FillError>(()) });
        done.map_err(std::io::Error::other)
    })
}
