//! `docs/redis.md` has a row for each key of the code, and the scripts name no other key.

use std::{collections::BTreeSet, fs};

use tidegate::redis::RedisKey;

use super::{read, root};

const PAGE: &str = "docs/redis.md";

/// Cells of a row: key, type, content, writers, readers, expiry, bound, consequence of its loss.
const CELLS: usize = 8;

/// Returns the differences between the rows of the page and the keys.
fn problems(page: &str, keys: &BTreeSet<String>) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| `tg:"));
    let rows: Vec<Vec<&str>> =
        rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect();
    let documented: BTreeSet<String> = rows.iter().map(|row| row[0].trim_matches('`').to_owned()).collect();
    let missing = keys.difference(&documented).map(|key| format!("{key} has no row"));
    let surplus = documented.difference(keys).map(|key| format!("{key} is no key"));
    let incomplete = rows.iter().filter(|row| row.len() != CELLS || row.iter().any(|cell| cell.is_empty()));
    let incomplete = incomplete.map(|row| format!("{} has not {CELLS} cells", row[0]));
    missing.chain(surplus).chain(incomplete).collect()
}

fn keys() -> BTreeSet<String> {
    RedisKey::ALL.iter().map(|key| format!("tg:{}", key.pattern())).collect()
}

#[test]
fn each_redis_key_is_documented() {
    assert_eq!(problems(&read(PAGE), &keys()), Vec::<String>::new());
}

#[test]
fn redis_key_without_a_row_is_found() {
    let mut more = keys();
    more.insert("tg:new:{user}".to_owned());
    assert_eq!(problems(&read(PAGE), &more), ["tg:new:{user} has no row"]);
    let without: Vec<String> =
        read(PAGE).lines().filter(|line| !line.starts_with("| `tg:seq:")).map(str::to_owned).collect();
    assert_eq!(problems(&without.join("\n"), &keys()), ["tg:seq:{room} has no row"]);
}

/// Returns the words that a script has as kinds of keys: in its first line, and between colons in its strings.
fn kinds(script: &str) -> BTreeSet<String> {
    let declared = script.lines().filter(|line| line.starts_with("-- KEYS"));
    let declared = declared.flat_map(|line| line.split([' ', ';'])).filter(|word| word.contains(":{"));
    let code = script.lines().filter(|line| !line.trim_start().starts_with("--"));
    let built =
        code.flat_map(|line| line.split('\'').skip(1).step_by(2)).filter(|text| text.starts_with(':'));
    let first = |text: &str| text.trim_start_matches(':').split(':').next().unwrap_or_default().to_owned();
    declared.chain(built).map(first).filter(|word| !word.is_empty()).collect()
}

#[test]
fn scripts_use_documented_redis_keys() {
    let known: BTreeSet<String> =
        RedisKey::ALL.iter().filter_map(|key| Some(key.pattern().split_once(':')?.0.to_owned())).collect();
    let folder = fs::read_dir(root().join("src/redis")).expect("the folder of the scripts");
    let scripts = folder.map(|entry| entry.expect("it can be listed").path());
    let scripts: Vec<_> = scripts.filter(|path| path.extension().is_some_and(|it| it == "lua")).collect();
    assert!(scripts.len() > 10, "the scripts were not found");
    for path in scripts {
        let script = fs::read_to_string(&path).expect("a script");
        let unknown: Vec<String> = kinds(&script).difference(&known).cloned().collect();
        assert_eq!(unknown, Vec::<String>::new(), "{}", path.display());
    }
    let planted = "-- KEYS 1 other:{user}\nredis.call('DEL', p .. ':another:' .. u)";
    assert_eq!(kinds(planted), ["another", "other"].map(str::to_owned).into());
}
