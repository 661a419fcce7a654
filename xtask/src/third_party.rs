//! Clients that others wrote hold a conversation through a node.

use std::process::Command;

use crate::{server::Node, shell, shell::Shell, tools};

/// (name that becomes part of the users' names, program, script, words before the address)
const CLIENTS: &[(&str, Program, &str, &[&str])] = &[
    ("ws-json", Program::Node, "chat.mjs", &["ws-json"]),
    ("ws-proto", Program::Node, "chat.mjs", &["ws-proto"]),
    ("tcp-proto", Program::Node, "chat.mjs", &["tcp-proto"]),
    ("websockets", Program::Python, "chat.py", &[]),
    ("nc", Program::Python, "nc.py", &[]),
];

#[derive(Clone, Copy)]
enum Program {
    Node,
    Python,
}

/// Lints `protocol/tidegate` by the rules in `protocol/buf.yaml`, and checks `compose.yaml` against the Compose Specification.
pub(crate) fn schema(shell: &Shell) -> anyhow::Result<()> {
    let buf = tools::buf(shell)?;
    shell::run(Command::new(buf).arg("lint").current_dir(shell.root.join("protocol")))?;
    let check = tools::check_jsonschema(shell)?;
    // The schema comes with the program, so nothing is fetched.
    shell::run(shell.command(check).args(["--builtin-schema", "vendor.compose-spec", "compose.yaml"]))
}

/// Has each client talk; how many there are.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    let python = tools::python(shell)?.join("python");
    let npm = tools::node(shell)?;
    let scripts = shell.root.join("tests/third_party");
    let node = Node::start(shell, &shell.scratch("third-party")?)?;
    for (name, program, script, before) in CLIENTS {
        let mut command = match program {
            Program::Node => Command::new("node"),
            Program::Python => Command::new(&python),
        };
        command.current_dir(&shell.root).arg(scripts.join(script)).args(*before).arg(&node.client);
        // Users of their own, so that every conversation begins with seq 1.
        for person in ["alice", "bob"] {
            let user = format!("{person}-{name}");
            command.args([&user, &node.token(&user)?]);
        }
        command.env("TIDEGATE_NODE_DIR", &npm).env("PYTHONDONTWRITEBYTECODE", "1");
        shell::run(&mut command)?;
    }
    node.stop()?;
    Ok(CLIENTS.len())
}
