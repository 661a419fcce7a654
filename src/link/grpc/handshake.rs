//! How two nodes get to know each other at the start of a lane: version, run, and a shared secret that neither sends.
//!
//! Each side proves that it has the secret by an HMAC over both sides' fresh nonces, and the peer's proof comes first: an
//! impostor learns nothing that it could use, and a recorded lane can't be played again. What follows is as safe as the
//! transport: without TLS whoever can change bytes on the way can change those, too.

use std::{fmt, path::Path};

use aws_lc_rs::hmac;
use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    id::NodeId,
    pb::{self, exchange_request::Step as Ask, exchange_response::Step as Say},
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::{private, routes::NodeBoot};

/// The version of the link that this node speaks.
const VERSION: u32 = 1;
const NONCE_BYTES: usize = 32;
const SECRET_BYTES_MIN: usize = 16;
const CALLER: &[u8] = b"tidegate link caller";
const PEER: &[u8] = b"tidegate link peer";

/// What all nodes of a cluster share and nobody else knows. Can't be shown.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// # Errors
    /// Says what is wrong with it: shorter than 16 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(format!("the shared secret is shorter than {SECRET_BYTES_MIN} bytes"));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// Reads it from a file; white space around it is none of it.
    ///
    /// # Errors
    /// Says which file can't be read or is open to every account, or what is wrong with the secret.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = private::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Self::new(text.trim_ascii()).map_err(|error| format!("{}: {error}", file.display()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Why a lane ended, or did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Another run of that node is there: the one wanted is over.
    Gone,
    /// In words.
    Why(String),
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        Self::Why(status.message().to_owned())
    }
}

/// The caller's side, on a lane that was just opened.
pub(super) async fn greet(
    me: &NodeBoot,
    to: &NodeBoot,
    secret: Option<&Secret>,
    ask: &mpsc::Sender<pb::ExchangeRequest>,
    said: &mut Streaming<pb::ExchangeResponse>,
) -> Result<(), End> {
    let closed = || End::Why("the peer closed the lane".to_owned());
    let hello = pb::LinkHello { version: VERSION, from: Some(name(me)), to: Some(name(to)), nonce: nonce() };
    ask.send(step(Ask::Hello(hello.clone()))).await.map_err(|_| closed())?;
    let Some(Say::Challenge(challenge)) = said.message().await?.and_then(|it| it.step) else {
        return Err(closed());
    };
    if challenge.version != VERSION {
        return Err(End::Why(format!("the peer speaks version {} of the link", challenge.version)));
    }
    if let Some(secret) = secret
        && !proves(secret, PEER, &hello, &challenge, &challenge.mac)
    {
        let why = "the peer does not prove that it has this node's shared secret (link.secret_file)";
        return Err(End::Why(why.to_owned()));
    }
    let at = challenge.at.as_ref().and_then(boot).ok_or_else(closed)?;
    if at.node != to.node {
        return Err(End::Why(format!("node {} is at that address (link.advertise)", at.node)));
    }
    if at != *to {
        return Err(End::Gone);
    }
    let mac = proof(secret, CALLER, &hello, &challenge);
    ask.send(step(Ask::Proof(pb::LinkProof { mac }))).await.map_err(|_| closed())?;
    match said.message().await?.and_then(|it| it.step) {
        Some(Say::Ready(_)) => Ok(()),
        _ => Err(closed()),
    }
}

/// The other side: who calls.
pub(super) async fn welcome(
    me: &NodeBoot,
    secret: Option<&Secret>,
    asked: &mut Streaming<pb::ExchangeRequest>,
    say: &mpsc::Sender<Result<pb::ExchangeResponse, Status>>,
) -> Result<NodeBoot, Status> {
    let out_of_turn = || Status::invalid_argument("the steps of the handshake are hello, then proof");
    let gone = || Status::cancelled("the caller has gone");
    let Some(Ask::Hello(hello)) = asked.message().await?.and_then(|it| it.step) else {
        return Err(out_of_turn());
    };
    if hello.version < VERSION || hello.nonce.len() != NONCE_BYTES {
        return Err(Status::failed_precondition(format!("this node speaks version {VERSION} of the link")));
    }
    let from = hello.from.as_ref().and_then(boot).ok_or_else(out_of_turn)?;
    let mut challenge =
        pb::LinkChallenge { version: VERSION, at: Some(name(me)), nonce: nonce(), mac: Bytes::new() };
    challenge.mac = proof(secret, PEER, &hello, &challenge);
    let said = pb::ExchangeResponse { step: Some(Say::Challenge(challenge.clone())) };
    say.send(Ok(said)).await.map_err(|_| gone())?;
    // A caller that found another run of the node, or no proof, goes here.
    let Some(message) = asked.message().await? else { return Err(gone()) };
    let Some(Ask::Proof(sent)) = message.step else { return Err(out_of_turn()) };
    if let Some(secret) = secret
        && !proves(secret, CALLER, &hello, &challenge, &sent.mac)
    {
        let why = "the caller does not prove that it has the peer's shared secret (link.secret_file)";
        return Err(Status::unauthenticated(why));
    }
    if hello.to.as_ref().and_then(boot).as_ref() != Some(me) {
        return Err(Status::not_found("another run of that node is here"));
    }
    let said = pb::ExchangeResponse { step: Some(Say::Ready(pb::LinkReady {})) };
    say.send(Ok(said)).await.map_err(|_| gone())?;
    Ok(from)
}

fn step(step: Ask) -> pb::ExchangeRequest {
    pb::ExchangeRequest { step: Some(step) }
}

fn name(at: &NodeBoot) -> pb::LinkNode {
    pb::LinkNode { node: at.node.to_string(), boot: at.boot }
}

fn boot(sent: &pb::LinkNode) -> Option<NodeBoot> {
    Some(NodeBoot { node: NodeId::new(&sent.node).ok()?, boot: sent.boot })
}

fn nonce() -> Bytes {
    Bytes::copy_from_slice(&rand::random::<[u8; NONCE_BYTES]>())
}

/// What the proof of one side is over: its label and all that both said before.
fn transcript(side: &[u8], hello: &pb::LinkHello, challenge: &pb::LinkChallenge) -> Vec<u8> {
    let mut text = side.to_vec();
    text.extend(hello.encode_length_delimited_to_vec());
    let challenge = pb::LinkChallenge { mac: Bytes::new(), ..challenge.clone() };
    text.extend(challenge.encode_length_delimited_to_vec());
    text
}

fn proof(
    secret: Option<&Secret>,
    side: &[u8],
    hello: &pb::LinkHello,
    challenge: &pb::LinkChallenge,
) -> Bytes {
    let Some(Secret(key)) = secret else { return Bytes::new() };
    Bytes::copy_from_slice(hmac::sign(key, &transcript(side, hello, challenge)).as_ref())
}

/// Compares in constant time.
fn proves(
    Secret(key): &Secret,
    side: &[u8],
    hello: &pb::LinkHello,
    challenge: &pb::LinkChallenge,
    mac: &[u8],
) -> bool {
    hmac::verify(key, &transcript(side, hello, challenge), mac).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_secret_its_side_and_its_nonces_only() {
        let (secret, other) = (Secret::new(&[1; 32]).unwrap(), Secret::new(&[2; 32]).unwrap());
        let node = pb::LinkNode { node: "n1".into(), boot: 7 };
        let hello =
            pb::LinkHello { version: 1, from: Some(node.clone()), to: Some(node.clone()), nonce: nonce() };
        let challenge = pb::LinkChallenge { version: 1, at: Some(node), nonce: nonce(), mac: Bytes::new() };
        let mac = proof(Some(&secret), PEER, &hello, &challenge);
        assert!(proves(&secret, PEER, &hello, &challenge, &mac));
        assert!(!proves(&other, PEER, &hello, &challenge, &mac), "another secret");
        assert!(!proves(&secret, CALLER, &hello, &challenge, &mac), "the peer's own proof sent back");
        assert!(!proves(&secret, PEER, &hello, &challenge, &[]), "no proof");
        let again = pb::LinkHello { nonce: nonce(), ..hello.clone() };
        assert!(!proves(&secret, PEER, &again, &challenge, &mac), "a recorded proof");
        let again = pb::LinkChallenge { nonce: nonce(), ..challenge.clone() };
        assert!(!proves(&secret, PEER, &hello, &again, &mac), "a recorded proof");
    }

    #[test]
    fn a_secret_is_never_shown_and_not_short() {
        let secret = Secret::new(b"sixteen letters.").unwrap();
        assert!(!format!("{secret:?}").contains("letters"));
        assert!(Secret::new(b"fifteen letters").is_err());
    }
}
