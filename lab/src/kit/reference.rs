//! `tidegate-lab kit-reference`: adapter of a small client, which shows that the kit is right and, with planted faults,
//! that it can fail.

mod client;
mod conversation;
mod machine;
mod outbox;
mod pace;
mod presence;
mod refresh;
mod session;

use std::{
    collections::{HashMap, HashSet},
    io::Write as _,
    sync::Arc,
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    sync::mpsc,
    task::JoinHandle,
    time::timeout,
};

use client::Client;
use machine::Machine;

/// Commands of a client that wait.
const COMMANDS_MAX: usize = 256;

/// Time of a client to end. One that is just logging in ends later.
const DROP_TIMEOUT: Duration = Duration::from_millis(50);

/// Fault that is planted into the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum PlantedFault {
    /// Pushes are not acknowledged.
    NoAck,
    /// Pushes above a hole are acknowledged.
    AckHoles,
    /// A repeated send keeps its `attempt`.
    KeepAttempt,
    /// A repeated send has another `msgId`.
    NewMsgId,
    /// Duplicates are reported.
    ReportDuplicates,
    /// A client that was replaced connects again.
    ReconnectReplaced,
    /// `retryAfterMs` and `afterMs` are ignored.
    Hurry,
    /// The wait before a reconnect does not double.
    NoBackOff,
    /// A refused token is used again.
    KeepToken,
    /// Holes are not pulled.
    IgnoreHoles,
    /// Nothing is asked after a login.
    NoSync,
    /// The content of a recalled message is reported.
    ReportRecalled,
    /// The content of an edit is reported after that of a later one.
    ReportOldEdits,
    /// No sign of life is sent.
    NoPing,
    /// The silence of the node is ignored.
    IgnoreSilence,
    /// `goAway` is ignored.
    IgnoreGoAway,
    /// A chained send names the message after it, answered or not.
    ChainAnswered,
    /// A message to a room does not wait for an earlier one that waits for its retry.
    OvertakeInRoom,
    /// Rooms are not joined again.
    NoRejoin,
    /// The token of a connection is not replaced.
    NoRefresh,
    /// Parts of the protocol that the node does not have are used.
    IgnoreFeatures,
    /// A complete report of a watch does not replace the list.
    MergeReports,
}

/// Arguments of the command.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Faults to plant
    #[arg(long, value_enum, value_delimiter = ',')]
    pub fault: Vec<PlantedFault>,
}

/// Faults of all clients of the process.
type Faults = Arc<HashSet<PlantedFault>>;

/// What a `store` keeps of a client that was dropped.
type Stores = Arc<Mutex<HashMap<String, Machine>>>;

/// Serves commands from stdin until its end.
pub fn run(args: &Args) -> Result<()> {
    let faults = Arc::new(args.fault.iter().copied().collect());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(faults))
}

async fn serve(faults: Faults) -> Result<()> {
    let mut hub = Hub { faults, stores: Stores::default(), groups: HashMap::new(), keys: HashMap::new() };
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let command: Value = serde_json::from_str(&line)?;
        match command["do"].as_str().unwrap_or_default() {
            "describe" => emit(&json!({
                "event": "description", "name": "reference", "version": env!("CARGO_PKG_VERSION"),
                "levels": ["L0", "L1", "L2", "L3"],
                "transports": ["tcp-json", "ws-json", "tcp-proto", "ws-proto"],
                "can": ["random", "store", "tabs", "online", "refresh", "react", "edit", "edits", "flags", "json", "roomStats", "watch"],
            })),
            "connect" => hub.connect(command),
            "drop" => hub.leave(&command).await,
            known if machine::COMMANDS.contains(&known) => hub.forward(command),
            other => emit(&json!({
                "event": "unsupported", "do": other, "client": command["client"], "as": command["as"],
            })),
        }
    }
    Ok(())
}

/// Tabs that share a client; an ordinary client has one.
type Members = Arc<Mutex<Vec<String>>>;

/// A client that runs in one of its tabs.
struct Group {
    /// The command that a tab which takes over connects with.
    connect: Value,
    members: Members,
    commands: mpsc::Sender<Value>,
    task: JoinHandle<()>,
}

/// All clients of the process.
struct Hub {
    faults: Faults,
    stores: Stores,
    groups: HashMap<String, Group>,
    /// Group of each tab.
    keys: HashMap<String, String>,
}

impl Hub {
    fn connect(&mut self, mut command: Value) {
        let name = command["client"].as_str().unwrap_or_default().to_owned();
        let key = match command["options"]["tabs"].as_str() {
            Some(tabs) => format!("tabs {tabs}"),
            None => format!("client {name}"),
        };
        self.keys.insert(name.clone(), key.clone());
        if let Some(group) = self.groups.get(&key) {
            group.members.lock().push(name);
            command["do"] = "attach".into();
            group.commands.try_send(command).ok();
            return;
        }
        if command["options"]["tabs"].is_string() {
            // What the tab with the connection knows is there for the one that takes over.
            command["options"]["store"] = key.as_str().into();
        }
        self.start(key, command, Arc::new(Mutex::new(vec![name])));
    }

    fn start(&mut self, key: String, connect: Value, members: Members) {
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        match Client::new(&connect, &members, &self.faults, &self.stores) {
            Ok(client) => {
                let task = tokio::spawn(Box::pin(client.run(inbox)));
                self.groups.insert(key, Group { connect, members, commands, task });
            }
            Err(error) => eprintln!("{connect}: {error:#}"),
        }
    }

    /// Ends a tab, and with the first one its connection, which the next tab takes over.
    async fn leave(&mut self, command: &Value) {
        let name = command["client"].as_str().unwrap_or_default();
        let Some(key) = self.keys.remove(name) else { return };
        let Some(group) = self.groups.get(&key) else { return };
        let is_first = {
            let mut members = group.members.lock();
            let is_first = members.first().is_some_and(|first| first == name);
            members.retain(|member| member != name);
            is_first
        };
        if !is_first {
            return;
        }
        let Some(Group { connect, members, commands, task }) = self.groups.remove(&key) else { return };
        commands.try_send(command.clone()).ok();
        // What the client leaves in its store is there for the next one.
        timeout(DROP_TIMEOUT, task).await.ok();
        if !members.lock().is_empty() {
            self.start(key, connect, members);
        }
    }

    fn forward(&self, command: Value) {
        let key = self.keys.get(command["client"].as_str().unwrap_or_default());
        if let Some(group) = key.and_then(|key| self.groups.get(key)) {
            group.commands.try_send(command).ok();
        }
    }
}

/// Writes an event as one line.
fn emit(event: &Value) {
    let mut out = std::io::stdout().lock();
    // The kit has gone; the end of stdin follows.
    writeln!(out, "{event}").and_then(|()| out.flush()).ok();
}
