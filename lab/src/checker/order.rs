//! Rule 5: the order of messages.

use foldhash::{HashMap, HashMapExt as _};

use super::{Checker, HistoryEvent, Id};

impl Checker<'_> {
    /// Checks the order in real time, of each connection, and of each chain.
    pub(super) fn check_order(&mut self) {
        // Last seq by (conversation, connection), and for chains by (conversation, user, device), with its message.
        let mut sessions: HashMap<(Id, u64), u64> = HashMap::new();
        let mut chains: HashMap<(Id, Id, Id), (u64, Id)> = HashMap::new();
        let mut found = Vec::new();
        for (at, stamped) in self.history.events.iter().enumerate() {
            let HistoryEvent::SendInv { cid, .. } = stamped.event else { continue };
            let Some(send) = self.sends.get(&cid).filter(|send| send.first == at) else { continue };
            let Some(seq) = send.stored.or(send.ok.map(|(seq, _)| seq)) else { continue };
            if self.history.name(send.conv).starts_with("r:") {
                continue;
            }
            if seq <= send.floor {
                found.push(("real-time-inversion", at, cid, seq, send.floor));
            }
            // Either attempt of a repeated send may be the stored one: only its chain orders it.
            if send.attempts == 1 {
                let last = sessions.entry((send.conv, send.session)).or_default();
                if seq < *last {
                    found.push(("session-order", at, cid, seq, *last));
                }
                *last = seq.max(*last);
            }
            if send.chained {
                let last = chains.entry((send.conv, send.user, send.device)).or_insert((seq, cid));
                if seq < last.0 {
                    let rule = if self.was_let_in_late(last.1) { "let-in-late" } else { "chain-order" };
                    found.push((rule, at, cid, seq, last.0));
                }
                *last = (*last).max((seq, cid));
            }
        }
        for (rule, at, cid, seq, other) in found {
            self.broken(rule, at, |h| format!("{} has {seq}, after {other}", h.name(cid)));
        }
    }

    /// Returns whether a message was repeated after its sender had joined the conversation. Its first attempt may have
    /// been refused permanently, which is an answer, and the chain went on. When that answer is lost the retry must be
    /// refused again (ADR 3), or the message is stored after its successors.
    fn was_let_in_late(&self, cid: Id) -> bool {
        let Some(send) = self.sends.get(&cid).filter(|send| send.attempts > 1) else { return false };
        let spans = self.logs.get(&send.conv).and_then(|log| log.members.get(&send.user));
        let stored = send.stored.unwrap_or(0);
        spans.is_some_and(|spans| spans.iter().any(|(from, _)| send.floor < *from && *from < stored))
    }
}
