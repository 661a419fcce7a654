//! Publishing of the same message, as a frame to a raw loop, or as a `Send` to Tidegate.

use super::connections::{Connections, Phase};
use crate::bench::{
    host,
    orders::Setup,
    pattern::{Pattern, Stamp},
    wire::{self, BenchTransport, PushParts},
};
use anyhow::{Context, Result};

/// Publishers, and the number of the last message of each.
pub(super) struct Publisher {
    raw: bool,
    transport: BenchTransport,
    run: String,
    /// Slot of the first publisher.
    first: usize,
    /// Last number of each publisher, from 1.
    pub(super) numbers: Vec<u32>,
    pub(super) pattern: Pattern,
}

impl Publisher {
    /// Creates the publisher of a raw loop, whose control connection takes the slot after the last.
    pub(super) fn raw(connections: &mut Connections, setup: &Setup, control: &str) -> Result<Self> {
        let slot = connections.len();
        connections.open(slot, 0, Some(control.parse().context("control address")?))?;
        connections.conn(slot)?.phase = Phase::Ready;
        Ok(Self::new(setup, slot, 1, true))
    }

    /// Creates publishers on the logged-in connections from `first` on.
    pub(super) fn tidegate(setup: &Setup, first: usize, publishers: usize) -> Self {
        Self::new(setup, first, publishers, false)
    }

    fn new(setup: &Setup, first: usize, publishers: usize, raw: bool) -> Self {
        Self {
            raw,
            transport: setup.transport,
            run: setup.run.clone(),
            first,
            numbers: vec![0; publishers],
            pattern: Pattern::new(setup.size),
        }
    }

    /// Returns whether publishing connections get answers.
    pub(super) const fn is_answered(&self) -> bool {
        !self.raw
    }

    /// Publishes the next message of publisher `who`, stamped with `time`.
    pub(super) fn publish(
        &mut self,
        connections: &mut Connections,
        who: usize,
        to: &str,
        time: u64,
    ) -> Result<()> {
        self.numbers[who] += 1;
        let number = self.numbers[who];
        let data = self.pattern.make(Stamp { publisher: who as u32, number, time });
        let msg_id = format!("{}-{who}-{number}", self.run);
        let slot = self.first + who;
        if !self.raw {
            return connections.send_frame(slot, &wire::send(u64::from(number), to, &msg_id, &data));
        }
        let sender = format!("p{who}");
        let parts = PushParts {
            conversation: to,
            seq: u64::from(number),
            sender: &sender,
            msg_id: &msg_id,
            time: host::wall_ms(),
            data: &data,
        };
        let mut order = vec![0; 4];
        wire::put_server(self.transport, &wire::push(&parts), &mut order);
        let length = order.len() as u32 - 4;
        order[..4].copy_from_slice(&length.to_le_bytes());
        connections.send(slot, &order)
    }
}
