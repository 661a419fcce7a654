//! Consumers of the feed: an endpoint of webhooks that gets the events of all conversations from their beginning gets each
//! entry, in order, and nothing that the log does not have; so do readers of the stream and of the topic of messages.

use std::collections::BTreeMap;

use foldhash::HashSet;

use super::{Checker, HistoryEvent, Id, sends::Row};

/// Rules of a kind of consumers.
#[derive(Clone, Copy)]
pub(super) struct FeedRules {
    /// Kind of the consumers.
    pub(super) kind: &'static str,
    order: &'static str,
    phantom: &'static str,
    lost: &'static str,
}

/// Kind of an endpoint of webhooks.
pub(super) const WEBHOOK: &str = "webhook";

/// Id of the reader of the stream, as an endpoint.
pub const STREAM: &str = "stream";

/// Id of the reader of the topic of messages, as an endpoint.
pub const TOPIC: &str = "topic";

impl FeedRules {
    /// Returns the rules for the consumer with this id.
    pub(super) fn of(endpoint: &str) -> Self {
        let (kind, order, phantom, lost) = match endpoint {
            STREAM => (STREAM, "stream-order", "stream-phantom", "stream-lost"),
            TOPIC => (TOPIC, "topic-order", "topic-phantom", "topic-lost"),
            _ => (WEBHOOK, "webhook-order", "webhook-phantom", "webhook-lost"),
        };
        Self { kind, order, phantom, lost }
    }
}

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
                    let rules = FeedRules::of(self.history.name(endpoint));
                    self.report.delivered += 1;
                    *self.report.delivered_by.entry(rules.kind).or_default() += 1;
                    let taken = endpoints.entry(endpoint).or_default();
                    let is_new = taken.entries.insert((conv, seq));
                    if !self.is_stored(conv, seq, cid, body) {
                        self.broken(rules.phantom, at, |h| {
                            let what = cid.map_or("a change", |cid| h.name(cid));
                            format!("{what} as {seq} of {}, which the log does not have", h.name(conv))
                        });
                    }
                    if !is_new {
                        self.report.delivered_again += 1;
                        continue;
                    }
                    let up_to = taken.up_to.entry(conv).or_default();
                    let expected = *up_to + 1;
                    *up_to = seq.max(*up_to);
                    if seq != expected {
                        self.broken(rules.order, at, |h| {
                            format!("{} got {seq} of {} before {expected}", h.name(endpoint), h.name(conv))
                        });
                    }
                }
                HistoryEvent::CaughtUp { endpoint } => {
                    endpoints.entry(endpoint).or_default().caught_up = Some(at);
                }
                _ => {}
            }
        }
        for (endpoint, taken) in endpoints {
            let Some(at) = taken.caught_up else { continue };
            let rules = FeedRules::of(self.history.name(endpoint));
            for (conv, seq) in self.missing(&taken.entries) {
                self.broken(rules.lost, at, |h| {
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

    /// Returns whether the log has what an event says. A message may have the content of an edit: that is read when it is sent.
    fn is_stored(&self, conv: Id, seq: u64, cid: Option<Id>, body: u64) -> bool {
        match self.logs.get(&conv).and_then(|log| log.rows.get(&seq)) {
            Some(Row::Message { cid: stored }) => {
                let is_sent = self.sends.get(stored).is_none_or(|send| send.body == body);
                cid == Some(*stored) && (is_sent || self.edits.has(conv, seq, body))
            }
            Some(Row::Member | Row::Edit { .. }) => cid.is_none(),
            None => false,
        }
    }
}
