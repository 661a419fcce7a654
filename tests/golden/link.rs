//! Messages between nodes over gRPC: the handshake and every kind of call and reply, from both ends.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use aws_lc_rs::hmac;
use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use tidegate::{
    link::{GrpcLink, Listener, Secret, Settings},
    metrics,
    routes::NodeBoot,
};
use tidegate_protocol::{
    id::NodeId,
    pb::{self, exchange_response::Step as Say},
};

use self::{
    end::{End, call_all, calls},
    raw::{Lane, RawListener, open},
};
use crate::{
    convert::{hex, unhex, with_unknown_field},
    folder::{Folder, folders_with, versions},
};

#[path = "link/access.rs"]
mod access;
#[path = "link/end.rs"]
mod end;
#[path = "link/raw.rs"]
mod raw;

/// Calls that are recorded in one file.
#[derive(Clone, Copy)]
pub(crate) enum CallSet {
    /// Calls of the first version.
    First,
    /// Calls by which access ends and block lists change.
    Access,
}

impl CallSet {
    fn file(self) -> &'static str {
        match self {
            Self::First => "link.json",
            Self::Access => "access-link.json",
        }
    }

    /// Returns what the peer records of the calls, in their order.
    fn expected(self) -> Vec<String> {
        match self {
            Self::First => calls(&caller()),
            Self::Access => access::calls(),
        }
    }

    /// Makes each call once, and checks the results.
    async fn make(self, link: &GrpcLink) {
        match self {
            Self::First => call_all(link, &caller(), &peer()).await,
            Self::Access => access::call_all(link, &peer()).await,
        }
    }
}

/// Returns all folders with each of their files of calls.
fn recorded() -> Vec<(Folder, CallSet)> {
    let of = |folders: Vec<Folder>, set| folders.into_iter().map(move |folder| (folder, set));
    let access = folders_with(CallSet::Access.file());
    of(versions(), CallSet::First).chain(of(access, CallSet::Access)).collect()
}

/// The shared secret of the recorded handshakes.
const SECRET: &[u8] = b"known to everybody: a secret of golden files";

/// Far above any duration here; nothing is timed.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// One message of a stream, in order.
#[derive(Clone, Deserialize, Serialize)]
struct Golden {
    lane: usize,
    from: Side,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    Caller,
    Peer,
}

fn node(name: &str, boot: u64) -> NodeBoot {
    NodeBoot { node: NodeId::new(name).expect("an id"), boot }
}

fn caller() -> NodeBoot {
    node("here", 0xfedc_ba98_7654_3210)
}

fn peer() -> NodeBoot {
    node("there", 2)
}

fn settings() -> Settings {
    let secret = Some(Secret::new(SECRET).expect("long enough"));
    Settings { secret, tls: None, queue_bytes: 1 << 20, timeout: CALL_TIMEOUT, handshake: CALL_TIMEOUT }
}

fn listen(end: &Arc<End>) -> Listener {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Listener::bind(any, peer(), end.clone(), settings(), metrics::install().0).expect("a free port")
}

fn link_to(address: SocketAddr) -> GrpcLink {
    let link = GrpcLink::new(caller(), settings(), 7, metrics::install().0);
    link.set_peers(vec![(peer(), address.to_string())]);
    link
}

/// Proof of one side in version 1 of the link: HMAC-SHA256 over a label, the hello and the challenge without its own
/// proof, both with their length before them. `hello` is the whole first message: after its tag it has that form.
fn proof(label: &str, hello: &[u8], challenge: &pb::LinkChallenge) -> Bytes {
    let bare = pb::LinkChallenge { mac: Bytes::new(), ..challenge.clone() };
    let text = [label.as_bytes(), &hello[1..], &bare.encode_length_delimited_to_vec()].concat();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    Bytes::copy_from_slice(hmac::sign(&key, &text).as_ref())
}

fn challenge(message: &[u8]) -> pb::LinkChallenge {
    match pb::ExchangeResponse::decode(message).expect("a response").step {
        Some(Say::Challenge(challenge)) => challenge,
        other => panic!("no challenge: {other:?}"),
    }
}

fn ask_proof(mac: Bytes) -> Bytes {
    let step = Some(pb::exchange_request::Step::Proof(pb::LinkProof { mac }));
    pb::ExchangeRequest { step }.encode_to_vec().into()
}

/// Records the three streams between a node and a peer of the present version, through a relay that does not decode
/// them.
pub(crate) fn write(folder: &Folder, set: CallSet) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut recorded = runtime.block_on(async {
        let end = Arc::new(End::default());
        let listener = listen(&end);
        let noted: Arc<Mutex<Vec<Golden>>> = Arc::default();
        let relay = RawListener::bind({
            let (noted, address) = (Arc::clone(&noted), listener.address());
            move |number, mut lane| {
                let noted = Arc::clone(&noted);
                let note = move |from, message: &Bytes| {
                    let golden = Golden { lane: number, from, hex: hex(message) };
                    noted.lock().push(golden);
                };
                async move {
                    let mut onward = open(address).await;
                    loop {
                        tokio::select! {
                            Some(message) = lane.receive() => { note(Side::Caller, &message); onward.send(message).await }
                            Some(message) = onward.receive() => { note(Side::Peer, &message); lane.send(message).await }
                            else => return,
                        }
                    }
                }
            }
        })
        .await;
        set.make(&link_to(relay.address())).await;
        end.check(set.expected());
        noted.lock().clone()
    });
    recorded.sort_by_key(|it| it.lane);
    folder.write_list(set.file(), &recorded);
}

/// Returns the streams of a file, each with the messages of both sides in turn.
fn lanes(folder: &Folder, set: CallSet) -> Vec<Vec<(Side, Bytes)>> {
    let mut lanes: Vec<Vec<(Side, Bytes)>> = Vec::new();
    for Golden { lane, from, hex } in folder.json::<Vec<Golden>>(set.file()) {
        lanes.resize(lanes.len().max(lane + 1), Vec::new());
        lanes[lane].push((from, unhex(&hex).into()));
    }
    lanes
}

/// Returns the four messages of the handshake and the pairs of call and reply that follow.
fn parts(lane: &[(Side, Bytes)]) -> ([&Bytes; 4], Vec<(&Bytes, &Bytes)>) {
    assert!(
        lane.len().is_multiple_of(2) && lane.iter().step_by(2).all(|(from, _)| *from == Side::Caller),
        "in turn"
    );
    let messages: Vec<&Bytes> = lane.iter().map(|(_, message)| message).collect();
    let pairs = messages[4..].chunks(2).map(|pair| (pair[0], pair[1])).collect();
    (messages[..4].try_into().expect("a handshake"), pairs)
}

#[test]
fn recorded_handshakes_prove_the_secret_like_version_1() {
    for (folder, set) in recorded() {
        let lanes = lanes(&folder, set);
        assert_eq!(lanes.len(), 3, "a node opens three streams to a peer");
        for lane in &lanes {
            let ([hello, answer, proved, _], _) = parts(lane);
            let challenge = challenge(answer);
            assert_eq!(challenge.mac, proof("tidegate link peer", hello, &challenge), "{}", folder.version);
            let mac = proof("tidegate link caller", hello, &challenge);
            assert_eq!(*proved, ask_proof(mac), "{}", folder.version);
        }
    }
}

/// Opens a stream as the recorded caller did, and proves the secret over the fresh nonce of this listener.
async fn greet(address: SocketAddr, [hello, _, _, ready]: [&Bytes; 4]) -> Lane {
    let mut lane = open(address).await;
    lane.send(hello.clone()).await;
    let challenge = challenge(&lane.receive().await.expect("a challenge"));
    assert_eq!(challenge.mac, proof("tidegate link peer", hello, &challenge), "the peer has the secret");
    let at = Some(pb::LinkNode { node: "there".into(), boot: 2 });
    assert_eq!((challenge.version, &challenge.at), (1, &at));
    lane.send(ask_proof(proof("tidegate link caller", hello, &challenge))).await;
    assert_eq!(lane.receive().await.as_ref(), Some(ready));
    lane
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_of_every_version_get_the_same_replies() {
    for (folder, set) in recorded() {
        for is_later in [false, true] {
            let end = Arc::new(End::default());
            let listener = listen(&end);
            for lane in lanes(&folder, set) {
                let (handshake, pairs) = parts(&lane);
                let mut open = greet(listener.address(), handshake).await;
                for (call, reply) in pairs {
                    let call = if is_later { with_unknown_field(call).into() } else { call.clone() };
                    open.send(call).await;
                    let received = open.receive().await.map(|message| hex(&message));
                    assert_eq!(received, Some(hex(reply)), "{}", folder.version);
                }
            }
            end.check(set.expected());
        }
    }
}

/// Plays the recorded peer on one stream, and collects in `unrecorded` each call that was never recorded.
async fn play(mut lane: Lane, golden: Vec<Vec<(Side, Bytes)>>, unrecorded: Arc<Mutex<Vec<String>>>) {
    let note = |what: String| unrecorded.lock().push(what);
    let Some(hello) = lane.receive().await else { return };
    let ([_, recorded, _, ready], _) = parts(&golden[0]);
    let mut challenge = pb::LinkChallenge { nonce: vec![9; 32].into(), ..challenge(recorded) };
    challenge.mac = proof("tidegate link peer", &hello, &challenge);
    let step = Some(Say::Challenge(challenge.clone()));
    lane.send(pb::ExchangeResponse { step }.encode_to_vec().into()).await;
    let proved = lane.receive().await;
    if proved != Some(ask_proof(proof("tidegate link caller", &hello, &challenge))) {
        return note(format!("no proof: {proved:?}"));
    }
    lane.send(ready.clone()).await;
    while let Some(call) = lane.receive().await {
        let pairs = golden.iter().flat_map(|lane| parts(lane).1);
        match pairs.into_iter().find(|(recorded, _)| **recorded == call) {
            Some((_, reply)) => lane.send(reply.clone()).await,
            // Dropping the stream fails the caller's call.
            None => return note(format!("a call that this version never made: {}", hex(&call))),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_of_every_version_get_the_same_calls() {
    for (folder, set) in recorded() {
        let (golden, unrecorded) = (lanes(&folder, set), Arc::<Mutex<Vec<String>>>::default());
        let peers = RawListener::bind({
            let (golden, unrecorded) = (golden.clone(), Arc::clone(&unrecorded));
            move |_, lane| play(lane, golden.clone(), Arc::clone(&unrecorded))
        })
        .await;
        let link = link_to(peers.address());
        let called = tokio::spawn(async move { set.make(&link).await }).await;
        let unrecorded = unrecorded.lock().clone();
        assert_eq!(unrecorded, Vec::<String>::new(), "{}", folder.version);
        called.expect("every call gets its recorded reply");
        let made: usize = golden.iter().map(|lane| parts(lane).1.len()).sum();
        assert_eq!(made, set.expected().len(), "one frame for each call");
    }
}
