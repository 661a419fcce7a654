//! Exhausted limits: connections, connections of one address, open files.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::Stdio,
    time::{Duration, Instant},
};

use socket2::{Domain, Socket, Type};
use tidegate_protocol::{Code, codec::Wire};

use crate::{
    chat::{Chat, Pair},
    raw::{Raw, frame},
    support::{Process, ask, command, eventually, fresh_data, hello, http, in_shell},
};

fn connect_from(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((from, 0)).into()).expect("a loopback address");
    socket.connect(&to.into()).expect("the node accepts");
    socket.into()
}

#[test]
fn full_node_refuses_with_a_code_until_connections_close() {
    let node = Process::start(&["limits.conns_max=4"]);
    let chat = Chat::begin(&node);
    let third = node.login(Wire::Tcp, "third", "d");
    let fourth = Raw::connect(node.address(), Wire::Tcp);
    eventually("four connections are open", || (node.conns() == 4).then_some(()));
    let ready = || http::ask(node.addresses.admin, "GET", "/readyz?verbose", "");
    let (status, said) = ready();
    assert!(
        status == 200 && said.contains(r#""state":"full""#),
        "a rollout does not wait for a full node: {said}"
    );
    for n in 1..=20 {
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.until_end().assert_closed(Wire::JsonLine, Code::Overloaded, "a full node");
        node.metric_becomes("connections_refused_total", f64::from(n));
    }
    drop((third, fourth));
    eventually("the connections are released", || (node.conns() == 2).then_some(()));
    let _fresh = [node.login(Wire::Tcp, "fresh", "a"), node.login(Wire::WsText, "fresh", "b")];
    assert_eq!(node.conns(), 4);
    chat.end();
    eventually("the node has capacity", || ready().1.contains(r#""state":"ready""#).then_some(()));
}

/// A client that sends Hello before it reads the refusal leaves unread input on the node's side.
#[test]
fn refused_client_that_sends_first_gets_the_reason() {
    let node = Process::start(&["limits.conns_max=2"]);
    let chat = Chat::begin(&node);
    let greeting = frame(Wire::JsonLine, 1, ask::hello(hello(&node.token("late"), "d")));
    for _ in 0..50 {
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.send(&greeting).ok();
        let output = raw.until_end();
        assert_eq!(output.close(), Some(Code::Overloaded), "{output:?}");
    }
    chat.end();
}

#[test]
fn one_address_gets_its_share_and_others_still_connect() {
    let node = Process::start(&["limits.conns_per_ip=2"]);
    let chat = Chat::begin(&node);
    for _ in 0..5 {
        let mut raw = Raw::connect(node.address(), Wire::JsonLine);
        raw.until_end().assert_closed(Wire::JsonLine, Code::TooManyFromAddress, "a third connection");
    }
    assert_eq!(node.metric("connections_refused_total"), 5.0);
    let other = connect_from(Ipv4Addr::new(127, 0, 0, 2), node.address());
    let mut other = Raw::over(other, Wire::JsonLine);
    other
        .send(&frame(Wire::JsonLine, 1, ask::hello(hello(&node.token("other"), "d"))))
        .expect("the node reads");
    other.until("a welcome", |frames| !frames.is_empty());
    assert_eq!(node.conns(), 3, "a refusal takes no connection");
    chat.end();
    eventually("the connections are released", || (node.conns() == 1).then_some(()));
    Pair::login(&node).round();
}

#[test]
fn accepting_pauses_without_file_descriptors() {
    let node = Process::start(&[]);
    let chat = Chat::begin(&node);
    node.metric_becomes("accept_pauses_total", 0.0);
    let held: Vec<Raw> = (0..10).map(|_| Raw::connect(node.address(), Wire::Tcp)).collect();
    eventually("the connections are accepted", || (node.conns() == 12).then_some(()));
    // One descriptor stays free, for the admin port that this test uses.
    node.limit_files(node.files() as u64 + 1);
    let greeting =
        [b"TG/1\n".to_vec(), frame(Wire::Tcp, 1, ask::hello(hello(&node.token("waits"), "d")))].concat();
    let mut waiting: Vec<Raw> = (0..10)
        .map(|_| {
            let mut raw = Raw::connect(node.address(), Wire::Tcp);
            raw.send(&greeting).expect("the kernel buffers the greeting");
            raw
        })
        .collect();
    let (began, cpu) = (Instant::now(), node.cpu());
    // The admin port shares the descriptors, so the counter is only available afterwards; until then the log has it.
    eventually("accepting pauses, again and again", || {
        (node.stderr().matches("no file descriptor left").count() >= 10).then_some(())
    });
    let (took, used) = (began.elapsed(), node.cpu().saturating_sub(cpu));
    assert!(took >= Duration::from_millis(800), "ten pauses took {took:?}");
    assert!(used < took / 2, "{used:?} of CPU in {took:?}: the node spins");
    drop(held);
    for raw in &mut waiting {
        raw.until("a welcome at last", |frames| !frames.is_empty());
    }
    node.limit_files(4_096);
    eventually("pauses are counted", || (node.metric("accept_pauses_total") >= 10.0).then_some(()));
    chat.end();
}

/// X8, S64: clients take every place that the open-file limit leaves, and silent callers those of the admin port.
#[test]
fn x8_messages_are_stored_while_all_descriptors_for_clients_are_taken() {
    let data = fresh_data();
    let serve = command(&data, &["limits.conns_per_ip=0"]);
    let mut shell = in_shell("ulimit -n 728", &serve);
    let errors = std::fs::File::create(data.join("stderr")).expect("a file");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let node = Process::spawn(&data, shell);
    let mut pair = Pair::login(&node);
    let mut held = Vec::new();
    eventually("all places are taken", || {
        held.extend((0..16).map(|_| Raw::connect(node.address(), Wire::Tcp)));
        (node.conns() == 88 && node.metric("connections_refused_total") >= 8.0).then_some(())
    });
    let silent: Vec<TcpStream> =
        (0..64).map(|_| TcpStream::connect(node.addresses.admin).expect("the port accepts")).collect();
    for _ in 0..300 {
        pair.round();
    }
    drop((held, silent));
    assert!(!node.stderr().contains("no file descriptor left"), "{}", node.stderr());
    pair.round();
}

/// With fewer files than the node reserves for itself, no client could connect.
#[test]
fn too_low_open_file_limit_is_refused_at_start() {
    let data = fresh_data();
    let serve = command(&data, &[]);
    let mut shell = in_shell("ulimit -n 64", &serve);
    let errors = std::fs::File::create(data.join("stderr")).expect("a file");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    let mut node = Process::begin(&data, shell);
    let (status, said) = (node.exit(), node.stderr());
    std::fs::remove_dir_all(&data).ok();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("open-file limit is 64"), "{said}");
}
