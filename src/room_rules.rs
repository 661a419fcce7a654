//! Rules of live rooms: how many messages of a room are numbered, and how often it is written to its members.

use std::time::Duration;

use tidegate_protocol::{id::ConversationId, machine::reactions::ReactionKind};

/// Most rules by name.
const NAMED_MAX: usize = 256;

/// Most kinds of reactions that are listed: as many as a room can have.
pub const REACTIONS_MAX: usize = tidegate_protocol::machine::reactions::REACTION_KINDS_MAX;

/// Longest time between two passes over the members of a room, in ms.
pub const TICK_MS_MAX: u32 = 1_000;

/// Most recent messages that a member gets when it joins.
pub const LAST_MAX: u32 = 50;

/// Rule of a live room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoomRule {
    /// Messages per second that are numbered; 0: all.
    pub rate: u32,
    /// Least time between two passes over the members.
    pub tick: Duration,
    /// Recent messages that a member gets when it joins.
    pub last: u32,
    /// Whether members get the number of members.
    pub members: bool,
}

/// Rules of all live rooms of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoomRules {
    others: RoomRule,
    /// Rules by name, or by the beginning of a name; the first that matches counts.
    named: Vec<NamedRule>,
    /// Kinds of reactions; empty for any.
    reactions: Vec<ReactionKind>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamedRule {
    name: String,
    is_prefix: bool,
    rule: RoomRule,
}

impl RoomRules {
    /// Parses rules such as `hall rate=500 tick_ms=50` or `stage-* rate=0`, over that of all other rooms.
    ///
    /// # Errors
    /// Returns what is wrong with which rule.
    pub fn parse(others: RoomRule, named: &[String]) -> Result<Self, String> {
        if named.len() > NAMED_MAX {
            return Err(format!("at most {NAMED_MAX} rules"));
        }
        let named = named.iter().map(|text| parse_named(others, text)).collect::<Result<_, _>>()?;
        Ok(Self { others, named, reactions: Vec::new() })
    }

    /// Accepts only these kinds of reactions; any, if the list is empty.
    ///
    /// # Errors
    /// Returns what is wrong with which kind.
    pub fn with_reactions(self, kinds: &[String]) -> Result<Self, String> {
        if kinds.len() > REACTIONS_MAX {
            return Err(format!("at most {REACTIONS_MAX} kinds"));
        }
        let parse = |kind: &String| {
            let cure = || format!("`{kind}`: 1 to 16 bytes without spaces and control characters");
            ReactionKind::new(kind).ok_or_else(cure)
        };
        Ok(Self { reactions: kinds.iter().map(parse).collect::<Result<_, _>>()?, ..self })
    }

    /// Returns whether reactions of the kind are accepted.
    pub fn has_reaction(&self, kind: ReactionKind) -> bool {
        self.reactions.is_empty() || self.reactions.contains(&kind)
    }

    /// Returns whether the members of any room are counted.
    pub fn counts_members(&self) -> bool {
        self.others.members || self.named.iter().any(|it| it.rule.members)
    }

    /// Returns the rule of a room by its conversation.
    pub fn of_room(&self, room: &ConversationId) -> RoomRule {
        self.of(room.as_str().trim_start_matches("r:"))
    }

    /// Returns the rule of a room by its name.
    fn of(&self, room: &str) -> RoomRule {
        let matches = |it: &&NamedRule| {
            if it.is_prefix { room.starts_with(&it.name) } else { room == it.name }
        };
        self.named.iter().find(matches).map_or(self.others, |it| it.rule)
    }
}

/// Keys of a named rule.
const KEYS: &str = "after the name: rate=N, tick_ms=N, last=N, members=0 or 1";

fn parse_named(others: RoomRule, text: &str) -> Result<NamedRule, String> {
    let bad = |why: &str| format!("`{text}`: {why}");
    let mut words = text.split_ascii_whitespace();
    let name = words.next().ok_or_else(|| bad("begin with the name of a room"))?;
    let (name, is_prefix) = name.strip_suffix('*').map_or((name, false), |stem| (stem, true));
    let is_named = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    if !is_named || name.is_empty() && !is_prefix {
        return Err(bad("a name of a room has letters, digits, `_`, `.` and `-`, and may end with `*`"));
    }
    let mut rule = others;
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| bad(KEYS))?;
        let value: u32 = value.parse().map_err(|_| bad(&format!("{key}: no number")))?;
        match key {
            "rate" => rule.rate = value,
            "tick_ms" if value <= TICK_MS_MAX => rule.tick = Duration::from_millis(value.into()),
            "tick_ms" => return Err(bad(&format!("tick_ms: at most {TICK_MS_MAX}"))),
            "last" if value <= LAST_MAX => rule.last = value,
            "last" => return Err(bad(&format!("last: at most {LAST_MAX}"))),
            "members" if value <= 1 => rule.members = value == 1,
            "members" => return Err(bad("members: 0 or 1")),
            _ => return Err(bad(KEYS)),
        }
    }
    Ok(NamedRule { name: name.to_owned(), is_prefix, rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(named: &[&str]) -> Result<RoomRules, String> {
        let others = RoomRule { rate: 200, tick: Duration::from_millis(20), ..RoomRule::default() };
        RoomRules::parse(others, &named.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn first_rule_that_matches_counts() {
        let rules =
            rules(&["hall rate=500 last=50", "stage-1 tick_ms=0", "stage-* rate=0 tick_ms=50"]).unwrap();
        let of = |room: &str| (rules.of(room).rate, rules.of(room).tick.as_millis());
        assert_eq!([rules.of("hall").last, rules.of("x").last], [50, 0]);
        assert_eq!((of("hall"), of("hall2")), ((500, 20), (200, 20)));
        assert_eq!((of("stage-1"), of("stage-2"), of("stage-")), ((200, 0), (0, 50), (0, 50)));
    }

    #[test]
    fn members_are_counted_by_name_and_kinds_are_listed() {
        let quiet = rules(&["hall last=1"]).unwrap();
        assert!(!quiet.counts_members());
        let rules = rules(&["hall members=1", "stage-* members=0"]).unwrap();
        assert!(rules.counts_members() && rules.of("hall").members && !rules.of("tea").members);
        let kind = |name| ReactionKind::new(name).unwrap();
        assert!(rules.has_reaction(kind("like")), "any");
        let listed = |kinds: &[&str]| {
            let kinds: Vec<String> = kinds.iter().map(|it| (*it).to_owned()).collect();
            quiet.clone().with_reactions(&kinds)
        };
        let only = listed(&["like", "wow"]).unwrap();
        assert!(only.has_reaction(kind("wow")) && !only.has_reaction(kind("boo")));
        assert!(listed(&["a b"]).is_err() && listed(&["x"; REACTIONS_MAX + 1]).is_err());
    }

    #[test]
    fn wrong_rules_are_refused() {
        for wrong in [
            "",
            "r:hall",
            "hall rate",
            "hall rate=x",
            "hall speed=1",
            "hall tick_ms=1001",
            "hall last=51",
            "hall members=2",
            "a*b rate=1",
        ] {
            assert!(rules(&[wrong]).is_err(), "{wrong}");
        }
        assert!(
            rules(&["hall rate=1"; NAMED_MAX]).is_ok() && rules(&["hall rate=1"; NAMED_MAX + 1]).is_err()
        );
    }
}
