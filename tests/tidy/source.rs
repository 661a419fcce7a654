//! File as the rules read it: its text, its code without comments and string contents, and its comments alone.

/// Text file of the tree.
pub(crate) struct Source {
    /// Path relative to the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Text with comments and the contents of string literals blanked; lines stay in place.
    pub(crate) code: String,
    /// Text with everything except comments blanked; lines stay in place.
    pub(crate) comments: String,
}

/// Function with its name and its first and last line, counted from 1.
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (code, comments) = if path.ends_with(".rs") { split(text) } else { Default::default() };
        Self { path: path.into(), text: text.into(), code, comments }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns whether `line`, counted from 1, is in a folder `tests/` or below the file's `#[cfg(test)] mod … {`.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.path.starts_with("tests/") || self.path.contains("/tests/") || line > self.tests_begin()
    }

    fn tests_begin(&self) -> usize {
        let lines: Vec<&str> = self.code.lines().collect();
        lines
            .windows(2)
            .position(|pair| {
                pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && pair[1].ends_with('{')
            })
            .unwrap_or(lines.len())
    }

    /// Returns the code lines, numbered from 1.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the functions with a body, found by rustfmt's indentation.
    pub(crate) fn functions(&self) -> Vec<Function<'_>> {
        let lines: Vec<&str> = self.code.lines().collect();
        let mut found = Vec::new();
        for (index, line) in lines.iter().enumerate() {
            let Some(name) = function_name(line) else { continue };
            if line.ends_with(';') || line.ends_with('}') {
                continue;
            }
            let indent = indentation(line);
            let same_level =
                lines.iter().enumerate().skip(index + 1).filter(|(_, l)| indentation(l) == indent);
            for (end, later) in same_level {
                let later = later.trim_start();
                if later.starts_with('}') {
                    found.push(Function { name, first: index + 1, last: end + 1 });
                    break;
                }
                // A declaration without a body, or the next function starts: skip this one.
                if (later.starts_with(')') && later.ends_with(';')) || function_name(later).is_some() {
                    break;
                }
            }
        }
        found
    }
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let modifiers = ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"\""];
    if !before.split_whitespace().all(|word| modifiers.contains(&word)) {
        return None;
    }
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &after[..end])
}

/// Splits Rust text into code and comments. String literals are blanked in the code, except for their quotes.
fn split(text: &str) -> (String, String) {
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, kind) = token(rest, code.chars().next_back());
        let (now, later) = rest.split_at(length.max(first.len_utf8()).min(rest.len()));
        match kind {
            Kind::Code => code.push_str(now),
            Kind::Quoted => {
                code.push('"');
                code.push_str(&blank(&now[1..now.len().max(2) - 1]));
                code.push('"');
            }
            Kind::Comment => code.push_str(&blank(now)),
        }
        comments.push_str(&if matches!(kind, Kind::Comment) { now.to_owned() } else { blank(now) });
        rest = later;
    }
    (code, comments)
}

#[derive(Clone, Copy)]
enum Kind {
    Code,
    Quoted,
    Comment,
}

/// Returns the length and kind of the token at the start of `rest`; `before` is the last character of code.
fn token(rest: &str, before: Option<char>) -> (usize, Kind) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment);
    }
    if rest.starts_with("/*") {
        return (rest.find("*/").map_or(rest.len(), |end| end + 2), Kind::Comment);
    }
    if rest.starts_with('"') {
        return (quoted_length(rest, '"'), Kind::Quoted);
    }
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if !in_word && let Some(raw) = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let open = rest.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len());
            return (end, Kind::Quoted);
        }
    }
    if rest.starts_with('\'') && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
        return (quoted_length(rest, '\''), Kind::Quoted);
    }
    (1, Kind::Code)
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

fn blank(text: &str) -> String {
    text.chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect()
}
