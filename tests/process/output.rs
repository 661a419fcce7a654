//! Output of commands that nobody reads to its end.

use std::process::{Command, Stdio};

use crate::support::Process;

#[test]
fn a_command_ends_without_a_word_when_nobody_reads_its_output() {
    let node = Process::start(&[]);
    let mut nodes = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    nodes.args(["nodes", "--data"]).arg(node.data()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = nodes.spawn().expect("the binary runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(141), &b""[..]));
}
