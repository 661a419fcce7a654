//! Requests without an answer, in their order, and the chain of their ids.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Faults, PlantedFault};

/// Messages that keep their order.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Line {
    Chain,
    Room(String),
}

/// A request of the application.
pub(super) struct Pending {
    pub(super) tag: Value,
    pub(super) kind: String,
    pub(super) body: Value,
    /// Line that the message keeps its place in.
    line: Option<Line>,
    attempt: u32,
    /// Id on the connection.
    request: u64,
    /// When it may be sent; `None` while it waits for an answer.
    due: Option<Instant>,
}

impl Pending {
    fn is_chained(&self) -> bool {
        self.line == Some(Line::Chain)
    }
}

/// Requests of a client. Ids of requests are never used twice, over all connections.
pub(super) struct Outbox {
    items: VecDeque<Pending>,
    faults: Faults,
    chained: bool,
    /// Id of the next chained message.
    reserved: Option<String>,
    /// Ids of this client begin with this.
    prefix: String,
    ids: u64,
    requests: u64,
    /// Ids in the order of the chain.
    order: Vec<String>,
}

impl Outbox {
    pub(super) fn new(prefix: String, chained: bool, faults: Faults) -> Self {
        Self {
            items: VecDeque::new(),
            faults,
            chained,
            reserved: None,
            prefix,
            ids: 0,
            requests: 1,
            order: Vec::new(),
        }
    }

    fn fresh(&mut self) -> String {
        self.ids += 1;
        format!("{}.{}", self.prefix, self.ids)
    }

    pub(super) fn request_id(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Adds a request.
    pub(super) fn add(&mut self, tag: Value, kind: &str, mut body: Value, now: Instant) {
        // Rooms have no chain.
        let room = body["conversation"].as_str().filter(|key| key.starts_with("r:"));
        let line = room.map_or(Line::Chain, |key| Line::Room(key.to_owned()));
        let line = (self.chained && kind == "send").then_some(line);
        let is_chained = line == Some(Line::Chain);
        if kind == "edit" {
            body["msgId"] = self.fresh().into();
        }
        if kind == "send" {
            let reserved = if is_chained { self.reserved.take() } else { None };
            let id = reserved.unwrap_or_else(|| self.fresh());
            if is_chained {
                self.reserved = Some(self.fresh());
                self.order.push(id.clone());
            }
            body["msgId"] = id.into();
        }
        let due = Some(now);
        let kind = kind.to_owned();
        self.items.push_back(Pending { tag, kind, body, line, attempt: 0, request: 0, due });
    }

    /// Returns the id that `hello` declares.
    pub(super) fn declared(&self) -> Option<String> {
        let first = self.items.iter().find(|item| item.is_chained());
        let first = first.and_then(|item| item.body["msgId"].as_str()).map(str::to_owned);
        if self.chained { first.or_else(|| self.reserved.clone()) } else { None }
    }

    /// Notes the id of `welcome`, which a client without one uses.
    pub(super) fn welcomed(&mut self, id: &str) {
        if self.chained && self.reserved.is_none() {
            self.reserved = Some(id.to_owned());
        }
    }

    /// Returns the frames that are due, in order.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Value> {
        let mut frames = Vec::new();
        let mut waiting = HashSet::new();
        for at in 0..self.items.len() {
            let item = &self.items[at];
            let line = item.line.clone();
            let is_due = item.due.is_some_and(|due| due <= now);
            if !is_due || line.as_ref().is_some_and(|line| waiting.contains(line)) {
                // Nothing of a line may overtake what still waits in it.
                let overtakes = self.has(PlantedFault::OvertakeInRoom) && !item.is_chained();
                waiting.extend(line.filter(|_| item.due.is_some() && !overtakes));
                continue;
            }
            let next = item.is_chained().then(|| self.next_id(at));
            let request = self.request_id();
            let attempt = if self.has(PlantedFault::KeepAttempt) { 0 } else { self.items[at].attempt };
            if attempt > 0 && self.has(PlantedFault::NewMsgId) {
                let id = self.fresh();
                self.items[at].body["msgId"] = id.into();
            }
            let item = &mut self.items[at];
            (item.request, item.due) = (request, None);
            let mut body = item.body.clone();
            if item.kind == "send" {
                body["attempt"] = attempt.into();
                body["nextId"] = next.into();
            }
            frames.push(json!({"id": request, &item.kind: body}));
        }
        frames
    }

    /// Returns the id of the next message without an answer, or the one reserved for the next message.
    fn next_id(&self, at: usize) -> Option<String> {
        if self.has(PlantedFault::ChainAnswered) {
            let own = self.items[at].body["msgId"].as_str();
            let later = self.order.iter().skip_while(|id| Some(id.as_str()) != own).nth(1);
            return later.cloned().or_else(|| self.reserved.clone());
        }
        let later = self.items.iter().skip(at + 1).find(|item| item.is_chained());
        let later = later.and_then(|item| item.body["msgId"].as_str()).map(str::to_owned);
        later.or_else(|| self.reserved.clone())
    }

    /// Takes the request that a frame answers.
    pub(super) fn answered(&mut self, request: u64) -> Option<Pending> {
        let is_it = |item: &Pending| item.request == request && item.due.is_none();
        let at = self.items.iter().position(is_it).filter(|_| request > 0)?;
        self.items.remove(at)
    }

    /// Returns the kind of the request that waits under this id.
    pub(super) fn kind(&self, request: u64) -> Option<&str> {
        let mut waiting = self.items.iter().filter(|item| item.due.is_none());
        waiting.find(|item| item.request == request && request > 0).map(|item| item.kind.as_str())
    }

    /// Has a request sent again after a wait.
    pub(super) fn retry(&mut self, request: u64, wait: Duration, now: Instant) {
        let wait = if self.has(PlantedFault::Hurry) { Duration::ZERO } else { wait };
        for item in self.items.iter_mut().filter(|item| item.request == request && item.due.is_none()) {
            (item.attempt, item.due) = (item.attempt + 1, Some(now + wait));
        }
    }

    /// Has all requests up to an id sent again, because the connection that carried them has ended.
    pub(super) fn reset(&mut self, up_to: u64, now: Instant) -> Vec<Pending> {
        let mut lost = Vec::new();
        for mut item in std::mem::take(&mut self.items) {
            if item.request > 0 && item.request <= up_to && item.due.is_none() {
                if matches!(item.kind.as_str(), "signal" | "react") {
                    lost.push(item);
                    continue;
                }
                (item.attempt, item.due) = (item.attempt + 1, Some(now));
            }
            self.items.push_back(item);
        }
        lost
    }

    /// Takes all requests of a kind.
    pub(super) fn take_kind(&mut self, kind: &str) -> VecDeque<Pending> {
        let (taken, left) = std::mem::take(&mut self.items).into_iter().partition(|item| item.kind == kind);
        self.items = left;
        taken
    }

    /// Returns the highest id of a request.
    pub(super) fn last_request(&self) -> u64 {
        self.requests
    }

    fn has(&self, fault: PlantedFault) -> bool {
        self.faults.contains(&fault)
    }
}
