//! `tidegate send` and `tail` over TLS: by option, by scheme and by assignment, with cures where a connection fails.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::{Process, eventually, unique_name};

/// Starts a node that speaks TLS alone, with a certificate of the folder's authority.
fn node(folder: &Path) -> Process {
    let mut cert = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let output = cert.arg("cert").arg("--out").arg(folder).output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    let file = |name: &str| folder.join(name).display().to_string();
    let (cert, key) = (file("node.pem"), file("node.key"));
    let sets = [format!("tls.cert_files=[{cert}]"), format!("tls.key_files=[{key}]")];
    Process::start(&[sets[0].as_str(), sets[1].as_str(), "tls.required=true", "node.store=memory"])
}

#[test]
fn send_and_tail_speak_tls_and_name_the_cure_where_they_fail() {
    let folder = std::env::temp_dir().join(format!("tidegate-commands-{}", unique_name()));
    let node = node(&folder);
    let port = node.address().port();
    let authority = folder.join("ca.pem").display().to_string();
    let command = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).arg("--data").arg(node.data()).stdin(Stdio::null());
        command.env_remove("TIDEGATE_ADMIN_CA");
        command
    };
    let send = |words: &[&str]| {
        let all = [&["send", "--user", "alice", "--to", "bob"], words, &["--", "hello"]].concat();
        // The options come before the text.
        let mut send = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        send.args(&all[..5]).arg("--data").arg(node.data()).args(&all[5..]);
        let output = send.output().expect("the binary runs");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    let (out, err) = (folder.join("tail.out"), folder.join("tail.err"));
    let mut tail = command(&["tail", "--user", "bob", "--count", "4", "--tls", "--ca", &authority])
        .stdout(File::create(&out).expect("a file"))
        .stderr(File::create(&err).expect("a file"))
        .spawn()
        .expect("the binary runs");
    let said = || fs::read_to_string(&err).unwrap_or_default();
    eventually("the tail listens", || said().contains("listening as bob").then_some(()));
    let (by_name, by_address) = (format!("wss://localhost:{port}"), format!("127.0.0.1:{port}"));
    let assign = format!("https://localhost:{port}");
    for words in [
        &["--server", &by_name, "--ca", &authority][..],
        &["--server", &by_address, "--tls", "--ca", &authority, "--server-name", "localhost"],
        &["--assign", &assign, "--ca", &authority],
        &["--tls", "--ca", &authority],
    ] {
        let (is_sent, said) = send(words);
        assert!(is_sent && said.contains("seq"), "{words:?}: {said}");
    }
    for (words, cure) in [
        (&["--server", &by_name][..], "--ca"),
        (&["--server", &by_name, "--ca", &authority, "--server-name", "n9.example"], "--server-name"),
        (&["--server", &by_address], "--tls"),
        (&["--server", &by_address, "--ca", &authority], "--tls"),
        (&["--server", &format!("ws://{by_address}"), "--tls"], "wss://"),
        (&["--server", &by_name, "--ca", "/dev/null"], "--ca"),
    ] {
        let (is_sent, said) = send(words);
        assert!(!is_sent && said.contains(cure), "{words:?}: {said}");
    }
    let status = eventually("the tail ends after four messages", || tail.try_wait().expect("a child"));
    assert!(status.success(), "{}", said());
    assert_eq!(fs::read_to_string(&out).expect("its output").matches("hello").count(), 4);
    drop(node);
    fs::remove_dir_all(folder).ok();
}
