//! Hot paths for `cargo xtask test counts`: run one by name n times; without arguments, print the names.
//!
//! Nothing here may depend on time, chance or addresses: the instructions of n and 2n runs are subtracted.

use std::{
    env,
    hint::black_box,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use prost::Message as _;
use tidegate_protocol::{content::Content, pb};

type Run = fn(u64);

/// Every name has a limit in `benches/counts.toml`.
const FUNCTIONS: &[(&str, Run)] = &[
    ("push_encode", push_encode),
    ("send_decode", send_decode),
    ("fan_out", fan_out),
    ("accept_path", accept_path),
];

fn main() {
    let mut args = env::args().skip(1);
    let Some(name) = args.next() else {
        FUNCTIONS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, run) = FUNCTIONS.iter().find(|(known, _)| *known == name).expect("a name from the list");
    let iterations = args.next().and_then(|n| n.parse().ok()).expect("a number of iterations");
    run(iterations);
}

/// A push of 128 bytes of text to protobuf bytes, as once per message and framing.
fn push_encode(iterations: u64) {
    let push = pb::Push {
        conversation: "g:harbour".into(),
        seq: 123_456,
        sender: "alice".into(),
        msg_id: "m-000123456".into(),
        time: 1_763_712_000_000,
        content: Some(Content::text("x".repeat(128))),
        event: None,
        recall: None,
    };
    let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) };
    for _ in 0..iterations {
        black_box(black_box(&frame).encode_to_vec());
    }
}

/// A send of 128 bytes of text from protobuf bytes, as once per message accepted.
fn send_decode(iterations: u64) {
    let send = pb::Send {
        conversation: "g:harbour".into(),
        msg_id: "m-000123456".into(),
        content: Some(Content::text("x".repeat(128))),
        ..Default::default()
    };
    let frame = pb::ClientFrame { id: 7, body: Some(pb::client_frame::Body::Send(send)) };
    let bytes = bytes::Bytes::from(frame.encode_to_vec());
    for _ in 0..iterations {
        let frame = pb::ClientFrame::decode(black_box(bytes.clone())).expect("what was encoded");
        black_box(frame);
    }
}

/// One more member served by a fan-out, in a real node with real sockets; a 100th of all else a message costs is in it.
///
/// The members' ends are never read: their socket buffers hold it all.
fn fan_out(iterations: u64) {
    let node = TestNode::start();
    let members: Vec<String> = (0..FAN_MEMBERS).map(|n| format!("m{n}")).collect();
    node.create_group("g", &members);
    let mut conns: Vec<TcpStream> = members.iter().map(|user| node.login(user)).collect();
    let talker = &mut conns[0];
    for number in 0..iterations.div_ceil(FAN_MEMBERS - 1) {
        let send = pb::Send {
            conversation: "g:g".into(),
            msg_id: format!("m{number}"),
            content: Some(Content::text("x".repeat(128))),
            ..Default::default()
        };
        ask(talker, pb::client_frame::Body::Send(send));
        read_frame(talker);
    }
}

/// A connection from accept over Hello to Welcome, then closed; both ends' user space.
fn accept_path(iterations: u64) {
    let node = TestNode::start();
    for number in 0..iterations {
        drop(node.login(&format!("u{number}")));
    }
}

/// Members of the group; the talker is one of them.
const FAN_MEMBERS: u64 = 101;

struct TestNode {
    node: Option<tidegate::node::Node>,
    data: std::path::PathBuf,
}

impl TestNode {
    fn start() -> Self {
        let data = env::temp_dir().join(format!("tidegate-counts-{}", std::process::id()));
        let sets = [
            format!("node.data={}", data.display()),
            // The disk decides how many turns a message takes, and with it the count.
            "node.store=memory".into(),
            "node.shards=1".into(),
            "listen.client=127.0.0.1:0".into(),
            "listen.admin=127.0.0.1:0".into(),
            "limits.small_group_max=1".into(),
            "limits.conns_per_ip=0".into(),
            "timing.handshake_ms=600000".into(),
        ];
        let config = tidegate::config::Config::load(None, &sets).expect("a sound configuration");
        Self { node: Some(tidegate::node::Node::start(&config).expect("a node starts")), data }
    }

    fn node(&self) -> &tidegate::node::Node {
        self.node.as_ref().expect("it runs until it is dropped")
    }

    fn create_group(&self, id: &str, members: &[String]) {
        let body = serde_json::json!({"id": id, "members": members}).to_string();
        let mut stream = TcpStream::connect(self.node().addresses.admin).expect("the admin port");
        let head =
            "POST /v1/groups HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close";
        write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("it is read");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }

    fn login(&self, user: &str) -> TcpStream {
        let token = tidegate::auth::sign(&self.node().token_key, user, None, Duration::from_secs(3_600));
        let mut stream = TcpStream::connect(self.node().addresses.client).expect("the client port");
        stream.write_all(b"TG/1\n").expect("it is read");
        let hello = pb::Hello { version: 1, token, device: "d".into(), ..Default::default() };
        ask(&mut stream, pb::client_frame::Body::Hello(hello));
        read_frame(&mut stream);
        stream
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.data).ok();
    }
}

fn ask(stream: &mut TcpStream, body: pb::client_frame::Body) {
    let frame = pb::ClientFrame { id: 1, body: Some(body) };
    stream.write_all(&frame.encode_length_delimited_to_vec()).expect("it is read");
}

/// Reads one frame and forgets it: a byte of length (or two), then the payload.
fn read_frame(stream: &mut TcpStream) {
    let mut byte = [0; 1];
    let (mut len, mut shift) = (0usize, 0);
    loop {
        stream.read_exact(&mut byte).expect("an answer");
        len |= usize::from(byte[0] & 0x7f) << shift;
        shift += 7;
        if byte[0] & 0x80 == 0 {
            break;
        }
    }
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload).expect("an answer");
}
