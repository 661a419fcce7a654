//! Edits of a client: replaces the content of its own messages now and then, and repeats each edit until it is answered.
//!
//! The random numbers are a stream of their own, so a client with edits draws everything else as one without.

use std::collections::VecDeque;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tidegate_protocol::{
    content::{self, Content},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::{RETRY_TICKS, text_hash};
use crate::checker::HistoryEvent;

/// Ticks in which a client begins an edit, per thousand.
const EDITS: u32 = 5;

/// Newest own messages, of which the client edits one.
const OWN_MAX: usize = 12;

/// An own message that is stored.
struct Own {
    conv: String,
    seq: u64,
}

/// An edit without an answer.
struct Open {
    edit: pb::Edit,
    /// Request id on this connection, and the tick from which the edit may be sent; `None` while it waits for an answer.
    request: u64,
    due: Option<u64>,
}

/// Edits of a client, one at a time.
pub(super) struct Editing {
    rng: StdRng,
    /// Number of the client, which is in the ids of its edits.
    client: usize,
    count: u64,
    own: VecDeque<Own>,
    open: Option<Open>,
}

impl Editing {
    pub(super) fn new(client: usize, seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), client, count: 0, own: VecDeque::new(), open: None }
    }

    /// Returns the number of edits without an answer.
    pub(super) fn waiting(&self) -> usize {
        usize::from(self.open.is_some())
    }

    /// Notes an own message that is stored.
    pub(super) fn note_own(&mut self, conv: String, seq: u64) {
        self.own.push_back(Own { conv, seq });
        if self.own.len() > OWN_MAX {
            self.own.pop_front();
        }
    }

    /// Notes the end of the connection: an edit in flight goes again.
    pub(super) fn on_close(&mut self) {
        if let Some(open) = &mut self.open {
            open.due = Some(0);
        }
    }

    /// Begins an edit now and then. Returns the event of that.
    pub(super) fn begin(&mut self) -> Option<HistoryEvent<String>> {
        if !self.rng.random_ratio(EDITS, 1_000) || self.open.is_some() || self.own.is_empty() {
            return None;
        }
        let Own { conv, seq } = &self.own[self.rng.random_range(0..self.own.len())];
        let (cid, text) =
            (format!("e{}.{}", self.client, self.count), format!("edit {} of {seq}", self.count));
        self.count += 1;
        let event = HistoryEvent::EditInv {
            conv: conv.clone(),
            of: *seq,
            cid: cid.clone(),
            body: text_hash(&text),
            was: 0,
        };
        let edit = pb::Edit {
            conversation: conv.clone(),
            seq: *seq,
            content: Some(Content::text(text)),
            msg_id: cid,
        };
        self.open = Some(Open { edit, request: 0, due: Some(0) });
        Some(event)
    }

    /// Returns the frame of the edit if it is due, as the next one of so many requests.
    pub(super) fn due(&mut self, ticks: u64, requests: &mut u64) -> Option<pb::ClientFrame> {
        let open = self.open.as_mut().filter(|open| open.due.is_some_and(|due| due <= ticks))?;
        *requests += 1;
        (open.request, open.due) = (*requests, None);
        Some(pb::ClientFrame { id: *requests, body: Some(ClientBody::Edit(open.edit.clone())) })
    }

    /// Takes the answer to an edit. Returns whether the frame is one; `events` gets that of an accepted edit.
    pub(super) fn takes(
        &mut self,
        request: u64,
        body: &ServerBody,
        ticks: u64,
        events: &mut Vec<HistoryEvent<String>>,
    ) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.due.is_none() && open.request == request)
        else {
            return false;
        };
        match body {
            ServerBody::SendAck(ack) => {
                events.push(HistoryEvent::EditOk { cid: open.edit.msg_id.clone(), seq: ack.seq });
                self.open = None;
            }
            ServerBody::Error(error) if error.temporary => open.due = Some(ticks + RETRY_TICKS),
            // The user was removed from the group, or the message is too old for the clock of the node.
            ServerBody::Error(_) => self.open = None,
            _ => return false,
        }
        true
    }
}

/// Returns the hash of the text of an entry: of a message, or of the content that an edit gives; 0 if there is none.
pub(super) fn body_hash(push: &pb::Push) -> u64 {
    let edited = || push.edit.as_ref().and_then(|edit| edit.content.as_ref());
    match push.content.as_ref().or_else(edited).and_then(|content| content.body.as_ref()) {
        Some(content::ContentBody::Text(text)) => text_hash(text),
        _ => 0,
    }
}
