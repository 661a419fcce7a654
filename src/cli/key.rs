//! `tidegate key`: creates, lists and revokes keys of the admin port, in the file that nodes read them from.
//!
//! Keys are created on the host only, and not over the network, so that a stolen key can't create another one. The admin
//! API lists and revokes them too.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tidegate_protocol::id::check_id;

mod arg;
mod context;

pub use self::{
    arg::KeyArg,
    context::{ContextArgs, contexts},
};
use crate::{
    clock::{rfc3339, wall_ms},
    config::Config,
    keys::{KEYS_MAX, KeyEntry, KeyFileLock, Scope, SecretKey, load_keys},
    networks::Network,
    private,
};

/// Arguments of `tidegate key`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Create a key and print it, once; running nodes accept it within two seconds
    Add(AddArgs),
    /// List the keys, without their secrets
    List(ListArgs),
    /// Revoke a key, permanently; running nodes refuse it within two seconds
    Revoke(RevokeArgs),
}

/// Option with the file of the keys.
#[derive(clap::Args, Debug)]
struct FileArg {
    /// File with the keys (admin.keys_file); it has hashes and no secrets
    #[arg(long, value_name = "FILE", env = "TIDEGATE__ADMIN__KEYS_FILE")]
    file: Option<PathBuf>,
    /// Configuration file of the node (TOML), which names the file of the keys
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG", conflicts_with = "file")]
    config: Option<PathBuf>,
}

/// Arguments of `tidegate key add`.
#[derive(clap::Args, Debug)]
#[command(after_help = SCOPES)]
struct AddArgs {
    /// Name of the key, for lists and the audit log
    name: String,
    /// Scope of the key; may be repeated, or separated by commas
    #[arg(long, value_name = "SCOPE", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// Lifetime of the key, as a number with d, h, m or s, such as 90d; default: it does not expire
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    ttl: Option<Duration>,
    /// Network from which the key may be used, such as 10.0.0.0/8; may be repeated; default: any
    #[arg(long, value_name = "NETWORK", value_delimiter = ',')]
    network: Vec<Network>,
    /// Write the key to a new file, mode 600, and do not print it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    file: FileArg,
}

const SCOPES: &str = "\
Scopes:
  read      nodes, presence, events, groups and their members, without the content of messages;
            every other scope except evidence includes it
  content   what people wrote: histories and newest messages
  messages  send and recall as any user or the system; marks of users
  groups    create, change and delete groups
  users     close connections, revoke tokens, change block lists; tokens for development
  operate   drain, weight, limits, bans, storms, traces, settings; lists and revokes keys
  evidence  report the access log of a gateway, and nothing else";

/// Arguments of `tidegate key list`.
#[derive(clap::Args, Debug)]
struct ListArgs {
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: FileArg,
}

/// Arguments of `tidegate key revoke`.
#[derive(clap::Args, Debug)]
struct RevokeArgs {
    /// Id or name of the key
    #[arg(value_name = "ID|NAME")]
    key: String,
    #[command(flatten)]
    file: FileArg,
}

/// Changes or lists the keys.
///
/// # Errors
/// The file can't be used, or there is no such key.
pub fn run(args: &Args) -> anyhow::Result<()> {
    private::close_new_files();
    match &args.command {
        Command::Add(args) => add(args),
        Command::List(args) => list(args),
        Command::Revoke(args) => revoke(args),
    }
}

impl FileArg {
    fn path(&self) -> anyhow::Result<PathBuf> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        if self.config.is_some() {
            let file = Config::load(self.config.as_deref(), &[])?.admin.keys_file;
            if !file.as_os_str().is_empty() {
                return Ok(file);
            }
        }
        bail!(
            "no file of keys: name it with --file, the one of admin.keys_file; `tidegate key add` creates it if it is missing"
        )
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    let wrong = || "write a number with d, h, m or s, such as 90d".to_owned();
    let unit = match text.chars().last() {
        Some('d') => 86_400,
        Some('h') => 3_600,
        Some('m') => 60,
        Some('s') => 1,
        _ => return Err(wrong()),
    };
    let count: u32 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    if count == 0 {
        return Err(wrong());
    }
    Ok(Duration::from_secs(u64::from(count) * unit))
}

fn open(path: &Path) -> anyhow::Result<KeyFileLock> {
    KeyFileLock::open(path).with_context(|| unusable(path))
}

fn unusable(path: &Path) -> String {
    format!("the file of keys {} can't be used", path.display())
}

fn add(args: &AddArgs) -> anyhow::Result<()> {
    check_id(&args.name).with_context(|| format!("name {:?}", args.name))?;
    let path = args.file.path()?;
    let mut file = open(&path)?;
    let now = wall_ms();
    if file.entries.iter().any(|entry| entry.name == args.name && entry.is_in_force(now)) {
        bail!("a key named {} is in force: choose another name, or revoke it first", args.name);
    }
    if file.entries.len() >= KEYS_MAX {
        // What is refused anyway makes room.
        let oldest = file.entries.iter().position(|entry| !entry.is_in_force(now));
        let oldest = oldest.with_context(|| format!("{KEYS_MAX} keys are in force: revoke some"))?;
        file.entries.remove(oldest);
    }
    let key = loop {
        let key = SecretKey::random();
        if !file.entries.iter().any(|entry| entry.id == key.id()) {
            break key;
        }
    };
    let mut scopes = args.scope.clone();
    scopes.sort_unstable();
    scopes.dedup();
    file.entries.push(KeyEntry {
        id: key.id().to_owned(),
        name: args.name.clone(),
        scopes,
        sha256: key.hash(),
        created_ms: now,
        expires_ms: args
            .ttl
            .map(|ttl| now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))),
        networks: args.network.clone(),
        revoked_ms: None,
    });
    // The key first: an entry whose key nobody has would be of no use.
    if let Some(out) = &args.out {
        let created = private::options().create_new(true).open(out);
        let written =
            created.and_then(|mut file| writeln!(file, "{}", key.text()).and_then(|()| file.sync_all()));
        written.with_context(|| format!("{} (--out) can't be created", out.display()))?;
    }
    if let Err(error) = file.save() {
        args.out.iter().for_each(|out| std::fs::remove_file(out).unwrap_or_default());
        return Err(error).with_context(|| unusable(&path));
    }
    let line = file.entries.last().map(describe).unwrap_or_default();
    match &args.out {
        Some(out) => eprintln!("created {line}; the key is in {}", out.display()),
        None => {
            eprintln!("created {line}; this is the key, which is shown only now:");
            println!("{}", key.text());
        }
    }
    Ok(())
}

fn list(args: &ListArgs) -> anyhow::Result<()> {
    let path = args.file.path()?;
    let entries = load_keys(&path).with_context(|| unusable(&path))?;
    if args.json {
        let now = wall_ms();
        entries.iter().for_each(|entry| println!("{}", entry.view(now)));
        return Ok(());
    }
    print!("{}", table(&entries));
    Ok(())
}

fn revoke(args: &RevokeArgs) -> anyhow::Result<()> {
    let path = args.file.path()?;
    if !path.exists() {
        bail!("{}: there is no such file; name the one of admin.keys_file with --file", path.display());
    }
    let mut file = open(&path)?;
    let is_it = |entry: &&mut KeyEntry| {
        entry.revoked_ms.is_none() && (entry.id == args.key || entry.name == args.key)
    };
    let found: Vec<&mut KeyEntry> = file.entries.iter_mut().filter(is_it).collect();
    let [entry] = <[_; 1]>::try_from(found).map_err(|found: Vec<_>| match found.len() {
        0 => anyhow::anyhow!(
            "no key has the id or name {:?}, or it is revoked already: see `tidegate key list`",
            args.key
        ),
        count => {
            anyhow::anyhow!("{count} keys have the name {:?}: name the id, see `tidegate key list`", args.key)
        }
    })?;
    entry.revoked_ms = Some(wall_ms());
    let line = describe(entry);
    file.save().with_context(|| unusable(&path))?;
    eprintln!("revoked {line}");
    Ok(())
}

/// Summarises a key in one line.
fn describe(entry: &KeyEntry) -> String {
    format!("{} ({}), scopes {}", entry.id, entry.name, scopes(entry))
}

fn scopes(entry: &KeyEntry) -> String {
    entry.scopes.iter().map(|scope| scope.name()).collect::<Vec<_>>().join(",")
}

fn table(entries: &[KeyEntry]) -> String {
    let mut rows =
        vec![["ID", "NAME", "SCOPES", "STATE", "CREATED", "EXPIRES", "NETWORKS"].map(String::from)];
    let now = wall_ms();
    for entry in entries {
        let day = |ms: u64| rfc3339(ms).chars().take(10).collect::<String>();
        let networks: Vec<String> = entry.networks.iter().map(Network::to_string).collect();
        rows.push([
            entry.id.clone(),
            entry.name.clone(),
            scopes(entry),
            entry.state(now).to_owned(),
            day(entry.created_ms),
            entry.expires_ms.map_or_else(|| "never".to_owned(), day),
            if networks.is_empty() { "any".to_owned() } else { networks.join(",") },
        ]);
    }
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        // Writing to a String can't fail.
        writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end()).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_a_unit() {
        assert_eq!(lifetime("90d"), Ok(Duration::from_secs(7_776_000)));
        assert_eq!(lifetime("1s"), Ok(Duration::from_secs(1)));
        for wrong in ["", "d", "0d", "-1d", "1", "1w", "1é", "99999999999d", "1.5h"] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }
}
