//! Configuration: one struct defines the file, the environment names, the `--set` keys and `docs/config.md`.
//!
//! Precedence: built-in defaults < TOML file < `TIDEGATE__SECTION__KEY` < flags and `--set section.key=value`.

use std::{net::SocketAddr, path::PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod admin;
mod assign;
mod auth;
mod check;
mod drain;
mod file;
mod guard;
mod hooks;
mod kafka;
mod link;
mod live;
mod log;
mod login;
mod mistyped;
mod postgres;
mod redis;
mod tls;
mod trace;
mod webhooks;

pub use self::{
    admin::{AdminConfig, ApiConfig, ConsoleMode},
    assign::AssignConfig,
    auth::AuthConfig,
    drain::DrainConfig,
    file::without_values,
    guard::{EvidenceConfig, LimitsConfig, OverloadConfig, RoomsConfig, StormConfig},
    hooks::{AllowAction, HooksConfig},
    link::LinkConfig,
    live::{ConfigChanges, ConfigSources, RESTART_REASONS},
    log::{LogConfig, LogFormat},
    login::LoginConfig,
    postgres::PostgresConfig,
    redis::RedisConfig,
    tls::TlsConfig,
    trace::TraceConfig,
    webhooks::WebhooksConfig,
};
pub use kafka::KafkaConfig;

/// Keys that hold a list; in the environment its items are separated by commas.
const LIST_KEYS: &[&str] = &[
    "assign.addresses",
    "assign.labels",
    "auth.audiences",
    "auth.issuers",
    "auth.key_files",
    "evidence.captcha_paths",
    "evidence.login_paths",
    "hooks.allow_actions",
    "hooks.login_cookies",
    "listen.origins",
    "listen.proxies",
    "listen.forwarders",
    "tls.cert_files",
    "tls.key_files",
    "kafka.brokers",
    "kafka.node_brokers",
    "kafka.properties",
    "redis.urls",
    "rooms.named",
    "webhooks.content_hosts",
];

/// All settings of a node.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Config {
    /// Name, files and profile of this node.
    pub node: NodeConfig,
    /// Listen addresses and allowed web origins.
    pub listen: ListenConfig,
    /// TLS on the client port.
    pub tls: TlsConfig,
    /// Keys, audit log and console of the admin port, and rights that only a node for development has.
    pub admin: AdminConfig,
    /// Messages that back ends send by the admin API.
    pub api: ApiConfig,
    /// Verification of client tokens.
    pub auth: AuthConfig,
    /// Questions to the application's own server: who a credential is, and who may write where; see docs/hooks.md.
    pub hooks: HooksConfig,
    /// Webhooks: where the endpoints of the admin API may send events; see docs/webhooks.md.
    pub webhooks: WebhooksConfig,
    /// Sessions of a user that may be connected at the same time.
    pub login: LoginConfig,
    /// Limits on connections, frames, queues, disk and memory.
    pub limits: LimitsConfig,
    /// Deadlines and intervals.
    pub timing: TimingConfig,
    /// Assignment of clients: the addresses of this node and its share of new clients.
    pub assign: AssignConfig,
    /// Drain: the planned stop of a node.
    pub drain: DrainConfig,
    /// Retention of messages and dedup keys.
    pub retention: RetentionConfig,
    /// The feed: numbered references to what was archived, which durable consumers of events follow.
    pub events: EventsConfig,
    /// Version of the ledger's rules, when messages are acked, and the log on stderr.
    pub log: LogConfig,
    /// Kafka, for profile `cluster`: the log, node topics and events.
    pub kafka: KafkaConfig,
    /// Options of client sockets.
    pub socket: SocketConfig,
    /// Link between nodes, for profile `cluster`: replies, pushes and queries over gRPC.
    pub link: LinkConfig,
    /// Redis, for profile `cluster`: routes, and state that may be lost.
    pub redis: RedisConfig,
    /// Postgres, for profile `cluster`: the archive of all messages; see docs/postgres.md.
    pub postgres: PostgresConfig,
    /// Tracing of messages, for `tidegate trace`.
    pub trace: TraceConfig,
    /// Detection of message storms in groups; see docs/storms.md.
    pub storm: StormConfig,
    /// Live rooms: their rate, and how often they are written to their members; see docs/rooms.md.
    pub rooms: RoomsConfig,
    /// Evidence of abuse, and what the node does about its authors by itself; see docs/evidence.md.
    pub evidence: EvidenceConfig,
    /// Protection against overload: gates and load level; see docs/overload.md.
    pub overload: OverloadConfig,
    /// Fault injection, for tests only.
    pub fault: FaultConfig,
    /// File and `--set` values that the settings come from.
    #[serde(skip)]
    sources: ConfigSources,
}

/// Name, files and profile of this node.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct NodeConfig {
    /// Name of the node, shown in Welcome; [A-Za-z0-9_.-]{1,64}.
    pub id: String,
    /// Number of leasable ids, `node.id`-0 and up, for nodes without fixed names. A node takes the first id that no
    /// live node holds; set it above the largest node count. 0: the name is `node.id`.
    pub ids: u32,
    /// Directory for the token key and the node's files.
    pub data: PathBuf,
    /// Number of shards, the threads that hold connections. 0: one per core.
    pub shards: usize,
    /// `single`: one node, without other services; `cluster`: several nodes, with Kafka, Redis and Postgres.
    pub profile: String,
    /// Storage of messages in profile `single`: `embedded`, on disk under node.data; `memory`, lost on restart, for
    /// tests.
    pub store: String,
}

/// Listen addresses and allowed web origins.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct ListenConfig {
    /// Client port for WebSocket, protobuf frames and JSON lines; the first bytes of a connection select the
    /// protocol.
    pub client: SocketAddr,
    /// Allows a public `client` address that takes connections without TLS. With tls.required it is allowed anyway.
    pub allow_public: bool,
    /// Admin port. Another address than loopback needs admin.keys_file.
    pub admin: SocketAddr,
    /// Read-only port for probes and metrics, as address:port; orchestrators may reach it from outside. Empty: none.
    pub monitor: String,
    /// Connections that the kernel queues for accept.
    pub backlog: i32,
    /// Web origins that may connect; "*" allows any. Requests without Origin, which do not come from a browser, are
    /// always allowed.
    pub origins: Vec<String>,
    /// Networks of proxies that send a PROXY header (v1 or v2) before everything else, such as HAProxy with
    /// `send-proxy-v2`: 10.0.0.0/8, or one address. A connection from there without the header is refused; the header of
    /// any other peer is.
    pub proxies: Vec<String>,
    /// Networks of HTTP proxies that name the client of a WebSocket in a header. The header of any other peer is ignored.
    pub forwarders: Vec<String>,
    /// Header of `forwarders`: `x-forwarded-for` or `forwarded` (RFC 7239). The other one is ignored: a proxy passes on
    /// what it does not set.
    pub forwarded_header: String,
}

/// Deadlines and intervals, in milliseconds.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct TimingConfig {
    /// Time for each step of the handshake, from accept to a complete Hello.
    pub handshake_ms: u64,
    /// Time from the first byte of a frame to its last.
    pub frame_ms: u64,
    /// Heartbeat interval announced to clients; a client that is silent for 2.5 intervals is disconnected.
    pub heartbeat_ms: u64,
    /// How long a chained message is held before the order-blocked alarm; after twice this the chain skips the
    /// missing message.
    pub order_timeout_ms: u64,
    /// Time from a send to its reply; after it the client gets UNKNOWN.
    pub reply_ms: u64,
    /// Time from a push to its ack; after it the push is sent again.
    pub ack_timeout_ms: u64,
    /// How often a push is sent again before the connection is closed with SLOW.
    pub ack_tries: u32,
    /// How long a connection may take no bytes before it is closed with SLOW.
    pub write_ms: u64,
    /// How long input is discarded after the final frame, so that a TCP reset does not destroy that frame.
    pub linger_ms: u64,
}

/// Retention of messages and dedup keys; see docs/store.md.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct RetentionConfig {
    /// How long messages are kept, unless a group overrides it with its setting `retention`: none (one hour), 1d, 7d,
    /// 30d or forever.
    pub messages: String,
    /// Interval of the sweep that removes expired messages and keys, in milliseconds.
    pub sweep_ms: u64,
    /// Minimum days for which the ids of sends are kept, so that a retry is never a second message; at least 8.
    pub keys_days: u64,
}

/// The feed: numbered references to what was archived, which durable consumers of events follow.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct EventsConfig {
    /// Whether archives write the feed. Without it a consumer learns of no message, change or recall, only that events are
    /// missing.
    pub feed: bool,
    /// Hours for which the feed is kept. A consumer that is further behind learns which events it has missed.
    pub retention_hours: u64,
    /// Most bytes of the feed, shared equally by the partitions; the oldest entries are removed first. A message takes
    /// about 20.
    pub feed_bytes_max: u64,
}

/// Options of client sockets.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct SocketConfig {
    /// SO_SNDBUF in bytes, which the kernel doubles. 0: the kernel's default.
    pub send_buffer_bytes: usize,
    /// TCP_NOTSENT_LOWAT in bytes; a socket with more unsent bytes counts as full. 0: off.
    pub notsent_lowat_bytes: u32,
    /// TCP_USER_TIMEOUT in ms; a connection whose sent bytes stay unacknowledged for this long is closed. 0: off.
    pub user_timeout_ms: u64,
}

/// Fault injection, for tests only.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct FaultConfig {
    /// Id of a message that causes a panic. Rejected by release builds.
    pub panic_on_msg_id: String,
    /// Scope of the panic: `connection` (also when empty), `shard` or `owner`; the last two end the process.
    pub panic_in: String,
    /// File that names the disk failure to simulate: `eio`, `eio-sync`, `enospc`, `enospc-sync` or `full`. Without
    /// the file the disk works. For `tidegate-lab chaos`.
    pub disk_file: PathBuf,
    /// Newest version of the ledger's rules that the node claims to know, as an earlier release would. 0: all of
    /// them. Rejected by release builds.
    pub rules_max: u32,
    /// Time after which a failing event of a webhook is set aside while others succeed, instead of `asideAfterMs` of its
    /// endpoint, in ms. 0: that of the endpoint. Rejected by release builds.
    pub webhook_aside_ms: u64,
}

impl Default for NodeConfig {
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

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            client: ([127, 0, 0, 1], 7800).into(),
            allow_public: false,
            admin: ([127, 0, 0, 1], 7801).into(),
            monitor: String::new(),
            backlog: 4096,
            origins: Vec::new(),
            proxies: Vec::new(),
            forwarders: Vec::new(),
            forwarded_header: "x-forwarded-for".into(),
        }
    }
}

impl Default for TimingConfig {
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

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { messages: "forever".into(), sweep_ms: 60_000, keys_days: 8 }
    }
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self { feed: true, retention_hours: 168, feed_bytes_max: 4 << 30 }
    }
}

impl EventsConfig {
    fn check(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            (1..=8_760).contains(&self.retention_hours),
            "events.retention_hours: between 1 and 8760; to keep no feed, set events.feed = false",
        );
        need(
            self.feed_bytes_max >= 1 << 20,
            "events.feed_bytes_max: at least 1048576; to keep no feed, set events.feed = false",
        );
    }
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self { send_buffer_bytes: 64 * 1024, notsent_lowat_bytes: 16 * 1024, user_timeout_ms: 20_000 }
    }
}

/// All problems of a configuration, each with its cure.
#[derive(Debug, thiserror::Error)]
#[error("the configuration has {} problem(s):\n  {}", .0.len(), .0.join("\n  "))]
pub struct ConfigError(pub Vec<String>);

impl Config {
    /// Loads the defaults, then `file` if given, the environment, and `sets` (`section.key=value`).
    ///
    /// # Errors
    /// Keys are unknown, types are wrong or values are out of range; the error names all of them.
    pub fn load(file: Option<&std::path::Path>, sets: &[String]) -> Result<Self, ConfigError> {
        let (config, problems) = Self::read(file, sets)?;
        if problems.is_empty() { Ok(config) } else { Err(ConfigError(problems)) }
    }

    /// Reads the configuration as [`Self::load`] does, and returns it together with the problems of its settings. A value of
    /// a wrong type counts as absent.
    ///
    /// # Errors
    /// The sources can't be parsed.
    pub(crate) fn read(
        file: Option<&std::path::Path>,
        sets: &[String],
    ) -> Result<(Self, Vec<String>), ConfigError> {
        let mut builder = config::Config::builder();
        if let Some(file) = file {
            file::check(file)?;
            builder = builder.add_source(config::File::from(file).format(config::FileFormat::Toml));
        }
        let environment = config::Environment::with_prefix("TIDEGATE").separator("__").try_parsing(true);
        builder = builder.add_source(
            LIST_KEYS.iter().fold(environment.list_separator(","), |all, key| all.with_list_parse_key(key)),
        );
        for set in sets {
            let Some((key, value)) = set.split_once('=') else {
                return Err(ConfigError(vec![format!("--set {set}: write section.key=value")]));
            };
            builder = builder
                .set_override(key.trim(), parse_value(value.trim()))
                .map_err(|error| ConfigError(vec![format!("--set {set}: {error}")]))?;
        }
        let raw = builder.build().map_err(|error| ConfigError(vec![without_values(&error.to_string())]))?;
        let (raw, mistyped) = mistyped::split_mistyped(raw.cache);
        let mut problems: Vec<String> = mistyped.iter().map(mistyped::Mistyped::problem).collect();
        let parsed: Result<Self, _> = serde_ignored::deserialize(raw, |path| {
            problems.push(format!("{path}: no such key{}", nearest(&path.to_string())));
        });
        let parsed = parsed.map_err(|error| ConfigError(vec![without_values(&error.to_string())]))?;
        let mut values = Vec::new();
        parsed.check(&mut values);
        problems.extend(values.into_iter().filter(|it| !mistyped.iter().any(|key| key.is_named_in(it))));
        let parsed = Self { sources: ConfigSources::new(file, sets), ..parsed };
        Ok((parsed, problems))
    }

    /// Returns every key as `section.key`, for messages and docs.
    pub fn keys() -> Vec<String> {
        let value = serde_json::to_value(Self::default()).unwrap_or_default();
        let mut keys = Vec::new();
        for (section, fields) in value.as_object().into_iter().flatten() {
            keys.extend(fields.as_object().into_iter().flatten().map(|(key, _)| format!("{section}.{key}")));
        }
        keys
    }
}

/// Parses a `--set` value as the type that it looks like; lists are comma-separated in brackets.
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

/// Returns the edit distance: the letters to add, remove or change to turn `a` into `b`.
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
mod tests;
