//! The store on Postgres: messages archived per second, as the tables grow.

use super::Sink;
use crate::bench::{Args, host, report::Section};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::{collections::BTreeSet, sync::Arc};
use tidegate::{
    bus::TopicId,
    config,
    store::{Fence, PostgresStore, Store},
};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, NodeId, UserId},
    machine::ledger::{Delta, Ledger},
    record::{Body, Message, Origin, Position, Record, SenderOrder, body_hash},
};

/// Bytes of the content of a message.
const SIZE: usize = 100;
/// Number of figures between the first message and the last.
const STEPS: u64 = 10;
/// Rows that the ledger keeps after they are archived.
const KEEP: u64 = 1_000;

/// Parameters of the scenario.
pub(super) struct Load<'a> {
    /// Address of an empty database.
    pub(super) url: &'a str,
    /// Number of messages.
    pub(super) messages: u64,
    /// Number of conversations that messages are spread over at random.
    pub(super) conversations: u64,
    /// Messages of one archive.
    pub(super) batch: u64,
    /// Partitions that are archived at the same time.
    pub(super) partitions: u32,
}

/// Adds one section.
pub(super) fn run(args: &Args, load: &Load<'_>, out: Sink<'_>) -> Result<()> {
    let quick = Load { messages: 20_000, conversations: 1_000, ..*load };
    let load = if args.quick { &quick } else { load };
    ensure!(load.batch > 0 && load.partitions > 0 && load.conversations > 0, "at least one of each");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let section = runtime.block_on(Box::pin(measure(load)))?;
    out(section);
    Ok(())
}

async fn measure(load: &Load<'_>) -> Result<Section> {
    let url = load.url.to_owned();
    let config = config::PostgresConfig { url, statement_ms: 60_000, ..config::PostgresConfig::default() };
    let store: Arc<dyn Store> = Arc::new(Box::pin(PostgresStore::open(&config)).await?);
    let mut owners = Vec::new();
    for partition in 0..load.partitions {
        owners.push(Owner::new(&store, partition).await?);
    }
    let title = format!(
        "Postgres, {} messages of {SIZE} B in {} conversations, {} an archive, {} partitions",
        load.messages, load.conversations, load.batch, load.partitions
    );
    let mut section = Section::new(title);
    let each = load.messages / STEPS / u64::from(load.partitions);
    let mut total = 0;
    for _ in 0..STEPS {
        let began = host::now_ns();
        let work = owners.iter_mut().map(|owner| owner.run(each, load));
        let done = futures_util::future::join_all(work).await;
        let seconds = (host::now_ns() - began) as f64 / 1e9;
        let messages: u64 = done.into_iter().sum::<Result<u64>>()?;
        total += messages;
        let rate = messages as f64 / seconds;
        eprintln!("{total} messages: {rate:.0}/s");
        section.one(&format!("archived a second, up to {total} messages"), rate, "/s", None);
    }
    let last: u64 = owners.iter().map(|owner| owner.ledger.archived_position().offset).sum();
    ensure!(last == total, "{total} messages were archived, the positions say {last}");
    Ok(section)
}

/// The owner of a partition, without its log.
pub(super) struct Owner {
    store: Arc<dyn Store>,
    partition: u32,
    fence: Fence,
    ledger: Ledger,
    random: u64,
}

impl Owner {
    pub(super) async fn new(store: &Arc<dyn Store>, partition: u32) -> Result<Self> {
        let fence = Fence(rand::random());
        let taken = store.take_over(partition, fence, TopicId(1)).await?;
        ensure!(taken.position == Position::START, "the database is not empty: give an empty one with --url");
        let ledger = Ledger::resume(taken.position, taken.rules, rand::random());
        // As in a cluster, every key is looked up that is not in memory, and these never are.
        Ok(Self { store: Arc::clone(store), partition, fence, ledger, random: u64::from(partition) + 1 })
    }

    async fn run(&mut self, messages: u64, load: &Load<'_>) -> Result<u64> {
        let mut left = messages;
        while left > 0 {
            let count = left.min(load.batch);
            self.archive(count, load).await?;
            left -= count;
        }
        Ok(messages)
    }

    async fn archive(&mut self, count: u64, load: &Load<'_>) -> Result<()> {
        let delta = self.decide(count, load).await?;
        self.write(&delta).await
    }

    /// Decides the next messages.
    pub(super) async fn decide(&mut self, count: u64, load: &Load<'_>) -> Result<Delta> {
        let first = self.ledger.next_offset();
        let records: Result<Vec<_>> = (first..first + count).map(|offset| self.said(offset, load)).collect();
        let records = records?;
        let mut needs = BTreeSet::new();
        for record in &records {
            self.ledger.needs(record, &mut needs);
        }
        let needs: Vec<_> = needs.into_iter().collect();
        if !needs.is_empty() {
            let rows = self.store.load(self.partition, self.fence, &needs).await?;
            self.ledger.load(rows.position, rows.rows)?;
        }
        let mut to = Position::START;
        for (offset, record) in (first..).zip(&records) {
            self.ledger.apply(offset, record)?;
            to = Position::behind(offset, &record.encode());
        }
        Ok(self.ledger.take_delta(to)?)
    }

    /// Archives decided messages.
    pub(super) async fn write(&mut self, delta: &Delta) -> Result<()> {
        self.store.archive(self.partition, self.fence, delta).await.context("archive")?;
        self.ledger.archived(delta.to)?;
        self.ledger.evict(delta.to.offset.saturating_sub(KEEP), usize::MAX);
        Ok(())
    }

    fn said(&mut self, offset: u64, load: &Load<'_>) -> Result<Record> {
        // xorshift, for the same load each time.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let pair = self.random % load.conversations.div_ceil(u64::from(load.partitions));
        let user = |side: &str| UserId::new(&format!("p{}-{pair}-{side}", self.partition));
        let (sender, other) = (user("a")?, user("b")?);
        let content = Bytes::from(vec![b'x'; SIZE]);
        let body = Body::Message(Message {
            conversation: ConversationId::direct(&sender, &other),
            sender,
            device: DeviceId::new("phone")?,
            msg_id: MsgId::new(&format!("m{offset}"))?,
            attempt: 0,
            body_hash: body_hash(&content),
            content,
            order: SenderOrder::default(),
            flags: 0,
            mode: Default::default(),
        });
        record(offset, body)
    }
}

fn record(offset: u64, body: Body) -> Result<Record> {
    let origin = Origin { node: NodeId::new("bench")?, boot: 1, conn: 1, request: offset };
    Ok(Record { origin, received_at: 1_790_000_000_000 + offset, body, trace: None })
}
