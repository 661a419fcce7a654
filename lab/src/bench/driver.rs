//! The load generator: a process of its own that gets its orders over standard input.

mod chat;
mod circle;
mod connections;
mod echo;
mod establish;
mod fanout;
mod idle;
mod inbox;
mod overload;
mod publisher;
mod room;
mod source;
mod sync;
mod talk;
mod tls;

use super::{
    host,
    login_kind::{LoginAlgorithm, LoginHandshake},
    orders::{Answer, Order, Outcome, Peer, Setup, Watched},
};
use anyhow::{Context, Result, ensure};
use connections::Connections;
pub(super) use idle::beat;
use publisher::Publisher;
use std::{
    io::{BufRead, Write, stdin, stdout},
    time::Duration,
};
use talk::Talk;

/// Most sockets of one process, which leaves a reserve under the usual limit of 20,000.
const SOCKETS_MAX: usize = 19_000;

/// CPU times at one moment.
struct Meter {
    server: host::Cpu,
    client: host::Cpu,
    /// Times of [`Setup::watched`], in ns.
    watched: Vec<u64>,
}

/// A load generator with its connections.
struct Driver {
    setup: Setup,
    connections: Connections,
    users: usize,
    publisher: Option<Publisher>,
    talk: Talk,
    /// Clients of the scenario `overload`, by slot.
    offerers: Vec<overload::Offerer>,
}

/// Reads the setup, then orders, one per line. Answers each with a line, and ends when its input does.
pub(super) fn run() -> Result<()> {
    let mut lines = stdin().lock().lines();
    let setup: Setup = serde_json::from_str(&lines.next().context("no setup")??)?;
    let connections = Connections::new(&setup)?;
    let mut driver =
        Driver { setup, connections, users: 0, publisher: None, talk: Talk::default(), offerers: Vec::new() };
    for line in lines {
        let order: Order = serde_json::from_str(&line?)?;
        let answer: Answer = driver.carry_out(&order).map_err(|error| format!("{error:#}"));
        let mut out = stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&answer)?)?;
        out.flush()?;
    }
    Ok(())
}

impl Driver {
    fn carry_out(&mut self, order: &Order) -> Result<Outcome> {
        match order {
            Order::Connect { users, publishers, parallel, room } => {
                self.connect(*users, *publishers, *parallel, room.as_deref())
            }
            Order::Fanout { conversation, messages } => self.fanout(conversation, *messages),
            Order::Room { conversation, rate, warm_ms, measure_ms, important_every } => {
                self.room(conversation, *rate, *warm_ms, *measure_ms, *important_every)
            }
            Order::Echo { ms } => self.echo(*ms),
            Order::Idle { heartbeat_ms, ms } => self.idle(*heartbeat_ms, *ms),
            Order::Chat(chat) => self.chat(chat),
            Order::Overload(overload) => self.overload(overload),
            Order::Sync { user } => self.sync(*user),
            Order::Logins { count, parallel, handshake, algorithm } => {
                let before = self.connections.tls.set_handshake(*handshake);
                let outcome = self.logins(*count, *parallel, *handshake, *algorithm);
                self.connections.tls.set_handshake(before);
                outcome
            }
            Order::Hangup => {
                self.connections.hang_up();
                (self.users, self.publisher) = (0, None);
                Ok(Outcome::default())
            }
        }
    }

    fn connect(
        &mut self,
        users: usize,
        publishers: usize,
        parallel: usize,
        room: Option<&str>,
    ) -> Result<Outcome> {
        ensure!(users + publishers < SOCKETS_MAX, "at most {SOCKETS_MAX} sockets a process");
        ensure!(self.connections.is_empty(), "already connected");
        let meter = self.meter()?;
        let mut plan = establish::Plan::keep("u", users, parallel);
        plan.room = room.map(ToOwned::to_owned);
        let mut outcome = establish::establish(&mut self.connections, &self.setup, &plan)?;
        self.read_meter(&meter, &mut outcome)?;
        self.users = users;
        if publishers > 0 {
            let mut plan = establish::Plan::keep("p", publishers, publishers);
            plan.room = room.map(ToOwned::to_owned);
            self.publisher = Some(match &self.setup.peer {
                Peer::Sink { control } | Peer::WebSocketSink { control } => {
                    Publisher::raw(&mut self.connections, &self.setup, control)?
                }
                _ => {
                    establish::establish(&mut self.connections, &self.setup, &plan)?;
                    Publisher::tidegate(&self.setup, users, publishers)
                }
            });
        }
        Ok(outcome)
    }

    fn logins(
        &mut self,
        count: usize,
        parallel: usize,
        handshake: LoginHandshake,
        algorithm: LoginAlgorithm,
    ) -> Result<Outcome> {
        ensure!(parallel < SOCKETS_MAX, "at most {SOCKETS_MAX} sockets a process");
        if handshake == LoginHandshake::Resumed && self.connections.tls.tickets() < parallel {
            self.collect_tickets(parallel)?;
        }
        let mut plan = establish::Plan::leave("u", count, parallel);
        // Before the meter: signatures are no work of a login.
        plan.sign(&self.setup, algorithm)?;
        let meter = self.meter()?;
        let mut outcome = establish::establish(&mut self.connections, &self.setup, &plan)?;
        // A login includes the server's part in closing.
        self.connections.turn(Duration::from_millis(50), |_, _, _| Ok(()))?;
        self.read_meter(&meter, &mut outcome)?;
        self.connections.hang_up();
        Ok(outcome)
    }

    /// Collects a ticket for each of the concurrent logins.
    fn collect_tickets(&mut self, parallel: usize) -> Result<()> {
        self.connections.tls.set_collecting(true);
        let plan = establish::Plan::leave("u", parallel, parallel);
        let collected = establish::establish(&mut self.connections, &self.setup, &plan);
        self.connections.tls.set_collecting(false);
        self.connections.hang_up();
        let tickets = self.connections.tls.tickets();
        ensure!(collected.is_err() || tickets >= parallel, "{tickets} tickets after {parallel} logins");
        collected.map(|_| ())
    }

    /// Returns the CPU times of the server, of this process and of watched processes so far.
    fn meter(&self) -> Result<Meter> {
        let mut watched = Vec::new();
        if !self.setup.watched.is_empty() {
            let all = host::Processes::read()?;
            for Watched { name, pids } in &self.setup.watched {
                let sum = pids.iter().map(|pid| all.tree_cpu_ns(*pid)).sum::<Result<u64>>();
                watched.push(sum.with_context(|| name.clone())?);
            }
        }
        Ok(Meter { server: host::cpu(self.setup.pid)?, client: host::cpu(std::process::id())?, watched })
    }

    fn read_meter(&self, since: &Meter, outcome: &mut Outcome) -> Result<()> {
        let now = self.meter()?;
        outcome.server_cpu_ns = now.server.ran.saturating_sub(since.server.ran);
        outcome.server_wait_ns = now.server.waited.saturating_sub(since.server.waited);
        outcome.client_cpu_ns = now.client.ran.saturating_sub(since.client.ran);
        let watched = now.watched.iter().zip(&since.watched);
        outcome.watched_cpu_ns = watched.map(|(now, since)| now.saturating_sub(*since)).collect();
        Ok(())
    }
}
