//! Figures of a node: their names and sources, and the sampling of one row.

use std::sync::Arc;

use crate::{
    ack_times::{AckPercentiles, AckTimes},
    cluster::Cluster,
    directory::Directory,
    figures::StatsRow,
    metrics::MetricsPage,
};

/// Source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Gauge of the metrics.
    Gauge(&'static str),
    /// Gauge of the metrics in seconds, as ms.
    Seconds(&'static str),
    /// Counter of the metrics, as the difference to the second before.
    Counter(&'static str),
    /// Number of users that are connected to this node.
    Users,
    /// Median time from a send to its ack.
    AckMedian,
    /// 99th percentile of the same.
    AckTail,
}

use Figure::{AckMedian, AckTail, Counter, Gauge, Seconds, Users};

/// Number of figures.
pub(super) const COUNT: usize = 40;

/// All figures. Clients find them by name, so that more can be appended.
const FIELDS: [(&str, Figure); COUNT] = [
    ("clients", Gauge("connections")),
    ("users", Users),
    ("connsAccepted", Counter("connections_accepted_total")),
    ("connsRefused", Counter("connections_refused_total")),
    ("connsClosed", Counter("connections_closed_total")),
    ("slowCloses", Counter("slow_closes_total")),
    ("logins", Counter("logins_total")),
    ("loginsRefused", Counter("login_refusals_total")),
    ("framesIn", Counter("frames_in_total")),
    ("sends", Counter("sends_total")),
    ("accepted", Counter("accepts_total")),
    ("duplicates", Counter("duplicates_total")),
    ("refused", Counter("send_refusals_total")),
    ("rateLimited", Counter("rate_limited_total")),
    ("unknown", Counter("sends_unknown_total")),
    ("pushes", Counter("pushes_total")),
    ("retransmits", Counter("retransmits_total")),
    ("behind", Counter("behind_total")),
    ("shed", Counter("shed_total")),
    ("signals", Counter("signals_total")),
    ("orderBlocked", Counter("order_blocked_total")),
    ("ackP50Us", AckMedian),
    ("ackP99Us", AckTail),
    ("archiveLagRecords", Gauge("archive_lag_records")),
    ("archiveLagMs", Seconds("archive_lag_seconds")),
    ("appendQueueBytes", Gauge("kafka_append_queue_bytes")),
    ("linkFull", Counter("link_full_total")),
    ("partitionsOwned", Gauge("partitions_owned")),
    ("nodesLive", Gauge("nodes_live")),
    ("drainPhase", Gauge("drain_phase")),
    ("memoryUsedBytes", Gauge("memory_used_bytes")),
    ("memoryLimitBytes", Gauge("memory_limit_bytes")),
    ("loadLevel", Gauge("load_level")),
    ("breakerRedis", Gauge("breaker_redis_open")),
    ("breakerRedisMirror", Gauge("breaker_redis_mirror_open")),
    ("breakerRedisPermits", Gauge("breaker_redis_permits_open")),
    ("breakerPostgres", Gauge("breaker_postgres_open")),
    ("breakerHookLogin", Gauge("breaker_hook_login_open")),
    ("breakerHookAllow", Gauge("breaker_hook_allow_open")),
    ("breakerJwks", Gauge("breaker_jwks_open")),
];

/// Prefix of all metrics.
const PREFIX: &str = "tidegate_";

/// Returns the names as a JSON array.
pub(super) fn names() -> String {
    let names: Vec<String> = FIELDS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
    format!("[{}]", names.join(","))
}

/// Sampler of rows.
pub(super) struct Sampler {
    cluster: Arc<Cluster>,
    metrics: MetricsPage,
    directory: Arc<Directory>,
    ack_times: Arc<AckTimes>,
    /// Values of the metrics at the last sample; `None` before the first.
    before: Option<[f64; COUNT]>,
}

impl Sampler {
    /// Creates a sampler that has no sample yet.
    pub(super) fn new(
        cluster: Arc<Cluster>,
        metrics: MetricsPage,
        directory: Arc<Directory>,
        ack_times: Arc<AckTimes>,
    ) -> Self {
        Self { cluster, metrics, directory, ack_times, before: None }
    }

    /// Returns the row of the second that ends now; `None` at the first call, which only begins it.
    pub(super) fn sample(&mut self, now_ms: u64) -> Option<StatsRow> {
        let values = values(&self.metrics.render());
        let acks = self.ack_times.take();
        let before = self.before.replace(values)?;
        let nodes = 1 + self.cluster.peers.others().len();
        let values = row(&values, &before, &Measured { users: self.directory.users(), nodes, acks });
        Some(StatsRow { at_ms: now_ms, values })
    }
}

/// Figures that are no metrics, or of which the metric is of a former renewal of the lease.
struct Measured {
    users: usize,
    nodes: usize,
    acks: AckPercentiles,
}

/// Returns the values of a row.
fn row(now: &[f64; COUNT], before: &[f64; COUNT], measured: &Measured) -> Vec<u64> {
    let value = |(nth, (name, figure)): (usize, &(&str, Figure))| {
        let value = match figure {
            Gauge(_) if *name == "nodesLive" => measured.nodes as f64,
            Gauge(_) => now[nth],
            Seconds(_) => now[nth] * 1_000.0,
            Counter(_) => now[nth] - before[nth],
            Users => measured.users as f64,
            AckMedian => measured.acks.p50_us as f64,
            AckTail => measured.acks.p99_us as f64,
        };
        // A value that is no number becomes 0.
        value.max(0.0).round() as u64
    };
    FIELDS.iter().enumerate().map(value).collect()
}

/// Reads the values of the metrics from their text form; 0 for a figure that is no metric.
fn values(text: &str) -> [f64; COUNT] {
    let mut values = [0.0; COUNT];
    for line in text.lines() {
        let Some((name, value)) = line.strip_prefix(PREFIX).and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let is_source = |(_, figure): &(&str, Figure)| match figure {
            Gauge(metric) | Seconds(metric) | Counter(metric) => *metric == name,
            Users | AckMedian | AckTail => false,
        };
        if let Some(nth) = FIELDS.iter().position(is_source) {
            values[nth] = value.trim().parse().unwrap_or_default();
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    #[test]
    fn each_figure_has_its_own_name_and_an_existing_metric() {
        let mut names: Vec<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FIELDS.len());
        for (name, figure) in FIELDS {
            let (kind, metric) = match figure {
                Gauge(metric) | Seconds(metric) => ("gauge", metric),
                Counter(metric) => ("counter", metric),
                Users | AckMedian | AckTail => continue,
            };
            let metric = format!("{PREFIX}{metric}");
            assert!(
                metrics::ALL.iter().any(|it| (it.0, it.1) == (kind, metric.as_str())),
                "{name}: {metric}"
            );
        }
    }

    #[test]
    fn row_has_gauges_as_they_are_and_counters_by_second() {
        let text = |sends: u32, lag: f64| {
            format!(
                "# HELP tidegate_sends_total Messages.\n# TYPE tidegate_sends_total counter\n\
                 tidegate_sends_total {sends}\n\ntidegate_archive_lag_seconds {lag}\ntidegate_connections 3\n\
                 other_total 9\ntidegate_sends_total_more 8\n"
            )
        };
        let measured = Measured { users: 2, nodes: 3, acks: AckPercentiles { p50_us: 400, p99_us: 900 } };
        let numbers = row(&values(&text(70, 0.25)), &values(&text(50, 9.0)), &measured);
        let of = |name: &str| numbers[FIELDS.iter().position(|(it, _)| *it == name).unwrap()];
        assert_eq!(numbers.len(), COUNT);
        assert_eq!([of("clients"), of("users"), of("sends"), of("archiveLagMs")], [3, 2, 20, 250]);
        assert_eq!([of("nodesLive"), of("ackP50Us"), of("ackP99Us"), of("logins")], [3, 400, 900, 0]);
    }

    #[test]
    fn counter_that_falls_or_is_no_number_is_zero() {
        let measured = Measured { users: 0, nodes: 1, acks: AckPercentiles::default() };
        let odd = values("tidegate_connections NaN\ntidegate_sends_total -5\ntidegate_logins_total x\n");
        let mut expected = vec![0; COUNT];
        // `nodesLive` is no metric.
        expected[FIELDS.iter().position(|(name, _)| *name == "nodesLive").unwrap()] = 1;
        assert_eq!(row(&odd, &[7.0; COUNT], &measured), expected);
    }
}
