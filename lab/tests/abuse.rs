//! The attacks of `tidegate-lab attack` against a node, which has to see, stop and end each of them by itself.

mod support;

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use support::{Folder, lab, node, said};

/// Running node, which ends with the test.
struct Served(Child, Option<BufReader<ChildStdout>>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts a node that treats clients of this machine as strangers; returns it with its client and its admin port.
fn serve(folder: &Folder, sets: &[&str]) -> (Served, String, String) {
    let mut command = Command::new(node());
    command.args(["serve", "--set", "listen.client=127.0.0.1:0", "--set", "listen.admin=127.0.0.1:0"]);
    command.args(["--set", &format!("node.data={}", folder.file("data")), "--set", "node.store=memory"]);
    let sets = [&["timing.order_timeout_ms=100", "log.format=text"], sets].concat();
    for set in sets {
        command.args(["--set", set]);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("its stdout"));
    let mut served = Served(child, None);
    let (mut client, mut admin) = (None, None);
    for line in stdout.by_ref().lines().map_while(Result::ok) {
        let address = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            rest.split_whitespace()
                .next()
                .map(|it| it.rsplit("//").next().unwrap_or(it).trim_end_matches('/').to_owned())
        };
        client = client.or_else(|| address("clients  "));
        admin = admin.or_else(|| address("admin    "));
        if client.is_some() && admin.is_some() {
            break;
        }
    }
    // A closed pipe would end what the node prints.
    served.1 = Some(stdout);
    (served, client.expect("a client port"), admin.expect("an admin port"))
}

#[test]
fn each_attack_is_seen_acted_on_and_ended_without_a_person() {
    let folder = Folder::fresh();
    let (_node, client, admin) = serve(&folder, &["evidence.loopback=true"]);
    let output = lab(&["attack", "--node", &client, "--admin", &admin]);
    assert!(output.status.success(), "{}", said(&output));
    for name in ["probe", "order", "spam", "storm", "flood"] {
        assert!(said(&output).contains(&format!("| {name} |")), "{}", said(&output));
    }
}

#[test]
fn node_that_does_not_act_fails_the_attack() {
    let folder = Folder::fresh();
    let (_node, client, admin) = serve(&folder, &["evidence.ban=false", "evidence.loopback=true"]);
    let output = lab(&["attack", "--node", &client, "--admin", &admin, "--attack", "probe", "--within", "1"]);
    assert!(!output.status.success() && said(&output).contains("probe: not within"), "{}", said(&output));
    let output = lab(&["attack", "--attack", "x"]);
    assert!(said(&output).contains("there are probe, order"), "{}", said(&output));
}
