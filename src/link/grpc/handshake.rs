//! Handshake at the start of a link stream: agrees on the version and the run, and proves a shared secret that is never
//! sent.
//!
//! Each side proves that it has the secret by an HMAC over both sides' fresh nonces. The called peer's proof comes
//! first, so an impostor gains nothing usable, and a recorded stream can't be replayed. The rest of the stream is as
//! safe as its transport: without TLS, an attacker on the network path can alter it.

use std::fmt;

use aws_lc_rs::hmac;
use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    id::NodeId,
    pb::{self, exchange_request::Step as RequestStep, exchange_response::Step as ResponseStep},
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::connection_limit::Authenticated;
use crate::routes::NodeBoot;

/// Version of the link protocol that this node implements.
const LINK_VERSION: u32 = 1;
const NONCE_BYTES: usize = 32;
const SECRET_BYTES_MIN: usize = 16;

/// Minimum length of a secret in a file. The called peer proves the secret to every caller, so anybody who reaches the
/// port can try out guesses without asking again; a secret of this length that was made at random can't be guessed.
const SECRET_FILE_BYTES_MIN: usize = 32;

/// Labels of the two proofs, so that neither can be sent back as the other.
const CALLER_LABEL: &[u8] = b"tidegate link caller";
const PEER_LABEL: &[u8] = b"tidegate link peer";

/// Secret shared by all nodes of a cluster. Its `Debug` output hides it.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// Creates the secret from its bytes.
    ///
    /// # Errors
    /// The secret is shorter than 16 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() < SECRET_BYTES_MIN {
            return Err(format!("shared secret has fewer than {SECRET_BYTES_MIN} bytes; use a longer one"));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// Creates the secret from the text of its file, without surrounding white space.
    ///
    /// # Errors
    /// The secret has fewer than 32 bytes; the text says what to do.
    pub fn from_file_text(text: &[u8]) -> Result<Self, String> {
        let secret = text.trim_ascii();
        if secret.len() < SECRET_FILE_BYTES_MIN {
            return Err(format!(
                "the secret has fewer than {SECRET_FILE_BYTES_MIN} bytes and may be guessed; write a random one to the \
                 file, `openssl rand -hex 32`, the same for all nodes"
            ));
        }
        Self::new(secret)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Reason why a stream ended or could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    /// Run of the peer has ended: another run of that node was found at its address.
    RunEnded,
    /// Failure, as shown to operators.
    Failed(String),
}

impl From<Status> for StreamEnd {
    fn from(status: Status) -> Self {
        Self::Failed(status.message().to_owned())
    }
}

/// Runs the caller's side of the handshake, on a stream that was just opened.
pub(super) async fn initiate(
    me: &NodeBoot,
    to: &NodeBoot,
    secret: Option<&Secret>,
    requests: &mpsc::Sender<pb::ExchangeRequest>,
    responses: &mut Streaming<pb::ExchangeResponse>,
) -> Result<(), StreamEnd> {
    let closed = || StreamEnd::Failed("the peer closed the stream".to_owned());
    let (from, to_run) = (Some(link_node(me)), Some(link_node(to)));
    let hello = pb::LinkHello { version: LINK_VERSION, from, to: to_run, nonce: nonce() };
    requests.send(request(RequestStep::Hello(hello.clone()))).await.map_err(|_| closed())?;
    let Some(ResponseStep::Challenge(challenge)) = responses.message().await?.and_then(|it| it.step) else {
        return Err(closed());
    };
    if challenge.version != LINK_VERSION {
        let version = challenge.version;
        let why = format!("the peer uses version {version} of the link, this node version {LINK_VERSION}");
        return Err(StreamEnd::Failed(why));
    }
    if let Some(secret) = secret
        && !proves(secret, PEER_LABEL, &hello, &challenge, &challenge.mac)
    {
        let why = "the peer does not prove this node's shared secret; set the same link.secret_file on both";
        return Err(StreamEnd::Failed(why.to_owned()));
    }
    let at = challenge.at.as_ref().and_then(node_boot).ok_or_else(closed)?;
    if at.node != to.node {
        let why = format!("node {} is at that address; check link.advertise", at.node);
        return Err(StreamEnd::Failed(why));
    }
    if at != *to {
        return Err(StreamEnd::RunEnded);
    }
    let mac = proof(secret, CALLER_LABEL, &hello, &challenge);
    requests.send(request(RequestStep::Proof(pb::LinkProof { mac }))).await.map_err(|_| closed())?;
    match responses.message().await?.and_then(|it| it.step) {
        Some(ResponseStep::Ready(_)) => Ok(()),
        _ => Err(closed()),
    }
}

/// Runs the called peer's side of the handshake, and returns the caller. Sets `authenticated` before the caller can
/// know that it is accepted, so that its first calls are within the limits of a peer.
pub(super) async fn accept(
    me: &NodeBoot,
    secret: Option<&Secret>,
    requests: &mut Streaming<pb::ExchangeRequest>,
    responses: &mpsc::Sender<Result<pb::ExchangeResponse, Status>>,
    authenticated: &Authenticated,
) -> Result<NodeBoot, Status> {
    let out_of_order = || Status::invalid_argument("the handshake must be hello, then proof");
    let closed = || Status::cancelled("the caller closed the stream");
    let Some(RequestStep::Hello(hello)) = requests.message().await?.and_then(|it| it.step) else {
        return Err(out_of_order());
    };
    if hello.version < LINK_VERSION || hello.nonce.len() != NONCE_BYTES {
        return Err(Status::failed_precondition(format!(
            "this node uses version {LINK_VERSION} of the link"
        )));
    }
    let from = hello.from.as_ref().and_then(node_boot).ok_or_else(out_of_order)?;
    let (at, nonce, mac) = (Some(link_node(me)), nonce(), Bytes::new());
    let mut challenge = pb::LinkChallenge { version: LINK_VERSION, at, nonce, mac };
    challenge.mac = proof(secret, PEER_LABEL, &hello, &challenge);
    let response = pb::ExchangeResponse { step: Some(ResponseStep::Challenge(challenge.clone())) };
    responses.send(Ok(response)).await.map_err(|_| closed())?;
    // The caller closes here if it finds another run of the node, or a wrong proof.
    let Some(message) = requests.message().await? else { return Err(closed()) };
    let Some(RequestStep::Proof(sent)) = message.step else { return Err(out_of_order()) };
    if let Some(secret) = secret
        && !proves(secret, CALLER_LABEL, &hello, &challenge, &sent.mac)
    {
        let why = "the caller does not prove the peer's shared secret; set the same link.secret_file on both";
        return Err(Status::unauthenticated(why));
    }
    if hello.to.as_ref().and_then(node_boot).as_ref() != Some(me) {
        return Err(Status::not_found("another run of that node is at this address"));
    }
    authenticated.set().map_err(Status::resource_exhausted)?;
    let response = pb::ExchangeResponse { step: Some(ResponseStep::Ready(pb::LinkReady {})) };
    responses.send(Ok(response)).await.map_err(|_| closed())?;
    Ok(from)
}

fn request(step: RequestStep) -> pb::ExchangeRequest {
    pb::ExchangeRequest { step: Some(step) }
}

fn link_node(at: &NodeBoot) -> pb::LinkNode {
    pb::LinkNode { node: at.node.to_string(), boot: at.boot }
}

fn node_boot(sent: &pb::LinkNode) -> Option<NodeBoot> {
    Some(NodeBoot { node: NodeId::new(&sent.node).ok()?, boot: sent.boot })
}

fn nonce() -> Bytes {
    Bytes::copy_from_slice(&rand::random::<[u8; NONCE_BYTES]>())
}

/// Returns the input of one side's proof: its label, and everything both sides sent before.
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

/// Verifies a proof, in constant time.
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
    fn proof_is_valid_only_for_its_secret_side_and_nonces() {
        let (secret, other) = (Secret::new(&[1; 32]).unwrap(), Secret::new(&[2; 32]).unwrap());
        let node = pb::LinkNode { node: "n1".into(), boot: 7 };
        let hello =
            pb::LinkHello { version: 1, from: Some(node.clone()), to: Some(node.clone()), nonce: nonce() };
        let challenge = pb::LinkChallenge { version: 1, at: Some(node), nonce: nonce(), mac: Bytes::new() };
        let mac = proof(Some(&secret), PEER_LABEL, &hello, &challenge);
        assert!(proves(&secret, PEER_LABEL, &hello, &challenge, &mac));
        assert!(!proves(&other, PEER_LABEL, &hello, &challenge, &mac), "another secret");
        assert!(!proves(&secret, CALLER_LABEL, &hello, &challenge, &mac), "the peer's own proof sent back");
        assert!(!proves(&secret, PEER_LABEL, &hello, &challenge, &[]), "no proof");
        let again = pb::LinkHello { nonce: nonce(), ..hello.clone() };
        assert!(!proves(&secret, PEER_LABEL, &again, &challenge, &mac), "a recorded proof");
        let again = pb::LinkChallenge { nonce: nonce(), ..challenge.clone() };
        assert!(!proves(&secret, PEER_LABEL, &hello, &again, &mac), "a recorded proof");
    }

    #[test]
    fn secret_is_never_shown_and_has_a_minimum_length() {
        let secret = Secret::new(b"sixteen letters.").unwrap();
        assert!(!format!("{secret:?}").contains("letters"));
        assert!(Secret::new(b"fifteen letters").is_err());
    }

    #[test]
    fn x15_short_secret_in_a_file_is_refused_with_its_cure() {
        let read = |secret: String| Secret::from_file_text(secret.as_bytes());
        // White space does not count.
        let refused = read(format!("  {}\n", "s".repeat(31))).unwrap_err();
        for part in ["32 bytes", "`openssl rand -hex 32`"] {
            assert!(refused.contains(part), "{refused}");
        }
        assert!(!refused.contains("sss"), "{refused}");
        assert!(read(format!("{}\n", "s".repeat(32))).is_ok());
    }
}
