//! A hot room: messages at scheduled times, regardless of the server; latencies count from the schedule.

use super::{
    Driver,
    connections::{Conn, ConnEvent, surprise},
    publisher::Publisher,
};
use crate::bench::{
    host,
    orders::Outcome,
    wire::{self, kind},
};
use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use std::time::Duration;

/// Messages in flight when there is no rate, enough for the server never to wait for the load generator.
const AHEAD: u64 = 2;
/// Time without a frame after which no more are expected.
const IDLE_TIMEOUT_NS: u64 = 1_500_000_000;

/// Code of a message that a room over its rate leaves out.
const LEFT_OUT: u64 = 4023;

/// Observations of the receivers.
struct Tally {
    users: usize,
    publishers: usize,
    /// Last number of each (receiver, publisher).
    last: Vec<u32>,
    delivered: u64,
    accepted: u64,
    refused: u64,
    shed: u64,
    left_out: u64,
    /// Accepted messages of the first publisher, and copies of them that arrived.
    important: u64,
    important_count: u64,
    important_latency: Histogram<u64>,
    latency: Histogram<u64>,
    measuring: bool,
    /// Time of the last frame, taken once per turn.
    now: u64,
}

impl Driver {
    pub(super) fn room(
        &mut self,
        conversation: &str,
        rate: Option<f64>,
        warm_ms: u64,
        measure_ms: u64,
        important_every: Option<u64>,
    ) -> Result<Outcome> {
        let mut publisher = self.publisher.take().context("no publisher is connected")?;
        let mut tally = Tally::new(self.users, &publisher)?;
        for slot in 0..self.users {
            let conn = self.connections.conn(slot)?;
            (conn.received, conn.shed) = (0, 0);
        }
        let mut outcome = Outcome::default();
        let began = host::now_ns();
        let measure_from = began + warm_ms * 1_000_000;
        let end = measure_from + measure_ms * 1_000_000;
        let mut pace = Pace { rate, began, sent: 0 };
        let mut start = None;
        loop {
            let now = host::now_ns();
            if start.is_none() && now >= measure_from {
                start = Some((now, self.meter()?, tally.delivered, self.connections.reads));
                tally.measuring = true;
            }
            if now >= end {
                break;
            }
            while let Some(time) = pace.due(host::now_ns(), &tally) {
                let who = speaker(pace.sent - 1, important_every, publisher.numbers.len());
                publisher.publish(&mut self.connections, who, conversation, time)?;
            }
            self.receive_events(&mut tally, &publisher, pace.wait(host::now_ns()))?;
        }
        let (from, meter, delivered, reads) = start.context("nothing was measured")?;
        outcome.wall_ns = host::now_ns() - from;
        outcome.count = tally.delivered - delivered;
        outcome.reads = self.connections.reads - reads;
        self.read_meter(&meter, &mut outcome)?;
        tally.measuring = false;
        self.drain(&mut tally, &publisher, pace.sent)?;
        tally.report(&mut outcome, pace.sent);
        self.publisher = Some(publisher);
        Ok(outcome)
    }

    fn receive_events(&mut self, tally: &mut Tally, publisher: &Publisher, wait: Duration) -> Result<()> {
        tally.now = 0;
        self.connections.turn(wait, |slot, conn, event| tally.on_event(slot, conn, &event, publisher))?;
        Ok(())
    }

    /// Waits for quiet, then checks that each accepted message was delivered or announced as shed.
    fn drain(&mut self, tally: &mut Tally, publisher: &Publisher, sent: u64) -> Result<()> {
        let mut last = host::now_ns();
        loop {
            let before = (tally.delivered, tally.accepted + tally.refused, tally.shed);
            self.receive_events(tally, publisher, Duration::from_millis(20))?;
            let now = host::now_ns();
            if before != (tally.delivered, tally.accepted + tally.refused, tally.shed) {
                last = now;
            }
            if self.complete(tally, publisher, sent).is_ok() {
                return Ok(());
            }
            if now - last > IDLE_TIMEOUT_NS {
                return self.complete(tally, publisher, sent);
            }
        }
    }

    fn complete(&self, tally: &Tally, publisher: &Publisher, sent: u64) -> Result<()> {
        let accepted = if publisher.is_answered() { tally.accepted } else { sent };
        ensure!(
            accepted + tally.refused == sent,
            "{accepted} accepted and {} refused of {sent} messages",
            tally.refused
        );
        for (slot, conn) in self.connections.conns().take_while(|(slot, _)| *slot < self.users) {
            let known = u64::from(conn.received) + u64::from(conn.shed);
            ensure!(
                known == accepted,
                "connection {slot}: {} received and {} named as shed of {accepted}",
                conn.received,
                conn.shed
            );
        }
        Ok(())
    }
}

/// Returns the publisher of message number `nth`.
fn speaker(nth: u64, important_every: Option<u64>, publishers: usize) -> usize {
    match important_every {
        Some(every) if nth.is_multiple_of(every) => 0,
        Some(_) => 1 + nth as usize % (publishers - 1).max(1),
        None => nth as usize % publishers,
    }
}

/// Schedule of the messages.
struct Pace {
    rate: Option<f64>,
    began: u64,
    sent: u64,
}

impl Pace {
    fn schedule(&self, rate: f64) -> u64 {
        self.began + (self.sent as f64 * 1e9 / rate) as u64
    }

    /// Returns the time of the next message, if it is due.
    fn due(&mut self, now: u64, tally: &Tally) -> Option<u64> {
        let time = match self.rate {
            Some(rate) => self.schedule(rate),
            None if tally.delivered + AHEAD * tally.users as u64 > self.sent * tally.users as u64 => now,
            None => return None,
        };
        (time <= now).then(|| {
            self.sent += 1;
            time
        })
    }

    /// Returns how long to wait for frames. The last millisecond before a message is spent awake.
    fn wait(&self, now: u64) -> Duration {
        match self.rate {
            Some(rate) => Duration::from_millis(self.schedule(rate).saturating_sub(now) / 1_000_000),
            None => Duration::from_millis(100),
        }
    }
}

impl Tally {
    fn new(users: usize, publisher: &Publisher) -> Result<Self> {
        let publishers = publisher.numbers.len();
        Ok(Self {
            users,
            publishers,
            last: publisher.numbers.repeat(users),
            delivered: 0,
            accepted: 0,
            refused: 0,
            shed: 0,
            left_out: 0,
            important: 0,
            important_count: 0,
            important_latency: Histogram::new_with_bounds(1, 120_000_000, 3)?,
            latency: Histogram::new_with_bounds(1, 120_000_000, 3)?,
            measuring: false,
            now: 0,
        })
    }

    fn on_event(
        &mut self,
        slot: usize,
        conn: &mut Conn,
        event: &ConnEvent<'_>,
        publisher: &Publisher,
    ) -> Result<()> {
        let ConnEvent::Frame(view) = event else { return surprise(slot, event) };
        match view.kind {
            kind::PUSH if slot < self.users => self.push(slot, conn, view.body, publisher),
            kind::SHED if slot < self.users => {
                let count = wire::number_of(view.body, 2);
                conn.shed += count as u32;
                self.shed += count;
                Ok(())
            }
            kind::SEND_ACK => {
                self.accepted += 1;
                self.important += u64::from(slot == self.users);
                Ok(())
            }
            // A room that is over its rate refuses messages, which are counted.
            kind::ERROR if slot >= self.users => {
                self.refused += 1;
                self.left_out += u64::from(wire::number_of(view.body, 1) == LEFT_OUT);
                Ok(())
            }
            _ => surprise(slot, event),
        }
    }

    fn push(&mut self, slot: usize, conn: &mut Conn, body: &[u8], publisher: &Publisher) -> Result<()> {
        let push = wire::push_view(body).context("a push that is no protobuf")?;
        let stamp = publisher
            .pattern
            .check(push.data)
            .with_context(|| format!("connection {slot}: damaged content"))?;
        let who = stamp.publisher as usize;
        ensure!(who < self.publishers, "connection {slot}: no such publisher");
        let last = &mut self.last[slot * self.publishers + who];
        if stamp.number <= *last {
            bail!("connection {slot}: message {} of publisher {who} after {last}", stamp.number);
        }
        *last = stamp.number;
        conn.received += 1;
        self.delivered += 1;
        self.important_count += u64::from(who == 0);
        if self.measuring {
            if self.now == 0 || self.delivered & 0xf == 0 {
                self.now = host::now_ns();
            }
            let time_us = (self.now.saturating_sub(stamp.time) / 1000).max(1);
            self.latency.saturating_record(time_us);
            if who == 0 {
                self.important_latency.saturating_record(time_us);
            }
        }
        Ok(())
    }

    fn report(&self, outcome: &mut Outcome, sent: u64) {
        outcome.offered = sent;
        outcome.refused = self.refused;
        outcome.shed = self.shed;
        outcome.left_out = self.left_out;
        (outcome.important, outcome.important_count) = (self.important, self.important_count);
        outcome.important_p99_us = self.important_latency.value_at_quantile(0.99);
        outcome.p50_us = self.latency.value_at_quantile(0.5);
        outcome.p99_us = self.latency.value_at_quantile(0.99);
        outcome.max_us = self.latency.max();
    }
}
