//! More messages than a node can take: open-loop clients, which keep the wait that a refusal names or ignore it.

use super::{
    Driver,
    connections::{ConnEvent, surprise},
};
use crate::bench::{
    host,
    orders::{Outcome, Overload},
    pattern::{Pattern, Stamp},
    wire::{self, kind},
};
use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use std::{collections::VecDeque, time::Duration};

/// Most unanswered messages of a client: what its buffers hold. It can't offer more.
const UNANSWERED_MAX: usize = 64;

/// Time for the last answers.
const REPLY_TIMEOUT_NS: u64 = 60_000_000_000;

/// Field of an error with the time to wait, in ms.
const RETRY_AFTER: u32 = 5;

/// Wait after a refusal that names none.
const RETRY_AFTER_DEFAULT_MS: u64 = 1_000;

/// Client of a connection.
#[derive(Default)]
pub(super) struct Offerer {
    /// Number of its last new message.
    number: u32,
    /// Messages without an answer, with the times of their sending.
    unanswered: VecDeque<(u32, u64)>,
    /// Refused messages, to be sent again.
    refused: VecDeque<u32>,
    /// Time before which it sends nothing.
    waits_until: u64,
}

/// State of an order.
struct Round<'a> {
    order: &'a Overload,
    pattern: Pattern,
    latency: Histogram<u64>,
    is_measuring: bool,
    acks: u64,
    refusals: u64,
    /// Messages whose answer came too late for the node.
    unknown: u64,
    unanswered: u64,
    /// Time of the last answer.
    last: u64,
}

impl Driver {
    pub(super) fn overload(&mut self, order: &Overload) -> Result<Outcome> {
        ensure!(self.users > 0, "no connections");
        self.offerers.resize_with(self.users, Offerer::default);
        let began = host::now_ns();
        let mut round = Round {
            order,
            pattern: Pattern::new(self.setup.size),
            latency: Histogram::new_with_bounds(1, 120_000_000, 3)?,
            is_measuring: false,
            acks: 0,
            refusals: 0,
            unknown: 0,
            unanswered: 0,
            last: began,
        };
        let (warm_ns, measure_ns) = (order.warm_ms * 1_000_000, order.measure_ms * 1_000_000);
        let mut outcome = Outcome::default();
        let mut start = None;
        let (mut arrivals, mut sent) = (0_u64, 0_u64);
        loop {
            let now = host::now_ns();
            let elapsed = now - began;
            if start.is_none() && elapsed >= warm_ns {
                start = Some((now, self.meter()?, sent));
                round.is_measuring = true;
            }
            // A node accepts in batches, which on a slow disk are further apart than a short run is long. A run between two
            // of them would find no accept at all, so it lasts until there is one.
            let measured = elapsed.saturating_sub(warm_ns);
            let is_over =
                measured >= measure_ns && (round.acks > 0 || measured >= measure_ns + REPLY_TIMEOUT_NS);
            if let (Some((from, meter, before)), true) = (&start, is_over) {
                (outcome.wall_ns, outcome.count, outcome.refused) = (now - from, round.acks, round.refusals);
                (outcome.offered, outcome.unknown) = (sent - before, round.unknown);
                self.read_meter(meter, &mut outcome)?;
                break;
            }
            let due = (elapsed as f64 * order.rate / 1e9) as u64;
            while arrivals < due {
                let slot = arrivals as usize % self.users;
                arrivals += 1;
                sent += u64::from(self.offer(&mut round, slot, now)?);
            }
            self.take_answers(&mut round)?;
        }
        round.is_measuring = false;
        while round.unanswered > 0 {
            self.take_answers(&mut round)?;
            ensure!(
                host::now_ns().saturating_sub(round.last) < REPLY_TIMEOUT_NS,
                "{} messages without an answer",
                round.unanswered
            );
        }
        outcome.p50_us = round.latency.value_at_quantile(0.5);
        outcome.p99_us = round.latency.value_at_quantile(0.99);
        outcome.max_us = round.latency.max();
        Ok(outcome)
    }

    /// Sends the next message of a client, or a refused one again. Returns whether it sends at all.
    fn offer(&mut self, round: &mut Round<'_>, slot: usize, now: u64) -> Result<bool> {
        let client = &mut self.offerers[slot];
        let must_wait = round.order.keeps_wait && now < client.waits_until;
        if must_wait || client.unanswered.len() >= UNANSWERED_MAX {
            return Ok(false);
        }
        let number = client.refused.pop_front().unwrap_or_else(|| {
            client.number += 1;
            client.number
        });
        client.unanswered.push_back((number, now));
        round.unanswered += 1;
        let data = round.pattern.make(Stamp { publisher: slot as u32, number, time: now });
        let msg_id = format!("{}-{slot}-{number}", self.setup.run);
        let frame = wire::send(u64::from(number), &format!("d:u{slot}:x{slot}"), &msg_id, &data);
        self.connections.send_frame(slot, &frame)?;
        Ok(true)
    }

    fn take_answers(&mut self, round: &mut Round<'_>) -> Result<()> {
        let wait = if self.setup.spin { Duration::ZERO } else { Duration::from_millis(1) };
        let clients = &mut self.offerers;
        let mut now = 0;
        self.connections.turn(wait, |slot, _, event| {
            let ConnEvent::Frame(view) = &event else { return surprise(slot, &event) };
            if !matches!(view.kind, kind::SEND_ACK | kind::ERROR) {
                return surprise(slot, &event);
            }
            if now == 0 {
                now = host::now_ns();
            }
            let client = &mut clients[slot];
            let at = client.unanswered.iter().position(|(number, _)| u64::from(*number) == view.id);
            let at = at.with_context(|| format!("connection {slot}: an answer to nothing, {}", view.id))?;
            let (number, time) = client.unanswered.remove(at).context("it is there")?;
            (round.unanswered, round.last) = (round.unanswered - 1, now);
            if view.kind == kind::ERROR {
                let reason = wire::reason(view.body);
                if reason.contains("UNKNOWN") {
                    round.unknown += u64::from(round.is_measuring);
                    return Ok(());
                }
                let is_refusal = reason.contains("BUSY") || reason.contains("OVERLOADED");
                ensure!(is_refusal, "connection {slot}: {reason}");
                client.refused.push_back(number);
                let named = wire::number_of(view.body, RETRY_AFTER);
                let wait = if named > 0 { named } else { RETRY_AFTER_DEFAULT_MS };
                client.waits_until = now + wait * 1_000_000;
                round.refusals += u64::from(round.is_measuring);
            } else if round.is_measuring {
                round.acks += 1;
                round.latency.saturating_record((now.saturating_sub(time) / 1_000).max(1));
            }
            Ok(())
        })?;
        Ok(())
    }
}
