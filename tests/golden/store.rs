//! The data directory and the export of a single node.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::{
    convert::lacks,
    folder::{Folder, versions},
    support::{Process, fresh_data},
    world,
};

/// Data directory with its key.
const DATA: &str = "data.tar.gz";

/// The same store as written by `tidegate store export`.
const EXPORT: &str = "export.jsonl";

/// Replies of the node about it.
const VIEW: &str = "view.json";

/// Returns settings under which groups of few members are large.
fn sets() -> Vec<String> {
    vec![format!("limits.small_group_max={}", world::SMALL_GROUP_MAX)]
}

/// Starts a node on a data directory.
pub(crate) fn serve(data: &Path) -> Process {
    let sets = sets();
    Process::start_on(data, &sets.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Runs a program, which must succeed.
pub(crate) fn run(command: &mut Command) {
    let output = command.output().expect("it runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

/// Runs `tidegate store` on a data directory.
pub(crate) fn store(words: &[&str], data: &Path) {
    run(Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("store").args(words).arg("--data").arg(data));
}

/// Records the store of a stopped node, with the node's replies from before.
pub(crate) fn write(folder: &Folder) {
    let data = fresh_data();
    let mut node = serve(&data);
    world::live(&node, &node);
    let view = world::view(&node);
    folder.write(VIEW, format!("{view:#}\n").as_bytes());
    node.signal(Signal::TERM);
    assert!(node.exit().success(), "{}", node.stderr());
    fs::remove_file(data.join("stderr")).expect("the file exists");
    record(folder, [DATA, EXPORT], &data);
}

/// Packs a data directory, and exports it, into files of these names.
pub(crate) fn record(folder: &Folder, [packed, exported]: [&str; 2], data: &Path) {
    let export = folder.path(exported);
    fs::remove_file(&export).ok();
    store(&["export", "--output", export.to_str().expect("text")], data);
    let owners = ["--owner=0", "--group=0", "--numeric-owner"];
    run(Command::new("tar").args(owners).arg("-czf").arg(folder.path(packed)).arg("-C").arg(data).arg("."));
}

/// Unpacks a recorded data directory.
pub(crate) fn data_of(folder: &Folder, packed: &str) -> PathBuf {
    let data = fresh_data();
    fs::create_dir_all(&data).expect("the folder is created");
    run(Command::new("tar").args(["--no-same-owner", "-xzf"]).arg(folder.path(packed)).arg("-C").arg(&data));
    data
}

/// Imports an export into a new data directory, with the key of the recorded one. The same store gives the same bytes,
/// as docs/store.md promises, also through another version.
pub(crate) fn imported(folder: &Folder, [packed, exported]: [&str; 2]) -> PathBuf {
    let (old, data) = (data_of(folder, packed), fresh_data());
    let export = folder.path(exported);
    store(&["import", export.to_str().expect("text")], &data);
    fs::copy(old.join("token.key"), data.join("token.key")).expect("a key");
    let again = old.join("export.jsonl");
    store(&["export", "--output", again.to_str().expect("text")], &data);
    let text = |path: &Path| fs::read_to_string(path).expect("text");
    assert_eq!(text(&again), text(&export), "{}", folder.version);
    fs::remove_dir_all(old).ok();
    data
}

fn check(folder: &Folder, data: &Path) {
    let (golden, present): (Value, Value) = (folder.json(VIEW), world::view(&serve(data)));
    assert_eq!(lacks(&golden, &present), None, "{}", folder.version);
}

#[test]
fn node_serves_the_data_directory_of_every_version() {
    for folder in versions() {
        let data = data_of(&folder, DATA);
        store(&["check"], &data);
        check(&folder, &data);
    }
}

#[test]
fn node_serves_the_imported_export_of_every_version() {
    for folder in versions() {
        check(&folder, &imported(&folder, [DATA, EXPORT]));
    }
}
