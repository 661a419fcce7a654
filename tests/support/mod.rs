//! Support of tests with whole nodes: a node on free ports, clients over each framing, and waits for their effects.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]

mod client;
mod cluster;
#[path = "cluster/sets.rs"]
mod cluster_sets;
mod frames;
pub mod http;
mod kafka;
mod link;
mod node;
mod port;
mod postgres;
mod process;
// Shared with the lab, which has its tests.
#[path = "../../lab/src/proxy.rs"]
pub mod proxy;
#[path = "process/screen.rs"]
mod screen;
mod service_proxy;
#[path = "services.rs"]
pub mod services;
#[path = "process/silent_receiver.rs"]
mod silent_receiver;
#[path = "process/sse.rs"]
mod sse;
#[path = "process/stats_follower.rs"]
mod stats_follower;
#[path = "process/terminal.rs"]
mod terminal;
mod time;
mod unique;
#[path = "process/webhook_receiver.rs"]
mod webhook_receiver;

#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use self::services::{service, service_text};
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use self::time::Stopwatch;
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use self::{
    client::Client,
    cluster::Cluster,
    frames::{ClientBody, ServerBody, ask, code, hello, send, seqs_of, text_of},
    kafka::OwnKafka,
    link::{Incoming, Link, MemoryLink, cut},
    node::TestNode,
    port::free_port,
    postgres::OwnPostgres,
    process::{Begun, Process, command, fresh_data, in_shell},
    screen::Screen,
    service_proxy::ServiceProxy,
    silent_receiver::SilentReceiver,
    sse::{SseBlock, SseStream},
    stats_follower::StatsFollower,
    terminal::terminal,
    time::{WAIT_MAX, becomes, eventually, eventually_within, let_time_pass, let_time_pass_since},
    unique::unique_name,
    webhook_receiver::WebhookReceiver,
};

/// Fails in a build without planted faults, so that a test that needs them is not skipped silently.
pub fn needs_planted_faults() {
    let how = "faults are planted in builds with debug assertions: run this test without `--release`, or with `--profile ci`";
    if !cfg!(debug_assertions) {
        panic!("{how}");
    }
}

/// Runs a test whose scenario a slow machine can miss. A run that missed it returns the reason and is repeated once;
/// the test fails when the second run misses it, too.
pub fn shown_in_two_runs(mut run: impl FnMut() -> Result<(), String>) {
    for nth in ["first", "second"] {
        match run() {
            Ok(()) => return,
            Err(why) => eprintln!("the {nth} run shows nothing: {why}"),
        }
    }
    panic!("two runs showed nothing: the machine is too slow for this test");
}
