//! Step `manifests`: renders `k8s/`, validates it strictly, and compares it with the binary and its pages.
//!
//! It also plants faults, each of which one check must report.

mod agree;
mod monitoring;
mod network;
mod notifications;
mod plants;
pub(crate) mod render;

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, bail};
use serde_json::Value;

use self::render::Settings;
use crate::{shell, shell::Shell, tools};

/// The folders of `k8s/`, all of which are rendered.
const ALL: &[&str] = &[
    "base",
    "overlays/prod",
    "overlays/dev",
    "overlays/deployment",
    "overlays/backends",
    "overlays/identity",
];

/// The oldest version of Kubernetes that README names, and the newest that the validator knows.
const KUBERNETES: &[&str] = &["1.30", "1.37"];

/// The facts of the binary, the image and the pages, with which the manifests are compared.
pub(crate) struct ManifestFacts {
    /// Settings as `section.key`.
    keys: BTreeSet<String>,
    /// Names that the environment may have.
    names: BTreeSet<String>,
    /// Paths of the port that probes ask.
    paths: BTreeSet<String>,
    /// User and group of the image.
    user: String,
    /// Whether the folder is for production: nothing in it may be unencrypted.
    is_production: bool,
    /// Page that describes the objects to create by hand.
    page: String,
    /// Seconds that `tidegate drain-plan` needs for a node that is as full as the settings allow.
    grace: u64,
}

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let scratch = shell.scratch("manifests")?;
    lint(shell, &scratch)?;
    notifications::check(shell, &scratch)?;
    let mut tried = BTreeSet::new();
    let mut is_monitored = false;
    for name in ALL {
        let documents = &render::render(shell, &format!("k8s/{name}"))?;
        validate(shell, documents, &scratch.join(format!("{}.yaml", name.replace('/', "-"))))?;
        let mut facts = ManifestFacts::gather(shell, documents, &scratch)?;
        facts.is_production = *name == "overlays/prod";
        let problems = agree::problems(documents, &facts);
        if !problems.is_empty() {
            bail!("k8s/{name} does not fit the binary:\n  {}", problems.join("\n  "));
        }
        let planted = plants::all_found(documents, &facts)?;
        let of_monitoring = monitoring::check(shell, documents, &scratch)?;
        println!(
            "k8s/{name}: {} objects agree with the binary; {} planted faults found",
            documents.len(),
            planted.len() + of_monitoring
        );
        tried.extend(planted);
        is_monitored |= of_monitoring > 0;
    }
    let untried: Vec<&str> = plants::names().filter(|name| !tried.contains(name)).collect();
    if !untried.is_empty() {
        bail!("no folder of k8s/ has what these faults are planted into: {}", untried.join(", "));
    }
    if !is_monitored {
        bail!("no folder of k8s/ has the monitoring");
    }
    Ok(())
}

/// Lints the Dockerfile, and checks that the linter refuses a faulty file.
fn lint(shell: &Shell, scratch: &Path) -> anyhow::Result<()> {
    let hadolint = tools::hadolint(shell)?;
    let words = ["--no-color", "--failure-threshold", "info"];
    shell::run(shell.command(&hadolint).args(words).arg("Dockerfile"))?;
    let bad = scratch.join("Dockerfile.bad");
    fs::write(&bad, "FROM debian\nRUN cd /tmp && sudo apt-get install curl\n")?;
    if shell::output(shell.command(&hadolint).args(words).arg(&bad)).is_ok() {
        bail!("hadolint finds nothing wrong with {}", bad.display());
    }
    Ok(())
}

/// Validates every object by the schema of its kind; a field that the kind does not have is an error.
fn validate(shell: &Shell, documents: &[Value], file: &Path) -> anyhow::Result<()> {
    // JSON is YAML.
    let own = documents.iter().filter(|it| !monitoring::is_foreign(it)).map(Value::to_string);
    fs::write(file, own.collect::<Vec<String>>().join("\n---\n"))?;
    let validator = tools::kubernetes(shell)?.join("bin/kubernetes-validate");
    for version in KUBERNETES {
        let words = ["--strict", "--quiet", "-k", version];
        shell::run(shell.command(&validator).args(words).arg(file))?;
    }
    Ok(())
}

impl ManifestFacts {
    fn gather(shell: &Shell, documents: &[Value], scratch: &Path) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(shell.root.join(path)).with_context(|| path.to_owned());
        // Both pages are generated, and tests/docs.rs says whether they are current.
        let rows = read("docs/config.md")?;
        let columns = |at: usize| {
            let cells = rows.lines().filter_map(move |line| line.split(" | ").nth(at));
            let named = cells.filter_map(|cell| cell.split('`').nth(1).map(str::to_owned));
            named.collect::<BTreeSet<String>>()
        };
        let mut names = columns(5);
        names.extend(["TIDEGATE_CONFIG", "TIDEGATE_DATA", "TIDEGATE_LOG"].map(str::to_owned));
        let routes = read("src/api/http_server/monitor.rs")?;
        let paths =
            routes.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")?.split('"').next());
        let image = read("Dockerfile")?;
        let user =
            image.lines().find_map(|line| line.strip_prefix("USER ")).context("no USER in Dockerfile")?;
        Ok(Self {
            keys: columns(0),
            names,
            paths: paths.map(str::to_owned).collect(),
            user: user.to_owned(),
            is_production: false,
            page: read("k8s/README.md")?,
            grace: granted(shell, documents, scratch)?,
        })
    }
}

/// Returns the seconds that the binary, with the settings of the pods, plans for the drain of a full node.
///
/// # Errors
/// The binary refuses the settings.
pub(crate) fn granted(shell: &Shell, documents: &[Value], scratch: &Path) -> anyhow::Result<u64> {
    let settings = Settings::of(documents)?;
    let set = workload(documents).context("there is no StatefulSet or Deployment")?;
    let node = &set["spec"]["template"]["spec"]["containers"][0];
    let environment = render::environment(node, "tidegate-0", &|text| text.to_owned())?;
    let file = scratch.join("tidegate.toml");
    fs::write(&file, &settings.text)?;
    let full = settings.value("limits.conns_max").context("limits.conns_max is not set")?;
    let ask = |words: &[&str]| {
        let mut command = shell.command(shell.built("tidegate"));
        command.args(words).arg("--config").arg(&file);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.env_remove("TIDEGATE_CONFIG");
        shell::output(&mut command).context("the binary is built by `cargo xtask test build`")
    };
    let (plan, _) = ask(&["drain-plan", "--conns", &full])?;
    let grace = plan.lines().find_map(|line| line.trim().strip_prefix("grace")?.split_whitespace().next());
    let grace: Option<u64> = grace.and_then(|word| word.parse().ok());
    let grace = grace.with_context(|| format!("no grace in {plan}"))?;
    // The secrets and certificates of the pods are not on this machine.
    ask(&["config", "check", "--without-files", "--grace", &grace.to_string()])?;
    Ok(grace)
}

/// The StatefulSet or Deployment.
pub(crate) fn workload(documents: &[Value]) -> Option<&Value> {
    documents.iter().find(|it| it["kind"] == "StatefulSet" || it["kind"] == "Deployment")
}

/// The first object of that kind and name.
pub(crate) fn object<'a>(documents: &'a [Value], kind: &str, name: &str) -> Option<&'a Value> {
    documents.iter().find(|it| it["kind"] == kind && it["metadata"]["name"] == name)
}
