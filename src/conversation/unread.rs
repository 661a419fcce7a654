//! What a user may see of a conversation, and how much of it is unread: subtractions, whatever the size (DESIGN 6.8).
//!
//! A count that is kept beside the messages drifts from them sooner or later (flaws S23, S24). Rows and heads carry a
//! message ordinal, members the count of their own messages, and a mark both as they were at its seq. So unread is
//! never stored, and can't be wrong.

use tidegate_protocol::{
    id::{ConversationId, ConversationKind},
    machine::ledger::Head,
};

use crate::store::{Level, Mark, Standing};

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
    level: Level,
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
        let (pruned_to, sent, level) = (head.pruned_to, member.sent, standing.level.clone());
        Self { spans: merged(spans), pruned_to, is_in, stretches, sent, level }
    }

    /// The lowest seq that the user can still pull; above [`Self::max`] when there is none.
    pub fn min(&self) -> u64 {
        let kept = self.gone_to().saturating_add(1);
        let span = self.spans.iter().find(|span| span.last >= kept);
        span.map_or(kept, |span| span.first.max(kept))
    }

    /// The highest seq that the user may know of.
    pub fn max(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.last)
    }

    /// How many messages the conversation has up to [`Self::max`].
    pub fn messages(&self) -> u64 {
        self.stretches.last().map_or(0, |it| it.up_to)
    }

    /// Whether the seq lies in a range of the user's, and is not gone.
    pub fn sees(&self, seq: u64) -> bool {
        seq > self.pruned_to && self.spans.iter().any(|span| (span.first..=span.last).contains(&seq))
    }

    /// Up to where nothing is left for the user: retention took it, or the user cleared it.
    pub fn gone_to(&self) -> u64 {
        self.pruned_to.max(self.level.cleared.seq)
    }

    /// Whether a row at that seq is shown to the user: not gone, not cleared, not hidden, in a range of the user's.
    pub fn shows(&self, seq: u64) -> bool {
        self.sees(seq) && seq > self.level.cleared.seq && !self.level.hides(seq)
    }

    /// Whether the message of that ordinal was said while the user was in: what the group shows of earlier is no news.
    pub fn was_in(&self, ordinal: u64) -> bool {
        self.stretches.iter().any(|it| it.before < ordinal && ordinal <= it.up_to)
    }

    /// What the user keeps of the conversation.
    pub fn level(&self) -> &Level {
        &self.level
    }

    /// The user's own messages in the conversation.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Up to where the user has read.
    pub fn mark(&self) -> Mark {
        self.level.mark
    }

    /// The messages of others above the mark that were said while the user was in, and that the user has neither cleared
    /// nor hidden.
    pub fn unread(&self) -> u64 {
        let floor = self.level.floor();
        let after = |it: &Stretch| it.up_to - floor.messages.clamp(it.before, it.up_to);
        let messages: u64 = self.stretches.iter().map(after).sum();
        let hidden = self.level.hidden.iter().filter(|it| it.counts && it.seq > floor.seq).count() as u64;
        // All of the user's own lie in the stretches: who is not in can't send.
        messages.saturating_sub(self.sent.saturating_sub(floor.own)).saturating_sub(hidden)
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
