//! Messages to connected users, which are also pushed and acked.

use super::{Section, each, ms};
use crate::bench::{
    orders::{Order, Outcome},
    report::median,
};
use anyhow::Result;

/// Rounds of each side at half load.
pub(super) const HALF_ROUNDS: usize = 5;

/// Returns the unanswered messages of a connection that writes to connected users: a node limits the unacked pushes to
/// each of them.
pub(super) fn in_flight(in_flight: usize) -> usize {
    (in_flight / 8).max(1)
}

/// Returns half of the reached rate, in messages per second.
pub(super) fn half(outcomes: &[Outcome]) -> f64 {
    median(&each(outcomes, Outcome::rate)) / 2.0
}

/// Runs rounds of one side.
pub(super) fn several(
    count: usize,
    order: &Order,
    mut ask: impl FnMut(&Order) -> Result<Outcome>,
) -> Result<Vec<Outcome>> {
    (0..count).map(|_| ask(order)).collect()
}

/// Adds figures of messages to connected users: flat out, and at half of the accepts without a receiver.
pub(super) fn report(section: &mut Section, flat_out: &[Outcome], rate: f64, over: &[Outcome]) {
    section.rounds("send, ack, push and its ack, flat out", each(flat_out, Outcome::rate), "/s", None);
    let name = format!("send to ack at {rate:.0}/s, half of the accepts with nobody listening, p50");
    section.rounds(&name, ms(over, |o| o.p50_us), "ms", None);
    section.rounds("the same, p99", ms(over, |o| o.p99_us), "ms", None);
    lag(section, "flat out to people who are there", flat_out);
    lag(section, "at half of the accepts with nobody listening", over);
}

/// Adds how often the server announced pushes that it left out, and what was pulled instead.
pub(super) fn lag(section: &mut Section, when: &str, outcomes: &[Outcome]) {
    let count = |field: fn(&Outcome) -> u64| each(outcomes, |outcome| field(outcome) as f64);
    section.rounds(&format!("frames `behind`, {when}"), count(|o| o.behinds), "", None);
    section.rounds(&format!("messages pulled, {when}"), count(|o| o.pulled), "", None);
    if outcomes.iter().any(|outcome| outcome.repeated > 0) {
        section.rounds(&format!("messages pushed again, {when}"), count(|o| o.repeated), "", None);
    }
}
