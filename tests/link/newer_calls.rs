//! Calls that a peer of this version does not know, as its callers of a newer version make them.

use std::sync::Arc;

use prost::Message as _;
use tidegate_protocol::pb::{self, exchange_request::Step as Ask, exchange_response::Step as Say};

use super::{End, listen, node, open, raw};

#[tokio::test]
async fn call_of_a_newer_version_is_refused_and_the_stream_goes_on() {
    let (peer, end) = (node("there", 1), Arc::new(End::default()));
    let listener = listen(peer, &end, open());
    let mut lane = raw::open(listener.address()).await;
    let id = |node: &str| Some(pb::LinkNode { node: node.into(), boot: 1 });
    let nonce = vec![7; 32].into();
    let hello = pb::LinkHello { version: 1, from: id("here"), to: id("there"), nonce };
    for step in [Ask::Hello(hello), Ask::Proof(pb::LinkProof::default())] {
        lane.send(pb::ExchangeRequest { step: Some(step) }.encode_to_vec().into()).await;
        lane.receive().await.expect("the handshake goes on");
    }
    // A call with id 9, and a body in field 1000; then one that this version knows.
    let newer = b"\x1a\x08\x0a\x06\x08\x09\xc2\x3e\x01x";
    lane.send(newer.as_slice().into()).await;
    let body = Some(pb::link_call::Body::Answers(pb::LinkAnswers::default()));
    let calls = vec![pb::LinkCall { id: 10, body }];
    let known = pb::ExchangeRequest { step: Some(Ask::Calls(pb::LinkCalls { calls })) };
    lane.send(known.encode_to_vec().into()).await;
    let (mut refused, mut taken) = (None, false);
    while refused.is_none() || !taken {
        let message = lane.receive().await.expect("the stream goes on");
        let Some(Say::Replies(said)) = pb::ExchangeResponse::decode(message).unwrap().step else { continue };
        for reply in said.replies {
            match reply.body {
                Some(pb::link_reply::Body::Failure(failure)) if reply.id == 9 => refused = Some(failure),
                Some(pb::link_reply::Body::Taken(_)) if reply.id == 10 => taken = true,
                other => panic!("{}: {other:?}", reply.id),
            }
        }
    }
    // Callers read this as a peer that does not know the call.
    let failure = refused.expect("it was refused");
    assert!(!failure.in_doubt && failure.why.contains("newer version"), "{failure:?}");
}
