//! `tidegate limits`: rules of a node with what they admitted and refused, in all or for one subject.

use serde_json::Value;

use super::{array, table};
use crate::cli::admin::{AdminArgs, text};

/// Arguments of `tidegate limits`.
#[derive(clap::Args, Debug)]
pub struct LimitsArgs {
    /// Level and subject, such as user:ann, org:acme or conversation:g:team; without it, all rules are listed
    key: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Prints the rules in force on a node, or those of one subject.
///
/// # Errors
/// The node does not answer, or there is no such level.
pub fn limits(args: &LimitsArgs) -> anyhow::Result<()> {
    let path =
        args.key.as_deref().map_or("/v1/limits".to_owned(), |key| format!("/v1/limits/{}", escaped(key)));
    let Some(reply) = args.admin.get(&path)? else { return Ok(()) };
    if array(&reply, "rules").is_empty() {
        println!("no rule is in force for this on {}", text(&reply["node"]));
        return Ok(());
    }
    if args.key.is_some() {
        print!("{}", table(&subject_rows(&reply)));
        reasons(&reply).iter().for_each(|line| println!("{line}"));
        return Ok(());
    }
    print!("{}", table(&rule_rows(&reply)));
    reasons(&reply).iter().for_each(|line| println!("{line}"));
    let busiest = busiest_rows(&reply);
    if busiest.len() > 1 {
        println!();
        print!("{}", table(&busiest));
    }
    Ok(())
}

/// Returns the key as a part of a path.
fn escaped(key: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b":-._~".contains(&byte);
    let part = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    key.bytes().map(part).collect()
}

/// Returns a window in the largest unit that has a whole number of it.
fn window(ms: &Value) -> String {
    let ms = ms.as_u64().unwrap_or(0);
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let fits = units.into_iter().find(|(unit, _)| ms > 0 && ms.is_multiple_of(*unit));
    fits.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

fn action(rule: &Value) -> String {
    if rule["dryRun"] == true { "dry run".to_owned() } else { "limits".to_owned() }
}

fn rule_rows(reply: &Value) -> Vec<[String; 11]> {
    let head = [
        "RULE",
        "SOURCE",
        "LEVEL",
        "WINDOW",
        "LIMIT",
        "MODE",
        "ADMITTED",
        "REFUSED",
        "DELAYED",
        "DRY REFUSED",
        "LAST MINUTE",
    ];
    let mut rows = vec![head.map(String::from)];
    rows.extend(array(reply, "rules").iter().map(|rule| {
        let total = |name: &str| text(&rule["total"][name]);
        [
            text(&rule["id"]),
            text(&rule["source"]),
            text(&rule["level"]),
            window(&rule["windowMs"]),
            text(&rule["limit"]),
            action(rule),
            total("admitted"),
            total("refused"),
            total("delayed"),
            total("dryRefused"),
            total("refusedLastMinute"),
        ]
    }));
    rows
}

/// Returns for each rule that follows the load what its limit follows from.
fn reasons(reply: &Value) -> Vec<String> {
    let dynamic = array(reply, "rules").iter().filter(|rule| rule["why"].is_string());
    dynamic.map(|rule| format!("{}: {}", text(&rule["id"]), text(&rule["why"]))).collect()
}

fn busiest_rows(reply: &Value) -> Vec<[String; 4]> {
    let mut rows = vec![["MOST REFUSED", "RULE", "REFUSED", "LAST MINUTE"].map(String::from)];
    rows.extend(
        array(reply, "busiest")
            .iter()
            .map(|it| ["key", "rule", "refused", "refusedLastMinute"].map(|name| text(&it[name]))),
    );
    rows
}

fn subject_rows(reply: &Value) -> Vec<[String; 8]> {
    let head = ["RULE", "WINDOW", "LIMIT", "MODE", "USED", "RETRY AFTER", "REFUSED", "LAST MINUTE"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(array(reply, "rules").iter().map(|rule| {
        let is_excepted = rule["excepted"] == true;
        [
            text(&rule["id"]),
            window(&rule["windowMs"]),
            text(&rule["limit"]),
            if is_excepted { "excepted".to_owned() } else { action(rule) },
            text(&rule["used"]),
            format!("{} ms", text(&rule["retryAfterMs"])),
            text(&rule["refused"]["total"]),
            text(&rule["refused"]["lastMinute"]),
        ]
    }));
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_and_subjects_are_listed() {
        let total =
            json!({"admitted": 9, "refused": 3, "delayed": 2, "dryRefused": 0, "refusedLastMinute": 1});
        let rule = json!({"id": "user-1s", "source": "api", "level": "user", "windowMs": 1_000, "limit": 20,
            "dryRun": true, "total": total});
        let busiest = json!({"key": "user:ann", "rule": "user-1s", "refused": 3, "refusedLastMinute": 1});
        let reply = json!({"node": "n1", "rules": [rule], "busiest": [busiest]});
        let expected = ["user-1s", "api", "user", "1s", "20", "dry run", "9", "3", "2", "0", "1"];
        assert_eq!(rule_rows(&reply)[1], expected);
        assert_eq!(busiest_rows(&reply)[1], ["user:ann", "user-1s", "3", "1"]);
        let rule = json!({"id": "r", "windowMs": 1_500, "limit": 5, "dryRun": false, "excepted": false, "used": 4,
            "retryAfterMs": 7, "refused": {"total": 2, "lastMinute": 1}});
        let rows = subject_rows(&json!({"rules": [rule]}));
        assert_eq!(rows[1], ["r", "1500ms", "5", "limits", "4", "7 ms", "2", "1"]);
        let rules = json!({"rules": [{"id": "r"}, {"id": "d", "why": "base 5 x load 1 = 5"}]});
        assert_eq!(reasons(&rules), ["d: base 5 x load 1 = 5"]);
    }

    #[test]
    fn windows_have_units_and_keys_are_escaped() {
        let windows = [100, 1_000, 90_000, 3_600_000, 86_400_000].map(|ms| window(&json!(ms)));
        assert_eq!(windows, ["100ms", "1s", "90s", "1h", "1d"]);
        assert_eq!(escaped("conversation:g:team"), "conversation:g:team");
        assert_eq!(escaped("content:a b/ü"), "content:a%20b%2F%C3%BC");
    }
}
