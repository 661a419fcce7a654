//! Devices whose client is a library, driven through the adapter of the conformance kit (docs/clients/adapter.md).
//!
//! An adapter serves several devices. A command is recorded before it is written and an event after it was read, so the
//! recorded time of a request is not later than the true one, and that of an answer is not earlier: the rules on order in
//! real time accuse no library of the time that its process took. An adapter whose library has stores in files is killed
//! and started again now and then.

mod end_check;
mod machine;
mod message_names;
mod summary;
mod supervisor;

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tidegate::auth;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};

use self::{
    machine::LibraryClient,
    supervisor::{FromAdapter, Routes, Supervisor},
};
pub(super) use self::{message_names::name_messages, summary::summary};
use super::world::World;
use crate::{
    adapter::{AdapterEvents, AdapterProcess, Commands, Description},
    person::TICK_INTERVAL,
};

/// Events of a device that wait to be recorded; the adapter has to wait when there are more.
const EVENTS_MAX: usize = 4_096;

/// How long the token of a device is valid: longer than any run.
const TOKEN_TIME: Duration = Duration::from_secs(7 * 86_400);

/// Heartbeat of the clients.
const HEARTBEAT_MS: u64 = 5_000;

/// Ability of an adapter whose stores are in files, which outlive its process.
const FILES: &str = "files";

/// Ability of an adapter that reports edits.
const EDITS: &str = "edits";

/// The running adapters.
#[derive(Default)]
pub(super) struct Libraries {
    all: Vec<Library>,
    /// Directory for the files of the libraries.
    directory: PathBuf,
    kills: Arc<AtomicU64>,
}

struct Library {
    description: Description,
    routes: Routes,
    commands: Commands,
    state: State,
}

/// State of an adapter.
enum State {
    /// [`Libraries::listen`] has not routed its events yet.
    Started(Box<(Supervisor, AdapterEvents)>),
    Served {
        stop: oneshot::Sender<()>,
        supervisor: JoinHandle<Option<AdapterProcess>>,
    },
}

/// Connection of a device to its adapter, which drops the device's clients with it.
pub(super) struct Link {
    name: String,
    /// Number of the device among those of its adapter.
    number: usize,
    /// Directory for the files of its store.
    directory: PathBuf,
    /// Name of the present client.
    client: String,
    commands: Commands,
    events: mpsc::Receiver<FromAdapter>,
    description: Description,
}

impl Libraries {
    /// Starts the adapters, which keep files below a directory.
    pub(super) async fn start(commands: &[String], directory: &Path) -> anyhow::Result<Self> {
        let mut libraries =
            Self { directory: std::path::absolute(directory.join("libraries"))?, ..Self::default() };
        for command in commands {
            let (process, events, description) =
                AdapterProcess::start(command).await.with_context(|| format!("adapter {command:?}"))?;
            ensure!(!description.transports.is_empty(), "the adapter {command:?} names no transport");
            let routes = Routes::default();
            let can_files = description.can.iter().any(|it| it == FILES);
            let supervisor = Supervisor {
                command: command.clone(),
                name: description.name.clone(),
                routes: Arc::clone(&routes),
                kills: can_files.then(|| Arc::clone(&libraries.kills)),
                process,
            };
            let commands = supervisor.process.commands().clone();
            let state = State::Started(Box::new((supervisor, events)));
            libraries.all.push(Library { description, routes, commands, state });
        }
        Ok(libraries)
    }

    /// Returns the number of adapters.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the names of the libraries, with their versions.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |it: &Library| format!("{} {}", it.description.name, it.description.version);
        self.all.iter().map(name).collect()
    }

    /// Returns whether each library reports the edits that it receives.
    pub(super) fn report_edits(&self) -> bool {
        self.all.iter().all(|it| it.description.can.iter().any(|ability| ability == EDITS))
    }

    /// Returns the counter of the kills of adapters.
    pub(super) fn kills(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.kills)
    }

    /// Returns the connection of a device to an adapter.
    pub(super) fn link(&self, nth: usize, name: &str) -> Option<Link> {
        let library = self.all.get(nth)?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let mut routes = library.routes.lock();
        let number = routes.len();
        routes.insert(name.to_owned(), sender);
        let (commands, description) = (library.commands.clone(), library.description.clone());
        let directory = self.directory.join(nth.to_string());
        Some(Link {
            name: name.to_owned(),
            number,
            directory,
            client: String::new(),
            commands,
            events,
            description,
        })
    }

    /// Begins to hand over events. An adapter that ends by itself fails the run.
    pub(super) fn listen(&mut self, world: &Arc<World>, mut seed: impl FnMut() -> u64) {
        let all = std::mem::take(&mut self.all);
        self.all = all.into_iter().map(|library| library.listen(world, seed())).collect();
    }

    /// Ends the adapters, none of which may have ended before. All connections to them have to be dropped.
    pub(super) async fn finish(self) -> anyhow::Result<()> {
        for Library { description, state, commands, .. } in self.all {
            drop(commands);
            let State::Served { stop, supervisor } = state else { continue };
            let name = description.name;
            stop.send(()).ok();
            // An adapter that has ended by itself has failed the run.
            let Some(mut process) = supervisor.await? else { continue };
            let status = process.status()?;
            ensure!(status.is_none(), "the adapter of {name} ended by itself: {status:?}");
            process.finish().await.with_context(|| format!("the adapter of {name}"))?;
        }
        Ok(())
    }
}

impl Library {
    fn listen(mut self, world: &Arc<World>, seed: u64) -> Self {
        let State::Started(started) = self.state else { return self };
        let (supervisor, events) = *started;
        let (stop, stopped) = oneshot::channel();
        let (world, name) = (Arc::clone(world), self.description.name.clone());
        let supervisor = tokio::spawn(async move {
            let served = supervisor.run(Arc::clone(&world), events, seed, stopped).await;
            served.map_err(|why| world.fail(format!("the adapter of {name}: {why:#}"))).ok()
        });
        self.state = State::Served { stop, supervisor };
        self
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.commands.send(&json!({"do": "drop", "client": self.client})).ok();
    }
}

/// Drives a device until it is aborted, or until its adapter has ended.
pub(super) async fn run(world: Arc<World>, index: usize, seed: u64, mut link: Link) {
    let connect = connect(&world, index, &link);
    let application = world.next_session();
    let profile = world.clients[index].profile.clone();
    let mut client = LibraryClient::new(profile, &link.description, connect, application, seed);
    let mut tick = interval(TICK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = world.elapsed();
        tokio::select! {
            event = link.events.recv() => match event {
                Some(FromAdapter::Event(event)) => client.handle_event(&event, now, || world.next_session()),
                Some(FromAdapter::Killed) => client.killed(now),
                Some(FromAdapter::Started(commands)) => {
                    link.commands = commands;
                    client.started();
                }
                None => return,
            },
            _ = tick.tick() => client.tick(world.elapsed(), world.phase(), || world.next_session()),
        }
        // What is about to be sent is recorded first, and its answers count as pending before the phase may end.
        for event in client.take_events() {
            world.recorder.add(event);
        }
        publish(&world, index, &client);
        client.name().clone_into(&mut link.client);
        for command in client.take_commands() {
            // Commands to a process that was killed are lost.
            if let Err(why) = link.commands.send(&command)
                && !link.commands.is_closed()
            {
                return world.fail(why);
            }
        }
        if let Some(why) = client.failure() {
            return world.fail(format!("{}: {why}", link.name));
        }
    }
}

/// Returns the command that creates the client, with all addresses of nodes; each device begins with another one.
fn connect(world: &World, index: usize, link: &Link) -> Value {
    let profile = &world.clients[index].profile;
    let transport = &link.description.transports[link.number % link.description.transports.len()];
    let (scheme, framing) = transport.split_once('-').unwrap_or((transport, "json"));
    let mut addresses: Vec<String> =
        world.client_addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
    let count = addresses.len().max(1);
    addresses.rotate_left(index % count);
    let token = auth::sign(&world.key, &profile.user, None, TOKEN_TIME);
    // A connection that is frozen for ever is noticed soon, and so is a push that was lost between two nodes.
    let mut options = json!({"history": "all", "settings": {"heartbeatMs": HEARTBEAT_MS}});
    if link.description.can.iter().any(|it| it == FILES) {
        options["files"] = json!(link.directory);
    }
    json!({
        "do": "connect",
        "client": link.name,
        "addresses": addresses,
        "framing": framing,
        "user": profile.user,
        "device": profile.device,
        "tokens": [token],
        "options": options,
    })
}

/// Publishes what the device waits for, and only then that it has sent its markers, whose answers it waits for.
fn publish(world: &World, index: usize, client: &LibraryClient) {
    let me = &world.clients[index];
    me.waiting.store(client.waiting(), Ordering::Release);
    me.marked.store(client.is_marked(), Ordering::Release);
    me.complete.store(client.is_complete(), Ordering::Release);
}
