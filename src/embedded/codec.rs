//! Encoding of keys and values on disk, format version 2. Keys sort like their parts; ids contain no zero bytes.

mod feed;
mod guard;
mod row;

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prost::encoding::{decode_varint, encode_varint};
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
    machine::ledger::{Device, Head, Key, Member, Stay},
    record::{Hash16, Position, Role, Rules},
    settings::{Push, Retention, Search, Unread, UserSettings, Visibility},
};

pub(crate) use self::{feed::*, guard::*, row::*};
use super::DatabaseError;
use crate::{
    bus::TopicId,
    revocation::{Revocation, RevokedTokens},
    store::{Fence, Hidden, Mark, UserState},
};

/// Log, owner, position and rules of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionState {
    pub(crate) topic: TopicId,
    pub(crate) fence: Fence,
    pub(crate) position: Position,
    pub(crate) rules: Rules,
}

/// Key of the log's topic id.
pub(crate) const TOPIC: &[u8] = b"t";

/// Kind of a key of two ids in the keyspace `state`; its value is the first byte of the key.
#[derive(Clone, Copy)]
pub(crate) enum Pair {
    /// Membership: conversation, user → member.
    Member = b'm' as isize,
    /// Index of memberships: user, conversation → empty.
    OfUser = b'u' as isize,
    /// Personal state: user, conversation → user state.
    Mark = b'r' as isize,
    /// Block: user, blocked user → version and time.
    Block = b'b' as isize,
}

/// Encodes a key as kind, `first`, zero byte, `second`.
pub(crate) fn pair(kind: Pair, first: &str, second: &str) -> Vec<u8> {
    [&[kind as u8], first.as_bytes(), b"\0", second.as_bytes()].concat()
}

/// Returns the second part of a [`pair`] that begins with `first`; `None` if it does not.
pub(crate) fn second<'a>(key: &'a [u8], kind: Pair, first: &str) -> Result<Option<&'a str>, DatabaseError> {
    let Some(second) = key.strip_prefix(&pair(kind, first, "")[..]) else { return Ok(None) };
    std::str::from_utf8(second).map(Some).map_err(|_| damaged())
}

pub(crate) fn head_key(conversation: &ConversationId) -> Vec<u8> {
    [b"h", conversation.as_str().as_bytes()].concat()
}

pub(crate) fn partition_key(partition: u32) -> Vec<u8> {
    [&b"p"[..], &partition.to_be_bytes()].concat()
}

/// Returns the key of the [`Rules::keys_from`] up to which the partition's expired dedup keys are removed.
pub(crate) fn swept_key(partition: u32) -> Vec<u8> {
    [&b"k"[..], &partition.to_be_bytes()].concat()
}

pub(crate) fn row_key(conversation: &ConversationId, seq: u64) -> Vec<u8> {
    [conversation.as_str().as_bytes(), b"\0", &seq.to_be_bytes()].concat()
}

/// Returns the prefix of the keys of a user's stays in a conversation.
///
/// The seq of the departure follows, since several stays may begin at seq 1.
pub(crate) fn stays_prefix(conversation: &ConversationId, user: &UserId) -> Vec<u8> {
    ["s", conversation.as_str(), "\0", user.as_str(), "\0"].concat().into_bytes()
}

pub(crate) fn stay_key(conversation: &ConversationId, user: &UserId, it: &Stay) -> Vec<u8> {
    [&stays_prefix(conversation, user)[..], &it.left_seq.to_be_bytes()].concat()
}

pub(crate) fn mark_key(conversation: &ConversationId, user: &UserId) -> Vec<u8> {
    pair(Pair::Mark, user.as_str(), conversation.as_str())
}

/// Returns the key of a user's settings, for all devices.
pub(crate) fn user_settings_key(user: &UserId) -> Vec<u8> {
    [b"w", user.as_str().as_bytes()].concat()
}

/// Key of the number of the newest revocation.
pub(crate) const NEWEST_REVOCATION: &[u8] = b"y";

/// Returns the prefix of the keys of a user's revocations.
pub(crate) fn revocations_prefix(user: &UserId) -> Vec<u8> {
    [b"x", user.as_str().as_bytes(), b"\0"].concat()
}

pub(crate) fn revocation_key(it: &Revocation) -> Vec<u8> {
    let (kind, name) = match &it.tokens {
        RevokedTokens::Before(_) => ("b", ""),
        RevokedTokens::Id(id) => ("i", id.as_str()),
        RevokedTokens::Device(device, _) => ("d", device.as_str()),
        // First, so that an export has it before those that came later.
        RevokedTokens::Cleared => ("a", ""),
    };
    [&revocations_prefix(&it.user)[..], kind.as_bytes(), name.as_bytes()].concat()
}

/// Key of the version of the last change of any block list.
pub(crate) const BLOCK_VERSION: &[u8] = b"v";

/// Returns the key of the block that a version has added; its value is the pair.
pub(crate) fn block_version_key(version: u64) -> Vec<u8> {
    [BLOCK_VERSION, &version.to_be_bytes()].concat()
}

/// Returns the key of the length of a user's block list.
pub(crate) fn block_count_key(user: &UserId) -> Vec<u8> {
    [b"c", user.as_str().as_bytes()].concat()
}

/// Encodes the version and the time of a block.
pub(crate) fn put_block(version: u64, time: u64) -> Vec<u8> {
    let mut to = Vec::new();
    ints(&[version, time], &mut to);
    to
}

pub(crate) fn block(value: &[u8]) -> Result<(u64, u64), DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    Ok((from.int()?, from.int()?))
}

pub(crate) fn put_block_pair(user: &UserId, other: &UserId) -> Vec<u8> {
    [user.as_str(), "\0", other.as_str()].concat().into_bytes()
}

pub(crate) fn block_pair(value: &[u8]) -> Result<(UserId, UserId), DatabaseError> {
    let text = std::str::from_utf8(value).map_err(|_| damaged())?;
    let (user, other) = text.split_once('\0').ok_or_else(damaged)?;
    Ok((user_id(user)?, user_id(other)?))
}

pub(crate) fn device_key(conversation: &str, user: &str, device: &str) -> Vec<u8> {
    ["d", conversation, "\0", user, "\0", device].concat().into_bytes()
}

pub(crate) fn log_key(partition: u32, offset: u64) -> Vec<u8> {
    [&log_prefix(partition)[..], &offset.to_be_bytes()].concat()
}

/// Returns the prefix of the keys of a partition's log.
pub(crate) fn log_prefix(partition: u32) -> Vec<u8> {
    [&b"l"[..], &partition.to_be_bytes()].concat()
}

pub(crate) fn key_key(partition: u32, hash: &Hash16) -> [u8; 20] {
    let mut key = [0; 20];
    key[..4].copy_from_slice(&partition.to_be_bytes());
    key[4..].copy_from_slice(hash);
    key
}

pub(crate) fn key_hash(key: &[u8]) -> Result<Hash16, DatabaseError> {
    key.get(4..20).and_then(|part| part.try_into().ok()).ok_or_else(damaged)
}

pub(crate) fn log_offset(key: &[u8]) -> Result<u64, DatabaseError> {
    let offset = key.last_chunk::<8>().ok_or_else(damaged)?;
    Ok(u64::from_be_bytes(*offset))
}

/// Returns the error for bytes that this program does not write.
pub(crate) fn damaged() -> DatabaseError {
    DatabaseError::Damaged("a stored value can't be read".to_owned())
}

/// Reader of the fields of a value.
struct Reader(Bytes);

impl Reader {
    fn int(&mut self) -> Result<u64, DatabaseError> {
        decode_varint(&mut self.0).map_err(|_| damaged())
    }

    fn take(&mut self, count: usize) -> Result<Bytes, DatabaseError> {
        if self.0.len() < count { Err(damaged()) } else { Ok(self.0.split_to(count)) }
    }

    fn hash(&mut self) -> Result<Hash16, DatabaseError> {
        self.take(16)?[..].try_into().map_err(|_| damaged())
    }

    fn mark(&mut self) -> Result<Mark, DatabaseError> {
        Ok(Mark { seq: self.int()?, messages: self.int()?, own: self.int()? })
    }

    /// Reads the mark at the end of a value; `None` if there is none.
    fn last_mark(&mut self) -> Result<Option<Mark>, DatabaseError> {
        if self.0.is_empty() { Ok(None) } else { self.mark().map(Some) }
    }

    /// Reads an option among all at the end of a value; `None` if there is none.
    fn last_option<T: Copy>(&mut self, all: &[T]) -> Result<Option<T>, DatabaseError> {
        if self.0.is_empty() { Ok(None) } else { option_at(all, self.int()?) }
    }

    fn text(&mut self) -> Result<String, DatabaseError> {
        let count = usize::try_from(self.int()?).map_err(|_| damaged())?;
        String::from_utf8(self.take(count)?.to_vec()).map_err(|_| damaged())
    }
}

fn ints(numbers: &[u64], to: &mut Vec<u8>) {
    for number in numbers {
        encode_varint(*number, to);
    }
}

pub(crate) fn put_partition_state(it: &PartitionState) -> Vec<u8> {
    let mut to = [it.topic.0.to_be_bytes(), it.fence.0.to_be_bytes(), it.position.hash].concat();
    let rules = &it.rules;
    ints(&[it.position.offset, rules.ledger_version.into(), rules.dedup_window, rules.keys_from], &mut to);
    to
}

pub(crate) fn partition_state(value: &[u8]) -> Result<PartitionState, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let topic = TopicId(u128::from_be_bytes(from.hash()?));
    let fence = Fence(u128::from_be_bytes(from.hash()?));
    let hash = from.hash()?;
    let position = Position { offset: from.int()?, hash };
    let ledger_version = u32::try_from(from.int()?).map_err(|_| damaged())?;
    let rules = Rules { ledger_version, dedup_window: from.int()?, keys_from: from.int()? };
    Ok(PartitionState { topic, fence, position, rules })
}

/// Encodes a head and the current number of members.
pub(crate) fn put_head(it: &Head, members: u64) -> Vec<u8> {
    let mut to = Vec::with_capacity(24);
    let count = it.settings.len() as u64;
    ints(&[it.last_seq, it.messages, it.pruned_to, it.deleted_seq, members, count], &mut to);
    for text in it.settings.iter().flat_map(|(key, value)| [key, value]) {
        encode_varint(text.len() as u64, &mut to);
        to.extend_from_slice(text.as_bytes());
    }
    to
}

pub(crate) fn head(value: &[u8]) -> Result<(Head, u64), DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let (last_seq, messages, pruned_to, deleted_seq) = (from.int()?, from.int()?, from.int()?, from.int()?);
    let (members, count) = (from.int()?, from.int()?);
    let mut settings = BTreeMap::new();
    for _ in 0..count {
        settings.insert(from.text()?, from.text()?);
    }
    let settings = Arc::new(settings);
    Ok((Head { last_seq, messages, pruned_to, deleted_seq, settings }, members))
}

/// Bit that is set in the role's number if the member is muted.
const MUTED_BIT: u64 = 4;

pub(crate) fn put_member(it: &Member) -> Vec<u8> {
    let role = match it.role {
        Role::Member => 1,
        Role::Admin => 2,
        Role::Owner => 3,
    } | if it.muted { MUTED_BIT } else { 0 };
    let mut to = Vec::with_capacity(16);
    ints(&[role, it.joined_seq, it.left_seq, it.sent], &mut to);
    ints(&[it.joined_messages, it.left_messages, it.stays.into()], &mut to);
    to
}

pub(crate) fn member(value: &[u8]) -> Result<Member, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let role_and_muted = from.int()?;
    let role = match role_and_muted & !MUTED_BIT {
        1 => Role::Member,
        2 => Role::Admin,
        3 => Role::Owner,
        _ => return Err(damaged()),
    };
    let (joined_seq, left_seq, sent) = (from.int()?, from.int()?, from.int()?);
    let (joined_messages, left_messages) = (from.int()?, from.int()?);
    let stays = u32::try_from(from.int()?).map_err(|_| damaged())?;
    let muted = role_and_muted & MUTED_BIT != 0;
    Ok(Member { role, joined_seq, left_seq, sent, joined_messages, left_messages, stays, muted })
}

pub(crate) fn put_stay(it: &Stay) -> Vec<u8> {
    let mut to = Vec::with_capacity(16);
    ints(&[it.joined_seq, it.left_seq, it.joined_messages, it.left_messages], &mut to);
    to
}

pub(crate) fn stay(value: &[u8]) -> Result<Stay, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let (joined_seq, left_seq) = (from.int()?, from.int()?);
    Ok(Stay { joined_seq, left_seq, joined_messages: from.int()?, left_messages: from.int()? })
}

/// Encodes a user state: the read mark, then, unless all are empty, the cleared mark and the hidden entries, then the push
/// preference, if there is one or a bound, and then the bound, if there is one. Former versions ignore what they do not know.
pub(crate) fn put_user_state(it: &UserState) -> Vec<u8> {
    let mut to = Vec::with_capacity(16);
    ints(&[it.mark.seq, it.mark.messages, it.mark.own], &mut to);
    if it.cleared.seq == 0 && it.hidden.is_empty() && it.push.is_none() && it.bound.is_none() {
        return to;
    }
    ints(&[it.cleared.seq, it.cleared.messages, it.cleared.own, it.hidden.len() as u64], &mut to);
    let mut last = 0;
    for hidden in &it.hidden {
        ints(&[(hidden.seq - last) << 1 | u64::from(hidden.counts)], &mut to);
        last = hidden.seq;
    }
    if it.push.is_some() || it.bound.is_some() {
        ints(&[option_number(Push::ALL, it.push)], &mut to);
    }
    if let Some(bound) = it.bound {
        ints(&[bound.seq, bound.messages, bound.own], &mut to);
    }
    to
}

pub(crate) fn user_state(value: &[u8]) -> Result<UserState, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let mark = from.mark()?;
    if from.0.is_empty() {
        return Ok(UserState { mark, ..UserState::default() });
    }
    let cleared = from.mark()?;
    let (count, mut hidden, mut last) = (from.int()?, Vec::new(), 0_u64);
    for _ in 0..count {
        let step = from.int()?;
        last = last.checked_add(step >> 1).ok_or_else(damaged)?;
        hidden.push(Hidden { seq: last, counts: step & 1 == 1 });
    }
    Ok(UserState { mark, cleared, hidden, push: from.last_option(Push::ALL)?, bound: from.last_mark()? })
}

/// Returns the number of an option among all, from 1; 0 if it is not set.
fn option_number<T: PartialEq>(all: &[T], it: Option<T>) -> u64 {
    it.and_then(|it| all.iter().position(|other| *other == it)).map_or(0, |at| at as u64 + 1)
}

fn option_at<T: Copy>(all: &[T], number: u64) -> Result<Option<T>, DatabaseError> {
    match usize::try_from(number).map_err(|_| damaged())?.checked_sub(1) {
        Some(at) => all.get(at).copied().map(Some).ok_or_else(damaged),
        None => Ok(None),
    }
}

pub(crate) fn put_user_settings(it: &UserSettings) -> Vec<u8> {
    let mut to = Vec::with_capacity(16);
    ints(&[it.ack_timeout_ms.into(), it.ack_tries.into(), it.heartbeat_ms.into()], &mut to);
    let numbers = (option_number(Unread::ALL, it.unread), option_number(Retention::ALL, it.retention));
    ints(&[numbers.0, numbers.1, option_number(Search::ALL, it.search)], &mut to);
    // Values of former versions end before these two, and those versions ignore what follows the first.
    if it.push.is_some() || it.presence.is_some() {
        ints(&[option_number(Push::ALL, it.push)], &mut to);
    }
    if it.presence.is_some() {
        ints(&[option_number(Visibility::ALL, it.presence)], &mut to);
    }
    to
}

pub(crate) fn user_settings(value: &[u8]) -> Result<UserSettings, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let mut number = || u32::try_from(from.int()?).map_err(|_| damaged());
    Ok(UserSettings {
        ack_timeout_ms: number()?,
        ack_tries: number()?,
        heartbeat_ms: number()?,
        unread: option_at(Unread::ALL, from.int()?)?,
        retention: option_at(Retention::ALL, from.int()?)?,
        search: option_at(Search::ALL, from.int()?)?,
        push: from.last_option(Push::ALL)?,
        presence: from.last_option(Visibility::ALL)?,
    })
}

pub(crate) fn put_number(number: u64) -> Vec<u8> {
    let mut to = Vec::with_capacity(10);
    ints(&[number], &mut to);
    to
}

pub(crate) fn number(value: &[u8]) -> Result<u64, DatabaseError> {
    Reader(Bytes::copy_from_slice(value)).int()
}

/// Encodes a revocation, without what its key has, and with its number.
pub(crate) fn put_revocation(number: u64, it: &Revocation) -> Vec<u8> {
    let before = match it.tokens {
        RevokedTokens::Before(before) | RevokedTokens::Device(_, before) => before,
        RevokedTokens::Id(_) | RevokedTokens::Cleared => 0,
    };
    let mut to = Vec::with_capacity(24);
    ints(&[number, it.at_ms, it.until_ms.map_or(0, |until| until.saturating_add(1)), before], &mut to);
    to
}

/// Decodes a revocation and its number.
pub(crate) fn revocation(key: &[u8], value: &[u8]) -> Result<(u64, Revocation), DatabaseError> {
    let rest = key.strip_prefix(b"x").ok_or_else(damaged)?;
    let end = rest.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    let text = |part: &[u8]| std::str::from_utf8(part).map(str::to_owned).map_err(|_| damaged());
    let (user, named) = (user_id(&text(&rest[..end])?)?, text(&rest[end + 1..])?);
    let mut from = Reader(Bytes::copy_from_slice(value));
    let (number, at_ms, until, before) = (from.int()?, from.int()?, from.int()?, from.int()?);
    let tokens = match named.split_at_checked(1) {
        Some(("b", "")) => RevokedTokens::Before(before),
        Some(("a", "")) => RevokedTokens::Cleared,
        Some(("i", id)) => RevokedTokens::Id(id.to_owned()),
        Some(("d", name)) => RevokedTokens::Device(DeviceId::new(name).map_err(|_| damaged())?, before),
        _ => return Err(damaged()),
    };
    Ok((number, Revocation { user, tokens, at_ms, until_ms: until.checked_sub(1) }))
}

pub(crate) fn put_device(it: &Device) -> Vec<u8> {
    let mut to = Vec::with_capacity(16);
    ints(&[it.epoch, it.next_n], &mut to);
    to
}

pub(crate) fn device(value: &[u8]) -> Result<Device, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    Ok(Device { epoch: from.int()?, next_n: from.int()? })
}

pub(crate) fn put_key(it: &Key) -> Vec<u8> {
    let mut to = Vec::with_capacity(40);
    to.extend_from_slice(&it.body_hash);
    let refused = it.refused.map_or(0, Code::number);
    ints(&[it.seq, it.time, it.offset, refused.into()], &mut to);
    to
}

pub(crate) fn key(value: &[u8]) -> Result<Key, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let body_hash = from.hash()?;
    let (seq, time, offset) = (from.int()?, from.int()?, from.int()?);
    // Format 1 stored no refusals: its keys end here.
    let number = if from.0.is_empty() { 0 } else { from.int()? };
    let refused = match u16::try_from(number) {
        Ok(0) => None,
        Ok(number) => Some(Code::from_number(number).ok_or_else(damaged)?),
        Err(_) => return Err(damaged()),
    };
    Ok(Key { body_hash, seq, time, offset, refused })
}

/// Returns the seq in a row's key.
pub(crate) fn row_seq(key: &[u8]) -> Result<u64, DatabaseError> {
    let seq = key.last_chunk::<8>().ok_or_else(damaged)?;
    Ok(u64::from_be_bytes(*seq))
}

pub(crate) fn user_id(text: &str) -> Result<UserId, DatabaseError> {
    UserId::new(text).map_err(|_| damaged())
}

pub(crate) fn conversation_id(text: &str) -> Result<ConversationId, DatabaseError> {
    ConversationId::parse(text).map_err(|_| damaged())
}
