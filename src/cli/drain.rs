//! `tidegate drain`: begins or aborts the drain of a node, or shows its progress.

use anyhow::bail;
use serde_json::Value;

use super::admin::{AdminArgs, refusal, text};

/// Arguments of `tidegate drain`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only show the progress
    #[arg(long)]
    status: bool,
    /// Abort the drain; clients still connected stay
    #[arg(long, conflicts_with = "status")]
    abort: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Begins, aborts or shows the drain of one node.
///
/// # Errors
/// No node answers, or there is no drain that can be aborted.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let change = if args.abort { Some("DELETE") } else { (!args.status).then_some("POST") };
    if let Some(method) = change {
        let (status, body) = args.admin.request(method, "/v1/drain")?;
        if status != 409 && !(200..300).contains(&status) {
            return Err(refusal(&body));
        }
        if status == 409 {
            bail!(
                "the node is {}: no drain to abort; one that a signal began, or that closes all clients already, can't be aborted",
                text(&body["state"])
            );
        }
    }
    let body = match args.admin.request("GET", "/readyz?verbose") {
        Ok((_, body)) => body,
        // A node without clients ends at once.
        Err(_) if change == Some("POST") => {
            println!("the node took the drain, and has ended");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if !args.admin.printed_json(&body) {
        println!("{}", line(&body));
    }
    Ok(())
}

/// Summarises the state of a node in one line.
fn line(body: &Value) -> String {
    let head = format!("{} is {}, {} clients", text(&body["node"]), text(&body["state"]), body["conns"]);
    match progress(&body["drain"]) {
        Some(progress) => format!("{head}; {progress}"),
        None => head,
    }
}

/// Summarises the progress of a drain; `None` if there is no drain.
pub(super) fn progress(drain: &Value) -> Option<String> {
    let number = |key: &str| drain[key].as_u64();
    let (from, left) = (number("from")?, number("left")?);
    let (rate, ms) = (number("rate").unwrap_or(0), number("forMs").unwrap_or(0));
    let gone = from.saturating_sub(left) * 100 / from.max(1);
    let pace = if rate > 0 { format!(", {rate} a second") } else { String::new() };
    Some(format!(
        "{} {gone} % of {from} gone{pace}, {}.{} s",
        text(&drain["phase"]),
        ms / 1_000,
        ms % 1_000 / 100
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn drain_is_summarised_in_one_line() {
        let mut body = json!({"node": "n1", "state": "ready", "conns": 7, "drain": null});
        assert_eq!(line(&body), "n1 is ready, 7 clients");
        body["state"] = json!("draining");
        body["drain"] = json!({"phase": "draining", "from": 5_000, "left": 1_250, "unnoticed": 0, "rate": 500, "forMs": 9_250});
        assert_eq!(line(&body), "n1 is draining, 7 clients; draining 75 % of 5000 gone, 500 a second, 9.2 s");
    }
}
