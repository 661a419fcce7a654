//! Folders of golden files: which exist, that they never change, and how the present version writes its own.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::Once,
};

use aws_lc_rs::digest;
use serde::{Serialize, de::DeserializeOwned};

use crate::{access, convert::hex, edits, frames, link, records, servers, sessions, store};

/// The variable that, set to 1, has the tests write the folder of the present version before they read it; set to
/// [`UNRELEASED`], that folder.
const WRITE: &str = "TIDEGATE_WRITE_GOLDEN";

/// The file with the SHA-256 of every other file of a folder, in the form of `sha256sum`.
const MANIFEST: &str = "MANIFEST";

/// The folder of files that the next version adds: their bytes are those of the first commit that wrote them.
const UNRELEASED: &str = "unreleased";

/// The golden files of one version.
pub(crate) struct Folder {
    /// The version, by which the folder is named.
    pub(crate) version: String,
    path: PathBuf,
}

impl Folder {
    /// Returns the bytes of a file.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let path = self.path.join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Returns what a JSON file holds.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> T {
        let read = serde_json::from_slice(&self.bytes(name));
        read.unwrap_or_else(|error| panic!("{} of {}: {error}", name, self.version))
    }

    /// Returns where a file is, for programs that read it themselves.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns whether the version has a file of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.path.join(name).exists()
    }

    /// Writes a file of the present version.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path.join(name), bytes).expect("the folder can be written");
    }

    /// Writes a list as JSON, one item per line, so that a difference can be read.
    pub(crate) fn write_list<T: Serialize>(&self, name: &str, items: &[T]) {
        let lines: Vec<String> =
            items.iter().map(|item| serde_json::to_string(item).expect("plain data")).collect();
        self.write(name, format!("[\n{}\n]\n", lines.join(",\n")).as_bytes());
    }

    /// Returns the SHA-256 of every file but the manifest, by name.
    fn hashes(&self) -> BTreeMap<String, String> {
        let entries =
            fs::read_dir(&self.path).expect("a folder").map(|entry| entry.expect("an entry").path());
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
        let files = entries.filter(|path| name(path) != MANIFEST);
        files
            .map(|path| {
                let bytes = fs::read(&path).expect("a file");
                (name(&path), hex(digest::digest(&digest::SHA256, &bytes).as_ref()))
            })
            .collect()
    }
}

fn root() -> PathBuf {
    // Read at run time: one target folder may serve several work trees.
    Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate"))
        .join("tests/golden")
}

/// Returns the folders of all released versions, after writing that of the present one if [`WRITE`] is set.
pub(crate) fn versions() -> Vec<Folder> {
    static WRITTEN: Once = Once::new();
    WRITTEN.call_once(|| {
        let wanted = env::var(WRITE).unwrap_or_default();
        if wanted == "1" || wanted == UNRELEASED {
            assert!(
                env::var_os("CI").is_none(),
                "{WRITE} is for a release by hand; CI only reads golden files"
            );
            let alone = "`cargo test --test golden`, where all tests are one process, which writes once";
            assert!(env::var_os("NEXTEST").is_none(), "{WRITE} is for {alone}");
            // Some tests run within a runtime, and the writer has its own.
            let write = if wanted == "1" { write_present } else { write_unreleased };
            std::thread::spawn(write).join().expect("the files are written");
        }
    });
    let entries = fs::read_dir(root()).expect("tests/golden").map(|entry| entry.expect("an entry").path());
    let mut folders: Vec<Folder> = entries
        .map(|path| Folder {
            version: path.file_name().and_then(|name| name.to_str()).expect("a name").to_owned(),
            path,
        })
        // The modules of this test are in the same folder.
        .filter(|folder| folder.version.starts_with(|first: char| first.is_ascii_digit()))
        .collect();
    folders.sort_by(|a, b| a.version.cmp(&b.version));
    assert!(!folders.is_empty(), "tests/golden has no version");
    folders
}

/// Returns the folder of files that the next version adds; `None` directly after a release.
fn unreleased() -> Option<Folder> {
    let folder = Folder { path: root().join(UNRELEASED), version: UNRELEASED.to_owned() };
    folder.has(MANIFEST).then_some(folder)
}

/// Returns the folders that have a file which the first version lacks.
pub(crate) fn folders_with(name: &str) -> Vec<Folder> {
    let folders: Vec<Folder> =
        versions().into_iter().chain(unreleased()).filter(|folder| folder.has(name)).collect();
    assert!(!folders.is_empty(), "no folder of tests/golden has {name}");
    folders
}

/// Writes every file of the present version, then the manifest. A folder with a manifest is released and stays as it is.
fn write_present() {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let folder = Folder { path: root().join(&version), version };
    let manifest = folder.path.join(MANIFEST);
    assert!(
        !manifest.exists(),
        "tests/golden/{} is released and never written again: raise the version in Cargo.toml first",
        folder.version
    );
    fs::create_dir_all(&folder.path).expect("tests/golden can be written");
    frames::write(&folder);
    records::write(&folder);
    sessions::write(&folder);
    link::write(&folder, link::CallSet::First);
    store::write(&folder);
    servers::write(&folder);
    access::write(&folder);
    edits::write(&folder);
    write_manifest(&folder);
}

/// Writes the files that the next version adds, which replaces the folder.
fn write_unreleased() {
    let folder = Folder { path: root().join(UNRELEASED), version: UNRELEASED.to_owned() };
    fs::create_dir_all(&folder.path).expect("tests/golden can be written");
    records::write(&folder);
    access::write(&folder);
    edits::write(&folder);
    write_manifest(&folder);
}

fn write_manifest(folder: &Folder) {
    let mut lines = String::new();
    for (name, hash) in folder.hashes() {
        writeln!(lines, "{hash}  {name}").expect("writing to a String succeeds");
    }
    folder.write(MANIFEST, lines.as_bytes());
}

#[test]
fn golden_files_of_a_released_version_never_change() {
    for folder in versions().into_iter().chain(unreleased()) {
        let manifest = String::from_utf8(folder.bytes(MANIFEST)).expect("text");
        let listed: BTreeMap<String, String> = manifest
            .lines()
            .map(|line| line.split_once("  ").expect("the form of sha256sum"))
            .map(|(hash, name)| (name.to_owned(), hash.to_owned()))
            .collect();
        assert_eq!(folder.hashes(), listed, "tests/golden/{}: restore the files from git", folder.version);
    }
}

#[test]
fn every_released_version_has_golden_files() {
    let changes = fs::read_to_string(root().join("../../CHANGELOG.md")).expect("a changelog");
    let versions: Vec<String> = versions().into_iter().map(|folder| folder.version).collect();
    // The headings of Keep a Changelog: `## [0.2.0] - 2026-12-24`.
    let headings = changes.lines().filter_map(|line| line.strip_prefix("## [")?.split(']').next());
    for released in headings.filter(|name| *name != "Unreleased") {
        assert!(
            versions.iter().any(|version| version == released),
            "{released} has no golden files: tests/golden/README.md describes how to write them"
        );
    }
}
