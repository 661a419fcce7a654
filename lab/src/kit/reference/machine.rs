//! The client as a pure machine: commands and frames in, frames and events out.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{Faults, PlantedFault, conversation::Conversation, outbox::Outbox, presence::Watches};

/// Commands that a client takes between `connect` and `drop`.
pub(super) const COMMANDS: [&str; 15] = [
    "send", "read", "recall", "edit", "clear", "hide", "leave", "join", "signal", "react", "pull", "watch",
    "unwatch", "online", "close",
];

/// Fields of commands that are no fields of the request.
const COMMAND_FIELDS: [&str; 4] = ["do", "client", "as", "to"];

/// What a client knows, over all its connections.
pub(super) struct Machine {
    faults: Faults,
    pub(super) outbox: Outbox,
    /// Whether a new device begins at the first entry.
    whole: bool,
    conversations: BTreeMap<String, Conversation>,
    rooms: BTreeSet<String>,
    watches: Watches,
    /// Optional parts of the protocol that the node of the last login has; `None` before a login.
    features: Option<BTreeSet<String>>,
    room_messages: BTreeSet<(String, String)>,
    /// Pulls of holes under way, by request.
    pulls: BTreeMap<u64, String>,
    acks: BTreeMap<String, u64>,
    /// The sync under way, and when it is asked for again.
    sync: u64,
    sync_due: Option<Instant>,
    frames: Vec<Value>,
    events: Vec<Value>,
}

impl Machine {
    pub(super) fn new(prefix: String, chained: bool, whole: bool, faults: Faults) -> Self {
        Self {
            outbox: Outbox::new(prefix, chained, faults.clone()),
            faults,
            whole,
            conversations: BTreeMap::new(),
            rooms: BTreeSet::new(),
            watches: Watches::default(),
            features: None,
            room_messages: BTreeSet::new(),
            pulls: BTreeMap::new(),
            acks: BTreeMap::new(),
            sync: 0,
            sync_due: None,
            frames: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Takes the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.events)
    }

    /// Takes the frames to send now.
    pub(super) fn take_frames(&mut self, now: Instant) -> Vec<Value> {
        for (conversation, seq) in std::mem::take(&mut self.acks) {
            if !self.has(PlantedFault::NoAck) {
                self.frames.push(json!({"ack": {"conversation": conversation, "seq": seq}}));
            }
        }
        if self.sync_due.is_some_and(|due| due <= now) {
            (self.sync, self.sync_due) = (self.outbox.request_id(), None);
            self.frames.push(json!({"id": self.sync, "sync": {"positions": self.positions()}}));
        }
        self.pull_holes(now);
        self.frames.extend(self.outbox.due(now));
        std::mem::take(&mut self.frames)
    }

    fn has(&self, fault: PlantedFault) -> bool {
        self.faults.contains(&fault)
    }

    /// Notes a request of the application.
    pub(super) fn command(&mut self, command: &Value, now: Instant) {
        let kind = command["do"].as_str().unwrap_or_default();
        let lacks = match kind {
            "react" => self.features.is_none() || self.lacks("react"),
            // Before a login it is not known what the node has.
            "watch" | "unwatch" => self.lacks("watch"),
            _ => false,
        };
        if lacks {
            self.unsupported(&command["as"]);
            return;
        }
        let mut body = command.clone();
        if let Value::Object(fields) = &mut body {
            COMMAND_FIELDS.iter().for_each(|field| drop(fields.remove(*field)));
        }
        for (key, field) in [("user", "toUser"), ("conversation", "conversation")] {
            if command["to"][key].is_string() {
                body[field] = command["to"][key].clone();
            }
        }
        if let ("leave", Some(room)) = (kind, command["room"].as_str()) {
            self.rooms.remove(room);
        }
        let conversation = command["conversation"].as_str().unwrap_or_default();
        let kind = match kind {
            "watch" => {
                self.watches.begin(conversation);
                kind
            }
            "unwatch" => {
                self.events.extend(self.watches.end(conversation));
                body["stop"] = true.into();
                "watch"
            }
            _ => kind,
        };
        self.outbox.add(command["as"].clone(), kind, body, now);
    }

    /// Returns whether the node of the last login is known to lack an optional part of the protocol.
    fn lacks(&self, feature: &str) -> bool {
        let is_missing = self.features.as_ref().is_some_and(|features| !features.contains(feature));
        is_missing && !self.has(PlantedFault::IgnoreFeatures)
    }

    /// Reports that a request needs what the node does not have.
    fn unsupported(&mut self, tag: &Value) {
        self.events.push(json!({"event": "failed", "as": tag, "code": 0, "name": "UNSUPPORTED"}));
    }

    /// Returns the `hello` of a new connection.
    pub(super) fn hello(&self, fields: &Value) -> Value {
        let mut hello = fields.clone();
        hello["nextId"] = self.outbox.declared().into();
        json!({"id": 1, "hello": hello})
    }

    /// Notes a login, and prepares the first frames.
    pub(super) fn live(&mut self, welcome: &Value, now: Instant) {
        self.outbox.welcomed(welcome["nextId"].as_str().unwrap_or_default());
        let features = welcome["features"].as_array().into_iter().flatten();
        self.features = Some(features.filter_map(|it| it.as_str().map(str::to_owned)).collect());
        if self.lacks("watch") {
            for item in self.outbox.take_kind("watch") {
                self.watches.end(item.body["conversation"].as_str().unwrap_or_default());
                self.unsupported(&item.tag);
            }
        } else if !self.has(PlantedFault::NoRejoin) {
            for conversation in self.watches.again() {
                let id = self.outbox.request_id();
                self.frames.push(json!({"id": id, "watch": {"conversation": conversation}}));
            }
        }
        if !self.has(PlantedFault::NoRejoin) {
            for room in self.rooms.clone() {
                let id = self.outbox.request_id();
                self.frames.push(json!({"id": id, "join": {"room": room}}));
            }
        }
        self.sync_due = (!self.has(PlantedFault::NoSync)).then_some(now);
    }

    /// Returns the positions for `sync` and `ping`.
    pub(super) fn positions(&self) -> Vec<Value> {
        let position =
            |(key, it): (&String, &Conversation)| json!({"conversation": key, "seq": it.position()});
        self.conversations.iter().map(position).collect()
    }

    /// Notes the end of a connection, which carried the requests up to an id.
    pub(super) fn lost(&mut self, up_to: u64, now: Instant) {
        for item in self.outbox.reset(up_to, now) {
            self.events.push(json!({"event": "failed", "as": item.tag, "code": 0, "name": ""}));
        }
        let pulls: Vec<u64> = self.pulls.range(..=up_to).map(|(id, _)| *id).collect();
        for key in pulls.iter().filter_map(|id| self.pulls.remove(id)) {
            self.conversations.entry(key).or_default().postpone(now);
        }
        self.frames.clear();
        // After a move the lists of the old connection hold until the new one reports.
        if up_to == u64::MAX {
            self.events.extend(self.watches.lost());
        }
    }

    /// Handles a frame of the node, other than those of the connection itself.
    pub(super) fn frame(&mut self, frame: &Value, now: Instant) {
        let id = frame["id"].as_u64().unwrap_or_default();
        let fields = frame.as_object().into_iter().flatten();
        let Some((kind, body)) = fields.into_iter().find(|(key, _)| *key != "id") else { return };
        match kind.as_str() {
            "push" => self.entry(body, true, now),
            "sendAck" | "done" => self.answer(id, kind, body, now),
            "error" => self.error(id, body, now),
            "page" => self.page(id, body, now),
            "ping" => self.frames.push(json!({"pong": {}})),
            "pong" => {
                for position in body["positions"].as_array().into_iter().flatten() {
                    self.learn(position, "seq", now);
                }
            }
            "behind" => self.learn(body, "maxSeq", now),
            "conversationState" => self.state(body, now),
            "syncEnd" => {
                let unread = body["unread"].as_u64().unwrap_or_default();
                self.events.push(json!({"event": "synced", "unread": unread}));
            }
            "presence" => {
                let merges = self.has(PlantedFault::MergeReports);
                self.events.extend(self.watches.report(body, merges));
            }
            "cleared" => self.cleared(body["conversation"].clone(), body["seq"].as_u64().unwrap_or_default()),
            "hidden" => self.hidden(body["conversation"].clone(), &body["seqs"]),
            "receipt" | "signal" | "notice" | "shed" | "roomStats" => {
                let mut event = body.clone();
                event["event"] = kind.as_str().into();
                if kind == "shed" && event["count"].is_null() {
                    event["count"] = 0.into();
                }
                self.events.push(event);
                if body["kind"] == "NOTICE_KIND_ROOM_REMOVED" {
                    let key = body["conversation"].as_str().unwrap_or_default();
                    self.rooms.remove(key.strip_prefix("r:").unwrap_or(key));
                }
            }
            _ => {}
        }
    }

    fn conversation(&mut self, body: &Value) -> &mut Conversation {
        let key = body["conversation"].as_str().unwrap_or_default();
        self.conversations.entry(key.to_owned()).or_default()
    }

    fn learn(&mut self, body: &Value, field: &str, now: Instant) {
        let seq = body[field].as_u64().unwrap_or_default();
        self.conversation(body).learn(seq, now);
    }

    /// Notes an entry that was pushed or pulled, and reports it once.
    fn entry(&mut self, entry: &Value, is_push: bool, now: Instant) {
        let seq = entry["seq"].as_u64().unwrap_or_default();
        let key = entry["conversation"].as_str().unwrap_or_default().to_owned();
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        if key.starts_with("r:") {
            let is_new = self.room_messages.insert((text("sender"), text("msgId")));
            if is_new {
                self.report(entry, "message");
            }
            return;
        }
        let reports_all = self.has(PlantedFault::ReportDuplicates);
        let acks_holes = self.has(PlantedFault::AckHoles);
        let conversation = self.conversation(entry);
        let is_new = conversation.add(seq, now);
        if is_push {
            let position = if acks_holes { seq } else { conversation.position() };
            self.acks.insert(key, position);
        }
        if !is_new && !reports_all {
            return;
        }
        if let Some(recalled) = entry["recall"]["seq"].as_u64() {
            self.recalled(entry["conversation"].clone(), recalled);
        } else if entry["edit"].is_object() {
            self.edited(entry, seq);
        } else if entry["event"].is_object() {
            self.report(entry, "change");
        } else if self.conversation(entry).shows(seq) || self.has(PlantedFault::ReportRecalled) {
            self.report(entry, "message");
        }
    }

    /// Reports an entry, with the fields of a membership change on their own.
    fn report(&mut self, entry: &Value, kind: &str) {
        let mut event = entry.clone();
        let change = event["event"].take();
        if let (Some(fields), Some(event)) = (change.as_object(), event.as_object_mut()) {
            event.extend(fields.clone());
        }
        event["event"] = kind.into();
        self.events.push(event);
    }

    fn recalled(&mut self, conversation: Value, seq: u64) {
        let key = conversation.as_str().unwrap_or_default().to_owned();
        self.conversations.entry(key).or_default().recall(seq);
        self.events.push(json!({"event": "recalled", "conversation": conversation, "seq": seq}));
    }

    /// Reports an edit, without its content if its message was recalled or has a later one.
    fn edited(&mut self, entry: &Value, edit: u64) {
        let of = entry["edit"]["seq"].as_u64().unwrap_or_default();
        let reports_old = self.has(PlantedFault::ReportOldEdits);
        let conversation = self.conversation(entry);
        let is_newest = conversation.edit(of, edit) || reports_old;
        let mut event =
            json!({"event": "edited", "conversation": entry["conversation"], "seq": of, "edit": edit});
        if is_newest && conversation.shows(of) {
            event["content"] = entry["edit"]["content"].clone();
        }
        self.events.push(event);
    }

    fn state(&mut self, state: &Value, now: Instant) {
        let whole = self.whole;
        self.conversation(state).state(state, whole, now);
        let number = |field: &str| state[field].as_u64().unwrap_or_default();
        self.events.push(json!({
            "event": "conversation", "conversation": state["conversation"], "maxSeq": number("maxSeq"),
            "readSeq": number("readSeq"), "unread": number("unread"),
        }));
        self.cleared(state["conversation"].clone(), number("clearedSeq"));
        self.hidden(state["conversation"].clone(), &state["hidden"]);
    }

    fn cleared(&mut self, conversation: Value, seq: u64) {
        let key = conversation.as_str().unwrap_or_default().to_owned();
        if self.conversations.entry(key).or_default().clear(seq) {
            self.events.push(json!({"event": "cleared", "conversation": conversation, "seq": seq}));
        }
    }

    fn hidden(&mut self, conversation: Value, seqs: &Value) {
        let key = conversation.as_str().unwrap_or_default().to_owned();
        let new = self.conversations.entry(key).or_default().hide(seqs);
        if !new.is_empty() {
            self.events.push(json!({"event": "hidden", "conversation": conversation, "seqs": new}));
        }
    }

    fn page(&mut self, id: u64, page: &Value, now: Instant) {
        let messages = page["messages"].as_array().into_iter().flatten();
        let recalled = page["recalled"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        for seq in recalled.clone() {
            self.conversation(page).recall(seq);
        }
        messages.clone().for_each(|entry| self.entry(entry, false, now));
        if self.pulls.remove(&id).is_some() {
            let expired = page["expired"].as_array().into_iter().flatten();
            let expired = expired.filter_map(|range| range["last"].as_u64());
            let named = messages.filter_map(|entry| entry["seq"].as_u64()).chain(recalled).chain(expired);
            let conversation = self.conversation(page);
            conversation.postpone(now);
            if let Some(last) = named.max() {
                conversation.skip_to(last, now);
            }
            let position = conversation.position();
            let key = page["conversation"].as_str().unwrap_or_default().to_owned();
            self.acks.insert(key, position);
        }
        if let Some(item) = self.outbox.answered(id) {
            self.events.push(json!({"event": "done", "as": item.tag, "page": page}));
        }
    }

    /// Asks for what is missing, one pull at a time for each conversation.
    fn pull_holes(&mut self, now: Instant) {
        if self.has(PlantedFault::IgnoreHoles) {
            return;
        }
        for (key, conversation) in &mut self.conversations {
            if conversation.wants_pull(now) {
                conversation.is_pulling = true;
                let id = self.outbox.request_id();
                self.pulls.insert(id, key.clone());
                self.frames.push(json!({"id": id, "pull": {
                    "conversation": key, "cursor": conversation.position(), "direction": "DIRECTION_FORWARD",
                }}));
            }
        }
    }

    fn answer(&mut self, id: u64, kind: &str, body: &Value, now: Instant) {
        let Some(item) = self.outbox.answered(id) else { return };
        let is_room = body["conversation"].as_str().is_none_or(|key| key.starts_with("r:"));
        if let (Some(seq), "send", false) = (body["seq"].as_u64(), item.kind.as_str(), is_room) {
            // The connection that sent a message gets no push of it, but of its recalls and edits.
            self.conversation(body).add(seq, now);
        }
        if item.kind == "join" {
            self.rooms.insert(item.body["room"].as_str().unwrap_or_default().to_owned());
        }
        if item.kind == "watch" {
            self.watches.agreed(item.body["conversation"].as_str().unwrap_or_default());
        }
        let mut event = if kind == "sendAck" { body.clone() } else { json!({}) };
        event["event"] = if item.kind == "send" { "sent" } else { "done" }.into();
        event["as"] = item.tag;
        event["duplicate"] = (body["duplicate"] == true).into();
        self.events.push(event);
    }

    fn error(&mut self, id: u64, error: &Value, now: Instant) {
        let wait = Duration::from_millis(error["retryAfterMs"].as_u64().unwrap_or_default());
        if id == self.sync {
            self.sync_due = (error["temporary"] == true).then_some(now + wait);
        }
        if let Some(key) = self.pulls.remove(&id) {
            self.conversations.entry(key).or_default().postpone(now + wait.max(Duration::from_millis(100)));
            return;
        }
        let kind = self.outbox.kind(id).unwrap_or_default();
        let repeats = match kind {
            "signal" | "react" => false,
            "pull" => error["name"] != "NOT_YET",
            _ => true,
        };
        if error["temporary"] == true && repeats {
            if error["name"] == "ORDER_BROKEN" {
                self.outbox.reset(u64::MAX, now);
            }
            self.outbox.retry(id, wait, now);
        } else if let Some(item) = self.outbox.answered(id) {
            let (code, name) = (&error["code"], &error["name"]);
            if item.kind == "watch" {
                let conversation = item.body["conversation"].as_str().unwrap_or_default();
                self.events.extend(self.watches.end(conversation));
            }
            self.events.push(json!({"event": "failed", "as": item.tag, "code": code, "name": name}));
        }
    }
}
