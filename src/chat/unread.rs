//! What a user may see of a conversation, and how much of it is unread: subtractions, whatever the size (DESIGN 6.8).
//!
//! A count that is kept beside the messages drifts from them sooner or later (flaws S23, S24). Rows and heads carry a
//! message ordinal, members the count of their own messages, and a mark both as they were at its seq. So unread is
//! never stored, and can't be wrong.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind},
    machine::ledger::Head,
};

use crate::store::{Mark, Standing};

/// A range of seqs, both ends included, that the user may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first seq: that of the join, or 1.
    pub first: u64,
    /// The last seq: that of the leaving, or of the conversation.
    pub last: u64,
}

/// A time during which the user was in, in messages of the conversation: what may be unread. Narrower than a [`Span`]
/// where the group shows newcomers what was said before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    before: u64,
    up_to: u64,
}

/// A conversation as one user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The user's ranges, oldest first, none touching another; never empty.
    pub spans: Vec<Span>,
    /// Retention took everything up to here, or the user does not wish to see it any more.
    pub pruned_to: u64,
    /// Whether the user is in now, and there is something to be in.
    pub is_in: bool,
    stretches: Vec<Stretch>,
    sent: u64,
    mark: Mark,
}

impl View {
    /// How a user with that standing sees the conversation.
    pub fn new(conversation: &ConversationId, head: &Head, standing: &Standing) -> Self {
        let member = &standing.member;
        let mut spans: Vec<Span> = Vec::with_capacity(standing.stays.len() + 1);
        let mut stretches = Vec::with_capacity(standing.stays.len() + 1);
        if matches!(conversation.kind(), ConversationKind::Direct(..)) {
            spans.push(Span { first: 1, last: head.last_seq });
            stretches.push(Stretch { before: 0, up_to: head.messages });
        } else {
            let (last, up_to) = match member.is_in() {
                true => (head.last_seq, head.messages),
                false => (member.left_seq, member.left_messages),
            };
            let past = standing.stays.iter();
            spans.extend(past.clone().map(|stay| Span { first: stay.joined_seq, last: stay.left_seq }));
            spans.push(Span { first: member.joined_seq, last });
            stretches
                .extend(past.map(|stay| Stretch { before: stay.joined_messages, up_to: stay.left_messages }));
            stretches.push(Stretch { before: member.joined_messages, up_to });
        }
        let is_in = member.is_in() && head.deleted_seq == 0;
        let (pruned_to, sent, mark) = (head.pruned_to, member.sent, standing.mark);
        Self { spans: merged(spans), pruned_to, is_in, stretches, sent, mark }
    }

    /// The lowest seq that the user can still pull; above [`Self::max`] when there is none.
    pub fn min(&self) -> u64 {
        let kept = self.pruned_to.saturating_add(1);
        let span = self.spans.iter().find(|span| span.last >= kept);
        span.map_or(kept, |span| span.first.max(kept))
    }

    /// The highest seq that the user may know of.
    pub fn max(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.last)
    }

    /// Whether the seq lies in a range of the user's, and is not gone.
    pub fn sees(&self, seq: u64) -> bool {
        seq > self.pruned_to && self.spans.iter().any(|span| (span.first..=span.last).contains(&seq))
    }

    /// The user's own messages in the conversation.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Up to where the user has read.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// The messages of others above the mark that were said while the user was in.
    pub fn unread(&self) -> u64 {
        let after = |it: &Stretch| it.up_to - self.mark.messages.clamp(it.before, it.up_to);
        let messages: u64 = self.stretches.iter().map(after).sum();
        // All of the user's own lie in the stretches: who is not in can't send.
        messages.saturating_sub(self.sent.saturating_sub(self.mark.own))
    }
}

/// Ranges that overlap or touch become one: who sees everything sees what an earlier stay showed, too.
fn merged(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by_key(|span| span.first);
    spans.dedup_by(|next, kept| {
        let touches = next.first <= kept.last.saturating_add(1);
        if touches {
            kept.last = kept.last.max(next.last);
        }
        touches
    });
    spans
}
