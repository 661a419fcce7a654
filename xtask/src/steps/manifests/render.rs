//! Manifests as Kubernetes would get them: by kustomize, and as values of JSON.

use std::{io::Write as _, process::Stdio};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{shell, shell::Shell, tools};

/// The file of settings that the pods share.
pub(crate) struct Settings {
    pub(crate) text: String,
    table: toml::Table,
}

/// The objects of a folder of the repository, through `kubectl kustomize` or a kustomize of our own.
pub(crate) fn render(shell: &Shell, folder: &str) -> anyhow::Result<Vec<Value>> {
    let mut kustomize = if shell::have("kubectl") {
        let mut kubectl = shell.command("kubectl");
        kubectl.arg("kustomize");
        kubectl
    } else {
        let mut own = shell.command(tools::kustomize(shell)?);
        own.arg("build");
        own
    };
    let (yaml, _) = shell::output(kustomize.arg(folder))?;
    to_json(shell, &yaml)
}

/// The objects as the validator reads them, with the same parser.
fn to_json(shell: &Shell, yaml: &str) -> anyhow::Result<Vec<Value>> {
    const SCRIPT: &str = "import json, sys, yaml\n\
                          json.dump([it for it in yaml.safe_load_all(sys.stdin) if it], sys.stdout)";
    let python = tools::kubernetes(shell)?.join("bin/python");
    let mut child = shell
        .command(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting Python")?;
    child.stdin.take().context("stdin is piped")?.write_all(yaml.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the manifests could not be read: {}", output.status);
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The environment of a container, as the kubelet makes it.
pub(crate) fn environment(
    container: &Value,
    pod: &str,
    place: &dyn Fn(&str) -> String,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for entry in container["env"].as_array().into_iter().flatten() {
        let name = entry["name"].as_str().context("a variable without a name")?;
        let value = match (entry["value"].as_str(), entry["valueFrom"]["fieldRef"]["fieldPath"].as_str()) {
            (Some(value), None) => expanded(value, &all),
            (None, Some("metadata.name")) => pod.to_owned(),
            (None, Some("status.podIP")) => "127.0.0.1".to_owned(),
            _ => bail!("{name}: {entry} is not understood here"),
        };
        all.push((name.to_owned(), place(&value)));
    }
    Ok(all)
}

/// The text with the values of known variables for `$(NAME)`.
pub(crate) fn expanded(text: &str, known: &[(String, String)]) -> String {
    known.iter().fold(text.to_owned(), |text, (name, value)| text.replace(&format!("$({name})"), value))
}

impl Settings {
    /// The settings in the map that the pods mount.
    pub(crate) fn of(documents: &[Value]) -> anyhow::Result<Self> {
        let maps = documents.iter().filter(|it| it["kind"] == "ConfigMap");
        let text = maps.filter_map(|map| map["data"]["tidegate.toml"].as_str()).next();
        let text = text.context("no ConfigMap has tidegate.toml")?.to_owned();
        let table = text.parse().context("tidegate.toml is no TOML")?;
        Ok(Self { text, table })
    }

    /// The value of `section.key`, if it is set.
    pub(crate) fn value(&self, key: &str) -> Option<String> {
        let (section, key) = key.split_once('.')?;
        match self.table.get(section)?.get(key)? {
            toml::Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }

    /// The keys of all settings that are set, as `section.key`.
    pub(crate) fn keys(&self) -> Vec<String> {
        let sections = self.table.iter().filter_map(|(section, keys)| Some((section, keys.as_table()?)));
        sections.flat_map(|(section, keys)| keys.keys().map(move |key| format!("{section}.{key}"))).collect()
    }
}
