//! `tidegate trace`: the steps of messages on all nodes, collected by the queried node and sorted by time.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tidegate_protocol::id::check_id;

use super::{
    DataArg,
    admin::{AdminClient, AdminTarget, find, of_context, refusal, target},
    http::RESPONSE_TIMEOUT,
    key::KeyArg,
};

/// Arguments of `tidegate trace`.
#[derive(clap::Args, Debug)]
#[command(after_help = NOTES)]
pub struct Args {
    /// Id of a message, or name of a user
    #[arg(value_name = "MSG|USER")]
    name: String,
    /// Admin address of a node, with https:// before it if the port speaks TLS; it queries the others; may be repeated; default: that of a node on --data
    #[arg(long, value_name = "ADDRESS", value_parser = target)]
    admin: Vec<AdminTarget>,
    /// Print the steps as JSON, one per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    key: KeyArg,
    #[command(flatten)]
    data: DataArg,
}

const NOTES: &str = "\
A node records the steps of a few messages per second (trace.per_second), and for ten minutes those
of every message and user that was queried: query once, send the message, query again. The queried
node collects the steps of the others; times are by the clock of each node.";

/// Prints the steps of a message or of a user's messages.
///
/// # Errors
/// No node answers, or the name is no id.
pub fn run(args: &Args) -> anyhow::Result<()> {
    check_id(&args.name).with_context(|| format!("{:?}", args.name))?;
    let mut nodes = Vec::new();
    for target in targets(args)? {
        match AdminClient::open(&target, &args.key, RESPONSE_TIMEOUT) {
            Ok(admin) => nodes.push(admin),
            // The other nodes may still answer.
            Err(error) => eprintln!("{error:#}"),
        }
    }
    if nodes.is_empty() {
        bail!("no node answers");
    }
    // Each queried node collects from all others, so the same step may be returned several times.
    let (mut known, mut found) = (BTreeSet::new(), Vec::new());
    for node in &mut nodes {
        let all = steps(node, &args.name)?;
        found.extend(all.into_iter().filter(|step| known.insert(format!("{step:?}"))));
    }
    if args.json {
        for (_, step) in found {
            println!("{step}");
        }
    } else if found.is_empty() {
        println!(
            "no steps recorded for {0}; from now on they are, for ten minutes: run `tidegate trace {0}` again",
            args.name
        );
    } else {
        print!("{}", timelines(found));
    }
    Ok(())
}

fn targets(args: &Args) -> anyhow::Result<Vec<AdminTarget>> {
    if !args.admin.is_empty() {
        return Ok(args.admin.clone());
    }
    if let Some(target) = of_context(&args.key)? {
        return Ok(vec![target]);
    }
    let other_way = "name its directory with --data or the admin ports with --admin";
    Ok(vec![AdminTarget::of(&find::node(&args.data.data, other_way)?)])
}

/// Returns the steps that a node collected, each with the name of its node; all nodes watch `name` from now on.
fn steps(node: &mut AdminClient, name: &str) -> anyhow::Result<Vec<(String, Value)>> {
    let (status, body) =
        node.request("POST", "/v1/trace", &json!({"msg": name, "user": name}).to_string())?;
    let reply: Value = serde_json::from_str(&body).context("this is no admin port")?;
    if status != 200 {
        return Err(refusal(&reply));
    }
    for silent in reply["silent"].as_array().into_iter().flatten() {
        eprintln!("{} did not answer; its steps are missing", silent.as_str().unwrap_or_default());
    }
    let steps = reply["steps"].as_array().cloned().unwrap_or_default();
    Ok(steps.into_iter().map(|step| (text(&step, "node").to_owned(), step)).collect())
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_default()
}

/// Renders each trace with its steps; the trace that began first is on top.
fn timelines(found: Vec<(String, Value)>) -> String {
    let mut traces: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    for (node, step) in found {
        traces.entry(text(&step, "trace").to_owned()).or_default().push((node, step));
    }
    let mut traces: Vec<_> = traces.into_iter().collect();
    for (_, steps) in &mut traces {
        steps.sort_by_key(|(_, step)| number(step, "timeUs"));
    }
    traces.sort_by_key(|(_, steps)| steps.first().map(|(_, step)| number(step, "timeUs")));
    let mut out = String::new();
    for (trace, steps) in &traces {
        timeline(trace, steps, &mut out);
    }
    out
}

fn timeline(trace: &str, steps: &[(String, Value)], out: &mut String) {
    let of = |key: &str| {
        let found = steps.iter().map(|(_, step)| text(step, key)).find(|text| !text.is_empty());
        found.unwrap_or("?").to_owned()
    };
    let seq = steps.iter().map(|(_, step)| number(step, "seq")).max().unwrap_or_default();
    let begin = steps.first().map_or(0, |(_, step)| number(step, "timeUs"));
    // Writing to a String can't fail.
    writeln!(out, "{} in {}, seq {seq}, trace {trace}", of("msg"), of("conversation")).ok();
    let width = steps.iter().map(|(node, _)| node.len()).max().unwrap_or(0);
    for (node, step) in steps {
        let time = number(step, "timeUs");
        let who = match (text(step, "user"), text(step, "device")) {
            ("", _) => String::new(),
            (user, "") => user.to_owned(),
            (user, device) => format!("{user}/{device}"),
        };
        let line = format!(
            "  {}  {:>+9.3} ms  {node:<width$}  {:<11}  {who}  {}",
            clock(time),
            (time as f64 - begin as f64) / 1_000.0,
            text(step, "step"),
            text(step, "note"),
        );
        writeln!(out, "{}", line.trim_end()).ok();
    }
}

/// Formats the time of day, in UTC.
fn clock(time_us: u64) -> String {
    let (seconds, micros) = (time_us / 1_000_000, time_us % 1_000_000);
    let (hours, minutes) = (seconds / 3_600 % 24, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{micros:06}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_of_all_nodes_form_one_timeline_per_message() {
        let step = |node: &str, trace: &str, time: u64, step: &str, more: Value| {
            let mut all = json!({"trace": trace, "timeUs": 3_723_000_000_u64 + time, "step": step});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            (node.to_owned(), all)
        };
        let found = vec![
            step("n10", "aa", 2_500, "pushed", json!({"user": "bob", "device": "phone"})),
            step(
                "n1",
                "aa",
                1_000,
                "received",
                json!({"msg": "m1", "conversation": "d:ann:bob", "user": "ann"}),
            ),
            step("n2", "aa", 1_500, "decided", json!({"seq": 7, "note": "partition 3: accepted"})),
            step("n1", "bb", 0, "decided", json!({})),
        ];
        let expected = "? in ?, seq 0, trace bb\n  01:02:03.000000     +0.000 ms  n1  decided\n\
                        m1 in d:ann:bob, seq 7, trace aa\n  01:02:03.001000     +0.000 ms  n1   received     ann\n  \
                        01:02:03.001500     +0.500 ms  n2   decided        partition 3: accepted\n  \
                        01:02:03.002500     +1.500 ms  n10  pushed       bob/phone\n";
        assert_eq!(timelines(found), expected);
    }
}
