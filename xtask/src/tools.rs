//! What the steps need from outside: found, installed, or refused with the way to get it. Never skipped in silence.

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context as _, bail};

use crate::shell::{self, Shell};

/// Python packages of the steps, pinned.
const PYTHON_PACKAGES: &[&str] = &["kosoku==0.1.0", "websockets==17.4"];

/// Makes sure that `program` is there, from the Debian package of that name if need be.
pub(crate) fn ensure_program(shell: &Shell, program: &str, package: &str) -> anyhow::Result<()> {
    if shell::have(program) {
        return Ok(());
    }
    let by_hand = format!("`{program}` is missing and could not be installed; get the package `{package}`");
    if !shell::have("apt-get") {
        bail!("{by_hand} of your system");
    }
    eprintln!("`{program}` is missing: installing the package `{package}`");
    install(shell, package).context(by_hand)
}

/// Installs a Debian package.
pub(crate) fn install(shell: &Shell, package: &str) -> anyhow::Result<()> {
    apt_get(shell, &["update", "--quiet"])?;
    apt_get(shell, &["install", "--quiet", "--yes", "--no-install-recommends", package])
}

fn apt_get(shell: &Shell, words: &[&str]) -> anyhow::Result<()> {
    let (uid, _) = shell::output(shell.command("id").arg("-u"))?;
    let mut command = if uid.trim() == "0" {
        shell.command("apt-get")
    } else {
        let mut command = shell.command("sudo");
        command.args(["--non-interactive", "apt-get"]);
        command
    };
    shell::run(command.args(words).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// The programs of the Python environment with the packages of the steps.
pub(crate) fn python(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(python_packages(shell, "py", PYTHON_PACKAGES)?.join("bin"))
}

/// Checks files against JSON schemas; carries that of the Compose Specification. Pinned with its parser of YAML, which counts too.
const CHECK_JSONSCHEMA: &[&str] = &["check-jsonschema==0.39.0", "ruamel.yaml==0.19.1"];

/// The checker of schemas, installed below the target folder.
pub(crate) fn check_jsonschema(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(python_packages(shell, "schema", CHECK_JSONSCHEMA)?.join("bin/check-jsonschema"))
}

/// A Python environment of that name below the target folder, made by pip with these words: pinned packages, options.
pub(crate) fn python_packages(shell: &Shell, name: &str, words: &[&str]) -> anyhow::Result<PathBuf> {
    ensure_program(shell, "python3", "python3")?;
    let venv = shell.target.join("tools").join(name);
    let stamp = venv.join("tidegate-packages");
    let wanted = words.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(venv);
    }
    let make = || shell::run(shell.command("python3").args(["-m", "venv", "--clear"]).arg(&venv));
    if make().is_err() {
        // Debian ships python3 without ensurepip.
        install(shell, "python3-venv")?;
        make()?;
    }
    let mut pip = shell.command(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]).args(words);
    shell::run(&mut pip).with_context(|| format!("installing {} with pip", words.join(" ")))?;
    fs::write(stamp, wanted)?;
    Ok(venv)
}

/// The folder below which the packages of `tests/third_party/package-lock.json` are installed.
pub(crate) fn node(shell: &Shell) -> anyhow::Result<PathBuf> {
    ensure_program(shell, "node", "nodejs")?;
    ensure_program(shell, "npm", "npm")?;
    let folder = shell.target.join("tools").join("npm");
    let ours = shell.root.join("tests/third_party");
    let lock = fs::read_to_string(ours.join("package-lock.json"))?;
    let stamp = folder.join("tidegate-packages");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == lock) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    for file in ["package.json", "package-lock.json"] {
        fs::copy(ours.join(file), folder.join(file))?;
    }
    shell::run(
        shell
            .command("npm")
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&folder),
    )
    .context("installing the packages of tests/third_party/package-lock.json with npm")?;
    fs::write(stamp, lock)?;
    Ok(folder)
}

/// Pinned apart from the lock file, because npm can't lock its per-platform parts without naming where they lie.
const BUF: &str = "@bufbuild/buf@1.75.0";

/// The schema linter, installed below the target folder.
pub(crate) fn buf(shell: &Shell) -> anyhow::Result<PathBuf> {
    ensure_program(shell, "node", "nodejs")?;
    ensure_program(shell, "npm", "npm")?;
    let folder = shell.target.join("tools").join("buf");
    let program = folder.join("node_modules/.bin/buf");
    let stamp = folder.join("tidegate-packages");
    if !fs::read_to_string(&stamp).is_ok_and(|installed| installed == BUF) {
        let options = ["--ignore-scripts", "--no-save", "--no-audit", "--no-fund", "--loglevel=error"];
        let mut npm = shell.command("npm");
        npm.args(["install", "--prefix"]).arg(&folder).args(options).arg(BUF);
        shell::run(&mut npm).with_context(|| format!("installing {BUF} with npm"))?;
        fs::write(stamp, BUF)?;
    }
    Ok(program)
}

/// Pinned; each is compiled once, for about four minutes on two cores, below the target folder.
const CARGO_DENY: (&str, &str) = ("cargo-deny", "0.20.2");
const CARGO_FUZZ: (&str, &str) = ("cargo-fuzz", "0.13.2");

/// The folder of a cargo subcommand of that version, compiled if need be; one of another version on the PATH is not used,
/// so that all see the same findings.
fn cargo_tool(shell: &Shell, (name, version): (&str, &str)) -> anyhow::Result<PathBuf> {
    let folder = shell.target.join("tools").join(format!("{name}-{version}"));
    let bin = folder.join("bin");
    if !bin.join(name).is_file() {
        eprintln!("`{name}` {version} is missing: compiling it, once");
        let build = shell.target.join("tools").join("build");
        let mut command =
            shell.cargo_command(&["install", "--locked", "--quiet", "--version", version, name]);
        command.arg("--root").arg(&folder).arg("--target-dir").arg(&build);
        shell::run(&mut command).with_context(|| format!("installing {name} {version} with cargo"))?;
        // What it was made of is larger than all else and of no more use.
        fs::remove_dir_all(&build).ok();
    }
    Ok(bin)
}

/// Licences, bans and sources, by `deny.toml` and the lock file alone.
pub(crate) fn deny(shell: &Shell) -> anyhow::Result<()> {
    let bin = cargo_tool(shell, CARGO_DENY)?;
    let what = ["--offline", "--workspace", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"];
    // Offline it needs what the lock file names to be there, for every platform that it looks at.
    shell.cargo(&["fetch", "--locked", "--quiet"])?;
    shell::run(shell.command(bin.join("cargo-deny")).args(what))
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
    let bin = cargo_tool(shell, CARGO_FUZZ)?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([bin].into_iter().chain(env::split_paths(&path)))?;
    let mut command = shell.command("cargo");
    command.args(["+nightly", "fuzz"]).env("PATH", path).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}
