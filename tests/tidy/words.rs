//! Language rules: standard words, and doc comments with a subject.

use crate::{rules::Finding, source::Source};

/// Words that comments, logs and pages must replace by a standard word of `docs/GLOSSARY.md`.
const BANNED: [&str; 12] = [
    "anew",
    "whoever",
    "whomever",
    "beside",
    "hears",
    "heard of",
    "but for",
    "for good",
    "is no more",
    "are no more",
    "put out",
    "is told",
];

/// Files that may quote banned words.
const QUOTES: [&str; 3] = ["CONTRIBUTING.md", "tests/tidy.rs", "tests/tidy/words.rs"];

/// Reports banned words in comments, string literals and pages.
pub(crate) fn banned(source: &Source) -> Vec<Finding> {
    let is_page = source.path.ends_with(".md");
    if QUOTES.contains(&source.path.as_str()) || !(is_page || source.is_rust()) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        let line = line.to_ascii_lowercase();
        for word in BANNED.iter().filter(|word| has_words(&line, word)) {
            found.push(Finding::new(
                source,
                index + 1,
                format!("`{word}`: use the standard word of docs/GLOSSARY.md"),
            ));
        }
    }
    found
}

fn has_words(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| {
        let is_letter = |c: char| c.is_alphanumeric() || c == '_';
        !line[..at].ends_with(is_letter) && !line[at + words.len()..].starts_with(is_letter)
    })
}

/// Reports references to a document that is not in the repository.
pub(crate) fn design(source: &Source) -> Vec<Finding> {
    if source.path.starts_with("tests/tidy") {
        return Vec::new();
    }
    let lines = source.text.lines().enumerate().filter(|(_, line)| has_word(line, "DESIGN"));
    lines
        .map(|(index, _)| {
            Finding::new(source, index + 1, "cite an ADR, a section of SPEC or a flaw number instead")
        })
        .collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_letter) && !line[at + word.len()..].starts_with(is_letter))
}

/// First words of a doc comment without a subject.
const OPENINGS: [&str; 15] = [
    "It", "They", "Those", "These", "That", "This", "Who", "Whom", "Whose", "Whoever", "What", "Where",
    "Which", "So", "The same",
];

/// Reports doc comments of at most five words that start with one of [`OPENINGS`].
pub(crate) fn subject(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    if !source.is_rust() {
        return found;
    }
    let mut before = "";
    for (index, line) in source.comments.lines().enumerate() {
        let line = line.trim();
        let begins = line.starts_with("/// ") && !before.starts_with("///");
        before = line;
        let Some(text) = line.strip_prefix("/// ").filter(|_| begins) else { continue };
        let opening = OPENINGS
            .iter()
            .find(|it| text.strip_prefix(**it).is_some_and(|rest| rest.starts_with([' ', '.', ','])));
        if opening.is_some() && text.split(' ').count() <= 5 && text.ends_with('.') {
            found.push(Finding::new(source, index + 1, format!("\"{text}\" has no subject: name it")));
        }
    }
    found
}
