//! Rule 11: at the end every node reports who is connected. A node that reports nothing for a while before that is not
//! judged.

use std::collections::BTreeMap;

use foldhash::HashSet;

use super::{Checker, HistoryEvent, Id};

impl Checker<'_> {
    /// Compares reports of nodes on devices with the open connections.
    pub(super) fn check_presence(&mut self) {
        let mut open: BTreeMap<u64, (Id, Id)> = BTreeMap::new();
        let mut left: HashSet<(Id, Id)> = HashSet::default();
        for at in 0..self.history.events.len() {
            match self.history.events[at].event {
                HistoryEvent::Open { user, device, session } => drop(open.insert(session, (user, device))),
                HistoryEvent::Close { session, .. } => drop(open.remove(&session)),
                HistoryEvent::Left { user, device } => drop(left.insert((user, device))),
                HistoryEvent::Presence { node, user, device, online } => {
                    self.report.presences += 1;
                    let there =
                        !left.contains(&(user, device)) && open.values().any(|it| *it == (user, device));
                    if online != there {
                        self.broken("presence-diverged", at, |h| {
                            let (node, user, device) = (h.name(node), h.name(user), h.name(device));
                            format!("{node} says of {user}/{device}: online {online}, and it is {there}")
                        });
                    }
                }
                _ => {}
            }
        }
    }
}
