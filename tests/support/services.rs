//! Addresses of the real servers, as `cargo xtask services up` wrote them.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

/// Returns the entry of a server in `services.json`. Without the servers a test fails with the command that starts
/// them, and is not skipped.
pub(crate) fn service(name: &str) -> Value {
    let file = list();
    let how = "the tests need real servers: run `cargo xtask services up` (and `cargo xtask services down` when done)";
    let text = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}; {how}", file.display()));
    let said: Value =
        serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{}: {error}; {how}", file.display()));
    assert!(said[name].is_object(), "{} does not name {name}; {how}", file.display());
    said[name].clone()
}

/// Returns a text that `services.json` has of a server.
pub(crate) fn service_text(name: &str, field: &str) -> String {
    let said = service(name);
    said[field].as_str().unwrap_or_else(|| panic!("services.json has no {field} of {name}")).to_owned()
}

/// Returns the path of the list, next to the folder that this program was built in: cargo uses
/// `target/debug/deps/program`.
pub(crate) fn list() -> PathBuf {
    let program = env::current_exe().expect("a test knows its program");
    let folder = program.ancestors().find(|folder| folder.join("services").is_dir());
    let target = folder.or_else(|| program.ancestors().nth(3)).expect("a program lies in a folder");
    target.join("services").join("services.json")
}
