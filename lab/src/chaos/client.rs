//! A client: drives one [`Person`] over sockets, and reconnects after each disconnect.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate::auth;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::world::{Device, World};
use crate::{
    link::ClientSocket,
    person::{Person, TICK_INTERVAL},
};

/// How long a login may take before the client tries again.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);

/// How long the old connection stays open. Its sends are in flight then, so both nodes have the same ids.
const OLD_CONNECTION_TIME: Duration = Duration::from_secs(2);

struct Client {
    world: Arc<World>,
    index: usize,
    rng: StdRng,
    person: Person,
    /// Connections so far; each goes to the next client address.
    connects: usize,
}

/// End of a connection.
enum End {
    /// The broker closed it, with this code.
    Closed(u16),
    /// The client goes to another node.
    Hop,
}

/// Runs a client until it is aborted.
pub(super) async fn run(world: Arc<World>, index: usize, seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let person = Person::new(world.clients[index].profile.clone(), rng.random());
    let mut client = Client { world, index, rng, person, connects: index };
    loop {
        if let Err(error) = client.live().await {
            tracing::debug!(index, %error, "a connection ended");
        }
        client.me().waiting.store(usize::MAX, Ordering::Release);
        let wait = client.rng.random_range(5..150);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}

impl Client {
    fn me(&self) -> &Device {
        &self.world.clients[self.index]
    }

    /// Adds what the person saw to the history.
    fn record(&mut self) {
        for event in self.person.take_events() {
            self.world.recorder.add(event);
        }
    }

    /// Runs one connection to its end.
    async fn live(&mut self) -> anyhow::Result<()> {
        let mut link =
            timeout(LOGIN_TIMEOUT, Box::pin(self.login())).await.context("the login takes too long")??;
        let result = Box::pin(self.talk(&mut link)).await;
        if matches!(result, Ok(End::Hop)) {
            tokio::spawn(async move {
                tokio::time::sleep(OLD_CONNECTION_TIME).await;
                drop(link);
            });
        }
        self.person.on_close(if let Ok(End::Closed(code)) = result { code } else { 0 });
        self.record();
        result.map(|_| ())
    }

    async fn login(&mut self) -> anyhow::Result<ClientSocket> {
        self.connects += 1;
        let nth = self.connects % self.world.client_addresses.len();
        let profile = self.person.profile();
        let token = auth::sign(&self.world.key, &profile.user, None, Duration::from_secs(86_400));
        let hello = self.person.hello(token);
        let mut link = ClientSocket::log_in(self.world.client_addresses[nth], profile.wire, hello).await?;
        let frames = self.person.on_open(self.world.next_session(), &World::node(nth));
        self.record();
        link.send(&frames).await?;
        Ok(link)
    }

    /// Talks until the connection breaks, the broker closes it, or the client goes to another node.
    async fn talk(&mut self, link: &mut ClientSocket) -> anyhow::Result<End> {
        let mut tick = interval(TICK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.report();
            tokio::select! {
                frame = link.next() => {
                    let closed = self.person.handle_frame(self.world.elapsed(), frame?);
                    self.record();
                    if let Some(code) = closed {
                        return Ok(End::Closed(code));
                    }
                }
                _ = tick.tick() => {
                    let tick = self.person.tick(self.world.elapsed(), self.world.phase());
                    // What is about to be sent is recorded first. The answers to it count as pending before the phase may end.
                    self.record();
                    self.report();
                    link.send(&tick.frames).await?;
                    if tick.hops {
                        return Ok(End::Hop);
                    }
                    if tick.is_silent {
                        bail!("no frame received for too long");
                    }
                }
            }
        }
    }

    /// Publishes what the person waits for, and only then that it has sent its markers, whose answers it waits for.
    fn report(&self) {
        let me = self.me();
        me.waiting.store(self.person.waiting(), Ordering::Release);
        me.marked.store(self.person.is_marked(), Ordering::Release);
        me.complete.store(self.person.is_complete(), Ordering::Release);
    }
}
