//! Two programs that take turns: versions N and N+1 side by side in a rolling restart, and back, and over again.
//!
//! Each restarted node comes back as the other of the two. As an operator does who may want to go back, the rules of the
//! log are held where they were (`log.rules`); the last round, if it ends with all nodes on the other program, holds them no
//! more, and then the run waits for the switch, still under load.

use std::{collections::BTreeSet, path::PathBuf, time::Instant};

use anyhow::{Context as _, bail};
use tokio::time::sleep;

use super::{
    super::{Args, binary, cluster::Cluster},
    PATIENCE, TICK, about,
};

/// Of the nodes: not a minute from the last newer node to the switch.
pub(super) const SETTLE: &str = "log.rules_settle_ms=5000";

/// Which program each node runs, and which comes next.
pub(super) struct Versions {
    /// What all begin with, and the other one.
    programs: [PathBuf; 2],
    /// By node, which of the two.
    runs: Vec<usize>,
    /// By node, whether its operator holds the rules.
    holds: Vec<bool>,
    /// The rules of the log at the beginning.
    rules: u64,
    restarts: usize,
    /// The versions that ran together after each restart.
    together: BTreeSet<String>,
}

impl Versions {
    /// As the arguments want it, for nodes that run; none = one program all the time.
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

    /// Has a node be the other program from its next start on.
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

    /// Notes what runs now, and says what this node does.
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

    /// After the last restart: where all nodes know newer rules and hold none back, the log is switched to them.
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
            let deadline = Instant::now() + PATIENCE;
            while cluster.oldest_rules().await? < newest {
                if Instant::now() > deadline {
                    bail!("all nodes know rules {newest}, and the log is not switched to them");
                }
                sleep(TICK).await;
            }
            println!("the rules went from {} to {newest} under load", self.rules);
        }
        Ok(())
    }
}

/// Up to which rules each node agrees.
async fn all_rules(cluster: &Cluster) -> anyhow::Result<Vec<u64>> {
    let mut all = Vec::new();
    for nth in 0..cluster.nodes.len() {
        // Versions before the rules could be switched say nothing.
        all.push(about(cluster, nth).await?["rules"].as_u64().unwrap_or(1));
    }
    Ok(all)
}
