//! One-to-one messages: sends what is due until the order is carried out and everything sent has arrived.

use super::{
    Driver,
    circle::{Circle, share},
    talk::Tally,
};
use crate::bench::{
    host,
    orders::{Chat, Outcome, Peer, To, Until},
    pattern::Stamp,
    wire,
};
use anyhow::{Result, bail, ensure};
use std::time::Duration;

/// Time after which a missing answer or push is lost.
const REPLY_TIMEOUT_NS: u64 = 10_000_000_000;
/// Most unanswered messages of a connection at a rate that the server can't sustain; more end the run.
const WAITING_MAX: usize = 65_536;

/// State of an order.
struct Run<'a> {
    chat: &'a Chat,
    tally: Tally,
    began: u64,
    sent: u64,
    /// Number of the last message of each sender before the order.
    before: Vec<u32>,
    /// Time of this turn.
    now: u64,
}

impl Driver {
    pub(super) fn chat(&mut self, chat: &Chat) -> Result<Outcome> {
        let mut run = self.begin(chat)?;
        let mut outcome = Outcome::default();
        let (warm_ns, measure_ns) = match chat.until {
            Until::Time { warm_ms, measure_ms } => (warm_ms * 1_000_000, measure_ms * 1_000_000),
            Until::Messages(_) | Until::Once => (0, u64::MAX / 4),
        };
        let wanted = self.wanted(chat);
        let mut start = None;
        let mut end = None;
        loop {
            run.now = host::now_ns();
            let elapsed = run.now - run.began;
            if start.is_none() && elapsed >= warm_ns {
                start = Some((run.now, self.meter()?, run.tally.accepted, self.connections.reads));
                run.tally.measuring = true;
            }
            let enough = match wanted {
                None => elapsed >= warm_ns + measure_ns,
                Some(count) => run.tally.accepted == count,
            };
            if let (None, true, Some((from, meter, accepted, reads))) = (end, enough, &start) {
                (outcome.wall_ns, outcome.count) = (run.now - from, run.tally.accepted - accepted);
                outcome.reads = self.connections.reads - reads;
                self.read_meter(meter, &mut outcome)?;
                (end, run.tally.measuring) = (Some(run.now), false);
            }
            if end.is_some() && self.talk.is_quiet() {
                break;
            }
            if end.is_none() {
                self.send_due(&mut run)?;
            }
            self.receive(&mut run)?;
            let Tally { last, accepted, .. } = run.tally;
            if run.now.saturating_sub(last) >= REPLY_TIMEOUT_NS {
                ensure!(accepted == run.sent, "{} sent, {accepted} accepted, then nothing", run.sent);
                self.talk.check()?;
                bail!("everything has come, and pulls are still open");
            }
        }
        ensure!(run.tally.accepted == run.sent, "{} accepted of {}", run.tally.accepted, run.sent);
        self.talk.check()?;
        outcome.offered = run.sent;
        run.tally.report(&mut outcome);
        Ok(outcome)
    }

    fn begin<'a>(&mut self, chat: &'a Chat) -> Result<Run<'a>> {
        let senders = chat.senders.len();
        ensure!(chat.senders.end <= self.users && self.users.is_multiple_of(2), "senders in pairs");
        let circle = Circle::new(self.users);
        let conversations = match chat.to {
            To::Absent(count) => {
                let is_raw = matches!(self.setup.peer, Peer::Log);
                ensure!(!is_raw || count == senders, "the raw log knows no conversations");
                ensure!(count >= senders, "{senders} senders and {count} people to write to");
                0
            }
            To::Partner => self.users,
            To::Among(count) => {
                ensure!(senders == self.users, "all connections are senders");
                ensure!(count >= self.users, "at least as many conversations as connections");
                ensure!(count <= circle.conversations_max(), "too few connections for {count} conversations");
                count
            }
        };
        self.talk.reserve(self.users, conversations);
        let now = host::now_ns();
        let in_order = !self.setup.address.contains(',');
        Ok(Run {
            chat,
            tally: Tally::new(self.setup.size, in_order, now)?,
            began: now,
            sent: 0,
            before: self.talk.talkers.iter().map(|talker| talker.number).collect(),
            now,
        })
    }

    /// Returns the number of messages that carry out the order, unless it depends on time.
    fn wanted(&self, chat: &Chat) -> Option<u64> {
        match chat.until {
            Until::Time { .. } => None,
            Until::Messages(count) => Some(count),
            Until::Once => Some(chat.senders.clone().map(|slot| self.degree(chat, slot) as u64).sum()),
        }
    }

    /// Returns the number of conversations that `slot` writes to.
    fn degree(&self, chat: &Chat, slot: usize) -> usize {
        match chat.to {
            To::Absent(count) => share(count, chat.senders.len(), slot - chat.senders.start),
            To::Partner => 1,
            To::Among(count) => self.talk.circle.degree(slot, count),
        }
    }

    /// Returns whether `slot` has written everything that the order asks of it.
    fn is_done(&self, run: &Run<'_>, slot: usize) -> bool {
        match run.chat.until {
            Until::Time { .. } => false,
            Until::Messages(count) => run.sent >= count,
            Until::Once => {
                let written = self.talk.talkers[slot].number - run.before[slot];
                written as usize >= self.degree(run.chat, slot)
            }
        }
    }

    /// Sends what is due, with one call per connection.
    fn send_due(&mut self, run: &mut Run<'_>) -> Result<()> {
        let mut out = Vec::new();
        let senders = run.chat.senders.clone();
        if let Some(rate) = run.chat.rate {
            loop {
                let due = run.began + (run.sent as f64 * 1e9 / rate) as u64;
                let slot = senders.start + run.sent as usize % senders.len();
                if due > run.now || self.is_done(run, slot) {
                    return Ok(());
                }
                let waiting = self.talk.waiting(slot);
                ensure!(waiting < WAITING_MAX, "connection {slot}: {waiting} messages without an answer");
                self.put(run, slot, due, &mut out);
                self.connections.send(slot, &out)?;
                out.clear();
            }
        }
        for slot in senders {
            while self.talk.waiting(slot) < run.chat.in_flight && !self.is_done(run, slot) {
                self.put(run, slot, run.now, &mut out);
            }
            if !out.is_empty() {
                self.connections.send(slot, &out)?;
                out.clear();
            }
        }
        Ok(())
    }

    /// Appends the next message of `slot` to `out`.
    fn put(&mut self, run: &mut Run<'_>, slot: usize, time: u64, out: &mut Vec<u8>) {
        let degree = self.degree(run.chat, slot);
        let talker = &mut self.talk.talkers[slot];
        talker.number += 1;
        run.sent += 1;
        let number = talker.number;
        let nth = number as usize % degree;
        let conversation = match run.chat.to {
            To::Absent(_) => self.talk.write_absent(slot, nth, time),
            To::Partner => self.talk.write(slot, slot ^ 1, time),
            To::Among(count) => {
                let other = self.talk.circle.partner(slot, count, nth);
                self.talk.write(slot, other, time)
            }
        };
        let data = run.tally.pattern.make(Stamp { publisher: slot as u32, number, time });
        let msg_id = format!("{}-{slot}-{number}", self.setup.run);
        let frame = wire::send(u64::from(number), &conversation, &msg_id, &data);
        wire::put_client(self.setup.transport, &frame, out);
    }

    fn receive(&mut self, run: &mut Run<'_>) -> Result<()> {
        let wait = if self.setup.spin { Duration::ZERO } else { Duration::from_millis(1) };
        let talk = &mut self.talk;
        let mut now = 0;
        self.connections.turn(wait, |slot, conn, event| {
            if now == 0 {
                now = host::now_ns();
            }
            talk.receive(&mut run.tally, slot, conn, &event, now)
        })?;
        talk.reply(&mut run.tally, &mut self.connections, run.now.max(now))
    }
}
