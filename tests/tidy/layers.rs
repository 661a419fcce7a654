//! Layers of modules, from the tables in `src/lib.rs` and `lab/src/lib.rs`: imports point down only, and the product
//! never names the lab.

use crate::{rules::Finding, source::Source};

/// Pairs of modules that may not import each other, whatever their layers are.
const APART: [[&str; 2]; 10] = [
    ["partition", "shard"],
    ["conversation", "login"],
    // Live rooms work without the log, the store and the queues of conversations.
    ["room", "delivery"],
    ["room", "ingest"],
    ["room", "large_group"],
    ["room", "event_publisher"],
    ["room", "conversation"],
    ["room", "login"],
    ["room", "peer"],
    ["room", "partition"],
];
const PORTS: [&str; 5] = ["bus", "store", "routes", "scratch", "link"];
/// Module with adapters of two ports.
const EMBEDDED: &str = "embedded";
/// Private modules of ports that contain adapters.
const ADAPTER_MODULES: [&str; 6] = ["local", "kafka", "postgres", "memory", "redis", "grpc"];
/// First and last words of exported adapter types, such as `KafkaBus` and `EmbeddedStore`.
const ADAPTER_OF: [&str; 7] = ["Local", "Kafka", "Embedded", "Postgres", "Memory", "Redis", "Grpc"];
const ADAPTER_TO: [&str; 8] = ["Bus", "Events", "Store", "Routes", "Scratch", "Numbers", "Floors", "Link"];

/// Reports imports that point up or between modules of [`APART`], adapters named outside `node`, and uses of the lab.
pub(crate) fn imports_point_down(sources: &[Source]) -> Vec<Finding> {
    let mut found: Vec<Finding> = sources.iter().flat_map(lab).collect();
    for folder in ["src/", "lab/src/"] {
        found.extend(imports_in(folder, sources));
    }
    found
}

/// Files that the product is built from. Cargo rejects cyclic crates, but neither a file of the lab nor a dependency of
/// tests.
const PRODUCT: [&str; 4] = ["src/", "protocol/", "examples/", "Cargo.toml"];

/// Reports uses of the lab in the product and its manifest. Its tests may use the lab: they share the proxy.
fn lab(source: &Source) -> Vec<Finding> {
    if !PRODUCT.iter().any(|part| source.path.starts_with(part)) {
        return Vec::new();
    }
    let names_lab =
        |line: &str| ["tidegate_lab", "tidegate-lab", "lab/src"].iter().any(|it| line.contains(it));
    let is_prose = |line: &str| line.trim_start().starts_with("//");
    let lines = source.text.lines().enumerate().filter(|(_, line)| names_lab(line) && !is_prose(line));
    lines
        .map(|(index, _)| {
            Finding::new(source, index + 1, "remove the use of the lab: the product builds without it")
        })
        .collect()
}

/// Checks the imports of one crate by the table in its `lib.rs`.
fn imports_in(folder: &str, sources: &[Source]) -> Vec<Finding> {
    let map = format!("{folder}lib.rs");
    let layers = sources.iter().find(|source| source.path == map).map(layers).unwrap_or_default();
    let mut found = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        let Some(path) = source.path.strip_prefix(folder).and_then(|it| it.strip_suffix(".rs")) else {
            continue;
        };
        let module = path.split('/').next().unwrap_or(path);
        if module == "lib" {
            continue;
        }
        let Some(layer) = layer_of(&layers, module) else {
            found.push(Finding::new(
                source,
                1,
                format!("`{module}` has no layer: add it to the table of {map}"),
            ));
            continue;
        };
        // The lab and tests compose their own nodes, and the embedded bus wraps the local one.
        let may_name_adapters =
            folder != "src/" || path.ends_with("/tests") || ["node", EMBEDDED].contains(&module);
        for (line, imported) in imports(source, path) {
            if source.is_test(line) {
                continue;
            }
            let target = imported[0].as_str();
            if target != module
                && let Some(below) = layer_of(&layers, target)
                && (below > layer
                    || APART.iter().any(|pair| pair.contains(&module) && pair.contains(&target)))
            {
                let why = format!("`{module}` (layer {layer}) may not import `{target}` (layer {below})");
                found.push(Finding::new(source, line, why));
            }
            let names_adapter = (PORTS.contains(&target) || target == EMBEDDED)
                && imported[1..].iter().any(|name| is_adapter(name));
            if names_adapter && target != module && !may_name_adapters {
                found.push(Finding::new(
                    source,
                    line,
                    format!("only node.rs and node/ name `{}`", imported.join("::")),
                ));
            }
        }
    }
    found
}

/// Returns whether a part of a path is the module or the type of an adapter.
fn is_adapter(name: &str) -> bool {
    let is_type = |of: &&str| name.strip_prefix(of).is_some_and(|to| ADAPTER_TO.contains(&to));
    ADAPTER_MODULES.contains(&name) || ADAPTER_OF.iter().any(is_type)
}

/// Reports modules that `docs/internals/ARCHITECTURE.md` does not name, so that the page keeps up with the code.
pub(crate) fn map(sources: &[Source]) -> Vec<Finding> {
    let find = |path: &str| sources.iter().find(|source| source.path == path);
    let (Some(lib), Some(page)) = (find("src/lib.rs"), find("docs/internals/ARCHITECTURE.md")) else {
        return Vec::new();
    };
    let missing = layers(lib).into_iter().filter(|(module, _)| !page.text.contains(&format!("`{module}`")));
    missing
        .map(|(module, _)| Finding::new(page, 1, format!("`{module}` is missing: add it to the page")))
        .collect()
}

/// Parses rows like `//! | 4 | `shard` | … |`: the layer, and the modules in backticks in the second column.
fn layers(lib: &Source) -> Vec<(String, u32)> {
    let mut layers = Vec::new();
    for line in lib.text.lines().filter(|line| line.starts_with("//! |")) {
        let mut columns = line.split('|').map(str::trim).skip(1);
        let (Some(layer), Some(modules)) = (columns.next().and_then(|n| n.parse().ok()), columns.next())
        else {
            continue;
        };
        layers.extend(modules.split('`').skip(1).step_by(2).map(|module| (module.to_owned(), layer)));
    }
    layers
}

fn layer_of(layers: &[(String, u32)], module: &str) -> Option<u32> {
    layers.iter().find(|(name, _)| name == module).map(|(_, layer)| *layer)
}

/// Returns the paths that start at the crate's root, with their lines. They start with `crate::`, with enough `super::`,
/// in `main.rs` with the crate's name, or with the bare name of an imported port or of `embedded`.
fn imports(source: &Source, module: &str) -> Vec<(usize, Vec<String>)> {
    let depth = module.split('/').count();
    let to_root = "super::".repeat(depth);
    let mut starts: Vec<String> = vec!["crate::".into(), to_root];
    if module == "main" {
        starts.extend(["tidegate::".into(), "tidegate_lab::".into()]);
    }
    let mut found = Vec::new();
    for (at, _) in source.code.match_indices(|c: char| c.is_alphanumeric()) {
        let rest = &source.code[at..];
        let before = source.code[..at].chars().next_back().unwrap_or(' ');
        if before.is_alphanumeric() || before == '_' || before == ':' {
            continue;
        }
        let starts_with =
            |module: &str| rest.strip_prefix(module).is_some_and(|after| after.starts_with("::"));
        let paths = match starts.iter().find(|start| rest.starts_with(start.as_str())) {
            Some(start) => expand(&rest[start.len()..]),
            None if PORTS.iter().chain([&EMBEDDED]).any(|module| starts_with(module)) => expand(rest),
            None => continue,
        };
        let line = source.code[..at].matches('\n').count() + 1;
        found.extend(paths.into_iter().map(|path| (line, path)));
    }
    found
}

/// Returns the paths of the use tree at the start of `tree`: `a::b` and `a::c::d` for `a::{b, c::d}`.
pub(crate) fn expand(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim_start();
    if let Some(inside) = tree.strip_prefix('{') {
        return branches(inside).into_iter().flat_map(expand).collect();
    }
    let end = tree.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(tree.len());
    if end == 0 {
        return Vec::new();
    }
    let head = tree[..end].to_owned();
    let tails = tree[end..].strip_prefix("::").map(expand).unwrap_or_default();
    if tails.is_empty() {
        return vec![vec![head]];
    }
    tails.into_iter().map(|tail| [vec![head.clone()], tail].concat()).collect()
}

/// Splits `inside` at its top-level commas, up to the closing brace.
fn branches(inside: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&inside[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts
}
