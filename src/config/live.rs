//! Live settings: those that a running node changes when its configuration is read again.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Config, ConfigError};

/// Keys that a running node changes; the others need a restart.
const LIVE_KEYS: &[&str] = &[
    "listen.origins",
    "listen.proxies",
    "listen.forwarders",
    "listen.forwarded_header",
    "tls.required",
    "auth.key_files",
    "auth.issuers",
    "auth.audiences",
    "auth.leeway_s",
    "auth.token_bytes_max",
    "hooks.login_url",
    "hooks.login_timeout_ms",
    "hooks.login_cookies",
    "hooks.allow_url",
    "hooks.allow_fail",
    "hooks.allow_actions",
    "hooks.allow_timeout_ms",
    "hooks.allow_ttl_ms",
    "hooks.before_url",
    "hooks.before_fail",
    "hooks.before_rooms",
    "hooks.before_timeout_ms",
    "hooks.secret_file",
    "hooks.ca_file",
    "hooks.insecure",
    "hooks.in_flight_max",
    "hooks.waiting_max",
    "webhooks.ca_file",
    "limits.conns_max",
    "limits.conns_per_ip",
    "limits.address_logins_per_second",
    "limits.user_logins_per_second",
    "limits.joins_per_second",
    "limits.queries_per_second",
    "limits.sends_per_second",
    "limits.new_conversations_per_minute",
    "limits.rules_file",
    "limits.hello_bytes_max",
    "limits.content_bytes_max",
    "limits.in_flight_max",
    "limits.hold_max",
    "limits.hold_bytes_max",
    "limits.outbox_bytes_max",
    "limits.control_bytes_max",
    "limits.window_max",
    "limits.window_bytes_max",
    "limits.rooms_max",
    "limits.signal_bytes_max",
    "limits.signals_per_second",
    "limits.frames_per_second",
    "limits.recall_ms",
    "limits.edit_ms",
    "limits.errors_max",
    "timing.handshake_ms",
    "timing.frame_ms",
    "timing.heartbeat_ms",
    "timing.order_timeout_ms",
    "timing.ack_timeout_ms",
    "timing.ack_tries",
    "timing.write_ms",
    "timing.linger_ms",
    "drain.lb_delay_ms",
    "drain.spread_ms",
    "drain.max_rate",
    "drain.flush_ms",
    "drain.deadline_ms",
    "log.filter",
    "storm.window_ms",
    "storm.threshold",
    "storm.room_threshold",
    "storm.actions",
    "rooms.rate",
    "rooms.tick_ms",
    "rooms.last",
    "rooms.members",
    "rooms.reactions",
    "rooms.named",
    "evidence.ban",
    "evidence.loopback",
    "evidence.captcha_paths",
    "evidence.login_paths",
];

/// Reasons for which settings need a restart, each with its keys and sections. The first one that names a setting counts.
pub const RESTART_REASONS: &[(&str, &[&str])] = &[
    (
        "All nodes have to agree on it: a rolling restart puts it in force.",
        &[
            "login",
            "limits.devices_per_user",
            "limits.small_group_max",
            "limits.watch_direct",
            "retention",
            "events",
            "log.rules",
            "log.rules_settle_ms",
            "log.answer",
            "log.archive_first_ms",
            "log.allow_one_copy",
            "api",
        ],
    ),
    ("Revocations are kept for as long as it says.", &["auth.max_lifetime_s"]),
    (
        "Changed content of the files is read without a reload; other files need a restart.",
        &["tls.cert_files", "tls.key_files", "admin.tls_cert", "admin.tls_key", "admin.keys_file"],
    ),
    ("The buffers of the shards have its size.", &["limits.frame_bytes_max"]),
    ("The file is set up at the start.", &["evidence.file", "evidence.file_days"]),
    ("The gates of the shards are set up at the start.", &["overload"]),
    ("The task that writes to the gateway starts with the node.", &["evidence"]),
    ("The mirror starts with the node.", &["storm.mirror", "storm.mirror_prefix"]),
    ("Queues, caches and budgets get their size at the start.", &["limits", "trace", "storm.memory_bytes"]),
    ("The deadlines of the log follow from it.", &["timing.reply_ms"]),
    ("It is compared with the other settings at the start.", &["drain.grace_ms"]),
    ("The output is opened at the start.", &["log.format"]),
    (
        "The node announces it at the start; `POST /v1/weight` changes the weight and the share of a running node.",
        &["assign"],
    ),
    ("Names, storage and threads are set up at the start.", &["node"]),
    ("Sockets and their threads are set up at the start.", &["listen", "socket", "tls"]),
    ("The rights of the admin port and its records are decided at the start.", &["admin"]),
    ("The endpoints are checked against it at the start.", &["webhooks"]),
    ("The source of the keys is set up at the start.", &["auth"]),
    (
        "Connections to other services and nodes are set up at the start.",
        &["kafka", "link", "redis", "postgres"],
    ),
    ("It is for tests.", &["fault"]),
];

/// Sources of a configuration, so that it can be read again.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    file: Option<PathBuf>,
    sets: Vec<String>,
}

impl ConfigSources {
    pub(super) fn new(file: Option<&Path>, sets: &[String]) -> Self {
        Self { file: file.map(Path::to_owned), sets: sets.to_vec() }
    }
}

/// Keys whose values differ between two configurations, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChanges {
    /// Keys that a running node changes.
    pub live: Vec<String>,
    /// Keys whose new values a restart puts in force.
    pub needs_restart: Vec<String>,
}

impl Config {
    /// Returns whether a running node changes the setting.
    pub fn is_live(key: &str) -> bool {
        LIVE_KEYS.contains(&key)
    }

    /// Returns why the setting needs a restart; `None` if it is live.
    pub fn restart_reason(key: &str) -> Option<&'static str> {
        let section = key.split('.').next().unwrap_or(key);
        let is_named = |names: &[&str]| names.iter().any(|name| *name == key || *name == section);
        let found = RESTART_REASONS.iter().find(|(_, names)| is_named(names));
        found.map(|(reason, _)| *reason).filter(|_| !Self::is_live(key))
    }

    /// Reads the configuration from its sources again, and returns it together with the problems of its settings.
    ///
    /// # Errors
    /// The sources can't be parsed.
    pub fn reread(&self) -> Result<(Self, Vec<String>), ConfigError> {
        Self::read(self.sources.file.as_deref(), &self.sources.sets)
    }

    /// Returns this configuration with the live settings of `fresh`, and the keys that differ from it.
    ///
    /// # Errors
    /// The live settings of `fresh` do not fit the settings that stay; the error names all problems.
    pub fn with_live_settings_of(&self, fresh: &Self) -> Result<(Self, ConfigChanges), ConfigError> {
        let unreadable = |error: serde_json::Error| ConfigError(vec![error.to_string()]);
        let mut merged = serde_json::to_value(self).map_err(unreadable)?;
        let fresh_value = serde_json::to_value(fresh).map_err(unreadable)?;
        let mut changes = ConfigChanges::default();
        for key in Self::keys() {
            let Some((section, name)) = key.split_once('.') else { continue };
            let new = &fresh_value[section][name];
            let old = &mut merged[section][name];
            if old == new {
                continue;
            }
            if Self::is_live(&key) && !self.turns_own_secret(&key, fresh) {
                *old = Value::clone(new);
                changes.live.push(key);
            } else {
                changes.needs_restart.push(key);
            }
        }
        let merged: Self = serde_json::from_value(merged).map_err(unreadable)?;
        let mut problems = Vec::new();
        merged.check(&mut problems);
        if !problems.is_empty() {
            return Err(ConfigError(problems));
        }
        // Values that no key has.
        let mut merged = Self { sources: self.sources.clone(), ..merged };
        merged.admin.may_abort = self.admin.may_abort;
        if merged.is_development() != self.is_development() {
            changes.needs_restart.push("admin.development".to_owned());
        }
        Ok((merged, changes))
    }

    /// Returns whether the change decides if the node has a secret of its own, which it does at its start only.
    fn turns_own_secret(&self, key: &str, fresh: &Self) -> bool {
        key == "auth.key_files" && self.auth.has_other_keys() != fresh.auth.has_other_keys()
    }
}

impl ConfigError {
    /// Splits a problem into the keys that it names and the reason; without keys if it is about none.
    pub fn key_and_reason(problem: &str) -> (Option<&str>, &str) {
        let is_key = |keys: &str| {
            !keys.is_empty()
                && keys.split(", ").all(|key| {
                    key.contains('.')
                        && key
                            .bytes()
                            .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit() || b"._".contains(&it))
                })
        };
        match problem.split_once(": ") {
            Some((keys, reason)) if is_key(keys) => (Some(keys), reason),
            _ => (None, problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(sets: &[&str]) -> Config {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Config::load(None, &sets).unwrap()
    }

    #[test]
    fn live_keys_are_settings() {
        let keys = Config::keys();
        for key in LIVE_KEYS {
            assert!(keys.iter().any(|it| it == key), "{key} is no setting");
        }
    }

    #[test]
    fn each_setting_is_live_or_has_a_reason() {
        let keys = Config::keys();
        for key in &keys {
            assert_ne!(Config::is_live(key), Config::restart_reason(key).is_some(), "{key}");
        }
        let is_known =
            |name: &&str| keys.iter().any(|key| key == name || key.split('.').next() == Some(name));
        assert!(RESTART_REASONS.iter().all(|(_, names)| names.iter().all(&is_known)));
    }

    #[test]
    fn only_live_settings_change() {
        let old = of(&["limits.conns_per_ip=5"]);
        let fresh = of(&["limits.conns_per_ip=6", "node.shards=3", "listen.origins=[https://a.example]"]);
        let (merged, changes) = old.with_live_settings_of(&fresh).unwrap();
        assert_eq!((merged.limits.conns_per_ip, merged.node.shards), (6, old.node.shards));
        assert_eq!(merged.listen.origins, ["https://a.example"]);
        assert_eq!(changes.live, ["limits.conns_per_ip", "listen.origins"]);
        assert_eq!(changes.needs_restart, ["node.shards", "admin.development"]);
        let (_, again) = merged.with_live_settings_of(&fresh).unwrap();
        assert_eq!((again.live.len(), again.needs_restart), (0, vec!["node.shards".to_owned()]));
    }

    #[test]
    fn longest_lifetime_of_tokens_needs_a_restart() {
        // Revocations are kept for the lifetime that was in force at their time.
        let (old, fresh) = (of(&["auth.max_lifetime_s=600"]), of(&["auth.max_lifetime_s=86400"]));
        let (merged, changes) = old.with_live_settings_of(&fresh).unwrap();
        assert_eq!((merged.auth.max_lifetime_s, changes.live.len()), (600, 0));
        assert_eq!(changes.needs_restart, ["auth.max_lifetime_s"]);
    }

    #[test]
    fn live_settings_have_to_fit_those_that_stay() {
        let old = of(&[]);
        let fresh = of(&["tls.cert_files=[c.pem]", "tls.key_files=[k.pem]", "tls.required=true"]);
        let error = old.with_live_settings_of(&fresh).unwrap_err().to_string();
        assert!(error.contains("tls.required: needs tls.cert_files"), "{error}");
    }

    #[test]
    fn first_key_file_needs_a_restart() {
        let (own, other) = (of(&[]), of(&["auth.key_files=[a=a.pem]"]));
        let more = of(&["auth.key_files=[a=a.pem, b=b.pem]"]);
        let key = vec!["auth.key_files".to_owned()];
        assert_eq!(own.with_live_settings_of(&other).unwrap().1.needs_restart, key);
        assert_eq!(other.with_live_settings_of(&more).unwrap().1.live, key);
    }

    #[test]
    fn problems_name_their_keys() {
        let of = ConfigError::key_and_reason;
        assert_eq!(
            of("limits.hold_max, limits.hold_bytes_max: at least 1").0,
            Some("limits.hold_max, limits.hold_bytes_max")
        );
        assert_eq!(of("tls.min_version: 1.2 or 1.3"), (Some("tls.min_version"), "1.2 or 1.3"));
        assert_eq!(of("invalid type: map").0, None);
    }
}
