//! `tidegate storms`: message storms of groups on all nodes, or how many messages one group has.

use anyhow::Context as _;
use serde_json::Value;
use tidegate_protocol::id::check_id;

use super::{AdminArgs, array, table, text};
use crate::cli::admin::cell;

/// Arguments of `tidegate storms`.
#[derive(clap::Args, Debug)]
pub struct StormsArgs {
    /// Group whose messages are counted, as in `tea` for g:tea; default: all groups with a storm
    group: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

const COLUMNS: [&str; 8] = ["GROUP", "STATE", "COUNT", "PEAK", "THRESHOLD", "WINDOW", "ACTION", "STORM"];

/// Prints the storms of all nodes, or the messages of one group.
///
/// # Errors
/// No node answers, or the name is no id.
pub fn storms(args: &StormsArgs) -> anyhow::Result<()> {
    let path = match &args.group {
        Some(group) => {
            check_id(group).with_context(|| format!("group {group:?}"))?;
            format!("/v1/storms/{group}")
        }
        None => "/v1/storms".to_owned(),
    };
    let Some(reply) = args.admin.get(&path)? else { return Ok(()) };
    let listed = if args.group.is_some() { std::slice::from_ref(&reply) } else { array(&reply, "storms") };
    if listed.is_empty() {
        println!("no storms");
    } else {
        print!("{}", table(&rows(listed)));
    }
    for node in array(&reply, "silent") {
        eprintln!("{} did not answer; its storms are missing", text(node));
    }
    let hidden = reply["total"].as_u64().unwrap_or(0).saturating_sub(listed.len() as u64);
    if args.group.is_none() && hidden > 0 {
        eprintln!("{hidden} smaller storms are not listed");
    }
    Ok(())
}

fn rows(storms: &[Value]) -> Vec<[String; 8]> {
    let mut rows = vec![COLUMNS.map(String::from)];
    for storm in storms {
        let window = format!("{} ms", storm["windowMs"].as_u64().unwrap_or(0));
        rows.push([
            cell(&storm["conversation"]),
            cell(&storm["state"]),
            cell(&storm["count"]),
            cell(&storm["peak"]),
            cell(&storm["threshold"]),
            window,
            cell(&storm["action"]),
            cell(&storm["id"]),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn storms_are_listed_with_their_action() {
        let storm = json!({"conversation": "g:tea", "count": 181, "id": "g:tea/12", "peak": 340, "sinceMs": 1,
            "state": "storm", "threshold": 100, "windowMs": 60_000, "action": "slow:5000ms"});
        let quiet = json!({"conversation": "g:ops", "count": 3, "state": "quiet", "threshold": 100, "windowMs": 60_000});
        let rows = rows(&[storm, quiet]);
        assert_eq!(rows[1], ["g:tea", "storm", "181", "340", "100", "60000 ms", "slow:5000ms", "g:tea/12"]);
        assert_eq!(rows[2], ["g:ops", "quiet", "3", "", "100", "60000 ms", "", ""]);
    }
}
