//! Grants of a token: the rooms and recipients that it allows, and claims that are kept for later.

use tidegate_protocol::id::{ConversationId, ConversationKind, RoomId, UserId, check_id};

use super::{claims::Claims, fault::TokenFault};

/// Most patterns in one list.
const PATTERNS_MAX: usize = 64;

/// Largest `jti`, in bytes.
const TOKEN_ID_BYTES_MAX: usize = 128;

/// Largest `prio`.
pub const PRIORITY_MAX: u8 = 9;

/// Rights and marks of a connection beyond its user and device. A list that is `None` limits nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grants {
    rooms: Option<Box<[Pattern]>>,
    to: Option<Box<[Pattern]>>,
    /// Organisation of the user.
    pub organisation: Option<Box<str>>,
    /// Channel through which the user came.
    pub channel: Option<Box<str>>,
    /// Priority of the connection, at most [`PRIORITY_MAX`].
    pub priority: Option<u8>,
    /// Id of the token.
    pub token_id: Option<Box<str>>,
}

/// Exact name, or all names with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(Box<str>),
    Prefix(Box<str>),
}

impl Pattern {
    /// Parses a pattern whose name may begin with one of `kinds`.
    fn parse(text: &str, kinds: &[&str]) -> Result<Self, TokenFault> {
        let name = kinds.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(text);
        let (stem, is_prefix) = name.strip_suffix('*').map_or((name, false), |stem| (stem, true));
        if !(is_prefix && stem.is_empty()) && check_id(stem).is_err() {
            return Err(TokenFault::BadClaim);
        }
        Ok(match text.strip_suffix('*') {
            Some(prefix) => Self::Prefix(prefix.into()),
            None => Self::Exact(text.into()),
        })
    }

    fn matches(&self, kind: &str, name: &str) -> bool {
        let (pattern, is_prefix) = match self {
            Self::Exact(pattern) => (&**pattern, false),
            Self::Prefix(pattern) => (&**pattern, true),
        };
        // A pattern without a kind is one of users, so `*` allows no group and no room.
        let of = pattern.split_once(':').map_or(("", pattern), |(of, rest)| (of, rest));
        of.0 == kind && if is_prefix { name.starts_with(of.1) } else { name == of.1 }
    }
}

fn patterns(list: Option<&Vec<String>>, kinds: &[&str]) -> Result<Option<Box<[Pattern]>>, TokenFault> {
    let Some(list) = list else { return Ok(None) };
    if list.len() > PATTERNS_MAX {
        return Err(TokenFault::BadClaim);
    }
    list.iter().map(|text| Pattern::parse(text, kinds)).collect::<Result<_, _>>().map(Some)
}

fn id(text: Option<&String>) -> Result<Option<Box<str>>, TokenFault> {
    let Some(text) = text else { return Ok(None) };
    check_id(text).map_err(|_| TokenFault::BadClaim)?;
    Ok(Some(text.as_str().into()))
}

impl Grants {
    /// Returns the grants of a token; `None` if it has none of their claims.
    pub(super) fn of(claims: &Claims) -> Result<Option<Self>, TokenFault> {
        let is_long = |jti: &String| jti.len() > TOKEN_ID_BYTES_MAX;
        if claims.prio.is_some_and(|prio| prio > PRIORITY_MAX) || claims.jti.as_ref().is_some_and(is_long) {
            return Err(TokenFault::BadClaim);
        }
        let grants = Self {
            rooms: patterns(claims.rooms.as_ref(), &[])?,
            to: patterns(claims.to.as_ref(), &["g:", "r:"])?,
            organisation: id(claims.org.as_ref())?,
            channel: id(claims.chan.as_ref())?,
            priority: claims.prio,
            token_id: claims.jti.as_deref().map(Into::into),
        };
        Ok((grants != Self::default()).then_some(grants))
    }

    /// Returns whether the user may join the room.
    pub fn may_join(&self, room: &RoomId) -> bool {
        let Some(rooms) = &self.rooms else { return true };
        rooms.iter().any(|pattern| pattern.matches("", room.as_str()))
    }

    /// Returns whether `user` may write to the conversation. A user may always write to their own devices.
    pub fn may_write(&self, user: &UserId, conversation: &ConversationId) -> bool {
        let Some(to) = &self.to else { return true };
        let (kind, name) = match conversation.kind() {
            ConversationKind::Direct(a, b) if a == b => return true,
            ConversationKind::Direct(a, b) => ("", if a == user.as_str() { b } else { a }),
            ConversationKind::Group(name) => ("g", name),
            ConversationKind::Room(name) => ("r", name),
        };
        to.iter().any(|pattern| pattern.matches(kind, name))
    }

    /// Returns the approximate memory that the grants take.
    pub(crate) fn weight(&self) -> usize {
        let lists = [&self.rooms, &self.to].into_iter().flatten();
        size_of::<Self>() + lists.map(|list| list.len() * (size_of::<Pattern>() + 64)).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grants(rooms: &[&str], to: &[&str]) -> Result<Option<Grants>, TokenFault> {
        let list = |list: &[&str]| Some(list.iter().map(|it| (*it).to_owned()).collect());
        Grants::of(&Claims { rooms: list(rooms), to: list(to), ..Claims::default() })
    }

    #[test]
    fn patterns_allow_names_and_prefixes_of_their_kind() {
        let grants = grants(&["lobby", "team-*"], &["bob", "ops-*", "g:all*", "r:lobby"]).unwrap().unwrap();
        let join = |room: &str| grants.may_join(&RoomId::new(room).unwrap());
        assert!(join("lobby") && join("team-") && join("team-7") && !join("lobby2") && !join("tea"));
        let me = UserId::new("ann").unwrap();
        let user =
            |name: &str| grants.may_write(&me, &ConversationId::direct(&me, &UserId::new(name).unwrap()));
        assert!(user("bob") && user("ops-1") && user("ann") && !user("bobby") && !user("all"));
        let room = |name: &str| grants.may_write(&me, &ConversationId::room(&RoomId::new(name).unwrap()));
        assert!(room("lobby") && !room("bob") && !room("team-7"));
    }

    #[test]
    fn star_alone_means_all_users_only() {
        let grants = grants(&["*"], &["*"]).unwrap().unwrap();
        let (me, room) = (UserId::new("ann").unwrap(), RoomId::new("x").unwrap());
        assert!(grants.may_join(&room));
        assert!(!grants.may_write(&me, &ConversationId::room(&room)));
        assert!(grants.may_write(&me, &ConversationId::direct(&me, &UserId::new("bob").unwrap())));
    }

    #[test]
    fn lists_and_patterns_are_bounded() {
        assert!(grants(&["x"; PATTERNS_MAX], &[]).is_ok());
        assert_eq!(grants(&["x"; PATTERNS_MAX + 1], &[]), Err(TokenFault::BadClaim));
        for wrong in ["", "a b", "a*b", "r:x", &"x".repeat(65)] {
            assert_eq!(grants(&[wrong], &[]), Err(TokenFault::BadClaim), "{wrong}");
        }
        assert_eq!(grants(&[], &["u:bob"]), Err(TokenFault::BadClaim));
        assert_eq!(Grants::of(&Claims::default()), Ok(None), "most tokens cost a connection nothing");
        let loud = Claims { prio: Some(PRIORITY_MAX + 1), ..Claims::default() };
        assert_eq!(Grants::of(&loud), Err(TokenFault::BadClaim));
    }

    proptest! {
        #[test]
        fn prefix_allows_exactly_the_names_that_begin_with_it(stem in "[a-c]{1,4}", room in "[a-c]{1,6}") {
            let grants = grants(&[&format!("{stem}*")], &[]).unwrap().unwrap();
            prop_assert_eq!(grants.may_join(&RoomId::new(&room).unwrap()), room.starts_with(&stem));
        }
    }
}
