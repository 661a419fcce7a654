//! One message at a time: the next one is published when all copies of the last were read and checked.

use super::{
    Driver,
    connections::{Conn, ConnEvent, Connections, surprise},
    inbox::{Entry, Inbox, Pull},
    talk::{Lag, PULL_ID, retry_at},
};
use crate::bench::{
    host,
    orders::Outcome,
    pattern::{Pattern, Stamp},
    wire::{self, View, kind},
};
use anyhow::{Context, Result, bail, ensure};
use std::{collections::BTreeMap, time::Duration};

/// Time after which a missing copy is lost.
const DELIVERY_TIMEOUT_NS: u64 = 10_000_000_000;

impl Driver {
    pub(super) fn fanout(&mut self, conversation: &str, messages: u32) -> Result<Outcome> {
        let users = self.users;
        let mut publisher = self.publisher.take().context("no publisher is connected")?;
        // A reader that never sleeps spares both servers the wake-ups, whose cost varies most.
        let wait = if self.setup.spin { Duration::ZERO } else { Duration::from_millis(100) };
        let mut outcome = Outcome::default();
        let mut members = Members { conversation, copies: 0, lagging: BTreeMap::new(), lag: Lag::default() };
        let reads = self.connections.reads;
        let meter = self.meter()?;
        let began = host::now_ns();
        for _ in 0..messages {
            let sent = host::now_ns();
            publisher.publish(&mut self.connections, 0, conversation, sent)?;
            let number = publisher.numbers[0];
            let mut accepted = !publisher.is_answered();
            members.copies = 0;
            while members.copies < users || !accepted {
                let pattern = &publisher.pattern;
                self.connections.turn(wait, |slot, conn, event| match &event {
                    _ if slot < users => members.receive(slot, conn, &event, number, pattern),
                    ConnEvent::Frame(view) if view.kind == kind::SEND_ACK => {
                        accepted = true;
                        Ok(())
                    }
                    event => surprise(slot, event),
                })?;
                members.pull(&mut self.connections)?;
                if host::now_ns() - sent > DELIVERY_TIMEOUT_NS {
                    let copies = members.copies;
                    bail!("message {number}: {copies} of {users} copies, accepted: {accepted}");
                }
            }
            outcome.count += members.copies as u64;
        }
        outcome.wall_ns = host::now_ns() - began;
        self.read_meter(&meter, &mut outcome)?;
        outcome.reads = self.connections.reads - reads;
        outcome.offered = u64::from(messages);
        members.lag.report(&mut outcome);
        self.publisher = Some(publisher);
        Ok(outcome)
    }
}

/// Receivers of the messages of an order.
struct Members<'a> {
    conversation: &'a str,
    /// Number of received copies of the last message.
    copies: usize,
    /// Inboxes of receivers that have something to pull.
    lagging: BTreeMap<usize, Inbox>,
    lag: Lag,
}

impl Members<'_> {
    fn receive(
        &mut self,
        slot: usize,
        conn: &mut Conn,
        event: &ConnEvent<'_>,
        number: u32,
        pattern: &Pattern,
    ) -> Result<()> {
        let ConnEvent::Frame(view) = event else { return surprise(slot, event) };
        match view.kind {
            kind::PUSH => match self.lagging.get_mut(&slot) {
                None => check(slot, conn, view, number, pattern).map(|()| self.copies += 1),
                Some(inbox) => {
                    let push = wire::push_view(view.body).context("a push that is no protobuf")?;
                    let stamp = stamp(slot, push.data, number, pattern)?;
                    let is_new = inbox.push(push.seq, stamp.number)?;
                    self.copies += usize::from(is_new);
                    self.lag.repeated += u64::from(!is_new);
                    self.settle(slot, conn);
                    Ok(())
                }
            },
            kind::BEHIND => {
                self.behind(slot, conn, view)?;
                self.settle(slot, conn);
                Ok(())
            }
            kind::PAGE if view.id == PULL_ID => {
                self.page(slot, view, number, pattern)?;
                self.settle(slot, conn);
                Ok(())
            }
            kind::ERROR if view.id == PULL_ID => {
                let at = retry_at(view, host::now_ns()).with_context(|| format!("connection {slot}"))?;
                self.lagging.get_mut(&slot).context("a refusal of nothing")?.refused(at);
                Ok(())
            }
            _ => surprise(slot, event),
        }
    }

    fn behind(&mut self, slot: usize, conn: &Conn, view: &View<'_>) -> Result<()> {
        self.lag.behinds += 1;
        let name = wire::conversation_of(view.body);
        ensure!(name == Some(self.conversation), "connection {slot}: {name:?} lacks messages");
        let max_seq = wire::number_of(view.body, 2);
        // A receiver that has nothing yet lacks the message just published, which is the last.
        let after = if conn.seq == 0 { max_seq.saturating_sub(1) } else { conn.seq };
        let inbox = self.lagging.entry(slot).or_insert_with(|| Inbox::after(after, conn.number));
        inbox.behind(max_seq, host::now_ns());
        Ok(())
    }

    fn page(&mut self, slot: usize, view: &View<'_>, number: u32, pattern: &Pattern) -> Result<()> {
        let page = wire::page_view(view.body).context("a page that is no protobuf")?;
        ensure!(!page.has_losses, "connection {slot}: a page names messages that nobody took away");
        let mut entries = Vec::new();
        for push in &page.entries {
            let number = stamp(slot, push.data, number, pattern)?.number;
            entries.push(Entry { seq: push.seq, own: false, number });
        }
        let inbox = self.lagging.get_mut(&slot).context("a page of nothing")?;
        let mut fresh = 0;
        let taken = inbox.page(&entries, host::now_ns(), |_| fresh += 1);
        taken.with_context(|| format!("connection {slot}"))?;
        self.copies += fresh;
        self.lag.pulled += fresh as u64;
        Ok(())
    }

    /// Ends the lag of a receiver that has everything.
    fn settle(&mut self, slot: usize, conn: &mut Conn) {
        if let Some(inbox) = self.lagging.get(&slot).filter(|inbox| inbox.is_whole()) {
            (conn.seq, conn.number) = inbox.position();
            self.lagging.remove(&slot);
        }
    }

    /// Sends the pulls that are due.
    fn pull(&mut self, connections: &mut Connections) -> Result<()> {
        if self.lagging.is_empty() {
            return Ok(());
        }
        let now = host::now_ns();
        for (slot, inbox) in &mut self.lagging {
            inbox.check(now).with_context(|| format!("connection {slot}"))?;
            if let Some(Pull { cursor, limit }) = inbox.pull(now) {
                self.lag.pulls += 1;
                connections.send_frame(*slot, &wire::pull(PULL_ID, self.conversation, cursor, limit))?;
            }
        }
        Ok(())
    }
}

/// Checks that a copy is the message just published, intact, received once, and next in its conversation.
fn check(slot: usize, conn: &mut Conn, view: &View<'_>, number: u32, pattern: &Pattern) -> Result<()> {
    let push = wire::push_view(view.body).context("a push that is no protobuf")?;
    stamp(slot, push.data, number, pattern)?;
    ensure!(conn.number + 1 == number, "connection {slot}: got message {number} after {}", conn.number);
    ensure!(
        conn.seq == 0 || push.seq == conn.seq + 1,
        "connection {slot}: seq {} after {}",
        push.seq,
        conn.seq
    );
    (conn.number, conn.seq) = (number, push.seq);
    Ok(())
}

/// Returns the header of the content, which has to be that of the message just published.
fn stamp(slot: usize, data: &[u8], number: u32, pattern: &Pattern) -> Result<Stamp> {
    let stamp = pattern.check(data).with_context(|| format!("connection {slot}: damaged content"))?;
    ensure!(stamp.number == number, "connection {slot}: got message {}, wanted {number}", stamp.number);
    Ok(stamp)
}
