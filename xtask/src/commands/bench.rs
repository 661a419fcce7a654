//! `cargo xtask bench`: runs `tidegate-lab bench` on a build for published figures. Scenarios of a cluster get their own
//! servers, set up as in production.

use crate::{
    services,
    shell::{self, Shell},
    steps::compile,
};

/// Servers that the bench starts.
const WANTED: &[&str] = &["kafka", "redis7", "postgres"];
/// Scenarios that need them.
const OF_A_CLUSTER: &[&str] = &["kafka", "redis", "cluster", "groups"];

/// Runs the bench with `args`; starts the servers that the scenario needs, unless `args` name some.
pub(crate) fn run(shell: &Shell, args: &[String]) -> anyhow::Result<()> {
    // Help needs no build for figures.
    let shell = &shell.with_profile(if wants_help(args) { "ci" } else { "dist" });
    compile::programs(shell)?;
    let bench = |more: &[&str]| {
        shell::run(shell.command(shell.built("tidegate-lab")).arg("bench").args(args).args(more))
    };
    if !needs_servers(args) {
        return bench(&[]);
    }
    let apart =
        Shell { are_measured: true, are_synced: true, ..shell.apart(shell::SERVICES_OF_BENCH, WANTED) };
    services::with_new(&apart, |list| bench(&["--services", list]))
}

fn wants_help(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--help" || arg == "-h")
}

fn needs_servers(args: &[String]) -> bool {
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let names_servers = has("--services") || args.iter().any(|arg| arg.starts_with("--services="));
    OF_A_CLUSTER.iter().any(|scenario| has(scenario)) && !names_servers && !wants_help(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_started_for_scenarios_of_a_cluster_that_name_none() {
        let needs = |line: &str| needs_servers(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(needs("kafka --rounds 3") && needs("--quick groups"));
        assert!(!needs("chat") && !needs("all --quick"));
        assert!(!needs("kafka --services list.json") && !needs("redis --services=list.json"));
        assert!(!needs("cluster --help"));
    }
}
