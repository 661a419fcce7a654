//! `tidegate-lab bench` of a build for published figures. Scenarios of a cluster get servers of their own, set up as in
//! production.

use crate::{
    compile, services,
    shell::{self, Shell},
};

/// Where these servers keep their data, and which they are.
const SERVERS: &str = "bench-services";
const WANTED: &[&str] = &["kafka", "redis7", "postgres"];
/// Scenarios that need them.
const OF_A_CLUSTER: &[&str] = &["kafka", "redis", "cluster", "groups"];

/// Runs the bench with `args`; unless these say where the servers are, with new ones where the scenario needs some.
pub(crate) fn run(shell: &Shell, args: &[String]) -> anyhow::Result<()> {
    let shell = &shell.with_profile("dist");
    compile::programs(shell)?;
    let bench = |more: &[&str]| {
        shell::run(shell.command(shell.built("tidegate-lab")).arg("bench").args(args).args(more))
    };
    if !needs_servers(args) {
        return bench(&[]);
    }
    let apart = Shell { are_measured: true, ..shell.apart(SERVERS, WANTED) };
    // What a run that was ended left.
    services::down(&apart)?;
    services::with(&apart, || {
        let list = apart.target.join(SERVERS).join("services.json").display().to_string();
        bench(&["--services", &list])
    })
}

fn needs_servers(args: &[String]) -> bool {
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let names_servers = has("--services") || args.iter().any(|arg| arg.starts_with("--services="));
    OF_A_CLUSTER.iter().any(|scenario| has(scenario)) && !names_servers && !has("--help") && !has("-h")
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
