//! Plan of a rollout: its numbers, from the manifests, and the folders and ports of its containers on this machine.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::steps::manifests::render::{self, Settings};

/// Numbers and containers of the pods.
pub(super) struct Plan {
    /// Name of the rollout, for display.
    pub(super) name: String,
    /// The number of pods.
    pub(super) replicas: usize,
    /// The time from the deletion of a pod to SIGKILL.
    pub(super) grace: Duration,
    /// Time that `preStop` waits, which is part of the grace period.
    pub(super) before: Duration,
    /// Time for which a pod must be ready before it is available.
    pub(super) available: Duration,
    /// Time after SIGTERM in which the node still accepts new clients.
    pub(super) lb_delay: Duration,
    /// The name of the set, by which pods are named.
    pub(super) set: String,
    /// The text of the settings that are mounted.
    pub(super) settings: String,
    /// Container of the node, and its init containers.
    pub(super) node: Value,
    pub(super) init: Vec<Value>,
}

/// Folders and addresses of containers, volumes and Services on this machine.
pub(crate) struct Place {
    pub(crate) program: PathBuf,
    pub(crate) folder: PathBuf,
    pub(crate) keys: PathBuf,
    /// Settings with the addresses of the servers on this machine.
    pub(crate) servers: Vec<String>,
}

/// A probe of a pod, and its times.
#[derive(Clone)]
pub(super) struct Probe {
    pub(super) name: &'static str,
    pub(super) path: String,
    pub(super) port: String,
    pub(super) initial: Duration,
    pub(super) period: Duration,
    pub(super) timeout: Duration,
    pub(super) failures_max: u64,
}

impl Plan {
    pub(super) fn of(documents: &[Value], name: &str) -> anyhow::Result<Self> {
        let set =
            documents.iter().find(|it| it["kind"] == "StatefulSet").context("there is no StatefulSet")?;
        let spec = &set["spec"]["template"]["spec"];
        let scaler = documents.iter().find(|it| it["kind"] == "HorizontalPodAutoscaler");
        let replicas = scaler.map_or(&set["spec"]["replicas"], |it| &it["spec"]["minReplicas"]);
        let settings = Settings::of(documents)?;
        let node = spec["containers"][0].clone();
        let before = match &node["lifecycle"]["preStop"] {
            Value::Null => 0,
            hook => {
                hook["sleep"]["seconds"].as_u64().with_context(|| format!("{hook} is not understood here"))?
            }
        };
        let lb_delay = settings.value("drain.lb_delay_ms").context("drain.lb_delay_ms is not set")?;
        if set["spec"]["podManagementPolicy"] != "Parallel" {
            bail!("pods that start one after the other are not rehearsed");
        }
        Ok(Self {
            name: name.to_owned(),
            replicas: usize::try_from(replicas.as_u64().context("no number of pods")?)?,
            // 30 s is the default of Kubernetes.
            grace: Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30)),
            before: Duration::from_secs(before),
            available: Duration::from_secs(set["spec"]["minReadySeconds"].as_u64().unwrap_or(0)),
            lb_delay: Duration::from_millis(lb_delay.parse()?),
            set: set["metadata"]["name"].as_str().context("no name")?.to_owned(),
            settings: settings.text,
            init: spec["initContainers"].as_array().cloned().unwrap_or_default(),
            node,
        })
    }

    /// A probe of the node; the defaults are those of Kubernetes.
    pub(super) fn probe(&self, name: &'static str) -> anyhow::Result<Probe> {
        let probe = &self.node[name];
        let number = |key: &str, default: u64| probe[key].as_u64().unwrap_or(default);
        let text = |key: &str| {
            let text = probe["httpGet"][key].as_str();
            text.map(str::to_owned).with_context(|| format!("{name} has no httpGet.{key}"))
        };
        Ok(Probe {
            name,
            path: text("path")?,
            port: text("port")?,
            initial: Duration::from_secs(number("initialDelaySeconds", 0)),
            period: Duration::from_secs(number("periodSeconds", 10)),
            timeout: Duration::from_secs(number("timeoutSeconds", 1)),
            failures_max: number("failureThreshold", 3),
        })
    }
}

/// Names and values of variables.
pub(super) type Environment = Vec<(String, String)>;

/// Returns command line and environment of a container, with the paths of mounts on this machine.
pub(super) fn command(
    container: &Value,
    pod: &str,
    mounts: &[(String, PathBuf)],
) -> anyhow::Result<(Vec<String>, Environment)> {
    let here = |text: &str| placed(text, mounts);
    let environment = render::environment(container, pod, &here)?;
    let args = container["args"].as_array().into_iter().flatten();
    let args = args.filter_map(Value::as_str).map(|word| render::expanded(word, &environment)).collect();
    Ok((args, environment))
}

/// Returns the mount path of each volume of a container, and its folder on this machine.
pub(super) fn mounts(
    container: &Value,
    volumes: &[(&str, PathBuf)],
) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let found = mounts.map(|mount| {
        let (name, path) = (mount["name"].as_str(), mount["mountPath"].as_str());
        let here = volumes.iter().find(|(volume, _)| Some(*volume) == name);
        let (_, here) = here.with_context(|| format!("{mount}: no such volume here"))?;
        anyhow::Ok((path.context("no mountPath")?.to_owned(), here.clone()))
    });
    found.collect()
}

/// Translates a path below a mount to this machine; other texts are unchanged.
pub(super) fn placed(text: &str, mounts: &[(String, PathBuf)]) -> String {
    let below =
        |mount: &str| text.strip_prefix(mount).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut found =
        mounts.iter().filter_map(|(mount, here)| Some(format!("{}{}", here.display(), below(mount)?)));
    found.next().unwrap_or_else(|| text.to_owned())
}
