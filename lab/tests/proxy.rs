//! The proxy that spoils a network, alone. Runs under chaos are the steps `chaos` and `cluster` of `cargo xtask test`.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "../../tests/support/port.rs"]
mod port;
#[allow(dead_code, unreachable_pub, reason = "other test binaries use the rest of it, and hand it on")]
#[path = "../../tests/support/time.rs"]
mod time;

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use tidegate_lab::proxy::{Mode, Proxy};
use tokio::runtime::Runtime;

use port::free_port;
use time::{WAIT_MAX, eventually};

/// Both ends of a connection through a proxy.
struct Pair {
    runtime: Runtime,
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = runtime.block_on(Proxy::start(listener.local_addr().unwrap())).unwrap();
        let client = TcpStream::connect(proxy.address).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        }
        Self { runtime, proxy, client, server }
    }

    /// Says it there, and checks that it comes whole here; how many reads that took.
    fn carry(&mut self, bytes: &[u8]) -> usize {
        self.client.write_all(bytes).unwrap();
        let (mut got, mut reads) = (Vec::new(), 0);
        let mut buffer = vec![0; bytes.len()];
        while got.len() < bytes.len() {
            let count = self.server.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended");
            got.extend_from_slice(&buffer[..count]);
            reads += 1;
        }
        assert!(got == bytes, "the proxy changed something");
        reads
    }

    fn all(&self, mode: Mode) {
        assert_eq!(self.proxy.set(mode, || true), 1);
    }
}

#[test]
fn the_proxy_passes_delays_and_dribbles_every_byte_in_order() {
    let mut pair = Pair::new();
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    pair.carry(&bytes);
    pair.all(Mode::Delay(Duration::from_millis(60)));
    let began = Instant::now();
    pair.carry(b"late");
    assert!(began.elapsed() >= Duration::from_millis(60));
    pair.all(Mode::Dribble);
    // A reader that is not scheduled at once finds all of them.
    eventually("it comes in pieces", || (pair.carry(&bytes[..500]) > 1).then_some(()));
    pair.carry(&bytes);
}

#[test]
fn what_is_frozen_comes_after_the_thaw() {
    let mut pair = Pair::new();
    pair.all(Mode::Freeze);
    pair.client.write_all(b"hello").unwrap();
    pair.server.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    assert!(pair.server.read(&mut [0; 5]).is_err(), "nothing passes");
    pair.server.set_read_timeout(Some(WAIT_MAX)).unwrap();
    pair.all(Mode::Pass);
    let mut got = [0; 5];
    pair.server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    pair.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(pair.server.read(&mut got).unwrap(), 0, "the end of one direction passes, too");
    pair.server.write_all(b"still").unwrap();
    pair.client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"still");
}

#[test]
fn a_cut_is_a_reset_or_an_end_on_both_sides() {
    for (mode, reset) in [(Mode::Reset, true), (Mode::Finish, false)] {
        let mut pair = Pair::new();
        pair.carry(b"first");
        pair.all(mode);
        for stream in [&mut pair.client, &mut pair.server] {
            let result = stream.read(&mut [0; 1]);
            let expected = if reset { result.is_err() } else { matches!(result, Ok(0)) };
            assert!(expected, "{mode:?}: {result:?}");
        }
        eventually("no connection left", || pair.proxy.is_empty().then_some(()));
    }
}

#[test]
fn without_a_node_clients_are_reset_and_a_new_target_is_used_at_once() {
    let pair = Pair::new();
    pair.proxy.set_target(([127, 0, 0, 1], free_port()).into());
    let mut lost = TcpStream::connect(pair.proxy.address).unwrap();
    assert!(lost.read(&mut [0; 1]).is_err());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.proxy.set_target(listener.local_addr().unwrap());
    let _found = TcpStream::connect(pair.proxy.address).unwrap();
    listener.accept().unwrap();
    drop(pair.proxy);
    drop(pair.runtime);
}
