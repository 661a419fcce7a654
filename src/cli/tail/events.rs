//! `tidegate tail --events`: the events of one node or several, one JSON line each, as CloudEvents.

use std::{
    io::Write as _,
    net::SocketAddr,
    path::PathBuf,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::Instant,
};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Args, PATIENCE, TRY_EVERY};
use crate::cli::{admin::Admin, find};

/// How long a node is to wait for an event before it answers, in ms.
const WAIT_MS: u64 = 20_000;

/// Lines that wait to be printed.
const LINES: usize = 1_000;

/// An answer of `GET /v1/events`.
#[derive(Deserialize)]
struct Answer<'a> {
    node: String,
    cursor: String,
    missed: bool,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// What a follower has to say.
enum Heard {
    Event(String),
    /// It goes on no more.
    Ended(anyhow::Error),
}

/// Prints events until enough were shown.
///
/// # Errors
/// No node answers, or the last of those that were followed is gone for longer than a restart takes.
pub(super) fn follow(args: &Args) -> anyhow::Result<()> {
    let addresses = addresses(args)?;
    let (tell, heard) = sync_channel(LINES);
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut following = addresses.len();
    let data = Some(&args.data.data).filter(|_| args.admin.is_empty() && following == 1);
    for address in addresses {
        let follower = Follower { address, data: data.cloned() };
        let (tell, kept) = (tell.clone(), args.kept);
        // They end with the process.
        thread::Builder::new().name("follow".to_owned()).spawn(move || follower.run(kept, &tell))?;
    }
    drop(tell);
    while left > 0 {
        match heard.recv().context("nobody follows any more")? {
            Heard::Event(line) => {
                let mut out = std::io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    // Whoever read this has seen enough.
                    return Ok(());
                }
                left -= 1;
            }
            Heard::Ended(why) => {
                following -= 1;
                if following == 0 {
                    return Err(why);
                }
                eprintln!("{why:#}");
            }
        }
    }
    Ok(())
}

fn addresses(args: &Args) -> anyhow::Result<Vec<SocketAddr>> {
    if !args.admin.is_empty() {
        return Ok(args.admin.clone());
    }
    let other_way = "name its directory with --data or the admin ports with --admin";
    Ok(find::nodes(&args.data.data, other_way)?.into_iter().map(|node| node.admin).collect())
}

/// Follows one node.
struct Follower {
    address: SocketAddr,
    /// Where the only one that is followed says where it listens.
    data: Option<PathBuf>,
}

impl Follower {
    fn run(mut self, kept: bool, tell: &SyncSender<Heard>) {
        let mut cursor = if kept { None } else { Some("end".to_owned()) };
        let mut lost: Option<Instant> = None;
        loop {
            match self.ask(cursor.as_deref(), tell) {
                Ok(next) => {
                    cursor = Some(next);
                    lost = None;
                }
                Err(why) if lost.is_some_and(|since| since.elapsed() > PATIENCE) => {
                    tell.send(Heard::Ended(why)).ok();
                    return;
                }
                Err(why) => {
                    if lost.is_none() {
                        eprintln!("{}: {why:#}; trying again", self.address);
                    }
                    lost.get_or_insert_with(Instant::now);
                    thread::sleep(TRY_EVERY);
                    self.look();
                }
            }
        }
    }

    /// One question; where to go on.
    fn ask(&self, cursor: Option<&str>, tell: &SyncSender<Heard>) -> anyhow::Result<String> {
        let after = cursor.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        // What is first heard of a node is heard at once: from then on nothing is missed.
        let wait_ms = if cursor == Some("end") { 0 } else { WAIT_MS };
        let path = format!("/v1/events?wait_ms={wait_ms}{after}");
        let (status, body) = Admin::connect(&self.address.to_string())?.request("GET", &path, "")?;
        if status != 200 {
            bail!("{path}: {status} {body}");
        }
        let answer: Answer<'_> = serde_json::from_str(&body).context("not an answer of a node")?;
        if wait_ms == 0 {
            eprintln!("following {}", answer.node);
        }
        if answer.missed {
            eprintln!(
                "{}: some events are missing here: it started anew, or keeps them no more",
                answer.node
            );
        }
        for event in answer.events {
            tell.send(Heard::Event(event.get().to_owned())).context("enough was shown")?;
        }
        Ok(answer.cursor)
    }

    /// A node that started anew may listen elsewhere.
    fn look(&mut self) {
        if let Some(node) = self.data.as_ref().and_then(|data| find::node(data, "").ok()) {
            self.address = node.admin;
        }
    }
}
