//! Settings of a cluster that shares its services with other clusters.

use std::path::Path;

/// Returns the settings by which the nodes of a cluster know each other and keep apart from other clusters: all names on the
/// services begin with `name`, which is also that of the database at `postgres_url`.
pub(crate) fn cluster_sets(
    name: &str,
    [token_key, link_secret]: [&Path; 2],
    brokers: &str,
    postgres_url: &str,
) -> Vec<String> {
    vec![
        "node.profile=cluster".to_owned(),
        format!("auth.key_file={}", token_key.display()),
        format!("link.secret_file={}", link_secret.display()),
        format!("kafka.brokers=[{brokers}]"),
        format!("kafka.topic={name}.log"),
        format!("kafka.group={name}.owners"),
        format!("kafka.node_topic={name}.node"),
        format!("kafka.event_topic={name}.events"),
        format!("redis.prefix={name}"),
        format!("postgres.url={postgres_url}"),
    ]
}
