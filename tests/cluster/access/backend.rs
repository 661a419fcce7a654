//! The back end of `docs/backend.md` over two nodes, of which the one that it talks to is killed.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use crate::support::Cluster;

#[test]
fn back_end_goes_on_when_its_node_is_killed() {
    let mut cluster = Cluster::start(2, &[]);
    let nodes: Vec<String> = (0..2).map(|nth| format!("http://{}", cluster.node(nth).admin())).collect();
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate");
    let mut back_end = Command::new("python3")
        .arg(Path::new(&root).join("tests/third_party/backend/backend.py"))
        .arg(nodes.join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut go_on = back_end.stdin.take().expect("a pipe");
    let mut lines = Vec::new();
    for line in BufReader::new(back_end.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if line == "half" {
            cluster.kill(0);
            writeln!(go_on).expect("it reads");
        }
        lines.push(line);
    }
    let end = back_end.wait().expect("it ends");
    assert!(end.success(), "{lines:?}");
    let [opened, half, stored, read, closed] = &lines[..] else { panic!("{lines:?}") };
    assert!(opened.starts_with("opened g:order-") && half == "half", "{lines:?}");
    assert_eq!(stored, "all 20 are stored, once each and in order");
    assert_eq!((read.as_str(), closed.as_str()), ("ann has read everything", "closed: NOT_FOUND"));
}
