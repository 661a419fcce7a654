//! Limits by rules: sliding windows by node, organisation, channel, user, device, conversation, address, content and key.
//!
//! An operator writes the rules into a file of each node, or sends them to the admin API for all nodes, see
//! `docs/limits.md`. Each rule has a table of windows of its own, in stripes
//! under short locks. A request that several rules concern takes the lock of each, in the order in which the rules were
//! made, and counts in all of them or in none: a limit of N admits exactly N, and a refused request uses up nothing.
//!
//! The windows are those of [`tidegate_protocol::machine::rate`]. A rule in cluster scope has permits of Redis instead, by
//! [`tidegate_protocol::machine::permit`]: a request whose permits are missing waits for an answer and is decided again.

mod asks;
mod book;
mod content;
mod dynamic;
mod file;
mod form;
mod guard;
mod keys;
mod kinds;
mod overlap;
mod permit_table;
#[cfg(test)]
mod permit_tests;
mod permits;
mod refusal;
mod refused;
mod rule;
mod subjects;
#[cfg(test)]
mod tests;
mod windows;

pub use self::{
    book::{RuleDraft, RuleState, RuleView},
    dynamic::{ProfileKey, StoredProfile},
    file::RuleSet,
    guard::RuleGuard,
    kinds::{CallSet, ConnectionKeys, LimitCall, LimitLevel},
    permit_table::PermitView,
    permits::TakenAsk,
    refusal::{AnswerWait, LimitRefusal, LimitWaits},
    refused::SubjectRefusals,
    rule::{LimitRule, LimitScope, RuleForm, RuleSource},
    subjects::{LimitContent, LimitSubjects},
    windows::{RuleTotals, RuleUse, SubjectState},
};
