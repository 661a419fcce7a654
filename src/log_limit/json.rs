//! Log lines as JSON objects, one a line, of bounded length.

use std::{
    fmt::{self, Write as _},
    sync::LazyLock,
};

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use parking_lot::RwLock;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use super::lines::PlaceLimits;
use crate::clock::{rfc3339, wall_ms};

/// Most bytes of one value; the rest is cut off.
const VALUE_BYTES_MAX: usize = 2_048;

/// Keys that every line has. A field of an event with one of these names gets the suffix `_`.
const OWN_KEYS: [&str; 5] = ["time", "level", "target", "message", "node"];

/// Bytes of the hash that stands for a user.
const USER_HASH_BYTES: usize = 8;

/// Name of the node; empty until it is known.
static NODE: LazyLock<RwLock<String>> = LazyLock::new(RwLock::default);

/// Names the node in all further lines.
pub(super) fn set_node(node: &str) {
    node.clone_into(&mut NODE.write());
}

/// Format of log lines as JSON objects, with the limits of [`super::lines::LogLines`].
pub(crate) struct JsonLines {
    limits: PlaceLimits,
}

impl JsonLines {
    /// Creates the format.
    pub(crate) fn new() -> Self {
        Self { limits: PlaceLimits::default() }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let Some(suppressed) = self.limits.pass(metadata) else { return Ok(()) };
        let mut line = Line::new(metadata.level().as_str(), metadata.target());
        event.record(&mut line);
        if suppressed > 0 {
            line.0.insert("suppressed".into(), suppressed.into());
        }
        writeln!(writer, "{}", line.text())
    }
}

/// Returns a line without fields.
pub(super) fn line(level: &str, target: &str, message: &str) -> String {
    let mut line = Line::new(level, target);
    line.put("message", cut(message).into());
    line.text()
}

/// Object of one line.
struct Line(Map<String, Value>);

impl Line {
    fn new(level: &str, target: &str) -> Self {
        let mut line = Map::new();
        line.insert("time".into(), rfc3339(wall_ms()).into());
        line.insert("level".into(), level.to_ascii_lowercase().into());
        line.insert("target".into(), target.into());
        line.insert("message".into(), "".into());
        let node = NODE.read();
        if !node.is_empty() {
            line.insert("node".into(), node.as_str().into());
        }
        Self(line)
    }

    fn put(&mut self, name: &str, value: Value) {
        if name.starts_with("log.") {
            return;
        }
        let name = match name {
            "message" => name.to_owned(),
            name if OWN_KEYS.contains(&name) => format!("{name}_"),
            name => name.to_owned(),
        };
        self.0.insert(name, value);
    }

    fn put_text(&mut self, name: &str, text: &str) {
        if text.is_empty() && name != "message" {
            return;
        }
        // Logs are kept and passed on; the hash still joins the lines of a user.
        let value = match (name, text.strip_prefix("d:").and_then(|users| users.split_once(':'))) {
            ("user", _) => user_hash(text),
            ("conversation", Some((one, other))) => format!("d:{}:{}", user_hash(one), user_hash(other)),
            _ => cut(text),
        };
        match name {
            // Lines of libraries that log by the crate `log`.
            "log.target" => drop(self.0.insert("target".into(), value.into())),
            "msg" => drop(self.0.insert("msgId".into(), value.into())),
            name => self.put(name, value.into()),
        }
    }

    fn text(self) -> String {
        let text = Value::Object(self.0).to_string();
        if !text.contains(is_confusing) {
            return text;
        }
        // Such characters occur in strings only.
        let mut safe = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            match is_confusing(character) {
                true => write!(safe, "\\u{:04x}", u32::from(character)).unwrap_or_default(),
                false => safe.push(character),
            }
        }
        safe
    }
}

/// Returns whether JSON allows a character that a terminal or a viewer of logs may take for a new line, or that changes
/// how the rest of a line looks.
fn is_confusing(character: char) -> bool {
    matches!(character, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn cut(text: &str) -> String {
    let kept = &text[..text.floor_char_boundary(VALUE_BYTES_MAX)];
    match text.len() - kept.len() {
        0 => kept.to_owned(),
        rest => format!("{kept}… ({rest} bytes cut off)"),
    }
}

/// Returns the text that stands for a user: the first bytes of the SHA-256 of the id, in hexadecimal digits.
fn user_hash(user: &str) -> String {
    let hash = digest(&SHA256, user.as_bytes());
    HEXLOWER.encode(hash.as_ref().get(..USER_HASH_BYTES).unwrap_or_default())
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field.name(), &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::lines::tests::written, *};

    fn lines(log: impl FnOnce()) -> Vec<Value> {
        let text = written(JsonLines::new(), log);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect()
    }

    #[test]
    fn line_is_an_object_with_the_fields_of_its_event() {
        let user = "alice";
        let lines = lines(|| {
            tracing::warn!(conversation = "d:alice:bob", msg = "m1", reason = "", count = 3, user, device = %"phone", level = "field", is_on = true, "chain {}", "blocked");
        });
        let line = &lines[0];
        assert_eq!((&line["level"], &line["message"]), (&"warn".into(), &"chain blocked".into()));
        assert_eq!(
            (&line["count"], &line["is_on"], &line["device"]),
            (&3.into(), &true.into(), &"phone".into())
        );
        assert_eq!(line["level_"], "field");
        assert_eq!(
            (&line["conversation"], &line["msgId"]),
            (&"d:2bd806c97f0e00af:81b637d8fcd2c6da".into(), &"m1".into())
        );
        assert!(line.get("reason").is_none(), "empty: {line}");
        assert_eq!(line["user"], "2bd806c97f0e00af", "the first 8 bytes of SHA-256");
        assert!(line["target"].as_str().unwrap().starts_with("tidegate::log_limit"), "{line}");
        let time = line["time"].as_str().unwrap();
        assert_eq!((time.len(), time.ends_with('Z')), (24, true), "{time}");
    }

    #[test]
    fn x17_text_of_others_stays_in_its_value() {
        let forged = "no\n{\"level\":\"error\"}\r\u{1b}[2J\u{2028}\u{202e}\0\"";
        let text = written(JsonLines::new(), || tracing::warn!(why = forged, "refused: {forged}"));
        assert_eq!(text.lines().count(), 1);
        assert!(!text.trim_end().contains(|it: char| it.is_control() || is_confusing(it)), "{text:?}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["why"], forged);
    }

    #[test]
    fn x17_values_are_cut_and_places_limited() {
        let long = lines(|| tracing::warn!(why = "ü".repeat(100_000), "refused"));
        let why = long[0]["why"].as_str().unwrap();
        assert!(why.len() < VALUE_BYTES_MAX + 64 && why.ends_with(" bytes cut off)"), "{}", why.len());
        let many = lines(|| {
            for n in 0..1_000 {
                tracing::warn!(target: "h2::proto", n, "of a library");
            }
        });
        assert!((10..=12).contains(&many.len()), "{}", many.len());
    }
}
