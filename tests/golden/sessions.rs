//! Sessions of two clients over each wire, byte for byte as clients of a version sent them, against today's node.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt as _, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate::auth;
use tidegate_protocol::{Code, codec::Wire, pb};

use self::raw::{Raw, opening, wrap};
use crate::{
    convert::{hex, lacks, unhex},
    folder::{Folder, versions},
    support::{Process, ask, fresh_data, send},
};

#[path = "sessions/raw.rs"]
mod raw;

const FILE: &str = "sessions.json";

/// Key of the tokens in the recorded bytes: public, and only valid on a node of these tests.
const TOKEN_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Lifetime of the recorded tokens.
const TOKEN_TTL: Duration = Duration::from_secs(40 * 365 * 24 * 3_600);

/// While a session is recorded, a step ends after this time without a frame.
const QUIET_TIME: Duration = Duration::from_millis(400);

/// Session of two clients on one wire.
#[derive(Deserialize, Serialize)]
struct Session {
    wire: String,
    steps: Vec<Step>,
}

/// Bytes that one of them sends, and the frames that both then receive.
#[derive(Deserialize, Serialize)]
struct Step {
    client: usize,
    bytes: String,
    received: [Vec<Value>; 2],
}

fn wire(name: &str) -> Wire {
    *Wire::ALL.iter().find(|wire| format!("{wire:?}") == name).expect("a wire")
}

/// Starts a node that accepts the recorded tokens.
fn node() -> Process {
    let data = fresh_data();
    fs::create_dir_all(&data).expect("the folder is created");
    let key = data.join("token.key");
    fs::write(&key, format!("{TOKEN_KEY}\n")).expect("a file");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file is owned by the test");
    Process::start_on(&data, &[])
}

/// Returns the frames that the two send in turn; `a` and `b` are their names.
fn script(a: &str, b: &str) -> Vec<(usize, pb::ClientFrame)> {
    let token = |user: &str| auth::sign(&unhex(TOKEN_KEY), user, None, TOKEN_TTL);
    let hello = |user: &str, next_id: &str| pb::Hello {
        version: 1,
        token: token(user),
        device: "phone".into(),
        next_id: next_id.into(),
        settings: Some(pb::Settings { unread: "all".into(), ..pb::Settings::default() }),
        ..pb::Hello::default()
    };
    let direct = format!("d:{a}:{b}");
    let chained = pb::Send { next_id: "m2".into(), ..send(b, "m1", "one, é漢😀") };
    let bodies = [
        (0, ask::hello(hello(a, "m1"))),
        (1, ask::hello(hello(b, ""))),
        (0, ask::send(chained.clone())),
        (1, ask::ack(&direct, 1)),
        // A retry has the same successor.
        (0, ask::send(pb::Send { attempt: 1, ..chained })),
        (0, ask::next_id()),
        (0, ask::send(pb::Send { next_id: "m3".into(), flags: 5, ..send(&direct, "m2", "two") })),
        (1, ask::ack(&direct, 2)),
        (1, ask::read(&direct, 1)),
        (0, ask::recall(&direct, 2)),
        (0, ask::ack(&direct, 3)),
        (1, ask::ack(&direct, 3)),
        (1, ask::ping_with(&[(&direct, 1)])),
        (1, ask::sync(&[(&direct, 1)])),
        (1, ask::before(&direct, 0, 10)),
        (1, ask::after(&direct, 1, 10)),
        (1, ask::seqs(&direct, &[1, 3])),
        (1, ask::around(&direct, 2, 1)),
        (0, ask::signal(b, "typing", "")),
        (1, ask::hide(&direct, &[1])),
        (1, ask::clear(&direct, 2)),
        (0, ask::join("hall")),
        (1, ask::join("hall")),
        (0, ask::send(send("r:hall", "r1", "wave"))),
        (1, ask::leave("hall")),
        (0, ask::send(send("g:nobody", "g1", "refused"))),
        (0, ask::bye()),
        (1, ask::bye()),
    ];
    let numbered = bodies.into_iter().zip(1..);
    numbered.map(|((client, body), id)| (client, pb::ClientFrame { id, body: Some(body) })).collect()
}

/// Records one session with a node of the present version.
fn record(at: SocketAddr, wire: Wire) -> Session {
    let names = ["ann", "bob"].map(|name| format!("{name}-{wire:?}"));
    let mut clients = [Raw::connect(at, wire), Raw::connect(at, wire)];
    let mut steps = Vec::new();
    let opened = [0, 1].map(|client| (client, opening(wire)));
    let frames = script(&names[0], &names[1]).into_iter().map(|(client, frame)| (client, wrap(wire, &frame)));
    for (client, bytes) in opened.into_iter().chain(frames).filter(|(_, bytes)| !bytes.is_empty()) {
        clients[client].send(&bytes);
        let received = clients.each_mut().map(|client| client.until_quiet(QUIET_TIME));
        steps.push(Step { client, bytes: hex(&bytes), received });
    }
    Session { wire: format!("{wire:?}"), steps }
}

/// Records a session on each wire.
pub(crate) fn write(folder: &Folder) {
    let node = node();
    let sessions: Vec<Session> = Wire::ALL.iter().map(|wire| record(node.address(), *wire)).collect();
    let lines = sessions.iter().flat_map(|it| it.steps.iter().map(|step| (&it.wire, step)));
    folder.write_list(FILE, &lines.collect::<Vec<_>>());
}

fn read(folder: &Folder) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for (wire, step) in folder.json::<Vec<(String, Step)>>(FILE) {
        match sessions.last_mut().filter(|session| session.wire == wire) {
            Some(session) => session.steps.push(step),
            None => sessions.push(Session { wire, steps: vec![step] }),
        }
    }
    sessions
}

/// Sorts pushes before replies: of a push and a reply at the same time, either may be first.
fn in_order(mut received: Vec<Value>) -> Vec<Value> {
    received.sort_by_key(|frame| frame["id"].as_u64());
    received
}

/// Returns recorded frames with what version 4 of the ledger's rules has changed: a stranger does not learn that a group does
/// not exist. The recorded nodes had not switched to it yet.
fn since_rules_4(mut frames: Vec<Value>) -> Vec<Value> {
    for frame in &mut frames {
        if frame["error"]["name"] == "NOT_FOUND" {
            frame["error"]["name"] = "NOT_A_MEMBER".into();
            frame["error"]["code"] = Code::NotAMember.number().into();
        }
    }
    frames
}

#[test]
fn clients_of_every_version_get_the_same_frames() {
    for folder in versions() {
        let node = node();
        let sessions = read(&folder);
        assert_eq!(sessions.len(), Wire::ALL.len());
        for session in sessions {
            let wire = wire(&session.wire);
            let mut clients = [(); 2].map(|()| Raw::connect(node.address(), wire));
            for (nth, step) in session.steps.iter().enumerate() {
                clients[step.client].send(&unhex(&step.bytes));
                for (client, golden) in clients.iter_mut().zip(&step.received) {
                    let received = in_order(client.next(golden.len()));
                    let missing =
                        lacks(&in_order(since_rules_4(golden.clone())).into(), &received.clone().into());
                    assert_eq!(missing, None, "{} over {wire:?}, step {nth}: {received:?}", folder.version);
                }
            }
            for client in &mut clients {
                assert!(client.is_over(), "{} over {wire:?}: there is one more frame", folder.version);
            }
        }
    }
}
