//! View of a conversation: what a user may see of it, and how much is unread, by subtraction at any size.
//!
//! A stored unread count drifts from the messages sooner or later (flaws S23, S24). Instead, rows and
//! heads carry a message ordinal, members carry the count of their own messages, and a mark carries both
//! as of its seq. So unread is derived, never stored.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind, UserId},
    machine::ledger::Head,
    record::Message,
};

use crate::store::{Hidden, Mark, MemberView, StoredRow, UserState};

/// Range of seqs that the user may see, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First seq: that of the join, or 1.
    pub first: u64,
    /// Last seq: that of the leave, or of the conversation.
    pub last: u64,
}

/// Range of message ordinals during one stay of the user, which may be unread. Narrower than a [`Span`] if the group
/// shows new members earlier messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessageSpan {
    before: u64,
    up_to: u64,
    /// Last seq of the stay.
    last: u64,
}

/// Conversation as one user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Ranges of the user, oldest first, without adjacent ones; empty if the bound of the user lies before all of them.
    pub spans: Vec<Span>,
    /// Seq up to which retention removed everything, or the user's settings hide it.
    pub pruned_to: u64,
    /// Whether the user is a member now, and the conversation is not deleted.
    pub is_in: bool,
    /// Last seq of the ranges without the bound of the user.
    end: u64,
    /// Whether the bound of the user, and no entry that is to come, decides which seq is the last.
    is_bounded: bool,
    messages: u64,
    message_spans: Vec<MessageSpan>,
    sent: u64,
    state: UserState,
}

impl View {
    /// Creates the view of a user with this membership, up to the bound of what the user can read.
    pub fn new(conversation: &ConversationId, head: &Head, member_view: &MemberView) -> Self {
        let mut view = Self::whole(conversation, head, member_view);
        if let Some(bound) = view.state.bound {
            view.cut(bound);
        }
        view
    }

    /// Creates the view of a user with this membership, with all that the user may change, clear and hide: the bound is for
    /// reading alone.
    pub(crate) fn whole(conversation: &ConversationId, head: &Head, member_view: &MemberView) -> Self {
        let member = &member_view.member;
        let mut spans: Vec<Span> = Vec::with_capacity(member_view.stays.len() + 1);
        let mut message_spans = Vec::with_capacity(member_view.stays.len() + 1);
        if matches!(conversation.kind(), ConversationKind::Direct(..)) {
            spans.push(Span { first: 1, last: head.last_seq });
            message_spans.push(MessageSpan { before: 0, up_to: head.messages, last: head.last_seq });
        } else {
            let (last, up_to) = match member.is_in() {
                true => (head.last_seq, head.messages),
                false => (member.left_seq, member.left_messages),
            };
            let past = member_view.stays.iter();
            spans.extend(past.clone().map(|stay| Span { first: stay.joined_seq, last: stay.left_seq }));
            spans.push(Span { first: member.joined_seq, last });
            message_spans.extend(past.map(|stay| MessageSpan {
                before: stay.joined_messages,
                up_to: stay.left_messages,
                last: stay.left_seq,
            }));
            message_spans.push(MessageSpan { before: member.joined_messages, up_to, last });
        }
        let is_in = member.is_in() && head.deleted_seq == 0;
        let spans = merged(spans);
        Self {
            end: spans.last().map_or(0, |span| span.last),
            messages: message_spans.last().map_or(0, |it| it.up_to),
            is_bounded: false,
            spans,
            pruned_to: head.pruned_to,
            is_in,
            message_spans,
            sent: member.sent,
            state: member_view.level.clone(),
        }
    }

    /// Cuts the view at the bound, as if the conversation ended there.
    fn cut(&mut self, bound: Mark) {
        self.is_bounded = self.end >= bound.seq;
        self.spans.retain(|span| span.first <= bound.seq);
        if let Some(span) = self.spans.last_mut() {
            span.last = span.last.min(bound.seq);
        }
        // The bound may lie between two stays.
        let max = self.max();
        let of_stay = self.message_spans.iter().find(|it| it.last == max).map(|it| it.up_to);
        self.messages = of_stay.unwrap_or(bound.messages).min(bound.messages);
        for it in &mut self.message_spans {
            it.before = it.before.min(bound.messages);
            it.up_to = it.up_to.min(bound.messages);
        }
        self.sent = self.sent.min(bound.own);
        if self.state.mark.seq > bound.seq {
            self.state.mark = bound;
        }
    }

    /// Creates the view of everything that is stored, without the state of a user.
    pub fn of_all(head: &Head) -> Self {
        Self {
            spans: vec![Span { first: 1, last: head.last_seq }],
            pruned_to: head.pruned_to,
            is_in: head.deleted_seq == 0,
            end: head.last_seq,
            is_bounded: false,
            messages: head.messages,
            message_spans: vec![MessageSpan { before: 0, up_to: head.messages, last: head.last_seq }],
            sent: 0,
            state: UserState::default(),
        }
    }

    /// Returns the highest seq below `seq` that lies in one of the user's ranges and above [`Self::removed_to`].
    pub fn below(&self, seq: u64) -> Option<u64> {
        let last = |span: &Span| span.last.min(seq.saturating_sub(1));
        let span = self.spans.iter().rev().find(|span| span.first < seq && last(span) >= span.first);
        span.map(last).filter(|found| *found > self.removed_to())
    }

    /// Returns the lowest seq that the user can pull; above [`Self::max`] if there is none.
    pub fn min(&self) -> u64 {
        let first = self.removed_to().saturating_add(1);
        let span = self.spans.iter().find(|span| span.last >= first);
        span.map_or(first, |span| span.first.max(first))
    }

    /// Returns the highest seq that the user may see.
    pub fn max(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.last)
    }

    /// Returns the last seq that is stored for the user, [`Self::max`] or above it what the bound keeps from the user.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns whether the bound of the user decides what [`Self::max`] is, whatever else is stored.
    pub fn is_bounded(&self) -> bool {
        self.is_bounded
    }

    /// Returns whether the user will see the entries that follow [`Self::max`]: the user is a member, and not bounded.
    pub fn is_open(&self) -> bool {
        self.is_in && !self.is_bounded
    }

    /// Returns the number of messages up to [`Self::max`].
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Returns whether the seq is in one of the user's ranges, above [`Self::pruned_to`].
    pub fn sees(&self, seq: u64) -> bool {
        seq > self.pruned_to && self.spans.iter().any(|span| (span.first..=span.last).contains(&seq))
    }

    /// Returns the seq up to which the user has nothing left, because of retention or a clear.
    pub fn removed_to(&self) -> u64 {
        self.pruned_to.max(self.state.cleared.seq)
    }

    /// Returns whether a row at that seq is shown to the user: in range, and not pruned, cleared or hidden.
    pub fn shows(&self, seq: u64) -> bool {
        self.sees(seq) && seq > self.state.cleared.seq && !self.state.hides(seq)
    }

    /// Returns whether the user may have the content that the row has now: none that an edit gave it after the user's
    /// membership had ended, or above the bound.
    pub fn may_have(&self, row: &StoredRow) -> bool {
        self.is_open() || row.edited.is_none_or(|(seq, _)| seq <= self.max())
    }

    /// Returns whether the message of that ordinal was sent during a stay of the user;
    /// earlier messages never count as unread.
    pub fn was_in(&self, ordinal: u64) -> bool {
        self.message_spans.iter().any(|it| it.before < ordinal && ordinal <= it.up_to)
    }

    /// Returns the user's own state: read mark, at most at the bound, cleared position and hidden entries.
    pub fn user_state(&self) -> &UserState {
        &self.state
    }

    /// Returns the number of the user's own messages.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the read mark.
    pub fn mark(&self) -> Mark {
        self.state.mark
    }

    /// Returns the number of other users' messages above the mark that were sent during the user's
    /// stays, and are neither cleared nor hidden.
    pub fn unread(&self) -> u64 {
        let floor = self.state.floor();
        let after = |it: &MessageSpan| it.up_to - floor.messages.clamp(it.before, it.up_to);
        let messages: u64 = self.message_spans.iter().map(after).sum();
        let is_hidden = |it: &&Hidden| it.counts && it.seq > floor.seq && it.seq <= self.max();
        let hidden = self.state.hidden.iter().filter(is_hidden).count() as u64;
        // All of the user's own messages lie in the spans, since only members can send.
        messages.saturating_sub(self.sent.saturating_sub(floor.own)).saturating_sub(hidden)
    }
}

/// Returns whether a message counts as unread for the user, as far as its kind and sender decide it.
pub(super) fn counts_as_unread(message: &Message, user: &UserId) -> bool {
    message.counts() && !(message.sender == *user && message.is_own())
}

/// Merges ranges that overlap or touch, such as an earlier stay within a later one that shows everything.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.first);
    spans.dedup_by(|next, merged| {
        let touches = next.first <= merged.last.saturating_add(1);
        if touches {
            merged.last = merged.last.max(next.last);
        }
        touches
    });
    spans
}
