//! Validation of a configuration: collects all problems, each with its cure.

use std::net::SocketAddr;

use super::{Config, FaultConfig, LimitsConfig, ListenConfig};
use crate::networks::Networks;

impl Config {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        let mut need = |ok: bool, what: &str| {
            if !ok {
                problems.push(what.to_owned());
            }
        };
        let timing = &self.timing;
        need(
            tidegate_protocol::id::check_id(&self.node.id).is_ok(),
            "node.id: must match [A-Za-z0-9_.-]{1,64}",
        );
        need(
            self.node.ids <= 1_000 && (self.node.ids == 0 || self.node.id.len() <= 60),
            "node.ids: at most 1000, and with it node.id at most 60 characters",
        );
        need(
            self.node.ids == 0 || self.node.profile == "cluster",
            "node.ids: only with node.profile = `cluster`; remove it, a single node is named by node.id",
        );
        self.check_profile(&mut need);
        self.kafka.check(timing.reply_ms, &mut need);
        self.hooks.check_times(timing.reply_ms, &mut need);
        need(self.node.shards <= crate::directory::SHARDS_MAX, "node.shards: at most 64");
        self.check_client_port(&mut need);
        self.limits.check(&mut need);
        self.assign.check(&mut need);
        self.link.check(&mut need);
        self.redis.check(&mut need);
        self.postgres.check(&mut need);
        self.trace.check(&mut need);
        self.storm.check(&self.node.profile, &mut need);
        self.rooms.check(&mut need);
        self.overload.check(&mut need);
        self.log.check(&mut need);
        need(self.socket.user_timeout_ms <= 3_600_000, "socket.user_timeout_ms: at most one hour");
        let positive = [
            timing.handshake_ms,
            timing.frame_ms,
            timing.order_timeout_ms,
            timing.reply_ms,
            timing.ack_timeout_ms,
            timing.write_ms,
        ];
        need(
            positive.iter().all(|ms| (10..=3_600_000).contains(ms)),
            "timing: each between 10 ms and one hour",
        );
        need(
            (100..=3_600_000).contains(&timing.heartbeat_ms),
            "timing.heartbeat_ms: between 100 ms and one hour",
        );
        need(timing.linger_ms <= 10_000, "timing.linger_ms: at most 10000");
        self.check_drain(&mut need);
        need(
            ["none", "1d", "7d", "30d", "forever"].contains(&self.retention.messages.as_str()),
            "retention.messages: none, 1d, 7d, 30d or forever",
        );
        need(
            (1_000..=3_600_000).contains(&self.retention.sweep_ms),
            "retention.sweep_ms: between one second and one hour",
        );
        need(
            (8..=3_650).contains(&self.retention.keys_days),
            "retention.keys_days: between 8 and 3650; clients may retry for 7 days",
        );
        self.events.check(&mut need);
        self.fault.check(&mut need);
    }
}

impl Config {
    /// Checks the settings that depend on the profile or the purpose of the node; mixtures are refused.
    fn check_profile(&self, need: &mut impl FnMut(bool, &str)) {
        let (node, kafka) = (&self.node, &self.kafka);
        self.check_admin(need);
        self.auth.check(need);
        need(
            self.auth.token_bytes_max + 256 <= self.limits.hello_bytes_max,
            "auth.token_bytes_max: at least 256 less than limits.hello_bytes_max, or a login can't carry such a token; raise that one too",
        );
        self.hooks.check(self.timing.handshake_ms, &self.listen.origins, need);
        self.webhooks.check(need);
        self.login.check(need);
        need(matches!(node.store.as_str(), "embedded" | "memory"), "node.store: `embedded` or `memory`");
        need(
            kafka.message_topic.is_empty() || node.profile == "cluster",
            "kafka.message_topic: needs node.profile = `cluster`; remove it, and follow a single node with GET /v1/events/stream",
        );
        need(
            kafka.message_topic.is_empty() || self.events.feed,
            "kafka.message_topic: needs events.feed = true, from which it is filled; set that, or remove the topic",
        );
        need(
            !kafka.event_changes
                || (node.profile == "cluster" && self.events.feed && !kafka.event_topic.is_empty()),
            "kafka.event_changes: needs node.profile = `cluster`, kafka.event_topic, and events.feed = true; set these, or remove it",
        );
        let brokers = !kafka.brokers.is_empty() || !kafka.node_brokers.is_empty();
        match node.profile.as_str() {
            "single" => need(
                !brokers,
                "kafka.brokers: ignored with node.profile = `single`; set node.profile = `cluster`, or remove them",
            ),
            "cluster" => {
                need(
                    !kafka.brokers.is_empty(),
                    "node.profile: `cluster` needs kafka.brokers for its log; set them, or set node.profile = `single`",
                );
                need(
                    node.store == "embedded",
                    "node.store: `memory` needs node.profile = `single`; remove it with `cluster`",
                );
                need(
                    self.limits.content_bytes_max + 2_048 <= kafka.record_bytes_max,
                    "limits.content_bytes_max: at least 2048 less than kafka.record_bytes_max, or the log refuses a large message",
                );
                self.check_answer(need);
            }
            _ => need(false, "node.profile: `single` or `cluster`"),
        }
    }
}

impl Config {
    /// Checks that acks before the archive are safe: records have several copies, and peers have time to report what
    /// they have not archived.
    fn check_answer(&self, need: &mut impl FnMut(bool, &str)) {
        let problem = self.log.low_replication(self.kafka.replication);
        if let Some(why) = problem.filter(|_| !self.log.allow_one_copy) {
            need(false, &format!("{why}; if messages may be lost, set log.allow_one_copy=true"));
        }
        need(
            self.link.timeout_ms >= 500 || self.log.answers_first().is_none(),
            "link.timeout_ms: at least 500 with log.answer = `decided`, or slow peers count as dead",
        );
    }
}

impl ListenConfig {
    /// Returns the address of the port for probes and metrics; `None` if it is not set.
    pub fn monitor_address(&self) -> Option<SocketAddr> {
        self.monitor.parse().ok()
    }

    pub(super) fn check(&self, is_encrypted: bool, need: &mut impl FnMut(bool, &str)) {
        need(
            self.allow_public || is_encrypted || self.client.ip().is_loopback(),
            "listen.client: not a loopback address, and connections may be without TLS; set tls.cert_files, tls.key_files \
             and tls.required, or listen.allow_public=true if a proxy encrypts them",
        );
        need(
            ["x-forwarded-for", "forwarded"].contains(&self.forwarded_header.as_str()),
            "listen.forwarded_header: x-forwarded-for or forwarded",
        );
        for (key, networks) in [("listen.proxies", &self.proxies), ("listen.forwarders", &self.forwarders)] {
            if let Err(error) = Networks::parse(networks) {
                need(false, &format!("{key}: {error}"));
            }
        }
        self.check_monitor(need);
    }

    fn check_monitor(&self, need: &mut impl FnMut(bool, &str)) {
        need(
            self.monitor.is_empty() || self.monitor_address().is_some(),
            "listen.monitor: write address:port, such as 0.0.0.0:7803, or leave it empty for none",
        );
    }
}

impl FaultConfig {
    fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let is_off = self.panic_on_msg_id.is_empty() && self.rules_max == 0 && self.webhook_aside_ms == 0;
        need(
            cfg!(debug_assertions) || is_off,
            "fault.panic_on_msg_id, fault.rules_max, fault.webhook_aside_ms: not available in a release build; remove them",
        );
        need(
            ["", "connection", "shard", "owner"].contains(&self.panic_in.as_str()),
            "fault.panic_in: `connection`, `shard` or `owner`",
        );
    }

    /// Returns the message id that causes a panic in `part`; empty if the fault is not set or for another part.
    pub fn panic_on_msg_id_in(&self, part: &str) -> String {
        let planned = if self.panic_in.is_empty() { "connection" } else { &self.panic_in };
        if planned == part { self.panic_on_msg_id.clone() } else { String::new() }
    }
}

impl LimitsConfig {
    fn check(&self, need: &mut impl FnMut(bool, &str)) {
        let limits = self;
        need(
            (256..=1 << 20).contains(&limits.frame_bytes_max),
            "limits.frame_bytes_max: between 256 and 1048576 bytes",
        );
        need(
            (256..=64 * 1024).contains(&limits.hello_bytes_max),
            "limits.hello_bytes_max: between 256 and 65536 bytes",
        );
        need(
            limits.content_bytes_max > 0 && limits.content_bytes_max + 256 <= limits.frame_bytes_max,
            "limits.content_bytes_max: at least 1, and 256 less than limits.frame_bytes_max",
        );
        need(
            limits.content_bytes_max + 1_024 <= limits.intake_bytes_max,
            "limits.intake_bytes_max: at least 1024 more than limits.content_bytes_max, or a large message always gets BUSY",
        );
        need(
            limits.content_bytes_max + 1_024 <= limits.window_bytes_max,
            "limits.window_bytes_max: at least 1024 more than limits.content_bytes_max, or a large message is never pushed",
        );
        need(
            (4_096..=1 << 30).contains(&limits.mailbox_bytes_max),
            "limits.mailbox_bytes_max: between 4096 bytes and 1 GiB",
        );
        need(
            limits.ledger_cache_bytes_max == 0 || limits.ledger_cache_bytes_max >= 1 << 20,
            "limits.ledger_cache_bytes_max: 0, or at least 1048576 bytes",
        );
        need(
            limits.signal_bytes_max + 256 <= limits.frame_bytes_max,
            "limits.signal_bytes_max: 256 less than limits.frame_bytes_max",
        );
        need(
            limits.signals_per_second <= 1_000,
            "limits.signals_per_second: at most 1000, or a connection could keep a shard busy with them",
        );
        need(
            (1_000..=10_000_000).contains(&limits.watched_members_max),
            "limits.watched_members_max: between 1000 and 10000000; to report no user, set limits.watched_max = 0",
        );
        need((1..=10_000).contains(&limits.watches_per_user), "limits.watches_per_user: between 1 and 10000");
        need(
            (1..=100_000).contains(&limits.presence_users_per_second),
            "limits.presence_users_per_second: between 1 and 100000; to report no user, set limits.watched_max = 0",
        );
        need(limits.in_flight_max > 0, "limits.in_flight_max: at least 1");
        need(
            limits.hold_max > 0 && limits.hold_bytes_max > 0,
            "limits.hold_max, limits.hold_bytes_max: at least 1",
        );
        need(limits.outbox_bytes_max >= 4096, "limits.outbox_bytes_max: at least 4096 bytes");
        need(limits.control_bytes_max >= 4096, "limits.control_bytes_max: at least 4096 bytes");
        need(limits.window_max > 0, "limits.window_max: at least 1");
    }
}

/// Returns why these settings are refused; empty if they are accepted.
#[cfg(test)]
pub(crate) fn problem(sets: &[&str]) -> String {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::load(None, &sets).err().map(|error| error.to_string()).unwrap_or_default()
}
