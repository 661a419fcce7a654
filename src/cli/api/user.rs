//! `tidegate user` and `tidegate kick`: what is stored of a user, its erasure, and the end of the user's connections.

use std::{thread, time::Duration};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tidegate_protocol::id::check_id;

use crate::{
    cli::admin::{AdminArgs, accepted, array, cell, escaped, table},
    clock::rfc3339,
};

/// Conversations that are shown.
const CONVERSATIONS: u32 = 20;

/// Messages of a page of an export.
const EXPORTED: u32 = 500;

/// Pause before an erasure asks again for nodes that did not answer.
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// Requests in a row that an erasure makes for such nodes, before it gives up.
const SILENT_TRIES: u32 = 30;

/// Retries in a row of a request that is refused for the moment.
const RETRIES_MAX: u32 = 60;

/// Pause before such a retry, if the refusal names none, and the longest one.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Arguments of `tidegate user`.
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct UserArgs {
    /// Id of the user
    #[arg(required = true)]
    user: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(subcommand)]
    action: Option<UserAction>,
}

/// Action on the data of a user.
#[derive(clap::Subcommand, Debug)]
pub enum UserAction {
    /// Print what is stored of a user: each page as a line of JSON
    Export(ExportArgs),
    /// Erase what is stored of a user: recall messages, leave groups, remove the rest
    Erase(EraseArgs),
}

/// Arguments of `tidegate user export`.
#[derive(clap::Args, Debug)]
pub struct ExportArgs {
    /// Id of the user
    user: String,
    /// Continue at this cursor, which a failed run has printed
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tidegate user erase`.
#[derive(clap::Args, Debug)]
pub struct EraseArgs {
    /// Id of the user
    user: String,
    /// Confirm: what is erased can't be restored
    #[arg(long)]
    yes: bool,
    /// Continue at this cursor, which a failed run has printed
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
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
    let user = match (&args.action, &args.user) {
        (Some(UserAction::Export(args)), _) => return export(args),
        (Some(UserAction::Erase(args)), _) => return erase(args),
        (None, user) => user.as_deref().unwrap_or_default(),
    };
    check_id(user).with_context(|| format!("user {user:?}"))?;
    let part = |path: &str| accepted(args.admin.request("GET", &format!("/v1/users/{user}/{path}"))?);
    let connections = part("connections")?;
    let unread = part("unread")?;
    let conversations = part(&format!("conversations?order=recent&limit={CONVERSATIONS}"))?;
    let all = json!({"user": user, "connections": connections["connections"], "silent": connections["silent"],
        "unread": unread["unread"], "conversations": conversations["conversations"]});
    if !args.admin.printed_json(&all) {
        print!("{}", shown(&all, !conversations["next"].is_null()));
    }
    Ok(())
}

fn export(args: &ExportArgs) -> anyhow::Result<()> {
    let ExportArgs { user, cursor, admin } = args;
    check_id(user).with_context(|| format!("user {user:?}"))?;
    let mut cursor = cursor.clone();
    loop {
        let path = format!("/v1/users/{user}/export?limit={EXPORTED}");
        let page = step(admin, "GET", path, cursor.as_deref())?;
        println!("{page}");
        let Some(next) = page["next"].as_str() else { return Ok(()) };
        cursor = Some(next.to_owned());
    }
}

/// Makes the request of a page. A temporary refusal is retried; another error names the cursor to continue at.
fn step(admin: &AdminArgs, method: &str, mut path: String, cursor: Option<&str>) -> anyhow::Result<Value> {
    if let Some(cursor) = cursor {
        let sign = if path.contains('?') { '&' } else { '?' };
        path.push_str(&format!("{sign}cursor={}", escaped(cursor)));
    }
    let mut retries = 0;
    let page = loop {
        let answer = match admin.request(method, &path) {
            Ok(answer) => answer,
            Err(error) => break Err(error),
        };
        match retry_pause(&answer.1) {
            Some(pause) if retries < RETRIES_MAX => {
                retries += 1;
                eprintln!(
                    "{}; trying again in {} s",
                    answer.1["message"].as_str().unwrap_or("busy"),
                    pause.as_secs_f64()
                );
                thread::sleep(pause);
            }
            _ => break accepted(answer),
        }
    };
    match cursor {
        Some(cursor) => page.with_context(|| format!("continue with --cursor {cursor}")),
        None => page,
    }
}

/// Returns the pause before a retry; `None` for an answer that is no temporary refusal.
fn retry_pause(body: &Value) -> Option<Duration> {
    let pause = body["retryAfterMs"].as_u64().map_or(RETRY_PAUSE, Duration::from_millis);
    (body["temporary"] == true).then(|| pause.min(RETRY_PAUSE_MAX))
}

/// Repeats the request until nothing is left. After an error the command can be repeated: it starts again and finds less.
fn erase(args: &EraseArgs) -> anyhow::Result<()> {
    let EraseArgs { user, yes, cursor, admin } = args;
    check_id(user).with_context(|| format!("user {user:?}"))?;
    if !yes {
        bail!("this recalls all messages of {user}, for everybody and permanently; confirm with --yes");
    }
    let (mut cursor, mut silent_tries) = (cursor.clone(), 0);
    loop {
        let step = step(admin, "DELETE", format!("/v1/users/{user}/data"), cursor.as_deref())?;
        if !admin.printed_json(&step) {
            print!("{}", erased(&step));
        }
        let Some(next) = step["next"].as_str() else { return Ok(()) };
        cursor = Some(next.to_owned());
        let has_silent = !array(&step, "silent").is_empty();
        let is_idle = ["closed", "left", "recalled", "unblocked"].iter().all(|count| step[*count] == 0);
        // A long pass has requests that ask no node.
        silent_tries = if is_idle { silent_tries + u32::from(has_silent) } else { 0 };
        if silent_tries == SILENT_TRIES {
            bail!("some nodes did not answer and may have connections of {user}; repeat the command");
        }
        if has_silent && is_idle {
            thread::sleep(SILENT_PAUSE);
        }
    }
}

/// Returns what a request erased, and at the end what remains.
fn erased(step: &Value) -> String {
    let [left, recalled, unblocked] = ["left", "recalled", "unblocked"].map(|count| cell(&step[count]));
    let mut text = format!("left {left} groups, recalled {recalled} messages, ended {unblocked} blocks\n");
    for (list, what) in [
        ("ownerless", "has no owner now; name one with `tidegate group`"),
        ("kept", "was deleted; messages in it stay until retention removes them"),
        ("silent", "did not answer; it is asked again"),
    ] {
        array(step, list).iter().for_each(|it| text.push_str(&format!("{} {what}\n", cell(it))));
    }
    if !array(step, "remains").is_empty() {
        let kept = |it: &Value| match it["forMs"].as_u64() {
            Some(ms) => format!("{} h", ms / 3_600_000),
            None => String::new(),
        };
        let mut rows = vec![["REMAINS", "FOR", "WHAT"].map(String::from)];
        rows.extend(array(step, "remains").iter().map(|it| [cell(&it["what"]), kept(it), cell(&it["note"])]));
        text.push_str(&format!("\n{}", table(&rows)));
    }
    text
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
    fn erasure_names_what_it_did_and_what_remains() {
        let step = json!({"left": 1, "recalled": 2, "unblocked": 0, "ownerless": ["g:tea"], "kept": [], "silent": [],
            "remains": [{"what": "keys", "forMs": 7_200_000, "note": "hashes"}, {"what": "audit", "note": "lines"}]});
        assert_eq!(
            erased(&step),
            "left 1 groups, recalled 2 messages, ended 0 blocks\ng:tea has no owner now; name one with `tidegate group`\n\n\
             REMAINS  FOR  WHAT\n\
             keys     2 h  hashes\n\
             audit    -    lines\n"
        );
    }

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

    #[test]
    fn only_temporary_refusals_are_retried_after_a_bounded_pause() {
        let pause = |body: Value| retry_pause(&body).map(|it| it.as_millis());
        assert_eq!(pause(json!({"temporary": true, "retryAfterMs": 250})), Some(250));
        assert_eq!(pause(json!({"temporary": true})), Some(1_000));
        assert_eq!(pause(json!({"temporary": true, "retryAfterMs": 3_600_000})), Some(10_000));
        assert_eq!(pause(json!({"temporary": false, "retryAfterMs": 250})), None);
        assert_eq!(pause(json!({"done": true})), None);
    }
}
