//! A device whose client is a library: a pure machine that turns the run into commands for the adapter, and the adapter's
//! events into events of the history.
//!
//! Where the library can keep its outbox in a store, the device crashes now and then: its client is dropped without a
//! trace, and the next one goes on from the store. A store in a file also outlives the kill of the adapter.

mod incoming;
mod room;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IteratorRandom as _};
use serde_json::{Value, json};

use self::room::{Room, is_room};
use super::{end_check::EndCheck, message_names::label};
use crate::{
    adapter::Description,
    checker::HistoryEvent,
    person::{Phase, Profile, TICK_INTERVAL, text_hash, text_of},
};

/// Ticks in which a device moves a read mark, per thousand, and those of them that read again what was read, in percent.
const READS: u32 = 10;
const OLD: u32 = 20;

/// Ticks in which a device crashes, per ten thousand.
const CRASHES: u32 = 4;

/// Time for the answers to what a crash left in the store, once nothing new is sent. A command that a crash overtook has
/// none.
const RESTORE_TIME: Duration = Duration::from_secs(5);

/// Time before a crash whose entries may be reported again: the library stores a position after it has
/// reported the entry.
const AGAIN_TIME: Duration = Duration::from_secs(1);

/// Time in which a node may complete a login that a crash overtook; it then replaces the next client.
const LATE_LOGIN_TIME: Duration = Duration::from_secs(30);

/// Level of libraries that have live rooms.
const ROOMS: &str = "L3";

/// Ability of an adapter whose library reports the entries of a conversation in the order of their seqs.
const ORDERED: &str = "ordered";
/// Abilities of an adapter that has stores, and the command `sync`.
const STORE: &str = "store";
const SYNC: &str = "sync";

/// A command that is not answered.
enum Asked {
    Send { cid: String, place: String },
    Read { conv: String, seq: u64 },
    Join,
    Sync,
    Pull { conv: String },
}

/// A device whose client is a library.
pub(super) struct LibraryClient {
    profile: Profile,
    rng: StdRng,
    /// Command that creates a client, without its name.
    connect: Value,
    /// Number of crashes and kills so far, which is part of the name of the client.
    crashes: u64,
    /// Number that stands for the application over all connections: its sends and what it is shown have one order.
    application: u64,
    /// Number of the present connection.
    connection: Option<u64>,
    /// Node of the connection.
    node: String,
    /// Whether the adapter was killed and is not started yet.
    is_down: bool,
    /// Time until which a login of a crashed client may still replace the present one.
    late_login_until: Duration,
    /// Whether such a login has closed the present client for ever, so that the user has to start it again.
    is_replaced: bool,
    room: Option<Room>,
    is_chained: bool,
    is_ordered: bool,
    has_store: bool,
    has_sync: bool,
    next_message: u64,
    next_command: u64,
    asked: BTreeMap<String, Asked>,
    /// Sends that a crash left without an answer, by the label of their command.
    left: BTreeMap<String, String>,
    /// Number of these sends whose answer is outstanding, and the time until which it is waited for.
    unresolved: usize,
    resolve_until: Option<Duration>,
    is_resolved: bool,
    shown: BTreeMap<String, BTreeSet<u64>>,
    /// Entries that were shown within [`AGAIN_TIME`], and those that may be shown again after a kill.
    recent: VecDeque<(Duration, String, u64)>,
    repeatable: BTreeSet<(String, u64)>,
    /// Own messages that were acked, until a later entry of the conversation is shown.
    acked: BTreeSet<(String, u64)>,
    /// Messages that the device has sent, by the hashes of their texts.
    own: BTreeMap<u64, String>,
    /// The same by the ids that the library chose, as far as it reports them.
    ids: BTreeMap<String, String>,
    /// Messages that the device may compose.
    credit: f64,
    is_marked: bool,
    end_check: Option<EndCheck>,
    is_complete: bool,
    events: Vec<HistoryEvent<String>>,
    commands: Vec<Value>,
    failure: Option<String>,
}

impl LibraryClient {
    /// Creates a device that has sent nothing yet.
    pub(super) fn new(
        profile: Profile,
        description: &Description,
        mut connect: Value,
        application: u64,
        seed: u64,
    ) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let can = |ability: &str| description.can.iter().any(|it| it == ability);
        let has_rooms = description.levels.iter().any(|it| it == ROOMS);
        let is_chained = rng.random_ratio(2, 3);
        connect["options"]["chain"] = is_chained.into();
        if can(STORE) {
            connect["options"]["store"] = connect["client"].clone();
        }
        let mut client = Self {
            connect,
            crashes: 0,
            application,
            connection: None,
            node: String::new(),
            is_down: false,
            late_login_until: Duration::ZERO,
            is_replaced: false,
            room: has_rooms.then(|| Room::new(&profile.room)),
            is_chained,
            is_ordered: can(ORDERED),
            has_store: can(STORE),
            has_sync: can(SYNC),
            next_message: 0,
            next_command: 0,
            asked: BTreeMap::new(),
            left: BTreeMap::new(),
            unresolved: 0,
            resolve_until: None,
            is_resolved: false,
            shown: BTreeMap::new(),
            recent: VecDeque::new(),
            repeatable: BTreeSet::new(),
            acked: BTreeSet::new(),
            own: BTreeMap::new(),
            ids: BTreeMap::new(),
            credit: 0.0,
            is_marked: false,
            end_check: None,
            is_complete: false,
            events: Vec::new(),
            commands: Vec::new(),
            failure: None,
            profile,
            rng,
        };
        client.start();
        client
    }

    /// Returns the name of the present client: that of the device, and a number.
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.connect["client"].as_str().unwrap_or_default(), self.crashes)
    }

    fn start(&mut self) {
        let mut connect = self.connect.clone();
        connect["client"] = self.name().into();
        self.commands.push(connect);
        self.join();
    }

    /// Returns the number of answers that the device waits for; `usize::MAX` if it is not logged in.
    pub(super) fn waiting(&self) -> usize {
        if self.connection.is_none() {
            return usize::MAX;
        }
        self.asked.len() + if self.is_resolved { 0 } else { self.unresolved }
    }

    /// Returns whether the device has sent its markers.
    pub(super) fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Returns whether the device has reported that it has everything.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns what the adapter did that it must not do.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Takes the events that were added since the last call, in order.
    pub(super) fn take_events(&mut self) -> Vec<HistoryEvent<String>> {
        mem::take(&mut self.events)
    }

    /// Takes the commands for the adapter, in order.
    pub(super) fn take_commands(&mut self) -> Vec<Value> {
        mem::take(&mut self.commands)
    }

    /// Adds the commands of a tick.
    pub(super) fn tick(&mut self, now: Duration, phase: Phase, session: impl FnMut() -> u64) {
        if self.is_down {
            return;
        }
        if mem::take(&mut self.is_replaced) {
            self.restart(now);
        }
        self.credit += TICK_INTERVAL.as_secs_f64() / self.profile.pace.as_secs_f64();
        if phase != Phase::Talk {
            self.is_resolved |= now > *self.resolve_until.get_or_insert(now + RESTORE_TIME);
        }
        match phase {
            Phase::Talk => self.talk(now, session),
            Phase::Mark if !self.is_marked => {
                let places = self.profile.places.clone();
                let mut session = session;
                places.into_iter().for_each(|place| self.send(place, &mut session));
                self.is_marked = true;
            }
            Phase::Check if !self.is_complete && self.connection.is_some() => self.check(now),
            Phase::Settle | Phase::Mark | Phase::Check => {}
        }
    }

    /// Composes messages, connected or not, and reads now and then.
    fn talk(&mut self, now: Duration, mut session: impl FnMut() -> u64) {
        while self.credit >= 1.0 {
            self.credit -= 1.0;
            if self.asked.len() >= self.profile.in_flight_max {
                continue;
            }
            let room = self.room_to_send();
            if let Some(place) = room.or_else(|| self.profile.places.iter().choose(&mut self.rng).cloned()) {
                self.send(place, &mut session);
            }
        }
        if self.connection.is_some() && self.rng.random_ratio(READS, 1_000) {
            self.read();
        }
        if self.has_store && self.rng.random_ratio(CRASHES, 10_000) {
            self.late_login_until = now + LATE_LOGIN_TIME;
            self.restart(now);
        }
    }

    /// Drops the client as a crash does, and starts the next one from its store.
    fn restart(&mut self, now: Duration) {
        self.allow_repeats(now);
        self.commands.push(json!({"do": "drop", "client": self.name()}));
        self.end_client();
        self.start();
    }

    /// Notes that the adapter was killed, and the client with it.
    pub(super) fn killed(&mut self, now: Duration) {
        self.is_down = true;
        self.late_login_until = now + LATE_LOGIN_TIME;
        self.allow_repeats(now);
        self.end_client();
    }

    /// Allows the next client to repeat what its store may not have yet.
    fn allow_repeats(&mut self, now: Duration) {
        self.forget_older(now);
        if let Some(room) = &mut self.room {
            room.killed(now);
        }
        self.repeatable.extend(self.recent.drain(..).map(|(_, conv, seq)| (conv, seq)));
    }

    /// Starts the next client after a kill.
    pub(super) fn started(&mut self) {
        self.is_down = false;
        self.start();
    }

    fn forget_older(&mut self, now: Duration) {
        while self.recent.front().is_some_and(|(at, ..)| *at + AGAIN_TIME < now) {
            self.recent.pop_front();
        }
    }

    /// Notes that the client is gone. Its next one has another name.
    fn end_client(&mut self) {
        if let Some(session) = self.connection.take() {
            self.events.push(HistoryEvent::Close { session, code: 0 });
        }
        for (label, asked) in mem::take(&mut self.asked) {
            if let Asked::Send { cid, .. } = asked {
                self.unresolved += 1;
                self.left.insert(label, cid);
            }
        }
        self.is_replaced = false;
        self.crashes += 1;
    }

    fn send(&mut self, place: String, mut session: impl FnMut() -> u64) {
        let cid = label(self.profile.number, self.next_message);
        self.next_message += 1;
        let text = text_of(&cid);
        let body = text_hash(&text);
        self.own.insert(body, cid.clone());
        if is_room(&place) {
            self.send_to_room(&place, &cid, body, 0);
        } else {
            self.events.push(HistoryEvent::SendInv {
                user: self.profile.user.clone(),
                device: self.profile.device.clone(),
                // A library may send unchained messages in any order.
                session: if self.is_chained { self.application } else { session() },
                conv: place.clone(),
                cid: cid.clone(),
                body,
                attempt: 0,
                chained: self.is_chained,
            });
        }
        let to = match peer(&place, &self.profile.user).filter(|_| self.rng.random()) {
            Some(peer) => json!({"user": peer}),
            None => json!({"conversation": place}),
        };
        self.ask("send", json!({"to": to, "content": {"text": text}}), Asked::Send { cid, place });
    }

    fn read(&mut self) {
        let Some((conv, seqs)) = self.shown.iter().choose(&mut self.rng) else { return };
        let Some(to) = seqs.last().copied() else { return };
        let conv = conv.clone();
        let seq = if self.rng.random_ratio(OLD, 100) { self.rng.random_range(1..=to) } else { to };
        let user = self.profile.user.clone();
        self.events.push(HistoryEvent::ReadInv { user, conv: conv.clone(), seq });
        self.ask("read", json!({"conversation": conv, "seq": seq}), Asked::Read { conv, seq });
    }

    /// Makes sure that everything was shown, and reports it.
    fn check(&mut self, now: Duration) {
        let mut convs: BTreeSet<String> = self.shown.keys().cloned().collect();
        convs.extend(self.profile.places.iter().cloned());
        let is_first = self.end_check.is_none();
        let check = self.end_check.get_or_insert_with(|| EndCheck::new(convs, now));
        if !self.asked.is_empty() {
            return;
        }
        if is_first && self.has_sync {
            self.events.push(HistoryEvent::SyncInv { session: self.application });
            self.ask("sync", json!({}), Asked::Sync);
        } else if let Some((conv, pull)) = check.next_pull() {
            self.ask("pull", pull, Asked::Pull { conv });
        } else if check.is_over(now, &self.shown) {
            self.is_complete = true;
            let user = &self.profile.user;
            // What was pulled is judged as that of another device: it does not excuse what was not shown.
            for device in [self.profile.device.clone(), self.history_device()] {
                self.events.push(HistoryEvent::Complete { user: user.clone(), device, hints: true });
            }
        }
    }

    fn history_device(&self) -> String {
        format!("{}.history", self.profile.device)
    }

    fn ask(&mut self, what: &str, mut command: Value, asked: Asked) {
        let label = format!("{what}{}", self.next_command);
        self.next_command += 1;
        command["do"] = what.into();
        command["client"] = self.name().into();
        command["as"] = label.as_str().into();
        self.asked.insert(label, asked);
        self.commands.push(command);
    }
}

/// Returns the other user of a direct conversation.
fn peer<'a>(conv: &'a str, user: &str) -> Option<&'a str> {
    let (a, b) = conv.strip_prefix("d:")?.split_once(':')?;
    Some(if a == user { b } else { a })
}
