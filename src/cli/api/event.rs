//! `tidegate event`: messages and changes of all nodes as they are accepted, one line each.

use std::{
    collections::HashSet,
    io::Write as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use serde_json::Value;

use crate::cli::{
    admin::{AdminArgs, StreamEnd, escaped, refusal},
    tail::{RECONNECT_INTERVAL, RECONNECT_MAX, of_event},
};

/// Longest silence of a stream: a node sends a comment after 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Arguments of `tidegate event`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct EventArgs {
    /// Types of events, or beginnings with *; default: all
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Conversations, or beginnings of their keys with *; default: all
    #[arg(long = "conversation", value_name = "KEY", value_delimiter = ',')]
    conversations: Vec<String>,
    /// Only events of these users
    #[arg(long = "user", value_name = "USER", value_delimiter = ',')]
    users: Vec<String>,
    /// With the content of messages
    #[arg(long)]
    content: bool,
    /// Start with the oldest event that is kept, not with the next one
    #[arg(long)]
    oldest: bool,
    /// Stop after this many events
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    admin: AdminArgs,
}

const EXAMPLES: &str = "\
Examples:
  tidegate event                                            what happens from now on
  tidegate event --type 'tidegate.message.*' --content      messages with their content
  tidegate event --conversation 'g:*' --oldest --json       groups from the beginning, as CloudEvents

With --json each line is a CloudEvent (docs/events.md). With keys on the admin port it needs the scope read, and content for --content.";

/// Prints events until enough were shown. After a cut it connects again and continues.
///
/// # Errors
/// A node refuses the request, or none answers for longer than a restart takes.
pub fn follow(args: &EventArgs) -> anyhow::Result<()> {
    let mut printer = Printer {
        is_json: args.admin.is_json(),
        left: args.count.unwrap_or(u64::MAX),
        last_id: None,
        unconfirmed: HashSet::new(),
        kind: String::new(),
        is_connected: false,
        is_at_end: false,
    };
    let mut lost: Option<Instant> = None;
    loop {
        // A repeated request begins as the first one did, until there is an id to continue after.
        let last_id = printer.last_id.clone();
        let end = args.admin.lines(&args.path(), last_id.as_deref(), SILENCE_MAX, |line| printer.take(line));
        let why = match end {
            _ if printer.is_at_end => return Ok(()),
            Ok(StreamEnd::Refused(body)) if body["temporary"] != true => return Err(refusal(&body)),
            Ok(StreamEnd::Refused(body)) => refusal(&body),
            Ok(StreamEnd::Ended) => anyhow!("the stream ended"),
            Err(why) => why,
        };
        if std::mem::take(&mut printer.is_connected) {
            lost = None;
        }
        match lost {
            Some(since) if since.elapsed() > RECONNECT_MAX => return Err(why),
            Some(_) => {}
            None => {
                eprintln!("{why:#}; connecting again");
                lost = Some(Instant::now());
            }
        }
        thread::sleep(RECONNECT_INTERVAL);
    }
}

impl EventArgs {
    fn path(&self) -> String {
        let from = if self.oldest { "oldest" } else { "now" };
        // The cursor is in a header.
        let mut path = format!("/v1/events/stream?content={}&from={from}", self.content);
        let lists = [("types", &self.types), ("conversations", &self.conversations), ("users", &self.users)];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            path.push_str(&format!("&{name}={}", escaped(&list.join(","))));
        }
        path
    }
}

/// Printer of the lines of a stream.
struct Printer {
    is_json: bool,
    left: u64,
    last_id: Option<String>,
    /// Ids of the events after `last_id`, which come again when the stream is continued.
    unconfirmed: HashSet<String>,
    /// Type of the event whose data comes next.
    kind: String,
    /// Whether the present stream has begun.
    is_connected: bool,
    /// Whether enough was printed, or the output is closed.
    is_at_end: bool,
}

impl Printer {
    /// Takes a line; returns whether it wants more.
    fn take(&mut self, line: &str) -> bool {
        self.is_connected = true;
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        match name {
            // A stream that is continued begins with the id that it was continued at.
            "id" if self.last_id.as_deref() == Some(value) => {}
            "id" => {
                self.last_id = Some(value.to_owned());
                self.unconfirmed.clear();
            }
            "event" => self.kind = value.to_owned(),
            "data" if self.kind == "gap" => {
                eprintln!("events are missing here, which the feed no longer has: {value}")
            }
            "data" => self.print(value),
            _ => {}
        }
        !self.is_at_end
    }

    fn print(&mut self, json: &str) {
        let event: Value = serde_json::from_str(json).unwrap_or_default();
        if !self.unconfirmed.insert(event["id"].as_str().unwrap_or_default().to_owned()) {
            return;
        }
        let line = if self.is_json { json.to_owned() } else { of_event(json) };
        let mut out = std::io::stdout().lock();
        self.left -= 1;
        let is_closed = writeln!(out, "{line}").and_then(|()| out.flush()).is_err();
        self.is_at_end = is_closed || self.left == 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printer(left: u64) -> Printer {
        Printer {
            is_json: true,
            left,
            last_id: None,
            unconfirmed: HashSet::new(),
            kind: String::new(),
            is_connected: false,
            is_at_end: false,
        }
    }

    #[test]
    fn events_that_come_again_are_printed_once() {
        let mut printer = printer(3);
        let lines =
            ["id: a", "", "event: x", r#"data: {"id":"g:t/1"}"#, "", "id: a", "", r#"data: {"id":"g:t/1"}"#];
        assert!(lines.iter().all(|line| printer.take(line)));
        assert_eq!((printer.left, printer.last_id.as_deref()), (2, Some("a")));
        assert!(printer.take("id: b") && printer.take(r#"data: {"id":"g:t/2"}"#));
        assert!(!printer.take(r#"data: {"id":"g:t/3"}"#), "enough was printed");
    }
}
