//! Ids that people and programs choose, and the conversation keys that only the broker builds.
//!
//! Every id matches `[A-Za-z0-9_.-]{1,64}`, so keys made of ids joined by `:` can't be confused (DESIGN 2).

use std::{borrow::Borrow, fmt, str::FromStr, sync::Arc};

/// The longest id, in bytes.
pub const ID_BYTES_MAX: usize = 64;

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing there.
    #[error("an id may not be empty")]
    Empty,
    /// Over [`ID_BYTES_MAX`].
    #[error("an id has at most {ID_BYTES_MAX} characters, this one has {0}")]
    TooLong(usize),
    /// A character outside `[A-Za-z0-9_.-]`.
    #[error("an id is made of A-Z a-z 0-9 _ . - only")]
    BadCharacter,
    /// Not `d:<a>:<b>` (ids sorted), `g:<id>` or `r:<id>`.
    #[error("a conversation is d:<a>:<b> with the ids in order, g:<id> or r:<id>")]
    NotAConversation,
}

/// Checks the common rule of all ids.
pub fn check_id(text: &str) -> Result<(), IdError> {
    match text.len() {
        0 => Err(IdError::Empty),
        n if n > ID_BYTES_MAX => Err(IdError::TooLong(n)),
        _ if text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')) => Ok(()),
        _ => Err(IdError::BadCharacter),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id, if `text` is one.
            pub fn new(text: &str) -> Result<Self, IdError> {
                check_id(text)?;
                Ok(Self(text.into()))
            }

            /// The id as text.
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
    /// A person or a program that talks.
    UserId
);
id!(
    /// One of a user's devices.
    DeviceId
);
id!(
    /// A group of users with a history.
    GroupId
);
id!(
    /// A live room: the lossy class.
    RoomId
);
id!(
    /// A message, as its sender names it; unique per (conversation, sender, device).
    MsgId
);
id!(
    /// A node of the cluster.
    NodeId
);

/// Where a message goes: the key under which its order and history live.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(Arc<str>);

/// The three kinds of conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversationKind<'a> {
    /// Between two users (or a user and themselves); the smaller id first.
    Direct(&'a str, &'a str),
    /// A group.
    Group(&'a str),
    /// A live room.
    Room(&'a str),
}

impl ConversationId {
    /// The direct conversation of two users; the same from both sides.
    pub fn direct(a: &UserId, b: &UserId) -> Self {
        let (first, second) = if a <= b { (a, b) } else { (b, a) };
        Self(format!("d:{first}:{second}").into())
    }

    /// A group's conversation.
    pub fn group(group: &GroupId) -> Self {
        Self(format!("g:{group}").into())
    }

    /// A room's conversation.
    pub fn room(room: &RoomId) -> Self {
        Self(format!("r:{room}").into())
    }

    /// Reads a key that a client sends back or that a record carries.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        parse_kind(text)?;
        Ok(Self(text.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What kind of conversation it is, with the ids inside.
    pub fn kind(&self) -> ConversationKind<'_> {
        parse_kind(&self.0).expect("checked when the key was built")
    }

    /// Whether this is a direct conversation with `user` as one side.
    pub fn is_direct_of(&self, user: &UserId) -> bool {
        matches!(self.kind(), ConversationKind::Direct(a, b) if a == user.as_str() || b == user.as_str())
    }
}

fn parse_kind(text: &str) -> Result<ConversationKind<'_>, IdError> {
    let (kind, rest) = text.split_once(':').ok_or(IdError::NotAConversation)?;
    match kind {
        "d" => {
            let (a, b) = rest.split_once(':').ok_or(IdError::NotAConversation)?;
            check_id(a)?;
            check_id(b)?;
            if a <= b { Ok(ConversationKind::Direct(a, b)) } else { Err(IdError::NotAConversation) }
        }
        "g" => check_id(rest).map(|()| ConversationKind::Group(rest)),
        "r" => check_id(rest).map(|()| ConversationKind::Room(rest)),
        _ => Err(IdError::NotAConversation),
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
    fn an_id_has_one_to_sixty_four_plain_characters() {
        assert_eq!(check_id(""), Err(IdError::Empty));
        assert_eq!(check_id(&"a".repeat(64)), Ok(()));
        assert_eq!(check_id(&"a".repeat(65)), Err(IdError::TooLong(65)));
        for bad in ["a b", "a:b", "é", "a\n", "a/b"] {
            assert_eq!(check_id(bad), Err(IdError::BadCharacter), "{bad:?}");
        }
    }

    #[test]
    fn a_direct_conversation_is_the_same_from_both_sides() {
        let (ann, bob) = (UserId::new("ann").unwrap(), UserId::new("bob").unwrap());
        let key = ConversationId::direct(&bob, &ann);
        assert_eq!(key, ConversationId::direct(&ann, &bob));
        assert_eq!(key.kind(), ConversationKind::Direct("ann", "bob"));
        assert!(key.is_direct_of(&bob));
        assert!(!key.is_direct_of(&UserId::new("an").unwrap()));
    }

    #[test]
    fn keys_that_the_broker_would_not_build_are_refused() {
        for bad in ["", "d:a", "d:b:a", "g:", "x:a", "g:a:b", "d:a:b:c", "r: ", "ga"] {
            assert!(ConversationId::parse(bad).is_err(), "{bad:?}");
        }
        for good in ["d:a:a", "d:a:b", "g:a", "r:a-1"] {
            assert_eq!(ConversationId::parse(good).unwrap().as_str(), good);
        }
    }
}
