//! Report of a run: verdicts by level and family, and what happened in the cases that failed.

use std::{collections::BTreeMap, fmt::Write as _, time::Instant};

use super::{board::Log, step::Case};

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
    let mut failed = 0;
    for (_, case, outcome) in results {
        let column = match outcome {
            Outcome::Passed => 0,
            Outcome::Failed(reason, history) => {
                failed += 1;
                println!("FAILED {} ({:?})\n    {}\n    {reason}\n{history}", case.name, case.level, case.about);
                1
            }
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
    failed
}
