//! All pages of the repository: links and anchors resolve, and the tests that a page names exist.

use std::{fs, path::Path};

use super::{read, root};

/// Returns the pages of the repository, by their paths.
pub(super) fn pages() -> Vec<String> {
    let (mut pages, mut folders) = (Vec::new(), vec![String::new()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(root().join(&folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
        for entry in entries.map(|entry| entry.expect("a folder can be listed")) {
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            let kind = entry.file_type().expect("the kind of an entry is known");
            if kind.is_dir() && !name.starts_with('.') && !["target", "node_modules"].contains(&name.as_str())
            {
                folders.push(path);
            } else if kind.is_file() && name.ends_with(".md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Returns the text outside of fenced code blocks.
fn prose(page: &str) -> String {
    page.split("```").step_by(2).collect()
}

/// Returns the targets of `[text](target)`, without those on the web.
fn links(page: &str) -> Vec<String> {
    prose(page)
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| !target.contains("://"))
        .collect()
}

/// Returns the anchors of a page: its headings as GitHub names them. A repeated heading has the anchor of the first.
fn anchors(page: &str) -> Vec<String> {
    let prose = prose(page);
    let titles = prose.lines().filter(|line| line.starts_with('#')).filter_map(|line| line.split_once(' '));
    titles.map(|(_, title)| anchor(title)).collect()
}

fn anchor(title: &str) -> String {
    // A link keeps its text.
    let title = title.split('[').flat_map(|part| {
        part.split_once("](")
            .map_or([part, ""], |(text, rest)| [text, rest.split_once(')').map_or("", |(_, after)| after)])
    });
    let letters = title.flat_map(str::chars).flat_map(char::to_lowercase);
    let kept = letters.filter(|c| c.is_alphanumeric() || ['-', '_', ' '].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Returns the dead links of the page at `path`; `source` gives the text of a page, `exists` knows files and folders.
fn broken(
    path: &str,
    page: &str,
    source: impl Fn(&str) -> String,
    exists: impl Fn(&str) -> bool,
) -> Vec<String> {
    let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
    let leads_nowhere = |target: &String| {
        let (file, wanted) =
            target.split_once('#').map_or((target.as_str(), None), |(file, it)| (file, Some(it)));
        let file = if file.is_empty() { path.to_owned() } else { joined(folder, file) };
        if !exists(&file) {
            return true;
        }
        wanted.is_some_and(|it| file.ends_with(".md") && !anchors(&source(&file)).iter().any(|a| a == it))
    };
    links(page).into_iter().filter(leads_nowhere).map(|target| format!("{path}: {target}")).collect()
}

/// Returns `target` as a path of the repository.
fn joined(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.trim_end_matches('/').split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the named tests that do not exist: `file.rs::function`, or `file.rs`: `function`.
fn missing_tests(page: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let prose = prose(page);
    let parts: Vec<&str> = prose.split('`').collect();
    let joined = parts.iter().skip(1).step_by(2).filter_map(|part| part.split_once("::"));
    let apart = parts.windows(3).filter(|three| three[1] == ": ").map(|three| (three[0], three[2]));
    let named = joined.chain(apart).filter(|(file, function)| file.ends_with(".rs") && is_name(function));
    let is_missing = |(file, function): &(&str, &str)| {
        !source(file).is_some_and(|text| text.contains(&format!("fn {function}(")))
    };
    named.filter(is_missing).map(|(file, function)| format!("{file}::{function}")).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

#[test]
fn links_between_pages_resolve() {
    let pages = pages();
    for known in
        ["README.md", "docs/internals/adr/README.md", "protocol/SPEC.md", "protocol/vectors/README.md"]
    {
        assert!(pages.iter().any(|page| page == known), "{known} is not among {pages:?}");
    }
    let exists = |path: &str| root().join(path).exists();
    let broken: Vec<String> = pages.iter().flat_map(|page| broken(page, &read(page), read, exists)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn link_to_a_missing_file_or_anchor_is_found() {
    let page = "# Über `a_b`: [c](d.md)!\n[1](#über-a_b-c) [2](#other) [3](../x.md#two) [4](../x.md#three) [5](gone.md)\n\
                ```\n[6](code.md)\n```\n[7](https://example.org/) [8](folder/)\n";
    let source = |path: &str| match path {
        "docs/page.md" => page.to_owned(),
        "x.md" => "# One\n## Two\n".to_owned(),
        other => panic!("{other}"),
    };
    let exists = |path: &str| ["docs/page.md", "docs/d.md", "docs/folder", "x.md"].contains(&path);
    let expected = ["docs/page.md: #other", "docs/page.md: ../x.md#three", "docs/page.md: gone.md"];
    assert_eq!(broken("docs/page.md", page, source, exists), expected);
}

#[test]
fn tests_that_a_page_names_exist() {
    let source = |path: &str| fs::read_to_string(root().join(path)).ok();
    // `docs/internals/flaws.md` also names planted faults and has its own test; the changelog names former tests.
    let pages =
        pages().into_iter().filter(|page| page != "docs/internals/flaws.md" && page != "CHANGELOG.md");
    let missing = pages.flat_map(|page| {
        missing_tests(&read(&page), source).into_iter().map(move |test| format!("{page}: {test}"))
    });
    let missing: Vec<String> = missing.collect();
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn missing_test_that_a_page_names_is_found() {
    let page = "`tests/a.rs::is_there`, `tests/a.rs::is_gone`; `tests/a.rs`: `is_gone_too`; `tests/b.rs::any`, `a::b`, `src/lib.rs`";
    let source = |path: &str| (path == "tests/a.rs").then(|| "fn is_there() {}".to_owned());
    let expected = ["tests/a.rs::is_gone", "tests/b.rs::any", "tests/a.rs::is_gone_too"];
    assert_eq!(missing_tests(page, source), expected);
}
