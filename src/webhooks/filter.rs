//! Filter of an endpoint: the types and conversations that it wants.

use tidegate_protocol::{id::ConversationId, record::MemberAction};

use crate::store::FeedKind;

pub(super) const ACCEPTED: &str = "tidegate.message.accepted";
pub(super) const RECALLED: &str = "tidegate.message.recalled";
pub(super) const EDITED: &str = "tidegate.message.edited";
pub(super) const PRUNED: &str = "tidegate.message.pruned";

/// Types of all changes of groups.
const CHANGES: [MemberAction; 9] = [
    MemberAction::Create,
    MemberAction::Settings,
    MemberAction::Delete,
    MemberAction::Join,
    MemberAction::Leave,
    MemberAction::Kick,
    MemberAction::Role,
    MemberAction::Mute,
    MemberAction::Unmute,
];

/// Most patterns of types, and of conversations.
const PATTERNS_MAX: usize = 64;

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 160;

/// Returns the type of the event of a change.
pub(super) const fn change_type(action: MemberAction) -> &'static str {
    match action {
        MemberAction::Create => "tidegate.group.created",
        MemberAction::Settings => "tidegate.group.changed",
        MemberAction::Delete => "tidegate.group.deleted",
        MemberAction::Join => "tidegate.member.joined",
        MemberAction::Leave => "tidegate.member.left",
        MemberAction::Kick => "tidegate.member.kicked",
        MemberAction::Role => "tidegate.member.role",
        MemberAction::Mute => "tidegate.member.muted",
        MemberAction::Unmute => "tidegate.member.unmuted",
    }
}

/// Text, or the beginning of a text if it ends in `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(String);

impl Pattern {
    fn matches(&self, text: &str) -> bool {
        self.0.strip_suffix('*').map_or(self.0 == text, |beginning| text.starts_with(beginning))
    }
}

/// Reason why a filter can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFilter {
    /// No type is wanted, or there are too many patterns.
    #[error("name 1 to 64 types, such as tidegate.message.*, and at most 64 conversations")]
    Count,
    /// A pattern is too long, or has a `*` before its end.
    #[error("a pattern must have 1 to 160 bytes, and a * only at its end")]
    Pattern,
}

/// Types and conversations that an endpoint wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFilter {
    types: Vec<Pattern>,
    /// Empty for all.
    conversations: Vec<Pattern>,
}

impl WebhookFilter {
    /// Creates a filter of types and conversations; without a conversation, all are wanted.
    ///
    /// # Errors
    /// There is no type, there are too many patterns, or one is invalid.
    pub fn new(types: &[String], conversations: &[String]) -> Result<Self, InvalidFilter> {
        if types.is_empty() || types.len() > PATTERNS_MAX || conversations.len() > PATTERNS_MAX {
            return Err(InvalidFilter::Count);
        }
        let pattern = |text: &String| {
            let is_valid = (1..=PATTERN_BYTES_MAX).contains(&text.len())
                && !text.strip_suffix('*').unwrap_or(text).contains('*');
            is_valid.then(|| Pattern(text.clone())).ok_or(InvalidFilter::Pattern)
        };
        Ok(Self {
            types: types.iter().map(pattern).collect::<Result<_, _>>()?,
            conversations: conversations.iter().map(pattern).collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether events of the type are wanted.
    pub fn wants_type(&self, kind: &str) -> bool {
        self.types.iter().any(|pattern| pattern.matches(kind))
    }

    /// Returns whether an entry of the feed may be wanted, as far as the reference tells.
    pub fn may_want(&self, conversation: &ConversationId, kind: FeedKind) -> bool {
        let wants_type = match kind {
            FeedKind::Message => self.wants_type(ACCEPTED),
            FeedKind::Recall => self.wants_type(RECALLED),
            FeedKind::Edit => self.wants_type(EDITED),
            FeedKind::Prune => self.wants_type(PRUNED),
            FeedKind::Change => CHANGES.iter().any(|action| self.wants_type(change_type(*action))),
            FeedKind::Unknown(_) => false,
        };
        let conversations = &self.conversations;
        wants_type
            && (conversations.is_empty() || conversations.iter().any(|it| it.matches(conversation.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(types: &[&str], conversations: &[&str]) -> Result<WebhookFilter, InvalidFilter> {
        let owned = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        WebhookFilter::new(&owned(types), &owned(conversations))
    }

    #[test]
    fn patterns_are_texts_or_beginnings() {
        let team = ConversationId::parse("g:team").unwrap();
        let direct = ConversationId::parse("d:ann:bob").unwrap();
        let all = filter(&["tidegate.*"], &[]).unwrap();
        let groups = filter(&["tidegate.member.joined", "tidegate.message.recalled"], &["g:*"]).unwrap();
        let one = filter(&["tidegate.message.*"], &["g:team"]).unwrap();
        for kind in [FeedKind::Message, FeedKind::Change, FeedKind::Recall, FeedKind::Edit, FeedKind::Prune] {
            assert!(all.may_want(&direct, kind), "{kind:?}");
            assert_eq!(groups.may_want(&team, kind), [FeedKind::Change, FeedKind::Recall].contains(&kind));
            assert!(!groups.may_want(&direct, kind));
            assert_eq!(one.may_want(&team, kind), kind != FeedKind::Change);
        }
        assert!(!all.may_want(&team, FeedKind::Unknown(9)));
        let longer = ConversationId::parse("g:teams").unwrap();
        assert!(!one.may_want(&longer, FeedKind::Message));
        assert!(!groups.wants_type("tidegate.member.joined2"));
    }

    #[test]
    fn filters_are_bounded() {
        assert_eq!(filter(&[], &[]), Err(InvalidFilter::Count));
        assert_eq!(filter(&["a"; PATTERNS_MAX + 1], &[]), Err(InvalidFilter::Count));
        for wrong in ["", "a*b", "**", &"a".repeat(PATTERN_BYTES_MAX + 1)] {
            assert_eq!(filter(&[wrong], &[]), Err(InvalidFilter::Pattern), "{wrong}");
        }
        assert!(filter(&["*"], &["*"]).unwrap().wants_type("anything"));
    }
}
