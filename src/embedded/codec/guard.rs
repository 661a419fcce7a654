//! Encoding of the guard's entries. Kinds that this version does not know are kept as numbers.

use bytes::Bytes;

use super::{Reader, damaged, ints};
use crate::{
    embedded::DatabaseError,
    store::{GuardKey, GuardKind, GuardRow},
};

/// Key of the version of the newest change of a guard entry.
pub(crate) const GUARD_VERSION: &[u8] = b"n";

/// First byte of the keys of guard entries; the number of the kind and the name follow.
pub(crate) const GUARD_PREFIX: &[u8] = b"g";

/// First byte of the keys of numbers of rows; the number of the kind follows.
pub(crate) const GUARD_COUNT_PREFIX: &[u8] = b"q";

/// First byte of the keys of ends; the number of the kind, the end and the name follow.
pub(crate) const GUARD_END_PREFIX: &[u8] = b"e";

/// Row without its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardValue {
    pub(crate) version: u64,
    pub(crate) until_ms: Option<u64>,
    pub(crate) value: Option<Bytes>,
}

pub(crate) fn guard_key(kind: u8, name: &str) -> Vec<u8> {
    [GUARD_PREFIX, &[kind], name.as_bytes()].concat()
}

/// Returns the key of the entry that a version has changed; its value is the entry's key.
pub(crate) fn guard_version_key(version: u64) -> Vec<u8> {
    [GUARD_VERSION, &version.to_be_bytes()].concat()
}

/// Returns the key of the end of an entry, in the order of ends within a kind.
pub(crate) fn guard_end_key(kind: u8, until_ms: u64, name: &str) -> Vec<u8> {
    [GUARD_END_PREFIX, &[kind], &until_ms.to_be_bytes(), name.as_bytes()].concat()
}

pub(crate) fn guard_count_key(kind: u8) -> Vec<u8> {
    [GUARD_COUNT_PREFIX, &[kind]].concat()
}

/// Returns the kind's number and the name in the key of an entry.
pub(crate) fn guard_name(key: &[u8]) -> Result<(u8, &str), DatabaseError> {
    let (kind, name) = key.strip_prefix(GUARD_PREFIX).and_then(<[u8]>::split_first).ok_or_else(damaged)?;
    Ok((*kind, std::str::from_utf8(name).map_err(|_| damaged())?))
}

/// Returns the kind's number, the end and the name in the key of an end.
pub(crate) fn guard_end(key: &[u8]) -> Result<(u8, u64, &str), DatabaseError> {
    let (kind, rest) =
        key.strip_prefix(GUARD_END_PREFIX).and_then(<[u8]>::split_first).ok_or_else(damaged)?;
    let (until, name) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    Ok((*kind, u64::from_be_bytes(*until), std::str::from_utf8(name).map_err(|_| damaged())?))
}

pub(crate) fn put_guard_value(it: &GuardValue) -> Vec<u8> {
    let mut to = Vec::with_capacity(16 + it.value.as_ref().map_or(0, Bytes::len));
    let until = it.until_ms.map_or(0, |until| until.saturating_add(1));
    ints(&[it.version, until, it.value.is_some().into()], &mut to);
    to.extend_from_slice(it.value.as_deref().unwrap_or_default());
    to
}

pub(crate) fn guard_value(value: &[u8]) -> Result<GuardValue, DatabaseError> {
    let mut from = Reader(Bytes::copy_from_slice(value));
    let (version, until, has_value) = (from.int()?, from.int()?, from.int()? == 1);
    Ok(GuardValue { version, until_ms: until.checked_sub(1), value: has_value.then_some(from.0) })
}

/// Decodes a row; `None` if this version does not know its kind.
pub(crate) fn guard_row(key: &[u8], value: &[u8]) -> Result<Option<GuardRow>, DatabaseError> {
    let (kind, name) = guard_name(key)?;
    let Some(kind) = GuardKind::from_number(kind) else { return Ok(None) };
    let key = GuardKey::new(kind, name).map_err(|_| damaged())?;
    let GuardValue { version, until_ms, value } = guard_value(value)?;
    Ok(Some(GuardRow { version, key, value, until_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes on disk, which never change.
    #[test]
    fn keys_and_values_have_their_fixed_bytes() {
        let keys = [
            guard_key(2, "10.0.0.0/8"),
            guard_version_key(258),
            guard_end_key(2, 1_000, "a"),
            guard_count_key(2),
            GUARD_VERSION.to_vec(),
        ];
        let expected: [&[u8]; 5] =
            [b"g\x0210.0.0.0/8", b"n\0\0\0\0\0\0\x01\x02", b"e\x02\0\0\0\0\0\0\x03\xe8a", b"q\x02", b"n"];
        assert_eq!(keys.each_ref().map(Vec::as_slice), expected);
        let row = |until_ms, value| GuardValue { version: 300, until_ms, value };
        let rows: [(GuardValue, &[u8]); 3] = [
            (row(None, Some(Bytes::from_static(b"x\0"))), b"\xac\x02\0\x01x\0"),
            (row(Some(299), Some(Bytes::new())), b"\xac\x02\xac\x02\x01"),
            (row(Some(299), None), b"\xac\x02\xac\x02\0"),
        ];
        for (row, bytes) in rows {
            assert_eq!(put_guard_value(&row), bytes);
            assert_eq!(guard_value(bytes).unwrap(), row);
        }
        assert!(guard_value(b"\xac").is_err() && guard_row(b"g", b"").is_err());
        let row = |kind| guard_row(&guard_key(kind, "a"), b"\x01\0\x01").unwrap();
        assert!(row(12).is_some() && row(13).is_none(), "an unknown kind is skipped");
    }
}
