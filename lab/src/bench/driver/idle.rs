//! Quiet clients, which only send a heartbeat now and then, evenly spread.

use super::{
    Driver,
    connections::{ConnEvent, surprise},
};
use crate::bench::{
    host,
    orders::{Outcome, Peer},
    wire::{self, kind},
};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Returns the empty frame, which is a ping.
pub(crate) fn beat(transport: wire::BenchTransport) -> Vec<u8> {
    let mut beat = Vec::new();
    wire::put_client(transport, &[], &mut beat);
    beat
}

impl Driver {
    pub(super) fn idle(&mut self, heartbeat_ms: u64, ms: u64) -> Result<Outcome> {
        let raw = matches!(self.setup.peer, Peer::Echo { .. });
        let beat = beat(self.setup.transport);
        let users = self.users as u64;
        let mut outcome = Outcome::default();
        let meter = self.meter()?;
        let began = host::now_ns();
        let end = began + ms * 1_000_000;
        let (mut sent, mut heard_back) = (0u64, 0u64);
        loop {
            let now = host::now_ns();
            // Heartbeat `sent` is due at its share of the interval.
            let due = ((now.min(end) - began) as u128 * u128::from(users)
                / u128::from(heartbeat_ms * 1_000_000)) as u64;
            while sent < due {
                self.connections.send((sent % users) as usize, &beat)?;
                sent += 1;
            }
            if now >= end && heard_back >= sent {
                break;
            }
            ensure!(now < end + 5_000_000_000, "{heard_back} answers to {sent} heartbeats");
            self.connections.turn(Duration::from_millis(1), |slot, _, event| {
                match &event {
                    ConnEvent::Frame(view) if view.kind == kind::PONG => heard_back += 1,
                    ConnEvent::Bytes(_) if raw => heard_back += 1,
                    other => surprise(slot, other)?,
                }
                Ok(())
            })?;
        }
        ensure!(heard_back == sent, "{heard_back} answers to {sent} heartbeats");
        outcome.wall_ns = host::now_ns() - began;
        outcome.count = sent;
        self.read_meter(&meter, &mut outcome)?;
        Ok(outcome)
    }
}
