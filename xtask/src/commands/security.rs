//! `cargo xtask security`: an attacker's view of a node, on the programs that are shipped.

use crate::{
    shell::Shell,
    steps::{
        compile,
        security::{self, Extent},
    },
};

/// Builds the programs and runs all checks.
pub(crate) fn run(shell: &Shell, is_short: bool) -> anyhow::Result<()> {
    let shell = shell.with_profile("release");
    compile::programs(&shell)?;
    let checks = security::run(&shell, if is_short { Extent::Short } else { Extent::Full })?;
    println!("{checks} checks: clean");
    Ok(())
}
