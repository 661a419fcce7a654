//! Encoding of the keyspace `feed`. Keys of a partition begin with its number, which is below 2^31; those of cursors with a
//! byte that no partition begins with.

use bytes::Bytes;
use prost::encoding::encode_varint;

use super::{Reader, damaged, ints};
use crate::{
    embedded::DatabaseError,
    store::{
        ConsumerName, FeedCursor,
        feed::{DamagedFeed, FeedState},
    },
};

/// First byte of the keys of cursors; the consumer, a zero byte and the partition follow.
pub(crate) const CURSOR_PREFIX: u8 = 0xff;

/// Batch of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FeedValue {
    /// Latest receive time of an entry.
    pub(crate) time: u64,
    /// Bytes of all batches of the partition up to this one.
    pub(crate) bytes_end: u64,
    /// Encoded entries.
    pub(crate) entries: Bytes,
}

/// Returns the key of the counters of a partition's feed: that of a batch which ends before the first number.
pub(crate) fn feed_state_key(partition: u32) -> Vec<u8> {
    feed_key(partition, 0)
}

/// Returns the key of a batch, by the number of its last entry.
pub(crate) fn feed_key(partition: u32, last: u64) -> Vec<u8> {
    [&partition.to_be_bytes()[..], &last.to_be_bytes()].concat()
}

/// Returns the number of the last entry, from the key of a batch.
pub(crate) fn feed_last(key: &[u8]) -> Result<u64, DatabaseError> {
    let number = key.get(4..).and_then(|part| part.try_into().ok());
    number.map(u64::from_be_bytes).ok_or_else(damaged)
}

/// Returns the prefix of the keys of a consumer's cursors.
pub(crate) fn cursors_prefix(consumer: &ConsumerName) -> Vec<u8> {
    [&[CURSOR_PREFIX], consumer.as_str().as_bytes(), b"\0"].concat()
}

pub(crate) fn cursor_key(cursor: &FeedCursor) -> Vec<u8> {
    [&cursors_prefix(cursor.consumer())[..], &cursor.partition().to_be_bytes()].concat()
}

/// Returns the consumer and the partition in the key of a cursor.
pub(crate) fn cursor_parts(key: &[u8]) -> Result<(ConsumerName, u32), DatabaseError> {
    let rest = key.strip_prefix(&[CURSOR_PREFIX]).ok_or_else(damaged)?;
    let (name, partition) = rest.split_at_checked(rest.len().saturating_sub(4)).ok_or_else(damaged)?;
    let name = name.strip_suffix(b"\0").and_then(|name| std::str::from_utf8(name).ok());
    let consumer = ConsumerName::new(name.ok_or_else(damaged)?).map_err(|_| damaged())?;
    let partition = partition.try_into().map(u32::from_be_bytes).map_err(|_| damaged())?;
    Ok((consumer, partition))
}

/// Encodes the counters, which were changed by an archive and therefore have an offset.
pub(crate) fn put_feed_state(it: &FeedState) -> Vec<u8> {
    let mut to = Vec::new();
    ints(&[it.newest, it.oldest, it.bytes, it.removed_bytes, it.offset.unwrap_or(0)], &mut to);
    to
}

pub(crate) fn feed_state(value: &[u8]) -> Result<FeedState, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    Ok(FeedState {
        newest: from.int()?,
        oldest: from.int()?,
        bytes: from.int()?,
        removed_bytes: from.int()?,
        offset: Some(from.int()?),
    })
}

pub(crate) fn put_feed_value(time: u64, bytes_end: u64, entries: &[u8]) -> Vec<u8> {
    let mut to = Vec::with_capacity(entries.len() + 16);
    encode_varint(time, &mut to);
    encode_varint(bytes_end, &mut to);
    to.extend_from_slice(entries);
    to
}

pub(crate) fn feed_value(value: &[u8]) -> Result<FeedValue, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    Ok(FeedValue { time: from.int()?, bytes_end: from.int()?, entries: from.0 })
}

impl From<DamagedFeed> for DatabaseError {
    fn from(_: DamagedFeed) -> Self {
        Self::Damaged("a batch of the feed can't be read".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_of_the_feed_are_fixed() {
        let consumer = ConsumerName::new("crm").unwrap();
        let cursor = FeedCursor::new(consumer.clone(), 258, Bytes::new()).unwrap();
        let key = cursor_key(&cursor);
        assert_eq!(key, b"\xffcrm\0\0\0\x01\x02");
        assert_eq!(cursor_parts(&key).unwrap(), (consumer, 258));
        assert!(cursor_parts(b"\xff").is_err() && cursor_parts(b"crm\0\0\0\0\0").is_err());
        assert_eq!(feed_key(1, 258), [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(feed_last(&feed_key(7, 1 << 40)).unwrap(), 1 << 40);
        assert!(feed_last(b"").is_err());
        assert_eq!(put_feed_value(300, 2, b"x"), [0xac, 2, 2, b'x']);
        let value = FeedValue { time: 300, bytes_end: 2, entries: Bytes::from_static(b"x") };
        assert_eq!(feed_value(&[0xac, 2, 2, b'x']).unwrap(), value);
        let state = FeedState { newest: 9, oldest: 4, bytes: 300, removed_bytes: 7, offset: Some(11) };
        assert_eq!(put_feed_state(&state), [9, 4, 0xac, 2, 7, 11]);
        assert_eq!(feed_state(&[9, 4, 0xac, 2, 7, 11]).unwrap(), state);
    }
}
