//! Evidence of failed steps: copies of logs and histories in `target/xtask/failed/<step>/`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use crate::shell::Shell;

/// The variable that names the step that runs in this process.
pub(crate) const STEP: &str = "TIDEGATE_STEP";

/// The folder of the evidence of all steps.
pub(crate) fn home(shell: &Shell) -> PathBuf {
    shell.target.join("xtask/failed")
}

/// Copies a file, under that name, to the evidence of the running step; does nothing outside a step.
pub(crate) fn keep(shell: &Shell, file: &Path, name: &str) {
    if let Ok(step) = env::var(STEP) {
        keep_of(shell, &step, file, name);
    }
}

/// Copies a file, under that name, to the evidence of a step; does nothing if the file isn't there.
pub(crate) fn keep_of(shell: &Shell, step: &str, file: &Path, name: &str) {
    let folder = home(shell).join(step);
    let copied = fs::create_dir_all(&folder).and_then(|()| fs::copy(file, folder.join(name)));
    if copied.is_ok() {
        eprintln!("kept {name} in {}", folder.display());
    }
}
