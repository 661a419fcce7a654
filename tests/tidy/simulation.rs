//! Rule of the modules that the simulations run: the seed and the paused clock of tokio decide everything in them.

use crate::{rules::Finding, source::Source};

/// Starts of the paths that no simulation runs: programs, sockets, disks, services, and what only measures or logs.
const REAL: [&str; 26] = [
    "src/accept",
    "src/api",
    "src/auth",
    "src/breaker.rs",
    "src/bus/kafka",
    "src/cli",
    "src/clock.rs",
    "src/config",
    "src/embedded",
    "src/evidence/file.rs",
    "src/guard/apisix",
    "src/guard/sentinel/lines.rs",
    "src/hooks",
    "src/keys",
    "src/link/grpc",
    "src/log_limit",
    "src/main.rs",
    "src/net/",
    "src/node",
    "src/redis",
    "src/routes/redis",
    "src/scratch/redis",
    "src/shard/driver.rs",
    "src/store/import.rs",
    "src/store/postgres",
    "src/trace.rs",
];

/// Reports reads of a real clock, and `select!` in an order that tokio draws.
pub(crate) fn deterministic(source: &Source) -> Vec<Finding> {
    let is_simulated =
        source.path.starts_with("src/") && !REAL.iter().any(|path| source.path.starts_with(path));
    if !is_simulated || source.path.contains("tests") {
        return Vec::new();
    }
    let std_instant = imports_from_std(&source.code);
    let mut found = Vec::new();
    for (number, line) in source.lines().filter(|(number, _)| !source.is_test(*number)) {
        let reads_std = line.contains("std::time::Instant::now")
            || (std_instant && line.contains("Instant::now") && !line.contains("time::Instant::now"));
        if reads_std || line.contains("SystemTime::now") {
            found.push(Finding::new(source, number, "read the clock of tokio, which a simulation sets"));
        }
        let first = || source.code.lines().skip(number).map(str::trim).find(|line| !line.is_empty());
        if line.contains("select! {") && first().is_some_and(|first| first != "biased;") {
            found.push(Finding::new(
                source,
                number,
                "begin `select!` with `biased;`: else its order is drawn",
            ));
        }
    }
    found
}

/// Returns whether the code imports `Instant` from std.
fn imports_from_std(code: &str) -> bool {
    let uses = code.split("use std::").skip(1).filter_map(|rest| rest.split(';').next());
    let mut words = uses.flat_map(|import| import.split(|c: char| !c.is_alphanumeric()));
    words.any(|word| word == "Instant")
}
