//! Live rooms: what is said reaches who is there, in its speaker's order, or they hear that some of it is missing.
//!
//! On one node the word of a loss is there within [`super::Budget::excuse_ns`]. Between two nodes a fault that concerns either
//! of them, or the way between them, delays it until [`super::Budget::settle_ns`] after its end; another that begins before
//! then delays it again. Kafka and Postgres are not on the way of a room.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};

use super::{Checker, Event, Id, delivery::Got};

/// What was said and heard in live rooms.
#[derive(Default)]
pub(super) struct Rooms {
    /// The acks of each room: event and message.
    acks: HashMap<Id, Vec<(usize, Id)>>,
    /// What had a number of a room first.
    numbers: HashMap<(Id, u64), Id>,
    /// Connections in rooms.
    stays: BTreeMap<(u64, Id), Stay>,
    /// Where a connection in a room is.
    nodes: HashMap<u64, Id>,
    /// Nodes that ended, and when.
    downs: Vec<(Id, u64)>,
    faults: Vec<Fault>,
}

/// One connection in one room.
#[derive(Default)]
struct Stay {
    /// The event by which it knew that it was in.
    joined: Option<usize>,
    /// Its first push, and its last.
    span: Option<(usize, usize)>,
    ids: HashSet<Id>,
    /// How many it was told to have missed, and where it was told that nobody knows how many.
    shed: u64,
    uncounted: Vec<usize>,
    /// What it heard last of each other connection, by its place among what that one sent.
    heard: HashMap<u64, usize>,
}

/// From when to when something was broken.
struct Fault {
    from: u64,
    to: u64,
    /// The node that it was about; none = the way between all of them.
    node: Option<Id>,
}

impl Checker<'_> {
    /// A room has given a number away.
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

    /// A connection is in a room.
    pub(super) fn note_stay(&mut self, at: usize, stay: (u64, Id)) {
        self.rooms.stays.entry(stay).or_default().joined.get_or_insert(at);
    }

    /// A connection was told that it missed something.
    pub(super) fn note_shed(&mut self, at: usize, stay: (u64, Id), count: u64) {
        self.report.shed += count;
        let stay = self.rooms.stays.entry(stay).or_default();
        stay.shed += count;
        if count == 0 {
            stay.uncounted.push(at);
        }
    }

    /// A push of a room, of something that somebody sent.
    pub(super) fn note_talk(&mut self, got: Got) {
        let Some(cid) = got.cid else { return };
        self.note_number(got.at, got.conv, got.seq, cid);
        let stay = self.rooms.stays.entry((got.session, got.conv)).or_default();
        stay.span = Some((stay.span.map_or(got.at, |(first, _)| first), got.at));
        let is_new = stay.ids.insert(cid);
        // Each attempt is a message of its own, and fanned out again.
        let Some(send) = self.sends.get(&cid).filter(|send| send.attempts == 1) else { return };
        let before = stay.heard.insert(send.session, send.first);
        if !is_new {
            self.told("room-copy", got);
        } else if before.is_some_and(|before| before > send.first) {
            self.told("room-order", got);
        }
    }

    /// What each connection missed in its rooms, against what it was told.
    pub(super) fn check_rooms(&mut self) {
        self.note_accidents();
        for ((session, conv), stay) in std::mem::take(&mut self.rooms.stays) {
            self.check_stay(session, conv, &stay);
        }
    }

    fn note_accidents(&mut self) {
        let mut open: HashMap<Id, u64> = HashMap::default();
        for stamped in &self.history.events {
            match stamped.event {
                Event::Joined { session, node, .. } => {
                    self.rooms.nodes.insert(session, node);
                }
                Event::Down { node } => self.rooms.downs.push((node, stamped.at)),
                Event::Nemesis { on: true, fault } => {
                    open.insert(fault, stamped.at);
                }
                Event::Nemesis { on: false, fault } => {
                    let Some(from) = open.remove(&fault) else { continue };
                    let (kind, node) = match self.history.name(fault).split_once(':') {
                        Some((kind, node)) => (kind, Some(node)),
                        None => (self.history.name(fault), None),
                    };
                    let node = node.map(|node| self.history.find(node));
                    let off_the_way = kind.starts_with("kafka") || kind.starts_with("postgres");
                    // One about a node where nobody is concerns nobody.
                    if !off_the_way && node != Some(None) {
                        self.rooms.faults.push(Fault { from, to: stamped.at, node: node.flatten() });
                    }
                }
                _ => {}
            }
        }
        self.rooms.faults.sort_by_key(|fault| fault.from);
    }

    /// Until when the word of something that was accepted at `from` has come, or the thing itself.
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

    /// Messages that were sent after it was in and must have come, or the word of them, before its last push.
    fn check_stay(&mut self, number: u64, conv: Id, stay: &Stay) {
        let Some((first, last)) = stay.span else { return };
        let since = stay.joined.unwrap_or(first);
        let Some(session) = self.sessions.open.get(&number).copied() else { return };
        let here = self.rooms.nodes.get(&number).copied();
        let time = |at: usize| self.history.events[at].at;
        let acks = self.rooms.acks.get(&conv).map_or(&[][..], Vec::as_slice);
        let start = acks.partition_point(|(at, _)| *at < since);
        let (mut talks, mut missing, mut uncounted, mut lost) = (0, 0, 0, 0);
        for (at, cid) in acks[start..].iter().take_while(|(at, _)| *at < last) {
            let Some(send) = self.sends.get(cid) else { continue };
            if send.first < since || (send.user, send.device) == (session.user, session.device) {
                continue;
            }
            let there = self.rooms.nodes.get(&send.last.1).copied();
            let by = self.word_by(time(*at), (there, here));
            if by > time(last) {
                continue;
            }
            talks += 1;
            if stay.ids.contains(cid) {
                continue;
            }
            let died =
                |(node, when): &(Id, u64)| Some(*node) == there && (time(send.last.0)..=by).contains(when);
            let told = |at: &usize| *at > send.first && time(*at) <= by;
            if there != here && self.rooms.downs.iter().any(died) {
                lost += 1;
            } else if there != here && stay.uncounted.iter().any(told) {
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
