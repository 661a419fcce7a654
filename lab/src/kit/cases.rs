//! Cases of the kit: the files of protocol/vectors/clients, and the cases that their parameters make.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::step::{Case, Family};

/// Names and embeds a file.
macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../protocol/vectors/clients/", $name, ".json")))
    };
}

/// Files of cases, one for each family.
const FILES: [(&str, &str); 22] = [
    file!("login"),
    file!("send"),
    file!("receive"),
    file!("content"),
    file!("liveness"),
    file!("close"),
    file!("tokens"),
    file!("sync"),
    file!("marks"),
    file!("recall"),
    file!("edits"),
    file!("groups"),
    file!("chain"),
    file!("drain"),
    file!("addresses"),
    file!("rooms"),
    file!("signals"),
    file!("presence"),
    file!("outbox"),
    file!("tabs"),
    file!("vectors"),
    file!("transcripts"),
];

/// Returns the cases of the kit, or of the JSON files of a folder.
pub(super) fn all(folder: Option<&Path>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    match folder {
        None => {
            for (name, text) in FILES {
                cases.extend(family(text).with_context(|| format!("protocol/vectors/clients/{name}.json"))?);
            }
        }
        Some(folder) => {
            let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
            let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
            files.sort();
            for file in files {
                let text = fs::read_to_string(&file)?;
                cases.extend(family(&text).with_context(|| file.display().to_string())?);
            }
        }
    }
    let mut names = BTreeSet::new();
    for case in &cases {
        ensure!(names.insert(&case.name), "two cases are named {}", case.name);
    }
    Ok(cases)
}

fn family(text: &str) -> Result<Vec<Case>> {
    let family: Family = serde_json::from_str(text)?;
    let mut cases = Vec::new();
    for template in &family.cases {
        let Value::Object(mut template) = template.clone() else { bail!("a case is an object") };
        let parameters = template.remove("for").unwrap_or_else(|| Value::Object(Map::new()));
        let name = template.get("name").and_then(Value::as_str).context("a case has a name")?.to_owned();
        let template = Value::Object(template);
        for values in combinations(&parameters)? {
            let mut case: Case =
                serde_json::from_value(fill(&template, &values)).with_context(|| name.clone())?;
            if !values.is_empty() {
                let shown = |(key, value): (&String, &Value)| match value {
                    Value::Object(row) => row.get("row").map_or_else(String::new, text_of),
                    value => format!("{key} {}", text_of(value)),
                };
                let suffix: Vec<String> = values.iter().map(shown).collect();
                case.name = format!("{} [{}]", case.name, suffix.join(", "));
            }
            case.family.clone_from(&family.family);
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Returns every combination of the values of the parameters.
fn combinations(parameters: &Value) -> Result<Vec<Map<String, Value>>> {
    let mut made = vec![Map::new()];
    for (name, values) in parameters.as_object().context("`for` is an object")? {
        let values = values_of(values)?;
        ensure!(!values.is_empty(), "the parameter {name} has no value");
        let extended = made.iter().flat_map(|base| {
            values.iter().map(move |value| {
                let mut map: Map<String, Value> = base.clone();
                map.insert(name.clone(), value.clone());
                map
            })
        });
        made = extended.collect();
    }
    Ok(made)
}

/// Returns the golden frames of a node, apart from those that begin or end a connection.
fn vectors() -> Result<Vec<Value>> {
    let all: Vec<Value> = serde_json::from_str(include_str!("../../../protocol/vectors/server.json"))?;
    let is_of_connection = |vector: &Value| {
        ["welcome", "goAway", "close"].iter().any(|kind| vector["json"].get(*kind).is_some())
    };
    let chosen = all.into_iter().filter(|vector| !is_of_connection(vector));
    let value = |vector: Value| json!({"row": vector["name"], "frame": vector["json"], "json": vector["json"].to_string(), "proto": vector["hex"]});
    Ok(chosen.map(value).collect())
}

/// Returns the golden frames of which a client reports something: with `event` and its pattern `with`, with `needs`, and with the
/// conversation and the seq before it of a push, so that it leaves no hole.
fn reports() -> Result<Vec<Value>> {
    let all = vectors()?.into_iter().filter_map(|mut vector| {
        let (event, with, needs) = report(&vector["frame"])?;
        let push = &vector["frame"]["push"];
        let before = push["seq"].as_u64().unwrap_or_default().saturating_sub(1);
        vector["conversation"] = push["conversation"].as_str().unwrap_or("d:nobody:other").into();
        (vector["before"], vector["event"], vector["with"]) = (before.into(), event.into(), with);
        vector["needs"] = needs.into();
        Some(vector)
    });
    Ok(all.collect())
}

/// Returns the event of a frame, its pattern, and the ability that an adapter needs for it.
fn report(frame: &Value) -> Option<(&'static str, Value, Option<&'static str>)> {
    let picked = |body: &Value, fields: &[&str]| -> Value {
        let present = fields.iter().filter_map(|field| Some(((*field).to_owned(), body.get(field)?.clone())));
        present.collect::<Map<String, Value>>().into()
    };
    for kind in ["receipt", "cleared", "hidden", "signal", "shed"] {
        if let Some(body) = frame.get(kind) {
            let fields = ["conversation", "seq", "seqs", "kind", "sender", "content", "room", "count"];
            return Some((kind, picked(body, &fields), None));
        }
    }
    if let Some(stats) = frame.get("roomStats") {
        return Some(("roomStats", stats.clone(), Some("roomStats")));
    }
    // A kind that the schema does not have is a number, which libraries report in their own way.
    if let Some(notice) = frame.get("notice").filter(|notice| notice["kind"].is_string()) {
        return Some(("notice", picked(notice, &["kind", "expected", "msgId", "conversation"]), None));
    }
    let push = frame.get("push")?;
    let place = picked(push, &["conversation", "seq"]);
    if let Some(Value::Object(change)) = push.get("event") {
        let Value::Object(mut with) = place else { return None };
        with.extend(change.clone());
        return Some(("change", with.into(), None));
    }
    if let Some(recall) = push.get("recall") {
        return Some(("recalled", json!({"conversation": push["conversation"], "seq": recall["seq"]}), None));
    }
    if let Some(edit) = push.get("edit") {
        let with = json!({
            "conversation": push["conversation"], "seq": edit["seq"], "edit": push["seq"], "content": edit["content"],
        });
        return Some(("edited", with, Some("edits")));
    }
    let is_plain = picked(&push["content"], &["json", "type", "replyTo", "mentions"]) == json!({});
    let with = picked(push, &["conversation", "seq", "sender", "msgId", "content"]);
    Some(("message", with, (!is_plain).then_some("json")))
}

/// Returns the values of a parameter: a list, a range with `from`, `to` (included) and `step`, or golden frames.
fn values_of(values: &Value) -> Result<Vec<Value>> {
    if let Value::Array(list) = values {
        return Ok(list.clone());
    }
    if values == "vectors" {
        return vectors();
    }
    if values == "reports" {
        return reports();
    }
    let bound = |key: &str| values[key].as_i64().with_context(|| format!("a range has `{key}`"));
    let step = usize::try_from(values["step"].as_u64().unwrap_or(1).max(1))?;
    Ok((bound("from")?..=bound("to")?).step_by(step).map(Value::from).collect())
}

/// Replaces `{name}` and `{name.field}` by the value of the parameter, in keys of objects too.
fn fill(template: &Value, values: &Map<String, Value>) -> Value {
    match template {
        Value::String(text) => fill_text(text, values),
        Value::Array(items) => items.iter().map(|item| fill(item, values)).collect(),
        Value::Object(map) => {
            let fields = map.iter().map(|(key, item)| (text_of(&fill_text(key, values)), fill(item, values)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

fn fill_text(text: &str, values: &Map<String, Value>) -> Value {
    let mut text = text.to_owned();
    for (name, value) in values {
        let fields = value.as_object().into_iter().flatten();
        let named = fields.map(|(field, value)| (format!("{{{name}.{field}}}"), value));
        for (key, value) in named.chain([(format!("{{{name}}}"), value)]) {
            if text == key {
                return value.clone();
            }
            text = text.replace(&key, &text_of(value));
        }
    }
    Value::String(text)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_well_formed() {
        let cases = all(None).expect("the embedded files are well formed");
        let sent = cases.iter().flat_map(|case| &case.steps).filter_map(|step| step.send.as_ref());
        for frame in sent.flat_map(|frames| match frames {
            Value::Array(frames) => frames.clone(),
            frame => vec![frame.clone()],
        }) {
            let kinds = frame.as_object().map_or(0, |frame| frame.keys().filter(|key| *key != "id").count());
            assert!(kinds <= 1, "{frame}");
        }
    }

    #[test]
    fn cases_of_transcripts_send_what_the_transcripts_have() {
        // A library chooses the ids of its frames and messages.
        let plain = |frame: &Value| {
            let mut frame = frame.clone();
            frame.as_object_mut().map(|fields| fields.remove("id"));
            frame.get_mut("sendAck").and_then(Value::as_object_mut).map(|ack| ack.remove("msgId"));
            frame
        };
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/vectors/transcripts");
        let files = fs::read_dir(folder).expect("the folder of transcripts").flatten();
        let transcripts: Vec<Value> = files
            .map(|file| fs::read_to_string(file.path()).expect("a transcript"))
            .map(|text| serde_json::from_str(&text).expect("a transcript in JSON"))
            .collect();
        let cases = all(None).expect("the embedded files are well formed");
        let cases: Vec<&Case> = cases.iter().filter(|case| case.family == "transcripts").collect();
        assert!(cases.len() >= 8);
        for case in cases {
            let (name, device) = case.name.split_once(": ").expect("a transcript and a device");
            let transcript = transcripts.iter().find(|it| it["name"] == name).expect("the transcript");
            let lines = transcript["lines"].as_array().into_iter().flatten();
            let lines =
                lines.filter(|line| line["conn"].as_str().is_some_and(|conn| conn.starts_with(device)));
            let written: Vec<Value> = lines.map(|line| plain(&line["server"])).collect();
            for frame in case.steps.iter().filter_map(|step| step.send.as_ref()) {
                assert!(written.contains(&plain(frame)), "{}: {frame}", case.name);
            }
        }
    }

    #[test]
    fn a_family_makes_every_combination() {
        let text = r#"{"family": "f", "about": "", "cases": [{"name": "n", "level": "L0", "about": "{what.row}",
            "for": {"byte": {"from": 1, "to": 2}, "what": [{"row": "x", "frame": {"done": {}}}]},
            "steps": [{"send": "{what.frame}", "bytes": "{byte}"}]}]}"#;
        let cases = family(text).expect("the family is well formed");
        let names: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["n [byte 1, x]", "n [byte 2, x]"]);
        assert_eq!(cases[1].steps[0].bytes, Some(2));
        assert_eq!(cases[1].steps[0].send, Some(serde_json::json!({"done": {}})));
    }
}
