//! One message at a time: the next is published when all copies of the last were read and checked.

use super::{
    Driver,
    connections::{Conn, Heard, surprise},
};
use crate::bench::{
    host,
    orders::Outcome,
    pattern::Pattern,
    wire::{self, View, kind},
};
use anyhow::{Context, Result, bail, ensure};
use std::time::Duration;

/// A message whose copies have not all come by then is lost.
const PATIENCE_NS: u64 = 10_000_000_000;

impl Driver {
    pub(super) fn fanout(&mut self, conversation: &str, messages: u32) -> Result<Outcome> {
        let users = self.users;
        let mut publisher = self.publisher.take().context("no publisher is connected")?;
        // A reader that never sleeps spares both servers the wake-ups, whose cost scatters most.
        let wait = if self.setup.spin { Duration::ZERO } else { Duration::from_millis(100) };
        let mut outcome = Outcome::default();
        let reads = self.connections.reads;
        let meter = self.meter()?;
        let began = host::now_ns();
        for _ in 0..messages {
            let sent = host::now_ns();
            publisher.publish(&mut self.connections, 0, conversation, sent)?;
            let number = publisher.numbers[0];
            let (mut copies, mut accepted) = (0, !publisher.is_answered());
            while copies < users || !accepted {
                let pattern = &publisher.pattern;
                self.connections.turn(wait, |slot, conn, heard| match heard {
                    Heard::Frame(view) if slot < users && view.kind == kind::PUSH => {
                        copies += 1;
                        check(slot, conn, &view, number, pattern)
                    }
                    Heard::Frame(view) if slot >= users && view.kind == kind::SEND_ACK => {
                        accepted = true;
                        Ok(())
                    }
                    heard => surprise(slot, &heard),
                })?;
                if host::now_ns() - sent > PATIENCE_NS {
                    bail!("message {number}: {copies} of {users} copies, accepted: {accepted}");
                }
            }
            outcome.count += copies as u64;
        }
        outcome.wall_ns = host::now_ns() - began;
        self.read_meter(meter, &mut outcome)?;
        outcome.reads = self.connections.reads - reads;
        outcome.offered = u64::from(messages);
        self.publisher = Some(publisher);
        Ok(outcome)
    }
}

/// A copy is right when it is the message just published, whole, the first of it, and next in its conversation.
fn check(slot: usize, conn: &mut Conn, view: &View<'_>, number: u32, pattern: &Pattern) -> Result<()> {
    let push = wire::push_view(view.body).context("a push that is no protobuf")?;
    let stamp = pattern.check(push.data).with_context(|| format!("connection {slot}: damaged content"))?;
    ensure!(
        stamp.number == number && conn.number + 1 == number,
        "connection {slot}: got message {} after {}, wanted {number}",
        stamp.number,
        conn.number
    );
    ensure!(
        conn.seq == 0 || push.seq == conn.seq + 1,
        "connection {slot}: seq {} after {}",
        push.seq,
        conn.seq
    );
    (conn.number, conn.seq) = (number, push.seq);
    Ok(())
}
