//! Rules of a calm history, in which little breaks: every push comes or is announced as left out, and a planned stop
//! answers each send that it took.

use foldhash::{HashMap, HashSet};
use tidegate_protocol::Code;

use super::{Checker, HistoryEvent, Id, Via, sends::Row};

/// Time from a loss of routes until every node has noticed it, by the renewal of its lease. Until then a push may be
/// lost without notice.
const LOSS_NOTICE_NS: u64 = 3_500_000_000;

/// Time between a push and the first event that shows it.
const PUSH_NS: u64 = 500_000_000;

/// What connections got by pushes, and what was announced to them as left out.
#[derive(Default)]
struct Pushed {
    seqs: HashMap<(u64, Id), HashSet<u64>>,
    gaps: HashMap<(u64, Id), Vec<(u64, u64)>>,
    /// Time of the first event that shows an entry.
    shown: HashMap<(Id, u64), u64>,
    /// Times of the losses of routes.
    losses: Vec<u64>,
}

impl Pushed {
    fn has(&self, session: u64, conv: Id, seq: u64) -> bool {
        let key = (session, conv);
        self.seqs.get(&key).is_some_and(|seqs| seqs.contains(&seq))
            || self.gaps.get(&key).into_iter().flatten().any(|(first, last)| (first..=last).contains(&&seq))
    }

    /// Returns whether a push at that time may be lost.
    fn is_excused(&self, at: u64) -> bool {
        self.losses.iter().any(|loss| (loss.saturating_sub(PUSH_NS)..=loss + LOSS_NOTICE_NS).contains(&at))
    }
}

impl Checker<'_> {
    /// Checks the pushes and the planned stops of a calm history.
    pub(super) fn check_calm(&mut self) {
        if let Some(push_ns) = self.budget.push_ns {
            self.check_pushed(push_ns);
            self.check_planned_stops();
        }
    }

    /// Checks that each message came to the connections that were open when it was sent, and long enough after that.
    fn check_pushed(&mut self, push_ns: u64) {
        let pushed = self.pushed();
        let end = self.history.events.last().map_or(0, |it| it.at);
        let (mut due, mut missing) = (0, Vec::new());
        for (number, session) in &self.sessions.open {
            let until = session.closed.unwrap_or(end);
            for (conv, log) in &self.logs {
                for (seq, row) in &log.rows {
                    let Some(at) = pushed.shown.get(&(*conv, *seq)).copied() else { continue };
                    let is_due = matches!(row, Row::Message { .. })
                        && at + push_ns <= until
                        && !pushed.is_excused(at)
                        && self.is_due(*conv, *seq, session.user, session.device, Some(session.opened));
                    due += u64::from(is_due);
                    if is_due && !pushed.has(*number, *conv, *seq) {
                        missing.push((*number, session.user, session.device, *conv, *seq));
                    }
                }
            }
        }
        self.report.calm_pushes = due;
        missing.sort_unstable();
        for (number, user, device, conv, seq) in missing {
            self.broken("unpushed", self.history.events.len(), |h| {
                let (user, device, conv) = (h.name(user), h.name(device), h.name(conv));
                format!("connection {number} of {user}/{device} got no push of {conv} {seq}")
            });
        }
    }

    fn pushed(&self) -> Pushed {
        let mut pushed = Pushed::default();
        for stamped in &self.history.events {
            match stamped.event {
                HistoryEvent::Recv { session, conv, seq, via, .. } => {
                    pushed.shown.entry((conv, seq)).or_insert(stamped.at);
                    if via == Via::Push {
                        pushed.seqs.entry((session, conv)).or_default().insert(seq);
                    }
                }
                HistoryEvent::Gap { session, conv, first, last } => {
                    pushed.gaps.entry((session, conv)).or_default().push((first, last));
                }
                HistoryEvent::SendOk { cid, seq, .. } => {
                    if let Some(send) = self.sends.get(&cid) {
                        pushed.shown.entry((send.conv, seq)).or_insert(stamped.at);
                    }
                }
                HistoryEvent::Nemesis { on: true, fault }
                    if self.history.name(fault).starts_with("redis") =>
                {
                    pushed.losses.push(stamped.at);
                }
                _ => {}
            }
        }
        pushed
    }

    /// Checks that no planned stop closed a connection without the answer to a send that the node had taken: its retry
    /// shows that the log has it.
    fn check_planned_stops(&mut self) {
        // Attempts of each message, those of them that a planned stop left without an answer, and the open ones.
        let mut attempts: HashMap<Id, (u32, u32)> = HashMap::default();
        let mut open: HashMap<Id, u64> = HashMap::default();
        let mut found = Vec::new();
        for (at, stamped) in self.history.events.iter().enumerate() {
            match stamped.event {
                HistoryEvent::SendInv { cid, session, .. } => {
                    attempts.entry(cid).or_default().0 += 1;
                    open.insert(cid, session);
                }
                HistoryEvent::SendOk { cid, duplicate, .. } => {
                    open.remove(&cid);
                    let (all, left) = attempts.get(&cid).copied().unwrap_or_default();
                    if duplicate && left > 0 && left + 1 == all {
                        found.push((at, cid));
                    }
                }
                HistoryEvent::SendFail { cid, .. } | HistoryEvent::SendInfo { cid } => {
                    open.remove(&cid);
                }
                HistoryEvent::Close { session, code } if code == Code::Draining.number() => {
                    for cid in open.iter().filter(|(_, on)| **on == session).map(|(cid, _)| cid) {
                        attempts.entry(*cid).or_default().1 += 1;
                    }
                }
                _ => {}
            }
        }
        for (at, cid) in found {
            self.broken("stop-unanswered", at, |h| format!("{} was taken and not answered", h.name(cid)));
        }
    }
}
