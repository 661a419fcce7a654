//! Orders to a load generator, and its answers: one JSON line for each.

use super::{
    login_kind::{LoginAlgorithm, LoginHandshake},
    wire::BenchTransport,
};
use serde::{Deserialize, Serialize};
use std::{ops::Range, path::PathBuf};

/// The server that a load generator talks to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Peer {
    /// The raw fan-out loop: clients connect and listen, and messages go to `control`.
    Sink { control: String },
    /// The fan-out loop over uWebSockets: clients upgrade and listen, and messages go to `control`.
    WebSocketSink { control: String },
    /// The raw accept loop, which answers a login with `bytes`.
    Reply { bytes: usize },
    /// The raw echo loop, which answers each request with `bytes`.
    Echo { bytes: usize },
    /// The raw log, which answers each message with its number.
    Log,
    /// Tidegate; `key` is its HS256 key in hex.
    Tidegate { key: String },
}

/// Setup of a load generator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) peer: Peer,
    /// Address of the server; several are separated by commas.
    pub(super) address: String,
    /// Process whose CPU time is measured.
    pub(super) pid: u32,
    /// Further processes whose CPU time is measured.
    pub(super) watched: Vec<Watched>,
    pub(super) transport: BenchTransport,
    /// Authority of the server's certificate, if connections have TLS.
    pub(super) authority: Option<PathBuf>,
    /// Folder of the keys that sign tokens of other algorithms than HS256.
    pub(super) credentials: Option<PathBuf>,
    /// Whether it may keep its CPU busy while it waits, because no server shares it.
    pub(super) spin: bool,
    /// Content bytes of a message.
    pub(super) size: usize,
    /// Name of the run, by which message ids of two runs differ.
    pub(super) run: String,
}

/// Processes that do one part of the work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Watched {
    pub(super) name: String,
    /// Processes, which are measured with all of their descendants.
    pub(super) pids: Vec<u32>,
}

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Log in users `u0`… and keep them; then `publishers` more, `p0`….
    Connect { users: usize, publishers: usize, parallel: usize, room: Option<String> },
    /// Publish one message after the other, each when all copies of the last were read.
    Fanout { conversation: String, messages: u32 },
    /// Publish at `rate` messages a second, or as fast as all copies are read when there is no rate.
    /// With `important_every`, the first publisher sends each message whose number it divides, and the others all else.
    Room {
        conversation: String,
        rate: Option<f64>,
        warm_ms: u64,
        measure_ms: u64,
        important_every: Option<u64>,
    },
    /// Ping and wait for the answer on every connection, over and over.
    Echo { ms: u64 },
    /// Send heartbeats as a quiet client does.
    Idle { heartbeat_ms: u64, ms: u64 },
    /// Send one-to-one messages.
    Chat(Chat),
    /// Offer more messages than the server can take.
    Overload(Overload),
    /// Log in as user `u` with this number on a connection of its own, and sync.
    Sync { user: usize },
    /// Log in and leave, `count` times, `parallel` at a time.
    Logins { count: usize, parallel: usize, handshake: LoginHandshake, algorithm: LoginAlgorithm },
    /// Close all connections.
    Hangup,
}

/// An order to send one-to-one messages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Chat {
    /// The connections that send.
    pub(super) senders: Range<usize>,
    pub(super) to: To,
    /// Unanswered messages of a connection.
    pub(super) in_flight: usize,
    /// Messages a second of all connections together; `None` to send whenever an answer arrives.
    pub(super) rate: Option<f64>,
    /// When sending ends.
    pub(super) until: Until,
}

/// An order to offer messages at a rate, whatever becomes of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Overload {
    /// Messages a second of all connections together.
    pub(super) rate: f64,
    /// Whether a client sends nothing for the time that a refusal names.
    pub(super) keeps_wait: bool,
    /// Time that does not count.
    pub(super) warm_ms: u64,
    pub(super) measure_ms: u64,
}

/// Recipients of messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum To {
    /// Users who are never connected: this many in all, each of whom gets messages from one connection, in turns.
    Absent(usize),
    /// The neighbour: 0 and 1 talk to each other, 2 and 3, and so on.
    Partner,
    /// Other connections, in turns: this many conversations of two in all.
    Among(usize),
}

/// When sending ends; all answers are awaited after that.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Until {
    /// After a measured time, which follows a start that does not count.
    Time { warm_ms: u64, measure_ms: u64 },
    /// After this many messages, all of which count.
    Messages(u64),
    /// After one message of each sender to each of its conversations.
    Once,
}

/// Results of an order. Fields that an order does not measure are zero.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// Deliveries, answers or logins, each of them verified.
    pub(super) count: u64,
    /// Number of `recv` calls that returned bytes.
    pub(super) reads: u64,
    pub(super) wall_ns: u64,
    pub(super) server_cpu_ns: u64,
    /// Time in which the server was ready to run while something else had its CPU.
    pub(super) server_wait_ns: u64,
    pub(super) client_cpu_ns: u64,
    /// CPU time of each of [`Setup::watched`].
    pub(super) watched_cpu_ns: Vec<u64>,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) max_us: u64,
    /// Times from a send to its push; the fields above are then from a send to its ack.
    pub(super) push_p50_us: u64,
    pub(super) push_p99_us: u64,
    pub(super) push_max_us: u64,
    /// Messages published, and those of them that the server refused.
    pub(super) offered: u64,
    pub(super) refused: u64,
    /// Messages whose outcome the server did not know in time.
    pub(super) unknown: u64,
    /// Messages that the server announced as left out.
    pub(super) shed: u64,
    /// Refused messages that a room over its rate left out (`LEFT_OUT`).
    pub(super) left_out: u64,
    /// Accepted messages of the first publisher, their copies that arrived, and the time until 99 % of these did.
    pub(super) important: u64,
    pub(super) important_count: u64,
    pub(super) important_p99_us: u64,
    /// Frames `behind`, pulls that followed, messages that came in a page only, and repeated pushes.
    pub(super) behinds: u64,
    pub(super) pulls: u64,
    pub(super) pulled: u64,
    pub(super) repeated: u64,
    /// Logins that had to be repeated.
    pub(super) retries: u64,
    /// Bytes of a request and of a reply on the wire.
    pub(super) request_bytes: usize,
    pub(super) reply_bytes: usize,
}

impl Outcome {
    /// Returns the server CPU of one delivery, answer or login, in µs.
    pub(super) fn cpu_us(&self) -> f64 {
        self.server_cpu_ns as f64 / 1e3 / self.count.max(1) as f64
    }

    /// Returns the deliveries, answers or logins per second of wall time.
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 * 1e9 / self.wall_ns.max(1) as f64
    }

    /// Returns the share of the wall time in which the server ran, in percent of one CPU.
    pub(super) fn server_busy(&self) -> f64 {
        100.0 * self.server_cpu_ns as f64 / self.wall_ns.max(1) as f64
    }

    /// Returns the share of the wall time in which the server waited for its CPU: more than a little means that the
    /// machine was not quiet.
    pub(super) fn server_waits(&self) -> f64 {
        100.0 * self.server_wait_ns as f64 / self.wall_ns.max(1) as f64
    }

    /// Returns the share of the wall time in which the load generator ran.
    pub(super) fn client_busy(&self) -> f64 {
        100.0 * self.client_cpu_ns as f64 / self.wall_ns.max(1) as f64
    }
}

/// The answer to an order.
pub(super) type Answer = Result<Outcome, String>;
