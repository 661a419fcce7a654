//! Metrics: all names with their descriptions, and the handles through which the code counts.

use std::{ops::Deref, sync::Arc};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::figures::CodeCounts;

macro_rules! metrics {
    ($($kind:ident $field:ident $name:literal $what:literal)*) => {
        /// One handle per metric, created at start so that every series exists at 0.
        pub struct Handles {
            $(#[doc = $what] pub $field: metrics!(@type $kind),)*
            /// Codes given to clients; the console shows them, no series does.
            pub codes: Arc<CodeCounts>,
        }

        /// Every metric as (kind, name, description), for the docs and their check.
        pub const ALL: &[(&str, &str, &str)] = &[$((stringify!($kind), $name, $what),)*];

        impl Metrics {
            fn describe() -> Self {
                $(metrics!(@describe $kind $name $what);)*
                Self(Arc::new(Handles { $($field: metrics!(@make $kind $name),)* codes: Arc::default() }))
            }
        }
    };
    (@type counter) => { Counter };
    (@type gauge) => { Gauge };
    (@describe counter $name:literal $what:literal) => { describe_counter!($name, $what) };
    (@describe gauge $name:literal $what:literal) => { describe_gauge!($name, $what) };
    (@make counter $name:literal) => { counter!($name) };
    (@make gauge $name:literal) => { gauge!($name) };
}

metrics! {
    gauge conns "tidegate_connections" "Open connections."
    counter accepted "tidegate_connections_accepted_total" "Connections accepted."
    counter refused "tidegate_connections_refused_total" "Connections refused on accept: caps, memory or full queues."
    counter tls_handshakes "tidegate_tls_handshakes_total" "TLS handshakes of clients that succeeded."
    counter tls_failures "tidegate_tls_failures_total" "TLS handshakes of clients that failed: no common version or name, a certificate that the client refused, or bytes that are no TLS."
    counter openings_late "tidegate_openings_late_total" "Connections closed because their PROXY header or TLS handshake was not complete in time."
    gauge tls_expires "tidegate_tls_certificate_expires_seconds" "When the first certificate of the client port expires, in seconds since 1970; 0 without TLS."
    counter tls_reloads "tidegate_tls_reloads_total" "Times the certificates of the client port were read again."
    counter tls_reload_errors "tidegate_tls_reload_errors_total" "Times changed certificates could not be used; the former ones stay in force."
    counter closed "tidegate_connections_closed_total" "Connections ended, for any reason."
    counter slow "tidegate_slow_closes_total" "Connections closed because they read too slowly."
    counter panics "tidegate_conn_panics_total" "Panics that ended one connection or one query; should stay 0."
    counter logins "tidegate_logins_total" "Logins that succeeded."
    counter login_refusals "tidegate_login_refusals_total" "Logins refused."
    counter tokens_expired "tidegate_tokens_expired_total" "Tokens refused because exp has passed."
    counter tokens_time "tidegate_tokens_time_total" "Tokens refused because nbf has not come, or because they are valid for longer than auth.max_lifetime_s."
    counter tokens_foreign "tidegate_tokens_foreign_total" "Tokens refused because of another issuer or audience."
    counter tokens_unknown_key "tidegate_tokens_unknown_key_total" "Tokens refused because no key has their kid."
    counter tokens_algorithm "tidegate_tokens_algorithm_total" "Tokens refused because their algorithm is not that of the key, or none."
    counter tokens_forged "tidegate_tokens_forged_total" "Tokens refused because they are signed with another key."
    counter tokens_malformed "tidegate_tokens_malformed_total" "Tokens refused because they are no JWT, too large, or have claims that are not well formed."
    counter tokens_deferred "tidegate_tokens_deferred_total" "Tokens refused for now: too many waited for a check, or the keys were never loaded."
    counter jwks_refreshes "tidegate_jwks_refreshes_total" "Times the set of auth.jwks_url was loaded."
    counter jwks_failures "tidegate_jwks_failures_total" "Times the set of auth.jwks_url could not be loaded: unavailable, slow, too large or no set; the last good one stays in force."
    gauge jwks_keys "tidegate_jwks_keys" "Keys that verify tokens, as of the last refresh of auth.jwks_url; 0 without it."
    counter frames_in "tidegate_frames_in_total" "Frames read from clients."
    counter frames_bad "tidegate_frames_malformed_total" "Frames that could not be decoded; each closes its connection."
    counter sends "tidegate_sends_total" "Messages handed to the log or to a room."
    counter accepts "tidegate_accepts_total" "Messages that got a seq."
    counter duplicates "tidegate_duplicates_total" "Sends answered with an earlier seq."
    counter refusals "tidegate_send_refusals_total" "Sends refused."
    counter rate_limited "tidegate_rate_limited_total" "Requests refused with RATE_LIMITED: logins, joins, reads and sends over a limit of `limits`."
    counter rate_hits_forgotten "tidegate_rate_hits_forgotten_total" "Hits that rate limits forgot because more keys than they hold were busy; so many hits were possibly admitted over a limit."
    counter unknowns "tidegate_sends_unknown_total" "Sends whose reply came too late."
    counter pushes "tidegate_pushes_total" "Pushes written or queued, one per receiver."
    counter retransmits "tidegate_retransmits_total" "Pushes sent again because no ack came."
    counter behind "tidegate_behind_total" "Conversations whose pushes were replaced by a Behind hint, because an outbox or mailbox was full."
    counter shed "tidegate_shed_total" "Room frames dropped: outbox or mailbox full, or lost on the way to another node."
    counter signals "tidegate_signals_total" "Volatile frames written, one per receiver."
    counter signals_dropped "tidegate_signals_dropped_total" "Volatile frames dropped: sender over its rate, receiver busy, or lost on the way to another node."
    counter order_blocked "tidegate_order_blocked_total" "Chains that waited too long for their next id."
    counter order_skipped "tidegate_order_skipped_total" "Ids that a chain stopped waiting for and skipped."
    counter expired "tidegate_rows_expired_total" "Rows of history removed by retention."
    counter peer_answers_lost "tidegate_peer_answers_lost_total" "Replies that another node did not accept; their clients get UNKNOWN and retry."
    counter answers_recovered "tidegate_answers_recovered_total" "Replies that were missing and that the owner repeated on request."
    counter given_up "tidegate_partitions_given_up_total" "Times this node left the owners group because its archive stalled while others progressed."
    counter peer_pushes_lost "tidegate_peer_pushes_lost_total" "Pushes that another node did not accept, one per receiver; their clients pull."
    counter peer_marks_lost "tidegate_peer_marks_lost_total" "Read marks, cleared histories and hidden entries that did not reach another node; its clients get them at their next sync."
    counter fan_outs "tidegate_fan_outs_total" "Large-group records appended to node topics, one per node."
    counter fan_outs_beside "tidegate_fan_outs_beside_total" "Large-group records sent over the link because the node topic did not accept them."
    counter fan_outs_lost "tidegate_fan_outs_lost_total" "Large-group records that did not reach a node, or exceeded its capacity; its members there get Behind."
    counter fan_outs_idle "tidegate_fan_outs_idle_total" "Large-group records received from other nodes although this node has no member of the group."
    counter indexes_read "tidegate_group_indexes_read_total" "Times this node's index of a large group was older than a push and was updated from the store."
    gauge node_topic_lag "tidegate_node_topic_lag_records" "Records of this node's topic that are not processed yet, as of the last second in which Kafka reported the end of the topic; 0 without Kafka."
    gauge node_topic_lag_seconds "tidegate_node_topic_lag_seconds" "Age of the oldest node-topic record that is read but not processed."
    counter node_topic_gaps "tidegate_node_topic_gaps_total" "Gaps in this node's topic; members of large groups on this node get Behind."
    counter quarantined "tidegate_records_quarantined_total" "Log records that could not be decoded."
    counter accept_pauses "tidegate_accept_pauses_total" "Times accepting paused because file descriptors ran out."
    counter memory_checks "tidegate_memory_checks_total" "Times memory was measured and admission adjusted to it."
    gauge drain_phase "tidegate_drain_phase" "Phase of the drain: 0 ready, 1 cordoned, 2 noticing, 3 draining, 4 flushing."
    counter drain_cut "tidegate_drain_cut_total" "Connections cut at the drain's deadline."
    gauge kafka_queue "tidegate_kafka_append_queue_bytes" "Appended bytes that Kafka has not confirmed; like all of these, 0 without Kafka."
    gauge kafka_rtt "tidegate_kafka_rtt_seconds" "Round-trip time of the slowest broker, 99th percentile of the last second."
    gauge kafka_lag "tidegate_kafka_lag_records" "Records of the owned partitions that are not read yet."
    gauge kafka_read_ahead "tidegate_kafka_read_ahead_bytes" "Bytes of records that are read and wait for the ledger."
    counter kafka_errors "tidegate_kafka_errors_total" "Errors reported by the Kafka client, such as an unavailable broker."
    counter kafka_unknowns "tidegate_kafka_appends_unknown_total" "Appends that Kafka did not confirm in time."
    gauge link_peers "tidegate_link_peers" "Peers that this node has a link to."
    counter link_calls "tidegate_link_calls_total" "Batches handed to the link for a peer: replies, pushes, queries."
    counter link_frames "tidegate_link_frames_total" "Frames sent to peers; each carries all batches that waited."
    counter link_full "tidegate_link_full_total" "Batches refused because the queue to their peer was full; their pushes are not delivered."
    counter link_timeouts "tidegate_link_timeouts_total" "Batches without a timely reply from their peer; their pushes count as not delivered."
    counter link_failures "tidegate_link_failures_total" "Links to peers that broke or could not be opened."
    counter link_refused "tidegate_link_refused_total" "Link callers refused in the handshake: wrong secret, another run, too slow, too many connections, or not authenticated in time."
    counter figures_dropped "tidegate_peer_figures_dropped_total" "Answers with figures of a peer that were dropped, because they exceeded its allowance of 64 KiB a second; the console lacks them."
    gauge partitions_owned "tidegate_partitions_owned" "Partitions of the log that this node owns."
    counter rules_switched "tidegate_ledger_rules_switched_total" "Times the rules of an owned partition were switched to a later version."
    gauge clock_distrusted "tidegate_clock_distrusted" "Whether messages and dedup keys do not expire, because the clock of this node differs from that of the store, or was set. 0: no, 1: yes."
    gauge rules_unknown "tidegate_ledger_rules_unknown" "Version of the ledger's rules that this node met and does not know; it owns no partitions until it is replaced. 0: none."
    gauge archive_lag "tidegate_archive_lag_records" "Records of the owned partitions that are not archived yet."
    gauge archive_lag_seconds "tidegate_archive_lag_seconds" "Age of the oldest unarchived record, in the owned partition with the largest lag."
    gauge archive_behind "tidegate_archive_behind_partitions" "Partitions whose sends this node refuses with ARCHIVE_BEHIND: their archive lags by half of what the log keeps."
    gauge nodes_live "tidegate_nodes_live" "Nodes with a live lease, this one included, as this node last saw them."
    counter lease_failures "tidegate_lease_failures_total" "Renewals of the node's lease that the routes did not answer."
    counter routes_lost "tidegate_routes_lost_total" "Times the routes came back or had lost data, so that this node re-asserted its own."
    counter routes_reasserted "tidegate_routes_reasserted_total" "Routes of this node's connections that were re-asserted."
    counter rows_reaped "tidegate_routes_reaped_total" "Routes of dead nodes that this node removed."
    counter events "tidegate_events_total" "Events recorded: online, offline, read markers, blocked chains, audit."
    counter events_lost "tidegate_events_lost_total" "Events dropped: queue full, or permanently rejected by Kafka. Departures are still published when the node drains or is reaped."
    counter events_retried "tidegate_events_retried_total" "Retries of events that Kafka did not confirm."
    gauge events_waiting "tidegate_events_waiting_bytes" "Events that wait to be published, in bytes."
    gauge admin_keys "tidegate_admin_keys" "Keys in the file of the admin port as this node last read it, revoked and expired ones included."
    gauge admin_keys_broken "tidegate_admin_keys_broken" "Whether the file of keys can't be used now, so that those read before stay in force. 0: no, 1: yes."
    counter admin_keys_missing "tidegate_admin_keys_missing_total" "Requests to the admin port refused because they had no key (KEY_INVALID)."
    counter admin_keys_refused "tidegate_admin_keys_refused_total" "Requests to the admin port refused because of their key: unknown, malformed, revoked, expired, or from a foreign network (KEY_INVALID); also those beyond the limit of an address (RATE_LIMITED)."
    counter admin_scopes_missing "tidegate_admin_scopes_missing_total" "Requests to the admin port refused because their key has not the scope (SCOPE_MISSING)."
    counter audit_lines "tidegate_audit_lines_total" "Lines written to the audit file."
    counter audit_failures "tidegate_audit_failures_total" "Lines that could not be written to the audit file; the log has them."
    counter audit_refusals "tidegate_audit_refusals_total" "Changes by the admin API refused because they could not be recorded (AUDIT_UNAVAILABLE)."
    gauge memory_used "tidegate_memory_used_bytes" "Resident memory plus kernel socket memory."
    gauge memory_limit "tidegate_memory_limit_bytes" "Memory budget of admission."
    gauge ledger_cache "tidegate_ledger_cache_bytes" "Estimated memory of the rows that the owners of the node's partitions cache."
}

/// Shared pointer to all handles; each component that counts has a clone.
#[derive(Clone)]
pub struct Metrics(Arc<Handles>);

impl Deref for Metrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

/// Installs the recorder of this process and creates the handles; a second node in the process shares the recorder.
pub fn install() -> (Metrics, PrometheusHandle) {
    static RECORDER: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    let handle = RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is already installed; /metrics stays empty");
        }
        handle
    });
    (Metrics::describe(), handle.clone())
}
