//! Request and reply with one request outstanding a connection.

use super::{
    Driver,
    connections::{ConnEvent, Connections, surprise},
};
use crate::bench::{
    host,
    orders::{Outcome, Peer},
    wire::{self, kind},
};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Range of request ids, each of which takes two bytes.
const IDS: std::ops::Range<u32> = 128..16_000;

impl Driver {
    pub(super) fn echo(&mut self, ms: u64) -> Result<Outcome> {
        let raw = match &self.setup.peer {
            Peer::Echo { bytes } => Some(*bytes),
            _ => None,
        };
        let transport = self.setup.transport;
        let mut outcome = Outcome::default();
        let mut out = Vec::new();
        for slot in 0..self.users {
            self.connections.conn(slot)?.number = IDS.start;
            request(&mut self.connections, &mut out, slot, IDS.start, transport)?;
        }
        outcome.request_bytes = out.len();
        let meter = self.meter()?;
        let reads = self.connections.reads;
        let began = host::now_ns();
        let mut answered = Vec::new();
        let mut last = began;
        loop {
            let reply_bytes = &mut outcome.reply_bytes;
            self.connections.turn(Duration::from_millis(100), |slot, conn, event| {
                match &event {
                    ConnEvent::Frame(view) if view.kind == kind::PONG => {
                        ensure!(
                            view.id == u64::from(conn.number),
                            "connection {slot}: answer to {}",
                            view.id
                        );
                        *reply_bytes = wire::framed_len(transport, view);
                    }
                    ConnEvent::Bytes(bytes) if raw.is_some() => {
                        let mut wanted = Vec::with_capacity(32);
                        wire::put_client(transport, &wire::ping(u64::from(conn.number)), &mut wanted);
                        ensure!(
                            bytes.starts_with(&wanted) && raw == Some(bytes.len()),
                            "a reply that is no echo"
                        );
                        *reply_bytes = bytes.len();
                    }
                    other => return surprise(slot, other),
                }
                conn.number = if conn.number + 1 < IDS.end { conn.number + 1 } else { IDS.start };
                answered.push((slot, conn.number));
                Ok(())
            })?;
            let now = host::now_ns();
            if !answered.is_empty() {
                last = now;
            }
            ensure!(now - last < 10_000_000_000, "no answer for 10 s");
            outcome.count += answered.len() as u64;
            if now - began >= ms * 1_000_000 {
                break;
            }
            for (slot, id) in answered.drain(..) {
                request(&mut self.connections, &mut out, slot, id, transport)?;
            }
        }
        outcome.wall_ns = host::now_ns() - began;
        self.read_meter(&meter, &mut outcome)?;
        outcome.reads = self.connections.reads - reads;
        self.settle(answered.len())?;
        Ok(outcome)
    }

    /// Receives the answers that are still in flight.
    fn settle(&mut self, answered: usize) -> Result<()> {
        let mut missing = self.users.saturating_sub(answered);
        let began = host::now_ns();
        while missing > 0 {
            self.connections.turn(Duration::from_millis(100), |slot, _, event| {
                match &event {
                    ConnEvent::Frame(view) if view.kind == kind::PONG => missing = missing.saturating_sub(1),
                    ConnEvent::Bytes(_) => missing = missing.saturating_sub(1),
                    other => surprise(slot, other)?,
                }
                Ok(())
            })?;
            ensure!(host::now_ns() - began < 10_000_000_000, "{missing} requests were never answered");
        }
        Ok(())
    }
}

fn request(
    connections: &mut Connections,
    out: &mut Vec<u8>,
    slot: usize,
    id: u32,
    transport: wire::BenchTransport,
) -> Result<()> {
    out.clear();
    wire::put_client(transport, &wire::ping(u64::from(id)), out);
    connections.send(slot, out)
}
