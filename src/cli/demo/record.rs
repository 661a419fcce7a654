//! Recording of what two bots sent, were acked and showed. Pure: times are arguments.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

/// User that a bot logs in as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    Ada,
    Ben,
}

impl User {
    /// Both users, in the order of their indexes.
    pub(super) const BOTH: [Self; 2] = [Self::Ada, Self::Ben];

    /// Returns the user's id.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ada => "ada",
            Self::Ben => "ben",
        }
    }

    /// Returns the other user.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Ada => Self::Ben,
            Self::Ben => Self::Ada,
        }
    }
}

/// Message with all its attempts and acks.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) id: String,
    pub(super) by: User,
    pub(super) text: String,
    /// Time of the first attempt.
    pub(super) at: Duration,
    /// Connection of the first attempt.
    pub(super) session: u64,
    pub(super) attempts: u32,
    /// Highest acked seq before the first attempt.
    pub(super) floor: u64,
    pub(super) acks: Vec<Acked>,
    /// Lasting refusal.
    pub(super) refused: Option<String>,
}

/// Answer of the broker that it has accepted a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acked {
    pub(super) seq: u64,
    pub(super) is_duplicate: bool,
    pub(super) at: Duration,
}

/// Message that was shown to a receiver.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) seq: u64,
    pub(super) id: String,
    pub(super) text: String,
    pub(super) at: Duration,
    /// Whether the bot pulled it, because no push had brought it.
    pub(super) is_pulled: bool,
}

/// Numbers of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) sent: usize,
    pub(super) acked: usize,
    /// Messages that their receiver was shown.
    pub(super) delivered: usize,
}

impl Sent {
    /// Returns the seq of the first ack.
    pub(super) fn seq(&self) -> Option<u64> {
        self.acks.first().map(|ack| ack.seq)
    }

    /// Returns the time from the first attempt to the first ack.
    pub(super) fn ack_time(&self) -> Option<Duration> {
        self.acks.first().map(|ack| ack.at.saturating_sub(self.at))
    }
}

/// What the bots sent, were acked and showed since the last settled judgement, in the order in which it happened.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    sent: Vec<Sent>,
    by_id: HashMap<String, usize>,
    shown: [Vec<Shown>; 2],
    acked_max: u64,
    /// Counts of what was forgotten.
    settled: Counts,
    /// Seq before the first message of this recording.
    pub(super) base: u64,
}

impl Record {
    /// Notes an attempt to send a message; its first one if the id is new.
    pub(super) fn attempt(&mut self, by: User, id: &str, text: &str, session: u64, at: Duration) {
        if let Some(sent) = self.by_id.get(id).and_then(|index| self.sent.get_mut(*index)) {
            sent.attempts += 1;
            return;
        }
        self.by_id.insert(id.to_owned(), self.sent.len());
        self.sent.push(Sent {
            id: id.to_owned(),
            by,
            text: text.to_owned(),
            at,
            session,
            attempts: 1,
            floor: self.acked_max,
            acks: Vec::new(),
            refused: None,
        });
    }

    /// Notes an ack.
    pub(super) fn acked(&mut self, id: &str, ack: Acked) {
        self.acked_max = self.acked_max.max(ack.seq);
        if let Some(sent) = self.by_id.get(id).and_then(|index| self.sent.get_mut(*index)) {
            sent.acks.push(ack);
        }
    }

    /// Notes a lasting refusal.
    pub(super) fn refused(&mut self, id: &str, why: String) {
        if let Some(sent) = self.by_id.get(id).and_then(|index| self.sent.get_mut(*index)) {
            sent.refused = Some(why);
        }
    }

    /// Notes a message that a user was shown.
    pub(super) fn show(&mut self, user: User, shown: Shown) {
        self.shown[user as usize].push(shown);
    }

    /// Forgets all messages but their counts, and goes on after `base`. They must have been judged, and nothing of
    /// them may be open.
    pub(super) fn settle(&mut self, base: u64) {
        self.settled = self.counts();
        self.sent.clear();
        self.by_id.clear();
        self.shown.iter_mut().for_each(Vec::clear);
        self.base = base;
    }

    /// Returns the counts of all messages, forgotten ones too.
    pub(super) fn counts(&self) -> Counts {
        let shown = User::BOTH.map(|user| self.ids_shown(user));
        let is_delivered = |sent: &&Sent| shown[sent.by.other() as usize].contains(sent.id.as_str());
        Counts {
            sent: self.settled.sent + self.sent.len(),
            acked: self.settled.acked + self.sent.iter().filter(|sent| !sent.acks.is_empty()).count(),
            delivered: self.settled.delivered + self.sent.iter().filter(is_delivered).count(),
        }
    }

    /// Returns all messages that are not forgotten, the first one sent first.
    pub(super) fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// Returns a message.
    pub(super) fn find(&self, id: &str) -> Option<&Sent> {
        self.by_id.get(id).and_then(|index| self.sent.get(*index))
    }

    /// Returns what a user was shown, in that order.
    pub(super) fn shown(&self, user: User) -> &[Shown] {
        &self.shown[user as usize]
    }

    /// Returns the ids of what a user was shown.
    pub(super) fn ids_shown(&self, user: User) -> HashSet<&str> {
        self.shown(user).iter().map(|shown| shown.id.as_str()).collect()
    }

    /// Returns how often a user was shown a message.
    pub(super) fn times_shown(&self, user: User, id: &str) -> usize {
        self.shown(user).iter().filter(|shown| shown.id == id).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn shown(id: &str, seq: u64) -> Shown {
        Shown { seq, id: id.into(), text: String::new(), at: NOW, is_pulled: false }
    }

    #[test]
    fn settled_recording_has_only_its_counts() {
        let mut record = Record::default();
        for (id, seq) in [("a1", 1), ("a2", 2)] {
            record.attempt(User::Ada, id, "", 1, NOW);
            record.acked(id, Acked { seq, is_duplicate: false, at: NOW });
            record.show(User::Ben, shown(id, seq));
        }
        record.settle(2);
        let counts = Counts { sent: 2, acked: 2, delivered: 2 };
        assert_eq!((record.counts(), record.base), (counts, 2));
        assert!(
            record.sent().is_empty() && record.find("a1").is_none() && record.shown(User::Ben).is_empty()
        );
        // The next message is after the forgotten ones, and the counts go on.
        record.attempt(User::Ben, "b1", "", 1, NOW);
        assert_eq!(record.find("b1").map(|sent| sent.floor), Some(2));
        record.acked("b1", Acked { seq: 3, is_duplicate: false, at: NOW });
        assert_eq!(record.counts(), Counts { sent: 3, acked: 3, delivered: 2 });
        record.settle(3);
        assert_eq!(record.counts(), Counts { sent: 3, acked: 3, delivered: 2 });
    }
}
