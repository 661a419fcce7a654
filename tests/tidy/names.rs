//! Naming rules: one meaning per public type name, and one name per parameter.

use std::collections::BTreeMap;

use crate::{rules::Finding, source::Source};

/// Folders whose public type names are compared.
const CRATES: [&str; 4] = ["src/", "protocol/src/", "lab/src/", "xtask/src/"];

/// Public type names that several modules share, each with the reason.
const SHARED: [(&str, &str); 3] = [
    ("Args", "the arguments of one command, in its module"),
    ("Cli", "the command line of one program"),
    ("Settings", "the settings of one component, used with the name of its module"),
];

/// Reports type names that are visible in a whole crate and belong to more than one type.
pub(crate) fn types(sources: &[Source]) -> Vec<Finding> {
    let mut by_name: BTreeMap<&str, Vec<(&Source, usize)>> = BTreeMap::new();
    let compared = |source: &&Source| source.is_rust() && CRATES.iter().any(|it| source.path.starts_with(it));
    for source in sources.iter().filter(compared) {
        for (number, line) in source.lines().filter(|(number, _)| !source.is_test(*number)) {
            if let Some(name) = public_type(line) {
                by_name.entry(name).or_default().push((source, number));
            }
        }
    }
    let is_shared = |name: &str| SHARED.iter().any(|(shared, _)| *shared == name);
    let mut found = Vec::new();
    for (name, places) in by_name.into_iter().filter(|(name, places)| places.len() > 1 && !is_shared(name)) {
        let what = format!("{} types are named `{name}`: rename all but one", places.len());
        found.extend(places.into_iter().map(|(source, line)| Finding::new(source, line, what.clone())));
    }
    found
}

/// Returns the name of the type that the line defines for its whole crate or for other crates.
fn public_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line.strip_prefix("pub ").or_else(|| line.strip_prefix("pub(crate) "))?;
    let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
    // The name in a macro is a variable of it.
    (end > 0).then_some(&rest[..end])
}

/// Reports tuple patterns among several parameters, which hide the parameter count from readers and from clippy.
pub(crate) fn tuples(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices("fn ") {
        let opens_word = !source.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let Some((name, parameters)) = signature(&source.code[at + 3..]).filter(|_| opens_word) else {
            continue;
        };
        let own = parameters.iter().filter(|it| !is_receiver(it)).count();
        // A function with one parameter may destructure it.
        if own > 1 && parameters.iter().any(|it| is_tuple(it)) {
            let line = source.code[..at].matches('\n').count() + 1;
            let what =
                format!("`{name}` destructures a tuple parameter: pass its parts by name, or in a struct");
            found.push(Finding::new(source, line, what));
        }
    }
    found
}

/// Returns a function's name and its parameters, from the text after `fn `.
fn signature(text: &str) -> Option<(&str, Vec<&str>)> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').filter(|end| *end > 0)?;
    let (mut depth, mut open) = (0_usize, None);
    let (mut from, mut parameters, mut before) = (end, Vec::new(), ' ');
    for (at, c) in text.char_indices().skip(end) {
        match c {
            '(' if depth == 0 && open.is_none() => (open, from) = (Some(at), at + 1),
            '(' | '[' | '{' | '<' => depth += 1,
            ',' if depth == 0 && open.is_some() => {
                parameters.push(text[from..at].trim());
                from = at + 1;
            }
            ')' if depth == 0 => {
                parameters.push(text[from..at].trim());
                parameters.retain(|it| !it.is_empty());
                return Some((&text[..end], parameters));
            }
            '>' if matches!(before, '-' | '=') => {}
            ')' | ']' | '}' | '>' => depth = depth.checked_sub(1)?,
            ';' if depth == 0 => return None,
            _ => {}
        }
        before = c;
    }
    None
}

fn is_receiver(parameter: &str) -> bool {
    parameter.split(':').next().is_some_and(|name| name.split([' ', '&']).any(|word| word == "self"))
}

/// Returns whether the parameter is a tuple pattern other than `()`.
fn is_tuple(parameter: &str) -> bool {
    let pattern = parameter.trim_start_matches('&').strip_prefix('(').filter(|rest| !rest.starts_with(')'));
    pattern.and_then(|rest| rest.split_once("):")).is_some()
}
