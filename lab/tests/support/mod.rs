//! The programs that the tests run.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

#[path = "../../../tests/support/services.rs"]
pub(crate) mod services;
#[allow(unreachable_pub, reason = "other test binaries hand it on")]
#[path = "../../../tests/support/unique.rs"]
mod unique;

/// Path of `tidegate-lab`.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_tidegate-lab");

/// Folder of a test below the target folder. It is removed when the test ends, also when it fails.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Creates an empty folder.
    pub(crate) fn fresh() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lab-{}", unique::unique_name()));
        fs::create_dir_all(&folder).expect("a place for files");
        Self(folder)
    }

    /// Returns the path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file of the folder, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain path").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Runs `tidegate-lab` to its end.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    Command::new(LAB).args(arguments).output().expect("the binary runs")
}

/// Returns the path of the node, which cargo puts into the folder of the lab; it is another package's, so cargo does not build it for
/// `--package tidegate-lab` alone.
pub(crate) fn node() -> PathBuf {
    let program = PathBuf::from(LAB).with_file_name("tidegate");
    assert!(
        program.is_file(),
        "{} does not exist: run `cargo build --package tidegate` with the profile of this test, or test the workspace",
        program.display()
    );
    program
}

/// Returns what a program wrote to both streams.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
