//! Live rooms: a message reaches the members in its speaker's order, or they learn that some are missing.
//!
//! On one node a loss is announced within [`super::Budget::excuse_ns`]. Between two nodes a fault of either of them, or
//! of the network between them, delays the announcement until [`super::Budget::settle_ns`] after its end; a fault that
//! begins before then delays it again. Rooms do not use Kafka, Postgres and webhooks.
//!
//! What a connection still gets says how far its node had come: a message is due if its time was over before a message
//! that came was first sent. A slow network holds up all frames of a connection, and its end takes those on the way.
//!
//! Where nothing more came, a stay is judged if it ended in good order. A connection that was intact when the run was
//! [quiet](HistoryEvent::Quiet) has got all messages whose time was over, the closing messages of the run among them. One that
//! left the room by itself, and whose node answered a later send, has got those that were accepted
//! [`super::Budget::settle_ns`] before. Every fault that touches its node or its network delays both.
//!
//! An announcement counts no message that was sent after it, and may count each one that was sent before it. Losses of a
//! connection's queue, of passes that are thinned under load, and between shards have counters of their own. So an
//! announcement may overtake others, and need not count all that was lost before it.

use std::{collections::BTreeMap, mem};

use foldhash::{HashMap, HashSet};

use super::{
    Checker, HistoryEvent, Id,
    delivery::{Got, Session},
    sends::Send,
    shed::{ShedCount, uncounted},
};

/// Time in ns after which a library repeats a message that was refused for a while. Its history has no repetitions, which
/// may come after messages that it sent later.
const LIBRARY_RETRY_NS: u64 = 500_000_000;

/// Messages of live rooms that were due, by connection and room.
pub(super) type OwedMessages = BTreeMap<(u64, Id), HashSet<Id>>;

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
    /// Last event by which each connection sent a message that was acked.
    answered: HashMap<u64, usize>,
    /// Time at which the run was quiet.
    quiet: Option<u64>,
}

/// A connection in a room.
#[derive(Default)]
struct Stay {
    /// Event by which the connection learned that it is in the room.
    joined: Option<usize>,
    /// Events of its first push and of its last.
    span: Option<(usize, usize)>,
    /// First attempt of the message that was first sent last of those that came.
    reach: Option<usize>,
    ids: HashSet<Id>,
    /// Announcements of missed messages, and events of those without a number.
    sheds: Vec<ShedCount>,
    uncounted: Vec<usize>,
    /// First attempt of the last message got from each other connection.
    latest_sends: HashMap<u64, usize>,
    /// Event by which the connection was about to leave.
    parted: Option<usize>,
}

/// An accepted message to a room, for a connection that is in it.
struct Talk<'a> {
    /// Event of its ack.
    at: usize,
    cid: Id,
    send: &'a Send,
    /// Nodes of the speaker and of the connection.
    nodes: (Option<Id>, Option<Id>),
}

/// End of a stay in good order.
#[derive(Clone, Copy)]
struct GoodEnd {
    at: u64,
    /// Time that a message has to come, without a fault.
    patience_ns: u64,
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
        match count {
            0 => stay.uncounted.push(at),
            _ => stay.sheds.push(ShedCount { at, count }),
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
        stay.reach = stay.reach.max(Some(send.first));
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
        for send in self.sends.values().filter(|send| send.ok.is_some()) {
            let (at, session) = send.last;
            let latest = self.rooms.answered.entry(session).or_default();
            *latest = at.max(*latest);
        }
        let mut open: HashMap<Id, u64> = HashMap::default();
        for (at, stamped) in self.history.events.iter().enumerate() {
            match stamped.event {
                HistoryEvent::Joined { session, node, .. } => {
                    self.rooms.nodes.insert(session, node);
                }
                HistoryEvent::Parted { session, conv } => {
                    if let Some(stay) = self.rooms.stays.get_mut(&(session, conv)) {
                        stay.parted.get_or_insert(at);
                    }
                }
                HistoryEvent::Quiet {} => self.rooms.quiet = Some(stamped.at),
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

    /// Returns the time by which a message accepted at `from` has come, or its loss was announced, before what was sent later.
    /// What delays a node as a whole delays the later message as well.
    fn word_by(&self, from: u64, nodes: (Option<Id>, Option<Id>)) -> u64 {
        let by = from + self.budget.excuse_ns;
        if nodes.0 == nodes.1 { by } else { self.delayed(from, by, nodes) }
    }

    /// Returns the time until which faults of the nodes and networks delay what is due `by` then.
    fn delayed(&self, from: u64, mut by: u64, nodes: (Option<Id>, Option<Id>)) -> u64 {
        let is_local = nodes.0 == nodes.1;
        let after = if is_local { by - from } else { self.budget.settle_ns };
        for fault in &self.rooms.faults {
            let concerns = fault.node.is_none() || [nodes.0, nodes.1].contains(&fault.node);
            let healed = fault.to + after;
            if concerns && fault.from <= by && from <= healed {
                by = by.max(healed);
            }
        }
        by
    }

    /// Returns when the stay of a connection ended in good order.
    fn good_end(&self, number: u64, session: Session, stay: &Stay) -> Option<GoodEnd> {
        let joined = stay.joined?;
        if let Some(parted) = stay.parted {
            let is_answered = self.rooms.answered.get(&number).is_some_and(|sent| *sent > parted);
            let end = GoodEnd { at: self.history.events[parted].at, patience_ns: self.budget.settle_ns };
            return is_answered.then_some(end);
        }
        let at = self.rooms.quiet?;
        let completed = self.sessions.completed(session.user, session.device)?;
        let is_intact = joined < completed && session.closed.is_none_or(|closed| closed > at);
        is_intact.then_some(GoodEnd { at, patience_ns: self.budget.excuse_ns })
    }

    /// Returns the time by which a message accepted at `from` had to come, or to be announced, if it was due at all.
    /// `reach` is the time at which the latest message that came was first sent.
    fn due_by(
        &self,
        from: u64,
        nodes: (Option<Id>, Option<Id>),
        reach: Option<u64>,
        end: Option<GoodEnd>,
    ) -> Option<u64> {
        let by = self.word_by(from, nodes);
        if reach.is_some_and(|reach| by <= reach) {
            return Some(by);
        }
        let end = end?;
        let by = self.delayed(from, from + end.patience_ns, nodes);
        (by <= end.at).then_some(by)
    }

    /// Returns the accepted messages of other devices to a room that were sent after a connection learned, by the event
    /// `since`, that it is in the room.
    fn talks_to(&self, number: u64, conv: Id, since: usize) -> impl Iterator<Item = Talk<'_>> {
        let listener = self.sessions.open.get(&number).map(|it| (it.user, it.device));
        let here = self.rooms.nodes.get(&number).copied();
        let acks = self.rooms.acks.get(&conv).map_or(&[][..], Vec::as_slice);
        let start = acks.partition_point(|(at, _)| *at < since);
        acks[start..].iter().filter_map(move |(at, cid)| {
            let send = self.sends.get(cid)?;
            let is_due = send.first >= since && Some((send.user, send.device)) != listener;
            let there = self.rooms.nodes.get(&send.last.1).copied();
            is_due.then_some(Talk { at: *at, cid: *cid, send, nodes: (there, here) })
        })
    }

    /// Returns whether the speaker's node was killed before it had to have passed the message on to another node.
    fn is_lost_with_node(&self, talk: &Talk<'_>, by: u64) -> bool {
        let (there, here) = talk.nodes;
        let sent = self.history.events[talk.send.last.0].at;
        let died = |(node, when): &(Id, u64)| Some(*node) == there && (sent..=by).contains(when);
        there != here && self.rooms.downs.iter().any(died)
    }

    /// Returns the messages that had to come to each member by the end of its stay, whatever else came. The members are those
    /// whose connection was intact when the run was quiet, and to which no loss was announced.
    pub(super) fn owed_at_the_end(&mut self) -> OwedMessages {
        self.note_accidents();
        let mut owed = OwedMessages::new();
        for ((number, conv), stay) in &self.rooms.stays {
            if stay.parted.is_none() && stay.sheds.is_empty() && stay.uncounted.is_empty() {
                owed.insert((*number, *conv), self.owed_to(*number, *conv, stay));
            }
        }
        owed
    }

    fn owed_to(&self, number: u64, conv: Id, stay: &Stay) -> HashSet<Id> {
        let (Some(since), Some(session)) = (stay.joined, self.sessions.open.get(&number).copied()) else {
            return HashSet::default();
        };
        let end = self.good_end(number, session, stay);
        let is_owed = |talk: &Talk<'_>| {
            let by = self.due_by(self.history.events[talk.at].at, talk.nodes, None, end);
            by.is_some_and(|by| !self.is_lost_with_node(talk, by))
        };
        self.talks_to(number, conv, since).filter(is_owed).map(|talk| talk.cid).collect()
    }

    /// Checks the messages that were sent after the connection joined and had to come, or to be announced, before
    /// another one that came, or before the stay ended in good order.
    fn check_stay(&mut self, number: u64, conv: Id, stay: &Stay) {
        let Some(since) = stay.joined.or(stay.span.map(|(first, _)| first)) else { return };
        let Some(session) = self.sessions.open.get(&number).copied() else { return };
        let time = |at: usize| self.history.events[at].at;
        let end = self.good_end(number, session, stay);
        let reach = stay.reach;
        let may_be_due =
            |at: usize| reach.is_some_and(|reach| at < reach) || end.is_some_and(|end| time(at) <= end.at);
        let (mut talks, mut missing, mut unnumbered, mut lost) = (0, Vec::new(), 0, 0);
        let mut is_judged_by_leave = false;
        for talk in self.talks_to(number, conv, since).take_while(|talk| may_be_due(talk.at)) {
            let Some(by) = self.due_by(time(talk.at), talk.nodes, reach.map(time), end) else { continue };
            talks += 1;
            is_judged_by_leave |= stay.parted.is_some() && reach.is_none_or(|reach| by > time(reach));
            if stay.ids.contains(&talk.cid) {
                continue;
            }
            let (there, here) = talk.nodes;
            let is_reported = |at: &usize| *at > talk.send.first && time(*at) <= by;
            if self.is_lost_with_node(&talk, by) {
                lost += 1;
            } else if there != here && stay.uncounted.iter().any(is_reported) {
                unnumbered += 1;
            } else {
                missing.push(talk.send.first);
            }
        }
        self.report.talks += talks;
        self.report.talks_uncounted += unnumbered;
        self.report.talks_lost += lost;
        self.report.leavers += u64::from(is_judged_by_leave);
        let (all, silent) = (missing.len(), uncounted(missing, &stay.sheds));
        if silent > 0 {
            let at = stay.span.map_or(since, |(_, last)| last);
            self.broken("shed-untold", at, |h| {
                let room = h.name(conv);
                format!("connection {number} missed {all} of {room}; no announcement counts {silent} of them")
            });
        }
    }
}
