//! Section `[kafka]`: brokers, topics and authentication for the log of a cluster, node topics and events.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Kafka, for profile `cluster`; `tidegate topics ensure` creates the topics named here.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct KafkaConfig {
    /// Bootstrap brokers as host:port; required with node.profile = `cluster`, and only there.
    pub brokers: Vec<String>,
    /// Topic of the log.
    pub topic: String,
    /// Partitions of the log. A log can't be repartitioned; choose the number once, for the largest cluster it will
    /// serve.
    pub partitions: u32,
    /// Copies of each partition; with 3, two must confirm an append.
    pub replication: u32,
    /// How long the log keeps a record.
    pub retention_ms: u64,
    /// Bytes of each partition that the log keeps. 0: limited by time only.
    pub retention_bytes: u64,
    /// Largest record, in bytes; the topic is created to accept it.
    pub record_bytes_max: usize,
    /// Consumer group in which the nodes share the partitions; nothing else may use it.
    pub group: String,
    /// Session timeout of the group; a node that is silent for this long loses its partitions.
    pub session_ms: u64,
    /// Time for an owner to archive and reply after its partition is revoked.
    pub revoke_ms: u64,
    /// How long an append is retried; more than timing.reply_ms, after which the client gets UNKNOWN.
    pub delivery_ms: u64,
    /// Appended bytes that wait for Kafka; above it sends are refused with BUS_UNAVAILABLE.
    pub append_bytes_max: usize,
    /// Bytes read ahead of the ledger, per owned partition.
    pub read_ahead_bytes: usize,
    /// Brokers of the node topics, if they are on another cluster. Empty: the brokers of the log.
    pub node_brokers: Vec<String>,
    /// Prefix of the node topics; a dot and the node's id follow.
    pub node_topic: String,
    /// How long a node topic keeps a record.
    pub node_retention_ms: u64,
    /// Topic of the events. Empty: events are not sent to Kafka.
    pub event_topic: String,
    /// Partitions of the event topic; the events of a user are in one of them.
    pub event_partitions: u32,
    /// How long the event topic keeps an event.
    pub event_retention_ms: u64,
    /// Whether the event topic also has the changes of groups and their members; all nodes need the same. It needs events.feed.
    pub event_changes: bool,
    /// Topic of what was accepted, with the content of messages, such as `tidegate.messages`; all nodes need the same. It needs
    /// events.feed, and has as many partitions as the log. Who may read it reads all messages, also those that are recalled
    /// later. Empty: none.
    pub message_topic: String,
    /// How long the topic of messages keeps an event, and up to a quarter longer (at least a minute): Kafka removes whole segments.
    pub message_retention_ms: u64,
    /// Security protocol: `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`.
    pub security: String,
    /// SASL mechanism, with security = `sasl_…`: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
    pub sasl_mechanism: String,
    /// User name for SASL.
    pub sasl_username: String,
    /// File that holds the SASL password and nothing else.
    pub sasl_password_file: PathBuf,
    /// Trusted certificates, as PEM. Empty: those of the system.
    pub ca_file: PathBuf,
    /// Certificate of this node, as PEM. Empty: none.
    pub cert_file: PathBuf,
    /// Private key of that certificate, as PEM.
    pub key_file: PathBuf,
    /// Additional properties of the client library, as name=value. Properties on which a promise of the log depends
    /// are rejected.
    pub properties: Vec<String>,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: Vec::new(),
            topic: "tidegate.log".into(),
            partitions: 64,
            replication: 3,
            retention_ms: 7 * 24 * 3_600 * 1_000,
            retention_bytes: 0,
            record_bytes_max: 2 * 1024 * 1024,
            group: "tidegate.owners".into(),
            session_ms: 6_000,
            revoke_ms: 10_000,
            delivery_ms: 30_000,
            append_bytes_max: 64 * 1024 * 1024,
            read_ahead_bytes: 2 * 1024 * 1024,
            node_brokers: Vec::new(),
            node_topic: "tidegate.node".into(),
            node_retention_ms: 600_000,
            event_topic: "tidegate.events".into(),
            event_partitions: 8,
            event_retention_ms: 7 * 24 * 3_600 * 1_000,
            event_changes: false,
            message_topic: String::new(),
            message_retention_ms: 24 * 3_600 * 1_000,
            security: "plaintext".into(),
            sasl_mechanism: String::new(),
            sasl_username: String::new(),
            sasl_password_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            properties: Vec::new(),
        }
    }
}

/// Names that `kafka.properties` may set: sockets, connection timeouts, compression, names. All others either are
/// settings of their own or carry a promise of the log (acks, idempotence, order, offsets, groups).
const PROPERTIES_ALLOWED: &[&str] = &[
    "broker.address.family",
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "compression.level",
    "compression.type",
    "connections.max.idle.ms",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "fetch.wait.max.ms",
    "linger.ms",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "sasl.kerberos.service.name",
    "socket.connection.setup.timeout.ms",
    "socket.keepalive.enable",
    "socket.receive.buffer.bytes",
    "socket.send.buffer.bytes",
    "socket.timeout.ms",
    "ssl.cipher.suites",
    "ssl.curves.list",
    "ssl.endpoint.identification.algorithm",
    "statistics.interval.ms",
    "topic.metadata.refresh.interval.ms",
];

impl KafkaConfig {
    /// Returns the name of a node's topic.
    pub fn topic_of(&self, node: &str) -> String {
        format!("{}.{node}", self.node_topic)
    }

    /// Returns the size of the largest event of the topic of messages: as JSON, a byte of content may take six.
    pub const fn message_event_bytes_max(&self) -> usize {
        let bytes = self.record_bytes_max * 6 + 1_024;
        // The library's own limit.
        if bytes > 1_000_000_000 { 1_000_000_000 } else { bytes }
    }

    /// Returns the time after which the topic of messages begins a new segment: Kafka removes segments as a whole, so an event may
    /// stay for that much longer than the retention. The broker's default is a week.
    pub fn message_segment_ms(&self) -> u64 {
        (self.message_retention_ms / 4).max(60_000)
    }

    /// Returns `properties` as pairs, without malformed ones, which `check` reports.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.properties.iter().filter_map(|property| property.split_once('='));
        pairs.map(|(name, value)| (name.trim(), value.trim()))
    }

    /// Checks this section; `reply_ms` is `timing.reply_ms`.
    pub(super) fn check(&self, reply_ms: u64, need: &mut impl FnMut(bool, &str)) {
        self.check_sizes(reply_ms, need);
        self.check_security(need);
        let is_name = |text: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !text.is_empty() && text.len() <= 180 && text.chars().all(is_allowed)
        };
        need(
            is_name(&self.topic) && is_name(&self.node_topic) && is_name(&self.group),
            "kafka.topic, kafka.node_topic, kafka.group: 1 to 180 letters, digits, dots, underscores and dashes",
        );
        let nodes = format!("{}.", self.node_topic);
        let is_of_feed = |name: &String| is_name(name) && *name != self.topic && !name.starts_with(&nodes);
        need(
            self.event_topic.is_empty() || is_of_feed(&self.event_topic),
            "kafka.event_topic: 1 to 180 letters, digits, dots, underscores and dashes, and neither the topic of the log nor one that begins with kafka.node_topic and a dot; or leave it empty",
        );
        need(
            self.message_topic.is_empty()
                || (is_of_feed(&self.message_topic) && self.message_topic != self.event_topic),
            "kafka.message_topic: 1 to 180 letters, digits, dots, underscores and dashes, and neither kafka.topic nor kafka.event_topic, nor one that begins with kafka.node_topic and a dot; or leave it empty",
        );
        let address = |broker: &String| {
            broker
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        need(
            self.brokers.iter().chain(&self.node_brokers).all(address),
            "kafka.brokers, kafka.node_brokers: write each as host:port",
        );
        for property in &self.properties {
            match property.split_once('=') {
                Some((name, _)) if PROPERTIES_ALLOWED.contains(&name.trim()) => {}
                Some((name, _)) => need(
                    false,
                    &format!(
                        "kafka.properties: `{}` can't be set here; remove it, or use one of {}",
                        name.trim(),
                        PROPERTIES_ALLOWED.join(", ")
                    ),
                ),
                None => need(false, &format!("kafka.properties: `{property}`: write name=value")),
            }
        }
    }

    fn check_sizes(&self, reply_ms: u64, need: &mut impl FnMut(bool, &str)) {
        need((1..=10_000).contains(&self.partitions), "kafka.partitions: between 1 and 10000");
        need((1..=16).contains(&self.replication), "kafka.replication: between 1 and 16");
        let day = 24 * 3_600 * 1_000;
        need(
            (60_000..=3_650 * day).contains(&self.retention_ms),
            "kafka.retention_ms: between a minute and ten years",
        );
        need(
            (10_000..=7 * day).contains(&self.node_retention_ms),
            "kafka.node_retention_ms: between 10 seconds and a week",
        );
        need((1..=10_000).contains(&self.event_partitions), "kafka.event_partitions: between 1 and 10000");
        need(
            (60_000..=3_650 * day).contains(&self.event_retention_ms),
            "kafka.event_retention_ms: between a minute and ten years",
        );
        need(
            (60_000..=3_650 * day).contains(&self.message_retention_ms),
            "kafka.message_retention_ms: between a minute and ten years",
        );
        need(
            (96 * 1024..=64 << 20).contains(&self.record_bytes_max),
            "kafka.record_bytes_max: between 98304 bytes (1,000 members with long names) and 64 MiB",
        );
        need(
            self.append_bytes_max >= 2 * self.record_bytes_max.max(1 << 20)
                && self.append_bytes_max <= 1 << 30,
            "kafka.append_bytes_max: at least 2 MiB and twice kafka.record_bytes_max, at most 1 GiB",
        );
        need(
            (64 * 1024..=256 << 20).contains(&self.read_ahead_bytes),
            "kafka.read_ahead_bytes: between 65536 bytes and 256 MiB",
        );
        need((1_000..=300_000).contains(&self.session_ms), "kafka.session_ms: between 1 and 300 seconds");
        need((100..=120_000).contains(&self.revoke_ms), "kafka.revoke_ms: between 100 ms and 120 seconds");
        need(
            self.delivery_ms > reply_ms && self.delivery_ms <= 600_000,
            "kafka.delivery_ms: more than timing.reply_ms, at most ten minutes",
        );
    }

    fn check_security(&self, need: &mut impl FnMut(bool, &str)) {
        let security = self.security.as_str();
        need(
            ["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"].contains(&security),
            "kafka.security: `plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`",
        );
        let (tls, sasl) = (security.ends_with("ssl"), security.starts_with("sasl"));
        let tls_built = cfg!(feature = "kafka-tls");
        need(
            tls_built || !tls,
            "kafka.security: this program was built without TLS for Kafka; build it with `--features kafka-tls`",
        );
        let mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"];
        let named = !self.sasl_username.is_empty() && self.sasl_password_file != PathBuf::new();
        need(
            !sasl || (mechanisms.contains(&self.sasl_mechanism.as_str()) && named),
            "kafka.sasl_mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`, with kafka.sasl_username and kafka.sasl_password_file",
        );
        need(
            !sasl || tls_built || !self.sasl_mechanism.starts_with("SCRAM"),
            "kafka.sasl_mechanism: SCRAM needs a program built with `--features kafka-tls`",
        );
        need(
            sasl || (self.sasl_mechanism.is_empty() && !named),
            "kafka.sasl_…: ignored unless kafka.security = `sasl_plaintext` or `sasl_ssl`; set that, or remove them",
        );
        let given = |path: &PathBuf| *path != PathBuf::new();
        need(
            tls || ![&self.ca_file, &self.cert_file, &self.key_file].into_iter().any(given),
            "kafka.ca_file, kafka.cert_file, kafka.key_file: ignored unless kafka.security = `ssl` or `sasl_ssl`; set that, or \
             remove them",
        );
        need(
            given(&self.cert_file) == given(&self.key_file),
            "kafka.cert_file, kafka.key_file: one needs the other; set both or none",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::problem;

    #[test]
    fn cluster_needs_brokers_and_single_refuses_them() {
        let cluster = ["node.profile=cluster", "kafka.brokers=[k1:9092, k2:9092]"];
        assert_eq!(problem(&cluster), "");
        assert!(problem(&cluster[..1]).contains("needs kafka.brokers"));
        assert!(problem(&cluster[1..]).contains("kafka.brokers: ignored"));
        assert!(problem(&[cluster[0], cluster[1], "node.store=memory"]).contains("node.store"));
        assert!(problem(&["node.profile=both"]).contains("`single` or `cluster`"));
        assert!(problem(&[cluster[0], "kafka.brokers=[k1]"]).contains("host:port"));
    }

    #[test]
    fn message_topic_needs_a_cluster_the_feed_and_a_name_of_its_own() {
        let topic = "kafka.message_topic=tidegate.messages";
        assert!(problem(&[topic]).contains("kafka.message_topic: needs node.profile = `cluster`"));
        let with =
            |more: &[&str]| problem(&[&["node.profile=cluster", "kafka.brokers=[k1:9092]"], more].concat());
        assert_eq!(with(&[topic]), "");
        assert!(with(&[topic, "events.feed=false"]).contains("kafka.message_topic: needs events.feed"));
        assert!(with(&["kafka.event_topic=tidegate.node.n1"]).contains("kafka.event_topic"));
        for name in ["tidegate.log", "tidegate.events", "a/b", "tidegate.node.n1"] {
            let set = format!("kafka.message_topic={name}");
            assert!(with(&[&set]).contains("neither kafka.topic nor kafka.event_topic"), "{name}");
        }
        let changes = "kafka.event_changes=true";
        assert_eq!(with(&[changes]), "");
        for more in ["events.feed=false", "kafka.event_topic="] {
            assert!(with(&[changes, more]).contains("kafka.event_changes: needs"), "{more}");
        }
        assert!(problem(&[changes]).contains("kafka.event_changes: needs"));
        assert!(with(&["kafka.message_retention_ms=1"]).contains("kafka.message_retention_ms"));
    }

    #[test]
    fn content_fits_a_record_and_replies_precede_deliveries() {
        let with =
            |more: &[&str]| problem(&[&["node.profile=cluster", "kafka.brokers=[k1:9092]"], more].concat());
        assert_eq!(with(&["kafka.record_bytes_max=98304", "kafka.append_bytes_max=2097152"]), "");
        assert!(with(&["kafka.record_bytes_max=98303"]).contains("kafka.record_bytes_max"));
        assert!(with(&["kafka.append_bytes_max=2097151"]).contains("kafka.append_bytes_max"));
        let large = ["limits.content_bytes_max=98304", "limits.frame_bytes_max=262144"];
        assert_eq!(with(&large), "");
        assert!(
            with(&[large[0], large[1], "kafka.record_bytes_max=98304"]).contains("limits.content_bytes_max")
        );
        assert!(with(&["timing.reply_ms=5000", "kafka.delivery_ms=5000"]).contains("kafka.delivery_ms"));
        assert_eq!(with(&["timing.reply_ms=5000", "kafka.delivery_ms=5001"]), "");
    }

    #[test]
    fn properties_that_carry_a_promise_are_refused() {
        let set = |property: &str| {
            let properties = format!("kafka.properties=[{property}]");
            problem(&["node.profile=cluster", "kafka.brokers=[k1:9092]", &properties])
        };
        assert_eq!(set("compression.type=lz4"), "");
        for property in ["acks=1", "enable.idempotence=false", "auto.offset.reset=latest", "group.id=mine"] {
            let name = property.split('=').next().unwrap();
            assert!(set(property).contains(&format!("`{name}` can't be set")), "{property}");
        }
        assert!(set("acks").contains("name=value"));
    }

    #[test]
    fn incomplete_security_settings_are_refused() {
        let cluster = ["node.profile=cluster", "kafka.brokers=[k1:9092]"];
        let with = |more: &[&str]| problem(&[&cluster[..], more].concat());
        let plain =
            ["kafka.security=sasl_plaintext", "kafka.sasl_mechanism=PLAIN", "kafka.sasl_username=tidegate"];
        assert!(with(&plain).contains("kafka.sasl_password_file"));
        assert_eq!(with(&[&plain[..], &["kafka.sasl_password_file=secret"]].concat()), "");
        assert!(with(&["kafka.sasl_username=me", "kafka.sasl_password_file=secret"]).contains("ignored"));
        assert!(with(&["kafka.ca_file=ca.pem"]).contains("ignored"));
        assert!(with(&["kafka.security=tls"]).contains("kafka.security"));
        let tls = with(&["kafka.security=ssl", "kafka.ca_file=ca.pem"]);
        assert_eq!(tls.contains("--features kafka-tls"), !cfg!(feature = "kafka-tls"), "{tls}");
    }
}
