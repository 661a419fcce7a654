//! Screen of the demo: aligned lines on standard output, with colours on a terminal only.

use std::{
    env,
    io::{IsTerminal as _, Write as _},
    time::Duration,
};

use super::{
    judge::{Finding, Judgement},
    record::User,
    words,
};

/// Width of the texts that the bots send.
const TEXT_WIDTH: usize = 36;
/// Indent of what follows the line with the time.
const INDENT: &str = "           ";

/// Style of a part of a line.
#[derive(Clone, Copy)]
enum Style {
    Bold,
    Dim,
    Green,
    Red,
    Amber,
    Cyan,
}

/// Standard output.
pub(super) struct Screen {
    has_colours: bool,
    /// Whether the reader, such as `head`, has closed the pipe.
    pub(super) is_closed: bool,
    is_blank: bool,
}

impl Screen {
    /// Opens standard output.
    pub(super) fn open() -> Self {
        let is_refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            has_colours: std::io::stdout().is_terminal() && !is_refused,
            is_closed: false,
            is_blank: false,
        }
    }

    /// Prints a line; of several empty ones in a row only the first.
    pub(super) fn line(&mut self, text: &str) {
        if text.is_empty() && self.is_blank {
            return;
        }
        self.is_blank = text.is_empty();
        let mut out = std::io::stdout().lock();
        let written = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
        self.is_closed |= written.is_err();
    }

    fn paint(&self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Bold => "1",
            Style::Dim => "2",
            Style::Green => "32",
            Style::Red => "1;31",
            Style::Amber => "33",
            Style::Cyan => "36",
        };
        if self.has_colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Prints what the demo is, and the addresses to open.
    pub(super) fn greet(&mut self, every: Duration, admin: &str, data: &str, is_temporary: bool) {
        let version = env!("CARGO_PKG_VERSION");
        let every = words::fine(every).replace(".0 s", " s");
        self.line("");
        let what =
            format!("tidegate {version} demo: one node, two bots that talk, and a break every {every}");
        self.line(&format!("  {}", self.paint(Style::Bold, &what)));
        self.line("");
        for (label, path, what) in [
            ("open", "/messages?user=ada", "each message of the bots, step by step"),
            ("", "/events", "who comes and goes"),
            ("", "/people?user=ben", "where ben is connected"),
            ("", "/try", "alice and bob, for you to break"),
        ] {
            let address = format!("{:<44}", format!("http://{admin}{path}"));
            let address = self.paint(Style::Cyan, &address);
            self.line(&format!("    {label:<5} {address} {}", self.paint(Style::Dim, what)));
        }
        let kept = if is_temporary { ", removed at the end" } else { "" };
        self.line(&format!("    data  {data}{kept}; the node's log is in it"));
        self.line(
            "    ✓     both bots pulled what came since the last ✓; it agrees with what was sent, acked, shown",
        );
        self.line("    stop  Ctrl-C");
        self.line("");
    }

    /// Prints a message of the bots' talk.
    pub(super) fn message(&mut self, at: Duration, from: User, text: &str, outcome: &str) {
        let (clock, from, to) = (words::clock(at), from.name(), from.other().name());
        let clock = self.paint(Style::Dim, &format!("{clock:>8}"));
        let outcome = self.paint(Style::Dim, outcome);
        self.line(&format!("{clock}   {from} → {to}   {text:<TEXT_WIDTH$} {outcome}"));
    }

    /// Prints that a break begins.
    pub(super) fn break_begins(&mut self, at: Duration, nth: usize, what: &str) {
        self.line("");
        let clock = self.paint(Style::Dim, &format!("{:>8}", words::clock(at)));
        let label = self.paint(Style::Amber, &format!("break {nth}"));
        self.line(&format!("{clock}   {label}  {}", self.paint(Style::Bold, what)));
    }

    /// Prints what happened in a break.
    pub(super) fn detail(&mut self, text: &str) {
        self.line(&format!("{INDENT}{text}"));
    }

    /// Prints a judgement, and the broken promises that were not printed before.
    pub(super) fn judged(&mut self, judgement: &Judgement, new: &[&Finding]) {
        let (mark, style) =
            if judgement.findings.is_empty() { ("✓", Style::Green) } else { ("✗", Style::Red) };
        let broken = self.paint(style, &format!("{}  {mark}", words::broken(judgement)));
        self.line(&format!("{INDENT}{} {broken}", words::sent(judgement.counts)));
        self.broken(new);
    }

    /// Prints broken promises.
    pub(super) fn broken(&mut self, findings: &[&Finding]) {
        for finding in findings {
            let finding = self.paint(Style::Red, &words::finding(finding));
            self.detail(&finding);
        }
    }

    /// Prints the end of the demo.
    pub(super) fn summary(&mut self, at: Duration, what: &str) {
        self.line("");
        let clock = self.paint(Style::Dim, &format!("{:>8}", words::clock(at)));
        self.line(&format!("{clock}   {}", self.paint(Style::Bold, what)));
    }

    /// Prints the verdict; `None` if not everything could be judged.
    pub(super) fn verdict(&mut self, text: &str, is_good: Option<bool>) {
        let text = match is_good {
            Some(true) => self.paint(Style::Green, text),
            Some(false) => self.paint(Style::Red, text),
            None => text.to_owned(),
        };
        self.detail(&text);
    }
}
