//! One client's copy of one conversation: acks pushes in seq order and pulls what `behind` names (SPEC, section 7).

use anyhow::{Result, ensure};
use std::collections::BTreeMap;

/// Most entries kept above a hole; a node has far fewer unacked pushes and unanswered sends.
const HELD_MAX: usize = 65_536;
/// Most entries of one pull, which is a node's limit.
const PAGE_MAX: u64 = 200;
/// Time in which a pull has to narrow a hole that `behind` named.
const PULL_TIMEOUT_NS: u64 = 10_000_000_000;

/// One entry of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) seq: u64,
    /// Whether this client wrote it, and so gets no push of it.
    pub(super) own: bool,
    /// Number that rises with each message of the sender.
    pub(super) number: u32,
}

/// A pull to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pull {
    pub(super) cursor: u64,
    pub(super) limit: u64,
}

/// State of the only pull of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Query {
    /// No pull is open.
    #[default]
    Idle,
    /// The page after this cursor has not come.
    Open(u64),
    /// The pull was temporarily refused, and is repeated at this time.
    Later(u64),
}

/// Entries of a conversation in seq order, with the holes that pulls have to fill.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// Seq up to which everything has come.
    complete: u64,
    /// Entries above the first hole.
    held: BTreeMap<u64, Entry>,
    /// Last complete number of the other side, and of this client.
    numbers: [u32; 2],
    /// Highest complete seq of the other side, and the highest that was acked.
    ackable: u64,
    acked: u64,
    /// Highest seq that was pushed.
    pushed: u64,
    /// Highest seq that `behind` named.
    named: u64,
    query: Query,
    /// Time of the last progress while a named hole is open.
    since: u64,
}

impl Inbox {
    /// Creates the inbox of a client that has everything up to `seq`, the seq of message `number`.
    pub(super) fn after(seq: u64, number: u32) -> Self {
        Self { complete: seq, numbers: [number, 0], ackable: seq, acked: seq, pushed: seq, ..Self::default() }
    }

    /// Returns the last seq below which nothing is missing, and the last number of the other side there.
    pub(super) fn position(&self) -> (u64, u32) {
        (self.complete, self.numbers[0])
    }

    /// Takes a push. Returns false if its entry is here already, as after a resend.
    pub(super) fn push(&mut self, seq: u64, number: u32) -> Result<bool> {
        if self.has(seq) {
            return Ok(false);
        }
        let in_order = seq > self.pushed || seq <= self.named;
        ensure!(in_order, "seq {seq} was pushed after {}", self.pushed);
        self.pushed = self.pushed.max(seq);
        self.take(Entry { seq, own: false, number })?;
        Ok(true)
    }

    /// Takes an accepted message of this client.
    pub(super) fn accepted(&mut self, seq: u64, number: u32) -> Result<()> {
        if self.has(seq) { Ok(()) } else { self.take(Entry { seq, own: true, number }) }
    }

    /// Notes that `behind` named everything up to `max_seq`, which has to be pulled.
    pub(super) fn behind(&mut self, max_seq: u64, now: u64) {
        if self.is_complete() {
            self.since = now;
        }
        self.named = self.named.max(max_seq);
    }

    /// Returns the pull to send now, if one is due, and counts it as sent.
    pub(super) fn pull(&mut self, now: u64) -> Option<Pull> {
        let is_due = match self.query {
            Query::Idle => true,
            Query::Open(_) => false,
            Query::Later(at) => at <= now,
        };
        if self.is_complete() || !is_due {
            return None;
        }
        let cursor = self.complete;
        self.query = Query::Open(cursor);
        Some(Pull { cursor, limit: (self.named - cursor).min(PAGE_MAX) })
    }

    /// Takes the answer to the pull, which has to name every seq from its cursor on. Passes each new entry of the other
    /// side to `fresh`.
    pub(super) fn page(&mut self, entries: &[Entry], now: u64, mut fresh: impl FnMut(Entry)) -> Result<()> {
        let Query::Open(cursor) = self.query else { anyhow::bail!("a page that was not asked for") };
        ensure!(!entries.is_empty(), "an empty page after seq {cursor}, of {}", self.named);
        self.query = Query::Idle;
        for (seq, entry) in (cursor + 1..).zip(entries) {
            ensure!(entry.seq == seq, "the page after {cursor} leaves out seq {seq}: {} follows", entry.seq);
            if !self.has(seq) {
                self.take(*entry)?;
                self.since = now;
                if !entry.own {
                    fresh(*entry);
                }
            }
        }
        Ok(())
    }

    /// Has the pull repeated at `at`, after it was temporarily refused.
    pub(super) fn refused(&mut self, at: u64) {
        self.query = Query::Later(at);
    }

    /// Fails when pulls have not filled a named hole in time.
    pub(super) fn check(&self, now: u64) -> Result<()> {
        let late = !self.is_complete() && now.saturating_sub(self.since) > PULL_TIMEOUT_NS;
        ensure!(
            !late,
            "everything up to seq {} was to be had, and pulls end at {}",
            self.named,
            self.complete
        );
        Ok(())
    }

    /// Returns whether everything that was named has come; there may be other holes.
    pub(super) fn is_complete(&self) -> bool {
        self.complete >= self.named
    }

    /// Returns whether everything that was named has come, and no pull is open.
    pub(super) fn is_settled(&self) -> bool {
        self.is_complete() && !matches!(self.query, Query::Open(_))
    }

    /// Returns whether there is no hole, named or not, and no pull is open.
    pub(super) fn is_whole(&self) -> bool {
        self.held.is_empty() && self.is_settled()
    }

    /// Returns the seq to ack, if it is above the last ack, and counts it as acked.
    pub(super) fn ack(&mut self) -> Option<u64> {
        if self.ackable <= self.acked {
            return None;
        }
        self.acked = self.ackable;
        Some(self.acked)
    }

    fn has(&self, seq: u64) -> bool {
        seq <= self.complete || self.held.contains_key(&seq)
    }

    /// Adds a new entry, and everything that it completes.
    fn take(&mut self, entry: Entry) -> Result<()> {
        if entry.seq != self.complete + 1 {
            ensure!(self.held.len() < HELD_MAX, "seq {} does not come", self.complete + 1);
            self.held.insert(entry.seq, entry);
            return Ok(());
        }
        self.complete_with(entry)?;
        while let Some(next) = self.held.first_entry().filter(|next| *next.key() == self.complete + 1) {
            let entry = next.remove();
            self.complete_with(entry)?;
        }
        Ok(())
    }

    fn complete_with(&mut self, Entry { seq, own, number }: Entry) -> Result<()> {
        let last = &mut self.numbers[usize::from(own)];
        ensure!(number > *last, "seq {seq} is message {number} of its sender, after message {last}");
        *last = number;
        self.complete = seq;
        if !own {
            self.ackable = seq;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn other(seq: u64) -> Entry {
        Entry { seq, own: false, number: seq as u32 }
    }

    fn own(seq: u64) -> Entry {
        Entry { seq, own: true, number: seq as u32 }
    }

    fn page(inbox: &mut Inbox, entries: &[Entry]) -> Result<Vec<u64>> {
        let mut fresh = Vec::new();
        inbox.page(entries, 0, |entry| fresh.push(entry.seq))?;
        Ok(fresh)
    }

    #[test]
    fn pushes_are_acked_up_to_the_first_hole() {
        let mut inbox = Inbox::default();
        assert!(inbox.push(1, 1).unwrap());
        assert_eq!(inbox.ack(), Some(1));
        assert_eq!(inbox.ack(), None, "once");
        assert!(inbox.push(3, 3).unwrap());
        assert_eq!(inbox.ack(), None, "2 has not come");
        assert!(!inbox.is_whole());
        inbox.accepted(2, 2).unwrap();
        assert_eq!(inbox.ack(), Some(3), "2 was our own");
        inbox.accepted(4, 4).unwrap();
        assert_eq!(inbox.ack(), None, "what we wrote needs no ack");
        assert!(inbox.is_whole());
    }

    #[test]
    fn behind_is_pulled_from_the_last_complete_seq() {
        let mut inbox = Inbox::default();
        inbox.push(1, 1).unwrap();
        assert_eq!(inbox.pull(0), None, "nothing was left out");
        inbox.behind(4, 0);
        inbox.push(6, 6).unwrap();
        assert_eq!(inbox.pull(0), Some(Pull { cursor: 1, limit: 3 }));
        assert_eq!(inbox.pull(0), None, "one at a time");
        assert_eq!(page(&mut inbox, &[other(2), own(3), other(4), other(5)]).unwrap(), [2, 4, 5]);
        assert_eq!(inbox.ack(), Some(6), "what was pushed meanwhile counts");
        assert!(inbox.is_whole() && inbox.pull(0).is_none());
        inbox.accepted(3, 3).unwrap();
        assert!(inbox.is_whole(), "the answer came after the page");
    }

    #[test]
    fn pulls_go_on_until_everything_named_is_here() {
        let mut inbox = Inbox::default();
        inbox.behind(500, 0);
        let mut cursors = Vec::new();
        while let Some(Pull { cursor, limit }) = inbox.pull(0) {
            cursors.push((cursor, limit));
            assert!(cursors.len() < 10, "{cursors:?}");
            // A page may have fewer entries than requested.
            let last = (cursor + limit.min(150)).min(500);
            page(&mut inbox, &(cursor + 1..=last).map(other).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(cursors, [(0, 200), (150, 200), (300, 200), (450, 50)]);
        assert!(inbox.is_whole());
    }

    #[test]
    fn behind_that_names_nothing_new_needs_no_pull() {
        let mut inbox = Inbox::default();
        inbox.push(1, 1).unwrap();
        inbox.behind(1, 0);
        assert_eq!(inbox.pull(0), None);
        assert!(inbox.is_whole());
    }

    #[test]
    fn a_refused_pull_is_sent_again_after_the_wait() {
        let mut inbox = Inbox::default();
        inbox.behind(2, 0);
        assert!(inbox.pull(0).is_some());
        inbox.refused(30);
        assert_eq!(inbox.pull(29), None);
        assert!(!inbox.is_whole());
        assert_eq!(inbox.pull(30), Some(Pull { cursor: 0, limit: 2 }));
    }

    #[test]
    fn what_a_page_leaves_out_is_a_broken_promise() {
        for entries in [&[other(1), other(3)][..], &[other(2)], &[]] {
            let mut inbox = Inbox::default();
            inbox.behind(3, 0);
            inbox.pull(0).unwrap();
            assert!(page(&mut inbox, entries).is_err(), "{entries:?}");
        }
        assert!(page(&mut Inbox::default(), &[other(1)]).is_err(), "nobody asked");
    }

    #[test]
    fn a_hole_that_no_pull_narrows_for_ten_seconds_is_a_broken_promise() {
        let mut inbox = Inbox::default();
        inbox.behind(2, SECOND);
        inbox.pull(SECOND).unwrap();
        assert!(inbox.check(11 * SECOND).is_ok());
        assert!(inbox.check(11 * SECOND + 1).is_err());
        inbox.page(&[other(1)], 9 * SECOND, |_| ()).unwrap();
        assert!(inbox.check(19 * SECOND).is_ok(), "there was progress");
        assert!(inbox.check(20 * SECOND).is_err());
        inbox.push(2, 2).unwrap();
        assert!(inbox.check(20 * SECOND).is_ok(), "it is here");
    }

    #[test]
    fn repeated_pushes_are_dropped_and_late_ones_refused() {
        let mut inbox = Inbox::default();
        inbox.push(1, 1).unwrap();
        inbox.push(4, 4).unwrap();
        assert!(!inbox.push(1, 1).unwrap() && !inbox.push(4, 4).unwrap(), "resent");
        assert!(inbox.push(3, 3).is_err(), "not in order");
        inbox.behind(3, 0);
        assert!(inbox.push(2, 2).unwrap(), "named as left out, and pushed after all");
    }

    #[test]
    fn messages_of_a_sender_keep_their_order() {
        let mut inbox = Inbox::default();
        inbox.push(1, 5).unwrap();
        inbox.accepted(2, 1).unwrap();
        assert!(inbox.push(3, 5).is_err(), "the same again under another seq");
        let mut inbox = Inbox::after(7, 2);
        assert!(inbox.push(9, 4).unwrap());
        assert!(inbox.push(8, 5).is_err());
        inbox.behind(8, 0);
        inbox.pull(0).unwrap();
        let swapped = [Entry { seq: 8, own: false, number: 5 }];
        assert!(page(&mut inbox, &swapped).is_err(), "message 5 before message 4");
    }

    #[test]
    fn what_waits_above_a_hole_is_bounded() {
        let mut inbox = Inbox::default();
        for seq in 2..HELD_MAX as u64 + 2 {
            inbox.push(seq, seq as u32).unwrap();
        }
        assert!(inbox.push(HELD_MAX as u64 + 2, u32::MAX).is_err());
    }
}
