//! Visits: which connections are read in a turn, and how many of their frames.
//!
//! All connections share the budget of a turn, so no number of busy ones makes a turn long. A connection that the poll
//! reports is read at once, up to a small share, so that one with a single frame rarely waits. What is left of it then, and
//! what the budget does not cover, waits in a queue, whose connections get equal shares of the next budgets.

use std::{collections::VecDeque, mem};

use crate::{
    net::io::{Io, Ready},
    shard::{
        Shard,
        conn::{Conn, LISTED},
    },
};

/// Cost of the frames handled in one turn: one for each frame, and one for each KiB.
const TURN_BUDGET: usize = 256;

/// Part of it that is kept for the connections that wait.
const WAITING_SHARE: usize = 128;

/// Budget of a connection that the poll has reported.
const READY_BUDGET: usize = 32;

/// Least budget of a connection that has waited.
const VISIT_BUDGET_MIN: usize = 16;

/// Bytes for which a frame counts once more.
pub(super) const COST_BYTES: usize = 1024;

impl<I: Io> Shard<I> {
    /// Handles the reported connections, then those that wait to be read, within the budget of a turn.
    pub(in crate::shard) fn visit_conns(&mut self, ready: impl Iterator<Item = Ready>) {
        let mut left = TURN_BUDGET;
        for Ready { slot, readable, writable, ended } in ready {
            let mut budget = READY_BUDGET.min(left.saturating_sub(WAITING_SHARE));
            let before = budget;
            self.with_conn(slot, |shard, conn| {
                if writable {
                    conn.refused = false;
                    if conn.outbox.is_some() || shard.has_output(conn) {
                        shard.flush(conn);
                    }
                }
                // The poll reports the end of input once; reading continues until it is reached.
                conn.peer_ended |= ended;
                // One that waits already was read before others that wait.
                if readable && !shard.is_listed(conn) {
                    if budget > 0 {
                        shard.read(conn, &mut budget);
                        budget = budget.min(before - 1);
                    } else {
                        shard.list(conn);
                    }
                }
            });
            left -= before - budget;
        }
        let waiting = mem::take(&mut self.revisit);
        let share = (left / waiting.len().max(1)).max(VISIT_BUDGET_MIN);
        let mut waiting = waiting.into_iter();
        while left > 0
            && let Some(slot) = waiting.next()
        {
            self.visit_lag.count_visit(self.now);
            self.conns.hot[slot as usize].flags &= !LISTED;
            let mut budget = share;
            self.with_conn(slot, |shard, conn| shard.read(conn, &mut budget));
            left = left.saturating_sub((share - budget).max(1));
        }
        // The others come first in the next turn, before those that this turn has begun with.
        let others: VecDeque<u32> = waiting.collect();
        let begun = mem::replace(&mut self.revisit, others);
        self.revisit.extend(begun);
        self.visit_lag.begin(self.revisit.len(), self.now);
    }

    /// Lists the connection to be read in a later turn without a poll event.
    pub(in crate::shard) fn list(&mut self, conn: &Conn) {
        let hot = &mut self.conns.hot[conn.key.slot as usize];
        if hot.flags & LISTED == 0 {
            hot.flags |= LISTED;
            self.revisit.push_back(conn.key.slot);
        }
    }

    fn is_listed(&self, conn: &Conn) -> bool {
        self.conns.hot[conn.key.slot as usize].flags & LISTED != 0
    }
}
