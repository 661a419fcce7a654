//! Raw fan-out loops in C, which the bench builds from its own sources: over OpenSSL, and over uWebSockets.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Library of the Python package socketify, with uWebSockets and its C interface.
const SOCKETIFY: &str = "libsocketify_linux_amd64.so";

/// Source of a program, and how to get what it needs.
struct CSource {
    name: &'static str,
    text: &'static str,
    cure: &'static str,
}

const OPENSSL: CSource = CSource {
    name: "openssl_fanout",
    text: include_str!("../../raw/openssl_fanout.c"),
    cure: "install a C compiler and the headers of OpenSSL (Debian: `apt-get install gcc libssl-dev`)",
};

const UWEBSOCKETS: CSource = CSource {
    name: "uws_fanout",
    text: include_str!("../../raw/uws_fanout.c"),
    cure: "get it with `pip download --no-deps --no-binary socketify socketify==0.0.31`, unpack it, and name its folder \
           src/socketify with --uwebsockets; it needs x86-64, a C compiler and libuv (Debian: `apt-get install gcc libuv1`)",
};

/// Builds the loop over OpenSSL in `directory` with the C compiler that `CC` names, or else `cc`.
///
/// # Errors
/// There is no compiler, or OpenSSL's headers are missing; the text names the cure.
pub(super) fn openssl(directory: &Path) -> Result<PathBuf, String> {
    OPENSSL.build(&compiler(), directory, &["-lssl", "-lcrypto"].map(OsString::from))
}

/// Builds the loop over uWebSockets in `directory`, as [`openssl`] does. `library` is the folder of socketify's library.
///
/// # Errors
/// No folder is named, it has no such library, or there is no compiler; the text names the cure.
pub(super) fn uwebsockets(directory: &Path, library: Option<&Path>) -> Result<PathBuf, String> {
    let cure = UWEBSOCKETS.cure;
    let Some(folder) = library else { return Err(format!("--uwebsockets is not given; {cure}")) };
    let file = fs::canonicalize(folder.join(SOCKETIFY))
        .map_err(|error| format!("{} has no {SOCKETIFY} ({error}); {cure}", folder.display()))?;
    let folder = file.parent().unwrap_or(folder);
    let option = |start: &str, rest: &OsStr| {
        let mut option = OsString::from(start);
        option.push(rest);
        option
    };
    let options = [
        option("-L", folder.as_os_str()),
        option("-l:", SOCKETIFY.as_ref()),
        option("-Wl,-rpath,", folder.as_os_str()),
        OsString::from("-lpthread"),
    ];
    UWEBSOCKETS.build(&compiler(), directory, &options)
}

fn compiler() -> OsString {
    env::var_os("CC").unwrap_or_else(|| "cc".into())
}

impl CSource {
    fn build(&self, compiler: &OsStr, directory: &Path, options: &[OsString]) -> Result<PathBuf, String> {
        let (source, program) = (directory.join(format!("{}.c", self.name)), directory.join(self.name));
        fs::write(&source, self.text).map_err(|error| format!("{}: {error}", source.display()))?;
        let cure = self.cure;
        let mut command = Command::new(compiler);
        command.arg("-O2").arg(&source).arg("-o").arg(&program).args(options);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_compiler_or_library_names_the_cure() {
        let directory = env::temp_dir().join(format!("tidegate-c-program-{:x}", rand::random::<u64>()));
        fs::create_dir_all(&directory).unwrap();
        for compiler in ["/nowhere/cc", "/bin/false"] {
            let error = OPENSSL.build(compiler.as_ref(), &directory, &[]).unwrap_err();
            assert!(error.contains(compiler) && error.contains("libssl-dev"), "{error}");
        }
        for (library, why) in [(None, "is not given"), (Some(&*directory), "has no libsocketify")] {
            let error = uwebsockets(&directory, library).unwrap_err();
            assert!(error.contains(why) && error.contains("pip download"), "{error}");
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
