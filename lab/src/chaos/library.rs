//! Devices whose client is a library, driven through the adapter of the conformance kit (docs/clients/adapter.md).
//!
//! An adapter serves several devices. A command is recorded before it is written and an event after it was read, so the
//! recorded time of a request is not later than the true one, and that of an answer is not earlier: the rules on order in
//! real time accuse no library of the time that its process took.

mod end_check;
mod machine;
mod message_names;
mod summary;

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tidegate::auth;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use self::machine::LibraryClient;
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

/// Senders of events by the name of the client.
type Routes = Arc<Mutex<HashMap<String, mpsc::Sender<Value>>>>;

/// The running adapters.
#[derive(Default)]
pub(super) struct Libraries(Vec<Library>);

struct Library {
    process: AdapterProcess,
    description: Description,
    /// Events until [`Libraries::link`] routes them.
    events: Option<AdapterEvents>,
    routes: Routes,
}

/// Connection of a device to its adapter, which drops the device's clients with it.
pub(super) struct Link {
    name: String,
    /// Name of the present client.
    client: String,
    commands: Commands,
    events: mpsc::Receiver<Value>,
    description: Description,
}

impl Libraries {
    /// Starts the adapters.
    pub(super) async fn start(commands: &[String]) -> anyhow::Result<Self> {
        let mut all = Vec::new();
        for command in commands {
            let (process, events, description) =
                AdapterProcess::start(command).await.with_context(|| format!("adapter {command:?}"))?;
            ensure!(!description.transports.is_empty(), "the adapter {command:?} names no transport");
            all.push(Library { process, description, events: Some(events), routes: Routes::default() });
        }
        Ok(Self(all))
    }

    /// Returns the number of adapters.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the names of the libraries, with their versions.
    pub(super) fn names(&self) -> Vec<String> {
        let name = |it: &Library| format!("{} {}", it.description.name, it.description.version);
        self.0.iter().map(name).collect()
    }

    /// Returns the connection of a device to an adapter.
    pub(super) fn link(&self, nth: usize, name: &str) -> Option<Link> {
        let library = self.0.get(nth)?;
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        library.routes.lock().insert(name.to_owned(), sender);
        let (commands, description) = (library.process.commands().clone(), library.description.clone());
        Some(Link { name: name.to_owned(), client: String::new(), commands, events, description })
    }

    /// Begins to hand over events. An adapter that ends by itself fails the run.
    pub(super) fn listen(&mut self, world: &Arc<World>) {
        for library in &mut self.0 {
            let Some(events) = library.events.take() else { continue };
            let (world, routes, name) =
                (Arc::clone(world), Arc::clone(&library.routes), library.description.name.clone());
            tokio::spawn(async move {
                let error = hand_over(events, &routes).await.err();
                let why = error.map_or_else(String::new, |error| format!(": {error:#}"));
                world.fail(format!("the adapter of {name} has ended by itself{why}"));
            });
        }
    }

    /// Ends the adapters, none of which may have ended before. All connections to them have to be dropped.
    pub(super) async fn finish(self) -> anyhow::Result<()> {
        for Library { mut process, description, .. } in self.0 {
            let name = description.name;
            let status = process.status()?;
            ensure!(status.is_none(), "the adapter of {name} ended by itself: {status:?}");
            process.finish().await.with_context(|| format!("the adapter of {name}"))?;
        }
        Ok(())
    }
}

async fn hand_over(mut events: AdapterEvents, routes: &Routes) -> anyhow::Result<()> {
    while let Some(event) = events.next().await? {
        // A device has a client for each of its runs.
        let device = event["client"].as_str().and_then(|name| name.split('/').next());
        let route = device.and_then(|name| routes.lock().get(name).cloned());
        if let Some(route) = route {
            // A device that has left receives nothing more.
            route.send(event).await.ok();
        }
    }
    Ok(())
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
    let mut client = LibraryClient::new(profile, &link.description.can, connect, application, seed);
    let mut tick = interval(TICK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            event = link.events.recv() => {
                let Some(event) = event else { return };
                client.handle_event(&event, || world.next_session());
            }
            _ = tick.tick() => client.tick(world.elapsed(), world.phase(), || world.next_session()),
        }
        // What is about to be sent is recorded first, and its answers count as pending before the phase may end.
        for event in client.take_events() {
            world.recorder.add(event);
        }
        publish(&world, index, &client);
        client.name().clone_into(&mut link.client);
        for command in client.take_commands() {
            if let Err(why) = link.commands.send(&command) {
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
    let transport = &link.description.transports[index % link.description.transports.len()];
    let (scheme, framing) = transport.split_once('-').unwrap_or((transport, "json"));
    let mut addresses: Vec<String> =
        world.client_addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
    let count = addresses.len().max(1);
    addresses.rotate_left(index % count);
    let token = auth::sign(&world.key, &profile.user, None, TOKEN_TIME);
    json!({
        "do": "connect",
        "client": link.name,
        "addresses": addresses,
        "framing": framing,
        "user": profile.user,
        "device": profile.device,
        "tokens": [token],
        // A connection that is frozen for ever is noticed soon, and so is a push that was lost between two nodes.
        "options": {"history": "all", "settings": {"heartbeatMs": HEARTBEAT_MS}},
    })
}

/// Publishes what the device waits for, and only then that it has sent its markers, whose answers it waits for.
fn publish(world: &World, index: usize, client: &LibraryClient) {
    let me = &world.clients[index];
    me.waiting.store(client.waiting(), Ordering::Release);
    me.marked.store(client.is_marked(), Ordering::Release);
    me.complete.store(client.is_complete(), Ordering::Release);
}
