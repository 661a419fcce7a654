//! Rule 12: how soon after a fault the broker accepts messages again.
//!
//! **Promise.** Once a fault has ended, the next ack comes within [`super::Budget::recovery_ns`] if a client waits for one. Faults that
//! follow one another before that share one budget: from one ack to the next, the times in which nothing is broken and a
//! client waits add up. The ack of any client ends the waits of all: a client or a conversation that gets none while others
//! do is not judged, because it may have lost its answer. The outages of what receives webhooks are no faults here, because
//! no ack depends on it.

use foldhash::HashSet;

use super::{Checker, HistoryEvent, Id};

/// Fault that no ack depends on.
const RECEIVER: &str = "receiver";

/// Wait of clients for the next ack, in the times in which nothing is broken.
#[derive(Default)]
struct AckWait {
    /// Whether there was a fault yet.
    has_faulted: bool,
    /// Faults that have not ended.
    faults: HashSet<Id>,
    /// Messages that were sent since the last ack and not refused.
    sent: HashSet<Id>,
    /// Start of the present wait; `None` while something is broken or no client waits.
    since: Option<u64>,
    /// Sum of the former waits since the last ack.
    waited_ns: u64,
}

impl AckWait {
    /// Ends the present wait, and begins another one if a client waits and nothing is broken any more.
    fn update(&mut self, now: u64) {
        if let Some(since) = self.since.take() {
            self.waited_ns += now.saturating_sub(since);
        }
        if self.has_faulted && self.faults.is_empty() && !self.sent.is_empty() {
            self.since = Some(now);
        }
    }

    fn begin_fault(&mut self, now: u64, fault: Id) {
        self.has_faulted = true;
        self.faults.insert(fault);
        self.update(now);
    }

    fn end_fault(&mut self, now: u64, fault: Id) {
        self.faults.remove(&fault);
        self.update(now);
    }

    fn send(&mut self, now: u64, message: Id) {
        if self.sent.insert(message) {
            self.update(now);
        }
    }

    fn refuse(&mut self, now: u64, message: Id) {
        if self.sent.remove(&message) {
            self.update(now);
        }
    }

    /// Notes an ack, which ends the waits of all clients. Returns the sum of the waits for it.
    fn ack(&mut self, now: u64) -> u64 {
        self.sent.clear();
        self.update(now);
        std::mem::take(&mut self.waited_ns)
    }
}

impl Checker<'_> {
    /// Measures the time from the end of each fault to the next ack, unless another fault begins or no client sends, and
    /// adds up the waits between two acks.
    pub(super) fn check_availability(&mut self) {
        // The end of a fault: its event, its time, and whether a client has waited for an ack since.
        let mut ended: Option<(usize, u64, bool)> = None;
        let mut wait = AckWait::default();
        for (at, stamped) in self.history.events.iter().enumerate() {
            let now = stamped.at;
            match stamped.event {
                HistoryEvent::Nemesis { on, fault } if self.history.name(fault) == RECEIVER => {
                    self.report.faults += u64::from(!on);
                }
                HistoryEvent::Nemesis { on: true, fault } => {
                    ended = None;
                    wait.begin_fault(now, fault);
                }
                HistoryEvent::Nemesis { on: false, fault } => {
                    self.report.faults += 1;
                    ended = Some((at, now, false));
                    wait.end_fault(now, fault);
                }
                HistoryEvent::SendInv { cid, .. } => {
                    if let Some((_, _, waited)) = &mut ended {
                        *waited = true;
                    }
                    wait.send(now, cid);
                }
                HistoryEvent::SendFail { cid, .. } => wait.refuse(now, cid),
                HistoryEvent::SendOk { .. } => {
                    let waited_ns = wait.ack(now);
                    let ended = ended.take().filter(|(_, _, waited)| *waited);
                    let took = ended.map_or(0, |(_, since, _)| now.saturating_sub(since));
                    self.note_recovery(at, took.max(waited_ns), ended.map(|(fault, ..)| fault));
                }
                _ => {}
            }
        }
        let Some(last) = self.history.events.last() else { return };
        wait.update(last.at);
        match ended {
            Some((fault, since, true)) if last.at.saturating_sub(since) > self.budget.recovery_ns => {
                self.broken("slow-recovery", fault, |_| "no ack came any more".to_owned());
            }
            _ => self.note_recovery(self.history.events.len(), wait.waited_ns, None),
        }
    }

    /// Judges the time until an ack after a fault, or after several faults.
    fn note_recovery(&mut self, at: usize, took: u64, fault: Option<usize>) {
        self.report.longest_recovery_ns = self.report.longest_recovery_ns.max(took);
        if took <= self.budget.recovery_ns {
            return;
        }
        let ms = took / 1_000_000;
        self.broken("slow-recovery", at, |_| match fault {
            Some(fault) => format!("{ms} ms after event {fault}, or in the pauses of the faults before"),
            None => format!("{ms} ms in the pauses of faults"),
        });
    }
}
