//! One rule: whose requests it counts, how many it admits in its window, and what happens with the others.

use std::{collections::BTreeSet, fmt, net::IpAddr, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Visitor};
use tidegate_protocol::machine::{rate::RateLimit, threshold::DynamicLimit};

use super::kinds::{CallSet, LimitLevel};
use crate::networks::Networks;

/// Prefix by which IPv6 addresses count if a rule names no other one: a subscriber has a /64.
pub(super) const IPV6_PREFIX_DEFAULT: u8 = 64;

/// Memory of a subject in cluster scope, in subjects in node scope.
const KEY_WEIGHT: usize = 5;

/// Rule as it is written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct RuleForm {
    /// Id; `None` where the rule is named otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub(super) level: String,
    pub(super) calls: Vec<String>,
    pub(super) window: String,
    #[serde(deserialize_with = "whole")]
    pub(super) limit: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) action: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_wait: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) scope: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) dry_run: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) except: Vec<String>,
    #[serde(default, deserialize_with = "whole_if_any", skip_serializing_if = "Option::is_none")]
    pub(super) keys_max: Option<i64>,
    #[serde(default, deserialize_with = "whole_if_any", skip_serializing_if = "Option::is_none")]
    pub(super) prefix: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) dynamic: Option<DynamicForm>,
}

/// Bounds of a limit that follows the load, as they are written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DynamicForm {
    #[serde(deserialize_with = "whole")]
    pub(super) min: i64,
    #[serde(deserialize_with = "whole")]
    pub(super) max: i64,
}

/// Reads a whole number. The reader of files would otherwise round others, and take `true` for 1.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
    struct Whole;
    impl Visitor<'_> for Whole {
        type Value = i64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a whole number")
        }

        fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
            Ok(number)
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<i64, E> {
            i64::try_from(number).map_err(|_| E::custom("a whole number that is less large"))
        }
    }
    from.deserialize_any(Whole)
}

fn whole_if_any<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    whole(from).map(Some)
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Nodes whose requests a rule counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitScope {
    /// Each node counts for itself.
    #[default]
    Node,
    /// All nodes of the cluster.
    Cluster,
}

impl LimitScope {
    /// Returns the name in rules and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Cluster => "cluster",
        }
    }
}

/// Place where a rule is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// File of this node.
    File,
    /// Admin API, for all nodes.
    Api,
}

impl RuleSource {
    /// Returns the name in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
        }
    }
}

/// Rule as it is in force.
#[derive(Clone, Debug)]
pub struct LimitRule {
    /// Id, unique among the rules of a node.
    pub id: Box<str>,
    /// Level of its subjects.
    pub level: LimitLevel,
    /// Nodes whose requests it counts together.
    pub scope: LimitScope,
    /// Calls that it counts.
    pub calls: CallSet,
    /// Number of requests that it admits in any window.
    pub limit: RateLimit,
    /// Bounds within which the limit follows the load of the node; `None` if it does not.
    pub dynamic: Option<DynamicLimit>,
    /// Longest time for which it lets a message wait instead of refusing it; `None` if it refuses at once.
    pub max_wait: Option<Duration>,
    /// Whether it only counts what it would refuse.
    pub is_dry_run: bool,
    /// Subjects that it does not count.
    pub except: Exceptions,
    /// Most subjects that it counts separately; further ones share windows.
    pub keys_max: usize,
    /// Number of the first bits of an IPv6 address that make a subject, for a rule of addresses.
    pub prefix: u8,
    /// Place where the rule is written.
    pub source: RuleSource,
    /// Rule as it is written.
    pub form: Box<RuleForm>,
}

/// Subjects that a rule does not count.
#[derive(Clone, Debug, Default)]
pub struct Exceptions {
    /// Names of subjects; those of devices are users.
    pub names: BTreeSet<Box<str>>,
    /// Networks, for a rule of addresses.
    pub networks: Networks,
}

impl Exceptions {
    /// Returns whether the subject with the name is excepted.
    pub fn has(&self, name: &str) -> bool {
        !self.names.is_empty() && self.names.contains(name)
    }

    /// Returns whether the address is excepted.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.networks.contains(address)
    }

    /// Returns whether all subjects are counted.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.networks.is_empty()
    }
}

impl LimitRule {
    /// Returns whether the windows of `other` go on with this rule: it counts the same subjects in the same way.
    pub fn continues(&self, other: &Self) -> bool {
        let counted = |rule: &Self| {
            let Self { id, level, scope, limit, keys_max, prefix, dynamic, .. } = rule;
            (id.clone(), *level, *scope, *limit, *keys_max, *prefix, dynamic.is_some())
        };
        counted(self) == counted(other)
    }

    /// Returns the memory of its subjects, in subjects of a rule in node scope.
    pub(super) fn weight(&self) -> usize {
        match self.scope {
            LimitScope::Node => self.keys_max,
            LimitScope::Cluster => self.keys_max.saturating_mul(KEY_WEIGHT),
        }
    }
}
