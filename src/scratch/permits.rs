//! Permits of rules in cluster scope, as a `Scratch` grants them.

use std::sync::Arc;

use tidegate_protocol::machine::permit::{Grant, PermitAsk, PermitRule};

/// Most keys of one call of the script.
pub(super) const KEYS_PER_CALL_MAX: usize = 64;

/// Slots over which keys are spread.
const SLOTS: u128 = 64;

/// Ask for permits of one subject of a rule.
#[derive(Clone, Debug)]
pub struct PermitCall {
    /// Id of the rule.
    pub rule: Arc<str>,
    /// Hash of the subject, the same on all nodes.
    pub subject: u128,
    /// Limit of the rule.
    pub limit: PermitRule,
    /// Permits that are wanted, and uses that are charged.
    pub ask: PermitAsk,
}

impl PermitCall {
    /// Returns the number of the slot; the keys of one slot go into one call.
    pub(super) fn slot(&self) -> u8 {
        // Below 64, so it fits.
        (self.subject % SLOTS) as u8
    }

    /// Returns what follows the kind of the key, with the slot in braces.
    pub(super) fn key_name(&self) -> String {
        format!("{{l{:02}}}:{}:{:032x}", self.slot(), self.rule, self.subject)
    }
}

/// Answers to asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermitAnswers {
    /// One answer for each ask, in order.
    pub grants: Vec<Grant>,
    /// Number that is different after another server began to answer, which may lack what the former one granted.
    pub server: u64,
}
