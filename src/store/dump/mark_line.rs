//! Line of an export for what a user keeps of a conversation.

use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    settings::Push,
};

use super::{form, is_default};
use crate::store::{Hidden, Mark, Personal, UserState};

/// Fields of [`Entry::Mark`](super::Entry::Mark).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkLine {
    /// User id.
    #[serde(with = "form::text")]
    pub user: UserId,
    /// Conversation id.
    #[serde(with = "form::text")]
    pub conversation: ConversationId,
    /// Seq up to which the user has read.
    pub seq: u64,
    /// Number of messages up to that seq.
    pub messages: u64,
    /// Number of the user's own messages among them.
    pub own: u64,
    /// Cleared mark: seq, messages, own.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cleared: [u64; 3],
    /// Hidden entries above the cleared mark: seq, and whether it would count as unread.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<(u64, bool)>,
    /// Push preference of the user in the conversation; empty without one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub push: String,
    /// Bound of what the user can read: seq, messages, own; zeros without one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub bound: [u64; 3],
}

impl MarkLine {
    /// Creates the line from the values of the store, with each message count capped at its seq.
    ///
    /// Older versions could store higher counts for former members after retention. That was harmless, since the unread
    /// count covers only messages from the user's own stays.
    pub fn new(user: UserId, conversation: ConversationId, state: &UserState) -> Self {
        let UserState { mark: Mark { seq, messages, own }, cleared, hidden, push, bound } = state;
        let push = push.map(Push::word).unwrap_or_default().to_owned();
        let (seq, messages, own) = (*seq, *messages.min(seq), *own);
        let numbers = |it: Mark| [it.seq, it.messages.min(it.seq), it.own];
        let (cleared, bound) = (numbers(*cleared), numbers(bound.unwrap_or_default()));
        let hidden = hidden.iter().map(|it| (it.seq, it.counts)).collect();
        Self { user, conversation, seq, messages, own, cleared, hidden, push, bound }
    }

    /// Returns the user state of the line.
    pub fn state(&self) -> UserState {
        let mark = |[seq, messages, own]: [u64; 3]| Mark { seq, messages, own };
        UserState {
            mark: mark([self.seq, self.messages, self.own]),
            cleared: mark(self.cleared),
            hidden: self.hidden.iter().map(|(seq, counts)| Hidden { seq: *seq, counts: *counts }).collect(),
            push: Push::from_word(&self.push),
            bound: Some(mark(self.bound)).filter(|it| it.seq > 0),
        }
    }

    /// Iterates over the changes that turn an empty state into this one.
    pub fn changes(&self) -> impl Iterator<Item = Personal> {
        let UserState { mark, cleared, hidden, push, bound } = self.state();
        let changes = [
            (mark.seq > 0).then_some(Personal::Read(mark)),
            (cleared.seq > 0).then_some(Personal::Cleared(cleared)),
            (!hidden.is_empty()).then_some(Personal::Hidden { seqs: hidden, forget: 0 }),
            push.is_some().then_some(Personal::Push(push)),
            bound.is_some().then_some(Personal::Bound(bound)),
        ];
        changes.into_iter().flatten()
    }
}
