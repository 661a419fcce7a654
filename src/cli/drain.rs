//! `tidegate drain`: has a node leave, says how far that is, or calls it off.

use anyhow::bail;
use serde_json::Value;

use super::admin::{Ask, text};

/// Arguments of `tidegate drain`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only say how far it is
    #[arg(long)]
    status: bool,
    /// Call it off: the node stays, and so do the clients that are still there
    #[arg(long, conflicts_with = "status")]
    abort: bool,
    #[command(flatten)]
    ask: Ask,
}

/// Begins, calls off or shows the drain of one node.
///
/// # Errors
/// No node answers, or there is nothing to call off.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let asked = if args.abort { Some("DELETE") } else { (!args.status).then_some("POST") };
    if let Some(method) = asked {
        let (status, said) = args.ask.request(method, "/v1/drain")?;
        if !(200..300).contains(&status) {
            bail!(
                "the node is {}: there is no drain that can be called off; one that a signal began, or that closes everybody, goes on",
                text(&said["state"])
            );
        }
    }
    let (_, said) = args.ask.request("GET", "/readyz?verbose")?;
    if !args.ask.wants_json(&said) {
        println!("{}", line(&said));
    }
    Ok(())
}

/// One line of how it is.
fn line(said: &Value) -> String {
    let head = format!("{} is {}, {} clients", text(&said["node"]), text(&said["state"]), said["conns"]);
    match progress(&said["drain"]) {
        Some(progress) => format!("{head}; {progress}"),
        None => head,
    }
}

/// How far a drain is, in a few words; none when there is none.
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
    fn a_drain_is_told_in_one_line() {
        let mut said = json!({"node": "n1", "state": "ready", "conns": 7, "drain": null});
        assert_eq!(line(&said), "n1 is ready, 7 clients");
        said["state"] = json!("draining");
        said["drain"] = json!({"phase": "draining", "from": 5_000, "left": 1_250, "unnoticed": 0, "rate": 500, "forMs": 9_250});
        assert_eq!(line(&said), "n1 is draining, 7 clients; draining 75 % of 5000 gone, 500 a second, 9.2 s");
    }
}
