//! Checks of alerts, dashboard and scrapes, against schemas, Prometheus itself, and the existing metrics and pages.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{object, render::Settings};
use crate::{shell, shell::Shell, tools};

/// Schemas of kinds that are not built into Kubernetes.
const SCHEMAS: &[(&str, &str)] = &[
    ("PodMonitor", "k8s/components/monitoring/schemas/podmonitor.json"),
    ("PrometheusRule", "k8s/components/monitoring/schemas/prometheusrule.json"),
];

/// The cases of each alert: series, and the time at which it comes.
const TESTS: &str = "tests/k8s/alerts.test.yaml";
const RUNBOOK: &str = "docs/OPERATIONS.md";

/// Returns whether the kind is not one of Kubernetes itself; the validator does not know it.
pub(super) fn is_foreign(document: &Value) -> bool {
    SCHEMAS.iter().any(|(kind, _)| document["kind"] == *kind)
}

/// Checks the monitoring where a folder has it, and returns the number of planted faults that were found.
pub(super) fn check(shell: &Shell, documents: &[Value], scratch: &Path) -> anyhow::Result<usize> {
    let foreign: Vec<&Value> = documents.iter().filter(|it| is_foreign(it)).collect();
    if foreign.is_empty() {
        return Ok(0);
    }
    for (kind, schema) in SCHEMAS {
        let file = scratch.join(format!("{kind}.json"));
        let one =
            foreign.iter().find(|it| it["kind"] == *kind).with_context(|| format!("there is no {kind}"))?;
        fs::write(&file, one.to_string())?;
        let check = tools::check_jsonschema(shell)?;
        shell::run(shell.command(check).args(["--schemafile", schema]).arg(file))?;
    }
    let rules = documents.iter().find(|it| it["kind"] == "PrometheusRule").context("there are no rules")?;
    fs::write(scratch.join("alerts.yaml"), rules["spec"].to_string())?;
    let tests = scratch.join("alerts.test.yaml");
    fs::copy(shell.root.join(TESTS), &tests)?;
    let promtool = tools::promtool(shell)?;
    let rules = ["check", "rules", "--lint=all", "--lint-fatal"];
    shell::run(shell.command(&promtool).args(rules).arg(scratch.join("alerts.yaml")))?;
    shell::run(shell.command(&promtool).args(["test", "rules"]).arg(tests))?;
    let mut known = Known::read(shell)?;
    let problems = known.problems(documents);
    if !problems.is_empty() {
        bail!("the monitoring does not fit the binary:\n  {}", problems.join("\n  "));
    }
    let plants = plants();
    for (what, kind, path, value, expected) in &plants {
        let mut planted = documents.to_vec();
        let place = planted.iter_mut().find(|it| it["kind"] == *kind).and_then(|it| it.pointer_mut(path));
        *place.with_context(|| format!("{what} can't be planted"))? = value.clone();
        let problems = known.problems(&planted);
        if !problems.iter().any(|problem| problem.contains(expected)) {
            bail!(
                "no check reports {expected:?} for {what}: {kind} {path} = {value}; reported: {problems:?}"
            );
        }
    }
    let written = known.runbook.clone();
    let slips = [
        ("(#tidegatenodedied)", "(#tidegatenodegone)", "has no section #tidegatenodegone"),
        ("`killed_owner_", "`killed_user_", "has no test killed_user_"),
    ];
    for (right, wrong, expected) in slips {
        known.runbook = written.replacen(right, wrong, 1);
        if !known.problems(documents).iter().any(|problem| problem.contains(expected)) {
            bail!("no check reports {expected:?} for {wrong} in {RUNBOOK}");
        }
    }
    Ok(plants.len() + slips.len())
}

/// The names that alerts and panels may use.
struct Known {
    metrics: BTreeSet<String>,
    /// Headings of the runbook, as links name them.
    anchors: BTreeSet<String>,
    runbook: String,
    tests: String,
    root: PathBuf,
    /// Default number of partitions of the log.
    partitions: String,
}

impl Known {
    fn read(shell: &Shell) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(shell.root.join(path)).with_context(|| path.to_owned());
        let (metrics, settings, runbook) =
            (read("docs/metrics.md")?, read("docs/config.md")?, read(RUNBOOK)?);
        let partitions = settings.lines().find_map(|line| line.strip_prefix("| `kafka.partitions` | `"));
        let partitions = partitions.and_then(|rest| rest.split('`').next()).context("no kafka.partitions")?;
        let headings = runbook.lines().filter_map(|line| line.strip_prefix("### "));
        Ok(Self {
            metrics: metrics.lines().filter_map(|line| line.strip_prefix("| `")).flat_map(series).collect(),
            anchors: headings.map(str::to_lowercase).collect(),
            partitions: partitions.to_owned(),
            tests: read(TESTS)?,
            root: shell.root.clone(),
            runbook,
        })
    }

    /// All that is wrong.
    fn problems(&self, documents: &[Value]) -> Vec<String> {
        let mut problems = self.of_alerts(documents);
        let dashboard = object(documents, "ConfigMap", "tidegate-dashboard");
        let text = dashboard.and_then(|it| it["data"]["tidegate.json"].as_str()).unwrap_or_default();
        let dashboard: Value = serde_json::from_str(text).unwrap_or_default();
        let asked = texts(&dashboard, "expr");
        if asked.len() < 10 {
            problems.push(format!("the dashboard asks {} questions", asked.len()));
        }
        problems.extend(asked.iter().flat_map(|expr| self.unknown(expr, "the dashboard")));
        problems.extend(self.of_runbook());
        for monitor in documents.iter().filter(|it| it["kind"] == "PodMonitor") {
            let scraped = &monitor["spec"]["podMetricsEndpoints"][0];
            if scraped["port"] != "monitor" || scraped["path"] != "/metrics" {
                problems.push(format!("the PodMonitor scrapes {scraped}"));
            }
        }
        problems
    }

    /// Metrics, sections and tests that the runbook names.
    fn of_runbook(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let words: Vec<&str> = self.runbook.split('`').skip(1).step_by(2).collect();
        problems.extend(words.iter().flat_map(|word| self.unknown(word, RUNBOOK)));
        let links = self.runbook.split("](#").skip(1).filter_map(|rest| rest.split(')').next());
        let nowhere = links.filter(|anchor| !self.anchors.contains(*anchor));
        problems.extend(nowhere.map(|anchor| format!("{RUNBOOK} has no section #{anchor}")));
        for pair in words.windows(2).filter(|pair| pair[0].starts_with("tests/") && pair[0].ends_with(".rs"))
        {
            let file = fs::read_to_string(self.root.join(pair[0])).unwrap_or_default();
            if !file.contains(&format!("fn {}(", pair[1])) {
                problems.push(format!("{RUNBOOK}: {} has no test {}", pair[0], pair[1]));
            }
        }
        problems
    }

    fn of_alerts(&self, documents: &[Value]) -> Vec<String> {
        let mut problems = Vec::new();
        let rules = documents.iter().filter(|it| it["kind"] == "PrometheusRule");
        let groups = rules.filter_map(|it| it["spec"]["groups"].as_array()).flatten();
        let rules: Vec<&Value> = groups.filter_map(|it| it["rules"].as_array()).flatten().collect();
        if rules.len() != 18 {
            problems.push(format!("there are {} alerts", rules.len()));
        }
        let settings = Settings::of(documents).ok();
        let set = settings.and_then(|settings| settings.value("kafka.partitions"));
        let partitions = set.unwrap_or_else(|| self.partitions.clone());
        for rule in rules {
            let name = rule["alert"].as_str().unwrap_or_default();
            let expr = rule["expr"].as_str().unwrap_or_default();
            problems.extend(self.unknown(expr, name));
            if !expr.contains("tidegate_") && !expr.contains("up{job=\"tidegate\"}") {
                problems.push(format!("{name} asks for nothing of the nodes: {expr}"));
            }
            let anchor = name.to_lowercase();
            if rule["annotations"]["runbook_url"] != format!("{RUNBOOK}#{anchor}")
                || !self.anchors.contains(&anchor)
            {
                problems.push(format!("{name} has no section of {RUNBOOK}, or does not lead there"));
            }
            if !self.tests.contains(&format!("alertname=\"{name}\"")) {
                problems.push(format!("{TESTS} never has {name} come"));
            }
            let of_all = expr.strip_prefix("sum(tidegate_partitions_owned) < ");
            if of_all.is_some_and(|number| number != partitions) {
                problems.push(format!("{name} knows of {expr}, kafka.partitions is {partitions}"));
            }
        }
        problems
    }

    /// Metrics of ours that do not exist.
    fn unknown(&self, text: &str, place: &str) -> Vec<String> {
        let words = text.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
        let ours = words.filter(|word| word.starts_with("tidegate_") && !self.metrics.contains(*word));
        ours.map(|word| format!("{place}: no metric is called {word}")).collect()
    }
}

/// Returns the name of a metric and those of its series, by the rest of its row in the page.
fn series(row: &str) -> Vec<String> {
    let name = row.split('`').next().unwrap_or_default();
    let is_histogram = row.contains("` | histogram |");
    let suffixes: &[&str] = if is_histogram { &["", "_bucket", "_sum", "_count"] } else { &[""] };
    suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect()
}

/// All texts under that key, however deep.
fn texts(value: &Value, key: &str) -> Vec<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(name, value)| match value.as_str() {
                Some(text) if name == key => vec![text.to_owned()],
                _ => texts(value, key),
            })
            .collect(),
        Value::Array(list) => list.iter().flat_map(|value| texts(value, key)).collect(),
        _ => Vec::new(),
    }
}

/// Plants: (the fault, the kind of object, the path in it, the value there, a part of the problem that a check has to report).
fn plants() -> [(&'static str, &'static str, &'static str, Value, &'static str); 5] {
    let rules = "PrometheusRule";
    [
        (
            "an alert on a metric that is not there",
            rules,
            "/spec/groups/0/rules/2/expr",
            json!("rate(tidegate_kafka_unknown_total[2m]) > 0"),
            "no metric is called tidegate_kafka_unknown_total",
        ),
        (
            "an alert without a runbook",
            rules,
            "/spec/groups/0/rules/0/annotations/runbook_url",
            json!("docs/OPERATIONS.md#another"),
            "has no section of docs/OPERATIONS.md, or does not lead there",
        ),
        (
            "an alert that no test has come",
            rules,
            "/spec/groups/0/rules/1/alert",
            json!("TidegateNodeGone"),
            "never has TidegateNodeGone come",
        ),
        (
            "an alert for fewer partitions",
            rules,
            "/spec/groups/0/rules/7/expr",
            json!("sum(tidegate_partitions_owned) < 12"),
            "knows of sum(tidegate_partitions_owned) < 12",
        ),
        (
            "a scrape of another port",
            "PodMonitor",
            "/spec/podMetricsEndpoints/0/port",
            json!("admin"),
            "the PodMonitor scrapes",
        ),
    ]
}
