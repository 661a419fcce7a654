//! The names of all metrics, and the handles that the code counts with.

use std::{ops::Deref, sync::Arc};

use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

macro_rules! metrics {
    ($($kind:ident $field:ident $name:literal $what:literal)*) => {
        /// One handle a metric, made at start so that every series exists at 0.
        pub struct Handles {
            $(#[doc = $what] pub $field: metrics!(@type $kind),)*
        }

        /// Every metric: (kind, name, what it counts), for the docs and their check.
        pub const ALL: &[(&str, &str, &str)] = &[$((stringify!($kind), $name, $what),)*];

        impl Metrics {
            fn describe() -> Self {
                $(metrics!(@describe $kind $name $what);)*
                Self(Arc::new(Handles { $($field: metrics!(@make $kind $name),)* }))
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
    counter refused "tidegate_connections_refused_total" "Connections refused at the door: caps or memory."
    counter closed "tidegate_connections_closed_total" "Connections ended, for whatever reason."
    counter slow "tidegate_slow_closes_total" "Connections closed because they read too slowly."
    counter panics "tidegate_conn_panics_total" "Panics that ended one connection; should stay 0."
    counter logins "tidegate_logins_total" "Logins that succeeded."
    counter login_refusals "tidegate_login_refusals_total" "Logins refused."
    counter frames_in "tidegate_frames_in_total" "Frames read from clients."
    counter frames_bad "tidegate_frames_malformed_total" "Frames that could not be decoded; each closes its connection."
    counter sends "tidegate_sends_total" "Messages handed to the log or to a room."
    counter accepts "tidegate_accepts_total" "Messages that got a seq."
    counter duplicates "tidegate_duplicates_total" "Sends answered with an earlier seq."
    counter refusals "tidegate_send_refusals_total" "Sends refused."
    counter unknowns "tidegate_sends_unknown_total" "Sends whose answer came too late."
    counter pushes "tidegate_pushes_total" "Pushes written or queued, one a receiver."
    counter retransmits "tidegate_retransmits_total" "Pushes sent again because no ack came."
    counter behind "tidegate_behind_total" "Conversations turned into a Behind hint for a full outbox or mailbox."
    counter shed "tidegate_shed_total" "Room frames dropped for a full outbox or mailbox, or on their way to another node."
    counter signals "tidegate_signals_total" "Volatile frames written, one a receiver."
    counter signals_dropped "tidegate_signals_dropped_total" "Volatile frames dropped: over their sender's budget, not taken at once by a receiver, or on their way to another node."
    counter order_blocked "tidegate_order_blocked_total" "Chains that waited too long for their next id."
    counter order_skipped "tidegate_order_skipped_total" "Ids that a chain gave up waiting for."
    counter expired "tidegate_rows_expired_total" "Rows of history that retention took."
    counter peer_answers_lost "tidegate_peer_answers_lost_total" "Answers that another node did not take; their clients hear UNKNOWN and retry."
    counter answers_recovered "tidegate_answers_recovered_total" "Answers that did not come and that the owner gave when it was asked again."
    counter given_up "tidegate_partitions_given_up_total" "Times this node left the owners for a while, because its archive stood still while others went on."
    counter peer_pushes_lost "tidegate_peer_pushes_lost_total" "Pushes, one a receiver, that another node did not take; their clients pull."
    counter peer_marks_lost "tidegate_peer_marks_lost_total" "Read marks, cleared histories and hidden entries that another node did not hear of; its clients learn them at their next sync."
    counter fan_outs "tidegate_fan_outs_total" "Records of large groups that the topics of nodes took, one a node."
    counter fan_outs_beside "tidegate_fan_outs_beside_total" "Records of large groups that a node's topic did not take, and that went over the link."
    counter fan_outs_lost "tidegate_fan_outs_lost_total" "Records of large groups that did not get to a node, or had no room in it; its members there hear Behind."
    counter fan_outs_idle "tidegate_fan_outs_idle_total" "Records of large groups that other nodes sent here, where nobody is a member."
    counter indexes_read "tidegate_group_indexes_read_total" "Times a node's index of a large group was older than a push, and was brought up from the store."
    gauge node_topic_lag "tidegate_node_topic_lag_records" "Records of this node's own topic that it is not done with, as of the last second in which Kafka said where the topic ends; 0 without Kafka."
    gauge node_topic_lag_seconds "tidegate_node_topic_lag_seconds" "The age of the oldest of those that this node has read and is not done with."
    counter node_topic_gaps "tidegate_node_topic_gaps_total" "Gaps in this node's own topic; members of large groups here hear Behind."
    counter quarantined "tidegate_records_quarantined_total" "Log records that could not be decoded."
    counter accept_pauses "tidegate_accept_pauses_total" "Times accepting paused because file descriptors ran out."
    counter memory_checks "tidegate_memory_checks_total" "Times memory was measured, and admission set by it."
    gauge drain_phase "tidegate_drain_phase" "How far the drain is: 0 ready, 1 cordoned, 2 noticing, 3 draining, 4 flushing."
    counter drain_cut "tidegate_drain_cut_total" "Connections that the drain's deadline cut."
    gauge kafka_queue "tidegate_kafka_append_queue_bytes" "Appended bytes that Kafka has not answered for; 0 without Kafka, as all of these."
    gauge kafka_rtt "tidegate_kafka_rtt_seconds" "Time between a request and the answer of the slowest broker, 99th percentile of the last second."
    gauge kafka_lag "tidegate_kafka_lag_records" "Records of the owned partitions that are not read yet."
    gauge kafka_read_ahead "tidegate_kafka_read_ahead_bytes" "Bytes of records that are read and wait for the ledger."
    counter kafka_errors "tidegate_kafka_errors_total" "Errors that the Kafka client reported, such as a broker that went away."
    counter kafka_unknowns "tidegate_kafka_appends_unknown_total" "Appends that Kafka did not answer in time."
    gauge link_peers "tidegate_link_peers" "Peers that this node has a link to."
    counter link_calls "tidegate_link_calls_total" "Batches handed to the link for a peer: answers, pushes, questions."
    counter link_frames "tidegate_link_frames_total" "Frames sent to peers; each carries all batches that waited."
    counter link_full "tidegate_link_full_total" "Batches not taken because the queue to their peer was full; their pushes are not delivered."
    counter link_timeouts "tidegate_link_timeouts_total" "Batches that no peer replied to in time; their pushes count as not delivered."
    counter link_failures "tidegate_link_failures_total" "Links to peers that ended, or could not be made."
    counter link_refused "tidegate_link_refused_total" "Callers of the link refused in the handshake: wrong secret, another run, too slow; connections one too many, and those on which nobody said in time who it is."
    gauge partitions_owned "tidegate_partitions_owned" "Partitions of the log that this node owns."
    counter rules_switched "tidegate_ledger_rules_switched_total" "Times the rules of an owned partition were switched to a later version."
    gauge rules_unknown "tidegate_ledger_rules_unknown" "The version of the ledger's rules that this node met and does not know, so that it owns no partitions until it is replaced; 0 = none."
    gauge archive_lag "tidegate_archive_lag_records" "Records of the owned partitions that are not archived yet."
    gauge archive_lag_seconds "tidegate_archive_lag_seconds" "For how long the oldest record waits that is not archived, in the owned partition that is furthest behind."
    gauge archive_behind "tidegate_archive_behind_partitions" "Partitions whose sends this node refuses ARCHIVE_BEHIND: their archive is behind by half of what the log keeps."
    gauge nodes_live "tidegate_nodes_live" "Nodes whose lease lives, this one included, as this one saw them last."
    counter lease_failures "tidegate_lease_failures_total" "Renewals of the node's lease that the routes did not answer."
    counter routes_lost "tidegate_routes_lost_total" "Times the routes came back, or had lost something: this node put its own back."
    counter routes_reasserted "tidegate_routes_reasserted_total" "Routes of this node's connections that were asserted again."
    counter rows_reaped "tidegate_routes_reaped_total" "Routes of nodes that died which this node removed."
    counter events "tidegate_events_total" "Events noted: who came and went, what was read, which chain waits."
    counter events_lost "tidegate_events_lost_total" "Events that were not told: too many waited for Kafka, or it refused them for good. A departure among them is told when the node leaves, or is swept."
    counter events_retried "tidegate_events_retried_total" "Tries to tell events that Kafka did not confirm."
    gauge events_waiting "tidegate_events_waiting_bytes" "Events that wait to be told, in bytes."
    gauge memory_used "tidegate_memory_used_bytes" "Resident memory plus kernel socket memory."
    gauge memory_limit "tidegate_memory_limit_bytes" "The budget that admission works with."
}

/// All handles behind one pointer: everything that counts has a clone.
#[derive(Clone)]
pub struct Metrics(Arc<Handles>);

impl Deref for Metrics {
    type Target = Handles;

    fn deref(&self) -> &Handles {
        &self.0
    }
}

/// Installs the recorder of this process and makes the handles; a second node in one process shares it.
pub fn install() -> (Metrics, PrometheusHandle) {
    static RECORDER: std::sync::OnceLock<PrometheusHandle> = std::sync::OnceLock::new();
    let handle = RECORDER.get_or_init(|| {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics stays empty");
        }
        handle
    });
    (Metrics::describe(), handle.clone())
}
