//! The attacks: which connections a hostile client opens, what they send, and at what pace.

use std::time::Duration;

use anyhow::{Result, bail};
use tidegate::auth;
use tidegate_protocol::{
    codec,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::frames::{self, Session};

/// User of the hostile client.
const MALLORY: &str = "mallory";
/// Conversations that the attack on reads makes first; below the default limit of new ones per minute.
const CONVERSATIONS: usize = 90;
/// Validity of tokens.
const TOKEN_TTL: Duration = Duration::from_secs(3_600);
/// Time of one read or write of the preparation.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Room of the attack by slow readers.
const ROOM: &str = "hall";
/// Connections that talk in that room; the others do not read.
const TALKERS: usize = 2;
/// Connections of one user that send to a live room without pause.
const FLOODERS: usize = 12;
/// Connections of one user that send to conversations and rooms of its own.
const OWN_DEVICES: usize = 30;
/// Connections of one user in attacks of several users.
const DEVICES: usize = 10;

/// The node under attack.
pub(super) struct Target {
    /// Address of the client port.
    pub(super) clients: String,
    /// Address of the admin port.
    pub(super) admin: String,
    /// HS256 key of tokens.
    pub(super) key: Vec<u8>,
}

impl Target {
    /// Returns the `hello` of a user's device.
    pub(super) fn hello(&self, user: &str, device: &str) -> pb::Hello {
        let token = auth::sign(&self.key, user, None, TOKEN_TTL);
        pb::Hello { token, device: device.to_owned(), ..pb::Hello::default() }
    }
}

/// Port that an attack connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// The client port, without a login.
    Strangers,
    /// The client port; chunks follow the `welcome`.
    Users,
    Admin,
}

/// When a connection sends its next chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// As fast as the socket takes bytes.
    FlatOut,
    /// When the last chunk is answered.
    Answered,
    /// Never; the connection ends with the first answer and comes back.
    Churn,
    /// In equal intervals.
    Every(Duration),
}

/// Place of a chunk: the connection, how often it was opened before, and the chunks that it has sent since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) conn: usize,
    pub(super) life: u64,
    pub(super) nth: u64,
}

impl Place {
    /// Returns an id that no other chunk uses.
    fn id(self, n: usize) -> String {
        format!("m{}-{}-{}-{n}", self.conn, self.life, self.nth)
    }
}

/// One attack.
pub(super) struct Attack {
    /// Name on the command line; begins with the number of a finding, if there is one.
    pub(super) name: &'static str,
    /// Description for people.
    pub(super) what: &'static str,
    pub(super) port: Port,
    pub(super) conns: usize,
    pub(super) pace: Pace,
    /// Returns the first bytes of a connection.
    pub(super) opening: fn(&Target, Place) -> Vec<u8>,
    /// Returns the next bytes; none: nothing more.
    pub(super) chunk: fn(Place) -> Vec<u8>,
    /// Returns whether the connection reads nothing after its login.
    pub(super) is_deaf: fn(usize) -> bool,
    /// Runs before the attack.
    pub(super) prepare: fn(&Target) -> Result<()>,
}

/// Attack whose fields each entry of [`ALL`] overrides.
const PLAIN: Attack = Attack {
    name: "",
    what: "",
    port: Port::Users,
    conns: 4,
    pace: Pace::FlatOut,
    opening: one_device_each,
    chunk: nothing,
    is_deaf: |_| false,
    prepare: |_| Ok(()),
};

/// All attacks, in the order of the findings.
pub(super) const ALL: [Attack; 16] = [
    Attack {
        name: "x1-recipients",
        what: "sends to recipients that are always new",
        chunk: recipients,
        ..PLAIN
    },
    Attack {
        name: "x2-devices",
        what: "logins of one user with devices that are always new",
        conns: 32,
        pace: Pace::Churn,
        opening: new_device_each,
        ..PLAIN
    },
    Attack {
        name: "x3-rooms",
        what: "pipelined joins and leaves that ask for no answer",
        chunk: rooms,
        ..PLAIN
    },
    Attack { name: "x4-groups", what: "sends to groups that do not exist", chunk: groups, ..PLAIN },
    Attack {
        name: "x6-reads",
        what: "syncs, pulls of scattered seqs and pings with positions, as fast as answered",
        conns: 16,
        pace: Pace::Answered,
        chunk: reads,
        prepare: conversations,
        ..PLAIN
    },
    Attack {
        name: "x7-partial",
        what: "incomplete frames before the login",
        port: Port::Strangers,
        conns: 400,
        opening: partial_frame,
        ..PLAIN
    },
    Attack {
        name: "x7-held",
        what: "chained messages whose predecessor never comes",
        conns: 200,
        opening: chained_device,
        chunk: held,
        ..PLAIN
    },
    Attack { name: "x9-acks", what: "acks of nothing", conns: 8, chunk: acks, ..PLAIN },
    Attack {
        name: "x9-pings",
        what: "frames of one byte, each answered",
        conns: 8,
        chunk: empty_frames,
        ..PLAIN
    },
    Attack {
        name: "x11-silent",
        what: "silent callers of the admin port",
        port: Port::Admin,
        conns: 400,
        opening: |_, _| Vec::new(),
        ..PLAIN
    },
    Attack {
        name: "x11-metrics",
        what: "busy callers of the admin port",
        port: Port::Admin,
        conns: 8,
        opening: |_, _| Vec::new(),
        chunk: scrapes,
        ..PLAIN
    },
    Attack { name: "x16-refused", what: "sends without content", chunk: refused, ..PLAIN },
    Attack {
        name: "slow-readers",
        what: "members of a live room who do not read",
        conns: TALKERS + 100,
        pace: Pace::Every(Duration::from_millis(100)),
        opening: several_users,
        chunk: talk,
        is_deaf: |conn| conn >= TALKERS,
        ..PLAIN
    },
    Attack {
        name: "s69-room",
        what: "a member of a large live room sends to it without pause",
        conns: FLOODERS + 500,
        opening: flooders_and_members,
        chunk: flood_room,
        ..PLAIN
    },
    Attack {
        name: "s70-rooms",
        what: "tiny messages to empty live rooms",
        conns: OWN_DEVICES,
        chunk: own_room,
        ..PLAIN
    },
    Attack {
        name: "s71-devices",
        what: "messages of a user to itself, on many devices",
        conns: OWN_DEVICES,
        chunk: own_messages,
        ..PLAIN
    },
];

/// Returns the attacks with these names, or all.
///
/// # Errors
/// There is no attack of that name.
pub(super) fn named(names: &[String]) -> Result<Vec<&'static Attack>> {
    static ATTACKS: [Attack; ALL.len()] = ALL;
    if let Some(unknown) = names.iter().find(|name| !ATTACKS.iter().any(|it| it.name == **name)) {
        let all = ATTACKS.each_ref().map(|it| it.name).join(", ");
        bail!("no attack is named {unknown}; there are {all}");
    }
    Ok(ATTACKS.iter().filter(|it| names.is_empty() || names.iter().any(|name| name == it.name)).collect())
}

fn nothing(_: Place) -> Vec<u8> {
    Vec::new()
}

fn one_device_each(target: &Target, place: Place) -> Vec<u8> {
    frames::greeting(target.hello(MALLORY, &format!("d{}", place.conn)))
}

fn new_device_each(target: &Target, place: Place) -> Vec<u8> {
    frames::greeting(target.hello(MALLORY, &format!("d{}-{}", place.conn, place.life)))
}

/// Name of the user of a connection, and its device, where each user has [`DEVICES`].
fn one_of_several(conn: usize) -> (String, String) {
    (format!("{MALLORY}{}", conn / DEVICES), format!("d{}", conn % DEVICES))
}

fn several_users(target: &Target, place: Place) -> Vec<u8> {
    let (user, device) = one_of_several(place.conn);
    frames::greeting(target.hello(&user, &device))
}

fn flooders_and_members(target: &Target, place: Place) -> Vec<u8> {
    if place.conn < FLOODERS { one_device_each(target, place) } else { several_users(target, place) }
}

fn chained_device(target: &Target, place: Place) -> Vec<u8> {
    let (user, device) = one_of_several(place.conn);
    let next_id = format!("missing-{}", place.life);
    frames::greeting(pb::Hello { next_id, ..target.hello(&user, &device) })
}

/// Half of them claim a frame of the largest size, half one of the size that a `hello` may have.
fn partial_frame(_: &Target, place: Place) -> Vec<u8> {
    let claimed = if place.conn.is_multiple_of(2) { 65_536 } else { 4_096 };
    let mut out = frames::PREFACE.to_vec();
    codec::tcp::put_length(claimed, &mut out);
    out.resize(out.len() + claimed - 1, b'x');
    out
}

fn sends(count: usize, place: Place, send: impl Fn(String) -> pb::Send) -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..count {
        frames::put(place.nth * 1_000 + n as u64 + 2, ClientBody::Send(send(place.id(n))), &mut out);
    }
    out
}

fn recipients(place: Place) -> Vec<u8> {
    sends(64, place, |id| pb::Send { to_user: format!("to-{id}"), ..frames::message("", &id, 16) })
}

fn groups(place: Place) -> Vec<u8> {
    sends(64, place, |id| frames::message(&format!("g:none-{id}"), &id, 16))
}

fn refused(place: Place) -> Vec<u8> {
    sends(64, place, |id| pb::Send { content: None, ..frames::message("d:mallory:peer", &id, 0) })
}

fn held(place: Place) -> Vec<u8> {
    sends(16, place, |id| {
        let (next_id, to_user) = (format!("{id}-next"), "peer".to_owned());
        pb::Send { next_id, to_user, ..frames::message("", &id, 1_024) }
    })
}

fn rooms(place: Place) -> Vec<u8> {
    let mut out = Vec::new();
    for n in 0..128 {
        let room = place.id(n);
        frames::put(0, ClientBody::Join(pb::Join { room: room.clone() }), &mut out);
        frames::put(0, ClientBody::Leave(pb::Leave { room, ..pb::Leave::default() }), &mut out);
    }
    out
}

/// A conversation of mallory, with a user whose name sorts later.
fn conversation(n: usize) -> String {
    format!("d:{MALLORY}:peer{n}")
}

fn conversations(target: &Target) -> Result<()> {
    let mut session = Session::log_in(&target.clients, target.hello(MALLORY, "first"), IO_TIMEOUT)?;
    for n in 0..CONVERSATIONS {
        let id = n as u64 + 2;
        session.send(id, ClientBody::Send(frames::message(&conversation(n), &format!("first-{n}"), 16)))?;
        loop {
            let frame = session.next()?;
            match frame.body {
                Some(ServerBody::SendAck(_)) if frame.id == id => break,
                Some(ServerBody::Error(error)) => bail!("the preparation is refused: {}", error.name),
                _ => {}
            }
        }
    }
    Ok(())
}

fn reads(place: Place) -> Vec<u8> {
    let mut out = Vec::new();
    let id = place.nth + 2;
    let body = match place.nth % 3 {
        0 => ClientBody::Sync(pb::Sync::default()),
        1 => {
            let seqs = (0..200).map(|n| n * 2 + 1).collect();
            let conversation = conversation(place.nth as usize % CONVERSATIONS);
            ClientBody::Pull(pb::Pull { conversation, seqs, ..pb::Pull::default() })
        }
        _ => {
            let positions = vec![pb::Position { conversation: "d:mallory:nobody".to_owned(), seq: 1 }];
            ClientBody::Ping(pb::Ping { positions })
        }
    };
    frames::put(id, body, &mut out);
    out
}

fn acks(place: Place) -> Vec<u8> {
    let mut out = Vec::new();
    for seq in 1..=512 {
        let conversation = conversation(place.conn);
        frames::put(0, ClientBody::Ack(pb::Ack { conversation, seq }), &mut out);
    }
    out
}

/// An empty frame is a ping.
fn empty_frames(_: Place) -> Vec<u8> {
    vec![0; 4096]
}

fn scrapes(_: Place) -> Vec<u8> {
    b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".to_vec()
}

fn join(room: &str) -> Vec<u8> {
    let mut out = Vec::new();
    frames::put(2, ClientBody::Join(pb::Join { room: room.to_owned() }), &mut out);
    out
}

fn flood_room(place: Place) -> Vec<u8> {
    match place {
        Place { nth: 0, .. } => join(ROOM),
        Place { conn: FLOODERS.., .. } => Vec::new(),
        place => sends(64, place, |id| frames::message(&format!("r:{ROOM}"), &id, 16)),
    }
}

fn own_room(place: Place) -> Vec<u8> {
    let room = format!("own{}", place.conn);
    if place.nth == 0 {
        return join(&room);
    }
    sends(64, place, |id| frames::message(&format!("r:{room}"), &id, 1))
}

fn own_messages(place: Place) -> Vec<u8> {
    sends(64, place, |id| frames::message(&format!("d:{MALLORY}:{MALLORY}"), &id, 16))
}

fn talk(place: Place) -> Vec<u8> {
    if place.nth == 0 {
        return join(ROOM);
    }
    if place.conn >= TALKERS {
        // A ping, by which a connection that was closed is noticed.
        return empty_frames(place)[..1].to_vec();
    }
    sends(4, place, |id| frames::message(&format!("r:{ROOM}"), &id, 8_192))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn attacks_are_found_by_unique_names() {
        let all = named(&[]).unwrap();
        let names: BTreeSet<&str> = all.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), all.len());
        assert_eq!(named(&["x9-acks".to_owned()]).unwrap().len(), 1);
        assert!(named(&["x99".to_owned()]).is_err());
    }

    #[test]
    fn chunks_are_whole_frames() {
        for attack in named(&[]).unwrap().into_iter().filter(|it| it.port == Port::Users) {
            for conn in 0..attack.conns {
                let mut chunk = (attack.chunk)(Place { conn, life: 0, nth: 1 });
                let is_member = attack.name == "s69-room" && conn >= FLOODERS;
                assert!(!chunk.is_empty() || attack.pace == Pace::Churn || is_member, "{}", attack.name);
                while !chunk.is_empty() {
                    let split = codec::tcp::split(&chunk, 1 << 20).unwrap();
                    let codec::Split::Frame { consumed, .. } = split else {
                        panic!("{}: an incomplete frame", attack.name);
                    };
                    chunk.drain(..consumed);
                }
            }
        }
    }
}
