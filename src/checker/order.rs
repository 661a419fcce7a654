//! Rule 5: who was first stays first.

use foldhash::{HashMap, HashMapExt as _};

use super::{Checker, Event, Id};

impl Checker<'_> {
    /// Real time over all, and the order in which each connection and each chain wrote.
    pub(super) fn check_order(&mut self) {
        // The last seq in (conversation, connection), and in (conversation, user, device) for chains.
        let mut sessions: HashMap<(Id, u64), u64> = HashMap::new();
        let mut chains: HashMap<(Id, Id, Id), u64> = HashMap::new();
        let mut found = Vec::new();
        for (at, stamped) in self.history.events.iter().enumerate() {
            let Event::SendInv { cid, .. } = stamped.event else { continue };
            let Some(send) = self.sends.get(&cid).filter(|send| send.first == at) else { continue };
            let Some(seq) = send.stored.or(send.ok.map(|(seq, _)| seq)) else { continue };
            if self.history.name(send.conv).starts_with("r:") {
                continue;
            }
            if seq <= send.floor {
                found.push(("real-time-inversion", at, cid, seq, send.floor));
            }
            // What was sent again may have been stored by either attempt: only the chain says something of it.
            if send.attempts == 1 {
                let last = sessions.entry((send.conv, send.session)).or_default();
                if seq < *last {
                    found.push(("session-order", at, cid, seq, *last));
                }
                *last = seq.max(*last);
            }
            if send.chained {
                let last = chains.entry((send.conv, send.user, send.device)).or_default();
                if seq < *last {
                    found.push(("chain-order", at, cid, seq, *last));
                }
                *last = seq.max(*last);
            }
        }
        for (rule, at, cid, seq, other) in found {
            self.broken(rule, at, |h| format!("{} has {seq}, behind {other}", h.name(cid)));
        }
    }
}
