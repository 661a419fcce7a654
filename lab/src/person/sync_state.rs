//! Sync state of a device: the entries it has of each conversation, and its `sync`, `ping` and `pull` requests for the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tidegate_protocol::{
    Code,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

use super::Phase;

/// How long a hole may fill without a pull: a push that is repeated or was overtaken comes later.
const GAP_FILL_TIME: Duration = Duration::from_millis(600);

/// Time between two pings with positions.
const PING_INTERVAL: Duration = Duration::from_millis(1_500);

/// Delay before a request that was temporarily refused is repeated.
const RETRY_DELAY: Duration = Duration::from_millis(400);

/// Entries of one page.
const PAGE: u32 = 200;

/// Coverage of all conversations of a device, across its connections.
#[derive(Default)]
pub(super) struct SyncState(BTreeMap<String, Coverage>);

/// The entries of one conversation that a device has.
#[derive(Default)]
struct Coverage {
    /// Seq up to which nothing is missing.
    to: u64,
    /// Entries above `to`.
    above: BTreeSet<u64>,
    /// Highest known seq.
    known: u64,
    /// Time since which something is missing.
    since: Option<Duration>,
}

/// Requests of one connection: one in flight at a time.
#[derive(Default)]
pub(super) struct RequestState {
    asked: Option<(u64, Request)>,
    /// Phase in which the last answered `sync` was sent.
    synced: Option<Phase>,
    next_ping: Option<Duration>,
    not_before: Option<Duration>,
}

enum Request {
    Sync(Phase),
    Ping,
    Pull(String),
}

impl Coverage {
    fn settle(&mut self, now: Duration) {
        while self.above.remove(&(self.to + 1)) {
            self.to += 1;
        }
        self.known = self.known.max(self.to);
        self.since = match self.known > self.to {
            true => self.since.or(Some(now)),
            false => None,
        };
    }
}

impl SyncState {
    /// Notes an entry that the device has.
    pub(super) fn add(&mut self, conversation: &str, seq: u64, now: Duration) {
        let coverage = self.0.entry(conversation.to_owned()).or_default();
        if seq > coverage.to {
            coverage.known = coverage.known.max(seq);
            coverage.above.insert(seq);
            coverage.settle(now);
        }
    }

    /// Notes the highest seq of a conversation.
    pub(super) fn learn(&mut self, conversation: &str, seq: u64, now: Duration) {
        let coverage = self.0.entry(conversation.to_owned()).or_default();
        coverage.known = coverage.known.max(seq);
        coverage.settle(now);
    }

    /// Notes that the device has everything up to a seq, or is not entitled to it.
    fn skip_to(&mut self, conversation: &str, seq: u64, now: Duration) {
        let coverage = self.0.entry(conversation.to_owned()).or_default();
        coverage.to = coverage.to.max(seq);
        coverage.above = coverage.above.split_off(&(coverage.to + 1));
        // A page may cover more than was requested.
        coverage.settle(now);
    }

    /// Returns the conversations of which the device has something, and the seq up to which it has everything.
    pub(super) fn read(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0
            .iter()
            .map(|(conversation, coverage)| (conversation.as_str(), coverage.to))
            .filter(|(_, to)| *to > 0)
    }

    /// Returns the number of conversations of which something is missing.
    pub(super) fn lacking(&self) -> usize {
        self.0.values().filter(|coverage| coverage.since.is_some()).count()
    }

    fn positions(&self) -> Vec<pb::Position> {
        let position = |(conversation, coverage): (&String, &Coverage)| pb::Position {
            conversation: conversation.clone(),
            seq: coverage.to,
        };
        self.0.iter().map(position).collect()
    }

    /// Returns the request to send now, if there is one.
    pub(super) fn next_request(
        &self,
        request_state: &mut RequestState,
        phase: Phase,
        id: u64,
        now: Duration,
    ) -> Option<ClientBody> {
        if request_state.asked.is_some() || request_state.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let is_old = |coverage: &Coverage| coverage.since.is_some_and(|since| now - since > GAP_FILL_TIME);
        let hole = self.0.iter().find(|(_, coverage)| is_old(coverage));
        let (request, ask) =
            if request_state.synced.is_none() || phase == Phase::Check && !request_state.is_checked() {
                (Request::Sync(phase), ClientBody::Sync(pb::Sync { positions: self.positions() }))
            } else if let Some((conversation, coverage)) = hole {
                let pull = pb::Pull {
                    conversation: conversation.clone(),
                    cursor: coverage.to,
                    direction: pb::Direction::Forward as i32,
                    limit: PAGE,
                    ..Default::default()
                };
                (Request::Pull(conversation.clone()), ClientBody::Pull(pull))
            } else if request_state.next_ping.is_none_or(|at| at <= now) {
                request_state.next_ping = Some(now + PING_INTERVAL);
                (Request::Ping, ClientBody::Ping(pb::Ping { positions: self.positions() }))
            } else {
                return None;
            };
        request_state.asked = Some((id, request));
        Some(ask)
    }

    /// Takes a frame that answers the request, or a part of the answer. Returns the entries of a page.
    pub(super) fn receive(
        &mut self,
        request_state: &mut RequestState,
        id: u64,
        body: &ServerBody,
        now: Duration,
    ) -> Option<Vec<pb::Push>> {
        let (_, request) = request_state.asked.as_ref().filter(|(asked, _)| *asked == id)?;
        let mut brought = Vec::new();
        match (request, body) {
            (_, ServerBody::ConversationState(state)) => {
                self.learn(&state.conversation, state.max_seq, now);
                return Some(brought);
            }
            (Request::Sync(phase), ServerBody::SyncEnd(_)) => request_state.synced = Some(*phase),
            (_, ServerBody::Pong(pong)) => {
                for position in &pong.positions {
                    self.learn(&position.conversation, position.seq, now);
                }
            }
            (_, ServerBody::Page(page)) => {
                let named = page.messages.iter().map(|push| push.seq).chain(page.recalled.iter().copied());
                if let Some(last) = named.chain(page.expired.iter().map(|range| range.last)).max() {
                    self.skip_to(&page.conversation, last, now);
                }
                brought.clone_from(&page.messages);
            }
            (request, ServerBody::Error(error)) => {
                request_state.not_before = Some(now + RETRY_DELAY);
                let code = u16::try_from(error.code).unwrap_or(u16::MAX);
                let nothing = [Code::NotYet, Code::NotAMember].iter().any(|it| it.number() == code);
                if let (Request::Pull(conversation), true) = (request, nothing)
                    && let Some(coverage) = self.0.get_mut(conversation)
                {
                    // The conversation has no more for this user, who has left since the seq was announced.
                    coverage.known = coverage.to;
                    coverage.above.clear();
                    coverage.settle(now);
                }
            }
            _ => return None,
        }
        request_state.asked = None;
        Some(brought)
    }
}

impl RequestState {
    /// Returns whether a `sync` of the last phase was answered.
    pub(super) fn is_checked(&self) -> bool {
        self.synced == Some(Phase::Check)
    }
}
