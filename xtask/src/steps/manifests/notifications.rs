//! Checks of `deploy/alertmanager/`: Alertmanager accepts the configuration, and the event of a storm becomes the text that
//! receivers get.

use std::{fs, path::Path};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use crate::{shell, shell::Shell, tools};

const FOLDER: &str = "deploy/alertmanager";

/// Event of a storm, and the text of its notification.
const EVENT: &str = "tests/alerts/storm-event.json";
const TEXT: &str = "tests/alerts/storm.txt";

/// Checks the configuration and the texts, and that planted faults in both are found.
pub(super) fn check(shell: &Shell, scratch: &Path) -> anyhow::Result<()> {
    let amtool = tools::amtool(shell)?;
    let folder = scratch.join("alertmanager");
    fs::create_dir_all(folder.join("templates"))?;
    for file in ["alertmanager.yml", "templates/tidegate.tmpl"] {
        let source = shell.root.join(FOLDER).join(file);
        fs::copy(&source, folder.join(file)).with_context(|| source.display().to_string())?;
    }
    let config = folder.join("alertmanager.yml");
    let is_accepted = || shell::output(shell.command(&amtool).arg("check-config").arg(&config)).is_ok();
    shell::run(shell.command(&amtool).arg("check-config").arg(&config))?;
    let written = fs::read_to_string(&config)?;
    fs::write(&config, written.replacen("receiver: moderators", "receiver: nobody", 1))?;
    if is_accepted() {
        bail!("amtool finds nothing wrong with a route to a receiver that does not exist");
    }
    let data = folder.join("data.json");
    fs::write(&data, notification(shell)?.to_string())?;
    let template = folder.join("templates/tidegate.tmpl");
    let render = || {
        let words = ["template", "render", "--template.text", "{{ template \"tidegate.text\" . }}"];
        let mut command = shell.command(&amtool);
        command.args(words).arg("--template.glob").arg(&template).arg("--template.data").arg(&data);
        shell::output(&mut command)
    };
    let (text, _) = render()?;
    let expected = fs::read_to_string(shell.root.join(TEXT))?;
    if text.trim_end() != expected.trim_end() {
        bail!("{EVENT} becomes\n{text}\nand not the text of {TEXT}");
    }
    let written = fs::read_to_string(&template)?;
    fs::write(&template, written.replacen(".Annotations.count", ".Annotations.counted", 1))?;
    if render().is_ok_and(|(text, _)| text.trim_end() == expected.trim_end()) {
        bail!("a template without the count gives the text of {TEXT}");
    }
    println!("{FOLDER}: accepted by amtool; the event of a storm becomes its notification");
    Ok(())
}

/// Returns what Alertmanager passes to templates for the alert of the event.
fn notification(shell: &Shell) -> anyhow::Result<Value> {
    tools::ensure_program(shell, "jq", "jq")?;
    let mut jq = shell.command("jq");
    jq.arg("--from-file").arg(shell.root.join(FOLDER).join("storm-alerts.jq")).arg(shell.root.join(EVENT));
    let (alerts, _) = shell::output(&mut jq)?;
    let mut alerts: Value = serde_json::from_str(&alerts)?;
    let alert = alerts.get_mut(0).with_context(|| format!("{EVENT} becomes no alert"))?;
    alert["status"] = "firing".into();
    let (labels, annotations) = (alert["labels"].clone(), alert["annotations"].clone());
    Ok(json!({
        "receiver": "moderators", "status": "firing", "externalURL": "", "groupLabels": labels.clone(),
        "commonLabels": labels, "commonAnnotations": annotations, "alerts": alerts,
    }))
}
