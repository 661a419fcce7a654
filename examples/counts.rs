//! Hot paths for `cargo xtask test counts`: runs one of them, by name, n times; without arguments, prints the names.
//!
//! Nothing here may depend on time, randomness or addresses, because the instructions of n runs are subtracted from
//! those of 2n runs.

use std::{
    env,
    hint::black_box,
    io::{Read, Write},
    net::{IpAddr, TcpStream},
    time::{Duration, Instant},
};

use prost::Message as _;
use tidegate::{
    limits::{ConnectionKeys, LimitCall, LimitContent, LimitRefusal, LimitSubjects, RuleGuard, RuleSet},
    mail::{ConnKey, Mail},
    metrics,
};
use tidegate_protocol::{Time, content::Content, id::ConversationId, machine::session::SubmitAnswer, pb};

#[path = "../tests/support/manual_shards.rs"]
mod manual_shards;

use manual_shards::{Sockets, push};

type ManualShards = manual_shards::ManualShards<Sockets>;

type HotPath = fn(u64);

/// Hot paths by name; each name has a limit in `benches/counts.toml`.
const HOT_PATHS: &[(&str, HotPath)] = &[
    ("push_encode", push_encode),
    ("send_decode", send_decode),
    ("fan_out", fan_out),
    ("accept_path", accept_path),
    ("send_path", send_path),
    ("ten_rules", ten_rules),
];

fn main() {
    let mut args = env::args().skip(1);
    let Some(name) = args.next() else {
        HOT_PATHS.iter().for_each(|(name, _)| println!("{name}"));
        return;
    };
    let (_, run) = HOT_PATHS.iter().find(|(known, _)| *known == name).expect("a name from the list");
    let iterations = args.next().and_then(|n| n.parse().ok()).expect("a number of iterations");
    run(iterations);
}

/// Encodes a push of 128 bytes of text to protobuf, which happens once per message and framing.
fn push_encode(iterations: u64) {
    let push = pb::Push {
        conversation: "g:harbour".into(),
        seq: 123_456,
        sender: "alice".into(),
        msg_id: "m-000123456".into(),
        time: 1_763_712_000_000,
        content: Some(Content::text("x".repeat(128))),
        ..Default::default()
    };
    let frame = pb::ServerFrame { id: 0, body: Some(pb::server_frame::Body::Push(push)) };
    for _ in 0..iterations {
        black_box(black_box(&frame).encode_to_vec());
    }
}

/// Decodes a send of 128 bytes of text from protobuf, which happens once per accepted message.
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

/// Serves one more member by a fan-out to a hundred on real sockets, including a hundredth of the turn's other costs.
fn fan_out(iterations: u64) {
    let (mut shards, group) = (ManualShards::new(1, |_, _| {}), harbour());
    let mut members: Vec<TcpStream> = (0..FAN_OUT_MEMBERS)
        .map(|n| login(&mut shards, &format!("m{n}"), std::slice::from_ref(&group)))
        .collect();
    let text = "x".repeat(128);
    for seq in 1..=iterations.div_ceil(FAN_OUT_MEMBERS) {
        assert!(shards.push(0, push(&group, seq, &text)), "the mailbox is empty");
        counted(&mut shards);
        members.iter_mut().for_each(read_frame);
    }
}

/// Takes a connection through the shard: accept, Hello, Welcome, close.
fn accept_path(iterations: u64) {
    let mut shards = ManualShards::new(1, |_, _| {});
    for number in 0..iterations {
        let mut client = hello(&shards, &format!("u{number:06}"));
        shards.accept(0);
        // One turn each: registered, Hello read, Welcome sent, closed.
        counted(&mut shards);
        counted(&mut shards);
        assert!(shards.answer_logins(0, &[]), "a login");
        counted(&mut shards);
        read_frame(&mut client);
        drop(client);
        counted(&mut shards);
        assert_eq!(shards.handles[0].conns(), 0);
    }
}

/// Takes a message of 128 bytes through the shard of its sender: read, decided, handed to the log, answered.
fn send_path(iterations: u64) {
    let mut shards = ManualShards::new(1, |_, _| {});
    let mut alice = login(&mut shards, "alice", &[]);
    let text = "x".repeat(128);
    for number in 0..iterations {
        let msg_id = format!("m-{number:09}");
        let content = Some(Content::text(&text));
        let send = pb::Send { to_user: "bob".into(), msg_id, content, ..Default::default() };
        let frame = pb::ClientFrame { id: 2 + number, body: Some(pb::client_frame::Body::Send(send)) };
        alice.write_all(&frame.encode_length_delimited_to_vec()).expect("a small frame fits");
        counted(&mut shards);
        let [record] = &shards.take_sends()[..] else { panic!("one message") };
        let (key, ticket) = (ConnKey::unpack(record.origin.conn), record.origin.request);
        let answer = SubmitAnswer::Accepted { seq: 1 + number, time: 1 };
        shards.post(0, Mail::Answers(vec![(key, ticket, answer)]));
        counted(&mut shards);
        read_frame(&mut alice);
    }
}

/// Counts a send of 128 bytes of text in ten rules of eight levels, none of which refuses it.
fn ten_rules(iterations: u64) {
    const LEVELS: [&str; 10] = [
        "node",
        "org",
        "channel",
        "user",
        "user",
        "device",
        "conversation",
        "conversation",
        "address",
        "content",
    ];
    let rule = |(n, level): (usize, &&str)| {
        let window = if n % 2 == 0 { "1s" } else { "1m" };
        format!(
            "[[rule]]\nid = \"r{n}\"\nlevel = \"{level}\"\ncalls = [\"send\"]\nwindow = \"{window}\"\nlimit = 1000000\n"
        )
    };
    let text: String = LEVELS.iter().enumerate().map(rule).collect();
    let set = RuleSet::parse(&text, Duration::from_secs(2)).expect("good rules");
    let guard = RuleGuard::new(&set, metrics::install().0, Instant::now());
    let users: Vec<String> = (0..100).map(|n| format!("user-{n}")).collect();
    let content = |user: &String| Content::text(format!("{user} says {}", "x ".repeat(58))).encode_to_vec();
    let contents: Vec<Vec<u8>> = users.iter().map(content).collect();
    let connections: Vec<LimitSubjects<'_>> = (0..users.len())
        .map(|at| LimitSubjects {
            organisation: Some("acme"),
            channel: Some("app"),
            user: Some(&users[at]),
            device: Some("phone"),
            address: Some(IpAddr::from([192, 0, 2, at as u8])),
            ..LimitSubjects::default()
        })
        .collect();
    // Each connection computes these once.
    let keys: Vec<ConnectionKeys> = connections.iter().map(|it| guard.connection_keys(it)).collect();
    for n in 0..iterations {
        let at = (n % 100) as usize;
        let subjects = LimitSubjects {
            conversation: Some("d:user-1:user-2"),
            content: Some(LimitContent::Encoded(&contents[at])),
            connection: Some(&keys[at]),
            ..connections[at]
        };
        let now = Time::from_millis(1_000 + n / 20);
        assert!(counted_admission(&guard, black_box(&subjects), now).is_ok(), "no rule refuses it");
    }
}

/// Decides about one send. Only instructions inside this function are counted: the installation of the metrics calibrates
/// a clock, which takes as long as the machine needs.
#[inline(never)]
fn counted_admission(guard: &RuleGuard, subjects: &LimitSubjects<'_>, now: Time) -> Result<(), LimitRefusal> {
    guard.admit(LimitCall::Send, subjects, now, true, || Ok(()))
}

/// Runs one turn of the shard; only instructions inside this function are counted (`xtask/src/steps/counts.rs`).
#[inline(never)]
fn counted(shards: &mut ManualShards) {
    shards.turn(0);
}

/// Number of members in the group of the fan-out.
const FAN_OUT_MEMBERS: u64 = 100;

fn harbour() -> ConversationId {
    ConversationId::parse("g:harbour").expect("a good id")
}

/// Connects and sends Hello, before the shard accepts the connection.
fn hello(shards: &ManualShards, user: &str) -> TcpStream {
    let mut stream = TcpStream::connect(shards.address()).expect("it listens");
    let hello = pb::Hello { version: 1, token: shards.token(user), device: "d".into(), ..Default::default() };
    let frame = pb::ClientFrame { id: 1, body: Some(pb::client_frame::Body::Hello(hello)) };
    let bytes = [b"TG/1\n".to_vec(), frame.encode_length_delimited_to_vec()].concat();
    stream.write_all(&bytes).expect("a small frame fits");
    stream
}

/// Connects a client, which is a member of these groups, and reads its Welcome.
fn login(shards: &mut ManualShards, user: &str, groups: &[ConversationId]) -> TcpStream {
    let mut client = hello(shards, user);
    shards.accept(0);
    shards.admit(0, groups);
    read_frame(&mut client);
    client
}

/// Reads one frame and discards it: a varint length, then the payload.
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
