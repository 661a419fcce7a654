//! Calls of a partition's owner: take-over, archive and scan. Each is a single attempt.

use tidegate_protocol::{
    machine::ledger::{Delta, Loaded},
    record::{Hash16, Position},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    Core,
    archive::{self, FeedBatches, FirstRows},
    batcher::{BatchedQuery, Batcher},
    codec::{Reader, big, bound, fence as stored_fence, hash, limit, topic as stored_topic},
    error::{PostgresError, damaged},
    key_partitions::KeyPartitions,
    session::{Call, Session, Value, call},
};
use crate::{
    bus::TopicId,
    store::{Fence, Scan, Snapshot, StoreError, Takeover},
};
use std::time::Duration;

/// Takes a partition over. One that was never archived takes the topic; one of another topic returns no row.
const TAKE_OVER: &str = "
INSERT INTO partitions (partition, topic, fence, log_offset, last_hash, ledger_version, dedup_window, keys_from)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (partition) DO UPDATE SET fence = EXCLUDED.fence, topic = EXCLUDED.topic
WHERE partitions.topic = EXCLUDED.topic
   OR (partitions.log_offset = EXCLUDED.log_offset AND partitions.last_hash = EXCLUDED.last_hash)
RETURNING log_offset, last_hash, ledger_version, dedup_window, keys_from";

const SELECT_TOPIC: &str = "SELECT topic FROM partitions WHERE partition = $1";

/// Moves the positions and locks their rows, in this order; returns the week, which names the table for keys, and the feed
/// of each. A number of the feed without an entry stands for records that were archived without numbers.
const MOVE_POSITIONS: &str = "
UPDATE partitions p SET
    log_offset = n.log_offset, last_hash = n.last_hash, ledger_version = n.ledger_version,
    dedup_window = n.dedup_window, keys_from = n.keys_from,
    feed_newest = p.feed_newest + coalesce((p.feed_offset <> n.from_offset)::integer, 0) + n.feed_entries,
    feed_bytes = p.feed_bytes + n.feed_bytes, feed_offset = n.log_offset
FROM unnest(
    $1::integer[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::uuid[], $7::integer[], $8::bigint[], $9::bigint[],
    $10::bigint[], $11::bigint[]
) AS n(
    partition, fence, from_offset, from_hash, log_offset, last_hash, ledger_version, dedup_window, keys_from, feed_entries,
    feed_bytes
)
WHERE p.partition = n.partition AND p.fence = n.fence AND p.log_offset = n.from_offset AND p.last_hash = n.from_hash
RETURNING floor(extract(epoch FROM now()) / 604800)::integer, p.partition, p.feed_newest, p.feed_bytes";

const SELECT_NOW: &str = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

const SELECT_POSITION: &str = "SELECT fence, log_offset, last_hash FROM partitions WHERE partition = $1";

const SCAN_KEYS: &str = "
SELECT DISTINCT ON (hash) hash, body_hash, seq, time, log_offset, refused FROM keys
WHERE partition = $1 AND log_offset >= $2 AND hash >= $3 AND hash <> all ($4::uuid[])
ORDER BY hash, log_offset DESC LIMIT $5";

/// Selects the heads of the partition, and those written before heads had a partition column.
const SCAN_HEADS: &str = "
SELECT * FROM (
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE partition = $3 AND conversation > $1 ORDER BY conversation LIMIT $2)
    UNION ALL
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE partition IS NULL AND conversation > $1 ORDER BY conversation LIMIT $2)
) h ORDER BY conversation LIMIT $2";

/// Selects like [`SCAN_HEADS`], but only groups with settings, by their own index.
const SCAN_HEADS_WITH_SETTINGS: &str = "
SELECT * FROM (
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE settings IS NOT NULL AND partition = $3 AND conversation > $1 ORDER BY conversation LIMIT $2)
    UNION ALL
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE settings IS NOT NULL AND partition IS NULL AND conversation > $1 ORDER BY conversation LIMIT $2)
) h ORDER BY conversation LIMIT $2";

/// Returns the clock of the server, in ms since 1970.
pub(super) async fn now_ms(session: &mut Session) -> Result<u64, PostgresError> {
    let found = session.read(&[call(SELECT_NOW, &[])]).await?;
    Reader::new(found.iter().flatten().next().ok_or_else(damaged)?).big()
}

pub(super) async fn take_over(
    session: &mut Session,
    partition: i32,
    fence: Fence,
    topic: TopicId,
) -> Result<Takeover, PostgresError> {
    let start = Takeover { position: Position::START, rules: Default::default() };
    let Takeover { position, rules } = start;
    let (new_topic, new_fence, last_hash) = (stored_topic(topic), stored_fence(fence), hash(&position.hash));
    let offset = big(position.offset);
    let (version, window) = (rules.ledger_version.cast_signed(), big(rules.dedup_window));
    let keys_from = big(rules.keys_from);
    let mut take = call(TAKE_OVER, &[&partition, &new_topic, &new_fence, &offset, &last_hash]);
    take.add(&[&version, &window, &keys_from]);
    let taken = session.begin("BEGIN", &[take]).await?;
    if let Some(row) = taken.first().and_then(|rows| rows.first()) {
        let mut reader = Reader::new(row);
        let taken = Takeover { position: reader.position()?, rules: reader.rules()? };
        session.commit().await?;
        return Ok(taken);
    }
    let found = session.execute(&[call(SELECT_TOPIC, &[&partition])]).await?;
    session.roll_back().await;
    let row = found.first().and_then(|rows| rows.first());
    let row =
        row.ok_or_else(|| PostgresError::Retriable("the partition was removed concurrently".to_owned()))?;
    Err(StoreError::LogReplaced(Reader::new(row).topic()?).into())
}

/// Archive of one partition by its owner.
pub(super) struct Archive<'a> {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) delta: &'a Delta,
}

/// Columns of old and new positions.
#[derive(Default)]
struct PositionColumns {
    partition: Vec<i32>,
    fence: Vec<Uuid>,
    from: (Vec<i64>, Vec<Uuid>),
    to: (Vec<i64>, Vec<Uuid>),
    version: Vec<i32>,
    window: Vec<i64>,
    keys_from: Vec<i64>,
}

impl PositionColumns {
    fn new(archives: &[Archive<'_>]) -> Self {
        let mut moves = Self::default();
        for Archive { partition, fence, delta: Delta { from, to, rules, .. } } in archives {
            moves.partition.push(*partition);
            moves.fence.push(stored_fence(*fence));
            for (columns, position) in [(&mut moves.from, from), (&mut moves.to, to)] {
                columns.0.push(big(position.offset));
                columns.1.push(hash(&position.hash));
            }
            moves.version.push(rules.ledger_version.cast_signed());
            moves.window.push(big(rules.dedup_window));
            moves.keys_from.push(big(rules.keys_from));
        }
        moves
    }

    fn put<'a>(&'a self, feed: &'a FeedBatches) -> Call<'a> {
        let Self { partition, fence, from, to, version, window, keys_from } = self;
        let values: [Value<'_>; 9] =
            [partition, fence, &from.0, &from.1, &to.0, &to.1, version, window, keys_from];
        let mut call = call(MOVE_POSITIONS, &values);
        call.add(&[&feed.counts, &feed.bytes]);
        call
    }
}

/// Moves the positions, which locks them, then writes the rest, as a whole or not at all.
///
/// Takes two round trips, and a third for a large archive. If one of several archives is invalid, the error does not
/// identify it; the caller tries each alone.
pub(super) async fn archive(
    session: &mut Session,
    key_partitions: &KeyPartitions,
    archives: &[Archive<'_>],
    writes_feed: bool,
) -> Result<(), PostgresError> {
    let deltas: Vec<_> = archives.iter().map(|it| (it.partition, it.delta)).collect();
    let (moves, firsts) = (PositionColumns::new(archives), FirstRows::new(&deltas));
    let feed = FeedBatches::new(&deltas, writes_feed);
    let found = session.begin("BEGIN", &[moves.put(&feed), firsts.find_taken()]).await?;
    let [moved, taken] = &found[..] else { return Err(damaged()) };
    let week = match (&moved[..], archives) {
        ([row, ..], _) if moved.len() == archives.len() => Reader::new(row).get()?,
        (_, [one]) => {
            let found = session.execute(&[call(SELECT_POSITION, &[&one.partition])]).await?;
            session.roll_back().await;
            return rejection(found.first().and_then(|rows| rows.first()), one.fence, one.delta);
        }
        _ => {
            session.roll_back().await;
            return Err(PostgresError::Unavailable(
                "one of several partitions is not at its owner's position".to_owned(),
            ));
        }
    };
    if !key_partitions.has(week) {
        session.roll_back().await;
        key_partitions.create(session, week).await?;
        return Err(PostgresError::Retriable("a new week has begun".to_owned()));
    }
    firsts.refuse(taken)?;
    archive::write(session, week, &deltas, &feed.rows(&deltas, moved)?).await
}

/// Returns why a partition is not at the start of the delta: fenced, already archived, or restored.
fn rejection(row: Option<&Row>, fence: Fence, delta: &Delta) -> Result<(), PostgresError> {
    let position = owned_position(row.map(Reader::new), fence)?;
    match position {
        it if it == delta.to && delta.from != delta.to => Ok(()),
        it if it == delta.from => {
            Err(PostgresError::Retriable("the position was moved concurrently".to_owned()))
        }
        it => Err(StoreError::PositionMismatch(it).into()),
    }
}

/// Returns the partition's position, if `fence` is its fence. The next columns of the row are `fence, log_offset,
/// last_hash`.
pub(super) fn owned_position(row: Option<Reader<'_>>, fence: Fence) -> Result<Position, PostgresError> {
    let mut reader = row.ok_or(StoreError::Fenced)?;
    if reader.fence()? != fence {
        return Err(StoreError::Fenced.into());
    }
    reader.position()
}

pub(super) async fn scan(
    session: &mut Session,
    partition: i32,
    fence: Fence,
    scan: &Scan,
) -> Result<Snapshot<Loaded>, PostgresError> {
    let position = call(SELECT_POSITION, &[&partition]);
    let answers = match scan {
        Scan::Keys { from, after, limit: most } => {
            let first = hash(&after.unwrap_or(Hash16::default()));
            let not: Vec<_> = after.iter().map(hash).collect();
            let (from, most) = (bound(*from), limit(*most));
            let keys = call(SCAN_KEYS, &[&partition, &from, &first, &not, &most]);
            session.read(&[position, keys]).await?
        }
        Scan::Heads { after, limit: most, with_settings } => {
            let after = after.as_ref().map_or("", |id| id.as_str());
            let most = limit(*most);
            let heads = if *with_settings { SCAN_HEADS_WITH_SETTINGS } else { SCAN_HEADS };
            session.read(&[position, call(heads, &[&after, &most, &partition])]).await?
        }
    };
    let mut answers = answers.into_iter();
    let position = owned_position(answers.next().unwrap_or_default().first().map(Reader::new), fence)?;
    let row = |row: &Row| {
        let mut reader = Reader::new(row);
        Ok(match scan {
            Scan::Keys { .. } => {
                let (hash, key) = reader.key()?;
                Loaded::Key(hash, Some(key))
            }
            Scan::Heads { .. } => Loaded::Head(reader.conversation()?, Some(reader.head()?)),
        })
    };
    let rows: Result<_, PostgresError> = answers.next().unwrap_or_default().iter().map(row).collect();
    Ok(Snapshot { position, rows: rows? })
}

/// Small archive of one partition, which may share a transaction with others.
pub(super) struct SmallArchive {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) delta: Delta,
    pub(super) weight: usize,
}

impl BatchedQuery for SmallArchive {
    type Reply = ();
    /// If one transaction waits for a locked row, others proceed.
    const TASKS_MAX: usize = 3;
    const BATCH_SIZE_MAX: usize = archive::SMALL_ARCHIVE_ROWS;
    /// A transaction costs more than its few rows. Sent alone, archives of 150 messages a second over 64 partitions
    /// cost the server a fifth of a core per node.
    const BATCH_DELAY_MAX: Duration = Duration::from_millis(25);

    fn size(&self) -> usize {
        self.weight
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.small_archives
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<()>, StoreError> {
        let mut archives: Vec<Archive<'_>> = batch
            .iter()
            .map(|it| Archive { partition: it.partition, fence: it.fence, delta: &it.delta })
            .collect();
        // All nodes lock rows in this order, which prevents deadlocks.
        archives.sort_unstable_by_key(|it| it.partition);
        let archives = &archives[..];
        core.run(move || core.archive_once(archives)).await?;
        Ok(vec![(); batch.len()])
    }
}
