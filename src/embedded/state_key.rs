//! What a key of the keyspace `state` names: read back, for the tools that look at all of it.

use tidegate_protocol::id::{ConversationId, DeviceId, UserId};

use super::{
    Trouble,
    codec::{Pair, TOPIC, conversation_id, damaged, user_id},
};

/// One place in the keyspace `state`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Topic,
    Standing(u32),
    Log(u32, u64),
    Head(ConversationId),
    Member(ConversationId, UserId),
    OfUser(UserId, ConversationId),
    Mark(UserId, ConversationId),
    Stay(ConversationId, UserId, u64),
    Device(ConversationId, UserId, DeviceId),
    /// What a user wishes.
    Wishes(UserId),
    /// How far old keys of the partition are swept.
    Swept(u32),
}

impl Place {
    /// What the key names; an error for one that no part of this program writes.
    pub(super) fn of(key: &[u8]) -> Result<Self, Trouble> {
        if key == TOPIC {
            return Ok(Self::Topic);
        }
        let (kind, rest) = key.split_first().ok_or_else(damaged)?;
        match kind {
            b'p' => Ok(Self::Standing(partition(rest)?)),
            b'k' => Ok(Self::Swept(partition(rest)?)),
            b'l' => {
                let (number, offset) = rest.split_at_checked(4).ok_or_else(damaged)?;
                Ok(Self::Log(partition(number)?, seq(offset)?))
            }
            b'h' => Ok(Self::Head(conversation(rest)?)),
            b'w' => Ok(Self::Wishes(user(rest)?)),
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

    fn pair(kind: u8, rest: &[u8]) -> Result<Self, Trouble> {
        let pairs = [Pair::Member, Pair::OfUser, Pair::Mark];
        let unknown = || Trouble::Damaged(format!("a row of a kind {kind:#04x} that is not known here"));
        let pair = pairs.into_iter().find(|pair| *pair as u8 == kind).ok_or_else(unknown)?;
        let (first, second) = two(rest)?;
        // A new kind of pair belongs here, into the export and into the check.
        Ok(match pair {
            Pair::Member => Self::Member(conversation(first)?, user(second)?),
            Pair::OfUser => Self::OfUser(user(first)?, conversation(second)?),
            Pair::Mark => Self::Mark(user(first)?, conversation(second)?),
        })
    }
}

fn text(part: &[u8]) -> Result<&str, Trouble> {
    std::str::from_utf8(part).map_err(|_| damaged())
}

fn conversation(part: &[u8]) -> Result<ConversationId, Trouble> {
    conversation_id(text(part)?)
}

fn user(part: &[u8]) -> Result<UserId, Trouble> {
    user_id(text(part)?)
}

fn partition(part: &[u8]) -> Result<u32, Trouble> {
    part.try_into().map(u32::from_be_bytes).map_err(|_| damaged())
}

fn seq(part: &[u8]) -> Result<u64, Trouble> {
    part.try_into().map(u64::from_be_bytes).map_err(|_| damaged())
}

/// The parts before and behind the first zero byte.
fn two(part: &[u8]) -> Result<(&[u8], &[u8]), Trouble> {
    let end = part.iter().position(|byte| *byte == 0).ok_or_else(damaged)?;
    Ok((&part[..end], &part[end + 1..]))
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::machine::ledger::Stay;

    use super::*;
    use crate::embedded::codec;

    #[test]
    fn every_key_that_is_written_is_read_back() {
        let (id, ann) = (conversation_id("g:x").unwrap(), user_id("ann").unwrap());
        let phone = DeviceId::new("phone").unwrap();
        // 0 bytes in the number must not look like the end of a name.
        let stay = Stay { joined_seq: 1, left_seq: 256, joined_messages: 0, left_messages: 0 };
        let both = || (id.clone(), ann.clone());
        for (key, place) in [
            (codec::TOPIC.to_vec(), Place::Topic),
            (codec::standing_key(7), Place::Standing(7)),
            (codec::swept_key(7), Place::Swept(7)),
            (codec::log_key(1, 1 << 40), Place::Log(1, 1 << 40)),
            (codec::head_key(&id), Place::Head(id.clone())),
            (codec::wishes_key(&ann), Place::Wishes(ann.clone())),
            (codec::pair(Pair::Member, "g:x", "ann"), Place::Member(both().0, both().1)),
            (codec::pair(Pair::OfUser, "ann", "g:x"), Place::OfUser(both().1, both().0)),
            (codec::mark_key(&id, &ann), Place::Mark(both().1, both().0)),
            (codec::stay_key(&id, &ann, &stay), Place::Stay(both().0, both().1, 256)),
            (codec::device_key("g:x", "ann", "phone"), Place::Device(both().0, both().1, phone)),
        ] {
            assert_eq!(Place::of(&key).unwrap(), place);
        }
        assert!(Place::of(b"z").is_err() && Place::of(b"mann").is_err() && Place::of(b"").is_err());
    }
}
