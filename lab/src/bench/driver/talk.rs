//! Conversations of a load generator: checks each answer and the order of pushes, and pulls each hole.

use super::{
    circle::Circle,
    connections::{Conn, ConnEvent, Connections, surprise},
    inbox::{Entry, Inbox, Pull},
};
use crate::bench::{
    orders::Outcome,
    pattern::Pattern,
    wire::{self, View, kind},
};
use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use std::collections::{BTreeMap, VecDeque};

/// Request id of a pull, of which a connection has one at a time; ids of sends are smaller.
pub(super) const PULL_ID: u64 = 1 << 40;
/// Delay before a pull is repeated when the node names none.
const PULL_RETRY_MS: u64 = 20;

/// State of all conversations, across orders, because numbers and seqs go on.
#[derive(Default)]
pub(super) struct Talk {
    pub(super) talkers: Vec<Talker>,
    pub(super) circle: Circle,
    /// Conversations of two connections, by index.
    conversations: Vec<Conversation>,
    /// Conversations with messages to pull, for each connection that has any; the first one is being pulled.
    lagging: BTreeMap<usize, VecDeque<usize>>,
    /// Members that may have something to ack.
    changed: Vec<Member>,
    unanswered: u64,
    /// Messages between connections that were accepted, and that arrived.
    accepted: u64,
    arrived: u64,
}

/// A connection that sends.
#[derive(Default)]
pub(super) struct Talker {
    /// Number of the last message: its request id, the end of its `msg_id`, and its number for the receiver.
    pub(super) number: u32,
    waiting: VecDeque<Waiting>,
    /// Number of messages to each absent user; their seqs are 1, 2, 3, … because no other user writes there.
    absent: Vec<u64>,
}

/// A message without an answer.
struct Waiting {
    number: u32,
    time: u64,
    to: Addressee,
}

/// Recipient of a message.
#[derive(Clone, Copy)]
enum Addressee {
    /// An absent user of this connection; the message must get this seq.
    Absent { who: usize, seq: u64 },
    /// Another connection.
    Connected(Member),
}

impl Addressee {
    /// Returns whether both recipients of a connection are in the same conversation.
    fn is_same(self, other: Self) -> bool {
        match (self, other) {
            (Self::Absent { who: one, .. }, Self::Absent { who: other, .. }) => one == other,
            (Self::Connected(one), Self::Connected(other)) => one.index == other.index,
            _ => false,
        }
    }
}

/// A connection as a member of one conversation.
#[derive(Clone, Copy)]
struct Member {
    slot: usize,
    index: usize,
    side: usize,
}

/// A conversation of two connections.
#[derive(Default)]
struct Conversation {
    given: Seqs,
    inboxes: [Inbox; 2],
}

/// Seqs of a conversation: each is assigned once, and at the end there is no hole.
#[derive(Default)]
struct Seqs {
    bits: Vec<u64>,
    count: u64,
    max: u64,
}

impl Seqs {
    /// Notes `seq`. Returns false if it was assigned before.
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

/// Measurements of an order.
pub(super) struct Tally {
    pub(super) pattern: Pattern,
    /// Whether answers of a conversation come in the order of its messages, which holds for one node.
    pub(super) in_order: bool,
    pub(super) measuring: bool,
    pub(super) accepted: u64,
    /// Time of the last frame.
    pub(super) last: u64,
    ack: Histogram<u64>,
    push: Histogram<u64>,
    lag: Lag,
}

/// Pushes that the node left out, and how they came instead.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lag {
    pub(super) behinds: u64,
    pub(super) pulls: u64,
    pub(super) pulled: u64,
    pub(super) repeated: u64,
}

impl Lag {
    pub(super) fn report(self, outcome: &mut Outcome) {
        (outcome.behinds, outcome.pulls) = (self.behinds, self.pulls);
        (outcome.pulled, outcome.repeated) = (self.pulled, self.repeated);
    }
}

impl Tally {
    pub(super) fn new(size: usize, in_order: bool, now: u64) -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 120_000_000, 3);
        Ok(Self {
            pattern: Pattern::new(size),
            in_order,
            measuring: false,
            accepted: 0,
            last: now,
            ack: histogram()?,
            push: histogram()?,
            lag: Lag::default(),
        })
    }

    pub(super) fn report(&self, outcome: &mut Outcome) {
        outcome.p50_us = self.ack.value_at_quantile(0.5);
        outcome.p99_us = self.ack.value_at_quantile(0.99);
        outcome.max_us = self.ack.max();
        outcome.push_p50_us = self.push.value_at_quantile(0.5);
        outcome.push_p99_us = self.push.value_at_quantile(0.99);
        outcome.push_max_us = self.push.max();
        self.lag.report(outcome);
    }

    fn arrived(&mut self, time: u64, now: u64) {
        if self.measuring {
            self.push.saturating_record((now.saturating_sub(time) / 1000).max(1));
        }
    }
}

impl Talk {
    /// Adds the conversations of `users` connections.
    pub(super) fn reserve(&mut self, users: usize, conversations: usize) {
        self.circle = Circle::new(users);
        self.talkers.resize_with(users, Talker::default);
        let indices = self.conversations.len().max(conversations);
        self.conversations.resize_with(indices, Conversation::default);
    }

    /// Returns the number of unanswered messages of `slot`.
    pub(super) fn waiting(&self, slot: usize) -> usize {
        self.talkers[slot].waiting.len()
    }

    /// Notes the next message of `slot` to its absent user `who`. Returns their conversation.
    pub(super) fn write_absent(&mut self, slot: usize, who: usize, time: u64) -> String {
        let talker = &mut self.talkers[slot];
        if who >= talker.absent.len() {
            talker.absent.resize(who + 1, 0);
        }
        talker.absent[who] += 1;
        let to = Addressee::Absent { who, seq: talker.absent[who] };
        talker.waiting.push_back(Waiting { number: talker.number, time, to });
        self.unanswered += 1;
        format!("d:u{slot}:x{slot}-{who}")
    }

    /// Notes the next message of `slot` to the connection `other`. Returns their conversation.
    pub(super) fn write(&mut self, slot: usize, other: usize, time: u64) -> String {
        let (index, side) = self.circle.index(slot, other);
        let talker = &mut self.talkers[slot];
        let to = Addressee::Connected(Member { slot, index, side });
        talker.waiting.push_back(Waiting { number: talker.number, time, to });
        self.unanswered += 1;
        name(slot, other)
    }

    /// Handles an event of the connection `slot`.
    pub(super) fn receive(
        &mut self,
        tally: &mut Tally,
        slot: usize,
        conn: &mut Conn,
        event: &ConnEvent<'_>,
        now: u64,
    ) -> Result<()> {
        let ConnEvent::Frame(view) = event else { return surprise(slot, event) };
        tally.last = now;
        let done = match view.kind {
            kind::SEND_ACK => self.answer(tally, slot, view, now),
            kind::PUSH => {
                conn.received += 1;
                self.push(tally, slot, view, now)
            }
            kind::BEHIND => self.behind(tally, slot, view, now),
            kind::PAGE if view.id == PULL_ID => self.page(tally, slot, view, now),
            kind::ERROR if view.id == PULL_ID => self.pull_refused(slot, view, now),
            _ => return surprise(slot, event),
        };
        done.with_context(|| format!("connection {slot}"))
    }

    fn answer(&mut self, tally: &mut Tally, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        let talker = &mut self.talkers[slot];
        let at = talker.waiting.iter().position(|it| view.id == u64::from(it.number));
        let at = at.with_context(|| format!("an answer to nothing, {}", view.id))?;
        // Conversations are in several partitions, which answer independently. A lost answer between nodes is requested
        // again, and then answers of later messages come first.
        let to = talker.waiting[at].to;
        let is_early = talker.waiting.iter().take(at).any(|it| it.to.is_same(to));
        ensure!(!is_early || !tally.in_order, "answer {} came too early", view.id);
        let waiting = talker.waiting.remove(at).context("it is there")?;
        self.unanswered -= 1;
        let seq = wire::number_of(view.body, 3);
        ensure!(wire::number_of(view.body, 5) == 0, "{} was a duplicate", waiting.number);
        match waiting.to {
            Addressee::Absent { seq: expected, .. } => {
                ensure!(seq == expected, "seq {seq} instead of {expected}");
            }
            Addressee::Connected(member) => {
                self.accepted += 1;
                let conversation = &mut self.conversations[member.index];
                ensure!(conversation.given.note(seq), "seq {seq} was given twice");
                conversation.inboxes[member.side].accepted(seq, waiting.number)?;
                self.changed.push(member);
            }
        }
        tally.accepted += 1;
        if tally.measuring {
            tally.ack.saturating_record((now.saturating_sub(waiting.time) / 1000).max(1));
        }
        Ok(())
    }

    fn push(&mut self, tally: &mut Tally, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        let push = wire::push_view(view.body).context("a push that is no protobuf")?;
        let stamp = tally.pattern.check(push.data).context("damaged content")?;
        let member = self.member(slot, stamp.publisher as usize)?;
        if !self.inbox(member).push(push.seq, stamp.number)? {
            tally.lag.repeated += 1;
            return Ok(());
        }
        self.arrived += 1;
        self.changed.push(member);
        tally.arrived(stamp.time, now);
        Ok(())
    }

    fn behind(&mut self, tally: &mut Tally, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        tally.lag.behinds += 1;
        let name = wire::conversation_of(view.body).context("`behind` without a conversation")?;
        let member = self.member_of(slot, name)?;
        let inbox = self.inbox(member);
        inbox.behind(wire::number_of(view.body, 2), now);
        if !inbox.is_complete() {
            let lagging = self.lagging.entry(slot).or_default();
            if !lagging.contains(&member.index) {
                lagging.push_back(member.index);
            }
        }
        Ok(())
    }

    fn page(&mut self, tally: &mut Tally, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        let member = self.pulled(slot)?;
        let other = self.circle.other(member.index, member.side);
        let name = wire::conversation_of(view.body);
        ensure!(name == Some(&self::name(slot, other)), "a page of {name:?}");
        let page = wire::page_view(view.body).context("a page that is no protobuf")?;
        ensure!(!page.has_losses, "a page names messages that nobody took away");
        let (mut entries, mut times) = (Vec::new(), BTreeMap::new());
        for push in &page.entries {
            let stamp = tally.pattern.check(push.data).context("damaged content in a page")?;
            let own = stamp.publisher as usize == slot;
            ensure!(own || stamp.publisher as usize == other, "a message of {}", stamp.publisher);
            entries.push(Entry { seq: push.seq, own, number: stamp.number });
            times.insert(push.seq, stamp.time);
        }
        let mut fresh = 0;
        self.inbox(member).page(&entries, now, |entry| {
            fresh += 1;
            tally.arrived(times.get(&entry.seq).copied().unwrap_or(now), now);
        })?;
        (self.arrived, tally.lag.pulled) = (self.arrived + fresh, tally.lag.pulled + fresh);
        self.changed.push(member);
        Ok(())
    }

    fn pull_refused(&mut self, slot: usize, view: &View<'_>, now: u64) -> Result<()> {
        let at = retry_at(view, now)?;
        let member = self.pulled(slot)?;
        self.inbox(member).refused(at);
        Ok(())
    }

    /// Acks what has come, and pulls what is missing.
    pub(super) fn reply(&mut self, tally: &mut Tally, connections: &mut Connections, now: u64) -> Result<()> {
        for member in self.changed.drain(..) {
            let inbox = &mut self.conversations[member.index].inboxes[member.side];
            if let Some(seq) = inbox.ack() {
                let other = self.circle.other(member.index, member.side);
                connections.send_frame(member.slot, &wire::ack(&name(member.slot, other), seq))?;
            }
        }
        for (slot, lagging) in &mut self.lagging {
            while let Some(index) = lagging.front() {
                let side = self.circle.side(*index, *slot);
                let inbox = &mut self.conversations[*index].inboxes[side];
                if inbox.is_settled() {
                    lagging.pop_front();
                    continue;
                }
                let name = name(*slot, self.circle.other(*index, side));
                inbox.check(now).with_context(|| format!("connection {slot}, {name}"))?;
                if let Some(Pull { cursor, limit }) = inbox.pull(now) {
                    tally.lag.pulls += 1;
                    connections.send_frame(*slot, &wire::pull(PULL_ID, &name, cursor, limit))?;
                }
                break;
            }
        }
        self.lagging.retain(|_, lagging| !lagging.is_empty());
        Ok(())
    }

    /// Returns whether every message has its answer and every accepted one has arrived.
    pub(super) fn is_quiet(&self) -> bool {
        self.unanswered == 0 && self.arrived >= self.accepted && self.lagging.is_empty()
    }

    /// Fails unless every accepted message has arrived once, in its position.
    pub(super) fn check(&self) -> Result<()> {
        for (index, conversation) in self.conversations.iter().enumerate() {
            let Seqs { count, max, .. } = conversation.given;
            ensure!(count == max, "conversation {index}: {count} seqs up to {max}");
            for inbox in &conversation.inboxes {
                let complete = inbox.position().0;
                let is_whole = inbox.is_whole() && complete == max;
                ensure!(is_whole, "conversation {index}: seq {} of {max} is missing", complete + 1);
            }
        }
        let (accepted, arrived) = (self.accepted, self.arrived);
        ensure!(accepted == arrived, "{accepted} messages accepted, {arrived} arrived");
        Ok(())
    }

    fn inbox(&mut self, member: Member) -> &mut Inbox {
        &mut self.conversations[member.index].inboxes[member.side]
    }

    /// Returns `slot` as a member of its conversation with `other`.
    fn member(&self, slot: usize, other: usize) -> Result<Member> {
        ensure!(other < self.talkers.len() && other != slot, "a message of {other}");
        let (index, side) = self.circle.index(slot, other);
        ensure!(index < self.conversations.len(), "a message of {other}, to whom it does not talk");
        Ok(Member { slot, index, side })
    }

    fn member_of(&self, slot: usize, name: &str) -> Result<Member> {
        let user = |part: &str| part.strip_prefix('u')?.parse::<usize>().ok();
        let ends = name.strip_prefix("d:").and_then(|rest| rest.split_once(':'));
        let ends = ends.and_then(|(one, other)| Some((user(one)?, user(other)?)));
        match ends {
            Some((one, other)) if one == slot => self.member(slot, other),
            Some((one, other)) if other == slot => self.member(slot, one),
            _ => anyhow::bail!("the conversation {name}, of others"),
        }
    }

    /// Returns `slot` as a member of the conversation that it is pulling.
    fn pulled(&self, slot: usize) -> Result<Member> {
        let index = self.lagging.get(&slot).and_then(VecDeque::front);
        let index = *index.context("an answer to a pull that was not sent")?;
        Ok(Member { slot, index, side: self.circle.side(index, slot) })
    }
}

/// Returns the time to repeat a refused pull; fails if that would not help.
pub(super) fn retry_at(view: &View<'_>, now: u64) -> Result<u64> {
    ensure!(wire::number_of(view.body, 4) != 0, "a pull was refused: {}", wire::reason(view.body));
    Ok(now + wire::number_of(view.body, 5).max(PULL_RETRY_MS) * 1_000_000)
}

/// Returns the conversation of two connections: ids in byte order.
fn name(one: usize, other: usize) -> String {
    let (one, other) = (format!("u{one}"), format!("u{other}"));
    if one < other { format!("d:{one}:{other}") } else { format!("d:{other}:{one}") }
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

    #[test]
    fn conversations_are_found_by_their_names() {
        let mut talk = Talk::default();
        talk.reserve(12, 12);
        assert_eq!(name(9, 10), "d:u10:u9");
        let member = talk.member_of(9, "d:u10:u9").unwrap();
        assert_eq!((member.index, member.side), (9, 0));
        assert_eq!(talk.circle.other(member.index, member.side), 10);
        for other in ["d:u1:u2", "d:u9:x9-0", "g:bench", "d:u9:u99", "d:u9:u9", "d:u1:u9"] {
            assert!(talk.member_of(9, other).is_err(), "{other}");
        }
    }
}
