//! Ids that clients and operators choose, and the conversation keys that only the broker builds.
//!
//! Every id matches `[A-Za-z0-9_.-]{1,64}`, so keys made of ids joined by `:` are unambiguous (SPEC section 2).

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// Maximum length of an id, in bytes.
pub const ID_BYTES_MAX: usize = 64;

/// Reason why a text is not a valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is empty.
    #[error("id is empty")]
    Empty,
    /// The text is longer than [`ID_BYTES_MAX`].
    #[error("id has {0} characters; use at most {ID_BYTES_MAX}")]
    TooLong(usize),
    /// The text has a character outside `[A-Za-z0-9_.-]`.
    #[error("id has an invalid character; use only A-Z a-z 0-9 _ . -")]
    BadCharacter,
    /// The text is `.` or `..`, and names something new or the target of a request.
    #[error("id is a dot segment, which programs rewrite in URLs; choose one other than `.` and `..`")]
    DotSegment,
    /// The text is not `d:<a>:<b>` (ids sorted), `g:<id>` or `r:<id>`.
    #[error("not a conversation key; use d:<a>:<b> with the ids in order, g:<id> or r:<id>")]
    NotAConversation,
}

/// Checks the rule that all ids share.
pub fn check_id(text: &str) -> Result<(), IdError> {
    match text.len() {
        0 => Err(IdError::Empty),
        n if n > ID_BYTES_MAX => Err(IdError::TooLong(n)),
        _ if text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')) => Ok(()),
        _ => Err(IdError::BadCharacter),
    }
}

/// Checks that the id may be a segment in the path of a URL.
fn check_segment(text: &str) -> Result<(), IdError> {
    if matches!(text, "." | "..") { Err(IdError::DotSegment) } else { Ok(()) }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates the id from `text`, if it is valid.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check_id(text)?;
                Ok(Self(text.into()))
            }

            /// Creates the id of something new, or of the target of a request: as [`Self::new`], but never `.` or `..`,
            /// which can't be a segment in the path of a URL.
            pub fn addressable(text: &str) -> Result<Self, IdError> {
                check_segment(text)?;
                Self::new(text)
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Id of a user, which may be a person or a program.
    UserId
);
id!(
    /// Id of one of a user's devices.
    DeviceId
);
id!(
    /// Id of a group, a conversation of several users with a history.
    GroupId
);
id!(
    /// Id of a live room, the lossy class of conversation.
    RoomId
);
id!(
    /// Id of a message, chosen by its sender; unique per (conversation, sender, device).
    MsgId
);
id!(
    /// Id of a node of the cluster.
    NodeId
);

/// Key of a conversation, which has its own order and history.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(Arc<str>);

/// Kind of a conversation, with the ids of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversationKind<'a> {
    /// Direct conversation of two users, or of a user with themselves; the smaller id is first.
    Direct(&'a str, &'a str),
    /// Group.
    Group(&'a str),
    /// Live room.
    Room(&'a str),
}

impl ConversationId {
    /// Builds the key of the direct conversation of two users, in either order.
    pub fn direct(a: &UserId, b: &UserId) -> Self {
        let (first, second) = if a <= b { (a, b) } else { (b, a) };
        Self(format!("d:{first}:{second}").into())
    }

    /// Builds the key of a group.
    pub fn group(group: &GroupId) -> Self {
        Self(format!("g:{group}").into())
    }

    /// Builds the key of a live room.
    pub fn room(room: &RoomId) -> Self {
        Self(format!("r:{room}").into())
    }

    /// Parses a key that a client sends back or that a record contains.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        parse_kind(text)?;
        Ok(Self(text.into()))
    }

    /// Parses the key of the target of a request: as [`Self::parse`], but the users of a direct conversation may be in any
    /// order, and no id may be `.` or `..`, which can't be a segment in the path of a URL.
    pub fn addressable(text: &str) -> Result<Self, IdError> {
        if let Some((a, b)) = text.strip_prefix("d:").and_then(|users| users.split_once(':')) {
            return Ok(Self::direct(&UserId::addressable(a)?, &UserId::addressable(b)?));
        }
        let key = Self::parse(text)?;
        match key.kind() {
            ConversationKind::Group(id) | ConversationKind::Room(id) => check_segment(id)?,
            ConversationKind::Direct(..) => {}
        }
        Ok(key)
    }

    /// Returns the key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the kind of the conversation and the ids in its key.
    pub fn kind(&self) -> ConversationKind<'_> {
        split(&self.0).expect("the key was checked when it was built")
    }

    /// Returns whether this is a direct conversation of `user`.
    pub fn is_direct_of(&self, user: &UserId) -> bool {
        matches!(self.kind(), ConversationKind::Direct(a, b) if a == user.as_str() || b == user.as_str())
    }
}

fn parse_kind(text: &str) -> Result<ConversationKind<'_>, IdError> {
    let kind = split(text).ok_or(IdError::NotAConversation)?;
    match kind {
        ConversationKind::Direct(a, b) => {
            check_id(a)?;
            check_id(b)?;
            if a > b {
                return Err(IdError::NotAConversation);
            }
        }
        ConversationKind::Group(id) | ConversationKind::Room(id) => check_id(id)?,
    }
    Ok(kind)
}

/// Splits a key into its kind and its ids, which are not checked.
fn split(text: &str) -> Option<ConversationKind<'_>> {
    let (kind, rest) = text.split_at_checked(2)?;
    match kind {
        "d:" => rest.split_once(':').map(|(a, b)| ConversationKind::Direct(a, b)),
        "g:" => Some(ConversationKind::Group(rest)),
        "r:" => Some(ConversationKind::Room(rest)),
        _ => None,
    }
}

impl FromStr for ConversationId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::parse(text)
    }
}

impl Borrow<str> for ConversationId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ConversationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConversationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_has_one_to_64_plain_characters() {
        assert_eq!(check_id(""), Err(IdError::Empty));
        assert_eq!(check_id(&"a".repeat(64)), Ok(()));
        assert_eq!(check_id(&"a".repeat(65)), Err(IdError::TooLong(65)));
        for bad in ["a b", "a:b", "é", "a\n", "a/b"] {
            assert_eq!(check_id(bad), Err(IdError::BadCharacter), "{bad:?}");
        }
    }

    #[test]
    fn direct_conversation_has_one_key_for_both_users() {
        let (ann, bob) = (UserId::new("ann").unwrap(), UserId::new("bob").unwrap());
        let key = ConversationId::direct(&bob, &ann);
        assert_eq!(key, ConversationId::direct(&ann, &bob));
        assert_eq!(key.kind(), ConversationKind::Direct("ann", "bob"));
        assert!(key.is_direct_of(&bob));
        assert!(!key.is_direct_of(&UserId::new("an").unwrap()));
    }

    #[test]
    fn dot_segments_are_ids_but_no_targets() {
        for dots in [".", ".."] {
            assert_eq!(UserId::addressable(dots), Err(IdError::DotSegment));
            assert_eq!(UserId::new(dots).unwrap().as_str(), dots, "groups of a former version may have it");
            for key in
                [format!("g:{dots}"), format!("r:{dots}"), format!("d:{dots}:a"), format!("d:a:{dots}")]
            {
                assert_eq!(ConversationId::addressable(&key), Err(IdError::DotSegment), "{key}");
            }
            assert!(ConversationId::parse(&format!("g:{dots}")).is_ok());
        }
        for valid in ["...", ".a", "a.", "a..b"] {
            assert_eq!(UserId::addressable(valid).unwrap().as_str(), valid);
            assert!(ConversationId::addressable(&format!("g:{valid}")).is_ok());
        }
        assert_eq!(ConversationId::addressable("d:b:a").unwrap().as_str(), "d:a:b");
        assert_eq!(UserId::addressable(""), Err(IdError::Empty));
        for bad in ["", "d:a", "g:", "x:a", "g:a:b", "d:a:b:c", "d:a b:c"] {
            assert!(ConversationId::addressable(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn malformed_conversation_keys_are_refused() {
        for bad in ["", "d:a", "d:b:a", "g:", "x:a", "g:a:b", "d:a:b:c", "r: ", "ga"] {
            assert!(ConversationId::parse(bad).is_err(), "{bad:?}");
        }
        for valid in ["d:a:a", "d:a:b", "g:a", "r:a-1"] {
            assert_eq!(ConversationId::parse(valid).unwrap().as_str(), valid);
        }
    }
}
