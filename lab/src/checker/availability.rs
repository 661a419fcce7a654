//! Rule 12: how soon after a fault the broker accepts messages again.

use super::{Checker, HistoryEvent};

impl Checker<'_> {
    /// Measures the time from the end of each fault to the next ack, unless another fault begins or no client sends.
    pub(super) fn check_availability(&mut self) {
        // The end of a fault: its event, its time, and whether a client has waited for an ack since.
        let mut ended: Option<(usize, u64, bool)> = None;
        for (at, stamped) in self.history.events.iter().enumerate() {
            match stamped.event {
                HistoryEvent::Nemesis { on: true, .. } => ended = None,
                HistoryEvent::Nemesis { on: false, .. } => {
                    self.report.faults += 1;
                    ended = Some((at, stamped.at, false));
                }
                HistoryEvent::SendInv { .. } => {
                    if let Some((_, _, waited)) = &mut ended {
                        *waited = true;
                    }
                }
                HistoryEvent::SendOk { .. } => {
                    if let Some((fault, since, true)) = ended.take() {
                        let took = stamped.at.saturating_sub(since);
                        self.report.longest_recovery_ns = self.report.longest_recovery_ns.max(took);
                        if took > self.budget.recovery_ns {
                            self.broken("slow-recovery", at, |_| {
                                format!("{} ms after event {fault}", took / 1_000_000)
                            });
                        }
                    }
                }
                _ => {}
            }
        }
        if let Some((fault, since, true)) = ended
            && let Some(last) = self.history.events.last()
            && last.at.saturating_sub(since) > self.budget.recovery_ns
        {
            self.broken("slow-recovery", fault, |_| "no ack came any more".to_owned());
        }
    }
}
