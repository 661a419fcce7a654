//! Section `[log]`: version of the ledger's rules, when messages are acked, and the log on stderr.

use std::{io::IsTerminal as _, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate_protocol::machine::ledger::LEDGER_NEWEST;
use tracing_subscriber::EnvFilter;

/// Version of the ledger's rules, when messages are acked (see "A new version" in `docs/cluster.md`), and the log on
/// stderr.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct LogConfig {
    /// Newest version that the rules may be switched to: `newest`, which is the newest that all live nodes know, or a
    /// number. The lowest value among all live nodes applies, so one node can hold back the others. A switch is
    /// final: an older tidegate can't own a switched partition.
    pub rules: String,
    /// How long all live nodes must have agreed, in ms. Must exceed the time to discover a new node. A single node waits as
    /// long with an existing log, and can be replaced by its former version until then.
    pub rules_settle_ms: u64,
    /// When a message of profile `cluster` is acked and delivered. `archived`: once Postgres has it. `decided`: once
    /// Kafka has it and its seq is known; the archive follows. Must be the same on all nodes. `decided` is faster,
    /// but experimental: ADR 16 lists what a reader may see late for some seconds after a crash. It needs
    /// kafka.replication 3 or more.
    pub answer: String,
    /// With `decided`: how long an owner still archives first after a take-over, in ms. Must exceed the time in which
    /// other nodes discover a new owner.
    pub archive_first_ms: u64,
    /// With `decided`: allows fewer than three copies. A broker that is lost then takes acked messages with it; only
    /// for a cluster that may lose messages.
    pub allow_one_copy: bool,
    /// Lines on stderr: `text`; `json`, one object a line; `auto`: `text` in a terminal, `json` elsewhere.
    pub format: String,
    /// Filter of the lines on stderr, such as `info` or `warn,tidegate::login=debug`. The environment variable
    /// `TIDEGATE_LOG` wins.
    pub filter: String,
}

/// Form of the lines on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            rules: RULES_NEWEST.into(),
            rules_settle_ms: 60_000,
            answer: ANSWER_ARCHIVED.into(),
            archive_first_ms: 10_000,
            allow_one_copy: false,
            format: FORMAT_AUTO.into(),
            filter: "info,fjall=warn,lsm_tree=warn".into(),
        }
    }
}

const RULES_NEWEST: &str = "newest";
const ANSWER_DECIDED: &str = "decided";
const ANSWER_ARCHIVED: &str = "archived";
const FORMAT_AUTO: &str = "auto";
const FORMAT_JSON: &str = "json";
const FORMAT_TEXT: &str = "text";

impl LogConfig {
    /// Returns the newest version to switch to; `None` if the setting names no version that this build knows.
    pub fn wanted(&self) -> Option<u32> {
        match self.rules.as_str() {
            RULES_NEWEST => Some(LEDGER_NEWEST),
            number => number.parse().ok().filter(|version| (1..=LEDGER_NEWEST).contains(version)),
        }
    }

    /// Returns the form of the lines on stderr.
    pub fn format(&self) -> LogFormat {
        match self.format.as_str() {
            FORMAT_JSON => LogFormat::Json,
            FORMAT_TEXT => LogFormat::Text,
            _ if std::io::stderr().is_terminal() => LogFormat::Text,
            _ => LogFormat::Json,
        }
    }

    /// Returns how long all live nodes must have agreed on a version.
    pub fn settle(&self) -> Duration {
        Duration::from_millis(self.rules_settle_ms)
    }

    /// Returns how long a new owner archives first; `None` if owners always archive before they answer.
    pub fn answers_first(&self) -> Option<Duration> {
        (self.answer == ANSWER_DECIDED).then(|| Duration::from_millis(self.archive_first_ms))
    }

    /// Returns why `replication` is too low to ack before the archive; `None` if it is not, or if acks wait for the
    /// archive.
    pub fn low_replication(&self, replication: u32) -> Option<&'static str> {
        (self.answers_first().is_some() && replication < 3).then_some(
            "log.answer: with `decided` and kafka.replication below 3, Kafka may have one copy of an acked message, and a lost \
             broker loses it; set kafka.replication = 3 or more, or log.answer = `archived`",
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
        need(
            [ANSWER_DECIDED, ANSWER_ARCHIVED].contains(&self.answer.as_str()),
            "log.answer: `decided` or `archived`",
        );
        need(self.archive_first_ms <= 86_400_000, "log.archive_first_ms: at most a day");
        need(
            [FORMAT_AUTO, FORMAT_JSON, FORMAT_TEXT].contains(&self.format.as_str()),
            "log.format: `auto`, `text` or `json`",
        );
        if let Err(error) = EnvFilter::try_new(&self.filter) {
            need(false, &format!("log.filter: {error}; write a level, or target=level, separated by commas"));
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::machine::ledger::LEDGER_NEWEST;

    use super::super::Config;

    #[test]
    fn rules_accept_newest_or_a_known_version() {
        let wanted = |set: &str| Config::load(None, &[format!("log.rules={set}")]).map(|it| it.log.wanted());
        assert_eq!(Config::default().log.wanted(), Some(LEDGER_NEWEST));
        assert_eq!(wanted("newest").unwrap(), Some(LEDGER_NEWEST));
        assert_eq!(wanted("1").unwrap(), Some(1));
        for set in ["0", &(LEDGER_NEWEST + 1).to_string(), "oldest"] {
            let refused = wanted(set).unwrap_err().to_string();
            assert!(refused.contains("log.rules: `newest`, or a version"), "{refused}");
        }
    }

    #[test]
    fn answer_decided_needs_three_copies_or_allow_one_copy() {
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
                "`log.answer` has no effect on a single node"
            );
            assert_eq!(problem(&[copies, "log.allow_one_copy=true"]), "");
        }
        assert!(problem(&["link.timeout_ms=499"]).contains("link.timeout_ms"));
    }
}
