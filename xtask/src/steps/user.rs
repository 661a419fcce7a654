//! Step `user`: runs the tests of processes and of the store on disk as an ordinary user, because CI often runs as root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail};

use super::compile;
use crate::shell::{self, Shell};

/// `nobody`, on every Linux.
const USER: &str = "65534";

/// The test programs, as nextest calls them.
const PROGRAMS: &[&str] = &["tidegate::process", "tidegate::durable"];

/// Makes the clone accessible to a user that may not enter a folder above it. In a mount namespace of this process, an
/// empty accessible folder replaces the closed one, and the clone is mounted below it at its old path.
const OPEN: &str = r#"set -e
umask 022
work=$1 closed=$2 root=$3 target=$4
shift 4
mkdir "$work/root" "$work/target"
mount --bind "$root" "$work/root"
mount --bind "$target" "$work/target"
mount -t tmpfs -o mode=755 tmpfs "$closed"
mkdir -p "$root" && mount --bind "$work/root" "$root"
mkdir -p "$target" && mount --bind "$work/target" "$target"
exec "$@""#;

/// Runs the tests, and returns the number of cases that passed.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    let mut passed = 0;
    for name in PROGRAMS {
        let program = compile::test_program(shell, name)?;
        let work = Work::new()?;
        let mut command = ordinary(shell, &work)?;
        command.arg(program).args(["--test-threads", "6"]).env("CARGO_MANIFEST_DIR", &shell.root);
        let text = shell::stdout(&mut command)?;
        println!("{text}");
        passed += count(&text).filter(|it| *it > 0).with_context(|| format!("{name} ran no test"))?;
    }
    Ok(passed)
}

/// An empty folder where mounts are prepared.
struct Work(PathBuf);

impl Work {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("tidegate-user-{}", std::process::id()));
        fs::remove_dir_all(&folder).ok();
        // Fails where another account has made it meanwhile.
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The mounts ended with their namespace.
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A command that runs the words behind it as an ordinary user.
fn ordinary(shell: &Shell, work: &Work) -> anyhow::Result<Command> {
    if !shell::is_root()? {
        return Ok(shell.command("env"));
    }
    let drop = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"];
    let drop = drop.into_iter().chain(["--bounding-set=-all", "--no-new-privs"]);
    if let Some(closed) = [&shell.root, &shell.target].into_iter().find(|folder| shell::is_closed(folder)) {
        bail!("an ordinary user may not enter {}: `chmod o+x` it", closed.display());
    }
    let Some(closed) = to_cover([&shell.root, &shell.target], shell::first_closed)? else {
        let mut command = shell.command("env");
        command.args(drop);
        return Ok(command);
    };
    let may_mount = shell::output(shell.command("unshare").args(["--mount", "true"]));
    may_mount.with_context(|| {
        format!(
            "hiding {} takes a mount: run as an ordinary user, with CAP_SYS_ADMIN, or `chmod o+x` it",
            closed.display()
        )
    })?;
    let mut command = shell.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", OPEN, "sh"]);
    command.args([&work.0, &closed, &shell.root, &shell.target]).args(drop);
    Ok(command)
}

/// Returns the one folder that keeps other users from both, if any.
fn to_cover(
    wanted: [&PathBuf; 2],
    closed: impl Fn(&Path) -> Option<PathBuf>,
) -> anyhow::Result<Option<PathBuf>> {
    let mut found: Vec<PathBuf> = wanted.iter().filter_map(|folder| closed(folder)).collect();
    found.dedup();
    match &found[..] {
        [] => Ok(None),
        [one] if one.parent().is_some() && !wanted.contains(&one) => Ok(Some(one.clone())),
        others => {
            let names: Vec<String> = others.iter().map(|folder| folder.display().to_string()).collect();
            bail!("an ordinary user may not enter {}: `chmod o+x` it", names.join(" and "))
        }
    }
}

/// The number of cases in `test result: ok. 28 passed; 0 failed; …`.
fn count(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.strip_prefix("test result: ok. "))?;
    line.split_once(" passed")?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folder_above_the_clone_can_be_covered() {
        let (root, inside, outside) =
            (PathBuf::from("/a/b"), PathBuf::from("/a/b/target"), PathBuf::from("/c/t"));
        let cover = |target: &PathBuf, names: &[&str]| {
            let first = |folder: &Path| names.iter().map(PathBuf::from).find(|it| folder.starts_with(it));
            to_cover([&root, target], first)
        };
        assert_eq!(cover(&inside, &[]).expect("all are open"), None);
        assert_eq!(cover(&inside, &["/a"]).expect("one"), Some(PathBuf::from("/a")));
        assert_eq!(cover(&outside, &["/c"]).expect("one"), Some(PathBuf::from("/c")));
        for (target, names) in [(&outside, &["/a", "/c"][..]), (&inside, &["/a/b"]), (&outside, &["/"])] {
            let why = cover(target, names).expect_err("it can't be covered").to_string();
            assert!(why.contains("chmod o+x"), "{why}");
        }
    }

    #[test]
    fn the_result_of_a_program_is_read() {
        assert_eq!(count("\ntest result: ok. 28 passed; 0 failed; 0 ignored"), Some(28));
        assert_eq!(count("test result: FAILED. 27 passed; 1 failed"), None);
    }
}
