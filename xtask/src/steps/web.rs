//! Steps `web`, `clients` and `browser`: the TypeScript client and the console page, alone and against real nodes.

use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context as _, anyhow, ensure};

use crate::{
    services,
    shell::{self, Shell},
    tools,
};

/// Folders of the packages.
const CLIENT: &str = "clients/typescript";
const CONSOLE: &str = "console";

/// Tests of the client that need a node.
const CLIENT_WITH_NODE: &[&str] = &[
    "test/node.test.mjs",
    "test/tls.test.mjs",
    "test/readme.test.mjs",
    "test/chaos.test.mjs",
    "test/browser/tabs.test.mjs",
];
/// What the adapter in Node does not do, whose cases may be skipped.
const LACKS_IN_NODE: &[&str] = &["`tabs`", "tcp-proto", "ws-proto"];
/// Tests of the console in a browser, with nodes of their own, each file with a browser of its own. The first waits for timers
/// of the protocol.
const CONSOLE_WITH_NODE: &[&str] =
    &["tests/browser/try.test.mjs", "tests/browser/views.test.mjs", "tests/browser/pages.test.mjs"];
/// Tests of the console in a browser, with a cluster.
const CONSOLE_WITH_CLUSTER: &[&str] = &["tests/browser/cluster.test.mjs"];

/// Servers of the cluster.
const SERVERS: &[&str] = &["kafka", "redis7", "postgres"];

/// Tests of both packages that need no node: types, size, tables generated from other files, state machines.
pub(crate) fn build(shell: &Shell) -> anyhow::Result<usize> {
    let client = node_tests(script_of(shell, CLIENT, "test")?)?;
    note_built_client(shell)?;
    shell::run(&mut script_of(shell, CONSOLE, "check")?)?;
    built_page_is_committed(shell)?;
    Ok(client + node_tests(script_of(shell, CONSOLE, "test")?)?)
}

/// Tests of the client with a real node, and the conformance kit, in the machine's Node, in a later one, whose own WebSocket
/// it uses, and in Chromium.
pub(crate) fn clients(shell: &Shell) -> anyhow::Result<usize> {
    tools::ensure_program(shell, "chromium-headless-shell", "chromium-headless-shell")?;
    drop(built_client(shell)?);
    let later = tools::later_node(shell)?;
    let with_node = tests_with_node(shell, &later, CLIENT, CLIENT_WITH_NODE)?;
    // Both wait for timers of the client most of the time.
    thread::scope(|scope| {
        let kits = scope.spawn(|| {
            let node = Path::new("node");
            let passed = kit(shell, node, "adapter.mjs", LACKS_IN_NODE)?;
            let chromium = kit(shell, node, "browser.mjs", &["tcp-json", "tcp-proto", "ws-proto"])?;
            anyhow::Ok(passed + chromium)
        });
        let with_node = node_tests(with_node)
            .and_then(|passed| Ok(passed + kit(shell, &later, "adapter.mjs", LACKS_IN_NODE)?));
        let kits = kits.join().map_err(|_| anyhow!("the conformance kit panicked"))?;
        Ok(kits? + with_node?)
    })
}

/// Tests of the page that the nodes serve, in Chromium. Those with one node run while the servers of the cluster start.
pub(crate) fn browser(shell: &Shell) -> anyhow::Result<usize> {
    tools::ensure_program(shell, "chromium-headless-shell", "chromium-headless-shell")?;
    let page = |files: &[&str]| {
        let mut tests = tests_with_node(shell, Path::new("node"), CONSOLE, files)?;
        tests.env("TIDEGATE_CONSOLE", "embedded");
        anyhow::Ok(tests)
    };
    let with_node = page(CONSOLE_WITH_NODE)?;
    let mut with_cluster = page(CONSOLE_WITH_CLUSTER)?;
    thread::scope(|scope| {
        let with_node = scope.spawn(|| node_tests(with_node));
        let apart = shell.apart(shell::SERVICES_OF_BROWSER, SERVERS);
        let mut passed = 0;
        let cluster = services::with_new(&apart, |list| {
            with_cluster.env("TIDEGATE_SERVICES", list);
            passed = node_tests(with_cluster)?;
            Ok(())
        });
        let alone = with_node.join().map_err(|_| anyhow!("the tests with one node panicked"))?;
        cluster?;
        Ok(passed + alone?)
    })
}

/// Returns the command that runs tests of a package with the built programs, in this version of Node.
fn tests_with_node(shell: &Shell, node: &Path, package: &str, files: &[&str]) -> anyhow::Result<Command> {
    let mut node = shell.command(node);
    node.args(["--test", "--test-concurrency=3", "--test-reporter=spec"]).args(files);
    node.current_dir(tools::node_modules(shell, package)?);
    node.env("TIDEGATE_BIN", shell.built("tidegate")).env("TIDEGATE_LAB", shell.built("tidegate-lab"));
    Ok(node)
}

/// Fails if `console/dist`, which the broker embeds, is not what its sources give. Builds it elsewhere: a file that is
/// written in `console/dist` makes cargo compile the broker again.
fn built_page_is_committed(shell: &Shell) -> anyhow::Result<()> {
    let built = shell.scratch("console")?;
    let mut build = script_of(shell, CONSOLE, "build")?;
    shell::run(build.env("TIDEGATE_CONSOLE_DIST", &built))?;
    let dist = format!("{CONSOLE}/dist");
    let compared = shell::output(shell.command("diff").args(["--recursive", "--brief", &dist]).arg(&built));
    compared.with_context(|| format!("{dist} is not what its sources give; run its build and commit it"))?;
    Ok(())
}

/// Builds the client, and returns the command of its adapter in Node. It runs from a scratch folder of this name, because
/// another step may build the client again meanwhile.
pub(crate) fn adapter(shell: &Shell, name: &str) -> anyhow::Result<String> {
    let scratch = shell.scratch(name)?;
    let _lock = built_client(shell)?;
    let package = tools::node_modules(shell, CLIENT)?;
    let parts = ["dist", "kit", "package.json"].map(|part| package.join(part));
    shell::run(shell.command("cp").arg("-a").args(parts).arg(&scratch))?;
    Ok(format!("node '{}'", scratch.join("kit/adapter.mjs").display()))
}

/// Builds the client, unless its present sources gave what is there. Returns the lock, which keeps other steps from building
/// it again.
fn built_client(shell: &Shell) -> anyhow::Result<File> {
    let home = shell.target.join("xtask");
    fs::create_dir_all(&home)?;
    let lock = File::create(home.join("client.lock"))?;
    lock.lock()?;
    let package = tools::node_modules(shell, CLIENT)?;
    let noted = fs::read_to_string(client_note(shell)).ok();
    if noted != Some(fingerprint(&package)?) {
        shell::run(&mut script_of(shell, CLIENT, "build")?)?;
        note_built_client(shell)?;
    }
    Ok(lock)
}

/// Notes that the client was built from its present sources.
fn note_built_client(shell: &Shell) -> anyhow::Result<()> {
    fs::write(client_note(shell), fingerprint(&tools::node_modules(shell, CLIENT)?)?)?;
    Ok(())
}

fn client_note(shell: &Shell) -> PathBuf {
    shell.target.join("xtask/client.built")
}

/// Returns a hash of the sources of a package and of what was built from them.
fn fingerprint(package: &Path) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    let parts = ["src", "scripts", "dist", "package.json", "package-lock.json", "tsconfig.json"];
    let mut left: Vec<PathBuf> = parts.iter().map(|part| package.join(part)).collect();
    while let Some(path) = left.pop() {
        path.hash(&mut hasher);
        if path.is_dir() {
            let files = fs::read_dir(&path)?.map(|entry| Ok(entry?.path()));
            let mut files = files.collect::<io::Result<Vec<_>>>()?;
            files.sort();
            left.extend(files);
        } else {
            fs::read(&path).unwrap_or_default().hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Judges the client by the conformance kit, and returns the number of cases. Only those may be skipped that need what the
/// adapter `lacks`.
fn kit(shell: &Shell, node: &Path, adapter: &str, lacks: &[&str]) -> anyhow::Result<usize> {
    let lab = shell.built("tidegate-lab");
    let adapter = format!("'{}' {CLIENT}/kit/{adapter}", node.display());
    // Other steps run at the same time.
    let (output, _) =
        shell::output(shell.command(lab).args(["kit", "--slack", "2000", "--adapter", &adapter]))?;
    print!("{output}");
    let is_known = |line: &str| lacks.iter().any(|it| line.ends_with(&format!("the adapter has no {it}")));
    let skipped: Vec<&str> =
        output.lines().filter(|line| line.starts_with("skipped ") && !is_known(line)).collect();
    ensure!(skipped.is_empty(), "cases were skipped:\n{}", skipped.join("\n"));
    let all = output.lines().rev().find_map(|line| line.strip_prefix("all "));
    let passed = all.and_then(|counts| counts.split_whitespace().next()?.parse().ok());
    passed.with_context(|| format!("the kit printed no sum:\n{output}"))
}

/// Returns the command that runs a script of a package.
fn script_of(shell: &Shell, package: &str, script: &str) -> anyhow::Result<Command> {
    let folder = tools::node_modules(shell, package)?;
    let mut npm = shell.command("npm");
    npm.args(["run", "--silent", script]).current_dir(folder).env_remove("TIDEGATE_BIN");
    Ok(npm)
}

/// Runs tests in Node, and returns the number of those that passed. Only tests without a node may be skipped.
fn node_tests(mut command: Command) -> anyhow::Result<usize> {
    let has_node = command.get_envs().any(|(name, value)| name == "TIDEGATE_BIN" && value.is_some());
    let (output, errors) = shell::output(&mut command)?;
    print!("{output}{errors}");
    let count = |word: &str| -> Option<usize> {
        let plain = |line: &str| line.trim_start_matches(|it: char| !it.is_ascii_alphabetic()).to_owned();
        output.lines().rev().map(plain).find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    };
    ensure!(!has_node || count("skipped ") == Some(0), "tests were skipped:\n{output}");
    count("pass ").with_context(|| format!("no summary of tests:\n{output}"))
}
