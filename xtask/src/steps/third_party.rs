//! Step `third-party`: clients built on third-party libraries hold a conversation through a node, directly and behind
//! third-party proxies, and OpenSSL speaks TLS with it.

mod openssl;
mod proxies;

use std::{path::Path, process::Command};

use crate::{server::ServerNode, shell, shell::Shell, tools};

/// (name that becomes part of the users' names, program, script, words before the address, who makes the tokens)
const CLIENTS: &[(&str, Program, &str, &[&str], Issuer)] = &[
    ("ws-json", Program::Node, "chat.mjs", &["ws-json"], Issuer::BackEnd),
    ("ws-proto", Program::Node, "chat.mjs", &["ws-proto"], Issuer::Tidegate),
    ("tcp-proto", Program::Node, "chat.mjs", &["tcp-proto"], Issuer::Tidegate),
    ("websockets", Program::Python, "chat.py", &[], Issuer::Tidegate),
    ("nc", Program::Python, "nc.py", &[], Issuer::BackEnd),
];

#[derive(Clone, Copy)]
enum Program {
    Node,
    Python,
}

impl Program {
    fn command(self, python: &Path) -> Command {
        match self {
            Self::Node => Command::new("node"),
            Self::Python => Command::new(python),
        }
    }

    /// The program of `docs/tokens.md` in this language.
    fn mint(self) -> &'static str {
        match self {
            Self::Node => "tokens/mint.mjs",
            Self::Python => "tokens/mint.py",
        }
    }
}

/// The program that makes the tokens of a client's users.
#[derive(Clone, Copy)]
enum Issuer {
    /// `tidegate token`.
    Tidegate,
    /// The program of `docs/tokens.md` in the client's language, as a back end would.
    BackEnd,
}

/// Lints `protocol/tidegate` by the rules in `protocol/buf.yaml`, and checks `compose.yaml` against the Compose Specification.
pub(crate) fn schema(shell: &Shell) -> anyhow::Result<()> {
    let buf = tools::buf(shell)?;
    shell::run(Command::new(buf).arg("lint").current_dir(shell.root.join("protocol")))?;
    let check = tools::check_jsonschema(shell)?;
    // The schema comes with the program, so nothing is fetched.
    shell::run(shell.command(check).args(["--builtin-schema", "vendor.compose-spec", "compose.yaml"]))
}

/// Runs each client, the proxies and OpenSSL, and returns the number of cases.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<usize> {
    let python = tools::python(shell)?.join("python");
    let npm = tools::node(shell)?;
    let scripts = shell.root.join("tests/third_party");
    let folder = shell.scratch("third-party")?;
    let node = ServerNode::start(shell, &folder.join("node"))?;
    for (name, program, script, before, issuer) in CLIENTS {
        let mut command = program.command(&python);
        command.current_dir(&shell.root).arg(scripts.join(script)).args(*before).arg(&node.client);
        // Separate users, so that every conversation begins with seq 1.
        for person in ["alice", "bob"] {
            let user = format!("{person}-{name}");
            let token = match issuer {
                Issuer::Tidegate => node.token(&user)?,
                Issuer::BackEnd => {
                    let mut mint = program.command(&python);
                    mint.arg(scripts.join(program.mint())).arg(node.key_file()).arg(&user);
                    shell::output(&mut mint)?.0.trim().to_owned()
                }
            };
            command.args([&user, &token]);
        }
        command.env("TIDEGATE_NODE_DIR", &npm).env("PYTHONDONTWRITEBYTECODE", "1");
        shell::run(&mut command)?;
    }
    node.stop()?;
    let behind = proxies::run(shell, &shell::emptied(folder.join("proxies"))?)?;
    let handshakes = openssl::run(shell, &shell::emptied(folder.join("openssl"))?)?;
    Ok(CLIENTS.len() + behind + handshakes)
}
