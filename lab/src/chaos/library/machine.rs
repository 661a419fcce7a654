//! A device whose client is a library: a pure machine that turns the run into commands for the adapter, and the adapter's
//! events into events of the history.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IteratorRandom as _};
use serde_json::{Value, json};

use super::{end_check::EndCheck, message_names::label};
use crate::{
    checker::{HistoryEvent, Via},
    person::{Phase, Profile, TICK_INTERVAL, text_hash, text_of},
};

/// Ticks in which a device moves a read mark, per thousand, and those of them that read again what was read, in percent.
const READS: u32 = 10;
const OLD: u32 = 20;

/// Ability of an adapter whose library reports the entries of a conversation in the order of their seqs.
const ORDERED: &str = "ordered";

/// A command that is not answered.
enum Asked {
    Send { cid: String, place: String },
    Read { conv: String, seq: u64 },
    Pull { conv: String },
}

/// A device whose client is a library.
pub(super) struct LibraryClient {
    profile: Profile,
    name: String,
    rng: StdRng,
    /// Number that stands for the application over all connections: its sends and what it is shown have one order.
    application: u64,
    /// Number of the present connection.
    connection: Option<u64>,
    is_chained: bool,
    is_ordered: bool,
    next_message: u64,
    next_command: u64,
    asked: BTreeMap<String, Asked>,
    shown: BTreeMap<String, BTreeSet<u64>>,
    /// Hashes of the texts that the device has sent.
    own: BTreeSet<u64>,
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
    /// Creates a device that has sent nothing yet, over an adapter with these abilities.
    pub(super) fn new(profile: Profile, name: &str, can: &[String], application: u64, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        Self {
            name: name.to_owned(),
            application,
            connection: None,
            is_chained: rng.random_ratio(2, 3),
            is_ordered: can.iter().any(|it| it == ORDERED),
            next_message: 0,
            next_command: 0,
            asked: BTreeMap::new(),
            shown: BTreeMap::new(),
            own: BTreeSet::new(),
            credit: 0.0,
            is_marked: false,
            end_check: None,
            is_complete: false,
            events: Vec::new(),
            commands: Vec::new(),
            failure: None,
            profile,
            rng,
        }
    }

    /// Returns whether all messages are chained.
    pub(super) fn is_chained(&self) -> bool {
        self.is_chained
    }

    /// Returns the number of answers that the device waits for; `usize::MAX` if it is not logged in.
    pub(super) fn waiting(&self) -> usize {
        if self.connection.is_none() { usize::MAX } else { self.asked.len() }
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
        self.credit += TICK_INTERVAL.as_secs_f64() / self.profile.pace.as_secs_f64();
        match phase {
            Phase::Talk => self.talk(session),
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
    fn talk(&mut self, mut session: impl FnMut() -> u64) {
        while self.credit >= 1.0 {
            self.credit -= 1.0;
            if self.asked.len() < self.profile.in_flight_max
                && let Some(place) = self.profile.places.iter().choose(&mut self.rng).cloned()
            {
                self.send(place, &mut session);
            }
        }
        if self.connection.is_some() && self.rng.random_ratio(READS, 1_000) {
            self.read();
        }
    }

    fn send(&mut self, place: String, mut session: impl FnMut() -> u64) {
        let cid = label(self.profile.number, self.next_message);
        self.next_message += 1;
        let text = text_of(&cid);
        let body = text_hash(&text);
        self.own.insert(body);
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
        let check = self.end_check.get_or_insert_with(|| EndCheck::new(convs, now));
        if !self.asked.is_empty() {
            return;
        }
        if let Some((conv, pull)) = check.next_pull() {
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
        command["client"] = self.name.as_str().into();
        command["as"] = label.as_str().into();
        self.asked.insert(label, asked);
        self.commands.push(command);
    }

    /// Handles an event of the adapter.
    pub(super) fn hear(&mut self, event: &Value, session: impl FnMut() -> u64) {
        let conv = || event["conversation"].as_str().unwrap_or_default().to_owned();
        let seq = event["seq"].as_u64().unwrap_or_default();
        match event["event"].as_str().unwrap_or_default() {
            "state" => self.connected(event, session),
            "sent" => self.sent(event, seq),
            "failed" => self.failed(event),
            "done" => self.done(event),
            "message" => {
                let cid = event["msgId"].as_str().unwrap_or_default().to_owned();
                self.show(conv(), seq, Some(cid), body(event));
            }
            "change" => self.show(conv(), seq, None, 0),
            "receipt" => {
                let user = self.profile.user.clone();
                self.events.push(HistoryEvent::ReadOk { user, conv: conv(), seq });
            }
            "unsupported" => self.failure = Some(format!("unsupported: {}", event["do"])),
            _ => {}
        }
    }

    fn connected(&mut self, event: &Value, mut session: impl FnMut() -> u64) {
        let state = event["state"].as_str().unwrap_or_default();
        if state != "connecting"
            && let Some(session) = self.connection.take()
        {
            let code = u16::try_from(event["code"].as_u64().unwrap_or_default()).unwrap_or(u16::MAX);
            self.events.push(HistoryEvent::Close { session, code });
        }
        match state {
            "live" => {
                let session = session();
                self.connection = Some(session);
                let (user, device) = (self.profile.user.clone(), self.profile.device.clone());
                self.events.push(HistoryEvent::Open { user, device, session });
            }
            "closed" => self.failure = Some(format!("closed for ever: {event}")),
            _ => {}
        }
    }

    /// Takes the command that an event answers.
    fn answered(&mut self, event: &Value) -> Option<Asked> {
        let asked = self.asked.remove(event["as"].as_str().unwrap_or_default());
        if asked.is_none() {
            self.failure = Some(format!("answers what is answered or was not asked: {event}"));
        }
        asked
    }

    fn sent(&mut self, event: &Value, seq: u64) {
        match self.answered(event) {
            Some(Asked::Send { cid, place }) if event["conversation"] == *place => {
                let duplicate = event["duplicate"].as_bool().unwrap_or_default();
                self.events.push(HistoryEvent::SendOk { cid, seq, duplicate });
            }
            Some(_) => self.failure = Some(format!("sent elsewhere: {event}")),
            None => {}
        }
    }

    fn failed(&mut self, event: &Value) {
        let code = u16::try_from(event["code"].as_u64().unwrap_or_default()).unwrap_or(u16::MAX);
        match self.answered(event) {
            Some(Asked::Send { cid, .. }) => self.events.push(HistoryEvent::SendFail { cid, code }),
            Some(Asked::Pull { conv }) => {
                if let Some(check) = &mut self.end_check {
                    check.refused(&conv, code);
                }
            }
            // A read that is refused, or not answered, may have moved the mark or not.
            Some(Asked::Read { .. }) | None => {}
        }
    }

    fn done(&mut self, event: &Value) {
        match self.answered(event) {
            Some(Asked::Read { conv, seq }) => {
                let user = self.profile.user.clone();
                self.events.push(HistoryEvent::ReadOk { user, conv, seq });
            }
            Some(Asked::Pull { conv }) => self.pulled(&conv, &event["page"]),
            Some(Asked::Send { .. }) => self.failure = Some(format!("no seq: {event}")),
            None => {}
        }
    }

    fn pulled(&mut self, conv: &str, page: &Value) {
        for push in page["messages"].as_array().into_iter().flatten() {
            let seq = push["seq"].as_u64().unwrap_or_default();
            let cid = push["event"].is_null().then(|| push["msgId"].as_str().unwrap_or_default().to_owned());
            let body = body(push);
            if let Some(check) = self.end_check.as_mut().filter(|_| !self.own.contains(&body)) {
                check.expect(conv, seq);
            }
            let (device, conv) = (self.history_device(), conv.to_owned());
            self.receive(device, conv, seq, cid, body, Via::Pull);
        }
        if let Some(check) = &mut self.end_check {
            check.advance(conv, page);
        }
    }

    fn show(&mut self, conv: String, seq: u64, cid: Option<String>, body: u64) {
        self.shown.entry(conv.clone()).or_default().insert(seq);
        let via = if self.is_ordered { Via::App } else { Via::Pull };
        self.receive(self.profile.device.clone(), conv, seq, cid, body, via);
    }

    fn receive(
        &mut self,
        device: String,
        conv: String,
        seq: u64,
        cid: Option<String>,
        body: u64,
        via: Via,
    ) {
        let (user, session) = (self.profile.user.clone(), self.application);
        self.events.push(HistoryEvent::Recv { user, device, session, conv, seq, cid, body, via });
    }
}

/// Returns the other user of a direct conversation.
fn peer<'a>(conv: &'a str, user: &str) -> Option<&'a str> {
    let (a, b) = conv.strip_prefix("d:")?.split_once(':')?;
    Some(if a == user { b } else { a })
}

/// Returns the hash that stands for the content of an entry.
fn body(entry: &Value) -> u64 {
    entry["content"]["text"].as_str().map_or(0, text_hash)
}
