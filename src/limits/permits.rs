//! Cluster scope at this node: what decides, and which keys wait for an ask.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    machine::permit::{LimitSource, PermitAsk, PermitRule},
};
use tokio::sync::Notify;

use super::{
    permit_table::{KeyAsk, PermitPlan},
    windows::RuleWindows,
};
use crate::{clock::Clock, live::Live};

/// Cluster scope of all rules of a node.
pub(super) struct PermitBoard {
    pub(super) plan: Live<PermitPlan>,
    state: Mutex<BoardState>,
    /// Notified when a key waits for an ask.
    pub(super) asked: Notify,
    /// Clock of the node: the time base of its shards.
    clock: Clock,
}

#[derive(Default)]
struct BoardState {
    /// Keys that wait for an ask, each once.
    keys: Vec<PendingKey>,
    /// Last number given to an entry.
    last_born: u64,
    /// Server that answered last.
    server: Option<u64>,
}

/// Key that waits for an ask.
pub(super) struct PendingKey {
    pub(super) windows: Arc<RuleWindows>,
    pub(super) key: u64,
}

/// Ask that was taken to be sent; its call has ended when it is dropped.
pub struct TakenAsk {
    pub(super) windows: Arc<RuleWindows>,
    pub(super) of: KeyAsk,
    pub(super) is_answered: bool,
}

impl Drop for TakenAsk {
    /// Wakes the requests that wait for the ask.
    fn drop(&mut self) {
        let mut stripe = self.windows.stripe(self.of.key);
        let ended = stripe.permits.as_mut().and_then(|table| table.handle_end(&self.of, self.is_answered));
        drop(stripe);
        drop(ended);
    }
}

impl TakenAsk {
    /// Returns the id of the rule.
    pub fn rule(&self) -> &Arc<str> {
        &self.windows.rule
    }

    /// Returns the hash of the subject, the same on all nodes.
    pub fn subject(&self) -> u128 {
        self.of.subject
    }

    /// Returns the limit of the rule.
    pub fn limit(&self) -> PermitRule {
        self.of.limit
    }

    /// Returns the ask.
    pub fn ask(&self) -> PermitAsk {
        self.of.ask
    }
}

impl PermitBoard {
    /// Creates the scope of a node that knows no other one.
    pub(super) fn new(node: u64, clock: Clock) -> Self {
        let plan = PermitPlan { node, nodes: [node].into(), ..PermitPlan::default() };
        Self { plan: Live::new(plan), state: Mutex::default(), asked: Notify::new(), clock }
    }

    /// Returns the time now.
    pub(super) fn now(&self) -> Time {
        (self.clock)()
    }

    /// Returns a number for a new entry.
    pub(super) fn next_born(&self) -> u64 {
        let mut state = self.state.lock();
        state.last_born += 1;
        state.last_born
    }

    /// Lists a key whose entry is not listed yet.
    pub(super) fn push(&self, windows: &Arc<RuleWindows>, key: u64) {
        self.state.lock().keys.push(PendingKey { windows: Arc::clone(windows), key });
        self.asked.notify_one();
    }

    /// Returns the listed keys, at most `most`; further ones stay.
    pub(super) fn take(&self, most: usize) -> Vec<PendingKey> {
        let mut state = self.state.lock();
        let taken = state.keys.len().min(most);
        let taken = state.keys.drain(..taken).collect();
        if !state.keys.is_empty() {
            self.asked.notify_one();
        }
        taken
    }

    /// Sets all live nodes, this one included, each by the hash of its id.
    pub(super) fn set_nodes(&self, nodes: &[u64]) {
        let _state = self.state.lock();
        if *self.plan.get().nodes != *nodes {
            self.plan.change(|plan| plan.nodes = nodes.into());
        }
    }

    /// Takes notice of an answer of the server with that number, or that calls fail at once.
    pub(super) fn handle_server(&self, server: Option<u64>, now: Time) {
        // Held over each change of the plan.
        let mut state = self.state.lock();
        let has_changed = match (server, state.server) {
            (Some(server), Some(before)) => server != before,
            _ => false,
        };
        state.server = server.or(state.server);
        let is_on_shares = self.plan.get().switch.source() == LimitSource::Shares;
        if server.is_none() || is_on_shares || has_changed {
            self.plan.change(|plan| {
                plan.switch.handle_breaker(server.is_none(), now);
                if has_changed {
                    plan.switch.handle_server_change();
                }
            });
        }
    }

    /// Returns to permits if the server has answered for long enough; returns what decides now.
    pub(super) fn handle_timeout(&self, now: Time) -> LimitSource {
        let _state = self.state.lock();
        let plan = self.plan.get();
        if plan.switch.poll_timeout().is_some_and(|at| at <= now) {
            self.plan.change(|plan| plan.switch.handle_timeout(now));
        }
        self.plan.get().switch.source()
    }
}
