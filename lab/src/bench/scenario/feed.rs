//! The feed: CPU of an archived message with it and without, in both durable stores.

use super::{
    Sink,
    postgres::{Load, Owner},
};
use crate::bench::{
    Args, host,
    report::{Section, median},
};
use anyhow::{Result, ensure};
use std::{path::Path, sync::Arc};
use tidegate::{
    config,
    embedded::{EmbeddedStore, Engine, EngineConfig, RealDisk},
    store::{PostgresStore, Store},
};

/// Adds a section for each store.
pub(super) fn run(args: &Args, directory: &Path, load: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let quick = Load { messages: 2_000, conversations: 100, ..*load };
    let load = if args.quick { &quick } else { load };
    ensure!(load.batch > 0 && load.messages > 0 && load.conversations > 0, "at least one of each");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let embedded = |name: &str| -> Result<EmbeddedStore> {
        let path = directory.join(name);
        let disk = Arc::new(RealDisk);
        let config = EngineConfig { path, partitions: 1, free_bytes_min: 0, disk };
        Ok(EmbeddedStore::new(Arc::new(Engine::open(config)?)))
    };
    let sides = Sides {
        on: Arc::new(embedded("feed-on")?),
        off: Arc::new(embedded("feed-off")?.without_feed()),
        partition_off: 0,
    };
    out(runtime.block_on(Box::pin(measure("embedded", &sides, args.rounds, load)))?);
    if load.url.is_empty() {
        return Ok(());
    }
    let config = config::PostgresConfig { url: load.url.to_owned(), ..config::PostgresConfig::default() };
    let sides = runtime.block_on(Box::pin(async {
        anyhow::Ok(Sides {
            on: Arc::new(Box::pin(PostgresStore::open(&config)).await?),
            off: Arc::new(Box::pin(PostgresStore::open(&config)).await?.without_feed()),
            partition_off: 1,
        })
    }))?;
    out(runtime.block_on(Box::pin(measure("Postgres", &sides, args.rounds, load)))?);
    Ok(())
}

/// A store that writes the feed and one that does not; they may share a database, in which each has a partition.
struct Sides {
    on: Arc<dyn Store>,
    off: Arc<dyn Store>,
    partition_off: u32,
}

/// CPU of one round, in µs a message.
#[derive(Default)]
struct Rounds {
    process: Vec<f64>,
    all: Vec<f64>,
}

async fn measure(store: &str, sides: &Sides, rounds: usize, load: &Load<'_>) -> Result<Section> {
    let mut on = (Owner::new(&sides.on, 0).await?, Rounds::default());
    let mut off = (Owner::new(&sides.off, sides.partition_off).await?, Rounds::default());
    // The first round of each makes the conversations, and does not count.
    for counts in (0..=rounds).map(|round| round > 0) {
        for (owner, found) in [&mut on, &mut off] {
            let round = round(owner, load).await?;
            if counts {
                found.process.push(round.0);
                found.all.push(round.1);
            }
        }
    }
    let bytes = sides.on.feed_positions().await?.iter().map(|it| (it.bytes, it.newest)).next();
    let (bytes, entries) = bytes.unwrap_or_default();
    let title =
        format!("feed, {store}, {} messages an archive, {} conversations", load.batch, load.conversations);
    let mut section = Section::new(title);
    section.one("bytes of the feed a message", bytes as f64 / entries.max(1) as f64, "B", None);
    for (what, with, without) in [
        ("CPU of this process a message", &on.1.process, &off.1.process),
        ("CPU of the whole machine a message", &on.1.all, &off.1.all),
    ] {
        section.one(&format!("{what}, with the feed / without"), median(with) / median(without), "x", None);
        section.one(&format!("{what}, with the feed"), median(with), "µs", None);
        section.one(&format!("{what}, without"), median(without), "µs", None);
    }
    Ok(section)
}

/// Archives the messages of a round, and returns the CPU of this process and of the machine for the archives alone.
async fn round(owner: &mut Owner, load: &Load<'_>) -> Result<(f64, f64)> {
    let me = std::process::id();
    let mut deltas = Vec::new();
    let (mut process, mut all) = (0, 0);
    let mut left = load.messages;
    while left > 0 {
        let count = left.min(load.batch);
        deltas.push(owner.decide(count, load).await?);
        left -= count;
        if deltas.len() == 8 || left == 0 {
            // With the time of threads that have ended.
            let before = (host::Processes::read()?.tree_cpu_ns(me)?, host::busy_ns()?);
            for delta in deltas.drain(..) {
                owner.write(&delta).await?;
            }
            process += host::Processes::read()?.tree_cpu_ns(me)?.saturating_sub(before.0);
            all += host::busy_ns()?.saturating_sub(before.1);
        }
    }
    let each = |ns: u64| ns as f64 / 1e3 / load.messages as f64;
    Ok((each(process), each(all)))
}
