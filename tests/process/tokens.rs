//! X13: tokens are printed to a terminal only, and only if the node has a key of its own.

use std::{
    fs::{self, File},
    process::Command,
};

use tidegate::auth;
use tidegate_protocol::codec::Wire;

use crate::support::{Client, Process, Screen, command, eventually, fresh_data, hello, terminal};

/// Last line of the banner of a node on loopback.
const END: &str = "or by hand";

/// Starts a node in a terminal and returns its output.
fn in_terminal(sets: &[&str]) -> (Process, String) {
    let data = fresh_data();
    let mut serve = command(&data, sets);
    let (writes, reads) = terminal();
    serve.stdout(writes);
    let node = Process::spawn(&data, serve);
    let screen = Screen::of(reads);
    screen.line("the end of the banner", |line| line.contains(END));
    (node, screen.lines().join("\n"))
}

/// Starts a node without a terminal and returns its output.
fn in_file(sets: &[&str]) -> (Process, String) {
    let data = fresh_data();
    let mut serve = command(&data, sets);
    let file = data.join("stdout");
    serve.stdout(File::create(&file).expect("a file"));
    let node = Process::spawn(&data, serve);
    let said = eventually("the banner", || fs::read_to_string(&file).ok().filter(|said| said.contains(END)));
    (node, said)
}

/// Runs the printed line with this text and returns its output.
fn typed(said: &str, what: &str) -> String {
    let line = said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("no {what} in {said}"));
    let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn log_in(node: &Process, user: &str, token: &str) {
    let mut client = Client::connect(node.address(), Wire::Tcp);
    client.login(hello(token, "phone"));
    assert_eq!(client.text(user, "m1", "to my own devices"), 1);
}

#[test]
fn x13_terminal_shows_valid_tokens() {
    let (node, said) = in_terminal(&[]);
    for user in ["alice", "bob"] {
        let after = said.split_once(&format!("token for {user}: ")).unwrap_or_else(|| panic!("{said}")).1;
        let token = after.lines().next().expect("a line").trim();
        assert!(token.starts_with("eyJ"), "{said}");
        log_in(&node, user, token);
    }
    assert!(!said.contains("a token, for development"), "{said}");
}

#[test]
fn x13_log_has_the_token_command_but_no_tokens() {
    let (node, said) = in_file(&[]);
    assert!(!said.contains("eyJ"), "{said}");
    let token = typed(&said, " token alice --data ");
    log_in(&node, "alice", &token);
}

#[test]
fn x13_tokens_of_a_given_key_are_not_printed() {
    let keys = fresh_data();
    fs::create_dir_all(&keys).expect("a folder");
    let file = keys.join("key");
    auth::create_key(&file).expect("a file");
    let set = format!("auth.key_file={}", file.display());
    for start in [in_terminal, in_file] {
        let (node, said) = start(&[&set]);
        assert!(!said.contains("eyJ"), "{said}");
        let token = typed(&said, " token alice --data ");
        log_in(&node, "alice", &token);
    }
    fs::remove_dir_all(keys).ok();
}
