//! Item `slope` of a soak: under a constant load, a node's memory and open files must not keep growing. Then the node is
//! attacked, as `cargo xtask security` attacks a fresh one.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::json;

use super::Figures;
use crate::{
    interrupt,
    shell::Shell,
    steps::{
        rehearse::{clients::Talk, plan::Place},
        security::{self, Extent, TargetNode},
    },
};

/// Pairs of clients that talk, at 20 messages a second each.
const PAIRS: usize = 25;
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);
/// Allowed growth of memory after the warm-up, in MiB per hour; caches of the store fill slowly.
const GROWTH_MAX: f64 = 64.0;
/// Allowed growth of open files per hour: segments of the log.
const FILES_MAX: f64 = 64.0;
/// Share of the run that is the warm-up.
const WARM: f64 = 0.33;

/// Measurement of the node.
struct Sample {
    hours: f64,
    memory_mib: f64,
    files: f64,
}

/// Loads a node for that long, and until all other items have ended. Fails if its memory or open files grow too fast.
pub(super) fn run(
    shell: &Shell,
    time: Duration,
    is_over: &AtomicBool,
    row: &mut Figures,
) -> anyhow::Result<()> {
    let folder = shell.scratch("slope")?;
    let data = folder.join("data");
    let mut target = TargetNode::start(shell, &folder, &[])?;
    let port = target.client().rsplit_once(':').and_then(|(_, port)| port.parse().ok()).context("a port")?;
    let endpoints = Arc::new(Mutex::new(vec![port]));
    let place = Place { program: shell.built("tidegate"), folder, keys: data, servers: Vec::new() };
    let talk = Talk::begin(PAIRS, &endpoints, &place)?;
    let began = Instant::now();
    let mut samples = Vec::new();
    while !interrupt::came()
        && (began.elapsed() < time.max(SAMPLE_INTERVAL * 6) || !is_over.load(Ordering::Relaxed))
    {
        thread::sleep(SAMPLE_INTERVAL);
        let hours = began.elapsed().as_secs_f64() / 3_600.0;
        let (memory_mib, files) = look(target.pid())?;
        samples.push(Sample { hours, memory_mib, files });
    }
    println!("{}", talk.end()?);
    if interrupt::came() {
        bail!("interrupted");
    }
    row.insert("checks".to_owned(), json!(security::attack(shell, &mut target, Extent::Full)?));
    target.stop()?;
    let warm = &samples[(samples.len() as f64 * WARM) as usize..];
    let memory = slope(warm, |sample| sample.memory_mib);
    let files = slope(warm, |sample| sample.files);
    let last = samples.last().context("at least one sample")?;
    println!(
        "{:.1} MiB and {:.0} files at the end; {memory:.1} MiB and {files:.1} files an hour",
        last.memory_mib, last.files
    );
    row.insert("memory_mib_per_hour".to_owned(), json!(memory));
    row.insert("files_per_hour".to_owned(), json!(files));
    row.insert("memory_mib".to_owned(), json!(last.memory_mib));
    if memory > GROWTH_MAX || files > FILES_MAX {
        bail!(
            "it grows: {memory:.1} MiB (limit {GROWTH_MAX}) and {files:.1} files (limit {FILES_MAX}) an hour"
        );
    }
    Ok(())
}

/// Returns the anonymous memory in MiB and the number of open files.
fn look(pid: u32) -> anyhow::Result<(f64, f64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the node ended")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: f64 = line.and_then(|rest| rest.split_whitespace().next()).context("no RssAnon")?.parse()?;
    Ok((kib / 1024.0, fs::read_dir(format!("/proc/{pid}/fd"))?.count() as f64))
}

/// Returns the slope per hour of the least-squares line through the samples.
fn slope(samples: &[Sample], value: fn(&Sample) -> f64) -> f64 {
    let count = samples.len() as f64;
    let mean = |of: &dyn Fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|it| it.hours), mean(&|it| value(it)));
    let both: f64 = samples.iter().map(|it| (it.hours - x) * (value(it) - y)).sum();
    let square: f64 = samples.iter().map(|it| (it.hours - x).powi(2)).sum();
    if square > 0.0 { both / square } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_growth_is_its_slope_and_noise_is_none() {
        let grows = |nth: u32| Sample {
            hours: f64::from(nth) / 10.0,
            memory_mib: 50.0 + 3.0 * f64::from(nth),
            files: if nth.is_multiple_of(2) { 9.0 } else { 10.0 },
        };
        let samples: Vec<Sample> = (0..41).map(grows).collect();
        assert!((slope(&samples, |it| it.memory_mib) - 30.0).abs() < 1e-6);
        assert!(slope(&samples, |it| it.files).abs() < 0.1);
    }
}
