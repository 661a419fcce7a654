//! `tidegate user` and `tidegate kick`: what a node knows of a user, and the end of the user's connections.

use anyhow::Context as _;
use serde_json::{Value, json};
use tidegate_protocol::id::check_id;

use crate::{
    cli::admin::{AdminArgs, accepted, array, cell, escaped, table},
    clock::rfc3339,
};

/// Conversations that are shown.
const CONVERSATIONS: u32 = 20;

/// Arguments of `tidegate user`.
#[derive(clap::Args, Debug)]
pub struct UserArgs {
    /// Id of the user
    user: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tidegate kick`.
#[derive(clap::Args, Debug)]
pub struct KickArgs {
    /// Id of the user
    user: String,
    /// Only this device
    #[arg(long)]
    device: Option<String>,
    /// Reason that the client gets, at most 120 bytes
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Whether the client's library connects again by itself
    #[arg(long, value_name = "WHEN", default_value = "never", value_parser = ["never", "after"])]
    reconnect: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the connections of a user, unread messages, and the newest conversations.
///
/// # Errors
/// The name is no id, or a node does not answer.
pub fn user(args: &UserArgs) -> anyhow::Result<()> {
    check_id(&args.user).with_context(|| format!("user {:?}", args.user))?;
    let part = |path: &str| accepted(args.admin.request("GET", &format!("/v1/users/{}/{path}", args.user))?);
    let connections = part("connections")?;
    let unread = part("unread")?;
    let conversations = part(&format!("conversations?order=recent&limit={CONVERSATIONS}"))?;
    let all = json!({"user": args.user, "connections": connections["connections"], "silent": connections["silent"],
        "unread": unread["unread"], "conversations": conversations["conversations"]});
    if !args.admin.printed_json(&all) {
        print!("{}", shown(&all, !conversations["next"].is_null()));
    }
    Ok(())
}

fn shown(all: &Value, has_more: bool) -> String {
    let connections = array(all, "connections");
    let count = match connections.len() {
        0 => "not connected".to_owned(),
        1 => "1 connection".to_owned(),
        more => format!("{more} connections"),
    };
    let mut text = format!("{}: {count}, {} unread\n", cell(&all["user"]), cell(&all["unread"]));
    for node in array(all, "silent") {
        text.push_str(&format!("{} did not answer; its connections are missing\n", cell(node)));
    }
    if !connections.is_empty() {
        let mut rows = vec![["DEVICE", "NODE", "SINCE", "ADDRESS", "ID"].map(String::from)];
        rows.extend(connections.iter().map(|it| {
            let since = it["sinceMs"].as_u64().map(rfc3339).unwrap_or_default();
            [cell(&it["device"]), cell(&it["node"]), since, cell(&it["address"]), cell(&it["id"])]
        }));
        text.push_str(&format!("\n{}", table(&rows)));
    }
    let conversations = array(all, "conversations");
    if !conversations.is_empty() {
        let mut rows =
            vec![["CONVERSATION", "UNREAD", "READ", "LAST SEQ", "LAST", "STATE"].map(String::from)];
        rows.extend(conversations.iter().map(|it| {
            let last = it["time"].as_u64().map(rfc3339).unwrap_or_default();
            let state = if it["member"] == false { "left" } else { "" };
            let [conversation, unread, read, seq] =
                ["conversation", "unread", "readSeq", "maxSeq"].map(|key| cell(&it[key]));
            [conversation, unread, read, seq, last, state.to_owned()]
        }));
        text.push_str(&format!("\n{}", table(&rows)));
    }
    if has_more {
        text.push_str(&format!("... and more than these {CONVERSATIONS}\n"));
    }
    text
}

/// Closes the connections of a user on all nodes.
///
/// # Errors
/// The name is no id, or the node does not answer.
pub fn kick(args: &KickArgs) -> anyhow::Result<()> {
    check_id(&args.user).with_context(|| format!("user {:?}", args.user))?;
    let mut path = format!("/v1/users/{}/connections?reconnect={}", args.user, args.reconnect);
    for (name, value) in [("device", &args.device), ("reason", &args.reason)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", escaped(value)));
        }
    }
    let reply = accepted(args.admin.request("DELETE", &path)?)?;
    if args.admin.printed_json(&reply) {
        return Ok(());
    }
    println!("closed {}", cell(&reply["closed"]));
    for node in array(&reply, "silent") {
        eprintln!("{} did not answer; repeat the command for its connections", cell(node));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_shown_with_connections_and_conversations() {
        let all = json!({"user": "bob", "unread": 3, "silent": ["n2"], "connections": [
                {"device": "phone", "node": "n1", "sinceMs": 1_795_973_344_000_u64, "address": "10.0.0.7", "id": "n1.5f1c.1"}],
            "conversations": [{"conversation": "g:team", "unread": 3, "readSeq": 1, "maxSeq": 5, "time": 1_795_973_344_000_u64,
                "member": false}]});
        assert_eq!(
            shown(&all, false),
            "bob: 1 connection, 3 unread\nn2 did not answer; its connections are missing\n\n\
             DEVICE  NODE  SINCE                     ADDRESS   ID\n\
             phone   n1    2026-11-29T17:29:04.000Z  10.0.0.7  n1.5f1c.1\n\n\
             CONVERSATION  UNREAD  READ  LAST SEQ  LAST                      STATE\n\
             g:team        3       1     5         2026-11-29T17:29:04.000Z  left\n"
        );
        let none = json!({"user": "bob", "unread": 0, "silent": [], "connections": [], "conversations": []});
        assert_eq!(shown(&none, false), "bob: not connected, 0 unread\n");
    }
}
