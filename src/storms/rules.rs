//! Rules of storms: those of the configuration, and those of single groups that replace them.

use std::{collections::HashMap, time::Duration};

use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    id::ConversationId,
    machine::storm::{StormAction, StormRule},
};

/// Smallest and largest window of a rule, in ms.
pub const STORM_WINDOW_MS: std::ops::RangeInclusive<u64> = 100..=86_400_000;

/// Smallest and largest threshold of a rule.
pub const STORM_THRESHOLD: std::ops::RangeInclusive<u32> = 1..=100_000;

/// Rules in force on a node.
#[derive(Clone, Debug)]
pub struct StormRules {
    /// Rule of groups without one of their own.
    pub default: StormRule,
    /// Action of groups without one of their own; `None` to report only.
    pub action: Option<StormAction>,
    /// Rules of single groups.
    pub groups: HashMap<ConversationId, GroupStormRule>,
}

/// Rule of a single group, as operators set it; what it leaves out is that of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GroupStormRule {
    /// Largest number of messages that is no storm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u32>,
    /// Length of the window, in ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_ms: Option<u64>,
    /// Actions as [`StormAction::parse_list`] reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actions: Option<Vec<String>>,
}

impl GroupStormRule {
    /// Reads a stored rule; `None` if it is none that this version knows.
    pub fn decode(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok().filter(|rule: &Self| rule.check().is_ok())
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The cure, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.threshold.is_some_and(|it| !STORM_THRESHOLD.contains(&it)) {
            return Err("threshold: between 1 and 100000");
        }
        if self.window_ms.is_some_and(|it| !STORM_WINDOW_MS.contains(&it)) {
            return Err("windowMs: between 100 and 86400000");
        }
        self.action().map(|_| ())
    }

    /// Returns the action: `None` if that of the configuration holds, `Some(None)` if storms are reported only.
    fn action(&self) -> Result<Option<Option<StormAction>>, &'static str> {
        let parse = |list: &Vec<String>| StormAction::parse_list(list.iter().map(String::as_str));
        self.actions.as_ref().map(parse).transpose()
    }
}

impl StormRules {
    /// Creates rules without any for single groups.
    pub fn new(default: StormRule, action: Option<StormAction>) -> Self {
        Self { default, action, groups: HashMap::new() }
    }

    /// Returns the rule of a group.
    pub fn of(&self, group: &ConversationId) -> StormRule {
        self.rule_with(self.groups.get(group))
    }

    /// Returns the rule of a group with this one of its own.
    pub fn rule_with(&self, own: Option<&GroupStormRule>) -> StormRule {
        let Some(own) = own else { return self.default };
        let window = own.window_ms.map_or(self.default.window(), Duration::from_millis);
        StormRule::new(own.threshold.unwrap_or(self.default.threshold()), window)
    }

    /// Returns the action of a group's storms; `None` to report only.
    pub fn action_of(&self, group: &ConversationId) -> Option<StormAction> {
        self.action_with(self.groups.get(group))
    }

    /// Returns the action of a group with this rule of its own; `None` to report only.
    pub fn action_with(&self, own: Option<&GroupStormRule>) -> Option<StormAction> {
        own.and_then(Self::set_action).unwrap_or(self.action)
    }

    /// Returns the action that an operator has set for a group's storms: `None` if there is none, `Some(None)` to report
    /// only.
    pub fn own_action_of(&self, group: &ConversationId) -> Option<Option<StormAction>> {
        self.groups.get(group).and_then(Self::set_action)
    }

    fn set_action(own: &GroupStormRule) -> Option<Option<StormAction>> {
        own.action().ok().flatten()
    }

    /// Returns whether a storm of some group restricts its posts to admins.
    pub fn may_restrict(&self) -> bool {
        let restricts = |own: &GroupStormRule| own.action() == Ok(Some(Some(StormAction::Admins)));
        self.action == Some(StormAction::Admins) || self.groups.values().any(restricts)
    }
}
