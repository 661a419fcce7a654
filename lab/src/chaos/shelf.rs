//! What a device has of each conversation, and how it learns of the rest: by `sync` after a login, `ping` and `pull`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use tidegate_protocol::{
    Code,
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};

use super::world::Phase;

/// A hole may fill by itself for so long: what is pushed again, or overtaken, comes later.
const PATIENCE: Duration = Duration::from_millis(600);

/// Between two pings with positions.
const PING: Duration = Duration::from_millis(1_500);

/// Between two tries of a question that was refused for the moment.
const AGAIN: Duration = Duration::from_millis(400);

/// Entries of one page.
const PAGE: u32 = 200;

/// All conversations of a device; outlives its connections.
#[derive(Default)]
pub(super) struct Shelf(BTreeMap<String, Have>);

#[derive(Default)]
struct Have {
    /// Nothing is missing up to here.
    to: u64,
    /// What it has beyond.
    above: BTreeSet<u64>,
    /// There is that much.
    known: u64,
    /// Since when something is missing.
    since: Option<Instant>,
}

/// The questions of one connection: one at a time.
#[derive(Default)]
pub(super) struct Desk {
    asked: Option<(u64, Question)>,
    /// The phase in which the last answered `sync` was asked.
    synced: Option<Phase>,
    next_ping: Option<Instant>,
    not_before: Option<Instant>,
}

enum Question {
    Sync(Phase),
    Ping,
    Pull(String),
}

impl Have {
    fn settle(&mut self) {
        while self.above.remove(&(self.to + 1)) {
            self.to += 1;
        }
        self.known = self.known.max(self.to);
        self.since = match self.known > self.to {
            true => self.since.or_else(|| Some(Instant::now())),
            false => None,
        };
    }
}

impl Shelf {
    /// The device has this one.
    pub(super) fn add(&mut self, conversation: &str, seq: u64) {
        let have = self.0.entry(conversation.to_owned()).or_default();
        if seq > have.to {
            have.known = have.known.max(seq);
            have.above.insert(seq);
            have.settle();
        }
    }

    /// There is that much.
    pub(super) fn hear_of(&mut self, conversation: &str, seq: u64) {
        let have = self.0.entry(conversation.to_owned()).or_default();
        have.known = have.known.max(seq);
        have.settle();
    }

    /// Everything up to here was seen, or is none of the device's.
    fn skip_to(&mut self, conversation: &str, seq: u64) {
        let have = self.0.entry(conversation.to_owned()).or_default();
        have.to = have.to.max(seq);
        have.above = have.above.split_off(&(have.to + 1));
        // A pull tells more than was asked for.
        have.settle();
    }

    /// The conversations of which it has something, and up to where it has everything.
    pub(super) fn read(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(conversation, have)| (conversation.as_str(), have.to)).filter(|(_, to)| *to > 0)
    }

    /// Conversations of which something is missing.
    pub(super) fn lacking(&self) -> usize {
        self.0.values().filter(|have| have.since.is_some()).count()
    }

    fn positions(&self) -> Vec<pb::Position> {
        let position = |(conversation, have): (&String, &Have)| pb::Position {
            conversation: conversation.clone(),
            seq: have.to,
        };
        self.0.iter().map(position).collect()
    }

    /// What to ask now, if anything.
    pub(super) fn ask(&self, desk: &mut Desk, phase: Phase, request: u64) -> Option<Ask> {
        let now = Instant::now();
        if desk.asked.is_some() || desk.not_before.is_some_and(|at| at > now) {
            return None;
        }
        let is_old = |have: &Have| have.since.is_some_and(|since| now - since > PATIENCE);
        let hole = self.0.iter().find(|(_, have)| is_old(have));
        let (question, ask) = if desk.synced.is_none() || phase == Phase::Check && !desk.is_checked() {
            (Question::Sync(phase), Ask::Sync(pb::Sync { positions: self.positions() }))
        } else if let Some((conversation, have)) = hole {
            let pull = pb::Pull {
                conversation: conversation.clone(),
                cursor: have.to,
                direction: pb::Direction::Forward as i32,
                limit: PAGE,
                ..Default::default()
            };
            (Question::Pull(conversation.clone()), Ask::Pull(pull))
        } else if desk.next_ping.is_none_or(|at| at <= now) {
            desk.next_ping = Some(now + PING);
            (Question::Ping, Ask::Ping(pb::Ping { positions: self.positions() }))
        } else {
            return None;
        };
        desk.asked = Some((request, question));
        Some(ask)
    }

    /// Takes the answer to a question, or a part of it; what a page brought.
    pub(super) fn hear(&mut self, desk: &mut Desk, request: u64, body: &Say) -> Option<Vec<pb::Push>> {
        let (_, question) = desk.asked.as_ref().filter(|(asked, _)| *asked == request)?;
        let mut brought = Vec::new();
        match (question, body) {
            (_, Say::ConversationState(state)) => {
                self.hear_of(&state.conversation, state.max_seq);
                return Some(brought);
            }
            (Question::Sync(phase), Say::SyncEnd(_)) => desk.synced = Some(*phase),
            (_, Say::Pong(pong)) => {
                for position in &pong.positions {
                    self.hear_of(&position.conversation, position.seq);
                }
            }
            (_, Say::Page(page)) => {
                let named = page.messages.iter().map(|push| push.seq).chain(page.recalled.iter().copied());
                if let Some(last) = named.chain(page.expired.iter().map(|range| range.last)).max() {
                    self.skip_to(&page.conversation, last);
                }
                brought.clone_from(&page.messages);
            }
            (question, Say::Error(error)) => {
                desk.not_before = Some(Instant::now() + AGAIN);
                let code = u16::try_from(error.code).unwrap_or(u16::MAX);
                let nothing = [Code::NotYet, Code::NotAMember].iter().any(|it| it.number() == code);
                if let (Question::Pull(conversation), true) = (question, nothing)
                    && let Some(have) = self.0.get_mut(conversation)
                {
                    // It goes no further for this user: so much was said of it before its last leaving.
                    have.known = have.to;
                    have.above.clear();
                    have.settle();
                }
            }
            _ => return None,
        }
        desk.asked = None;
        Some(brought)
    }
}

impl Desk {
    /// Whether it asked how everything stands when all had been said.
    pub(super) fn is_checked(&self) -> bool {
        self.synced == Some(Phase::Check)
    }
}
