//! Rules against circles of modules and of files. A parent and its children may name each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{arrows::expand, rules::Finding, source::Source};

/// Source folders of the checked crates.
const CRATES: [&str; 4] = ["src/", "lab/src/", "protocol/src/", "xtask/src/"];

/// Imports: by importing module, the imported ones with the first line that names them.
type Arrows = BTreeMap<String, BTreeMap<String, usize>>;

/// Reports every circle of the modules of a crate's root.
pub(crate) fn of_rooms(sources: &[Source]) -> Vec<Finding> {
    let room = |module: &str| module.split("::").next().unwrap_or(module).to_owned();
    CRATES
        .iter()
        .flat_map(|folder| {
            let mut arrows = Arrows::new();
            for (from, targets) in arrows_of(folder, sources) {
                for (to, line) in targets {
                    if room(&from) != room(&to) && room(&from) != "main" {
                        arrows.entry(room(&from)).or_default().entry(room(&to)).or_insert(line);
                    }
                }
            }
            report(folder, &arrows, sources, "rooms")
        })
        .collect()
}

/// Reports every circle of files that are not parent and child.
pub(crate) fn of_files(sources: &[Source]) -> Vec<Finding> {
    CRATES.iter().flat_map(|folder| report(folder, &arrows_of(folder, sources), sources, "files")).collect()
}

/// Returns the imports between the files of a crate, outside its tests.
fn arrows_of(folder: &str, sources: &[Source]) -> Arrows {
    let modules: BTreeMap<String, &Source> =
        sources.iter().filter_map(|it| Some((module(folder, it)?, it))).collect();
    let mut arrows = Arrows::new();
    for (from, source) in modules.iter().filter(|(name, _)| !name.ends_with("tests")) {
        for (line, path) in paths(source, from) {
            if source.is_test(line) {
                continue;
            }
            let known = (1..=path.len()).rev().map(|parts| path[..parts].join("::"));
            let Some(to) = known.into_iter().find(|name| modules.contains_key(name)) else { continue };
            let is_family = to == *from || is_below(&to, from) || is_below(from, &to);
            if !is_family {
                arrows.entry(from.clone()).or_default().entry(to).or_insert(line);
            }
        }
    }
    arrows
}

fn is_below(child: &str, parent: &str) -> bool {
    child.strip_prefix(parent).is_some_and(|rest| rest.starts_with("::"))
}

/// Returns the module of a file: `shard::hub` for `src/shard/hub.rs`; `None` for `lib.rs`.
fn module(folder: &str, source: &Source) -> Option<String> {
    let path = source.path.strip_prefix(folder)?.strip_suffix(".rs")?;
    (path != "lib").then(|| path.replace('/', "::"))
}

/// Returns the paths that a file names, from the root of its crate, with their lines.
fn paths(source: &Source, module: &str) -> Vec<(usize, Vec<String>)> {
    let own: Vec<String> = module.split("::").map(str::to_owned).collect();
    let mut found = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in source.code.match_indices(start) {
            let before = source.code[..at].chars().next_back().unwrap_or(' ');
            if before.is_alphanumeric() || before == '_' || before == ':' {
                continue;
            }
            let mut rest = &source.code[at..];
            let mut base = if start == "crate::" { Vec::new() } else { own.clone() };
            rest = rest.strip_prefix("crate::").or_else(|| rest.strip_prefix("self::")).unwrap_or(rest);
            while let Some(above) = rest.strip_prefix("super::") {
                base.pop();
                rest = above;
            }
            let line = source.code[..at].matches('\n').count() + 1;
            found.extend(expand(rest).into_iter().map(|path| (line, [base.clone(), path].concat())));
        }
    }
    found
}

/// Returns a finding for each circle, at one of its imports.
fn report(folder: &str, arrows: &Arrows, sources: &[Source], what: &str) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for name in arrows.keys() {
        let circle: BTreeSet<&String> =
            reach(arrows, name).into_iter().filter(|other| reach(arrows, other).contains(name)).collect();
        if circle.is_empty() || !seen.insert(circle.clone()) {
            continue;
        }
        let mut ties = Vec::new();
        for from in &circle {
            let inside = arrows[*from].keys().filter(|to| circle.contains(to));
            ties.extend(inside.map(|to| format!("{from} -> {to}")));
        }
        let file = format!("{folder}{}.rs", name.replace("::", "/"));
        if let Some(source) = sources.iter().find(|it| it.path == file) {
            found.push(Finding::new(source, 1, format!("a circle of {what}: {}", ties.join(", "))));
        }
    }
    found
}

/// Returns all names reachable from a name, which is among them only if it is in a circle.
fn reach<'a>(arrows: &'a Arrows, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = arrows.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(arrows.get(name).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}
