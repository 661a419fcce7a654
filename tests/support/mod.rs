//! What tests of a whole node share: a node on free ports, clients over each framing, and waiting without sleeping.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

mod client;
mod cluster;
mod frames;
pub mod http;
mod kafka;
mod link;
mod node;
mod postgres;
mod process;
#[path = "services.rs"]
pub mod services;
mod stopwatch;
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
    postgres::OwnPostgres,
    process::{Process, command, fresh_data},
    way::Way,
};

use std::{
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a test waits for what must come. Long, because it is only ever used up by a failure.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A port that nobody listens on, for a server that will do so only after a while: below those that the system gives to
/// whoever asks for any, and given once in this process.
pub fn free_port() -> u16 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Runs beside this one begin elsewhere.
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    let next = || {
        let nth = FIRST.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed));
        30_000 + (nth % 2_700) as u16
    };
    let mut ports = std::iter::repeat_with(next).take(2_700);
    ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

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
