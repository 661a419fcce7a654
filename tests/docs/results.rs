//! `docs/results/*.jsonl`: each run is a complete row, and `docs/internals/testing.md` has the sums.

use std::{collections::BTreeMap, fmt::Write as _, fs};

use serde_json::Value;

use super::{root, settle_block};

/// Totals of the runs of one kind.
#[derive(Default)]
struct Sum {
    runs: u64,
    seconds: f64,
    faults: u64,
    restarts: u64,
    crashes: u64,
    seeds: u64,
    acked: u64,
    checked: u64,
    broken: u64,
}

impl Sum {
    fn add(&mut self, row: &Value) {
        let number = |name: &str| row[name].as_u64().unwrap_or_default();
        self.runs += 1;
        self.seconds += row["seconds"].as_f64().unwrap_or_default();
        let faults = row["faults"].as_object().into_iter().flat_map(|faults| faults.values());
        self.faults += faults.filter_map(Value::as_u64).sum::<u64>();
        self.restarts += number("restarts");
        self.crashes += number("crashes");
        self.seeds += number("seeds");
        self.acked += number("acked");
        self.checked += number("checked");
        self.broken += u64::from(row["verdict"].as_str().is_some_and(|it| it.starts_with("BROKEN")));
    }

    /// Returns the cells of its row.
    fn cells(&self) -> [String; 6] {
        let counted = [
            (self.faults, "faults"),
            (self.restarts, "restarts"),
            (self.crashes, "crashes"),
            (self.seeds, "seeds"),
        ];
        let broke = counted.iter().filter(|(count, _)| *count > 0);
        let broke: Vec<String> = broke.map(|(count, what)| format!("{} {what}", thousands(*count))).collect();
        let or_none = |count: u64| if count == 0 { "–".to_owned() } else { thousands(count) };
        [
            self.runs.to_string(),
            or_none((self.seconds / 60.0).round() as u64),
            if broke.is_empty() { "–".to_owned() } else { broke.join(", ") },
            or_none(self.acked),
            or_none(self.checked),
            self.broken.to_string(),
        ]
    }
}

/// Formats 1234567 as 1,234,567.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// Returns the fault of a row, if it has one.
fn problem(line: &str) -> Option<String> {
    let row: Value = match serde_json::from_str(line) {
        Ok(row) => row,
        Err(error) => return Some(error.to_string()),
    };
    let date = row["date"].as_str().unwrap_or_default();
    if date.len() != 10 || !date.chars().all(|c| c.is_ascii_digit() || c == '-') {
        return Some("no date".to_owned());
    }
    if !row.get("commit").is_some_and(|commit| commit.is_string() || commit.is_null()) {
        return Some("no commit, which may be null".to_owned());
    }
    let Some(kind) = row["kind"].as_str() else { return Some("no kind".to_owned()) };
    let verdict = row["verdict"].as_str().unwrap_or_default();
    let known: &[&str] =
        if kind.starts_with("bench ") { &["met", "missed", "-"] } else { &["clean", "unfinished"] };
    let fine = known.contains(&verdict) || (!kind.starts_with("bench ") && verdict.starts_with("BROKEN "));
    (!fine).then(|| format!("the verdict {verdict:?} is none of {known:?} or BROKEN …"))
}

/// Returns the lines of all files, with the file's name.
fn lines() -> Vec<(String, String)> {
    let folder = root().join("docs/results");
    let files = fs::read_dir(&folder).expect("docs/results exists").map(|entry| entry.expect("a file"));
    let mut files: Vec<_> = files.map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "jsonl"));
    files.sort();
    let text = |path| fs::read_to_string(path).expect("results are text");
    let named =
        |path: &std::path::PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let all = files.iter().flat_map(|path| {
        let name = named(path);
        text(path).lines().map(|line| (name.clone(), line.to_owned())).collect::<Vec<_>>()
    });
    all.collect()
}

#[test]
fn each_result_has_date_kind_and_outcome() {
    let lines = lines();
    assert!(lines.len() > 50, "the results were not found");
    let problems =
        lines.iter().filter_map(|(file, line)| Some(format!("{file}: {}: {line}", problem(line)?)));
    let problems: Vec<String> = problems.collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn incomplete_result_is_found() {
    let row = |text: &str| problem(&format!("{{{text}}}")).is_none();
    assert!(row(r#""date":"2026-11-24","commit":null,"kind":"node","verdict":"BROKEN lost-acked 1""#));
    assert!(row(r#""date":"2026-11-24","commit":"abc","kind":"bench chat","verdict":"met""#));
    assert!(!row(r#""date":"today","commit":null,"kind":"node","verdict":"clean""#));
    assert!(!row(r#""date":"2026-11-24","kind":"node","verdict":"clean""#));
    assert!(!row(r#""date":"2026-11-24","commit":null,"verdict":"clean""#));
    assert!(!row(r#""date":"2026-11-24","commit":null,"kind":"node","verdict":"met""#));
    assert!(problem("no JSON").is_some());
}

#[test]
fn testing_page_has_the_sums_of_the_results() {
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    for (_, line) in lines() {
        let row: Value = serde_json::from_str(&line).expect("each line is a row");
        if let Some(kind) = row["kind"].as_str().filter(|kind| !kind.starts_with("bench ")) {
            sums.entry(kind.to_owned()).or_default().add(&row);
        }
    }
    let mut table =
        "| kind | runs | minutes | what broke | acked | checked | broken |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (kind, sum) in &sums {
        writeln!(table, "| `{kind}` | {} |", sum.cells().join(" | ")).expect("writing to a String succeeds");
    }
    settle_block("docs/internals/testing.md", "results", &table);
}
