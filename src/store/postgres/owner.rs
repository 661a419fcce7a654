//! What the owner of a partition does: takes it over, archives, looks through. Each is one try.

use tidegate_protocol::{
    machine::ledger::{Delta, Loaded},
    record::{Hash16, Position},
};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{
    archive::{self, Firsts},
    codec::{Reader, big, bound, fence as stored, hash, limit, topic as named},
    error::{Trouble, damaged},
    key_partitions::Weeks,
    session::{Call, Session, call},
};
use crate::{
    bus::TopicId,
    store::{Fence, Scan, Snapshot, StoreError, TakenOver},
};

/// A partition that was never archived takes the topic; one of another topic gives no row.
const TAKE: &str = "
INSERT INTO partitions (partition, topic, fence, log_offset, last_hash, ledger_version, dedup_window, keys_from)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (partition) DO UPDATE SET fence = EXCLUDED.fence, topic = EXCLUDED.topic
WHERE partitions.topic = EXCLUDED.topic
   OR (partitions.log_offset = EXCLUDED.log_offset AND partitions.last_hash = EXCLUDED.last_hash)
RETURNING log_offset, last_hash, ledger_version, dedup_window, keys_from";

const TOPIC: &str = "SELECT topic FROM partitions WHERE partition = $1";

/// Moves the positions and locks the rows, in this order; gives the week for each, which is the table for the keys.
const MOVE: &str = "
UPDATE partitions p SET
    log_offset = n.log_offset, last_hash = n.last_hash, ledger_version = n.ledger_version,
    dedup_window = n.dedup_window, keys_from = n.keys_from
FROM unnest(
    $1::integer[], $2::uuid[], $3::bigint[], $4::uuid[], $5::bigint[], $6::uuid[], $7::integer[], $8::bigint[], $9::bigint[]
) AS n(partition, fence, from_offset, from_hash, log_offset, last_hash, ledger_version, dedup_window, keys_from)
WHERE p.partition = n.partition AND p.fence = n.fence AND p.log_offset = n.from_offset AND p.last_hash = n.from_hash
RETURNING floor(extract(epoch FROM now()) / 604800)::integer";

const STANDS: &str = "SELECT fence, log_offset, last_hash FROM partitions WHERE partition = $1";

const SCAN_KEYS: &str = "
SELECT DISTINCT ON (hash) hash, body_hash, seq, time, log_offset, refused FROM keys
WHERE partition = $1 AND log_offset >= $2 AND hash >= $3 AND hash <> all ($4::uuid[])
ORDER BY hash, log_offset DESC LIMIT $5";

/// Those of the partition, and those that were written before heads knew theirs.
const SCAN_HEADS: &str = "
SELECT * FROM (
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE partition = $3 AND conversation > $1 ORDER BY conversation LIMIT $2)
    UNION ALL
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE partition IS NULL AND conversation > $1 ORDER BY conversation LIMIT $2)
) h ORDER BY conversation LIMIT $2";

/// The same of groups with settings, by an index of their own.
const SCAN_SET_HEADS: &str = "
SELECT * FROM (
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE settings IS NOT NULL AND partition = $3 AND conversation > $1 ORDER BY conversation LIMIT $2)
    UNION ALL
    (SELECT conversation, last_seq, messages, pruned_to, deleted_seq, settings FROM heads
     WHERE settings IS NOT NULL AND partition IS NULL AND conversation > $1 ORDER BY conversation LIMIT $2)
) h ORDER BY conversation LIMIT $2";

pub(super) async fn take_over(
    session: &mut Session,
    partition: i32,
    fence: Fence,
    topic: TopicId,
) -> Result<TakenOver, Trouble> {
    let start = TakenOver { position: Position::START, rules: Default::default() };
    let TakenOver { position, rules } = start;
    let (new_topic, new_fence, last_hash) = (named(topic), stored(fence), hash(&position.hash));
    let offset = big(position.offset);
    let (version, window) = (rules.ledger_version.cast_signed(), big(rules.dedup_window));
    let keys_from = big(rules.keys_from);
    let mut take = call(TAKE, &[&partition, &new_topic, &new_fence, &offset, &last_hash]);
    take.add(&[&version, &window, &keys_from]);
    let taken = session.begin("BEGIN", &[take]).await?;
    if let Some(row) = taken.first().and_then(|rows| rows.first()) {
        let mut reader = Reader::new(row);
        let taken = TakenOver { position: reader.position()?, rules: reader.rules()? };
        session.commit().await?;
        return Ok(taken);
    }
    let found = session.go_on(&[call(TOPIC, &[&partition])]).await?;
    session.roll_back().await;
    let row = found.first().and_then(|rows| rows.first());
    let row = row.ok_or_else(|| Trouble::Again("the partition was taken away meanwhile".to_owned()))?;
    Err(StoreError::LogReplaced(Reader::new(row).topic()?).into())
}

/// What the owner of one partition archives.
pub(super) struct Archive<'a> {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) delta: &'a Delta,
}

/// Columns of positions.
#[derive(Default)]
struct Moves {
    partition: Vec<i32>,
    fence: Vec<Uuid>,
    from: (Vec<i64>, Vec<Uuid>),
    to: (Vec<i64>, Vec<Uuid>),
    version: Vec<i32>,
    window: Vec<i64>,
    keys_from: Vec<i64>,
}

impl Moves {
    fn new(archives: &[Archive<'_>]) -> Self {
        let mut moves = Self::default();
        for Archive { partition, fence, delta: Delta { from, to, rules, .. } } in archives {
            moves.partition.push(*partition);
            moves.fence.push(stored(*fence));
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

    fn put(&self) -> Call<'_> {
        let Self { partition, fence, from, to, version, window, keys_from } = self;
        call(MOVE, &[partition, fence, &from.0, &from.1, &to.0, &to.1, version, window, keys_from])
    }
}

/// Moves the positions first, which locks out everybody else, then writes the rest: two turns to the server, a third for what is large.
/// All of it or nothing. Of several, which of them is in the way is found by trying each alone.
pub(super) async fn archive(
    session: &mut Session,
    weeks: &Weeks,
    archives: &[Archive<'_>],
) -> Result<(), Trouble> {
    let deltas: Vec<_> = archives.iter().map(|it| (it.partition, it.delta)).collect();
    let (moves, firsts) = (Moves::new(archives), Firsts::new(&deltas));
    let found = session.begin("BEGIN", &[moves.put(), firsts.ask()]).await?;
    let [moved, taken] = &found[..] else { return Err(damaged()) };
    let week = match (&moved[..], archives) {
        ([row, ..], _) if moved.len() == archives.len() => Reader::new(row).get()?,
        (_, [one]) => {
            let found = session.go_on(&[call(STANDS, &[&one.partition])]).await?;
            session.roll_back().await;
            return why_not(found.first().and_then(|rows| rows.first()), one.fence, one.delta);
        }
        _ => {
            session.roll_back().await;
            return Err(Trouble::Away("a partition of several is not where its owner left it".to_owned()));
        }
    };
    if !weeks.has(week) {
        session.roll_back().await;
        weeks.make(session, week).await?;
        return Err(Trouble::Again("a new week begins".to_owned()));
    }
    firsts.refuse(taken)?;
    archive::write(session, week, &deltas).await
}

/// The partition is not where the delta begins: somebody else's, archived already, or put back.
fn why_not(row: Option<&Row>, fence: Fence, delta: &Delta) -> Result<(), Trouble> {
    let position = owned(row.map(Reader::new), fence)?;
    match position {
        it if it == delta.to && delta.from != delta.to => Ok(()),
        it if it == delta.from => Err(Trouble::Again("the partition was moved meanwhile".to_owned())),
        it => Err(StoreError::PositionMismatch(it).into()),
    }
}

/// Where the partition stands, if it is the caller's; the row goes on with `fence, log_offset, last_hash`.
pub(super) fn owned(row: Option<Reader<'_>>, fence: Fence) -> Result<Position, Trouble> {
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
) -> Result<Snapshot<Loaded>, Trouble> {
    let stands = call(STANDS, &[&partition]);
    let answers = match scan {
        Scan::Keys { from, after, limit: most } => {
            let first = hash(&after.unwrap_or(Hash16::default()));
            let not: Vec<_> = after.iter().map(hash).collect();
            let (from, most) = (bound(*from), limit(*most));
            let keys = call(SCAN_KEYS, &[&partition, &from, &first, &not, &most]);
            session.read(&[stands, keys]).await?
        }
        Scan::Heads { after, limit: most, with_settings } => {
            let after = after.as_ref().map_or("", |id| id.as_str());
            let most = limit(*most);
            let heads = if *with_settings { SCAN_SET_HEADS } else { SCAN_HEADS };
            session.read(&[stands, call(heads, &[&after, &most, &partition])]).await?
        }
    };
    let mut answers = answers.into_iter();
    let position = owned(answers.next().unwrap_or_default().first().map(Reader::new), fence)?;
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
    let rows: Result<_, Trouble> = answers.next().unwrap_or_default().iter().map(row).collect();
    Ok(Snapshot { position, rows: rows? })
}
