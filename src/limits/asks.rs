//! Asks for permits of rules in cluster scope, for the task that carries them to Redis.

use std::sync::Arc;

use tidegate_protocol::machine::permit::{Grant, LimitSource};

use super::{guard::RuleGuard, permits::TakenAsk};

impl RuleGuard {
    /// Waits until a key has to be asked for; never ends on a single node.
    pub async fn asked(&self) {
        match &self.board {
            Some(board) => board.asked.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the asks that are due, at most `most`. They are sent at once: permits are valid from now on.
    pub fn take_asks(&self, most: usize) -> Vec<TakenAsk> {
        let Some(board) = &self.board else { return Vec::new() };
        let plan = board.plan.get();
        let mut asks = Vec::new();
        for pending in board.take(most) {
            let mut stripe = pending.windows.stripe(pending.key);
            let now = board.now();
            let Some(table) = &mut stripe.permits else { continue };
            if let Some(of) = table.take_ask(pending.key, &plan, now) {
                asks.push(TakenAsk { windows: Arc::clone(&pending.windows), of, is_answered: false });
            }
        }
        asks
    }

    /// Takes the answers to asks, in their order, of the server with the number `server`, and wakes the requests that wait
    /// for them.
    pub fn handle_grants(&self, asks: Vec<TakenAsk>, grants: &[Grant], server: u64) {
        let Some(board) = &self.board else { return };
        // First, so that the keys that this server does not know are charged before they are used.
        board.handle_server(Some(server), board.now());
        for (mut ask, grant) in asks.into_iter().zip(grants) {
            let mut stripe = ask.windows.stripe(ask.of.key);
            let Some(table) = &mut stripe.permits else { continue };
            if table.handle_answer(&ask.of, grant, board.now()) {
                board.push(&ask.windows, ask.of.key);
            }
            drop(stripe);
            ask.is_answered = true;
        }
    }

    /// Takes notice that Redis is unavailable: from now on shares decide.
    pub fn handle_unavailable(&self) {
        let Some(board) = &self.board else { return };
        board.handle_server(None, board.now());
    }

    /// Sets all live nodes, this one included, by the hashes of their ids.
    pub fn set_nodes(&self, nodes: &[u64]) {
        if let Some(board) = &self.board {
            board.set_nodes(nodes);
        }
    }

    /// Returns what decides in cluster scope, after a return to permits if it is time for that; `None` on a single node.
    pub fn poll_source(&self) -> Option<LimitSource> {
        let board = self.board.as_ref()?;
        let source = board.handle_timeout(board.now());
        self.metrics.limit_shares.set(if source == LimitSource::Shares { 1.0 } else { 0.0 });
        Some(source)
    }
}
