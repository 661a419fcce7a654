//! Loader of rows that owners do not have in memory, by name, for many partitions in one round trip (ADR 10).
//!
//! Each message needs a lookup of its dedup key, and each of 64 partitions has few messages at a time: sent
//! separately, the overhead around that one row was most of the cost.

use tidegate_protocol::machine::ledger::{Loaded, Need};
use uuid::Uuid;

use super::{
    Core,
    batcher::{BatchedQuery, Batcher},
    codec::{Reader, bound, hash},
    error::{PostgresError, damaged},
    owner::owned_position,
    session::{Call, Session, call},
};
use crate::store::{Fence, Snapshot, StoreError};

const SELECT_POSITIONS: &str = "
SELECT n.place, p.* FROM unnest($1::integer[]) WITH ORDINALITY AS n(partition, place)
CROSS JOIN LATERAL (
    SELECT fence, log_offset, last_hash FROM partitions p WHERE p.partition = n.partition LIMIT 1
) p";

const SELECT_HEADS: &str = "
SELECT n.place, h.* FROM unnest($1::text[]) WITH ORDINALITY AS n(conversation, place)
CROSS JOIN LATERAL (
    SELECT last_seq, messages, pruned_to, deleted_seq, settings
    FROM heads h WHERE h.conversation = n.conversation LIMIT 1
) h";

const SELECT_MEMBERS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(conversation, user_id, place)
CROSS JOIN LATERAL (
    SELECT role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays
    FROM members m WHERE m.conversation = n.conversation AND m.user_id = n.user_id LIMIT 1
) m";

const SELECT_DEVICES: &str = "
SELECT n.place, d.* FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY
    AS n(conversation, user_id, device, place)
CROSS JOIN LATERAL (
    SELECT epoch, next_n FROM devices d
    WHERE d.conversation = n.conversation AND d.user_id = n.user_id AND d.device = n.device LIMIT 1
) d";

/// Selects keys. An id reused beyond the dedup window has a key in two weeks: the newer one counts.
const SELECT_KEYS: &str = "
SELECT n.place, k.* FROM unnest($1::integer[], $2::uuid[]) WITH ORDINALITY AS n(partition, hash, place)
CROSS JOIN LATERAL (
    SELECT hash, body_hash, seq, time, log_offset, refused FROM keys k
    WHERE k.partition = n.partition AND k.hash = n.hash ORDER BY log_offset DESC LIMIT 1
) k";

/// Selects positions and keys in one statement, for loads of nothing but keys, as for most messages.
///
/// A single statement is its own snapshot and costs less than half of a transaction.
const SELECT_POSITIONS_AND_KEYS: &str = "
SELECT n.place, p.*, k.hash IS NOT NULL, k.* FROM unnest($1::integer[], $2::uuid[]) WITH ORDINALITY AS n(partition, hash, place)
CROSS JOIN LATERAL (
    SELECT fence, log_offset, last_hash FROM partitions p WHERE p.partition = n.partition LIMIT 1
) p
LEFT JOIN LATERAL (
    SELECT hash, body_hash, seq, time, log_offset, refused FROM keys k
    WHERE k.partition = n.partition AND k.hash = n.hash ORDER BY log_offset DESC LIMIT 1
) k ON true";

const SELECT_ROWS: &str = "
SELECT n.place, m.* FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (
    SELECT recalled_seq, recalled_time, record
    FROM messages m WHERE m.conversation = n.conversation AND m.seq = n.seq LIMIT 1
) m";

/// Number of columns of a position: `fence, log_offset, last_hash`.
const POSITION_COLUMNS: usize = 3;

/// Rows that the owner of one partition needs.
pub(super) struct Load {
    pub(super) partition: i32,
    pub(super) fence: Fence,
    pub(super) needs: Vec<Need>,
}

/// Rows in a snapshot with the partition's position, or the error of this partition alone.
pub(super) type Reply = Result<Snapshot<Loaded>, StoreError>;

/// Requested rows by kind, each with its index in the result.
#[derive(Default)]
struct LoadPlan<'a> {
    heads: (Vec<usize>, Vec<&'a str>),
    members: (Vec<usize>, Vec<&'a str>, Vec<&'a str>),
    devices: (Vec<usize>, Vec<&'a str>, Vec<&'a str>, Vec<&'a str>),
    keys: (Vec<usize>, Vec<i32>, Vec<Uuid>),
    rows: (Vec<usize>, Vec<&'a str>, Vec<i64>),
}

impl<'a> LoadPlan<'a> {
    fn new(loads: &'a [&Load]) -> Self {
        let mut plan = Self::default();
        let needs = loads.iter().flat_map(|load| load.needs.iter().map(|need| (load.partition, need)));
        for (index, (partition, need)) in needs.enumerate() {
            match need {
                Need::Head(id) => {
                    plan.heads.0.push(index);
                    plan.heads.1.push(id.as_str());
                }
                Need::Member(id, user) => {
                    plan.members.0.push(index);
                    plan.members.1.push(id.as_str());
                    plan.members.2.push(user.as_str());
                }
                Need::Device(id, user, device) => {
                    plan.devices.0.push(index);
                    plan.devices.1.push(id.as_str());
                    plan.devices.2.push(user.as_str());
                    plan.devices.3.push(device.as_str());
                }
                Need::Key(key) => {
                    plan.keys.0.push(index);
                    plan.keys.1.push(partition);
                    plan.keys.2.push(hash(key));
                }
                Need::Row(id, seq) => {
                    plan.rows.0.push(index);
                    plan.rows.1.push(id.as_str());
                    plan.rows.2.push(bound(*seq));
                }
            }
        }
        plan
    }

    /// Returns whether every load consists of keys only.
    fn has_only_keys(&self, loads: &[&Load]) -> bool {
        let Self { heads, members, devices, rows, .. } = self;
        let others = [&heads.0, &members.0, &devices.0, &rows.0];
        others.iter().all(|indexes| indexes.is_empty()) && loads.iter().all(|load| !load.needs.is_empty())
    }

    /// Returns a call for each requested kind, and the indexes of its results.
    fn calls(&self) -> (Vec<Call<'_>>, Vec<&[usize]>) {
        let Self { heads, members, devices, keys, rows } = self;
        let all = [
            (&heads.0, call(SELECT_HEADS, &[&heads.1])),
            (&members.0, call(SELECT_MEMBERS, &[&members.1, &members.2])),
            (&devices.0, call(SELECT_DEVICES, &[&devices.1, &devices.2, &devices.3])),
            (&keys.0, call(SELECT_KEYS, &[&keys.1, &keys.2])),
            (&rows.0, call(SELECT_ROWS, &[&rows.1, &rows.2])),
        ];
        all.into_iter()
            .filter(|(indexes, _)| !indexes.is_empty())
            .map(|(indexes, it)| (it, &indexes[..]))
            .unzip()
    }
}

/// Loads the rows of all loads in one snapshot, and returns a reply per load, in order.
pub(super) async fn load(session: &mut Session, loads: &[&Load]) -> Result<Vec<Reply>, PostgresError> {
    let plan = LoadPlan::new(loads);
    if plan.has_only_keys(loads) {
        return keys(session, loads, &plan).await;
    }
    let partitions: Vec<i32> = loads.iter().map(|load| load.partition).collect();
    let (mut calls, indexes) = plan.calls();
    calls.insert(0, call(SELECT_POSITIONS, &[&partitions]));
    let mut answers = session.read(&calls).await?.into_iter();
    let position_rows = answers.next().unwrap_or_default();
    let mut positions: Vec<Option<Reader<'_>>> = loads.iter().map(|_| None).collect();
    for row in &position_rows {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        *positions.get_mut(index).ok_or_else(damaged)? = Some(reader);
    }
    let mut rows: Vec<Loaded> = loads.iter().flat_map(|load| &load.needs).map(absent).collect();
    for (found, indexes) in answers.zip(indexes) {
        for row in &found {
            let mut reader = Reader::new(row);
            let row = indexes.get(reader.index()?).and_then(|index| rows.get_mut(*index));
            put(row.ok_or_else(damaged)?, &mut reader)?;
        }
    }
    distribute(loads, rows, positions)
}

/// Loads like [`load`], for loads of nothing but keys.
async fn keys(
    session: &mut Session,
    loads: &[&Load],
    plan: &LoadPlan<'_>,
) -> Result<Vec<Reply>, PostgresError> {
    let (_, partitions, hashes) = &plan.keys;
    let found = session.read(&[call(SELECT_POSITIONS_AND_KEYS, &[partitions, hashes])]).await?;
    let mut positions: Vec<Option<Reader<'_>>> = loads.iter().map(|_| None).collect();
    let mut rows: Vec<Loaded> = loads.iter().flat_map(|load| &load.needs).map(absent).collect();
    let load_of: Vec<usize> =
        loads.iter().enumerate().flat_map(|(nth, load)| load.needs.iter().map(move |_| nth)).collect();
    for row in found.iter().flatten() {
        let mut reader = Reader::new(row);
        let index = reader.index()?;
        let (row, nth) = rows.get_mut(index).zip(load_of.get(index)).ok_or_else(damaged)?;
        positions[*nth] = Some(reader.clone());
        reader.skip(POSITION_COLUMNS);
        if reader.get()? {
            put(row, &mut reader)?;
        }
    }
    distribute(loads, rows, positions)
}

/// Splits the rows into a reply per load; a load of a partition with another fence gets an error.
fn distribute(
    loads: &[&Load],
    rows: Vec<Loaded>,
    positions: Vec<Option<Reader<'_>>>,
) -> Result<Vec<Reply>, PostgresError> {
    let mut rows = rows.into_iter();
    let mut all = Vec::with_capacity(loads.len());
    for (load, position_row) in loads.iter().zip(positions) {
        let rows: Vec<Loaded> = rows.by_ref().take(load.needs.len()).collect();
        all.push(match owned_position(position_row, load.fence) {
            Ok(position) => Ok(Snapshot { position, rows }),
            // The error concerns this partition only.
            Err(PostgresError::Store(error)) => Err(error),
            Err(error) => return Err(error),
        });
    }
    Ok(all)
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

fn put(row: &mut Loaded, reader: &mut Reader<'_>) -> Result<(), PostgresError> {
    match row {
        Loaded::Head(_, it) => *it = Some(reader.head()?),
        Loaded::Member(_, _, it) => *it = Some(reader.member()?),
        Loaded::Device(_, _, _, it) => *it = Some(reader.device()?),
        Loaded::Key(_, it) => *it = Some(reader.key()?.1),
        Loaded::Row(_, _, it) => *it = Some(reader.row_head()?),
    }
    Ok(())
}

impl BatchedQuery for Load {
    type Reply = Reply;
    /// A large load of a new owner leaves connections for those of running owners.
    const TASKS_MAX: usize = 3;
    const BATCH_SIZE_MAX: usize = 1_000;

    fn size(&self) -> usize {
        self.needs.len()
    }

    fn batcher(core: &Core) -> &Batcher<Self> {
        &core.loads
    }

    async fn execute(core: &Core, batch: &[&Self]) -> Result<Vec<Self::Reply>, StoreError> {
        core.run(move || async move { load(&mut core.owners().await?, batch).await }).await
    }
}
