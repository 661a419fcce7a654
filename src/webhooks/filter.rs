//! Filter of an endpoint: the types, conversations and users that it wants.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::webhook::{WebhookEvent, WebhookEventKind},
    record::{Body, MemberAction},
};

use super::content::Found;
use crate::store::{FeedKind, StoredRow};

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

/// Most users of a filter.
pub const FILTER_USERS_MAX: usize = 64;

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
    /// No type is wanted, or there are too many patterns or users.
    #[error("name 1 to 64 types, such as tidegate.message.*, and at most 64 conversations and 64 users")]
    Count,
    /// A user is no id.
    #[error("a user must be a valid id")]
    User,
    /// A pattern is too long, or has a `*` before its end.
    #[error("a pattern must have 1 to 160 bytes, and a * only at its end")]
    Pattern,
}

/// Types, conversations and users that an endpoint wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookFilter {
    types: Vec<Pattern>,
    /// Empty for all.
    conversations: Vec<Pattern>,
    /// Empty for all.
    users: Vec<UserId>,
}

impl WebhookFilter {
    /// Creates a filter. Without a conversation, all are wanted. With users, an event is wanted that one of them sent or
    /// caused, that is in a direct conversation of one, or a change of which one is a subject; removals of history are wanted
    /// always, because they concern the messages of all.
    ///
    /// # Errors
    /// There is no type, there are too many patterns or users, or one is invalid.
    pub fn new(types: &[String], conversations: &[String], users: &[String]) -> Result<Self, InvalidFilter> {
        let is_count = (1..=PATTERNS_MAX).contains(&types.len())
            && conversations.len() <= PATTERNS_MAX
            && users.len() <= FILTER_USERS_MAX;
        if !is_count {
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
            users: users
                .iter()
                .map(|user| UserId::new(user.as_str()).map_err(|_| InvalidFilter::User))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns a filter that wants everything.
    pub(super) fn all() -> Self {
        Self { types: vec![Pattern("*".to_owned())], conversations: Vec::new(), users: Vec::new() }
    }

    /// Returns whether events of the type are wanted.
    pub fn wants_type(&self, kind: &str) -> bool {
        self.types.iter().any(|pattern| pattern.matches(kind))
    }

    /// Returns whether a notice to the user about a message of the sender is wanted.
    pub fn wants_notice(&self, user: &UserId, sender: &UserId) -> bool {
        self.users.is_empty() || self.users.iter().any(|it| it == user || it == sender)
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
        wants_type && self.wants_conversation(conversation)
    }

    /// Returns whether events of the conversation are wanted.
    pub(crate) fn wants_conversation(&self, conversation: &ConversationId) -> bool {
        let mut conversations = self.conversations.iter();
        self.conversations.is_empty() || conversations.any(|it| it.matches(conversation.as_str()))
    }

    /// Returns whether an event is wanted for its users.
    pub(super) fn wants_users(&self, event: &WebhookEvent, found: &Found) -> bool {
        if self.users.is_empty() || event.kind == WebhookEventKind::Pruned {
            return true;
        }
        if let ConversationKind::Direct(one, other) = event.conversation.kind()
            && self.users.iter().any(|user| [one, other].contains(&user.as_str()))
        {
            return true;
        }
        match found {
            Found::Row(row, message) => {
                self.is_of(row) || message.as_ref().is_some_and(|message| self.is_of(message))
            }
            // Whose it was has gone with it.
            Found::Pruned => false,
        }
    }

    /// Returns whether one of the users sent or caused the row, or is a subject of it.
    fn is_of(&self, row: &StoredRow) -> bool {
        let is_any = |by: &Option<UserId>| by.as_ref().is_some_and(|by| self.users.contains(by));
        match &row.row.body {
            Body::Message(message) => self.users.contains(&message.sender),
            Body::Member(change) => {
                is_any(&change.by) || change.users.iter().any(|user| self.users.contains(user))
            }
            Body::Recall(recall) => is_any(&recall.by),
            Body::Edit(edit) => is_any(&edit.by),
            Body::Prune(_) | Body::Rules(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(types: &[&str], conversations: &[&str]) -> Result<WebhookFilter, InvalidFilter> {
        let owned = |texts: &[&str]| texts.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        WebhookFilter::new(&owned(types), &owned(conversations), &[])
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
