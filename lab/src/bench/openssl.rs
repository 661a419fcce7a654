//! The raw fan-out loop over OpenSSL: a C program that the bench builds from its own source.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const SOURCE: &str = include_str!("../../raw/openssl_fanout.c");

/// Builds the program in `directory` with the C compiler that `CC` names, or else `cc`.
///
/// # Errors
/// There is no compiler, or OpenSSL's headers are missing; the text names the cure.
pub(super) fn build(directory: &Path) -> Result<PathBuf, String> {
    build_with(&env::var_os("CC").unwrap_or_else(|| "cc".into()), directory)
}

fn build_with(compiler: &OsString, directory: &Path) -> Result<PathBuf, String> {
    let (source, program) = (directory.join("openssl_fanout.c"), directory.join("openssl_fanout"));
    fs::write(&source, SOURCE).map_err(|error| format!("{}: {error}", source.display()))?;
    let cure = "install a C compiler and the headers of OpenSSL (Debian: `apt-get install gcc libssl-dev`)";
    let mut command = Command::new(compiler);
    command.arg("-O2").arg(&source).arg("-o").arg(&program).args(["-lssl", "-lcrypto"]);
    let compiler = compiler.display();
    match command.output() {
        Err(error) => Err(format!("{compiler} does not start ({error}); {cure}")),
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            let first = text.lines().find(|line| line.contains("error")).unwrap_or("it failed");
            Err(format!("{compiler}: {first}; {cure}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_compiler_names_the_cure() {
        let directory = env::temp_dir().join(format!("tidegate-openssl-{:x}", rand::random::<u64>()));
        fs::create_dir_all(&directory).unwrap();
        for compiler in ["/nowhere/cc", "/bin/false"] {
            let error = build_with(&compiler.into(), &directory).unwrap_err();
            assert!(error.contains(compiler) && error.contains("libssl-dev"), "{error}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
