//! `compose.yaml` and what it mounts agree with the binary: settings, commands, ports, metrics.
//!
//! Its form is checked by `cargo xtask test schema`. Here it is read line by line, as it is written: two spaces a level.

use std::collections::{BTreeMap, BTreeSet};

use clap::Parser as _;
use serde_json::Value;
use tidegate::{cli::Cli, config::Config};

use crate::{read, root};

/// Returns the lines of each block at this depth, by the name in its first line.
fn blocks(lines: &[&str], depth: usize) -> BTreeMap<String, Vec<String>> {
    let indent = " ".repeat(depth);
    let mut blocks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut name = String::new();
    for line in lines.iter().filter(|line| !line.trim_start().starts_with('#')) {
        let own = line.strip_prefix(&indent).filter(|rest| !rest.starts_with(' '));
        match own.and_then(|rest| rest.split_once(':')) {
            Some((begun, rest)) => {
                name = begun.trim().to_owned();
                blocks.entry(name.clone()).or_default().push(rest.trim().to_owned());
            }
            None => blocks.entry(name.clone()).or_default().push((*line).to_owned()),
        }
    }
    blocks
}

fn services() -> BTreeMap<String, Vec<String>> {
    let file = read("compose.yaml");
    let top = blocks(&file.lines().collect::<Vec<_>>(), 0);
    let lines: Vec<&str> =
        top["services"].iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
    blocks(&lines, 2)
}

/// Returns the `TIDEGATE__SECTION__KEY: value` of these lines in the form that `--set` accepts.
fn sets<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let settings = lines.filter_map(|line| line.trim().strip_prefix("TIDEGATE__")?.split_once(": "));
    settings
        .map(|(name, value)| {
            let key = name.to_lowercase().replacen("__", ".", 1);
            assert!(Config::keys().contains(&key), "compose.yaml: TIDEGATE__{name} is no setting");
            let value = value.trim().trim_matches('"');
            let list = ["kafka.brokers", "redis.urls"].contains(&key.as_str());
            if list { format!("{key}=[{value}]") } else { format!("{key}={value}") }
        })
        .collect()
}

/// Returns the settings of each node.
fn nodes() -> Vec<Config> {
    let (file, services) = (read("compose.yaml"), services());
    let shared = sets(file.lines().take_while(|line| !line.starts_with("services:")));
    assert!(shared.len() > 5, "the settings that the nodes share were not found");
    let own = services.values().filter(|lines| lines.iter().any(|line| line.contains("<<: *node")));
    let all = own.map(|lines| {
        let own = sets(lines.iter().map(String::as_str));
        let all: Vec<String> = shared.iter().cloned().chain(own).collect();
        Config::load(None, &all).unwrap_or_else(|error| panic!("compose.yaml: {error}"))
    });
    all.collect()
}

/// Returns the list `[a, b]`, quoted or not, after this key.
fn list<'a>(lines: &'a [String], key: &str) -> Option<Vec<&'a str>> {
    let line = lines.iter().find_map(|line| line.trim().strip_prefix(key)?.strip_prefix(": ["))?;
    Some(line.trim_end_matches(']').split(", ").map(|word| word.trim_matches('"')).collect())
}

#[test]
fn compose_nodes_have_valid_settings_and_distinct_ports() {
    let nodes = nodes();
    let ids: BTreeSet<&str> = nodes.iter().map(|config| config.node.id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from(["n1", "n2", "n3"]));
    let ports =
        nodes.iter().flat_map(|config| [config.listen.client, config.listen.admin, config.link.listen]);
    let ports: BTreeSet<u16> = ports.map(|address| address.port()).collect();
    assert_eq!(ports.len(), 9, "they share one network: {ports:?}");
    for config in &nodes {
        assert_eq!(config.node.profile, "cluster");
        let (id, port) = (&config.node.id, config.listen.client.port());
        let published = format!("- \"127.0.0.1:{port}:{port}\"");
        assert!(services()["net"].iter().any(|line| line.trim() == published), "`net` does not publish {id}");
        let scraped = format!("targets: [\"127.0.0.1:{}\"]", config.listen.admin.port());
        assert!(read("deploy/prometheus.yml").contains(&scraped), "Prometheus does not scrape {id}");
        // Dependencies have the host names under which compose runs them.
        let postgres = config.postgres.url.rsplit_once('@').map(|(_, host)| host).unwrap_or_default();
        let redis = config.redis.urls[0].trim_start_matches("redis://");
        for (address, port) in [(config.kafka.brokers[0].as_str(), 9092), (redis, 6379), (postgres, 5432)] {
            let (host, rest) = address.split_once(':').expect("host:port");
            assert!(services().contains_key(host), "no service is called {host}");
            assert!(rest.split('/').next() == Some(&port.to_string()), "{address}");
        }
    }
}

#[test]
fn compose_commands_exist_in_the_binary() {
    let file = read("compose.yaml");
    let lines: Vec<String> = file.lines().map(str::to_owned).collect();
    let mut seen = BTreeSet::new();
    let ours =
        services().into_iter().filter(|(_, lines)| lines.iter().any(|line| line.contains("<<: *tidegate")));
    let ours = ours.filter_map(|(_, lines)| list(&lines, "command").map(|words| words.join(" ")));
    let own: Vec<String> = ours.chain(list(&lines, "command").map(|words| words.join(" "))).collect();
    let probes =
        lines.iter().filter_map(|line| line.trim().strip_prefix("test: [CMD, tidegate, ")?.strip_suffix(']'));
    for words in own.into_iter().chain(probes.map(|probe| probe.replace(", ", " "))) {
        let words: Vec<&str> = std::iter::once("tidegate").chain(words.split(' ')).collect();
        seen.insert(words[1].to_owned());
        Cli::try_parse_from(&words).unwrap_or_else(|error| panic!("compose.yaml: {words:?}: {error}"));
    }
    assert_eq!(seen, ["nodes", "serve", "topics"].map(str::to_owned).into());
}

#[test]
fn compose_mounts_exist_and_the_dashboard_uses_real_metrics() {
    let file = read("compose.yaml");
    let mounted: Vec<&str> = file
        .split("./deploy/")
        .skip(1)
        .filter_map(|rest| rest.split_once(':').map(|(path, _)| path))
        .collect();
    assert!(mounted.len() >= 3, "{mounted:?}");
    for path in mounted {
        assert!(root().join("deploy").join(path).exists(), "deploy/{path} does not exist");
    }
    let dashboard: Value =
        serde_json::from_str(&read("deploy/grafana/dashboards/tidegate.json")).expect("a dashboard is JSON");
    let targets =
        dashboard["panels"].as_array().into_iter().flatten().filter_map(|it| it["targets"].as_array());
    let asked: Vec<&str> = targets.flatten().filter_map(|target| target["expr"].as_str()).collect();
    assert!(asked.len() > 5, "the queries of the dashboard were not found");
    for question in asked {
        let name = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = question.split(|c| !name(c)).filter(|word| word.starts_with("tidegate_"));
        for word in words {
            let mut known = tidegate::metrics::ALL.iter();
            let is_series = |kind: &str, name: &str| match kind {
                "histogram" => word.strip_suffix("_bucket") == Some(name),
                _ => word == name,
            };
            assert!(known.any(|(kind, name, _)| is_series(kind, name)), "no metric is called {word}");
        }
    }
}
