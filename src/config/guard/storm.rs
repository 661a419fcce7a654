//! Section `[storm]`: how many messages make a storm of a group, and the memory that finding storms may use.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::machine::storm::{StormAction, StormRule};

/// Detection of message storms in groups; see docs/storms.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct StormConfig {
    /// Window in which messages are counted, in milliseconds.
    pub window_ms: u64,
    /// Largest number of messages within the window that is no storm.
    pub threshold: u32,
    /// The same for live rooms, whose storms are only reported; 0: rooms are not counted.
    pub room_threshold: u32,
    /// What is done about a storm, in addition to the event, the metrics and the log: `alert` notifies members or admins
    /// and is always done; `slow:<interval>`, such as `slow:5s`, admits one message per user and interval; `admins`
    /// lets only admins and owners post. Both end with the storm.
    pub actions: Vec<String>,
    /// Memory for the counts of all groups whose partitions this node owns. The quietest groups are forgotten above it.
    pub memory_bytes: u64,
    /// Whether the messages in the window of each group are mirrored in Redis, for other systems; only with
    /// node.profile = `cluster`.
    pub mirror: bool,
    /// Prefix of the mirrored keys, which the plain name of the group follows, such as `im:group_msg_events:`. Empty:
    /// the keys have the prefix of all others, see docs/redis.md.
    pub mirror_prefix: String,
}

impl Default for StormConfig {
    fn default() -> Self {
        Self {
            window_ms: 60_000,
            threshold: 100,
            room_threshold: 6_000,
            actions: vec!["alert".to_owned()],
            memory_bytes: 64 << 20,
            mirror: false,
            mirror_prefix: String::new(),
        }
    }
}

impl StormConfig {
    /// Returns the rule of a storm.
    pub fn rule(&self) -> StormRule {
        StormRule::new(self.threshold, Duration::from_millis(self.window_ms))
    }

    /// Returns the restriction of groups with a storm; `None` if storms are only reported.
    pub fn action(&self) -> Option<StormAction> {
        StormAction::parse_list(self.actions.iter().map(String::as_str)).ok().flatten()
    }

    pub(in crate::config) fn check(&self, profile: &str, need: &mut impl FnMut(bool, &str)) {
        need((100..=86_400_000).contains(&self.window_ms), "storm.window_ms: between 100 ms and one day");
        need((1..=100_000).contains(&self.threshold), "storm.threshold: between 1 and 100000");
        need(self.room_threshold <= 1_000_000, "storm.room_threshold: at most 1000000, or 0");
        let actions = StormAction::parse_list(self.actions.iter().map(String::as_str));
        need(actions.is_ok(), &format!("storm.actions: {}", actions.err().unwrap_or_default()));
        need(
            (1 << 20..=1 << 40).contains(&self.memory_bytes),
            "storm.memory_bytes: between 1048576 bytes and 1 TiB",
        );
        need(
            !self.mirror || profile == "cluster",
            "storm.mirror: only with node.profile = `cluster`; remove it, a single node has no Redis",
        );
        need(
            self.mirror || self.mirror_prefix.is_empty(),
            "storm.mirror_prefix: has no effect; set storm.mirror = true, or remove it",
        );
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
        need(
            self.mirror_prefix.len() <= 128 && self.mirror_prefix.bytes().all(is_plain),
            "storm.mirror_prefix: at most 128 printable ASCII characters, without spaces and braces",
        );
    }
}

#[cfg(test)]
mod tests {
    use crate::config::check::problem;

    #[test]
    fn mirror_needs_a_cluster_and_a_plain_prefix() {
        let cluster = ["node.profile=cluster", "kafka.brokers=[k1:9092]", "storm.mirror=true"];
        let with = |prefix: &str| problem(&[&cluster[..], &[prefix]].concat());
        assert_eq!(problem(&cluster), "");
        assert_eq!(with("storm.mirror_prefix=im:group_msg_events:"), "");
        assert!(with("storm.mirror_prefix=im:{tag}:").contains("storm.mirror_prefix: at most"));
        assert!(problem(&cluster[2..]).contains("storm.mirror: only with"));
        assert!(problem(&["storm.mirror_prefix=im:"]).contains("storm.mirror_prefix: has no effect"));
    }
}
