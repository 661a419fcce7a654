//! Import cycles between modules and between files, which are forbidden. A parent and its children may import each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::{layers::expand, rules::Finding, source::Source};

/// Checked folders, each the source of one crate.
const CRATES: [&str; 4] = ["src/", "lab/src/", "protocol/src/", "xtask/src/"];

/// Imports by importing module: each imported module, with the line of the first import.
type Imports = BTreeMap<String, BTreeMap<String, usize>>;

/// Reports import cycles between a crate's top-level modules.
pub(crate) fn of_modules(sources: &[Source]) -> Vec<Finding> {
    let top_level = |module: &str| module.split("::").next().unwrap_or(module).to_owned();
    CRATES
        .iter()
        .flat_map(|folder| {
            let mut imports = Imports::new();
            for (from, targets) in imports_of(folder, sources) {
                for (to, line) in targets {
                    if top_level(&from) != top_level(&to) && top_level(&from) != "main" {
                        imports.entry(top_level(&from)).or_default().entry(top_level(&to)).or_insert(line);
                    }
                }
            }
            report(folder, &imports, sources, "modules")
        })
        .collect()
}

/// Reports import cycles between files other than parent and child.
pub(crate) fn of_files(sources: &[Source]) -> Vec<Finding> {
    CRATES.iter().flat_map(|folder| report(folder, &imports_of(folder, sources), sources, "files")).collect()
}

/// Returns the imports between the files of a crate, without tests.
fn imports_of(folder: &str, sources: &[Source]) -> Imports {
    let modules: BTreeMap<String, &Source> =
        sources.iter().filter_map(|it| Some((module(folder, it)?, it))).collect();
    let mut imports = Imports::new();
    for (from, source) in modules.iter().filter(|(name, _)| !name.ends_with("tests")) {
        for (line, path) in paths(source, from) {
            if source.is_test(line) {
                continue;
            }
            let prefixes = (1..=path.len()).rev().map(|parts| path[..parts].join("::"));
            let Some(to) = prefixes.into_iter().find(|name| modules.contains_key(name)) else { continue };
            let is_family = to == *from || is_below(&to, from) || is_below(from, &to);
            if !is_family {
                imports.entry(from.clone()).or_default().entry(to).or_insert(line);
            }
        }
    }
    imports
}

fn is_below(child: &str, parent: &str) -> bool {
    child.strip_prefix(parent).is_some_and(|rest| rest.starts_with("::"))
}

/// Returns the module of a file, `shard::hub` for `src/shard/hub.rs`; `None` for `lib.rs`.
fn module(folder: &str, source: &Source) -> Option<String> {
    let path = source.path.strip_prefix(folder)?.strip_suffix(".rs")?;
    (path != "lib").then(|| path.replace('/', "::"))
}

/// Returns the paths that a file names, from the crate's root, with their lines.
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

/// Returns one finding per cycle, in the first of its modules; the message lists all its imports.
fn report(folder: &str, imports: &Imports, sources: &[Source], what: &str) -> Vec<Finding> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for name in imports.keys() {
        let cycle: BTreeSet<&String> = reachable(imports, name)
            .into_iter()
            .filter(|other| reachable(imports, other).contains(name))
            .collect();
        if cycle.is_empty() || !seen.insert(cycle.clone()) {
            continue;
        }
        let mut ties = Vec::new();
        for from in &cycle {
            let inside = imports[*from].keys().filter(|to| cycle.contains(to));
            ties.extend(inside.map(|to| format!("{from} -> {to}")));
        }
        let file = format!("{folder}{}.rs", name.replace("::", "/"));
        if let Some(source) = sources.iter().find(|it| it.path == file) {
            found.push(Finding::new(
                source,
                1,
                format!("import cycle of {what}: {}; remove one of these imports", ties.join(", ")),
            ));
        }
    }
    found
}

/// Returns everything that a module imports, directly or not; itself only if it is part of a cycle.
fn reachable<'a>(imports: &'a Imports, from: &str) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&String> = imports.get(from).into_iter().flat_map(BTreeMap::keys).collect();
    while let Some(name) = open.pop() {
        if reached.insert(name) {
            open.extend(imports.get(name).into_iter().flat_map(BTreeMap::keys));
        }
    }
    reached
}
