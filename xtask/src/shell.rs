//! Shell: runs other programs from the root of the repository, prints their command lines, and names the command in errors.
//! It also has checks of files and accounts that several steps need.

use std::{
    env,
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
};

use anyhow::{Context as _, anyhow, bail};

use crate::rustc;

/// The repository, and what a command builds and starts in it.
#[derive(Clone)]
pub(crate) struct Shell {
    /// The repository.
    pub(crate) root: PathBuf,
    /// The folder that cargo builds in.
    pub(crate) target: PathBuf,
    /// The cargo profile of the programs that are run: `ci` in all steps.
    pub(crate) profile: &'static str,
    /// Folder in it with the data and the list of the servers.
    pub(crate) services: &'static str,
    /// The names of those servers.
    pub(crate) wanted: &'static [&'static str],
    /// Whether they are set up as in production, for measurements, and not for a quick start.
    pub(crate) are_measured: bool,
    /// Whether they keep data through a crash of the machine. A kill of their processes loses nothing in any case.
    pub(crate) are_synced: bool,
}

/// The folder of the servers of the tests.
pub(crate) const SERVICES_OF_TESTS: &str = "services";
/// Folders of the servers of single steps and commands, which break, restart or measure them.
pub(crate) const SERVICES_OF_CHAOS: &str = "chaos-services";
pub(crate) const SERVICES_OF_BROKERS: &str = "chaos-brokers";
pub(crate) const SERVICES_OF_REHEARSAL: &str = "services-rehearsal";
pub(crate) const SERVICES_OF_BROWSER: &str = "services-browser";
pub(crate) const SERVICES_OF_BENCH: &str = "bench-services";

/// The servers of the tests.
const WANTED: &[&str] = &["kafka", "redis7", "redis62", "postgres"];

impl Shell {
    pub(crate) fn here() -> anyhow::Result<Self> {
        // Read at run time, not at compile time: several work trees may share a target folder.
        let crate_dir = env::var_os("CARGO_MANIFEST_DIR").context("run me as `cargo xtask`")?;
        let root = Path::new(&crate_dir).parent().context("xtask lies in the repository")?.to_owned();
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = if target.is_absolute() { target } else { env::current_dir()?.join(target) };
        Ok(Self {
            root,
            target,
            profile: "ci",
            services: SERVICES_OF_TESTS,
            wanted: WANTED,
            are_measured: false,
            are_synced: false,
        })
    }

    /// Returns a shell with servers of its own.
    pub(crate) fn apart(&self, services: &'static str, wanted: &'static [&'static str]) -> Self {
        Self { services, wanted, ..self.clone() }
    }

    /// Returns a shell with programs of another profile.
    pub(crate) fn with_profile(&self, profile: &'static str) -> Self {
        Self { profile, ..self.clone() }
    }

    /// Waits until no other run uses this target folder, and locks it; `None` if no lock is needed.
    pub(crate) fn lock_target(&self, is_needed: bool) -> anyhow::Result<Option<File>> {
        if !is_needed {
            return Ok(None);
        }
        fs::create_dir_all(self.target.join("xtask"))?;
        let file = File::create(self.target.join("xtask/lock"))?;
        if file.try_lock().is_err() {
            eprintln!("waiting for another `cargo xtask` in {}", self.target.display());
            file.lock()?;
        }
        Ok(Some(file))
    }

    /// Returns the seed of a run: `TIDEGATE_SEED`, else a number derived from the commit, so that each run of a commit has
    /// the same faults.
    pub(crate) fn seed(&self) -> anyhow::Result<u64> {
        if let Ok(seed) = env::var("TIDEGATE_SEED") {
            return seed.parse().with_context(|| format!("TIDEGATE_SEED={seed} is not a number"));
        }
        let Ok((commit, _)) = output(self.command("git").args(["rev-parse", "--short=8", "HEAD"])) else {
            eprintln!("there is no history of git here: the seed is 0");
            return Ok(0);
        };
        u64::from_str_radix(commit.trim().get(..8).unwrap_or_default(), 16).context("a commit is hexadecimal")
    }

    /// Returns the commit of the work tree, and whether the tree is clean.
    pub(crate) fn commit(&self) -> anyhow::Result<(String, bool)> {
        let Ok((commit, _)) = output(self.command("git").args(["rev-parse", "HEAD"])) else {
            return Ok(("unknown".to_owned(), false));
        };
        let (changes, _) = output(self.command("git").args(["status", "--porcelain"]))?;
        Ok((commit.trim().to_owned(), changes.trim().is_empty()))
    }

    /// The commit as rows of results name it, with `-dirty` for a work tree that has changes.
    pub(crate) fn commit_name(&self) -> anyhow::Result<String> {
        let (commit, is_clean) = self.commit()?;
        Ok(format!("{}{}", &commit[..7.min(commit.len())], if is_clean { "" } else { "-dirty" }))
    }

    /// A command that runs in the repository.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// `cargo WORDS`, its output shown.
    pub(crate) fn cargo(&self, words: &[&str]) -> anyhow::Result<()> {
        run(&mut self.cargo_command(words))
    }

    /// `cargo WORDS`, to be changed and run.
    pub(crate) fn cargo_command(&self, words: &[&str]) -> Command {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(cargo);
        command.args(words);
        self.set_build(&mut command);
        if self.profile == "dist" {
            // Replaces the flags of .cargo/config.toml, which are for quick builds.
            command.env("CFLAGS", "-g");
        }
        command
    }

    /// Sets the folder and the compiler of builds, which are the same for all of a run.
    pub(crate) fn set_build(&self, command: &mut Command) {
        command.env("CARGO_TARGET_DIR", &self.target);
        if self.profile == "ci" {
            command.env("RUSTC_WORKSPACE_WRAPPER", rustc::path(&self.target));
        }
    }

    /// A program that was built: the step `build` makes those of the profile `ci`.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.target.join(self.profile).join(name)
    }

    /// A scratch folder of that name, empty.
    pub(crate) fn scratch(&self, name: &str) -> anyhow::Result<PathBuf> {
        emptied(self.target.join("xtask").join(name))
    }
}

/// The folder, made or emptied.
pub(crate) fn emptied(folder: PathBuf) -> anyhow::Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("emptying {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    Ok(folder)
}

/// The last lines of a file; nothing if it can't be read.
pub(crate) fn tail(file: &Path, count: usize) -> String {
    let text = String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Returns the first folder of the path that other users may not enter; ignores folders that do not exist.
pub(crate) fn first_closed(folder: &Path) -> Option<PathBuf> {
    let mut way: Vec<&Path> = folder.ancestors().collect();
    way.reverse();
    way.into_iter().find(|folder| is_closed(folder)).map(Path::to_path_buf)
}

/// Returns whether other users may not enter the folder.
pub(crate) fn is_closed(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|it| it.permissions().mode() & 0o001 == 0)
}

/// Returns whether this process runs as root.
pub(crate) fn is_root() -> anyhow::Result<bool> {
    let (id, _) = output(Command::new("id").arg("-u"))?;
    Ok(id.trim() == "0")
}

/// FNV-1a, which gives the same number with every toolchain.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Runs a command to its end and shows its output; any failure is an error.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    eprintln!("$ {}", words(command));
    let status = command.status().with_context(|| format!("starting {}", words(command)))?;
    if !status.success() {
        bail!("{status}: {}", words(command));
    }
    Ok(())
}

/// Runs a command to its end and returns its stdout and stderr; any failure is an error that shows both.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<(String, String)> {
    let output = command.output().with_context(|| format!("starting {}", words(command)))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (out, err) = (text(output.stdout), text(output.stderr));
    if !output.status.success() {
        bail!("{}: {}\n{out}{err}", output.status, words(command));
    }
    Ok((out, err))
}

/// Runs a command to its end, shows its stderr and returns its stdout; any failure is an error.
pub(crate) fn stdout(command: &mut Command) -> anyhow::Result<String> {
    eprintln!("$ {}", words(command));
    let output = command.stderr(Stdio::inherit()).output();
    stdout_of(&output.with_context(|| format!("starting {}", words(command)))?, command)
}

/// Returns the stdout of a command that has ended; any failure is an error, and shows it.
fn stdout_of(output: &Output, command: &Command) -> anyhow::Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        eprint!("{stdout}");
        bail!("{}: {}", output.status, words(command));
    }
    Ok(stdout)
}

/// Runs a command to its end, shows its stderr, adds it to a file, and returns its stdout; any failure is an error.
pub(crate) fn stdout_and_log(command: &mut Command, log: &Path) -> anyhow::Result<String> {
    eprintln!("$ {}", words(command));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {}", words(command)))?;
    let mut log = OpenOptions::new().append(true).create(true).open(log)?;
    let stderr = child.stderr.take().context("stderr is piped")?;
    let copy = thread::spawn(move || -> io::Result<()> {
        for line in BufReader::new(stderr).split(b'\n') {
            let mut line = line?;
            line.push(b'\n');
            log.write_all(&line)?;
            io::stderr().write_all(&line)?;
        }
        Ok(())
    });
    let output = child.wait_with_output()?;
    copy.join().map_err(|_| anyhow!("copying stderr panicked"))??;
    stdout_of(&output, command)
}

/// Returns whether `program` is on the PATH.
pub(crate) fn have(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Formats the command as typed in a shell; shortens long arguments, such as tokens.
fn words(command: &Command) -> String {
    let shown = |word: &OsStr| {
        let word = word.to_string_lossy();
        match word.char_indices().nth(90) {
            Some((at, _)) => format!("{}…", &word[..at]),
            None => word.into_owned(),
        }
    };
    let words: Vec<String> =
        std::iter::once(command.get_program()).chain(command.get_args()).map(shown).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_fnv_1a() {
        assert_eq!(digest(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(digest(b"a"), 0xaf63_dc4c_8601_ec8c);
    }

    #[test]
    fn a_folder_is_closed_by_its_mode_and_not_by_its_absence() {
        let folder = env::temp_dir().join(format!("tidegate-closed-{}", std::process::id()));
        assert!(!is_closed(&folder), "it is not there yet");
        let folder = emptied(folder).expect("a folder");
        for (mode, closed) in [(0o700, true), (0o755, false)] {
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("the folder is ours");
            assert_eq!(is_closed(&folder), closed, "{mode:o}");
        }
        fs::remove_dir_all(folder).expect("the folder is ours");
    }

    #[test]
    fn the_tail_of_a_file_is_its_last_lines() {
        let folder = env::temp_dir().join(format!("tidegate-tail-{}", std::process::id()));
        let file = emptied(folder.clone()).expect("a folder").join("log");
        assert_eq!(tail(&file, 2), "", "it is not there yet");
        fs::write(&file, "one\ntwo\nthree\n").expect("it is written");
        assert_eq!(tail(&file, 2), "two\nthree");
        assert_eq!(tail(&file, 9), "one\ntwo\nthree");
        fs::remove_dir_all(folder).expect("the folder is ours");
    }
}
