//! The section `[log]`: by which rules the log is read.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::machine::ledger::LEDGER_NEWEST;

/// By which version of the ledger's rules the log is read; see "A new version" in `docs/cluster.md`.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Log {
    /// Up to which version the rules may be switched: `newest` = to whatever all live nodes know, or a number. The lowest of
    /// all live nodes counts, so one node holds back all. There is no way back: an older tidegate can't own what was switched.
    pub rules: String,
    /// For so long all live nodes must have agreed, in ms; longer than a node needs to notice one that has just started.
    pub rules_settle_ms: u64,
    /// When a message of the profile `cluster` is acked and delivered: `archived` = when Postgres has it; `decided` = as soon as its
    /// place is known and Kafka has it, the archive follows. The same on all nodes. `decided` is quicker and for trying out: ADR 16
    /// says what a reader may see late for some seconds after a crash. It needs kafka.replication 3 or more.
    pub answer: String,
    /// With `decided`: for so long after it took a partition over, in ms, an owner archives first; longer than other nodes need
    /// to hear of a new owner.
    pub archive_first_ms: u64,
    /// With `decided`: on fewer copies too. What a broker loses then was acked: only for a cluster that may lose messages.
    pub allow_one_copy: bool,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            rules: NEWEST.into(),
            rules_settle_ms: 60_000,
            answer: ARCHIVED.into(),
            archive_first_ms: 10_000,
            allow_one_copy: false,
        }
    }
}

const NEWEST: &str = "newest";
const DECIDED: &str = "decided";
const ARCHIVED: &str = "archived";

impl Log {
    /// The version that is wanted at most; none = it is no version that is known here.
    pub fn wanted(&self) -> Option<u32> {
        match self.rules.as_str() {
            NEWEST => Some(LEDGER_NEWEST),
            number => number.parse().ok().filter(|version| (1..=LEDGER_NEWEST).contains(version)),
        }
    }

    /// See `rules_settle_ms`.
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.rules_settle_ms)
    }

    /// See `answer` and `archive_first_ms`; none = never before the archive.
    pub fn answers_first(&self) -> Option<Duration> {
        (self.answer == DECIDED).then(|| Duration::from_millis(self.archive_first_ms))
    }

    /// What is wrong with answering first on a log with so many copies of each record, though it may be wished; none = nothing.
    pub fn one_copy(&self, replication: u32) -> Option<&'static str> {
        (self.answers_first().is_some() && replication < 3).then_some(
            "log.answer: `decided` acks what Kafka has, and with kafka.replication below 3 that may be one copy, so what a broker \
             loses was acked; set kafka.replication = 3 or more, or log.answer = `archived`",
        )
    }

    pub(super) fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.wanted().is_some(),
            &format!("log.rules: `newest`, or a version that this tidegate knows: 1 to {LEDGER_NEWEST}"),
        );
        need(
            (5_000..=86_400_000).contains(&self.rules_settle_ms),
            "log.rules_settle_ms: between 5 s and a day",
        );
        need([DECIDED, ARCHIVED].contains(&self.answer.as_str()), "log.answer: `decided` or `archived`");
        need(self.archive_first_ms <= 86_400_000, "log.archive_first_ms: at most a day");
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    #[test]
    fn rules_are_the_newest_or_a_version_that_is_known() {
        let wanted = |set: &str| Config::load(None, &[format!("log.rules={set}")]).map(|it| it.log.wanted());
        assert_eq!(Config::default().log.wanted(), Some(3));
        assert_eq!(wanted("newest").unwrap(), Some(3));
        assert_eq!(wanted("1").unwrap(), Some(1));
        for set in ["0", "4", "oldest"] {
            let refused = wanted(set).unwrap_err().to_string();
            assert!(refused.contains("log.rules: `newest`, or a version"), "{refused}");
        }
    }

    #[test]
    fn who_answers_first_has_two_copies_of_what_was_acked_or_says_that_it_may_be_lost() {
        let problem = |more: &[&str]| {
            let sets = ["node.profile=cluster", "kafka.brokers=[k1:9092]", "log.answer=decided"];
            let sets: Vec<String> = sets.iter().chain(more).map(|set| (*set).to_owned()).collect();
            Config::load(None, &sets).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(problem(&[]), "");
        for copies in ["kafka.replication=1", "kafka.replication=2"] {
            let refused = problem(&[copies]);
            assert!(
                refused.contains("kafka.replication = 3") && refused.contains("allow_one_copy"),
                "{refused}"
            );
            assert_eq!(problem(&[copies, "log.answer=archived"]), "");
            assert_eq!(
                problem(&[copies, "node.profile=single", "kafka.brokers=[]"]),
                "",
                "there it has no effect"
            );
            assert_eq!(problem(&[copies, "log.allow_one_copy=true"]), "");
        }
        assert!(problem(&["link.timeout_ms=499"]).contains("link.timeout_ms"));
    }
}
