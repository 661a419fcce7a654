//! Two programs that alternate: versions N and N+1 run together in a rolling restart, and back, several times.
//!
//! Each restarted node runs the other program. The rules of the log are held at their version (`log.rules`), as by an
//! operator who may want to go back. A last round that ends with all nodes on the other program releases them; then the
//! run waits for the switch, still under load.

use std::{collections::BTreeSet, path::PathBuf, time::Instant};

use anyhow::{Context as _, bail};
use tokio::time::sleep;

use super::{
    super::{Args, binary, cluster::Cluster},
    CLIENTS_TIMEOUT, POLL_INTERVAL, about,
};

/// Setting of the nodes: the switch does not wait for a minute after the last newer node has started.
pub(super) const SETTLE: &str = "log.rules_settle_ms=5000";

/// The program of each node.
pub(super) struct Versions {
    /// The program of all nodes at the beginning, and the other one.
    programs: [PathBuf; 2],
    /// Index of the program, by node.
    runs: Vec<usize>,
    /// Whether the operator holds the rules, by node.
    holds: Vec<bool>,
    /// Rules of the log at the beginning.
    rules: u64,
    restarts: usize,
    /// The versions that ran together after each restart.
    together: BTreeSet<String>,
}

impl Versions {
    /// Prepares running nodes for two programs; `None` if the arguments name only one.
    pub(super) async fn begin(
        args: &Args,
        cluster: &Cluster,
        restarts: usize,
    ) -> anyhow::Result<Option<Self>> {
        let Some(next) = args.next.clone() else { return Ok(None) };
        let nodes = cluster.nodes.len();
        let rules = all_rules(cluster).await?.into_iter().min().context("there are no nodes")?;
        let (runs, holds) = (vec![0; nodes], vec![false; nodes]);
        let programs = [binary(args)?, next];
        Ok(Some(Self { programs, runs, holds, rules, restarts, together: BTreeSet::new() }))
    }

    /// Has a node run the other program from its next start on.
    pub(super) fn turn(&mut self, cluster: &mut Cluster, nth: usize, turn: usize) {
        let nodes = self.runs.len();
        self.runs[nth] = 1 - self.runs[nth];
        let last_round = turn + nodes >= self.restarts - self.restarts % nodes;
        self.holds[nth] = !(last_round && self.runs[nth] == 1);
        let rules = self.holds[nth].then(|| self.rules.to_string());
        let process = &mut cluster.nodes[nth].process;
        process.run_as(&self.programs[self.runs[nth]]);
        process.set("log.rules", rules.as_deref());
    }

    /// Records which versions run now, and returns that of one node.
    pub(super) async fn note(&mut self, cluster: &Cluster, nth: usize) -> anyhow::Result<String> {
        let mut versions = BTreeSet::new();
        for nth in 0..self.runs.len() {
            versions.insert(self.name(cluster, nth).await?);
        }
        let all: Vec<String> = versions.into_iter().collect();
        self.together.insert(all.join(" together with "));
        self.name(cluster, nth).await
    }

    async fn name(&self, cluster: &Cluster, nth: usize) -> anyhow::Result<String> {
        let file = self.programs[self.runs[nth]].file_name().unwrap_or_default().to_string_lossy();
        let said = about(cluster, nth).await?;
        Ok(format!("{file} ({}, rules {})", said["version"].as_str().unwrap_or("?"), said["rules"]))
    }

    /// After the last restart, waits for the switch of the log where all nodes know newer rules and none holds them.
    pub(super) async fn settle(&self, cluster: &Cluster) -> anyhow::Result<()> {
        println!("ran: {}", self.together.iter().cloned().collect::<Vec<String>>().join("; "));
        if !self.together.iter().any(|it| it.contains(" together with ")) {
            bail!("two versions never ran at a time: restart fewer nodes at a time, or name another program");
        }
        if self.holds.iter().any(|holds| *holds) || self.runs.contains(&0) {
            println!("the rules are held at {}", self.rules);
            return Ok(());
        }
        let newest = all_rules(cluster).await?.into_iter().min().unwrap_or(0);
        if newest > self.rules {
            let deadline = Instant::now() + CLIENTS_TIMEOUT;
            while cluster.oldest_rules().await? < newest {
                if Instant::now() > deadline {
                    bail!("all nodes know rules {newest}, and the log is not switched to them");
                }
                sleep(POLL_INTERVAL).await;
            }
            println!("the rules went from {} to {newest} under load", self.rules);
        }
        Ok(())
    }
}

/// Returns the newest rules that each node accepts.
async fn all_rules(cluster: &Cluster) -> anyhow::Result<Vec<u64>> {
    let mut all = Vec::new();
    for nth in 0..cluster.nodes.len() {
        // Versions that could not switch rules report nothing.
        all.push(about(cluster, nth).await?["rules"].as_u64().unwrap_or(1));
    }
    Ok(all)
}
