//! `tidegate store`: checks, counts, exports and imports the store of a stopped node, as JSON lines.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Subcommand, ValueEnum};

use crate::{
    config::Config,
    embedded::{Offline, Stats},
    node::import,
    private,
};

/// Arguments of `tidegate store`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate store check                                verify every row
  tidegate store stats --json                         count what is stored
  tidegate store export --output old.jsonl            everything, as JSON lines
  tidegate store import old.jsonl --data new          into a data directory without a store
  tidegate store import old.jsonl --profile cluster --config node.toml
                                                      into the empty services of a cluster

The node must be stopped; docs/store.md describes the format.";

#[derive(Subcommand, Debug)]
enum Command {
    /// Read everything and list each fault; exit code 1 if there is any
    Check {
        #[command(flatten)]
        data: super::DataArg,
    },
    /// Count what is stored, and the bytes on the disk
    Stats {
        #[command(flatten)]
        data: super::DataArg,
        /// Print one JSON object instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Write everything as JSON lines
    Export {
        #[command(flatten)]
        data: super::DataArg,
        /// File to write; an existing one is not overwritten; - is standard output
        #[arg(long, short, value_name = "FILE", default_value = "-")]
        output: PathBuf,
    },
    /// Import an export into a data directory without a store, or into the empty services of a cluster: all of it, or
    /// nothing
    Import(Import),
}

#[derive(clap::Args, Debug)]
struct Import {
    /// Export to read; - is standard input
    #[arg(value_name = "FILE")]
    input: PathBuf,
    #[command(flatten)]
    data: super::DataArg,
    /// Only check whether the import would work
    #[arg(long)]
    dry_run: bool,
    /// Target: the data directory, or the Kafka and Postgres of a configuration
    #[arg(long, value_enum, default_value_t = Profile::Single)]
    profile: Profile,
    /// With --profile cluster: configuration file (TOML) of a node of that cluster
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CONFIG")]
    config: Option<PathBuf>,
    /// With --profile cluster: any configuration key, as section.key=value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    Single,
    Cluster,
}

/// Runs the subcommand.
///
/// # Errors
/// The store can't be opened (a node runs, there is none, it is damaged) or has faults, or an export is invalid.
pub fn run(args: &Args) -> anyhow::Result<()> {
    private::close_new_files();
    match &args.command {
        Command::Check { data } => check(&store_of(&data.data)),
        Command::Stats { data, json } => stats(&store_of(&data.data), *json),
        Command::Export { data, output } => export(&store_of(&data.data), output),
        Command::Import(args) => import(args),
    }
}

/// Returns the path of a node's store.
fn store_of(data: &Path) -> PathBuf {
    data.join("store")
}

fn check(path: &Path) -> anyhow::Result<()> {
    let store = Offline::open(path)?;
    let mut out = io::stdout().lock();
    let mut lost = None;
    let found = store.check(&mut |what| {
        if let Err(error) = writeln!(out, "fault: {what}") {
            lost.get_or_insert(error);
        }
    });
    if found.faults > 0 {
        anyhow::bail!(
            "{} has {} faults in {} rows: restore it from a backup; the disk may be failing",
            path.display(),
            found.faults,
            found.looked_at
        );
    }
    writeln!(out, "{} is sound: {} rows of all kinds checked", path.display(), found.looked_at)?;
    if found.keys_alone > 0 {
        writeln!(out, "{} dedup keys outlive their messages, which retention removed", found.keys_alone)?;
    }
    Ok(())
}

fn stats(path: &Path, json: bool) -> anyhow::Result<()> {
    let stats = Offline::open(path)?.stats()?;
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string(&stats)?)?;
    } else {
        table(&stats, &mut out)?;
    }
    Ok(())
}

fn table(stats: &Stats, out: &mut dyn Write) -> io::Result<()> {
    let counts = [
        ("format", stats.format.into()),
        ("conversations", stats.conversations),
        ("  direct", stats.direct),
        ("  ended groups", stats.deleted),
        ("members", stats.members),
        ("  former", stats.former_members),
        ("rows", stats.rows),
        ("  messages", stats.messages),
        ("  recalled", stats.recalled),
        ("devices", stats.devices),
        ("read marks", stats.marks),
        ("user settings", stats.settings),
        ("revocations", stats.revocations),
        ("blocks", stats.blocks),
        ("guard entries", stats.guard),
        ("dedup keys", stats.keys),
        ("bytes", stats.total_bytes),
        ("  state", stats.state_bytes),
        ("  rows", stats.rows_bytes),
        ("  dedup keys", stats.keys_bytes),
        ("  journals", stats.journal_bytes),
        ("  a message", stats.bytes_per_message),
    ];
    for (name, count) in counts {
        writeln!(out, "{name:<16} {count:>16}")?;
    }
    for part in &stats.partitions {
        writeln!(
            out,
            "partition {}: archived to {}, {} log records, {} waiting, keys from {}",
            part.number, part.position, part.log_records, part.log_waiting, part.keys_from
        )?;
    }
    Ok(())
}

fn export(path: &Path, output: &Path) -> anyhow::Result<()> {
    let store = Offline::open(path)?;
    let to: Box<dyn Write> = if output == Path::new("-") {
        Box::new(io::stdout().lock())
    } else {
        let file = private::options().create_new(true).open(output).with_context(|| {
            format!(
                "--output {} can't be created; name a file that does not exist, in a directory that does",
                output.display()
            )
        })?;
        if !private::is_closed(&file)? {
            std::fs::remove_file(output).ok();
            anyhow::bail!(
                "{}: its file system gives every account access to new files; name a file on another one",
                output.display()
            );
        }
        Box::new(SyncOnFlush(file))
    };
    let mut to = BufWriter::new(to);
    let lines = store.export(&mut to)?;
    to.flush().with_context(|| format!("{} can't be written", output.display()))?;
    eprintln!("exported {lines} lines");
    Ok(())
}

/// File that is synced to the disk by a flush.
struct SyncOnFlush(File);

impl Write for SyncOnFlush {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

fn import(args: &Import) -> anyhow::Result<()> {
    let Import { input, dry_run, .. } = args;
    let mut from: Box<dyn BufRead> = if input == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = private::open(input);
        let file = file.with_context(|| format!("the export {} can't be read", input.display()))?;
        Box::new(BufReader::new(file))
    };
    let of_export = || format!("import of {}", input.display());
    let (lines, to) = match args.profile {
        Profile::Single => {
            if !*dry_run {
                let data = &args.data.data;
                private::enter(data).with_context(|| {
                    format!("the data directory {} (--data) can't be used", data.display())
                })?;
            }
            let path = store_of(&args.data.data);
            let lines = Offline::import(&path, &mut from, *dry_run).with_context(of_export)?;
            (lines, path.display().to_string())
        }
        Profile::Cluster => {
            let sets: Vec<String> =
                args.set.iter().cloned().chain(["node.profile=cluster".to_owned()]).collect();
            let config = Config::load(args.config.as_deref(), &sets)?;
            let to = format!("the {} partitions of {}", config.kafka.partitions, config.kafka.topic);
            (import::into_cluster(&config, &mut from, *dry_run).with_context(of_export)?, to)
        }
    };
    let done = if *dry_run { "would import" } else { "imported" };
    eprintln!("{done} {lines} lines into {to}");
    Ok(())
}
