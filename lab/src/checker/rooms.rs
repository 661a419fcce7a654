//! Live rooms: a message reaches the members in its speaker's order, or they learn that some are missing.
//!
//! On one node a loss is announced within [`super::Budget::excuse_ns`]. Between two nodes a fault of either of them, or
//! of the network between them, delays the announcement until [`super::Budget::settle_ns`] after its end; a fault that
//! begins before then delays it again. Rooms do not use Kafka, Postgres and webhooks.
//!
//! What a connection still gets says how far its node had come: a message is due if its time was over before a message
//! that came was first sent. A slow network holds up all frames of a connection, and its end takes those on the way.

use std::{collections::BTreeMap, mem};

use foldhash::{HashMap, HashSet};

use super::{Checker, HistoryEvent, Id, delivery::Got};

/// Time in ns after which a library repeats a message that was refused for a while. Its history has no repetitions, which
/// may come after messages that it sent later.
const LIBRARY_RETRY_NS: u64 = 500_000_000;

/// Messages of live rooms, and what connections got of them.
#[derive(Default)]
pub(super) struct Rooms {
    /// The acks of each room: event and message.
    acks: HashMap<Id, Vec<(usize, Id)>>,
    /// First message with a number of a room.
    numbers: HashMap<(Id, u64), Id>,
    /// Connections in rooms.
    stays: BTreeMap<(u64, Id), Stay>,
    /// Node of a connection in a room.
    nodes: HashMap<u64, Id>,
    /// Nodes that were killed, and when.
    downs: Vec<(Id, u64)>,
    faults: Vec<Fault>,
}

/// A connection in a room.
#[derive(Default)]
struct Stay {
    /// Event by which the connection learned that it is in the room.
    joined: Option<usize>,
    /// Events of its first push and of its last.
    span: Option<(usize, usize)>,
    /// Latest first attempt of the messages that came.
    reach: usize,
    ids: HashSet<Id>,
    /// Number of messages announced as missed, and events of announcements without a number.
    shed: u64,
    uncounted: Vec<usize>,
    /// First attempt of the last message got from each other connection.
    latest_sends: HashMap<u64, usize>,
}

/// Time from the start of a fault to its end.
struct Fault {
    from: u64,
    to: u64,
    /// Node that it struck; `None` for the network between all nodes.
    node: Option<Id>,
}

impl Checker<'_> {
    /// Notes the ack of a message to a room.
    pub(super) fn note_room_ack(&mut self, at: usize, cid: Id, seq: u64) {
        let Some(conv) = self.sends.get(&cid).map(|send| send.conv) else { return };
        self.rooms.acks.entry(conv).or_default().push((at, cid));
        self.note_number(at, conv, seq, cid);
    }

    fn note_number(&mut self, at: usize, conv: Id, seq: u64, cid: Id) {
        let first = *self.rooms.numbers.entry((conv, seq)).or_insert(cid);
        if first != cid {
            self.broken("number-twice", at, |h| {
                format!("{} {seq} is {} and {}", h.name(conv), h.name(first), h.name(cid))
            });
        }
    }

    /// Notes that a connection is in a room.
    pub(super) fn note_stay(&mut self, at: usize, stay: (u64, Id)) {
        self.rooms.stays.entry(stay).or_default().joined.get_or_insert(at);
    }

    /// Notes an announcement of missed messages.
    pub(super) fn note_shed(&mut self, at: usize, stay: (u64, Id), count: u64) {
        self.report.shed += count;
        let stay = self.rooms.stays.entry(stay).or_default();
        stay.shed += count;
        if count == 0 {
            stay.uncounted.push(at);
        }
    }

    /// Notes a push of a message to a room.
    pub(super) fn note_talk(&mut self, got: Got) {
        let Some(cid) = got.cid else { return };
        self.note_number(got.at, got.conv, got.seq, cid);
        let stay = self.rooms.stays.entry((got.session, got.conv)).or_default();
        stay.span = Some((stay.span.map_or(got.at, |(first, _)| first), got.at));
        let is_new = stay.ids.insert(cid);
        let Some(send) = self.sends.get(&cid) else { return };
        stay.reach = stay.reach.max(send.first);
        // Each attempt is a message of its own, and is fanned out again.
        if send.attempts != 1 {
            return;
        }
        let age = self.history.events[got.at].at - self.history.events[send.first].at;
        let may_be_repeated = send.kept.is_some() && age >= LIBRARY_RETRY_NS;
        let latest = stay.latest_sends.entry(send.session).or_default();
        let before = mem::replace(latest, send.first.max(*latest));
        if !is_new {
            self.report_delivery("room-copy", got);
        } else if before > send.first && !may_be_repeated {
            self.report_delivery("room-order", got);
        }
    }

    /// Compares what each connection missed in its rooms with what was announced.
    pub(super) fn check_rooms(&mut self) {
        self.note_accidents();
        for ((session, conv), stay) in mem::take(&mut self.rooms.stays) {
            self.check_stay(session, conv, &stay);
        }
    }

    fn note_accidents(&mut self) {
        let mut open: HashMap<Id, u64> = HashMap::default();
        for stamped in &self.history.events {
            match stamped.event {
                HistoryEvent::Joined { session, node, .. } => {
                    self.rooms.nodes.insert(session, node);
                }
                HistoryEvent::Down { node } => self.rooms.downs.push((node, stamped.at)),
                HistoryEvent::Nemesis { on: true, fault } => {
                    open.insert(fault, stamped.at);
                }
                HistoryEvent::Nemesis { on: false, fault } => {
                    let Some(from) = open.remove(&fault) else { continue };
                    let (kind, node) = match self.history.name(fault).split_once(':') {
                        Some((kind, node)) => (kind, Some(node)),
                        None => (self.history.name(fault), None),
                    };
                    let node = node.map(|node| self.history.find(node));
                    // What stands for the application gets no frames of rooms either.
                    let off_the_way =
                        kind == "receiver" || kind.starts_with("kafka") || kind.starts_with("postgres");
                    // A fault of a node without connections strikes none of them.
                    if !off_the_way && node != Some(None) {
                        self.rooms.faults.push(Fault { from, to: stamped.at, node: node.flatten() });
                    }
                }
                _ => {}
            }
        }
        self.rooms.faults.sort_by_key(|fault| fault.from);
    }

    /// Returns the time by which a message accepted at `from` has come, or its loss was announced.
    fn word_by(&self, from: u64, nodes: (Option<Id>, Option<Id>)) -> u64 {
        let mut by = from + self.budget.excuse_ns;
        if nodes.0 == nodes.1 {
            return by;
        }
        for fault in &self.rooms.faults {
            let concerns = fault.node.is_none() || [nodes.0, nodes.1].contains(&fault.node);
            let healed = fault.to + self.budget.settle_ns;
            if concerns && fault.from <= by && from <= healed {
                by = by.max(healed);
            }
        }
        by
    }

    /// Checks the messages that were sent after the connection joined and had to come, or to be announced, before
    /// another one that came.
    fn check_stay(&mut self, number: u64, conv: Id, stay: &Stay) {
        let Some((first, last)) = stay.span else { return };
        let since = stay.joined.unwrap_or(first);
        let Some(session) = self.sessions.open.get(&number).copied() else { return };
        let here = self.rooms.nodes.get(&number).copied();
        let time = |at: usize| self.history.events[at].at;
        let acks = self.rooms.acks.get(&conv).map_or(&[][..], Vec::as_slice);
        let start = acks.partition_point(|(at, _)| *at < since);
        let (mut talks, mut missing, mut uncounted, mut lost) = (0, 0, 0, 0);
        for (at, cid) in acks[start..].iter().take_while(|(at, _)| *at < stay.reach) {
            let Some(send) = self.sends.get(cid) else { continue };
            if send.first < since || (send.user, send.device) == (session.user, session.device) {
                continue;
            }
            let there = self.rooms.nodes.get(&send.last.1).copied();
            let by = self.word_by(time(*at), (there, here));
            if by > time(stay.reach) {
                continue;
            }
            talks += 1;
            if stay.ids.contains(cid) {
                continue;
            }
            let died =
                |(node, when): &(Id, u64)| Some(*node) == there && (time(send.last.0)..=by).contains(when);
            let is_reported = |at: &usize| *at > send.first && time(*at) <= by;
            if there != here && self.rooms.downs.iter().any(died) {
                lost += 1;
            } else if there != here && stay.uncounted.iter().any(is_reported) {
                uncounted += 1;
            } else {
                missing += 1;
            }
        }
        self.report.talks += talks;
        self.report.talks_uncounted += uncounted;
        self.report.talks_lost += lost;
        if missing > stay.shed {
            self.broken("shed-untold", last, |h| {
                format!("connection {number} missed {missing} of {}, told: {}", h.name(conv), stay.shed)
            });
        }
    }
}
