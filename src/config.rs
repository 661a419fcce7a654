//! The configuration: one struct gives the file, the environment names, `--set` keys and `docs/config.md`.
//!
//! Order: built-in defaults < TOML file < `TIDEGATE__SECTION__KEY` < flags and `--set section.key=value`.

use std::{net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod assign;
mod auth;
mod check;
mod drain;
mod kafka;
mod link;
mod log;
mod postgres;
mod redis;
mod trace;

pub use self::{
    assign::Assign, auth::Auth, drain::Drain, link::Link, log::Log, postgres::Postgres, redis::Redis,
    trace::Trace,
};
pub use kafka::Kafka;

/// Settings that are lists, for the environment.
const LISTS: &[&str] = &[
    "assign.addresses",
    "assign.labels",
    "listen.origins",
    "kafka.brokers",
    "kafka.node_brokers",
    "kafka.properties",
    "redis.urls",
];

/// Everything that can be set.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// Who this node is and where its files are.
    pub node: Node,
    /// Addresses and who may connect.
    pub listen: Listen,
    /// Whose tokens are taken.
    pub auth: Auth,
    /// Bounds: what is full, and from when on.
    pub limits: Limits,
    /// Deadlines and intervals.
    pub timing: Timing,
    /// Where clients are sent, and how much of them comes here.
    pub assign: Assign,
    /// How a node leaves.
    pub drain: Drain,
    /// How long messages and dedup keys are kept.
    pub retention: Retention,
    /// By which version of the ledger's rules the log is read.
    pub log: Log,
    /// The log of profile `cluster`.
    pub kafka: Kafka,
    /// Options of client sockets.
    pub socket: Socket,
    /// Between nodes, for profile `cluster`: answers, pushes and questions over gRPC.
    pub link: Link,
    /// Redis, for profile `cluster`: who is where, and what may be lost.
    pub redis: Redis,
    /// Postgres, for profile `cluster`: the archive of all messages; see docs/postgres.md.
    pub postgres: Postgres,
    /// Steps of messages, for `tidegate trace`.
    pub trace: Trace,
    /// Faults to inject, for tests only.
    pub fault: Fault,
}

/// Who this node is and where its files are.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Node {
    /// Name of the node, shown in Welcome; [A-Za-z0-9_.-]{1,64}.
    pub id: String,
    /// Ids on lease, for nodes that are told apart by nobody else: so many, `node.id`-0 and up, of which a node takes the first that no
    /// live node has when it starts; more than there are nodes at a time. 0 = the name is `node.id`.
    pub ids: u32,
    /// Directory for the token key and the node's files.
    pub data: PathBuf,
    /// Threads that hold connections; 0 = one per core.
    pub shards: usize,
    /// `single`: one node on its own; `cluster`: several, with their log on Kafka.
    pub profile: String,
    /// Where messages are kept: `embedded` = on disk under node.data; `memory` = nowhere after a restart, for tests.
    pub store: String,
}

/// Addresses and who may connect.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Listen {
    /// Client port: WebSocket, protobuf frames and JSON lines, told apart by the first bytes.
    pub client: SocketAddr,
    /// Lets `client` be a public address although only development tokens exist and nothing is encrypted.
    pub allow_public: bool,
    /// Admin port; loopback only, until admin keys exist.
    pub admin: SocketAddr,
    /// Port for probes and metrics, as address:port; read-only, so it need not be loopback: for orchestrators. Empty = none.
    pub monitor: String,
    /// Connections the kernel may keep waiting for accept.
    pub backlog: i32,
    /// Web origins that may connect ("*" = any); requests without Origin (no browser) always may.
    pub origins: Vec<String>,
}

/// Bounds: what is full, and from when on.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Limits {
    /// Connections of this node; 0 = what the limit of open files allows, less 200.
    pub conns_max: usize,
    /// Connections from one IPv4 address or one IPv6 /64; 0 = no limit.
    pub conns_per_ip: usize,
    /// Largest frame a client may send, in bytes.
    pub frame_bytes_max: usize,
    /// Largest content of a message, in bytes.
    pub content_bytes_max: usize,
    /// Unanswered sends per connection; at the limit reading stops.
    pub in_flight_max: u32,
    /// Messages held for their predecessor, per connection.
    pub hold_max: u32,
    /// Bytes held for their predecessor, per connection.
    pub hold_bytes_max: u32,
    /// Outbox bytes per connection for messages and room frames.
    pub outbox_bytes_max: usize,
    /// Outbox bytes per connection for replies; above it the connection closes SLOW.
    pub control_bytes_max: usize,
    /// Pushes per connection that may wait for an ack before Behind takes their place.
    pub window_max: usize,
    /// Bytes of such pushes per connection.
    pub window_bytes_max: usize,
    /// Rooms per connection.
    pub rooms_max: u32,
    /// Groups up to this many members are tracked until acked, and take signals. In a cluster larger ones go by node topics; the
    /// same on all nodes.
    pub small_group_max: usize,
    /// Largest content of a signal, in bytes.
    pub signal_bytes_max: usize,
    /// Signals a second and connection, those of one second at once; above it they are dropped; 0 = none are taken.
    pub signals_per_second: u32,
    /// How long a sender may recall a message, in ms; 0 = never. Owners and admins of a group always may.
    pub recall_ms: u64,
    /// Lasting refusals in a row before the connection closes TOO_MANY_ERRORS; temporary ones do not count.
    pub errors_max: u32,
    /// Sends of this node that wait for the log, in bytes; above it sends are refused BUSY.
    pub intake_bytes_max: usize,
    /// Bytes that may wait for one shard; above it conversations get Behind and room frames are shed.
    pub mailbox_bytes_max: usize,
    /// With fewer bytes than this free on the disk, sends are refused until there is more; leaves room to compact.
    pub disk_free_min_bytes: u64,
    /// Memory budget in bytes, kernel socket memory included; 0 = the smallest limit of the cgroups around the node, or
    /// the machine's memory.
    pub memory_bytes: u64,
    /// Count the kernel's TCP memory towards it: that of the node's cgroup (v2), else that of the whole network namespace;
    /// false where others share that.
    pub memory_counts_sockets: bool,
}

/// Deadlines and intervals, in milliseconds.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Timing {
    /// From accept to a complete Hello (each step of the handshake).
    pub handshake_ms: u64,
    /// From the first byte of a frame to its last.
    pub frame_ms: u64,
    /// Heartbeat interval told to clients; silent for 2.5 intervals = closed.
    pub heartbeat_ms: u64,
    /// A chained message held this long raises the order-blocked alarm; after twice this the chain skips.
    pub order_timeout_ms: u64,
    /// From a send to its answer; later the client is told UNKNOWN.
    pub reply_ms: u64,
    /// From a push to its ack before it is sent again.
    pub ack_timeout_ms: u64,
    /// Times a push is sent again before the connection closes SLOW.
    pub ack_tries: u32,
    /// A connection that takes no bytes for this long closes SLOW.
    pub write_ms: u64,
    /// How long input is still discarded after the final frame, so that it is not destroyed by a reset.
    pub linger_ms: u64,
}

/// How long messages and dedup keys are kept; see docs/store.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Retention {
    /// How long messages are kept where a group's setting `retention` does not say otherwise: none (one hour), 1d, 7d,
    /// 30d or forever.
    pub messages: String,
    /// Between two looks at what is too old, in milliseconds.
    pub sweep_ms: u64,
    /// Days for which the ids of sends are kept at least: a retry within them is never a second message; at least 8.
    pub keys_days: u64,
}

/// Options of client sockets.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Socket {
    /// SO_SNDBUF in bytes (the kernel doubles it); 0 = the kernel's choice.
    pub send_buffer_bytes: usize,
    /// TCP_NOTSENT_LOWAT in bytes: more than this unsent means "full"; 0 = off.
    pub notsent_lowat_bytes: u32,
    /// TCP_USER_TIMEOUT in ms: sent bytes unacknowledged for this long end the connection; 0 = off.
    pub user_timeout_ms: u64,
}

/// Faults to inject, for tests only.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Fault {
    /// A message with this id makes the code of its connection panic; refused by release builds.
    pub panic_on_msg_id: String,
    /// What the panic ends: `connection` (also when empty), `shard` or `owner`; the last two end the process.
    pub panic_in: String,
    /// A file that says how the disk fails: `eio`, `eio-sync`, `enospc`, `enospc-sync` or `full`; none there = it works. For `tidegate-lab chaos`.
    pub disk_file: PathBuf,
    /// The node acts as an earlier version, which knows the ledger's rules up to this one; 0 = it does not. Refused by release builds.
    pub rules_max: u32,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            id: "n1".into(),
            ids: 0,
            data: "tidegate-data".into(),
            shards: 0,
            profile: "single".into(),
            store: "embedded".into(),
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            client: ([127, 0, 0, 1], 7800).into(),
            allow_public: false,
            admin: ([127, 0, 0, 1], 7801).into(),
            monitor: String::new(),
            backlog: 4096,
            origins: Vec::new(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            conns_max: 0,
            conns_per_ip: 2_000,
            frame_bytes_max: 64 * 1024,
            content_bytes_max: 32 * 1024,
            in_flight_max: 256,
            hold_max: 256,
            hold_bytes_max: 256 * 1024,
            outbox_bytes_max: 256 * 1024,
            control_bytes_max: 128 * 1024,
            window_max: 256,
            window_bytes_max: 256 * 1024,
            rooms_max: 100,
            small_group_max: 500,
            signal_bytes_max: 1_024,
            signals_per_second: 10,
            recall_ms: 120_000,
            errors_max: 100,
            intake_bytes_max: 64 * 1024 * 1024,
            mailbox_bytes_max: 16 * 1024 * 1024,
            disk_free_min_bytes: 256 * 1024 * 1024,
            memory_bytes: 0,
            memory_counts_sockets: true,
        }
    }
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake_ms: 5_000,
            frame_ms: 10_000,
            heartbeat_ms: 30_000,
            order_timeout_ms: 5_000,
            reply_ms: 5_000,
            ack_timeout_ms: 5_000,
            ack_tries: 3,
            write_ms: 10_000,
            linger_ms: 1_000,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { messages: "forever".into(), sweep_ms: 60_000, keys_days: 8 }
    }
}

impl Default for Socket {
    fn default() -> Self {
        Self { send_buffer_bytes: 64 * 1024, notsent_lowat_bytes: 16 * 1024, user_timeout_ms: 20_000 }
    }
}

/// What is wrong with a configuration, all of it at once.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} problem(s):\n  {}", .0.len(), .0.join("\n  "))]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// Reads defaults, `file` if given, the environment, then `sets` (`section.key=value`).
    ///
    /// # Errors
    /// Names every unknown key, wrong type and value out of range.
    pub fn load(file: Option<&std::path::Path>, sets: &[String]) -> Result<Self, ConfigError> {
        let mut builder = config::Config::builder();
        if let Some(file) = file {
            builder = builder.add_source(config::File::from(file).format(config::FileFormat::Toml));
        }
        let environment = config::Environment::with_prefix("TIDEGATE").separator("__").try_parsing(true);
        builder = builder.add_source(
            LISTS.iter().fold(environment.list_separator(","), |all, key| all.with_list_parse_key(key)),
        );
        for set in sets {
            let Some((key, value)) = set.split_once('=') else {
                return Err(ConfigError(vec![format!("--set {set}: write section.key=value")]));
            };
            builder = builder
                .set_override(key.trim(), parse_value(value.trim()))
                .map_err(|error| ConfigError(vec![format!("--set {set}: {error}")]))?;
        }
        let raw = builder.build().map_err(|error| ConfigError(vec![error.to_string()]))?;
        let mut problems = Vec::new();
        let parsed: Result<Self, _> = serde_ignored::deserialize(raw, |path| {
            problems.push(format!("{path}: no such key{}", nearest(&path.to_string())));
        });
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                problems.push(error.to_string());
                return Err(ConfigError(problems));
            }
        };
        parsed.check(&mut problems);
        if problems.is_empty() { Ok(parsed) } else { Err(ConfigError(problems)) }
    }

    /// Every key as `section.key`, for messages and docs.
    pub fn keys() -> Vec<String> {
        let value = serde_json::to_value(Self::default()).unwrap_or_default();
        let mut keys = Vec::new();
        for (section, fields) in value.as_object().into_iter().flatten() {
            keys.extend(fields.as_object().into_iter().flatten().map(|(key, _)| format!("{section}.{key}")));
        }
        keys
    }
}

/// A `--set` value as the type it looks like; lists are comma-separated in brackets.
fn parse_value(text: &str) -> config::Value {
    if let Some(list) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        let items: Vec<String> = list
            .split(',')
            .map(|item| item.trim().trim_matches('"').to_owned())
            .filter(|i| !i.is_empty())
            .collect();
        return items.into();
    }
    match (text.parse::<i64>(), text) {
        (Ok(number), _) => number.into(),
        (_, "true") => true.into(),
        (_, "false") => false.into(),
        _ => text.trim_matches('"').into(),
    }
}

fn nearest(unknown: &str) -> String {
    let keys = Config::keys().into_iter();
    let nearest = keys.min_by_key(|key| edits(key.as_bytes(), unknown.as_bytes()));
    nearest.map(|key| format!("; did you mean {key}?")).unwrap_or_default()
}

/// How many letters have to be added, removed or changed to make one of the other.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (at, from) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != to);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_defaults_are_sound() {
        let mut problems = Vec::new();
        Config::default().check(&mut problems);
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn a_set_overrides_the_default_and_lists_work() {
        let sets =
            ["limits.conns_per_ip=0".into(), "listen.origins=[https://a.example, https://b.example]".into()];
        let config = Config::load(None, &sets).unwrap();
        assert_eq!(config.limits.conns_per_ip, 0);
        assert_eq!(config.listen.origins, ["https://a.example", "https://b.example"]);
    }

    #[test]
    fn a_public_address_must_be_wanted() {
        let public = "listen.client=192.0.2.1:7800".to_owned();
        let refused = Config::load(None, std::slice::from_ref(&public)).unwrap_err().to_string();
        assert!(refused.contains("listen.allow_public=true"), "{refused}");
        assert!(Config::load(None, &[public, "listen.allow_public=true".into()]).is_ok());
    }

    #[test]
    fn a_load_balancer_is_waited_for_where_there_may_be_one() {
        let delay = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            Config::load(None, &sets).unwrap().drain_settings().lb_delay
        };
        assert_eq!(delay(&[]), Duration::ZERO);
        assert_eq!(delay(&["drain.lb_delay_ms=70"]), Duration::from_millis(70));
        assert_eq!(
            delay(&["listen.client=0.0.0.0:7800", "listen.allow_public=true"]),
            Duration::from_secs(5)
        );
        let short = Config::load(None, &["drain.deadline_ms=5000".into()]).unwrap_err().to_string();
        assert!(short.contains("drain.deadline_ms"), "{short}");
    }

    #[test]
    fn unknown_keys_and_bad_values_are_all_named_with_a_cure() {
        let sets =
            ["limits.conns_per_ipp=1".into(), "timing.reply_ms=1".into(), "node.profile=cluster".into()];
        let text = Config::load(None, &sets).unwrap_err().to_string();
        for part in
            ["conns_per_ipp: no such key; did you mean limits.conns_per_ip?", "timing:", "node.profile"]
        {
            assert!(text.contains(part), "{part:?} is missing in {text}");
        }
    }
}
