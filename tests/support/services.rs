//! Where the real servers of the tests are: `cargo xtask services up` wrote it down.

use std::{env, fs, path::PathBuf};

use serde_json::Value;

/// What `services.json` says of a server. Without the servers a test fails and says how to get them: it is not skipped.
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

/// Beside the folder that this program was built in, as cargo puts it: `target/debug/deps/program`.
pub(crate) fn list() -> PathBuf {
    let program = env::current_exe().expect("a test knows its program");
    let folder = program.ancestors().find(|folder| folder.join("services").is_dir());
    let target = folder.or_else(|| program.ancestors().nth(3)).expect("a program lies in a folder");
    target.join("services").join("services.json")
}
