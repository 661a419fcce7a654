//! Writes of ledger deltas: one statement per kind of row, with its columns as arrays.
//!
//! Arrays are used instead of COPY: to the server, an owner that freezes within a COPY is not idle, so the server would
//! wait for it with the partition's row locked (flaw S10, ADR 10). Each statement here is one message.

use std::collections::{HashMap, HashSet};

use tidegate_protocol::{
    Code,
    id::ConversationId,
    machine::ledger::{Delta, Key, Member, Recalled, Row},
    record::{Body, Hash16},
};
use tokio_postgres::Row as PgRow;
use uuid::Uuid;

use super::{
    codec::{self, Reader, big, hash},
    error::PostgresError,
    session::{Call, Session, call},
};
use crate::store::StoreError;

/// Query for the first row whose seq is not above its conversation's last seq, so that it exists or did.
const FIND_TAKEN_SEQ: &str = "
SELECT n.place FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (SELECT last_seq FROM heads h WHERE h.conversation = n.conversation LIMIT 1) h
WHERE n.seq <= h.last_seq ORDER BY n.place LIMIT 1";

/// Query for the first of the rows that is stored.
const FIND_STORED_ROW: &str = "
SELECT n.place FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS n(conversation, seq, place)
CROSS JOIN LATERAL (
    SELECT true FROM messages m WHERE m.conversation = n.conversation AND m.seq = n.seq LIMIT 1
) m
ORDER BY n.place LIMIT 1";

const INSERT_ROWS: &str = "
INSERT INTO messages (conversation, seq, ordinal, own, log_offset, recalled_seq, recalled_time, sender, record, content)
SELECT * FROM unnest(
    $1::text[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
    $9::bytea[], $10::bytea[]
)";

const RECALL_ROW: &str = "
UPDATE messages SET recalled_seq = $3, recalled_time = $4, content = '' WHERE conversation = $1 AND seq = $2";

const PRUNE_ROWS: &str = "DELETE FROM messages WHERE conversation = $1 AND seq <= $2";

/// Writes members, memberships of new members, and heads with their member counts.
///
/// Returns the changes of the counts of conversations without a head in this statement. All parts see the rows as they
/// were before it.
const PUT_MEMBERS_AND_HEADS: &str = "
WITH d AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::text[], $2::text[], $3::smallint[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[]
    ) AS d(conversation, user_id, role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays)
), old AS MATERIALIZED (
    SELECT d.conversation, d.user_id, d.left_seq, m.left_seq AS before FROM d LEFT JOIN LATERAL (
        SELECT left_seq FROM members m WHERE m.conversation = d.conversation AND m.user_id = d.user_id LIMIT 1
    ) m ON true
), put AS (
    INSERT INTO members SELECT * FROM d ON CONFLICT (conversation, user_id) DO UPDATE SET
        role = EXCLUDED.role, muted = EXCLUDED.muted, joined_seq = EXCLUDED.joined_seq,
        left_seq = EXCLUDED.left_seq, sent = EXCLUDED.sent, joined_messages = EXCLUDED.joined_messages,
        left_messages = EXCLUDED.left_messages, stays = EXCLUDED.stays
), new AS (
    INSERT INTO memberships SELECT user_id, conversation FROM old WHERE before IS NULL ON CONFLICT DO NOTHING
), changes AS MATERIALIZED (
    SELECT conversation, sum((left_seq = 0)::integer - coalesce((before = 0)::integer, 0)) AS change
    FROM old GROUP BY conversation
), h AS MATERIALIZED (
    SELECT * FROM unnest(
        $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[], $17::integer[]
    ) AS h(conversation, last_seq, messages, pruned_to, deleted_seq, settings, partition)
), heads_put AS (
    INSERT INTO heads
    SELECT h.conversation, h.last_seq, h.messages, h.pruned_to, h.deleted_seq, h.settings, coalesce(c.change, 0), h.partition
    FROM h LEFT JOIN changes c ON c.conversation = h.conversation
    ON CONFLICT (conversation) DO UPDATE SET
        last_seq = EXCLUDED.last_seq, messages = EXCLUDED.messages, pruned_to = EXCLUDED.pruned_to,
        deleted_seq = EXCLUDED.deleted_seq, settings = EXCLUDED.settings,
        members = heads.members + EXCLUDED.members, partition = EXCLUDED.partition
)
SELECT conversation, change::bigint FROM changes c
WHERE change <> 0 AND NOT EXISTS (SELECT FROM h WHERE h.conversation = c.conversation)";

const CHANGE_MEMBER_COUNT: &str = "UPDATE heads SET members = members + $2 WHERE conversation = $1";

const INSERT_STAYS: &str = "
INSERT INTO stays SELECT * FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[]
) ON CONFLICT DO NOTHING";

const PUT_DEVICES: &str = "
INSERT INTO devices SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
ON CONFLICT (conversation, user_id, device) DO UPDATE SET epoch = EXCLUDED.epoch, next_n = EXCLUDED.next_n";

/// Writes keys, one per id and week; if an id has keys in several weeks, the newest counts.
const PUT_KEYS: &str = "
WITH d AS MATERIALIZED (
    SELECT * FROM unnest($2::integer[], $3::uuid[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::integer[])
    AS d(partition, hash, body_hash, seq, time, log_offset, refused)
), week AS (
    INSERT INTO key_weeks SELECT $1::integer, partition, max(log_offset) + 1 FROM d GROUP BY partition
    ON CONFLICT (week, partition) DO UPDATE SET below = greatest(key_weeks.below, EXCLUDED.below)
)
INSERT INTO keys (partition, hash, week, body_hash, seq, time, log_offset, refused)
SELECT partition, hash, $1::integer, body_hash, seq, time, log_offset, refused FROM d
ON CONFLICT (partition, hash, week) DO UPDATE SET
    body_hash = EXCLUDED.body_hash, seq = EXCLUDED.seq, time = EXCLUDED.time, log_offset = EXCLUDED.log_offset,
    refused = EXCLUDED.refused";

/// Columns of new rows of history.
#[derive(Default)]
pub(super) struct RowColumns<'a> {
    conversation: Vec<&'a str>,
    seq: Vec<i64>,
    ordinal: Vec<i64>,
    own: Vec<i64>,
    offset: Vec<i64>,
    recalled_seq: Vec<Option<i64>>,
    recalled_time: Vec<Option<i64>>,
    sender: Vec<Option<&'a str>>,
    record: Vec<Vec<u8>>,
    content: Vec<&'a [u8]>,
    /// Recalls of rows archived earlier.
    recalled: Vec<(&'a str, i64, i64, i64)>,
}

impl<'a> RowColumns<'a> {
    fn add(&mut self, delta: &'a Delta) -> Result<(), PostgresError> {
        let pruned: HashMap<_, _> = delta.pruned.iter().map(|it| (&it.conversation, it.up_to)).collect();
        let is_gone = |id: &ConversationId, seq: u64| pruned.get(id).is_some_and(|up_to| seq <= *up_to);
        let mut recalled: HashMap<_, _> =
            delta.recalled.iter().map(|it| ((&it.conversation, it.seq), it)).collect();
        for row in &delta.rows {
            let Some(id) = row.body.conversation() else { continue };
            let by = recalled.remove(&(id, row.seq));
            if !is_gone(id, row.seq) {
                self.push(id, row, by)?;
            }
        }
        for ((id, seq), it) in recalled {
            self.recalled.push((id.as_str(), big(seq), big(it.by.0), big(it.by.1)));
        }
        Ok(())
    }

    fn push(
        &mut self,
        id: &'a ConversationId,
        row: &'a Row,
        recalled: Option<&Recalled>,
    ) -> Result<(), PostgresError> {
        let (sender, content) = match &row.body {
            Body::Message(message) => (Some(message.sender.as_str()), &message.content[..]),
            _ => (None, &[][..]),
        };
        self.conversation.push(id.as_str());
        self.seq.push(big(row.seq));
        self.ordinal.push(big(row.ordinal));
        self.own.push(big(row.own));
        self.offset.push(big(row.offset));
        self.recalled_seq.push(recalled.map(|it| big(it.by.0)));
        self.recalled_time.push(recalled.map(|it| big(it.by.1)));
        self.sender.push(sender);
        self.record.push(codec::put_record(row)?);
        self.content.push(if recalled.is_some() { &[] } else { content });
        Ok(())
    }

    fn bytes(&self) -> usize {
        let records: usize = self.record.iter().map(Vec::len).sum();
        records + self.content.iter().map(|it| it.len()).sum::<usize>()
    }

    fn insert(&self) -> Call<'_> {
        let Self { conversation, seq, ordinal, own, offset, sender, record, content, .. } = self;
        let (recalled_seq, recalled_time) = (&self.recalled_seq, &self.recalled_time);
        call(
            INSERT_ROWS,
            &[conversation, seq, ordinal, own, offset, recalled_seq, recalled_time, sender, record, content],
        )
    }
}

/// Columns of members and heads.
#[derive(Default)]
struct MemberColumns<'a> {
    conversation: Vec<&'a str>,
    user: Vec<&'a str>,
    role: Vec<i16>,
    muted: Vec<bool>,
    numbers: [Vec<i64>; 6],
    head: Vec<&'a str>,
    head_numbers: [Vec<i64>; 4],
    settings: Vec<Option<String>>,
    partition: Vec<i32>,
}

impl<'a> MemberColumns<'a> {
    fn add(&mut self, partition: i32, delta: &'a Delta) {
        for (id, user, member) in &delta.members {
            let Member { joined_seq, left_seq, sent, joined_messages, left_messages, stays, muted, .. } =
                *member;
            self.conversation.push(id.as_str());
            self.user.push(user.as_str());
            self.role.push(codec::role(member));
            self.muted.push(muted);
            let numbers = [joined_seq, left_seq, sent, joined_messages, left_messages, u64::from(stays)];
            push_all(&mut self.numbers, numbers);
        }
        for (id, head) in &delta.heads {
            self.head.push(id.as_str());
            let numbers = [head.last_seq, head.messages, head.pruned_to, head.deleted_seq];
            push_all(&mut self.head_numbers, numbers);
            self.settings.push(codec::settings(head));
            self.partition.push(partition);
        }
    }

    /// Returns whether each conversation with changed members has its head in this delta, so that no other head
    /// changes.
    fn are_counted(&self) -> bool {
        let heads: HashSet<&str> = self.head.iter().copied().collect();
        self.conversation.iter().all(|id| heads.contains(id))
    }

    fn put(&self) -> Call<'_> {
        let Self { conversation, user, role, muted, numbers, head, head_numbers, settings, partition } = self;
        let [joined, left, sent, joined_messages, left_messages, stays] = numbers;
        let [last_seq, messages, pruned_to, deleted_seq] = head_numbers;
        let mut call = call(PUT_MEMBERS_AND_HEADS, &[conversation, user, role, muted, joined, left, sent]);
        call.add(&[joined_messages, left_messages, stays, head, last_seq, messages, pruned_to]);
        call.add(&[deleted_seq, settings, partition]);
        call
    }
}

fn push_all<const N: usize>(columns: &mut [Vec<i64>; N], numbers: [u64; N]) {
    for (column, number) in columns.iter_mut().zip(numbers) {
        column.push(big(number));
    }
}

/// Columns of dedup keys.
#[derive(Default)]
struct KeyColumns {
    partition: Vec<i32>,
    hash: Vec<Uuid>,
    body_hash: Vec<Uuid>,
    numbers: [Vec<i64>; 3],
    refused: Vec<i32>,
}

impl KeyColumns {
    fn add(&mut self, partition: i32, keys: &[(Hash16, Key)]) {
        for (name, key) in keys {
            self.partition.push(partition);
            self.hash.push(hash(name));
            self.body_hash.push(hash(&key.body_hash));
            push_all(&mut self.numbers, [key.seq, key.time, key.offset]);
            self.refused.push(key.refused.map_or(0, Code::number).into());
        }
    }

    fn put<'b>(&'b self, week: &'b i32) -> Call<'b> {
        let Self { partition, hash, body_hash, numbers: [seq, time, offset], refused } = self;
        call(PUT_KEYS, &[week, partition, hash, body_hash, seq, time, offset, refused])
    }
}

/// Columns of earlier stays and of devices.
#[derive(Default)]
struct StayColumns<'a> {
    stay_ids: [Vec<&'a str>; 2],
    stay_numbers: [Vec<i64>; 4],
    device_ids: [Vec<&'a str>; 3],
    device_numbers: [Vec<i64>; 2],
}

impl<'a> StayColumns<'a> {
    fn add(&mut self, delta: &'a Delta) {
        for (id, user, it) in &delta.stays {
            push_ids(&mut self.stay_ids, [id.as_str(), user.as_str()]);
            let numbers = [it.joined_seq, it.left_seq, it.joined_messages, it.left_messages];
            push_all(&mut self.stay_numbers, numbers);
        }
        for (id, user, device, it) in &delta.devices {
            push_ids(&mut self.device_ids, [id.as_str(), user.as_str(), device.as_str()]);
            push_all(&mut self.device_numbers, [it.epoch, it.next_n]);
        }
    }

    fn put<'b>(&'b self, calls: &mut Vec<Call<'b>>) {
        let [id, user] = &self.stay_ids;
        let [joined, left, joined_messages, left_messages] = &self.stay_numbers;
        if !id.is_empty() {
            calls.push(call(INSERT_STAYS, &[id, user, joined, left, joined_messages, left_messages]));
        }
        let ([id, user, device], [epoch, next_n]) = (&self.device_ids, &self.device_numbers);
        if !id.is_empty() {
            calls.push(call(PUT_DEVICES, &[id, user, device, epoch, next_n]));
        }
    }
}

fn push_ids<'a, const N: usize>(columns: &mut [Vec<&'a str>; N], ids: [&'a str; N]) {
    for (column, id) in columns.iter_mut().zip(ids) {
        column.push(id);
    }
}

/// Rows up to which the COMMIT is sent together with the writes. A larger archive sends it separately: if its writes
/// fail because they are too large, the owner must know that nothing happened.
pub(super) const SMALL_ARCHIVE_ROWS: usize = 256;
const SMALL_ARCHIVE_BYTES: usize = 1024 * 1024;

/// Estimated size of a record without its content.
const RECORD_BYTES: usize = 256;

/// Returns the weight of a delta in a shared transaction of at most [`SMALL_ARCHIVE_ROWS`].
///
/// `None` if the delta needs its own transaction.
pub(super) fn weight(delta: &Delta) -> Option<usize> {
    let Delta { rows, recalled, pruned, heads, members, stays, devices, keys, .. } = delta;
    let counted: HashSet<&ConversationId> = heads.iter().map(|(id, _)| id).collect();
    let is_plain = recalled.is_empty() && pruned.is_empty();
    let is_counted = members.iter().all(|(id, ..)| counted.contains(id));
    let content = |row: &Row| match &row.body {
        Body::Message(message) => message.content.len(),
        _ => 0,
    };
    // Apart from their content, records are short.
    let bytes: usize = rows.iter().map(|row| content(row) + RECORD_BYTES).sum();
    let all = rows.len() + heads.len() + members.len() + stays.len() + devices.len() + keys.len();
    let weight = all.max(bytes.div_ceil(SMALL_ARCHIVE_BYTES / SMALL_ARCHIVE_ROWS)).max(1);
    (is_plain && is_counted && weight <= SMALL_ARCHIVE_ROWS / 2).then_some(weight)
}

/// Writes the deltas of these partitions, except their positions, in the session's transaction, and commits it.
pub(super) async fn write(
    session: &mut Session,
    week: i32,
    deltas: &[(i32, &Delta)],
) -> Result<(), PostgresError> {
    let (mut rows, mut members, mut others) =
        (RowColumns::default(), MemberColumns::default(), StayColumns::default());
    let (mut keys, mut pruned) = (KeyColumns::default(), Vec::new());
    for (partition, delta) in deltas {
        rows.add(delta)?;
        members.add(*partition, delta);
        others.add(delta);
        keys.add(*partition, &delta.keys);
        pruned.extend(delta.pruned.iter().map(|it| (it.conversation.as_str(), codec::bound(it.up_to))));
    }
    let mut calls = Vec::new();
    if !rows.seq.is_empty() {
        calls.push(rows.insert());
    }
    calls.extend(rows.recalled.iter().map(|it| call(RECALL_ROW, &[&it.0, &it.1, &it.2, &it.3])));
    calls.extend(pruned.iter().map(|it| call(PRUNE_ROWS, &[&it.0, &it.1])));
    others.put(&mut calls);
    if !keys.hash.is_empty() {
        calls.push(keys.put(&week));
    }
    calls.push(members.put());
    let size = rows.seq.len() + keys.hash.len() + members.conversation.len() + members.head.len();
    let is_small = size <= SMALL_ARCHIVE_ROWS && rows.bytes() <= SMALL_ARCHIVE_BYTES && pruned.is_empty();
    if is_small && members.are_counted() && Session::fit(&calls) {
        return session.finish(&calls).await;
    }
    let answers = session.execute(&calls).await?;
    for row in answers.last().into_iter().flatten() {
        let mut reader = Reader::new(row);
        let (conversation, change) = (reader.get::<&str>()?, reader.get::<i64>()?);
        session.execute(&[call(CHANGE_MEMBER_COUNT, &[&conversation, &change])]).await?;
    }
    session.commit().await
}

/// First row of each conversation in the deltas, whose seq must be above the stored last seq.
///
/// Seqs are consecutive, so within a delta they must rise.
#[derive(Default)]
pub(super) struct FirstRows<'a> {
    rows: Vec<(usize, &'a ConversationId, u64)>,
    ids: Vec<&'a str>,
    seqs: Vec<i64>,
    /// First row whose seq is not above that of the row before it.
    not_rising: Option<(usize, &'a ConversationId, u64)>,
}

impl<'a> FirstRows<'a> {
    pub(super) fn new(deltas: &[(i32, &'a Delta)]) -> Self {
        let (mut ends, mut firsts) = (HashMap::<&ConversationId, u64>::new(), Self::default());
        for (index, row) in deltas.iter().flat_map(|(_, delta)| &delta.rows).enumerate() {
            let Some(id) = row.body.conversation() else { continue };
            match ends.insert(id, row.seq) {
                None => {
                    firsts.rows.push((index, id, row.seq));
                    firsts.ids.push(id.as_str());
                    firsts.seqs.push(codec::bound(row.seq));
                }
                Some(end) if row.seq <= end => {
                    firsts.not_rising = Some((index, id, row.seq));
                    break;
                }
                Some(_) => {}
            }
        }
        firsts
    }

    /// Returns the call that finds the first existing row, to be sent once the partition is locked.
    pub(super) fn find_taken(&self) -> Call<'_> {
        call(FIND_TAKEN_SEQ, &[&self.ids, &self.seqs])
    }

    /// Refuses the first row that already exists, given the result of [`Self::find_taken`].
    pub(super) fn refuse(&self, found: &[PgRow]) -> Result<(), PostgresError> {
        let taken = match found.first() {
            Some(row) => self.rows.get(Reader::new(row).index()?).copied(),
            None => None,
        };
        match taken.into_iter().chain(self.not_rising).min_by_key(|(index, ..)| *index) {
            Some((_, id, seq)) => Err(StoreError::Conflict(id.clone(), seq).into()),
            None => Ok(()),
        }
    }
}

/// Returns the conflict for the row of the delta that the unique key refused, although its head did not list it.
pub(super) async fn find_existing_row(
    session: &mut Session,
    delta: &Delta,
) -> Result<Option<StoreError>, PostgresError> {
    let rows = || delta.rows.iter().filter_map(|row| Some((row.body.conversation()?, row.seq)));
    let ids: Vec<_> = rows().map(|(id, _)| id.as_str()).collect();
    let seqs: Vec<_> = rows().map(|(_, seq)| big(seq)).collect();
    let found = session.read(&[call(FIND_STORED_ROW, &[&ids, &seqs])]).await?;
    let index = match found.first().and_then(|rows| rows.first()) {
        Some(row) => Reader::new(row).index()?,
        None => return Ok(None),
    };
    Ok(rows().nth(index).map(|(id, seq)| StoreError::Conflict(id.clone(), seq)))
}
