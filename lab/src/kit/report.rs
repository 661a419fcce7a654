//! Report of a run: verdicts by level and family, and what happened in the cases that failed.

use std::{collections::BTreeMap, fmt::Write as _, time::Instant};

use super::{
    board::Log,
    step::{Case, ClientLevel},
};

/// Lines of a history that are printed for a failed case.
const LINES_MAX: usize = 60;

/// Result of a case.
pub(super) enum Outcome {
    Passed,
    /// The adapter lacks what the case needs.
    Skipped(String),
    /// The reason, and what happened.
    Failed(String, String),
}

/// Returns what the client and the node did, in order of time.
pub(super) fn history(log: &Log, began: Instant) -> String {
    let mut lines: Vec<(Instant, String)> = Vec::new();
    for (index, connection) in log.connections.iter().enumerate() {
        lines.push((connection.accepted, format!("connection {index} to {:?}", connection.listener)));
        let frames = connection.frames.iter();
        lines.extend(frames.map(|arrived| (arrived.at, format!("connection {index} → {}", arrived.frame))));
        lines.extend(connection.ended.map(|at| (at, format!("connection {index} ended"))));
    }
    lines.extend(log.sent.iter().map(|(at, index, frame)| (*at, format!("connection {index} ← {frame}"))));
    lines.extend(log.events.iter().map(|entry| (entry.at, format!("event {}", entry.event))));
    lines.sort_by_key(|(at, _)| *at);
    let mut text = String::new();
    for (at, line) in lines.iter().take(LINES_MAX) {
        let ms = at.saturating_duration_since(began).as_millis();
        writeln!(text, "    {ms:>5} ms  {line}").ok();
    }
    if lines.len() > LINES_MAX {
        writeln!(text, "    and {} more", lines.len() - LINES_MAX).ok();
    }
    text
}

/// Prints the run. Returns the number of failed cases.
pub(super) fn print(results: &[(usize, &Case, Outcome)]) -> usize {
    let mut table: BTreeMap<(String, &str), [usize; 3]> = BTreeMap::new();
    for (_, case, outcome) in results {
        let column = match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(..) => 1,
            Outcome::Skipped(why) => {
                println!("skipped {}: {why}", case.name);
                2
            }
        };
        table.entry((format!("{:?}", case.level), &case.family)).or_default()[column] += 1;
    }
    println!("{:<6}{:<20}{:>8}{:>8}{:>9}", "level", "family", "passed", "failed", "skipped");
    let mut sum = [0; 3];
    for ((level, family), counts) in table {
        println!("{level:<6}{family:<20}{:>8}{:>8}{:>9}", counts[0], counts[1], counts[2]);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    println!("{:<26}{:>8}{:>8}{:>9}", "all", sum[0], sum[1], sum[2]);
    // Last, where the end of a log shows them.
    for (_, case, outcome) in results {
        if let Outcome::Failed(reason, history) = outcome {
            println!("FAILED {} ({:?})\n    {}\n    {reason}\n{history}", case.name, case.level, case.about);
        }
    }
    sum[1]
}

/// Returns the page that lists the cases by level and family.
pub(super) fn page(cases: &[Case]) -> String {
    let mut families: Vec<(&str, Vec<&Case>)> = Vec::new();
    for case in cases {
        match families.iter_mut().find(|(family, _)| *family == case.family) {
            Some((_, list)) => list.push(case),
            None => families.push((&case.family, vec![case])),
        }
    }
    let mut page = format!(
        "# The cases of the kit\n\nGenerated from `protocol/vectors/clients/` by `cargo xtask docs`; change them there. \
         [How to join](README.md) says what they are for.\n\n{} cases:\n\n| family | L0 | L1 | L2 | L3 |\n|---|---|---|---|---|\n",
        cases.len()
    );
    let levels = [ClientLevel::L0, ClientLevel::L1, ClientLevel::L2, ClientLevel::L3];
    for (family, list) in &families {
        let counts = levels.map(|level| match list.iter().filter(|case| case.level == level).count() {
            0 => String::new(),
            count => count.to_string(),
        });
        writeln!(page, "| [{family}](#{family}) | {} |", counts.join(" | ")).ok();
    }
    for (family, list) in &families {
        write!(page, "\n## {family}\n\n| level | case | what it judges |\n|---|---|---|\n").ok();
        let mut named = "";
        for case in list {
            let (name, parameters) = case.name.split_once(" [").unwrap_or((&case.name, ""));
            if name != named {
                let count = list.iter().filter(|it| it.name.starts_with(&format!("{name} ["))).count();
                let times = if parameters.is_empty() { String::new() } else { format!(" ({count})") };
                writeln!(page, "| {:?} | {name}{times} | {} |", case.level, case.about).ok();
            }
            named = name;
        }
    }
    page
}
