//! Format of the log: each event is one line of bounded length, whatever text is in it, and no place writes without a
//! limit.

use std::{collections::HashMap, fmt};

use parking_lot::Mutex;
use tracing::{Event, Level, Metadata, Subscriber, callsite::Identifier};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

use super::LogLimit;

/// Most bytes of a line; the rest is cut off.
const LINE_BYTES_MAX: usize = 4_096;

/// Crates whose lines are the node's own.
const OWN_CRATES: [&str; 2] = ["tidegate", "tidegate_protocol"];

/// Format of log lines. A place of the node's own may log 100 lines at once and then 10 a second, which suffices for 64
/// partitions that move; a place of a library 10 lines, then one a second. Levels `debug` and `trace` have no limit.
pub(crate) struct LogLines {
    format: Format,
    has_colours: bool,
    limits: PlaceLimits,
}

/// Limit of each place that has logged; the program has a fixed number of places.
#[derive(Default)]
pub(super) struct PlaceLimits(Mutex<HashMap<Identifier, LogLimit>>);

impl LogLines {
    /// Creates the format, with or without colours.
    pub(crate) fn new(has_colours: bool) -> Self {
        Self { format: Format::default().with_ansi(has_colours), has_colours, limits: PlaceLimits::default() }
    }
}

impl PlaceLimits {
    /// Counts a line; see [`LogLimit::pass`].
    pub(super) fn pass(&self, place: &'static Metadata<'static>) -> Option<u64> {
        if *place.level() > Level::INFO {
            return Some(0);
        }
        let root = place.target().split("::").next().unwrap_or_default();
        let limit = || if OWN_CRATES.contains(&root) { LogLimit::of(100, 100) } else { LogLimit::new() };
        self.0.lock().entry(place.callsite()).or_insert_with(limit).pass()
    }
}

impl<S, N> FormatEvent<S, N> for LogLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(suppressed) = self.limits.pass(event.metadata()) else { return Ok(()) };
        let mut line = String::new();
        self.format.format_event(context, Writer::new(&mut line), event)?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let kept = &line[..line.floor_char_boundary(LINE_BYTES_MAX)];
        for (at, character) in kept.char_indices() {
            match character {
                '\x1b' if self.has_colours && is_colour(&kept[at..]) => writer.write_char(character)?,
                it if is_unsafe(it) => write!(writer, "{}", it.escape_default())?,
                it => writer.write_char(it)?,
            }
        }
        if kept.len() < line.len() {
            let reset = if self.has_colours { "\x1b[0m" } else { "" };
            write!(writer, "{reset}… ({} bytes cut off)", line.len() - kept.len())?;
        }
        if suppressed > 0 {
            write!(writer, " suppressed={suppressed}")?;
        }
        writeln!(writer)
    }
}

/// Returns whether the text begins with a sequence that changes colours or style only; texts of others may contain these.
fn is_colour(text: &str) -> bool {
    let parameters = text.strip_prefix("\x1b[").unwrap_or_default();
    let end = parameters.find(|it: char| !it.is_ascii_digit() && it != ';');
    end.is_some_and(|end| parameters[end..].starts_with('m'))
}

/// Returns whether a character could begin a line or change how the rest of a line looks.
fn is_unsafe(character: char) -> bool {
    // The last three are separators of lines and paragraphs, and marks that turn the direction of text.
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
pub(super) mod tests {
    use std::{io, sync::Arc};

    use tracing_subscriber::{fmt::format::DefaultFields, registry::Registry};

    use super::*;

    /// Output of a log.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines that `log` writes.
    fn lines(has_colours: bool, log: impl FnOnce()) -> Vec<String> {
        let text = written(LogLines::new(has_colours), log);
        text.lines().map(str::to_owned).collect()
    }

    /// Returns what `log` writes in this format.
    pub(crate) fn written<F>(format: F, log: impl FnOnce()) -> String
    where
        F: FormatEvent<Registry, DefaultFields> + Send + Sync + 'static,
    {
        let said = Said::default();
        let writer = said.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .event_format(format)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(said.0.lock().clone()).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'), "{text}");
        text
    }

    #[test]
    fn x17_text_of_others_stays_in_its_line() {
        let forged = "no\n2026-01-01T00:00:00Z ERROR tidegate: all is lost\r\u{1b}[2J\u{2028}\u{202e}\0";
        for has_colours in [false, true] {
            let lines = lines(has_colours, || {
                tracing::warn!(why = %forged, "refused");
                tracing::warn!(why = forged, "refused");
                tracing::warn!("refused: {forged}");
            });
            assert_eq!(lines.len(), 3, "{lines:?}");
            for line in lines {
                assert!(line.contains("all is lost") && line.contains("\\n2026"), "{line}");
                let hidden = |it: char| is_unsafe(it) && !(has_colours && it == '\u{1b}');
                assert!(!line.contains(hidden) && !line.contains("\u{1b}[2J"), "{line:?}");
            }
        }
    }

    #[test]
    fn x17_long_text_is_cut_off() {
        let lines = lines(false, || tracing::warn!(why = "ü".repeat(100_000), "refused"));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].len() < LINE_BYTES_MAX + 64, "{}", lines[0].len());
        assert!(lines[0].contains("refused") && lines[0].ends_with(" bytes cut off)"), "{}", lines[0]);
    }

    /// HTTP/2 callers of the link make its library warn at will, before the handshake.
    #[test]
    fn x17_lines_of_libraries_are_limited() {
        let lines = lines(false, || {
            for n in 0..1_000 {
                tracing::warn!(target: "h2::proto::ping_pong", n, "recv PING ack that we never sent");
            }
        });
        assert!((10..=12).contains(&lines.len()), "{lines:?}");
    }

    #[test]
    fn x17_own_lines_are_limited_except_those_of_debugging() {
        let lines = lines(false, || {
            for n in 0..1_000 {
                tracing::info!(n, "partition taken over");
                tracing::debug!(n, "wanted in full");
                crate::log_limit::log_limited!(warn, n, "refused");
            }
        });
        let count = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        assert!((100..=120).contains(&count("partition taken over")), "{}", count("partition taken over"));
        assert_eq!(count("wanted in full"), 1_000);
        assert!((10..=12).contains(&count("refused")), "{}", count("refused"));
    }
}
