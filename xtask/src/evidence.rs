//! What a failed step leaves for whoever looks for the cause: `target/xtask/failed/<step>/`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::shell::Shell;

/// Names the step that runs in this process.
pub(crate) const STEP: &str = "TIDEGATE_STEP";

/// Where failed steps leave their logs.
pub(crate) fn home(shell: &Shell) -> PathBuf {
    shell.target.join("xtask/failed")
}

/// Copies a file, under that name, to what the running step leaves; does nothing outside a step.
pub(crate) fn keep(shell: &Shell, file: &Path, name: &str) {
    if let Ok(step) = env::var(STEP) {
        keep_of(shell, &step, file, name);
    }
}

/// Copies a file, under that name, to what a step leaves; does nothing if the file isn't there.
pub(crate) fn keep_of(shell: &Shell, step: &str, file: &Path, name: &str) {
    let folder = home(shell).join(step);
    let copied = fs::create_dir_all(&folder).and_then(|()| fs::copy(file, folder.join(name)));
    if copied.is_ok() {
        eprintln!("kept {name} in {}", folder.display());
    }
}
