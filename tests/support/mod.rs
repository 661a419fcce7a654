//! What tests of a whole node share: a node on free ports, clients over each framing, and waiting without sleeping.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

mod client;
mod cluster;
mod frames;
pub mod http;
mod kafka;
mod link;
mod node;
mod port;
mod postgres;
mod process;
// The lab's own: its tests are there.
#[path = "../../lab/src/proxy.rs"]
pub mod proxy;
#[path = "services.rs"]
pub mod services;
mod stopwatch;
mod terminal;
mod way;

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use self::services::service;
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use self::stopwatch::Stopwatch;
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use self::{
    client::Client,
    cluster::Cluster,
    frames::{Asked, Said, ask, code, hello, send, text_of},
    kafka::OwnKafka,
    link::{Incoming, Link},
    node::TestNode,
    port::free_port,
    postgres::OwnPostgres,
    process::{Begun, Process, command, fresh_data},
    terminal::terminal,
    way::Way,
};

use std::time::{Duration, Instant};

/// How long a test waits for what must come. Long, because it is only ever used up by a failure.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Calls `look` until it gives something; panics with `what` when it never does.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same for what may take longer than the patience, and has a bound of its own.
pub fn eventually_within<T>(within: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + within;
    loop {
        let pause = deadline.min(Instant::now() + PATIENCE / 2);
        let found =
            eventually(what, || look().map(Some).or_else(|| (Instant::now() >= pause).then_some(None)));
        match found {
            Some(found) => return found,
            None => assert!(Instant::now() < deadline, "in vain: {what}"),
        }
    }
}
