//! Cursors of lists: opaque texts with the position after a page. Nodes keep no state for them, so any node accepts them.
//!
//! A cursor is base64url of a version, the kind of its position, a hash of the list with its filters, and the position. It
//! is not signed, because it names only what its holder may read anyway.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;
use tidegate_protocol::{
    Code,
    id::{ConversationId, DeviceId, UserId},
};

use crate::{
    api::Problem,
    conversation::{
        newest::{NEWEST_MAX, NewestPosition},
        overview::TimePosition,
    },
    link::RoomMember,
    store::ConversationSeq,
};

const VERSION: u8 = 1;

/// Bytes of the hash of a list.
const HASH_BYTES: usize = 6;

/// Longest cursor, in characters: of a feed with the most partitions that a cluster may have, 10,000.
const CURSOR_CHARS_MAX: usize = 160 * 1024;

/// Largest number of a feed, as a store has it.
const FEED_NUMBER_MAX: u64 = i64::MAX as u64;

/// List that a cursor belongs to: its name, and the filters that all its pages share.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) struct ListName<'a> {
    pub(in crate::api) name: &'a str,
    pub(in crate::api) filters: &'a [&'a str],
}

/// Position in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::api) enum CursorPosition {
    /// Entries before this seq, the newest first.
    Before(u64),
    /// Entries after this seq, the oldest first.
    After(u64),
    /// Last key that was returned.
    Key(ConversationId),
    /// Last conversation of a list by time.
    Time(TimePosition),
    /// Last row of the newest messages.
    Newest(NewestPosition),
    /// Last user that was returned.
    User(UserId),
    /// Last member of a live room that was returned.
    RoomMember(RoomMember),
    /// Row of a conversation, in a list of those of many conversations.
    Row(ConversationSeq),
    /// Number in the feed of each partition that has one above 0.
    Feed(BTreeMap<u32, u64>),
}

impl ListName<'_> {
    fn hash(&self) -> Vec<u8> {
        // Neither names nor filters have a zero byte.
        let text = [&[self.name], self.filters].concat().join("\0");
        digest(&SHA256, text.as_bytes()).as_ref().iter().copied().take(HASH_BYTES).collect()
    }

    /// Returns the cursor of a position in this list.
    pub(in crate::api) fn cursor(&self, position: &CursorPosition) -> String {
        let mut bytes = vec![VERSION, position.kind()];
        bytes.extend(self.hash());
        match position {
            CursorPosition::Before(seq) | CursorPosition::After(seq) => put_number(&mut bytes, *seq),
            CursorPosition::Key(key) => bytes.extend(key.as_str().bytes()),
            CursorPosition::User(user) => bytes.extend(user.as_str().bytes()),
            CursorPosition::RoomMember(RoomMember { user, device }) => {
                bytes.extend(format!("{user}:{device}").bytes());
            }
            CursorPosition::Feed(numbers) => put_feed(&mut bytes, numbers),
            CursorPosition::Time(position) => {
                put_number(&mut bytes, position.time);
                bytes.extend(position.conversation.as_str().bytes());
            }
            CursorPosition::Newest(position) => {
                for number in [position.time, position.seq, position.count as u64] {
                    put_number(&mut bytes, number);
                }
                bytes.extend(position.conversation.as_str().bytes());
            }
            CursorPosition::Row(row) => {
                put_number(&mut bytes, row.seq);
                bytes.extend(row.conversation.as_str().bytes());
            }
        }
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// Adds the cursor of the next page to the body of a page, unless it is the last one.
    pub(in crate::api) fn with_next(&self, mut body: Value, next: Option<CursorPosition>) -> Value {
        if let Some(next) = next {
            body["next"] = self.cursor(&next).into();
        }
        body
    }

    /// Returns the position of a cursor.
    ///
    /// # Errors
    /// `CURSOR_INVALID` if it is damaged, of another list, or of a list with other filters.
    pub(in crate::api) fn position(&self, cursor: &str) -> Result<CursorPosition, Problem> {
        let found = self.decode(cursor).filter(|found| self.cursor(found) == cursor);
        found.ok_or_else(|| Problem(Code::CursorInvalid, String::new()))
    }

    /// Returns the key after which a page begins, in a list of conversations by key; `None` for the first page.
    ///
    /// # Errors
    /// Those of [`Self::position`].
    pub(in crate::api) fn after_key(&self, cursor: Option<&str>) -> Result<Option<ConversationId>, Problem> {
        match cursor.map(|cursor| self.position(cursor)).transpose()? {
            None => Ok(None),
            Some(CursorPosition::Key(key)) => Ok(Some(key)),
            Some(_) => Err(Problem(Code::CursorInvalid, String::new())),
        }
    }

    fn decode(&self, cursor: &str) -> Option<CursorPosition> {
        if cursor.len() > CURSOR_CHARS_MAX {
            return None;
        }
        let bytes = BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
        let [VERSION, kind, rest @ ..] = &bytes[..] else { return None };
        let mut rest = rest.strip_prefix(&self.hash()[..])?;
        match kind {
            0 => Some(CursorPosition::Before(last_number(rest)?)),
            1 => Some(CursorPosition::After(last_number(rest)?)),
            2 => Some(CursorPosition::Key(key(rest)?)),
            3 => {
                let time = take_number(&mut rest)?;
                Some(CursorPosition::Time(TimePosition { time, conversation: key(rest)? }))
            }
            4 => {
                let (time, seq) = (take_number(&mut rest)?, take_number(&mut rest)?);
                let count =
                    usize::try_from(take_number(&mut rest)?).ok().filter(|count| *count < NEWEST_MAX)?;
                let conversation = key(rest)?;
                Some(CursorPosition::Newest(NewestPosition { time, conversation, seq, count }))
            }
            5 => Some(CursorPosition::User(UserId::new(std::str::from_utf8(rest).ok()?).ok()?)),
            6 => Some(CursorPosition::RoomMember(room_member(rest)?)),
            7 => {
                let seq = take_number(&mut rest)?;
                Some(CursorPosition::Row(ConversationSeq { conversation: key(rest)?, seq }))
            }
            8 => Some(CursorPosition::Feed(feed(rest)?)),
            _ => None,
        }
    }
}

impl CursorPosition {
    fn kind(&self) -> u8 {
        match self {
            Self::Before(_) => 0,
            Self::After(_) => 1,
            Self::Key(_) => 2,
            Self::Time(_) => 3,
            Self::Newest(_) => 4,
            Self::User(_) => 5,
            Self::RoomMember(_) => 6,
            Self::Row(_) => 7,
            Self::Feed(_) => 8,
        }
    }
}

fn key(bytes: &[u8]) -> Option<ConversationId> {
    ConversationId::parse(std::str::from_utf8(bytes).ok()?).ok()
}

/// Appends the numbers of partitions, each after its distance from the partition before.
fn put_feed(bytes: &mut Vec<u8>, numbers: &BTreeMap<u32, u64>) {
    let mut next = 0;
    for (partition, number) in numbers.iter().filter(|(_, number)| **number > 0) {
        put_number(bytes, u64::from(*partition) - next);
        put_number(bytes, *number);
        next = u64::from(*partition) + 1;
    }
}

fn feed(mut bytes: &[u8]) -> Option<BTreeMap<u32, u64>> {
    let (mut numbers, mut next) = (BTreeMap::new(), 0_u64);
    while !bytes.is_empty() {
        let partition = next.checked_add(take_number(&mut bytes)?)?;
        let number = take_number(&mut bytes)?;
        numbers.insert(u32::try_from(partition).ok()?, number);
        if !(1..=FEED_NUMBER_MAX).contains(&number) {
            return None;
        }
        next = partition + 1;
    }
    Some(numbers)
}

fn room_member(bytes: &[u8]) -> Option<RoomMember> {
    let (user, device) = std::str::from_utf8(bytes).ok()?.split_once(':')?;
    Some(RoomMember { user: UserId::new(user).ok()?, device: DeviceId::new(device).ok()? })
}

/// Appends a number as a varint.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

/// Takes a varint from the front.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(first & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if first & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn last_number(mut bytes: &[u8]) -> Option<u64> {
    let number = take_number(&mut bytes)?;
    bytes.is_empty().then_some(number)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: ListName<'static> = ListName { name: "history", filters: &["g:team", ""] };

    fn conversation() -> impl Strategy<Value = ConversationId> {
        "(g:[A-Za-z0-9_.-]{1,64}|d:a[A-Za-z0-9_.-]{0,63}:b[A-Za-z0-9_.-]{0,63})"
            .prop_map(|text| ConversationId::parse(&text).unwrap())
    }

    fn position() -> impl Strategy<Value = CursorPosition> {
        prop_oneof![
            any::<u64>().prop_map(CursorPosition::Before),
            any::<u64>().prop_map(CursorPosition::After),
            conversation().prop_map(CursorPosition::Key),
            ("[A-Za-z0-9_.-]{1,64}", "[A-Za-z0-9_.-]{1,64}").prop_map(|(user, device)| {
                let (user, device) = (UserId::new(&user).unwrap(), DeviceId::new(&device).unwrap());
                CursorPosition::RoomMember(RoomMember { user, device })
            }),
            "[A-Za-z0-9_.-]{1,64}".prop_map(|text| CursorPosition::User(UserId::new(&text).unwrap())),
            prop::collection::btree_map(any::<u32>(), 1..=FEED_NUMBER_MAX, 0..80)
                .prop_map(CursorPosition::Feed),
            (any::<u64>(), conversation())
                .prop_map(|(time, conversation)| CursorPosition::Time(TimePosition { time, conversation })),
            (any::<u64>(), conversation()).prop_map(|(seq, conversation)| {
                CursorPosition::Row(ConversationSeq { conversation, seq })
            }),
            (any::<u64>(), conversation(), any::<u64>(), 0..NEWEST_MAX).prop_map(
                |(time, conversation, seq, count)| {
                    CursorPosition::Newest(NewestPosition { time, conversation, seq, count })
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn cursor_returns_its_position_in_its_own_list_only(position in position()) {
            let cursor = LIST.cursor(&position);
            prop_assert!(cursor.len() <= CURSOR_CHARS_MAX);
            prop_assert_eq!(LIST.position(&cursor).ok(), Some(position));
            for other in [
                ListName { name: "other", ..LIST },
                ListName { filters: &["g:team"], ..LIST },
                ListName { filters: &["g:other", ""], ..LIST },
                ListName { filters: &["", "g:team"], ..LIST },
            ] {
                prop_assert!(matches!(other.position(&cursor), Err(Problem(Code::CursorInvalid, _))));
            }
        }

        #[test]
        fn any_position_after_a_right_hash_is_read_without_a_panic(kind in 0..9u8, rest in prop::collection::vec(any::<u8>(), 0..180)) {
            let mut bytes = vec![VERSION, kind];
            bytes.extend(LIST.hash());
            bytes.extend(rest);
            let text = BASE64URL_NOPAD.encode(&bytes);
            if let Ok(found) = LIST.position(&text) {
                prop_assert_eq!(found.kind(), kind);
                prop_assert!(text.len() <= CURSOR_CHARS_MAX);
            }
        }

        #[test]
        fn any_text_is_refused_without_a_panic(text in ".{0,300}") {
            prop_assert!(LIST.position(&text).is_err());
        }
    }

    fn text_of(kind: u8, position: &[u8]) -> String {
        BASE64URL_NOPAD.encode(&[&[VERSION, kind], &LIST.hash()[..], position].concat())
    }

    #[test]
    fn position_has_one_text_only() {
        assert_eq!(LIST.position(&text_of(0, &[5])).ok(), Some(CursorPosition::Before(5)));
        let max = [&[0xff; 9][..], &[1]].concat();
        assert_eq!(LIST.position(&text_of(1, &max)).ok(), Some(CursorPosition::After(u64::MAX)));
        for (kind, position) in [
            (0, &[0x85, 0][..]),
            (0, &[]),
            (0, &[0x85]),
            (0, &[5, 0]),
            (0, &[0xff; 11]),
            (0, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]),
            (2, b"g:"),
            (2, b"d:b:a"),
            (3, b"g:team"),
            (5, &[5]),
            (6, b"ann"),
            (7, &[5]),
            (7, b"g:team"),
            (8, &[5, 0]),
            (8, &[0xff, 0xff, 0xff, 0xff, 0x1f, 1]),
            (8, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            (9, &[5]),
        ] {
            assert!(LIST.position(&text_of(kind, position)).is_err(), "{kind} {position:?}");
        }
        let numbers = BTreeMap::from([(0, 300), (2, 1)]);
        assert_eq!(LIST.position(&text_of(8, &[0, 0xac, 2, 1, 1])).ok(), Some(CursorPosition::Feed(numbers)));
        let mut other = text_of(0, &[0x85, 1]).into_bytes();
        *other.last_mut().unwrap() += 1;
        assert!(LIST.position(std::str::from_utf8(&other).unwrap()).is_err(), "unused bits are set");
    }

    #[test]
    fn count_beyond_the_depth_of_newest_messages_is_refused() {
        let of = |count: usize| {
            let mut position = vec![1, 1];
            put_number(&mut position, count as u64);
            position.extend(b"g:team");
            LIST.position(&text_of(4, &position))
        };
        assert!(of(NEWEST_MAX - 1).is_ok());
        assert!(of(NEWEST_MAX).is_err());
    }
}
