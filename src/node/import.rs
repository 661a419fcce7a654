//! Moves what one node kept into the empty services of a cluster, before the first node of it starts.

use std::{io::BufRead, time::Duration};

use anyhow::{Context as _, bail};
use tokio::runtime::Handle;

use super::ports;
use crate::{
    bus::{Bounds, Bus, KafkaBus},
    config::Config,
    ingest::intake::partition_of,
    metrics, redis,
    routes::{Lease, RedisRoutes, Routes},
    store::{
        Importing, PostgresStore,
        dump::{self, ReadDumpError},
        import::{FillError, Filling},
    },
};

/// How long the brokers may take to let go of us.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// Reads an export (`docs/store.md`) into the cluster that the configuration names, or with `dry` only says whether that
/// would work. Gives the number of lines. Where it fails nothing is there afterwards; where it is cut off, no node starts
/// before the import is run again.
///
/// # Errors
/// A service is away, is not empty, or nodes run; a line is wrong. The text names the cure.
pub fn into_cluster(config: &Config, from: &mut dyn BufRead, dry: bool) -> anyhow::Result<u64> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let log = runtime.block_on(async {
        nobody_runs(config).await?;
        empty_log(config).await
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
        runtime.block_on(filling.finish())?;
        Ok(lines)
    });
    runtime.block_on(end(filled, importing))
}

async fn end(filled: anyhow::Result<u64>, importing: Importing) -> anyhow::Result<u64> {
    match filled {
        Ok(lines) => {
            let why = "everything is there but for the last word, that it is: import again";
            importing.finish().await.context(why)?;
            Ok(lines)
        }
        Err(error) => {
            if let Err(left) = importing.undo().await {
                tracing::warn!(%left, "what was imported could not be taken back: the next import does it");
            }
            Err(error.context("nothing was imported"))
        }
    }
}

/// A node that runs has its own idea of what is in the store.
async fn nobody_runs(config: &Config) -> anyhow::Result<()> {
    let routes = RedisRoutes::over(redis::Client::new(&config.redis)?.into(), ports::leases());
    let nodes = routes.nodes().await.context("redis: which nodes run is not known")?;
    let live = nodes.iter().filter(|row| row.lease == Lease::Live);
    let live: Vec<&str> = live.map(|row| row.info.boot.node.as_str()).collect();
    if !live.is_empty() {
        bail!(
            "nothing was imported: nodes of this cluster run ({}); stop them first. One that was killed counts for 10 s",
            live.join(", ")
        );
    }
    Ok(())
}

/// Where each partition of the log is to be gone on from.
async fn empty_log(config: &Config) -> anyhow::Result<Vec<Bounds>> {
    let (metrics, _) = metrics::install();
    let bus =
        KafkaBus::connect(&config.kafka, Duration::from_millis(config.timing.reply_ms), &metrics).await?;
    let mut log = Vec::new();
    for partition in 0..config.kafka.partitions {
        let bounds = bus.bounds(partition).await?;
        if bounds.next > bounds.first {
            bail!(
                "nothing was imported: partition {partition} of {} has records, so a cluster ran on it; name a topic of its own \
                 in kafka.topic, and make it with `tidegate topics ensure`",
                config.kafka.topic
            );
        }
        log.push(bounds);
    }
    if let Err(error) = bus.close(CLOSE_MAX).await {
        tracing::debug!(%error, "the log was not closed in order");
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
