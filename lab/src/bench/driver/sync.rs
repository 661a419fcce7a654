//! A client that comes back: its login, then the sync of all its conversations.

use super::{
    Driver,
    connections::{ConnEvent, surprise},
    establish,
};
use crate::bench::{
    host,
    orders::Outcome,
    wire::{self, kind},
};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Time after which a sync has failed.
const SYNC_TIMEOUT_NS: u64 = 60_000_000_000;

impl Driver {
    /// Measures the time from `Sync` to `SyncEnd` as the wall time of the outcome, and the login before it as `max_us`.
    pub(super) fn sync(&mut self, user: usize) -> Result<Outcome> {
        self.connections.hang_up();
        (self.users, self.publisher) = (0, None);
        let mut plan = establish::Plan::keep("u", 1, 1);
        plan.first = user;
        let slot = self.connections.len();
        let login = establish::establish(&mut self.connections, &self.setup, &plan)?;
        let meter = self.meter()?;
        let began = host::now_ns();
        self.connections.send_frame(slot, &wire::sync(7))?;
        let mut outcome = Outcome { max_us: login.wall_ns / 1000, ..Outcome::default() };
        let mut ended = false;
        while !ended {
            self.connections.turn(Duration::from_millis(10), |slot, _, event| match &event {
                ConnEvent::Frame(view) if view.kind == kind::CONVERSATION_STATE => {
                    ensure!(wire::number_of(view.body, 2) > 0, "a conversation without messages");
                    outcome.count += 1;
                    outcome.reply_bytes += wire::framed_len(crate::bench::wire::BenchTransport::Tcp, view);
                    Ok(())
                }
                ConnEvent::Frame(view) if view.kind == kind::SYNC_END => {
                    ended = true;
                    Ok(())
                }
                event => surprise(slot, event),
            })?;
            ensure!(host::now_ns() - began < SYNC_TIMEOUT_NS, "{} states, then nothing", outcome.count);
        }
        outcome.wall_ns = host::now_ns() - began;
        self.read_meter(&meter, &mut outcome)?;
        self.connections.hang_up();
        Ok(outcome)
    }
}
