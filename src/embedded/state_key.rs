//! Parsed form of the keys of the keyspace `state`, for the tools that read all of it.

use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use super::{
    DatabaseError,
    codec::{self, NEWEST_REVOCATION, Pair, TOPIC, conversation_id, damaged, user_id},
};

/// Key of the keyspace `state`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StateKey {
    Topic,
    Partition(u32),
    Log(u32, u64),
    Head(ConversationId),
    Member(ConversationId, UserId),
    OfUser(UserId, ConversationId),
    Mark(UserId, ConversationId),
    Stay(ConversationId, UserId, u64),
    Device(ConversationId, UserId, DeviceId),
    /// Settings of a user.
    UserSettings(UserId),
    /// Revocation of tokens of a user.
    Revocation(UserId),
    NewestRevocation,
    /// Block of a user, by the user whose list it is.
    Block(UserId, UserId),
    /// Block that a version added.
    BlockAt(u64),
    /// Version of the last change of any block list.
    BlockVersion,
    /// Length of a user's block list.
    BlockCount(UserId),
    /// Entry of the guard, by the number of its kind and its name.
    Guard(u8, String),
    /// Entry of the guard that a version has changed.
    GuardAt(u64),
    /// Version of the newest change of a guard entry.
    GuardVersion,
    /// End of an entry of the guard.
    GuardEnd(u8, u64, String),
    /// Number of guard entries of a kind.
    GuardCount(u8),
    /// Offset up to which expired dedup keys of the partition are removed.
    Swept(u32),
}

impl StateKey {
    /// Parses a key; fails for one that this program never writes.
    pub(super) fn of(key: &[u8]) -> Result<Self, DatabaseError> {
        if key == TOPIC {
            return Ok(Self::Topic);
        }
        if key == NEWEST_REVOCATION {
            return Ok(Self::NewestRevocation);
        }
        let (kind, rest) = key.split_first().ok_or_else(damaged)?;
        match kind {
            b'x' => Ok(Self::Revocation(user(two(rest)?.0)?)),
            b'p' => Ok(Self::Partition(partition(rest)?)),
            b'k' => Ok(Self::Swept(partition(rest)?)),
            b'l' => {
                let (number, offset) = rest.split_at_checked(4).ok_or_else(damaged)?;
                Ok(Self::Log(partition(number)?, seq(offset)?))
            }
            b'h' => Ok(Self::Head(conversation(rest)?)),
            b'w' => Ok(Self::UserSettings(user(rest)?)),
            b'v' if rest.is_empty() => Ok(Self::BlockVersion),
            b'v' => Ok(Self::BlockAt(seq(rest)?)),
            b'c' => Ok(Self::BlockCount(user(rest)?)),
            b'g' | b'e' | b'n' | b'q' => guard(key),
            b's' => {
                let (names, left) =
                    rest.split_at_checked(rest.len().saturating_sub(9)).ok_or_else(damaged)?;
                let left = left.strip_prefix(b"\0").ok_or_else(damaged)?;
                let (id, user) = two(names)?;
                Ok(Self::Stay(conversation(id)?, self::user(user)?, seq(left)?))
            }
            b'd' => {
                let (id, rest) = two(rest)?;
                let (user, device) = two(rest)?;
                let device = DeviceId::new(text(device)?).map_err(|_| damaged())?;
                Ok(Self::Device(conversation(id)?, self::user(user)?, device))
            }
            kind => Self::pair(*kind, rest),
        }
    }

    fn pair(kind: u8, rest: &[u8]) -> Result<Self, DatabaseError> {
        let pairs = [Pair::Member, Pair::OfUser, Pair::Mark, Pair::Block];
        let unknown = || DatabaseError::Damaged(format!("a row has the unknown kind {kind:#04x}"));
        let pair = pairs.into_iter().find(|pair| *pair as u8 == kind).ok_or_else(unknown)?;
        let (first, second) = two(rest)?;
        // A new kind of pair must be added here, to the export and to the check.
        Ok(match pair {
            Pair::Member => Self::Member(conversation(first)?, user(second)?),
            Pair::OfUser => Self::OfUser(user(first)?, conversation(second)?),
            Pair::Mark => Self::Mark(user(first)?, conversation(second)?),
            Pair::Block => Self::Block(user(first)?, user(second)?),
        })
    }
}

fn guard(key: &[u8]) -> Result<StateKey, DatabaseError> {
    match key {
        b"n" => Ok(StateKey::GuardVersion),
        [b'n', version @ ..] => Ok(StateKey::GuardAt(seq(version)?)),
        [b'q', kind] => Ok(StateKey::GuardCount(*kind)),
        [b'g', ..] => codec::guard_name(key).map(|(kind, name)| StateKey::Guard(kind, name.to_owned())),
        _ => {
            let (kind, until, name) = codec::guard_end(key)?;
            Ok(StateKey::GuardEnd(kind, until, name.to_owned()))
        }
    }
}

fn text(part: &[u8]) -> Result<&str, DatabaseError> {
    std::str::from_utf8(part).map_err(|_| damaged())
}

fn conversation(part: &[u8]) -> Result<ConversationId, DatabaseError> {
    conversation_id(text(part)?)
}

fn user(part: &[u8]) -> Result<UserId, DatabaseError> {
    user_id(text(part)?)
}

fn partition(part: &[u8]) -> Result<u32, DatabaseError> {
    part.try_into().map(u32::from_be_bytes).map_err(|_| damaged())
}

fn seq(part: &[u8]) -> Result<u64, DatabaseError> {
    part.try_into().map(u64::from_be_bytes).map_err(|_| damaged())
}

/// Splits a key at its first zero byte.
fn two(part: &[u8]) -> Result<(&[u8], &[u8]), DatabaseError> {
    let end = part.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    Ok((&part[..end], &part[end + 1..]))
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::machine::ledger::Stay;

    use super::*;
    use crate::{
        embedded::codec,
        revocation::{Revocation, RevokedTokens},
    };

    #[test]
    fn every_written_key_is_parsed_again() {
        let (id, ann) = (conversation_id("g:x").unwrap(), user_id("ann").unwrap());
        let phone = DeviceId::new("phone").unwrap();
        // Zero bytes in the number must not look like the end of a name.
        let stay = Stay { joined_seq: 1, left_seq: 256, joined_messages: 0, left_messages: 0 };
        let tokens = RevokedTokens::Id("a\0b".into());
        let revoked = Revocation { user: ann.clone(), tokens, at_ms: 1, until_ms: None };
        let both = || (id.clone(), ann.clone());
        for (key, name) in [
            (codec::TOPIC.to_vec(), StateKey::Topic),
            (codec::partition_key(7), StateKey::Partition(7)),
            (codec::swept_key(7), StateKey::Swept(7)),
            (codec::log_key(1, 1 << 40), StateKey::Log(1, 1 << 40)),
            (codec::head_key(&id), StateKey::Head(id.clone())),
            (codec::user_settings_key(&ann), StateKey::UserSettings(ann.clone())),
            (codec::revocation_key(&revoked), StateKey::Revocation(ann.clone())),
            (codec::NEWEST_REVOCATION.to_vec(), StateKey::NewestRevocation),
            (codec::pair(Pair::Member, "g:x", "ann"), StateKey::Member(both().0, both().1)),
            (codec::pair(Pair::OfUser, "ann", "g:x"), StateKey::OfUser(both().1, both().0)),
            (codec::mark_key(&id, &ann), StateKey::Mark(both().1, both().0)),
            (codec::pair(Pair::Block, "ann", "bob"), StateKey::Block(both().1, user_id("bob").unwrap())),
            (codec::block_version_key(256), StateKey::BlockAt(256)),
            (codec::BLOCK_VERSION.to_vec(), StateKey::BlockVersion),
            (codec::block_count_key(&ann), StateKey::BlockCount(ann.clone())),
            (codec::guard_key(0, "a\0b"), StateKey::Guard(0, "a\0b".into())),
            (codec::guard_version_key(256), StateKey::GuardAt(256)),
            (codec::GUARD_VERSION.to_vec(), StateKey::GuardVersion),
            (codec::guard_end_key(2, 256, "a"), StateKey::GuardEnd(2, 256, "a".into())),
            (codec::guard_count_key(2), StateKey::GuardCount(2)),
            (codec::stay_key(&id, &ann, &stay), StateKey::Stay(both().0, both().1, 256)),
            (codec::device_key("g:x", "ann", "phone"), StateKey::Device(both().0, both().1, phone)),
        ] {
            assert_eq!(StateKey::of(&key).unwrap(), name);
        }
        assert!(StateKey::of(b"z").is_err() && StateKey::of(b"mann").is_err() && StateKey::of(b"").is_err());
    }
}
