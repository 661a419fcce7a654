//! `tidegate history`: entries of a conversation, as they are stored.

use anyhow::Context as _;
use serde_json::Value;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{
    cli::admin::{AdminArgs, array, cell, escaped, printable},
    clock::rfc3339,
};

/// Arguments of `tidegate history`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct HistoryArgs {
    /// Conversation: `g:team`, or `d:alice:bob` with its users in any order
    conversation: String,
    /// Most entries, at most 200
    #[arg(short = 'n', long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Only what this user may see
    #[arg(long = "as", value_name = "USER")]
    reader: Option<String>,
    /// Entries before and after this seq
    #[arg(long, value_name = "SEQ", group = "page")]
    around: Option<u64>,
    /// Entries from this time on: ms since 1970, or such as 2026-11-29T12:00:00Z
    #[arg(long, value_name = "TIME", group = "page", value_parser = milliseconds)]
    since: Option<u64>,
    /// Page whose cursor another page has named
    #[arg(long, value_name = "CURSOR", group = "page")]
    cursor: Option<String>,
    /// From the beginning of the history, not its end
    #[arg(long, group = "page")]
    first: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate history g:team                               the newest entries
  tidegate history d:alice:bob --as bob -n 50           as far as bob may see them
  tidegate history g:team --since 2026-11-29T12:00:00Z  from a time on

With keys on the admin port it needs the scope content.";

/// Prints a page of a history, the oldest entry first.
///
/// # Errors
/// The node does not answer, or refuses the request.
pub fn history(args: &HistoryArgs) -> anyhow::Result<()> {
    let Some(page) = args.admin.get(&args.path())? else { return Ok(()) };
    let mut entries: Vec<&Value> = array(&page, "messages").iter().collect();
    entries.sort_by_key(|entry| entry["seq"].as_u64());
    if entries.is_empty() {
        println!("no entries");
    }
    entries.iter().for_each(|entry| println!("{}", line(entry)));
    // A page at the end of the history has a page of later entries, too: an empty one.
    let newer = if args.is_elsewhere() { &page["newer"] } else { &Value::Null };
    for (name, cursor) in [("older", &page["older"]), ("newer", newer)] {
        if let Some(cursor) = cursor.as_str() {
            // The cursor is valid for the same conversation and reader only.
            eprintln!("{name}: the same command with --cursor {cursor}");
        }
    }
    Ok(())
}

impl HistoryArgs {
    /// Returns whether the page is not the one at the end of the history.
    fn is_elsewhere(&self) -> bool {
        self.around.is_some() || self.since.is_some() || self.cursor.is_some() || self.first
    }

    fn path(&self) -> String {
        let mut path =
            format!("/v1/conversations/{}/messages?limit={}", escaped(&self.conversation), self.limit);
        let given = [
            ("as", self.reader.clone()),
            ("around", self.around.map(|seq| seq.to_string())),
            ("since", self.since.map(|ms| ms.to_string())),
            ("cursor", self.cursor.clone()),
            ("direction", self.first.then(|| "forward".to_owned())),
        ];
        for (name, value) in given {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", escaped(&value)));
            }
        }
        path
    }
}

/// Parses ms since 1970, or a time by RFC 3339.
fn milliseconds(text: &str) -> anyhow::Result<u64> {
    if let Ok(ms) = text.parse() {
        return Ok(ms);
    }
    let time =
        OffsetDateTime::parse(text, &Rfc3339).context("write ms since 1970, or 2026-11-29T12:00:00Z")?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).context("the time is before 1970")
}

/// Renders an entry: seq, time, who, and what.
fn line(entry: &Value) -> String {
    let time = entry["time"].as_u64().map(rfc3339).unwrap_or_default();
    let who = entry["sender"].as_str().unwrap_or("(administrator)");
    format!("{:>6}  {time}  {}  {}", cell(&entry["seq"]), printable(who), what(entry))
}

fn what(entry: &Value) -> String {
    let edited = if entry["edited"].is_null() { "" } else { " (edited)" };
    match entry["kind"].as_str().unwrap_or_default() {
        "message" => format!("{}{edited}", content(&entry["content"])),
        "recall" => format!("* recalled {}", cell(&entry["of"])),
        "edit" => format!("* edited {}: {}", cell(&entry["of"]), content(&entry["content"])),
        kind => {
            let users: Vec<String> =
                array(entry, "users").iter().map(|user| printable(&cell(user))).collect();
            let settings = entry["settings"].as_object().into_iter().flatten();
            let settings: Vec<String> =
                settings.map(|(key, value)| printable(&format!("{key}={}", cell(value)))).collect();
            let role = printable(&cell(&entry["role"]));
            let parts = [format!("* {}", printable(kind)), users.join(", "), role, settings.join(" ")];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
        }
    }
}

/// Renders a content: its text, or else what it consists of.
fn content(content: &Value) -> String {
    if let Some(text) = content["text"].as_str() {
        return printable(text);
    }
    let Some(data) = content["data"].as_str() else { return printable(&content.to_string()) };
    format!("({} characters of base64)", data.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_lines_that_do_not_act_on_the_terminal() {
        let message = json!({"seq": 4, "time": 1_795_973_344_596_u64, "kind": "message", "sender": "bob",
            "device": "phone", "msgId": "x", "content": {"text": "ok\n\u{1b}[2J"}});
        assert_eq!(line(&message), "     4  2026-11-29T17:29:04.596Z  bob  ok\\n\\u{1b}[2J");
        let recall = json!({"seq": 5, "time": 0, "kind": "recall", "of": 3, "sender": null});
        assert!(line(&recall).ends_with("(administrator)  * recalled 3"));
        let created = json!({"seq": 1, "time": 0, "kind": "created", "users": ["a", "b"], "sender": "ann",
            "settings": {"history": "all", "post": "admins"}});
        assert!(line(&created).ends_with("ann  * created a, b history=all post=admins"));
        let edit = json!({"seq": 8, "time": 0, "kind": "edit", "of": 4, "sender": "bob", "content": {"text": "okay"}});
        assert!(line(&edit).ends_with("bob  * edited 4: okay"));
        let data =
            json!({"seq": 7, "time": 0, "kind": "message", "sender": "bob", "content": {"data": "AAAA"}});
        assert!(line(&data).ends_with("(4 characters of base64)"));
    }

    #[test]
    fn times_are_ms_or_rfc_3339() {
        assert_eq!(milliseconds("1795973344596").unwrap(), 1_795_973_344_596);
        assert_eq!(milliseconds("2026-11-29T17:29:04Z").unwrap(), 1_795_973_344_000);
        assert!(milliseconds("yesterday").is_err() && milliseconds("1960-01-01T00:00:00Z").is_err());
    }
}
