//! Rules 9 and 10: read marks only move forward, and the unread count is that of the log.

use std::collections::BTreeMap;

use foldhash::HashMap;

use super::{Checker, HistoryEvent, Id, sends::Row};

/// A user in a conversation.
type Place = (Id, Id);

/// Read marks that were requested and reported so far.
#[derive(Default)]
struct Marks {
    /// Marks that surely held, with the event from which they did; both rise.
    known: BTreeMap<Place, Vec<(usize, u64)>>,
    /// Highest requested marks.
    asked: HashMap<Place, u64>,
    /// Event of the last `sync` of each connection, and the sum of its unread counts so far.
    syncs: HashMap<u64, (usize, u64)>,
    /// Marks in the store at the end.
    kept: BTreeMap<Place, (usize, u64)>,
}

impl Marks {
    fn know(&mut self, at: usize, place: Place, seq: u64) {
        let known = self.known.entry(place).or_default();
        if known.last().is_none_or(|(_, before)| *before < seq) {
            known.push((at, seq));
        }
    }

    /// Returns the mark that held at an event.
    fn floor(&self, at: usize, place: Place) -> u64 {
        let known = self.known.get(&place).map_or(&[][..], Vec::as_slice);
        let before = known.partition_point(|(since, _)| *since < at);
        before.checked_sub(1).map_or(0, |last| known[last].1)
    }
}

/// Seqs of the messages of each conversation, ascending: of all senders, and of each sender.
#[derive(Default)]
struct MessageSeqs {
    all: HashMap<Id, Vec<u64>>,
    own: HashMap<(Id, Id), Vec<u64>>,
}

impl MessageSeqs {
    /// Returns the number of messages of other users in `first..=last`.
    fn by_others(&self, user: Id, conv: Id, first: u64, last: u64) -> u64 {
        let within = |seqs: Option<&Vec<u64>>| {
            seqs.map_or(0, |seqs| {
                seqs.partition_point(|seq| *seq <= last) - seqs.partition_point(|seq| *seq < first)
            })
        };
        (within(self.all.get(&conv)) - within(self.own.get(&(conv, user)))) as u64
    }
}

impl Checker<'_> {
    /// Compares reported and stored read marks with acked ones, and unread counts with the log.
    pub(super) fn check_marks(&mut self) {
        let seqs = self.message_seqs();
        let mut marks = Marks::default();
        for at in 0..self.history.events.len() {
            match self.history.events[at].event {
                HistoryEvent::ReadInv { user, conv, seq } => {
                    let asked = marks.asked.entry((user, conv)).or_default();
                    *asked = seq.max(*asked);
                }
                HistoryEvent::ReadOk { user, conv, seq } => {
                    self.report.reads += 1;
                    self.check_asked(at, &marks, (user, conv), seq);
                    marks.know(at, (user, conv), seq);
                }
                HistoryEvent::SyncInv { session } => drop(marks.syncs.insert(session, (at, 0))),
                HistoryEvent::State { user, session, conv, max, read, unread } => {
                    self.report.states += 1;
                    let (since, total) = marks.syncs.entry(session).or_insert((at, 0));
                    *total += unread;
                    let since = *since;
                    self.check_mark(at, (user, conv), read, marks.floor(since, (user, conv)));
                    self.check_asked(at, &marks, (user, conv), read);
                    marks.know(at, (user, conv), read);
                    let truth = self.unread(&seqs, (user, conv), read, max);
                    if unread != truth {
                        self.broken("unread-drift", at, |h| {
                            let (user, conv) = (h.name(user), h.name(conv));
                            format!(
                                "{user} has {truth} unread in {conv} from {read} to {max}, told: {unread}"
                            )
                        });
                    }
                }
                HistoryEvent::SyncEnd { session, unread } => {
                    let total = marks.syncs.remove(&session).map_or(0, |(_, total)| total);
                    if total != unread {
                        self.broken("unread-total", at, |_| format!("{total}, told: {unread}"));
                    }
                }
                HistoryEvent::LogRead { user, conv, seq } => drop(marks.kept.insert((user, conv), (at, seq))),
                _ => {}
            }
        }
        self.check_kept(&marks);
    }

    /// Checks the marks in the store; a history without any was not read from a store that has marks.
    fn check_kept(&mut self, marks: &Marks) {
        let end = self.history.events.len();
        for (place, (at, seq)) in &marks.kept {
            self.check_mark(*at, *place, *seq, marks.floor(end, *place));
            self.check_asked(*at, marks, *place, *seq);
        }
        let lost =
            marks.known.keys().filter(|place| !marks.kept.is_empty() && !marks.kept.contains_key(*place));
        for place in lost {
            self.check_mark(end, *place, 0, marks.floor(end, *place));
        }
    }

    fn check_mark(&mut self, at: usize, place: Place, read: u64, floor: u64) {
        if read < floor {
            let (user, conv) = place;
            self.broken("read-went-back", at, |h| {
                format!("{} had read {} to {floor}, now to {read}", h.name(user), h.name(conv))
            });
        }
    }

    fn check_asked(&mut self, at: usize, marks: &Marks, place: Place, read: u64) {
        let (user, conv) = place;
        let asked = marks.asked.get(&place).copied().unwrap_or(0);
        // Retention marks as read what it removes.
        let gaps = self.logs.get(&conv).map_or(&[][..], |log| log.gaps.as_slice());
        let gone = gaps.iter().map(|(_, _, last)| *last).max().unwrap_or(0);
        if read > asked.max(gone) {
            self.broken("read-unasked", at, |h| {
                format!("{} has read {} to {read}, asked: {asked}", h.name(user), h.name(conv))
            });
        }
    }

    /// Returns the number of messages of others in `read + 1..=max` while the user was a member.
    fn unread(&self, seqs: &MessageSeqs, place: Place, read: u64, max: u64) -> u64 {
        let (user, conv) = place;
        let always = [(1, u64::MAX)];
        let spans = match self.pair(conv) {
            Some(_) => &always[..],
            None => {
                self.logs.get(&conv).and_then(|log| log.members.get(&user)).map_or(&[][..], Vec::as_slice)
            }
        };
        let shown = spans.iter().map(|(from, to)| ((*from).max(read + 1), (*to).min(max)));
        shown
            .filter(|(first, last)| first <= last)
            .map(|(first, last)| seqs.by_others(user, conv, first, last))
            .sum()
    }

    fn message_seqs(&self) -> MessageSeqs {
        let mut seqs = MessageSeqs::default();
        for (conv, log) in &self.logs {
            for (seq, row) in &log.rows {
                let Row::Message { cid } = row else { continue };
                seqs.all.entry(*conv).or_default().push(*seq);
                if let Some(send) = self.sends.get(cid) {
                    seqs.own.entry((*conv, send.user)).or_default().push(*seq);
                }
            }
        }
        seqs
    }
}
