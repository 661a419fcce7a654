//! `tidegate ban`, `unban` and `bans`: add, lift and list bans of networks, users and devices.

use serde_json::{Value, json};

use crate::cli::admin::{AdminArgs, accepted, array, escaped, table, text};

/// Largest page of a list.
const PAGE: usize = 1_000;

/// Arguments of `tidegate ban`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct BanArgs {
    /// Network, user or device: `network:ADDRESS/BITS`, `user:ID` or `device:USER/DEVICE`
    subject: String,
    /// Reason of the ban, for operators
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Time until the ban ends, in seconds; without it, there is no end
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    #[command(flatten)]
    admin: AdminArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate ban user:bob --reason spam --ttl 3600
  tidegate ban network:192.0.2.0/24 --reason flood
  tidegate unban user:bob

With keys on the admin port a change needs the scope operate.";

/// Arguments of `tidegate unban`.
#[derive(clap::Args, Debug)]
pub struct UnbanArgs {
    /// Subject of the ban, as `tidegate bans` lists it
    subject: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Arguments of `tidegate bans`.
#[derive(clap::Args, Debug)]
pub struct BansArgs {
    /// Ban this subject: `network:ADDRESS/BITS`, `user:ID` or `device:USER/DEVICE`
    #[arg(long, value_name = "SUBJECT", requires = "reason", conflicts_with_all = ["lift", "show"])]
    add: Option<String>,
    /// Reason of the ban, for operators
    #[arg(long, value_name = "TEXT", requires = "add")]
    reason: Option<String>,
    /// Time until the ban ends, in seconds; without it, there is no end
    #[arg(long, value_name = "SECONDS", requires = "add")]
    ttl: Option<u64>,
    /// Lift the ban of this subject
    #[arg(long, value_name = "SUBJECT", conflicts_with = "show")]
    lift: Option<String>,
    /// Show the bans and suspensions that concern this subject, and its score by evidence
    #[arg(long, value_name = "SUBJECT")]
    show: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Bans a subject on all nodes.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn ban(args: &BanArgs) -> anyhow::Result<()> {
    add(&args.admin, &args.subject, &args.reason, args.ttl)
}

/// Lifts the ban of a subject on all nodes.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn unban(args: &UnbanArgs) -> anyhow::Result<()> {
    lift(&args.admin, &args.subject)
}

/// Lists the bans in force on a node, or changes or explains one.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn bans(args: &BansArgs) -> anyhow::Result<()> {
    let admin = &args.admin;
    if let Some(subject) = &args.add {
        return add(admin, subject, args.reason.as_deref().unwrap_or_default(), args.ttl);
    }
    if let Some(subject) = &args.lift {
        return lift(admin, subject);
    }
    if let Some(subject) = &args.show {
        let Some(reply) = admin.get(&format!("/v1/subjects/{}", escaped(subject)))? else { return Ok(()) };
        println!("{}", summary(&reply));
        explanation(&reply).iter().for_each(|line| println!("{line}"));
        print!("{}", table(&rows(&reply)));
        return Ok(());
    }
    let Some(reply) = admin.get(&format!("/v1/bans?limit={PAGE}"))? else { return Ok(()) };
    print!("{}", table(&rows(&reply)));
    if !reply["next"].is_null() {
        println!("... and more; see GET /v1/bans");
    }
    Ok(())
}

fn add(admin: &AdminArgs, subject: &str, reason: &str, ttl: Option<u64>) -> anyhow::Result<()> {
    let ttl_ms = ttl.map(|seconds| seconds.saturating_mul(1_000));
    let body = json!({"subject": subject, "reason": reason, "ttlMs": ttl_ms});
    let reply = accepted(admin.request_with("POST", "/v1/bans", &body.to_string())?)?;
    if !admin.printed_json(&reply) {
        println!("{} is banned {}{}", text(&reply["subject"]), end(&reply), pending(&reply));
    }
    Ok(())
}

fn lift(admin: &AdminArgs, subject: &str) -> anyhow::Result<()> {
    let reply = accepted(admin.request("DELETE", &format!("/v1/bans/{}", escaped(subject)))?)?;
    if !admin.printed_json(&reply) {
        let what = if reply["removed"] == true { "is no longer banned" } else { "was not banned" };
        println!("{} {what}{}", text(&reply["subject"]), pending(&reply));
    }
    Ok(())
}

fn rows(reply: &Value) -> Vec<[String; 4]> {
    let mut rows = vec![["SUBJECT", "ENDS", "BY", "REASON"].map(String::from)];
    let row = |ban: &Value| [text(&ban["subject"]), end(ban), text(&ban["by"]), text(&ban["reason"])];
    rows.extend(array(reply, "bans").iter().map(row));
    rows
}

/// Returns the end of a ban, in words.
fn end(ban: &Value) -> String {
    ban["untilMs"]
        .as_u64()
        .map_or("without end".to_owned(), |ms| format!("until {}", crate::clock::rfc3339(ms)))
}

fn pending(reply: &Value) -> String {
    let nodes: Vec<String> = array(reply, "pending").iter().map(text).collect();
    if nodes.is_empty() { String::new() } else { format!("; within 2 s also on {}", nodes.join(", ")) }
}

fn summary(reply: &Value) -> String {
    let subject = text(&reply["subject"]);
    match (reply["exempt"].as_str(), reply["banned"] == true) {
        (Some(why), _) => format!("{subject} is never banned: {why}"),
        (None, true) => format!("{subject} is banned"),
        (None, false) => format!("{subject} is not banned"),
    }
}

/// Returns what the node has seen of a subject, why it spares it, and its suspensions.
fn explanation(reply: &Value) -> Vec<String> {
    let evidence = &reply["evidence"];
    let seen: Vec<String> = array(evidence, "counts")
        .iter()
        .map(|it| format!("{} {}", text(&it["count"]), text(&it["kind"])))
        .collect();
    let mut lines = Vec::new();
    if let Some(score) = evidence["score"].as_u64() {
        let seen = if seen.is_empty() { "no recent evidence".to_owned() } else { seen.join(", ") };
        lines.push(format!("score {score} of 100 on {}: {seen}", text(&evidence["node"])));
    }
    lines.extend(evidence["spared"].as_str().map(|why| format!("spared: {why}")));
    let suspended = |it: &Value| {
        format!(
            "{} is suspended {}, by {}: {}",
            text(&it["subject"]),
            end(it),
            text(&it["by"]),
            text(&it["reason"])
        )
    };
    lines.extend(array(reply, "suspensions").iter().map(suspended));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bans_are_rows_of_a_table_and_subjects_are_escaped() {
        let reply = json!({"bans": [
            {"subject": "user:ann", "reason": "spam", "by": "k1", "sinceMs": 0, "untilMs": 1_763_712_000_000_u64},
            {"subject": "network:192.0.2.0/24", "reason": "flood", "by": "k1", "sinceMs": 0, "untilMs": null},
        ]});
        let rows = rows(&reply);
        assert_eq!(rows[1], ["user:ann", "until 2025-11-21T08:00:00.000Z", "k1", "spam"].map(String::from));
        assert_eq!(rows[2][1], "without end");
        assert_eq!(escaped("network:2001:db8::/32"), "network:2001:db8::%2F32");
        assert_eq!(pending(&json!({"pending": ["n2", "n3"]})), "; within 2 s also on n2, n3");
        let of = json!({"subject": "user:ann", "banned": false, "exempt": null});
        assert_eq!(summary(&of), "user:ann is not banned");
        let suspension = json!({"subject": "user:ann", "reason": "spam", "by": "k1", "untilMs": null});
        let evidence = json!({"node": "n1", "score": 41, "spared": "2 users", "counts": [{"kind": "probe", "count": 8}]});
        assert_eq!(
            explanation(&json!({"evidence": evidence, "suspensions": [suspension]})),
            [
                "score 41 of 100 on n1: 8 probe",
                "spared: 2 users",
                "user:ann is suspended without end, by k1: spam"
            ]
        );
    }
}
