//! Exchange of messages with a cluster: sending until the ack, and reading back.

use std::time::Duration;

use tidegate_protocol::pb;

use crate::support::{Client, ServerBody, Stopwatch, WAIT_MAX, ask, send, text_of};

/// Returns the seqs and texts of a history, which may have several pages.
pub(crate) fn history(client: &mut Client, conversation: &str) -> Vec<(u64, String)> {
    let mut all: Vec<(u64, String)> = Vec::new();
    loop {
        let after = all.last().map_or(0, |(seq, _)| *seq);
        let page = client.page(ask::after(conversation, after, 1_000));
        all.extend(page.messages.iter().map(|push| (push.seq, text_of(push).to_owned())));
        if page.messages.is_empty() || all.last().is_some_and(|(seq, _)| *seq >= page.complete_to) {
            return all;
        }
    }
}

/// Sends under one id until the ack, as clients do; returns the seq and the time it took.
pub(crate) fn send_until_acked(client: &mut Client, place: &str, msg_id: &str) -> (u64, Duration) {
    let began = Stopwatch::start();
    let mut attempt = 0;
    loop {
        let id = client.say(ask::send(pb::Send { attempt, ..send(place, msg_id, msg_id) }));
        match client.reply(id) {
            ServerBody::SendAck(ack) => return (ack.seq, began.elapsed()),
            ServerBody::Error(error) => {
                assert!(error.temporary, "{error:?}");
                // A refusal may return at once, and its cause may outlast twenty of them.
                client.back_off(error.retry_after_ms);
            }
            other => panic!("no answer to a send: {other:?}"),
        }
        attempt += 1;
        assert!(attempt < 20 || began.elapsed() < WAIT_MAX, "{msg_id} was never acked");
    }
}
