//! The step `user`: tests of processes and of the store on disk as an ordinary user, since CI and containers often are root.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::{
    compile,
    shell::{self, Shell},
};

/// `nobody`, on every Linux.
const USER: &str = "65534";

/// The test programs, as nextest calls them.
const PROGRAMS: &[&str] = &["tidegate::process", "tidegate::durable"];

/// Shows the folders of the clone to a user that may not enter a folder above them: in mounts of this process alone, an
/// empty folder that everybody may enter takes the place of the closed one, and the clone lies in it as before.
const OPEN: &str = r#"set -e
umask 022
closed=$1 root=$2 target=$3
shift 3
work=$(mktemp -d)
mkdir "$work/root" "$work/target"
mount --bind "$root" "$work/root"
mount --bind "$target" "$work/target"
mount -t tmpfs -o mode=755 tmpfs "$closed"
mkdir -p "$root" && mount --bind "$work/root" "$root"
mkdir -p "$target" && mount --bind "$work/target" "$target"
exec "$@""#;

/// Runs them; how many cases passed.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    let binaries = fs::read_to_string(shell.target.join(compile::BINARIES))?;
    let binaries: Value = serde_json::from_str(&binaries)?;
    let mut passed = 0;
    for name in PROGRAMS {
        let program = binaries["rust-binaries"][name]["binary-path"].as_str();
        let program = program.with_context(|| format!("{name} was not built"))?;
        let mut command = ordinary(shell)?;
        command.arg(program).args(["--test-threads", "6"]).env("CARGO_MANIFEST_DIR", &shell.root);
        let text = shell::stdout(&mut command)?;
        println!("{text}");
        passed += count(&text).filter(|it| *it > 0).with_context(|| format!("{name} ran no test"))?;
    }
    Ok(passed)
}

/// A command that runs the words behind it as an ordinary user.
fn ordinary(shell: &Shell) -> anyhow::Result<Command> {
    let (uid, _) = shell::output(shell.command("id").arg("-u"))?;
    if uid.trim() != "0" {
        return Ok(shell.command("env"));
    }
    let drop = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"];
    let drop = drop.into_iter().chain(["--bounding-set=-all", "--no-new-privs"]);
    let Some(closed) = closed(&shell.root).or_else(|| closed(&shell.target)) else {
        let mut command = shell.command("env");
        command.args(drop);
        return Ok(command);
    };
    if closed.parent().is_none() {
        bail!("the root folder is closed to other users");
    }
    let mut command = shell.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", OPEN, "sh"]);
    command.arg(closed).arg(&shell.root).arg(&shell.target).args(drop);
    Ok(command)
}

/// The first folder on the way there that other users may not enter.
fn closed(folder: &Path) -> Option<PathBuf> {
    let mut way: Vec<&Path> = folder.ancestors().collect();
    way.reverse();
    let is_closed = |path: &&&Path| fs::metadata(path).is_ok_and(|it| it.permissions().mode() & 0o001 == 0);
    way.iter().find(is_closed).map(|path| path.to_path_buf())
}

/// From `test result: ok. 28 passed; 0 failed; …`.
fn count(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("test result: ok. "))?;
    line.split_once(" passed")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_program_is_read() {
        assert_eq!(count("\ntest result: ok. 28 passed; 0 failed; 0 ignored"), Some(28));
        assert_eq!(count("test result: FAILED. 27 passed; 1 failed"), None);
    }
}
