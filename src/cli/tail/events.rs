//! `tidegate tail --events`: prints the events of one or more nodes as CloudEvents, one JSON line each.

use std::{
    io::Write as _,
    path::PathBuf,
    sync::mpsc::{SyncSender, sync_channel},
    thread,
    time::Instant,
};

use anyhow::{Context as _, anyhow};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Args, RECONNECT_INTERVAL, RECONNECT_MAX, lines};
use crate::cli::{
    admin::{AdminClient, AdminTarget, find, of_context, refusal},
    http::RESPONSE_TIMEOUT,
    key::KeyArg,
};

/// How long a node may wait for an event before it answers, in ms.
const WAIT_MS: u64 = 20_000;

/// Most events that wait to be printed; then the followers wait.
const QUEUED_EVENTS_MAX: usize = 1_000;

/// Response of `GET /v1/events`.
#[derive(Deserialize)]
struct Answer<'a> {
    node: String,
    cursor: String,
    missed: bool,
    #[serde(borrow)]
    events: Vec<&'a RawValue>,
}

/// Message of a follower to the printer.
enum Update {
    Event(String),
    /// The follower has stopped, because its node is gone.
    Ended(anyhow::Error),
}

/// Prints events until enough were shown.
///
/// # Errors
/// No node answers, or all followed nodes are gone for longer than a restart takes.
pub(super) fn follow(args: &Args) -> anyhow::Result<()> {
    let targets = targets(args)?;
    args.key.key()?;
    let (updates, received) = sync_channel(QUEUED_EVENTS_MAX);
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut following = targets.len();
    let is_local = args.admin.is_empty() && args.key.admin()?.is_none();
    let data = Some(&args.data.data).filter(|_| is_local && following == 1);
    for target in targets {
        let follower = Follower { target, key: args.key.clone(), data: data.cloned() };
        let (updates, kept) = (updates.clone(), args.kept);
        // The thread ends with the process.
        thread::Builder::new().name("follow".to_owned()).spawn(move || follower.run(kept, &updates))?;
    }
    drop(updates);
    while left > 0 {
        match received.recv().context("all followers have stopped")? {
            Update::Event(event) => {
                let line = if args.json { event } else { lines::of_event(&event) };
                let mut out = std::io::stdout().lock();
                if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                    // The reader, such as `head`, has closed the pipe.
                    return Ok(());
                }
                left -= 1;
            }
            Update::Ended(why) => {
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

fn targets(args: &Args) -> anyhow::Result<Vec<AdminTarget>> {
    if !args.admin.is_empty() {
        return Ok(args.admin.clone());
    }
    if let Some(target) = of_context(&args.key)? {
        return Ok(vec![target]);
    }
    let other_way = "name its directory with --data or the admin ports with --admin";
    Ok(find::nodes(&args.data.data, other_way)?.iter().map(AdminTarget::of).collect())
}

/// Reader of the events of one node.
struct Follower {
    target: AdminTarget,
    key: KeyArg,
    /// Data directory in which the address is looked up again; only with a single followed node.
    data: Option<PathBuf>,
}

impl Follower {
    fn run(mut self, kept: bool, updates: &SyncSender<Update>) {
        let mut cursor = if kept { None } else { Some("end".to_owned()) };
        let mut lost: Option<Instant> = None;
        loop {
            match self.poll(cursor.as_deref(), updates) {
                Ok(next) => {
                    cursor = Some(next);
                    lost = None;
                }
                Err(why) if lost.is_some_and(|since| since.elapsed() > RECONNECT_MAX) => {
                    updates.send(Update::Ended(why)).ok();
                    return;
                }
                Err(why) => {
                    if lost.is_none() {
                        eprintln!("{}: {why:#}; trying again", self.target);
                    }
                    lost.get_or_insert_with(Instant::now);
                    thread::sleep(RECONNECT_INTERVAL);
                    self.refresh_address();
                }
            }
        }
    }

    /// Requests the events after `cursor`, and returns the next cursor.
    fn poll(&self, cursor: Option<&str>, updates: &SyncSender<Update>) -> anyhow::Result<String> {
        let after = cursor.map(|cursor| format!("&after={cursor}")).unwrap_or_default();
        // The first response must come at once: its cursor is where the gapless sequence of events starts.
        let wait_ms = if cursor == Some("end") { 0 } else { WAIT_MS };
        let path = format!("/v1/events?wait_ms={wait_ms}{after}");
        let mut admin = AdminClient::open(&self.target, &self.key, RESPONSE_TIMEOUT)?;
        let (status, body) = admin.request("GET", &path, "")?;
        if status != 200 {
            return Err(serde_json::from_str(&body)
                .map_or_else(|_| anyhow!("{path}: {status}"), |body| refusal(&body)));
        }
        let answer: Answer<'_> = serde_json::from_str(&body).context("this is no admin port")?;
        if wait_ms == 0 {
            eprintln!("following {}", answer.node);
        }
        if answer.missed {
            eprintln!(
                "{}: some events are missing here: the node restarted, or no longer keeps them",
                answer.node
            );
        }
        for event in answer.events {
            updates.send(Update::Event(event.get().to_owned())).context("the printer has stopped")?;
        }
        Ok(answer.cursor)
    }

    /// Reads the address again, which may differ after a restart.
    fn refresh_address(&mut self) {
        if let Some(node) = self.data.as_ref().and_then(|data| find::node(data, "").ok()) {
            self.target = AdminTarget::of(&node);
        }
    }
}
