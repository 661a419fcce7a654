//! Read marks of a client: moves those of its user now and then, and records what the broker reports of them.

use std::collections::BTreeMap;

use rand::{RngExt as _, rngs::StdRng, seq::IteratorRandom as _};
use tidegate_protocol::pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody};

use super::sync_state::SyncState;
use crate::checker::HistoryEvent;

/// Ticks in which a client moves a read mark, per thousand.
const READS: u32 = 10;

/// Reads of a position that may have been read before, in percent: they move nothing.
const OLD: u32 = 20;

/// Reads of one connection that are not answered.
#[derive(Default)]
pub(super) struct Reading(BTreeMap<u64, (String, u64)>);

/// Returns what to read now, if anything: only messages that the device has, as a person would.
pub(super) fn choose(sync_state: &SyncState, rng: &mut StdRng) -> Option<(String, u64)> {
    if !rng.random_ratio(READS, 1_000) {
        return None;
    }
    let (conversation, to) = sync_state.read().choose(rng)?;
    let seq = if rng.random_ratio(OLD, 100) { rng.random_range(1..=to) } else { to };
    Some((conversation.to_owned(), seq))
}

impl Reading {
    /// Returns the request, and notes it as unanswered.
    pub(super) fn ask(&mut self, request: u64, conversation: String, seq: u64) -> ClientBody {
        self.0.insert(request, (conversation.clone(), seq));
        ClientBody::Read(pb::Read { conversation, seq })
    }

    /// Returns the event that a frame about read marks causes. A read that is refused, or not answered, may have moved
    /// the mark or not.
    pub(super) fn handle_frame(
        &mut self,
        session: u64,
        user: &str,
        request: u64,
        body: &ServerBody,
    ) -> Option<HistoryEvent<String>> {
        let user = user.to_owned();
        match body {
            ServerBody::Done(_) => {
                let (conv, seq) = self.0.remove(&request)?;
                Some(HistoryEvent::ReadOk { user, conv, seq })
            }
            ServerBody::Receipt(receipt) if receipt.user == user => {
                Some(HistoryEvent::ReadOk { user, conv: receipt.conversation.clone(), seq: receipt.seq })
            }
            ServerBody::ConversationState(state) => Some(HistoryEvent::State {
                user,
                session,
                conv: state.conversation.clone(),
                max: state.max_seq,
                read: state.read_seq,
                unread: state.unread,
            }),
            ServerBody::SyncEnd(end) => Some(HistoryEvent::SyncEnd { session, unread: end.unread }),
            _ => None,
        }
    }
}
