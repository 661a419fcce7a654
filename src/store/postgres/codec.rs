//! Conversion of values to and from columns. Unsigned numbers are stored bit by bit; numbers that SQL compares are
//! below 2^63.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prost::encoding::{decode_varint, encode_varint};
use tidegate_protocol::{
    Code,
    id::{ConversationId, NodeId, UserId},
    machine::ledger::{Device, Head, Key, Member, Row, RowHead, Stay},
    record::{Body, Hash16, Origin, Position, Record, Role, Rules},
    settings::{Push, Retention, Search, Unread, UserSettings, Visibility},
};
use tokio_postgres::{Row as Columns, types::FromSql};
use uuid::Uuid;

use super::error::{PostgresError, damaged};
use crate::{
    bus::TopicId,
    store::{Fence, Hidden, Mark, MemberView, StoredRow, UserState},
};

/// Returns a number as stored.
pub(super) fn big(number: u64) -> i64 {
    number.cast_signed()
}

/// Returns a number to compare with, capped at the largest one that is ever stored.
pub(super) fn bound(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a row limit as a parameter.
pub(super) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

pub(super) fn hash(bytes: &Hash16) -> Uuid {
    Uuid::from_bytes(*bytes)
}

pub(super) fn topic(it: TopicId) -> Uuid {
    Uuid::from_u128(it.0)
}

pub(super) fn fence(it: Fence) -> Uuid {
    Uuid::from_u128(it.0)
}

/// Reader of a row's columns, in order.
#[derive(Clone)]
pub(super) struct Reader<'a> {
    row: &'a Columns,
    next: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(row: &'a Columns) -> Self {
        Self { row, next: 0 }
    }

    pub(super) fn get<T: FromSql<'a>>(&mut self) -> Result<T, PostgresError> {
        let column = self.next;
        self.next += 1;
        self.row.try_get(column).map_err(|error| PostgresError::Damaged(format!("a stored value: {error}")))
    }

    /// Skips columns that are read elsewhere.
    pub(super) fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    pub(super) fn big(&mut self) -> Result<u64, PostgresError> {
        Ok(self.get::<i64>()?.cast_unsigned())
    }

    /// Reads an index into the parameters of the query, which counts from 1 in SQL.
    pub(super) fn index(&mut self) -> Result<usize, PostgresError> {
        usize::try_from(self.get::<i64>()? - 1).map_err(|_| damaged())
    }

    fn int(&mut self) -> Result<u32, PostgresError> {
        u32::try_from(self.big()?).map_err(|_| damaged())
    }

    fn hash(&mut self) -> Result<Hash16, PostgresError> {
        Ok(self.get::<Uuid>()?.into_bytes())
    }

    pub(super) fn fence(&mut self) -> Result<Fence, PostgresError> {
        Ok(Fence(self.get::<Uuid>()?.as_u128()))
    }

    pub(super) fn topic(&mut self) -> Result<TopicId, PostgresError> {
        Ok(TopicId(self.get::<Uuid>()?.as_u128()))
    }

    pub(super) fn user(&mut self) -> Result<UserId, PostgresError> {
        UserId::new(self.get()?).map_err(|_| damaged())
    }

    pub(super) fn conversation(&mut self) -> Result<ConversationId, PostgresError> {
        ConversationId::parse(self.get()?).map_err(|_| damaged())
    }

    /// Reads `log_offset, last_hash`.
    pub(super) fn position(&mut self) -> Result<Position, PostgresError> {
        Ok(Position { offset: self.big()?, hash: self.hash()? })
    }

    /// Reads `ledger_version, dedup_window, keys_from`.
    pub(super) fn rules(&mut self) -> Result<Rules, PostgresError> {
        let ledger_version = self.get::<i32>()?.cast_unsigned();
        Ok(Rules { ledger_version, dedup_window: self.big()?, keys_from: self.big()? })
    }

    /// Reads `last_seq, messages, pruned_to, deleted_seq, settings`.
    pub(super) fn head(&mut self) -> Result<Head, PostgresError> {
        let (last_seq, messages) = (self.big()?, self.big()?);
        let (pruned_to, deleted_seq) = (self.big()?, self.big()?);
        let settings: BTreeMap<String, String> = match self.get::<Option<&str>>()? {
            Some(text) => serde_json::from_str(text).map_err(|_| damaged())?,
            None => BTreeMap::new(),
        };
        Ok(Head { last_seq, messages, pruned_to, deleted_seq, settings: Arc::new(settings) })
    }

    /// Reads `role, muted, joined_seq, left_seq, sent, joined_messages, left_messages, stays`.
    pub(super) fn member(&mut self) -> Result<Member, PostgresError> {
        let role = match self.get::<i16>()? {
            1 => Role::Member,
            2 => Role::Admin,
            3 => Role::Owner,
            _ => return Err(damaged()),
        };
        let muted = self.get()?;
        let (joined_seq, left_seq, sent) = (self.big()?, self.big()?, self.big()?);
        let (joined_messages, left_messages) = (self.big()?, self.big()?);
        let stays = self.int()?;
        Ok(Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays, muted })
    }

    /// Reads a member, the numbers of all stays in one array, and a user state; array and state may be NULL.
    pub(super) fn member_view(&mut self) -> Result<MemberView, PostgresError> {
        let member = self.member()?;
        let numbers = self.get::<Option<Vec<i64>>>()?.unwrap_or_default();
        let stays = numbers.chunks(4).map(stay).collect::<Result<_, _>>()?;
        Ok(MemberView { member, stays, level: self.user_state()? })
    }

    /// Reads `seq, messages, own, cleared_seq, cleared_messages, cleared_own, hidden, push, bound_seq, bound_messages,
    /// bound_own`, all NULL if there is no row.
    pub(super) fn user_state(&mut self) -> Result<UserState, PostgresError> {
        Ok(UserState {
            mark: self.mark()?,
            cleared: self.mark()?,
            hidden: hidden(self.get::<Option<&[u8]>>()?.unwrap_or_default())?,
            push: self.option(Push::from_word)?,
            bound: Some(self.mark()?).filter(|it| it.seq > 0),
        })
    }

    /// Reads the seq, messages and own messages of a mark, all NULL if there is no row.
    fn mark(&mut self) -> Result<Mark, PostgresError> {
        let mut numbers = [0; 3];
        for number in &mut numbers {
            *number = self.get::<Option<i64>>()?.unwrap_or_default().cast_unsigned();
        }
        let [seq, messages, own] = numbers;
        Ok(Mark { seq, messages, own })
    }

    /// Reads `epoch, next_n`.
    pub(super) fn device(&mut self) -> Result<Device, PostgresError> {
        Ok(Device { epoch: self.big()?, next_n: self.big()? })
    }

    /// Reads `hash, body_hash, seq, time, log_offset, refused`.
    pub(super) fn key(&mut self) -> Result<(Hash16, Key), PostgresError> {
        let (hash, body_hash) = (self.hash()?, self.hash()?);
        let (seq, time, offset) = (self.big()?, self.big()?, self.big()?);
        let refused = match u16::try_from(self.get::<i32>()?).map_err(|_| damaged())? {
            0 => None,
            number => Some(Code::from_number(number).ok_or_else(damaged)?),
        };
        Ok((hash, Key { body_hash, seq, time, offset, refused }))
    }

    /// Reads `recalled_seq, recalled_time`.
    fn recalled(&mut self) -> Result<Option<(u64, u64)>, PostgresError> {
        self.optional_pair()
    }

    /// Reads two numbers, both NULL or neither.
    fn optional_pair(&mut self) -> Result<Option<(u64, u64)>, PostgresError> {
        let (seq, time) = (self.get::<Option<i64>>()?, self.get::<Option<i64>>()?);
        Ok(seq.zip(time).map(|(seq, time)| (seq.cast_unsigned(), time.cast_unsigned())))
    }

    /// Reads `recalled_seq, recalled_time, record`.
    pub(super) fn row_head(&mut self) -> Result<RowHead, PostgresError> {
        let recalled = self.recalled()?;
        let record = Record::decode(Bytes::copy_from_slice(self.get()?)).map_err(|_| damaged())?;
        let row = Row { seq: 0, ordinal: 0, own: 0, time: 0, offset: 0, body: record.body };
        Ok(StoredRow { recalled, ..StoredRow::new(row) }.head())
    }

    /// Reads `seq, ordinal, own, log_offset, recalled_seq, recalled_time, record, content, edited_seq, edited_time`.
    pub(super) fn row(&mut self) -> Result<StoredRow, PostgresError> {
        let (seq, ordinal, own, offset) = (self.big()?, self.big()?, self.big()?, self.big()?);
        let recalled = self.recalled()?;
        let record = Bytes::copy_from_slice(self.get()?);
        let Record { received_at: time, mut body, .. } = Record::decode(record).map_err(|_| damaged())?;
        let content = self.get::<&[u8]>()?;
        if let Body::Message(message) = &mut body {
            message.content = Bytes::copy_from_slice(content);
        }
        let edited = self.optional_pair()?;
        Ok(StoredRow { row: Row { seq, ordinal, own, time, offset, body }, recalled, edited })
    }

    /// Reads `record`, for its time.
    pub(super) fn record_time(&mut self) -> Result<u64, PostgresError> {
        let record = Bytes::copy_from_slice(self.get()?);
        Ok(Record::decode(record).map_err(|_| damaged())?.received_at)
    }

    /// Reads `ack_timeout_ms, ack_tries, heartbeat_ms, unread, retention, search, push, presence`.
    pub(super) fn user_settings(&mut self) -> Result<UserSettings, PostgresError> {
        Ok(UserSettings {
            ack_timeout_ms: self.int()?,
            ack_tries: self.int()?,
            heartbeat_ms: self.int()?,
            unread: self.option(Unread::from_word)?,
            retention: self.option(Retention::from_word)?,
            search: self.option(Search::from_word)?,
            push: self.option(Push::from_word)?,
            presence: self.option(Visibility::from_word)?,
        })
    }

    fn option<T>(&mut self, from: fn(&str) -> Option<T>) -> Result<Option<T>, PostgresError> {
        self.get::<Option<&str>>()?.map(|text| from(text).ok_or_else(damaged)).transpose()
    }
}

fn stay(numbers: &[i64]) -> Result<Stay, PostgresError> {
    let [joined_seq, left_seq, joined_messages, left_messages] = *numbers else { return Err(damaged()) };
    Ok(Stay {
        joined_seq: joined_seq.cast_unsigned(),
        left_seq: left_seq.cast_unsigned(),
        joined_messages: joined_messages.cast_unsigned(),
        left_messages: left_messages.cast_unsigned(),
    })
}

/// Returns the settings as a JSON object; `None` if there are none.
pub(super) fn settings(head: &Head) -> Option<String> {
    (!head.settings.is_empty()).then(|| serde_json::to_string(&*head.settings).unwrap_or_default())
}

pub(super) fn role(member: &Member) -> i16 {
    match member.role {
        Role::Member => 1,
        Role::Admin => 2,
        Role::Owner => 3,
    }
}

/// Encodes hidden entries as differences of seqs, each with a bit for whether it would count as unread.
pub(super) fn put_hidden(hidden: &[Hidden]) -> Vec<u8> {
    let (mut to, mut last) = (Vec::new(), 0);
    for it in hidden {
        encode_varint((it.seq - last) << 1 | u64::from(it.counts), &mut to);
        last = it.seq;
    }
    to
}

fn hidden(mut from: &[u8]) -> Result<Vec<Hidden>, PostgresError> {
    let (mut all, mut last) = (Vec::new(), 0_u64);
    while !from.is_empty() {
        let step = decode_varint(&mut from).map_err(|_| damaged())?;
        last = last.checked_add(step >> 1).ok_or_else(damaged)?;
        all.push(Hidden { seq: last, counts: step & 1 == 1 });
    }
    Ok(all)
}

/// Encodes the record of a row without its content, and with the shortest valid origin, since the original one is no
/// longer needed.
pub(super) fn put_record(row: &Row) -> Result<Vec<u8>, PostgresError> {
    let node = NodeId::new("-").map_err(|_| damaged())?;
    let origin = Origin { node, boot: 0, conn: 0, request: 0 };
    let mut body = row.body.clone();
    if let Body::Message(message) = &mut body {
        message.content = Bytes::new();
    }
    Ok(Record { origin, received_at: row.time, body, trace: None }.encode().to_vec())
}
