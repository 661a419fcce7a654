//! The programs that the tests run.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::{
    path::PathBuf,
    process::{Command, Output},
};

#[path = "../../../tests/support/services.rs"]
pub(crate) mod services;

/// Path of `tidegate-lab`.
pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_tidegate-lab");

/// Runs `tidegate-lab` to its end.
pub(crate) fn lab(arguments: &[&str]) -> Output {
    Command::new(LAB).args(arguments).output().expect("the binary runs")
}

/// Returns the path of the node, which cargo puts beside the lab; it is another package's, so cargo does not build it for
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
