//! Finds the program that is measured or broken: the one that an option names, or else `tidegate` in the folder of this
//! program.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};

/// File name of the node's program.
const NAME: &str = "tidegate";

/// Returns the program named by `option`, or else the sibling of this executable.
///
/// # Errors
/// Fails when the program does not exist; the message describes how to build or name one.
pub(crate) fn find(named: Option<&Path>, option: &str) -> anyhow::Result<PathBuf> {
    match named {
        Some(program) => {
            // A bare name is looked up in PATH.
            let is_there = program.components().count() == 1 || program.is_file();
            ensure!(is_there, "{}: no such program; {option} names the node to start", program.display());
            Ok(program.to_owned())
        }
        None => {
            let own = env::current_exe().context("the path of this program")?;
            sibling(&own, option)
        }
    }
}

fn sibling(own: &Path, option: &str) -> anyhow::Result<PathBuf> {
    let program = own.with_file_name(NAME);
    ensure!(
        program.is_file(),
        "no node to start: {} does not exist; build it with `cargo build --package tidegate` and the same profile, \
         or name another one with {option}",
        program.display()
    );
    Ok(program)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn sibling_is_used_and_error_names_it_and_the_option() {
        let folder = env::temp_dir().join(format!("tidegate-node-binary-{:x}", rand::random::<u64>()));
        fs::create_dir_all(&folder).unwrap();
        let own = folder.join("tidegate-lab");
        let expected = folder.join("tidegate");
        let error = sibling(&own, "--server-binary").unwrap_err().to_string();
        assert!(error.contains(&*expected.to_string_lossy()) && error.contains("--server-binary"), "{error}");
        fs::write(&expected, "").unwrap();
        assert_eq!(sibling(&own, "--server-binary").unwrap(), expected);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn option_wins_and_a_missing_program_is_an_error() {
        let own = env::current_exe().unwrap();
        assert_eq!(find(Some(&own), "--binary").unwrap(), own);
        let error = find(Some(Path::new("/nowhere/tidegate")), "--binary").unwrap_err().to_string();
        assert!(error.contains("/nowhere/tidegate") && error.contains("--binary"), "{error}");
    }
}
