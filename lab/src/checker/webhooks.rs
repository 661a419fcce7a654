//! Webhooks: an endpoint that gets the events of all conversations from their beginning gets each entry, in order, and
//! nothing that the log does not have.

use std::collections::BTreeMap;

use foldhash::HashSet;

use super::{Checker, HistoryEvent, Id, sends::Row};

/// Entries that an endpoint has taken.
#[derive(Default)]
struct Taken {
    /// Last seq up to which all entries of a conversation were taken.
    up_to: BTreeMap<Id, u64>,
    /// Pairs of conversation and seq that were taken.
    entries: HashSet<(Id, u64)>,
    /// Event by which it had taken all, according to a node.
    caught_up: Option<usize>,
}

impl Checker<'_> {
    /// Compares what endpoints have taken with the log.
    pub(super) fn check_webhooks(&mut self) {
        let mut endpoints: BTreeMap<Id, Taken> = BTreeMap::new();
        for at in 0..self.history.events.len() {
            match self.history.events[at].event {
                HistoryEvent::Delivered { endpoint, conv, seq, cid, body } => {
                    self.report.delivered += 1;
                    let taken = endpoints.entry(endpoint).or_default();
                    if !taken.entries.insert((conv, seq)) {
                        self.report.delivered_again += 1;
                        continue;
                    }
                    let up_to = taken.up_to.entry(conv).or_default();
                    let expected = *up_to + 1;
                    *up_to = seq.max(*up_to);
                    if seq != expected {
                        self.broken("webhook-order", at, |h| {
                            format!("{} got {seq} of {} before {expected}", h.name(endpoint), h.name(conv))
                        });
                    }
                    self.check_delivered(at, conv, seq, (cid, body));
                }
                HistoryEvent::CaughtUp { endpoint } => {
                    endpoints.entry(endpoint).or_default().caught_up = Some(at);
                }
                _ => {}
            }
        }
        for (endpoint, taken) in endpoints {
            let Some(at) = taken.caught_up else { continue };
            for (conv, seq) in self.missing(&taken.entries) {
                self.broken("webhook-lost", at, |h| {
                    format!("{} never got {seq} of {}", h.name(endpoint), h.name(conv))
                });
            }
        }
    }

    /// Returns the rows of the log that are not among the entries.
    fn missing(&self, entries: &HashSet<(Id, u64)>) -> Vec<(Id, u64)> {
        let rows = self.logs.iter().flat_map(|(conv, log)| log.rows.keys().map(|seq| (*conv, *seq)));
        let mut missing: Vec<(Id, u64)> = rows.filter(|row| !entries.contains(row)).collect();
        missing.sort_unstable();
        missing
    }

    /// Compares an event with the row of the log.
    fn check_delivered(&mut self, at: usize, conv: Id, seq: u64, event: (Option<Id>, u64)) {
        let row = self.logs.get(&conv).and_then(|log| log.rows.get(&seq)).copied();
        let (cid, body) = event;
        let is_it = match row {
            Some(Row::Message { cid: stored }) => {
                cid == Some(stored) && self.sends.get(&stored).is_none_or(|send| send.body == body)
            }
            Some(Row::Member) => cid.is_none(),
            None => false,
        };
        if !is_it {
            self.broken("webhook-phantom", at, |h| {
                let what = cid.map_or("a change", |cid| h.name(cid));
                format!("{what} as {seq} of {}, which the log does not have", h.name(conv))
            });
        }
    }
}
