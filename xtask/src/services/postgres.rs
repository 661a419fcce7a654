//! PostgreSQL from the Debian package, with a database of its own; it trusts every connection over loopback, with TLS or without.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt as _},
    path::PathBuf,
    process::Command,
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{Start, certificate, process::Process};
use crate::{
    shell::{self, Shell},
    tools,
};

/// The folder of the packages of Debian and its kin, with one folder for each version.
const VERSIONS: &str = "/usr/lib/postgresql";
const NAME: &str = "tidegate";

/// Settings of a server that need not outlive a crash of the machine: it writes less, and waits for no disk. Tests make hundreds
/// of databases.
const UNSYNCED: &[&str] = &["fsync=off", "full_page_writes=off", "wal_init_zero=off"];

/// The folder of the newest version's programs.
pub(super) fn install(shell: &Shell) -> anyhow::Result<PathBuf> {
    tools::ensure_program(shell, "openssl", "openssl")?;
    if newest().is_none() && !shell::have("initdb") {
        tools::install(shell, "postgresql").context(
            "PostgreSQL is missing and could not be installed; get the package `postgresql` of your system",
        )?;
    }
    match newest() {
        Some(folder) => Ok(folder),
        None if shell::have("initdb") => Ok(PathBuf::new()),
        None => bail!("the package `postgresql` has no programs below {VERSIONS}"),
    }
}

fn newest() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let numbered = versions.filter_map(|path| {
        let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let programs = path.join("bin");
        programs.join("initdb").is_file().then_some((number, programs))
    });
    numbered.max().map(|(_, programs)| programs)
}

/// The user and group of the package, where this process is root, which may not run the server.
fn user() -> anyhow::Result<Option<(u32, u32)>> {
    if !shell::is_root()? {
        return Ok(None);
    }
    let number = |words: &[&str]| -> anyhow::Result<u32> {
        let (printed, _) = shell::output(Command::new("id").args(words))?;
        Ok(printed.trim().parse()?)
    };
    let missing = "root may not run PostgreSQL, and there is no user `postgres` to run it as";
    let ids = number(&["-u", "postgres"]).and_then(|user| Ok((user, number(&["-g", "postgres"])?)));
    Ok(Some(ids.context(missing)?))
}

fn command(start: &Start<'_>, name: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(start.program.join(name));
    if let Some((user, group)) = user()? {
        command.uid(user).gid(group);
    }
    command.current_dir(start.folder);
    Ok(command)
}

pub(super) fn start(shell: &Shell, start: &Start<'_>) -> anyhow::Result<Process> {
    if let Some((user, group)) = user()? {
        chown(start.folder, Some(user), Some(group))?;
        if shell::output(command(start, "initdb")?.arg("--version")).is_err() {
            bail!(
                "the user `postgres` can't reach {}; set CARGO_TARGET_DIR to a folder that others may enter",
                start.folder.display()
            );
        }
    }
    let data = start.folder.join("data");
    let mut create = command(start, "initdb")?;
    create.args(["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", NAME]);
    shell::output(create.arg("--pgdata").arg(&data))?;
    certificate::make(start.folder, user()?)?;
    let mut server = command(start, "postgres")?;
    let port = start.port.to_string();
    let settings = [
        "ssl=on",
        "ssl_cert_file=../cert.pem",
        "ssl_key_file=../key.pem",
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "max_connections=500",
        "shared_buffers=64MB",
    ];
    server.arg("-D").arg(&data).args(["-p", &port]);
    let more: &[&str] = if shell.are_synced { &[] } else { UNSYNCED };
    server.args(settings.iter().chain(more).flat_map(|setting| ["-c", setting]));
    Process::start(&mut server, &start.log())
}

pub(super) fn answers(start: &Start<'_>) -> anyhow::Result<Value> {
    let port = start.port.to_string();
    let client = |program: &str, words: &[&str]| {
        let mut command = Command::new(start.program.join(program));
        command.env("PGCONNECT_TIMEOUT", "5");
        shell::output(command.args(["--host=127.0.0.1", "--port", &port, "--username", NAME]).args(words))
    };
    let ask = ["--dbname", "postgres", "--no-psqlrc", "--tuples-only", "--command"];
    let (made, _) = client(
        "psql",
        &[&ask[..], &["SELECT count(*) FROM pg_database WHERE datname = 'tidegate'"]].concat(),
    )?;
    if made.trim() == "0" {
        client("createdb", &[NAME])?;
    }
    Ok(json!({
        "url": format!("postgres://{NAME}@{}/{NAME}", start.address()),
        "user": NAME,
        "database": NAME,
        "programs": start.program,
        "authority": start.folder.join("ca.pem"),
    }))
}
