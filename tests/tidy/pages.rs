//! Module paths in pages: each, such as `delivery/router`, must name a file or a folder of the tree.

use crate::{rules::Finding, source::Source};

/// Pages and folders of pages whose module paths are checked.
const PAGES: [&str; 3] = ["docs/internals/ARCHITECTURE.md", "docs/GLOSSARY.md", "docs/internals/adr/"];

/// Folders that paths may be relative to.
const STARTS: [&str; 3] = ["", "src/", "docs/internals/"];

/// Reports paths in backticks that name neither a file nor a folder; a file may be named without `.rs`.
pub(crate) fn paths(sources: &[Source]) -> Vec<Finding> {
    let mut found = Vec::new();
    for page in sources.iter().filter(|source| PAGES.iter().any(|part| source.path.starts_with(part))) {
        for (index, line) in page.text.lines().enumerate() {
            let missing =
                line.split('`').skip(1).step_by(2).filter_map(path).filter(|path| !exists(path, sources));
            found.extend(missing.map(|path| {
                Finding::new(
                    page,
                    index + 1,
                    format!("`{path}` is neither a file nor a folder: correct the path"),
                )
            }));
        }
    }
    found
}

/// Returns the path in backticks without its item (`::item`, `: item`); `None` if the words are not a path.
fn path(words: &str) -> Option<&str> {
    let path = words.split(':').next().unwrap_or(words);
    let is_of_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    // HTTP routes start with a slash, and only a build creates `target/`.
    let is_path = path.contains('/') && !path.starts_with('/') && !path.starts_with("target/");
    (is_path && path.chars().all(is_of_path)).then(|| path.trim_end_matches('/'))
}

fn exists(path: &str, sources: &[Source]) -> bool {
    STARTS.iter().any(|start| {
        let (file, folder) = (format!("{start}{path}"), format!("{start}{path}/"));
        let module = format!("{file}.rs");
        sources.iter().any(|it| it.path == file || it.path == module || it.path.starts_with(&folder))
    })
}
