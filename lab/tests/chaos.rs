//! The real binary under kill -9 and a bad network, in short; the proxy alone; and that the checker would notice.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    collections::HashSet,
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    process::Output,
    thread,
    time::{Duration, Instant},
};

use support::{lab, said};
use tidegate_lab::proxy::{Mode, Proxy};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(10);

fn chaos(arguments: &[&str]) -> Output {
    support::node();
    lab(&[&["chaos"], arguments].concat())
}

fn check(history: &str) -> Output {
    lab(&["check", history])
}

#[test]
fn every_promise_holds_under_chaos_and_a_broken_one_is_named() {
    let file = std::env::temp_dir().join(format!("tidegate-chaos-{}.jsonl", std::process::id()));
    let path = file.to_str().unwrap();
    // Another seed each time; a failure prints it.
    let output = chaos(&["--seconds", "20", "--rate", "300", "--history", path]);
    assert!(output.status.success(), "{}", said(&output));
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let columns: Vec<&str> = line.split('|').map(str::trim).collect();
    assert_eq!(columns[11], "clean", "{line}");
    let acked: u64 = columns[6].parse().unwrap();
    assert!(acked > 500, "the clients were busy: {line}");

    // The same history with one acked message gone from the log, and with one push that nobody sent.
    let history = fs::read_to_string(&file).unwrap();
    let without = |part: &str| {
        let mut lines: Vec<&str> = history.lines().collect();
        let last = lines.iter().rposition(|line| line.contains(part)).unwrap();
        lines.remove(last);
        lines.join("\n")
    };
    for (part, rule) in [("log_message", "lost-acked"), ("\"send_inv\"", "never-sent")] {
        fs::write(&file, without(part)).unwrap();
        let output = check(path);
        assert!(!output.status.success() && said(&output).contains(rule), "{rule}: {}", said(&output));
    }
    // And with one marker that never came, whatever copies of it were pushed; it was not pulled either.
    fs::write(&file, without_the_last_push(&history)).unwrap();
    let output = check(path);
    assert!(!output.status.success(), "{}", said(&output));
    for rule in ["not-delivered", "never-got"] {
        assert!(said(&output).contains(rule), "{rule}: {}", said(&output));
    }
    // What was pulled after a connection was away is missed as well.
    fs::write(&file, without_a_pull(&history)).unwrap();
    let output = check(path);
    assert!(!output.status.success() && said(&output).contains("never-got"), "{}", said(&output));
    fs::write(&file, &history).unwrap();
    assert!(check(path).status.success());
    fs::remove_file(&file).unwrap();
}

/// What a device got, as a line of the history tells.
#[derive(PartialEq, Eq, Hash)]
struct Entry {
    user: String,
    device: String,
    conv: String,
    seq: u64,
}

/// The entry, how it came, and which message it is; or none.
fn entry(line: &str) -> Option<(Entry, String, Option<String>)> {
    let event: serde_json::Value = serde_json::from_str(line).unwrap();
    let recv = event.get("recv")?;
    let text = |name: &str| recv[name].as_str().map(str::to_owned);
    let (user, device, conv) = (text("user")?, text("device")?, text("conv")?);
    Some((Entry { user, device, conv, seq: recv["seq"].as_u64()? }, text("via")?, text("cid")))
}

fn without_entry(history: &str, lost: &Entry) -> String {
    let kept = history.lines().filter(|line| entry(line).is_none_or(|(entry, ..)| entry != *lost));
    kept.collect::<Vec<_>>().join("\n")
}

fn without_the_last_push(history: &str) -> String {
    let last = history.lines().rev().filter_map(entry).find(|(_, via, _)| via == "push").unwrap();
    without_entry(history, &last.0)
}

/// Of another's message that a device only got by asking.
fn without_a_pull(history: &str) -> String {
    let entries: Vec<_> = history.lines().filter_map(entry).collect();
    let pushed: HashSet<&Entry> =
        entries.iter().filter(|(_, via, _)| via == "push").map(|it| &it.0).collect();
    let own = |entry: &Entry, cid: &str| {
        let [cid, user, device] = [("cid", cid), ("user", &entry.user), ("device", &entry.device)]
            .map(|(name, value)| format!("\"{name}\":\"{value}\""));
        let mut sends = history.lines().filter(|line| line.contains("send_inv"));
        sends.any(|line| [&cid, &user, &device].iter().all(|part| line.contains(part.as_str())))
    };
    let pulled = entries.iter().find(|(entry, via, cid)| {
        via == "pull" && !pushed.contains(entry) && cid.as_ref().is_some_and(|cid| !own(entry, cid))
    });
    without_entry(history, &pulled.expect("somebody missed something and pulled it").0)
}

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
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
    eventually("it comes in pieces", || pair.carry(&bytes[..500]) > 1);
    pair.carry(&bytes);
}

#[test]
fn what_is_frozen_comes_after_the_thaw() {
    let mut pair = Pair::new();
    pair.all(Mode::Freeze);
    pair.client.write_all(b"hello").unwrap();
    pair.server.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    assert!(pair.server.read(&mut [0; 5]).is_err(), "nothing passes");
    pair.server.set_read_timeout(Some(PATIENCE)).unwrap();
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
        eventually("no connection left", || pair.proxy.is_empty());
    }
}

#[test]
fn without_a_node_clients_are_reset_and_a_new_target_is_used_at_once() {
    let pair = Pair::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    pair.proxy.set_target(nobody);
    let mut lost = TcpStream::connect(pair.proxy.address).unwrap();
    assert!(lost.read(&mut [0; 1]).is_err());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    pair.proxy.set_target(listener.local_addr().unwrap());
    let found: SocketAddr = TcpStream::connect(pair.proxy.address).unwrap().local_addr().unwrap();
    assert!(found.ip().is_loopback());
    listener.accept().unwrap();
    drop(pair.proxy);
    drop(pair.runtime);
}

fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
