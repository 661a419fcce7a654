//! What the owner of a partition does: takes it over, archives, loads, looks through. Each is one try.

use tidegate_protocol::{
    machine::ledger::{Delta, Loaded, Need},
    record::{Hash16, Position},
};
use tokio_postgres::Row;

use super::{
    archive::{self, Firsts},
    codec::{Reader, big, bound, fence as stored, hash, limit, topic as named},
    session::{Call, Session, call},
    trouble::{Trouble, damaged},
    weeks::Weeks,
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

/// Moves the position and locks the row; gives the week, which is the table for the keys.
const MOVE: &str = "
UPDATE partitions
SET log_offset = $5, last_hash = $6, ledger_version = $7, dedup_window = $8, keys_from = $9
WHERE partition = $1 AND fence = $2 AND log_offset = $3 AND last_hash = $4
RETURNING floor(extract(epoch FROM now()) / 604800)::integer";

const STANDS: &str = "SELECT fence, log_offset, last_hash FROM partitions WHERE partition = $1";

const HEADS: &str = "
SELECT n.place, h.* FROM unnest($1::text[]) WITH ORDINALITY AS n(conversation, place)
CROSS JOIN LATERAL (
    SELECT last_seq, messages, pruned_to, deleted_seq, settings
    FROM heads h WHERE h.conversation = n.conversation LIMIT 1
) h";

const MEMBERS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(conversation, user_id, place)
CROSS JOIN LATERAL (
    SELECT role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays
    FROM members m WHERE m.conversation = n.conversation AND m.user_id = n.user_id LIMIT 1
) m";

const DEVICES: &str = "
SELECT n.place, d.* FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY
    AS n(conversation, user_id, device, place)
CROSS JOIN LATERAL (
    SELECT epoch, next_n FROM devices d
    WHERE d.conversation = n.conversation AND d.user_id = n.user_id AND d.device = n.device LIMIT 1
) d";

/// An id that was used again past the window has a key in each of two weeks: the newer counts.
const KEYS: &str = "
SELECT n.place, k.* FROM unnest($2::uuid[]) WITH ORDINALITY AS n(hash, place)
CROSS JOIN LATERAL (
    SELECT hash, body_hash, seq, time, log_offset, refused FROM keys k
    WHERE k.partition = $1 AND k.hash = n.hash ORDER BY log_offset DESC LIMIT 1
) k";

const ROWS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (
    SELECT sender, recalled_seq, recalled_time
    FROM messages m WHERE m.conversation = n.conversation AND m.seq = n.seq LIMIT 1
) m";

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

/// Moves the position first, which locks out everybody else, then writes the rest: two turns to the server, a third for what is large.
pub(super) async fn archive(
    session: &mut Session,
    weeks: &Weeks,
    partition: i32,
    fence: Fence,
    delta: &Delta,
) -> Result<(), Trouble> {
    let Delta { from, to, rules, .. } = delta;
    let (mine, from_hash, to_hash) = (stored(fence), hash(&from.hash), hash(&to.hash));
    let (from_offset, to_offset) = (big(from.offset), big(to.offset));
    let (version, window) = (rules.ledger_version.cast_signed(), big(rules.dedup_window));
    let keys_from = big(rules.keys_from);
    let mut put = call(MOVE, &[&partition, &mine, &from_offset, &from_hash, &to_offset, &to_hash]);
    put.add(&[&version, &window, &keys_from]);
    let firsts = Firsts::new(delta);
    let found = session.begin("BEGIN", &[put, firsts.ask()]).await?;
    let [moved, taken] = &found[..] else { return Err(damaged()) };
    let Some(row) = moved.first() else {
        let found = session.go_on(&[call(STANDS, &[&partition])]).await?;
        session.roll_back().await;
        return why_not(found.first().and_then(|rows| rows.first()), fence, delta);
    };
    let week = Reader::new(row).get()?;
    if !weeks.has(week) {
        session.roll_back().await;
        weeks.make(session, week).await?;
        return Err(Trouble::Again("a new week begins".to_owned()));
    }
    firsts.refuse(taken)?;
    archive::write(session, partition, week, delta).await
}

/// The partition is not where the delta begins: somebody else's, archived already, or put back.
fn why_not(row: Option<&Row>, fence: Fence, delta: &Delta) -> Result<(), Trouble> {
    let position = owned(row, fence)?;
    match position {
        it if it == delta.to && delta.from != delta.to => Ok(()),
        it if it == delta.from => Err(Trouble::Again("the partition was moved meanwhile".to_owned())),
        it => Err(StoreError::PositionMismatch(it).into()),
    }
}

/// Where the partition stands, if it is the caller's.
fn owned(row: Option<&Row>, fence: Fence) -> Result<Position, Trouble> {
    let mut reader = Reader::new(row.ok_or(StoreError::Fenced)?);
    if reader.fence()? != fence {
        return Err(StoreError::Fenced.into());
    }
    reader.position()
}

/// What is asked for, by kind, and where in the answer it goes.
#[derive(Default)]
struct Asked<'a> {
    heads: (Vec<usize>, Vec<&'a str>),
    members: (Vec<usize>, Vec<&'a str>, Vec<&'a str>),
    devices: (Vec<usize>, Vec<&'a str>, Vec<&'a str>, Vec<&'a str>),
    keys: (Vec<usize>, Vec<uuid::Uuid>),
    rows: (Vec<usize>, Vec<&'a str>, Vec<i64>),
}

impl<'a> Asked<'a> {
    fn new(needs: &'a [Need]) -> Self {
        let mut asked = Self::default();
        for (place, need) in needs.iter().enumerate() {
            match need {
                Need::Head(id) => {
                    asked.heads.0.push(place);
                    asked.heads.1.push(id.as_str());
                }
                Need::Member(id, user) => {
                    asked.members.0.push(place);
                    asked.members.1.push(id.as_str());
                    asked.members.2.push(user.as_str());
                }
                Need::Device(id, user, device) => {
                    asked.devices.0.push(place);
                    asked.devices.1.push(id.as_str());
                    asked.devices.2.push(user.as_str());
                    asked.devices.3.push(device.as_str());
                }
                Need::Key(key) => {
                    asked.keys.0.push(place);
                    asked.keys.1.push(hash(key));
                }
                Need::Row(id, seq) => {
                    asked.rows.0.push(place);
                    asked.rows.1.push(id.as_str());
                    asked.rows.2.push(bound(*seq));
                }
            }
        }
        asked
    }

    /// Only what is asked for, each with where its answers go.
    fn calls<'b>(&'b self, partition: &'b i32) -> (Vec<Call<'b>>, Vec<&'b [usize]>) {
        let Self { heads, members, devices, keys, rows } = self;
        let all = [
            (&heads.0, call(HEADS, &[&heads.1])),
            (&members.0, call(MEMBERS, &[&members.1, &members.2])),
            (&devices.0, call(DEVICES, &[&devices.1, &devices.2, &devices.3])),
            (&keys.0, call(KEYS, &[partition, &keys.1])),
            (&rows.0, call(ROWS, &[&rows.1, &rows.2])),
        ];
        all.into_iter().filter(|(places, _)| !places.is_empty()).map(|(places, it)| (it, &places[..])).unzip()
    }
}

pub(super) async fn load(
    session: &mut Session,
    partition: i32,
    fence: Fence,
    needs: &[Need],
) -> Result<Snapshot<Loaded>, Trouble> {
    let asked = Asked::new(needs);
    let (mut calls, mut places) = asked.calls(&partition);
    calls.insert(0, call(STANDS, &[&partition]));
    places.insert(0, &[]);
    let mut answers = session.read(&calls).await?.into_iter().zip(places);
    let stands = answers.next().map(|(rows, _)| rows).unwrap_or_default();
    let position = owned(stands.first(), fence)?;
    let mut rows: Vec<Loaded> = needs.iter().map(absent).collect();
    for (found, places) in answers {
        for row in &found {
            let mut reader = Reader::new(row);
            let place = places.get(reader.place()?).and_then(|place| rows.get_mut(*place));
            put(place.ok_or_else(damaged)?, &mut reader)?;
        }
    }
    Ok(Snapshot { position, rows })
}

fn absent(need: &Need) -> Loaded {
    match need.clone() {
        Need::Head(id) => Loaded::Head(id, None),
        Need::Member(id, user) => Loaded::Member(id, user, None),
        Need::Device(id, user, device) => Loaded::Device(id, user, device, None),
        Need::Key(key) => Loaded::Key(key, None),
        Need::Row(id, seq) => Loaded::Row(id, seq, None),
    }
}

fn put(place: &mut Loaded, reader: &mut Reader<'_>) -> Result<(), Trouble> {
    match place {
        Loaded::Head(_, it) => *it = Some(reader.head()?),
        Loaded::Member(_, _, it) => *it = Some(reader.member()?),
        Loaded::Device(_, _, _, it) => *it = Some(reader.device()?),
        Loaded::Key(_, it) => *it = Some(reader.key()?.1),
        Loaded::Row(_, _, it) => *it = Some(reader.row_head()?),
    }
    Ok(())
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
    let position = owned(answers.next().unwrap_or_default().first(), fence)?;
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
