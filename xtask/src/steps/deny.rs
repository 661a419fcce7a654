//! The step `deny`: licences, bans and sources, by `deny.toml` and the lock file alone.

use crate::{
    shell::{self, Shell},
    tools,
};

pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let program = tools::cargo_deny(shell)?;
    let what = ["--offline", "--workspace", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"];
    // Offline it needs all crates of the lock file, for every platform that it looks at.
    shell.cargo(&["fetch", "--locked", "--quiet"])?;
    shell::run(shell.command(program).args(what))
}
