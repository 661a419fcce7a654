//! One-to-one messages: each answer is held to its place, each seq to be the next or the only one of its number.

use super::{
    Driver,
    connections::{Conn, Heard, surprise},
};
use crate::bench::{
    host,
    orders::{Chat, Outcome, Peer, To, Until},
    pattern::{Pattern, Stamp},
    wire::{self, View, kind},
};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use std::{collections::VecDeque, time::Duration};

/// A message whose answer or push has not come by then is lost.
const PATIENCE_NS: u64 = 10_000_000_000;

/// What all orders so far have left: numbers go on, and so do seqs.
#[derive(Default)]
pub(super) struct Talk {
    talkers: Vec<Talker>,
    /// Of each pair of neighbours, which seqs were given.
    pairs: Vec<Seqs>,
}

/// A connection that sends.
#[derive(Default)]
struct Talker {
    /// Of the last message: its request id, the end of its `msg_id`, and its number for the receiver.
    number: u32,
    waiting: VecDeque<Waiting>,
    /// Messages to each absent person; their seqs are 1, 2, 3, … because nobody else writes there.
    absent: Vec<u64>,
    /// Last seq and number that came from the partner, how many came, and up to which seq we said so.
    heard: (u64, u32, u64),
    acked: u64,
    /// Messages to the partner that were accepted.
    told: u64,
}

/// A message without an answer.
struct Waiting {
    number: u32,
    time: u64,
    /// Its seq, where it is to an absent person; none = it is to the partner.
    seq: Option<u64>,
}

/// Seqs that were given in a conversation: each once, and at the end without a hole.
#[derive(Default)]
struct Seqs {
    bits: Vec<u64>,
    count: u64,
    max: u64,
}

impl Seqs {
    /// Notes `seq`; false = it was there before.
    fn note(&mut self, seq: u64) -> bool {
        let (word, bit) = ((seq / 64) as usize, seq % 64);
        if word >= self.bits.len() {
            self.bits.resize(word + 1, 0);
        }
        let is_new = self.bits[word] & (1 << bit) == 0;
        self.bits[word] |= 1 << bit;
        (self.count, self.max) = (self.count + u64::from(is_new), self.max.max(seq));
        is_new && seq > 0
    }
}

/// One order while it is carried out.
struct Run<'a> {
    chat: &'a Chat,
    pattern: Pattern,
    began: u64,
    sent: u64,
    accepted: u64,
    ack: Histogram<u64>,
    push: Histogram<u64>,
    measuring: bool,
    /// The time of this turn.
    now: u64,
    last: u64,
    /// Answers come in the order of their messages: there is one node.
    in_order: bool,
}

impl Driver {
    pub(super) fn chat(&mut self, chat: &Chat) -> Result<Outcome> {
        ensure!(chat.senders.end <= self.users && self.users.is_multiple_of(2), "senders in pairs");
        let is_raw = matches!(self.setup.peer, Peer::Log);
        let one_each = matches!(chat.to, To::Absent(1));
        ensure!(!is_raw || one_each, "the raw log knows no conversations");
        self.talk.talkers.resize_with(self.users, Talker::default);
        self.talk.pairs.resize_with(self.users / 2, Seqs::default);
        let mut run =
            Run { in_order: !self.setup.address.contains(','), ..Run::new(chat, &self.setup.size)? };
        let mut outcome = Outcome::default();
        let (warm_ns, measure_ns) = match chat.until {
            Until::Time { warm_ms, measure_ms } => (warm_ms * 1_000_000, measure_ms * 1_000_000),
            Until::Messages(_) => (0, u64::MAX / 4),
        };
        let mut start = None;
        let mut end = None;
        loop {
            run.now = host::now_ns();
            let elapsed = run.now - run.began;
            if start.is_none() && elapsed >= warm_ns {
                start = Some((run.now, self.meter()?, run.accepted, self.connections.reads));
                run.measuring = true;
            }
            let enough = match chat.until {
                Until::Time { .. } => elapsed >= warm_ns + measure_ns,
                Until::Messages(count) => run.accepted == count,
            };
            if let (None, true, Some((from, meter, accepted, reads))) = (end, enough, start) {
                (outcome.wall_ns, outcome.count) = (run.now - from, run.accepted - accepted);
                outcome.reads = self.connections.reads - reads;
                self.read_meter(meter, &mut outcome)?;
                (end, run.measuring) = (Some(run.now), false);
            }
            if end.is_some() && self.is_quiet(chat) {
                break;
            }
            if end.is_none() {
                self.send_due(&mut run)?;
            }
            self.hear_chat(&mut run)?;
            ensure!(
                run.now.saturating_sub(run.last) < PATIENCE_NS,
                "{} sent, {} accepted, then nothing",
                run.sent,
                run.accepted
            );
        }
        self.hold_to_account(&run)?;
        run.report(&mut outcome);
        Ok(outcome)
    }

    /// Sends what is due, all of a connection with one call.
    fn send_due(&mut self, run: &mut Run<'_>) -> Result<()> {
        let mut out = Vec::new();
        let senders = run.chat.senders.clone();
        if let Some(rate) = run.chat.rate {
            loop {
                let due = run.began + (run.sent as f64 * 1e9 / rate) as u64;
                if due > run.now || run.is_all_sent() {
                    return Ok(());
                }
                let slot = senders.start + run.sent as usize % senders.len();
                self.put(run, slot, due, &mut out);
                self.connections.send(slot, &out)?;
                out.clear();
            }
        }
        for slot in senders {
            while self.talk.talkers[slot].waiting.len() < run.chat.in_flight && !run.is_all_sent() {
                self.put(run, slot, run.now, &mut out);
            }
            if !out.is_empty() {
                self.connections.send(slot, &out)?;
                out.clear();
            }
        }
        Ok(())
    }

    /// Puts the next message of `slot` into `out`.
    fn put(&mut self, run: &mut Run<'_>, slot: usize, time: u64, out: &mut Vec<u8>) {
        let talker = &mut self.talk.talkers[slot];
        talker.number += 1;
        run.sent += 1;
        let number = talker.number;
        let (seq, conversation) = match run.chat.to {
            To::Absent(count) => {
                let who = number as usize % count;
                if who >= talker.absent.len() {
                    talker.absent.resize(who + 1, 0);
                }
                talker.absent[who] += 1;
                (Some(talker.absent[who]), format!("d:u{slot}:x{slot}-{who}"))
            }
            To::Partner => (None, pair(slot)),
        };
        talker.waiting.push_back(Waiting { number, time, seq });
        let data = run.pattern.make(Stamp { publisher: slot as u32, number, time });
        let msg_id = format!("{}-{slot}-{number}", self.setup.run);
        let frame = wire::send(u64::from(number), &conversation, &msg_id, &data);
        wire::put_client(self.setup.transport, &frame, out);
    }

    fn hear_chat(&mut self, run: &mut Run<'_>) -> Result<()> {
        let wait = if self.setup.spin { Duration::ZERO } else { Duration::from_millis(1) };
        let talk = &mut self.talk;
        let mut now = 0;
        let count = self.connections.turn(wait, |slot, conn, heard| {
            if now == 0 {
                now = host::now_ns();
            }
            talk.hear(run, slot, conn, &heard, now)
        })?;
        if count == 0 || matches!(run.chat.to, To::Absent(_)) {
            return Ok(());
        }
        for slot in 0..self.users {
            let talker = &mut self.talk.talkers[slot];
            if talker.heard.0 > talker.acked {
                talker.acked = talker.heard.0;
                self.connections.send_frame(slot, &wire::ack(&pair(slot), talker.acked))?;
            }
        }
        Ok(())
    }

    /// Whether every message has its answer and every accepted one its push.
    fn is_quiet(&self, chat: &Chat) -> bool {
        let talkers = &self.talk.talkers;
        let pushed = |slot: usize, talker: &Talker| {
            matches!(chat.to, To::Absent(_)) || talkers[slot ^ 1].heard.2 >= talker.told
        };
        talkers.iter().enumerate().all(|(slot, talker)| talker.waiting.is_empty() && pushed(slot, talker))
    }

    fn hold_to_account(&self, run: &Run<'_>) -> Result<()> {
        ensure!(run.accepted == run.sent, "{} accepted of {}", run.accepted, run.sent);
        for (at, seqs) in self.talk.pairs.iter().enumerate() {
            ensure!(seqs.count == seqs.max, "pair {at}: {} seqs up to {}", seqs.count, seqs.max);
        }
        for (slot, talker) in self.talk.talkers.iter().enumerate() {
            let came = self.talk.talkers[slot ^ 1].heard.2;
            ensure!(talker.told == came, "{} accepted from {slot}, {came} pushed", talker.told);
        }
        Ok(())
    }
}

impl Talk {
    fn hear(
        &mut self,
        run: &mut Run<'_>,
        slot: usize,
        conn: &mut Conn,
        heard: &Heard<'_>,
        now: u64,
    ) -> Result<()> {
        let Heard::Frame(view) = heard else { return surprise(slot, heard) };
        run.last = now;
        match view.kind {
            kind::SEND_ACK => self.accepted(run, slot, view, now),
            kind::PUSH => self.pushed(run, slot, conn, view, now),
            _ => surprise(slot, heard),
        }
    }

    fn accepted(&mut self, run: &mut Run<'_>, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        let talker = &mut self.talkers[slot];
        let at = talker.waiting.iter().position(|it| view.id == u64::from(it.number));
        let at = at.with_context(|| format!("{slot}: an answer to nothing, {}", view.id))?;
        // An answer that got lost between nodes is asked for again: then those behind it come first.
        ensure!(at == 0 || !run.in_order, "{slot}: answer {} came too early", view.id);
        let waiting = talker.waiting.remove(at).context("it is there")?;
        let seq = wire::number_of(view.body, 3);
        ensure!(wire::number_of(view.body, 5) == 0, "{slot}: {} was a duplicate", waiting.number);
        match waiting.seq {
            Some(expected) => ensure!(seq == expected, "{slot}: seq {seq} instead of {expected}"),
            None => {
                talker.told += 1;
                ensure!(self.pairs[slot / 2].note(seq), "{slot}: seq {seq} was given twice");
            }
        }
        run.accepted += 1;
        if run.measuring {
            run.ack.saturating_record((now.saturating_sub(waiting.time) / 1000).max(1));
        }
        Ok(())
    }

    fn pushed(
        &mut self,
        run: &mut Run<'_>,
        slot: usize,
        conn: &mut Conn,
        view: &View<'_>,
        now: u64,
    ) -> Result<()> {
        let push = wire::push_view(view.body).context("a push that is no protobuf")?;
        let stamp = run.pattern.check(push.data).with_context(|| format!("{slot}: damaged content"))?;
        ensure!(stamp.publisher as usize == slot ^ 1, "{slot}: a message of {}", stamp.publisher);
        let heard = &mut self.talkers[slot].heard;
        ensure!(push.seq > heard.0 && stamp.number > heard.1, "{slot}: seq {} after {}", push.seq, heard.0);
        *heard = (push.seq, stamp.number, heard.2 + 1);
        conn.received += 1;
        if run.measuring {
            run.push.saturating_record((now.saturating_sub(stamp.time) / 1000).max(1));
        }
        Ok(())
    }
}

impl<'a> Run<'a> {
    fn new(chat: &'a Chat, size: &usize) -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 120_000_000, 3);
        let now = host::now_ns();
        Ok(Self {
            chat,
            pattern: Pattern::new(*size),
            began: now,
            sent: 0,
            accepted: 0,
            ack: histogram()?,
            push: histogram()?,
            measuring: false,
            now,
            last: now,
            in_order: true,
        })
    }

    fn is_all_sent(&self) -> bool {
        matches!(self.chat.until, Until::Messages(count) if self.sent >= count)
    }

    fn report(&self, outcome: &mut Outcome) {
        outcome.offered = self.sent;
        outcome.p50_us = self.ack.value_at_quantile(0.5);
        outcome.p99_us = self.ack.value_at_quantile(0.99);
        outcome.max_us = self.ack.max();
        outcome.push_p50_us = self.push.value_at_quantile(0.5);
        outcome.push_p99_us = self.push.value_at_quantile(0.99);
        outcome.push_max_us = self.push.max();
    }
}

/// The conversation of `slot` and its neighbour.
fn pair(slot: usize) -> String {
    format!("d:u{}:u{}", slot & !1, slot | 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seq_counts_once_and_a_hole_shows() {
        let mut seqs = Seqs::default();
        assert!(seqs.note(1) && seqs.note(2) && seqs.note(200));
        assert!(!seqs.note(2), "given twice");
        assert!(!seqs.note(0), "there is no seq 0");
        assert_ne!(seqs.count, seqs.max);
    }
}
