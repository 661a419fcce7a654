//! Records that no library sends: halves of messages, bad lengths, and ends without an end.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::{ClientConnection, ConnectionTrafficSecrets, StreamOwned, version::TLS13};
use tidegate_protocol::codec::Wire;

use super::handshakes::{authority, handshake, offer};
use crate::{
    support::{TestNode, ask, eventually, let_time_pass, send},
    tunnel::Authority,
};

/// Type of a record with a handshake message.
const HANDSHAKE: u8 = 22;
/// Type of a record with content.
const CONTENT: u8 = 23;
/// Type of a record with an alert.
const ALERT: u8 = 21;

/// Client whose next records are written by hand.
struct Forger {
    stream: TcpStream,
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl Forger {
    /// Takes over the connection of a library after its handshake and what it has exchanged since.
    fn new(stream: StreamOwned<ClientConnection, TcpStream>) -> Self {
        let StreamOwned { conn, sock } = stream;
        let (number, secrets) = conn.dangerous_extract_secrets().expect("secrets of an idle connection").tx;
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { panic!("another cipher suite") };
        let key = UnboundKey::new(&AES_256_GCM, key.as_ref()).expect("a key of 32 bytes");
        let iv = iv.as_ref().try_into().expect("12 bytes");
        Self { stream: sock, key: LessSafeKey::new(key), iv, number }
    }

    /// Builds the next record.
    fn record(&mut self, kind: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        let mut sealed = [content, &[kind]].concat();
        let length = u16::try_from(sealed.len() + 16).expect("a short record").to_be_bytes();
        let header = [CONTENT, 3, 3, length[0], length[1]];
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut sealed).expect("it seals");
        [&header[..], &sealed].concat()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it takes bytes");
    }

    /// Reads until the node closes the connection; fails if it takes longer than `within`.
    fn ends(&mut self, within: Duration) {
        self.stream.set_read_timeout(Some(within)).expect("an option");
        let (started, mut bytes) = (Instant::now(), [0; 4_096]);
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) if started.elapsed() < within => {}
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return,
                other => panic!("still open after {:?}: {other:?}", started.elapsed()),
            }
        }
    }
}

/// Logs a user in with JSON lines over TLS 1.3, and hands over to a forger once these requests are answered.
fn forger(node: &TestNode, authority: &Authority, user: &str, requests: &[&str]) -> Forger {
    let mut config = authority.client(&[&TLS13]);
    config.enable_secret_extraction = true;
    let mut stream = handshake(node.address(), "tidegate.test", &Arc::new(config)).expect("a handshake");
    let hello = format!(r#"{{"id":1,"hello":{{"version":1,"token":"{}","device":"d"}}}}"#, node.token(user));
    for request in [&[hello.as_str()][..], requests].concat() {
        stream.write_all(format!("{request}\n").as_bytes()).expect("it takes a frame");
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte).expect("it answers");
        }
    }
    Forger::new(stream)
}

fn start(authority: &Authority) -> TestNode {
    let pair = authority.certify("node", &["tidegate.test"]);
    TestNode::start(|config| offer(config, &[pair]))
}

#[test]
fn half_of_a_message_ends_its_connection_and_nothing_else() {
    let authority = authority();
    let node = start(&authority);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    bob.expect_done(ask::join("hall"));
    let mut eve = forger(&node, &authority, "eve", &[r#"{"id":2,"join":{"room":"hall"}}"#]);
    // A key update of 16 KiB, of which nothing follows.
    let half = eve.record(HANDSHAKE, &[24, 0, 64, 0]);
    eve.write(&half);
    // Pushes to the room are written to the connection as long as it is open.
    for number in 0..50 {
        bob.send(send("r:hall", &format!("m{number}"), "after the half"));
    }
    eve.ends(Duration::from_secs(8));
    assert_eq!(node.metric("tidegate_conn_panics_total"), Some(0.0));
    bob.send(send("r:hall", "last", "the node goes on"));
}

#[test]
fn half_of_a_message_ends_a_connection_that_gets_nothing() {
    let authority = authority();
    let node = start(&authority);
    // Nothing is written to it, so that only the read can notice.
    let mut eve = forger(&node, &authority, "eve", &[]);
    let half = eve.record(HANDSHAKE, &[24, 0, 64, 0]);
    eve.write(&half);
    eve.ends(Duration::from_secs(8));
    assert_eq!(node.metric("tidegate_conn_panics_total"), Some(0.0));
}

#[test]
fn half_of_a_record_ends_its_connection_as_half_of_a_frame_does() {
    let authority = authority();
    let pair = authority.certify("node", &["tidegate.test"]);
    let node = TestNode::start(|config| {
        offer(config, &[pair]);
        config.timing.frame_ms = 1_000;
    });
    let ping = b"{\"id\":9,\"ping\":{}}\n";
    let mut slow = forger(&node, &authority, "slow", &[]);
    let record = slow.record(CONTENT, ping);
    slow.write(&record[..12]);
    slow.ends(Duration::from_secs(8));
    // Records that end in time are fine, whatever their pieces.
    let mut steady = forger(&node, &authority, "steady", &[]);
    let records: Vec<u8> = (0..30).flat_map(|_| steady.record(CONTENT, ping)).collect();
    for piece in records.chunks(records.len() / 20) {
        steady.write(piece);
        let_time_pass("twice the time for a frame passes", Duration::from_millis(100));
    }
    assert_eq!(node.conns(), 1, "it is open after twice the time for a frame");
}

#[test]
fn a_malformed_first_record_ends_its_connection_alone() {
    let authority = authority();
    let node = start(&authority);
    for bytes in [
        &[&[22, 3, 1, 255, 255][..], &[b'a'; 100]].concat()[..],
        &[22, 3, 1, 0, 4, 1, 2, 3, 4],
        &[22, 3, 3, 0, 0],
    ] {
        let mut stranger = TcpStream::connect(node.address()).expect("it accepts");
        stranger.write_all(bytes).expect("it takes bytes");
        stranger.shutdown(Shutdown::Write).expect("it is open");
        stranger.set_read_timeout(Some(Duration::from_secs(8))).expect("an option");
        let mut alert = Vec::new();
        stranger.read_to_end(&mut alert).ok();
        assert!(alert.is_empty() || alert[0] == ALERT, "{alert:?}");
    }
    assert_eq!(node.metric("tidegate_conn_panics_total"), Some(0.0));
    forger(&node, &authority, "alice", &[]);
}

#[test]
fn the_end_of_the_input_is_noticed_however_it_arrives() {
    let authority = authority();
    let node = start(&authority);
    let close = [1, 0];
    // A frame and the announcement of the end in one segment, without the end of the stream.
    let mut first = forger(&node, &authority, "a", &[]);
    let both = [first.record(CONTENT, b"{\"id\":9,\"ping\":{}}\n"), first.record(ALERT, &close)].concat();
    first.write(&both);
    first.ends(Duration::from_secs(8));
    // Half a record, and the end of the stream.
    let mut second = forger(&node, &authority, "b", &[]);
    let half = second.record(CONTENT, b"{\"id\":9,\"ping\":{}}\n");
    second.write(&half[..10]);
    second.stream.shutdown(Shutdown::Write).expect("it is open");
    second.ends(Duration::from_secs(8));
    // Records without content, then a frame, then the end.
    let mut third = forger(&node, &authority, "c", &[]);
    let empty: Vec<u8> = (0..20).flat_map(|_| third.record(CONTENT, b"")).collect();
    let bye = third.record(CONTENT, b"{\"bye\":{}}\n");
    third.write(&[empty, bye].concat());
    third.ends(Duration::from_secs(8));
    eventually("all have left", || (node.conns() == 0).then_some(()));
}

#[test]
fn a_changed_record_ends_its_connection_after_what_came_before_it() {
    let authority = authority();
    let node = start(&authority);
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let mut eve = forger(&node, &authority, "eve", &[]);
    let sound = eve.record(
        CONTENT,
        b"{\"id\":9,\"send\":{\"toUser\":\"bob\",\"msgId\":\"before\",\"content\":{\"text\":\"sound\"}}}\n",
    );
    let mut changed = eve.record(CONTENT, b"{\"bye\":{}}\n");
    changed[7] ^= 1;
    eve.write(&[sound, changed].concat());
    assert_eq!(bob.expect_push().msg_id, "before");
    eve.ends(Duration::from_secs(8));
    assert_eq!(node.metric("tidegate_conn_panics_total"), Some(0.0));
}
