//! X12: files of a node and its tools are closed to other accounts, whatever the umask, and readable secrets are
//! refused.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::{Signal, geteuid};
use tidegate::auth;
use tidegate_protocol::codec::Wire;

use crate::support::{Process, command, fresh_data, in_shell};

/// The usual umask of a shell.
const UMASK: &str = "umask 022";

/// Returns the paths at or below `path` with permissions for others than the owner.
fn open(path: &Path) -> Vec<String> {
    let about = fs::symlink_metadata(path).expect("the path exists");
    let mut found = Vec::new();
    if about.mode() & 0o077 != 0 {
        found.push(format!("{} {:o}", path.display(), about.mode()));
    }
    if about.is_dir() {
        let below = fs::read_dir(path).expect("a directory").flatten();
        found.extend(below.flat_map(|entry| open(&entry.path())));
    }
    found
}

fn count(path: &Path) -> usize {
    let below = fs::read_dir(path).into_iter().flatten().flatten();
    1 + below.map(|entry| count(&entry.path())).sum::<usize>()
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is owned by the test");
}

/// Runs `tidegate` with these arguments and the usual umask.
fn tidegate(words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = in_shell(UMASK, command.args(words)).output().expect("the binary runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn x12_data_and_exports_are_closed_to_other_accounts() {
    let place = fresh_data();
    // The harness has its own files in `place`; `data` belongs to the node only.
    let (serve, data) = (command(&place, &[]), place.join("data"));
    let words = serve.get_args().map(|word| if word == place.as_os_str() { data.as_os_str() } else { word });
    let mut own = Command::new(serve.get_program());
    let mut shell = in_shell(UMASK, own.args(words));
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    let mut node = Process::spawn(&data, shell);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for n in 0..20 {
        alice.text("bob", &format!("m{n}"), "for nobody else");
    }
    assert_eq!(open(&data), [""; 0], "while it serves");
    assert!(count(&data) > 5, "the walk sees the store");
    node.signal(Signal::TERM);
    assert!(node.exit().success());
    assert_eq!(open(&data), [""; 0], "after it");

    let text = |path: &Path| path.to_str().expect("a plain name").to_owned();
    let (export, new, fresh) = (place.join("export.jsonl"), place.join("new"), place.join("fresh"));
    tidegate(&["store", "export", "--data", &text(&data), "--output", &text(&export)]);
    tidegate(&["store", "import", &text(&export), "--data", &text(&new)]);
    tidegate(&["token", "alice", "--data", &text(&fresh)]);
    for path in [&export, &new, &fresh] {
        assert_eq!(open(path), [""; 0]);
    }
    fs::remove_dir_all(place).ok();
}

#[test]
fn x12_open_data_directory_is_closed_at_the_start() {
    let data = fresh_data();
    let serve = command(&data, &[]);
    chmod(&data, 0o755);
    let node = Process::spawn(&data, serve);
    assert_eq!(fs::metadata(&data).expect("the path exists").mode() & 0o777, 0o700);
    assert!(node.stderr().contains("data directory was open to other accounts"), "{}", node.stderr());
}

/// Runs `serve` on a directory that it refuses, and returns its output.
fn refused(data: &Path, sets: &[&str]) -> String {
    let mut node = Process::begin(data, command(data, sets));
    let status = node.exit();
    assert_eq!(status.code(), Some(1), "{}", node.stderr());
    node.stderr()
}

#[test]
fn x12_shared_directory_is_refused() {
    let data = fresh_data();
    fs::create_dir_all(data.join("public_html")).expect("a folder");
    chmod(&data, 0o755);
    let said = refused(&data, &[]);
    assert!(said.contains("can't be used") && said.contains("`chmod 700`"), "{said}");
    assert_eq!(fs::metadata(&data).expect("the path exists").mode() & 0o777, 0o755, "left as it was");
    fs::remove_dir_all(data.join("public_html")).expect("the path exists");
    // Only root can change the owner of a directory; the unit tests of `private` cover the rest.
    if geteuid().is_root() {
        chown(&data, Some(12_345), None).expect("root may");
        let said = refused(&data, &[]);
        assert!(said.contains("uid 12345") && said.contains("`chown`"), "{said}");
        assert!(!data.join("token.key").exists(), "nothing was written into it");
    }
    fs::remove_dir_all(data).ok();
}

#[test]
fn x12_world_readable_secrets_are_refused() {
    let (data, keys) = (fresh_data(), fresh_data());
    fs::create_dir_all(&keys).expect("a folder");
    let file = |name: &str| -> PathBuf {
        let file = keys.join(name);
        auth::create_key(&file).expect("a file");
        file
    };
    let (token, secret) = (format!("auth.key_file={}", file("token.key").display()), file("secret"));
    let mut sets = vec!["node.profile=cluster", "kafka.brokers=[127.0.0.1:1]", &token];
    sets.extend(["redis.urls=[redis://127.0.0.1:1]", "postgres.url=postgres://nobody@127.0.0.1:1/none"]);
    sets.extend(["kafka.security=sasl_plaintext", "kafka.sasl_mechanism=PLAIN", "kafka.sasl_username=me"]);
    let named = format!("kafka.sasl_password_file={}", file("password").display());
    sets.push(&named);
    chmod(&secret, 0o644);
    for key in
        ["link.secret_file", "redis.password_file", "postgres.password_file", "kafka.sasl_password_file"]
    {
        let open = format!("{key}={}", secret.display());
        let said = refused(&data, &[&sets[..], &[&open]].concat());
        assert!(said.contains(key) && said.contains("`chmod 600`"), "{key}: {said}");
    }
    fs::remove_dir_all(keys).ok();
    fs::remove_dir_all(data).ok();
}
