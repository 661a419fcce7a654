//! Events of the adapter, turned into events of the history and progress of the device.

use std::time::Duration;

use serde_json::Value;
use tidegate_protocol::Code;

use super::{Asked, LibraryClient, room::is_room};
use crate::{
    checker::{HistoryEvent, Via},
    person::text_hash,
};

impl LibraryClient {
    /// Handles an event of the adapter at the time `now`.
    pub(in super::super) fn handle_event(
        &mut self,
        event: &Value,
        now: Duration,
        session: impl FnMut() -> u64,
    ) {
        let conv = || event["conversation"].as_str().unwrap_or_default().to_owned();
        let seq = event["seq"].as_u64().unwrap_or_default();
        match event["event"].as_str().unwrap_or_default() {
            "state" => self.connected(event, now, session),
            "sent" => self.sent(event, now, seq),
            "failed" => self.failed(event, now),
            "done" => self.done(event),
            "message" => {
                let cid = event["msgId"].as_str().unwrap_or_default().to_owned();
                let conv = conv();
                if is_room(&conv) {
                    self.show_in_room(conv, seq, cid, body(event));
                } else {
                    self.show(now, conv, seq, Some(cid), body(event));
                    self.note_former(event, seq);
                }
            }
            "change" => {
                self.show(now, conv(), seq, None, 0);
                self.note_former(event, seq);
            }
            "edited" => {
                // The entry is the edit, with a seq of its own.
                let edit = event["edit"].as_u64().unwrap_or_default();
                self.show(now, conv(), edit, None, body(event));
                self.note_former(event, edit);
            }
            "shed" => self.shed(event),
            "stored" => self.kept(event),
            "conversation" => self.state(event, conv()),
            "receipt" => {
                let user = self.profile.user.clone();
                self.events.push(HistoryEvent::ReadOk { user, conv: conv(), seq });
            }
            "unsupported" => self.failure = Some(format!("unsupported: {}", event["do"])),
            _ => {}
        }
    }

    /// Allows the present client to repeat what a former one showed after it was dropped, before the adapter knew of that.
    fn note_former(&mut self, event: &Value, seq: u64) {
        let is_former = event["client"].as_str().is_some_and(|client| client != self.name());
        if let Some(conv) = event["conversation"].as_str().filter(|_| is_former) {
            self.repeatable.insert((conv.to_owned(), seq));
        }
    }

    /// Records the state of a conversation while the device waits for the answer to its `sync`: it can't know when the
    /// library asked for other states.
    fn state(&mut self, event: &Value, conv: String) {
        if !self.asked.values().any(|asked| matches!(asked, Asked::Sync)) {
            return;
        }
        let number = |name: &str| event[name].as_u64().unwrap_or_default();
        let (max, read, unread) = (number("maxSeq"), number("readSeq"), number("unread"));
        let (user, session) = (self.profile.user.clone(), self.application);
        self.events.push(HistoryEvent::State { user, session, conv, max, read, unread });
    }

    fn connected(&mut self, event: &Value, now: Duration, mut session: impl FnMut() -> u64) {
        if event["client"] != *self.name() {
            return;
        }
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
                // Names of nodes matter where there are several; elsewhere all devices have the same one.
                let node = event["node"].as_str().filter(|_| self.profile.hints).unwrap_or("n1");
                node.clone_into(&mut self.node);
                let (user, device) = (self.profile.user.clone(), self.profile.device.clone());
                self.events.push(HistoryEvent::Open { user, device, session });
                self.repeat_to_room();
            }
            "closed" if event["code"] == Code::Replaced.number() && now < self.late_login_until => {
                self.is_replaced = true;
            }
            "closed" => self.failure = Some(format!("closed for ever: {event}")),
            _ => {}
        }
    }

    /// Takes the command that an event answers.
    fn answered(&mut self, event: &Value) -> Option<Asked> {
        let asked = self.asked.remove(event["as"].as_str().unwrap_or_default());
        // The answer to a read may come right after a crash.
        if asked.is_none() && event["client"] == *self.name() {
            self.failure = Some(format!("answers what is answered or was not asked: {event}"));
        }
        asked
    }

    /// Returns the message that was sent before a crash and that an event answers: its promise was settled just before
    /// the crash, or the next client has it from the store.
    fn answered_late(&mut self, event: &Value) -> Option<String> {
        let cid = match event["as"].as_str() {
            Some(label) => self.left.remove(label)?,
            None => match self.own.get(&body(event)) {
                Some(cid) => cid.clone(),
                None => {
                    let id = event["msgId"].as_str()?;
                    self.ids.get(id).map_or(id, String::as_str).to_owned()
                }
            },
        };
        self.unresolved = self.unresolved.saturating_sub(1);
        Some(cid)
    }

    /// Records that the library has stored a message in a file.
    fn kept(&mut self, event: &Value) {
        let (Some(id), Some(cid)) = (event["msgId"].as_str(), self.own.get(&body(event))) else { return };
        self.ids.insert(id.to_owned(), cid.clone());
        self.events.push(HistoryEvent::SendKept { cid: cid.clone() });
    }

    fn sent(&mut self, event: &Value, now: Duration, seq: u64) {
        let duplicate = event["duplicate"].as_bool().unwrap_or_default();
        // An own message is not shown after its ack, but perhaps after a kill: the store may lack its position.
        if let Some(conv) = event["conversation"].as_str().filter(|_| self.is_ordered) {
            self.forget_older(now);
            self.recent.push_back((now, conv.to_owned(), seq));
            self.acked.insert((conv.to_owned(), seq));
        }
        if let Some(cid) = self.answered_late(event) {
            self.is_repeated_to_room(&cid, now);
            self.note_late_answer(event, now);
            if !Self::is_nameless(event, &cid) {
                self.events.push(HistoryEvent::SendOk { cid, seq, duplicate });
            }
            return;
        }
        match self.answered(event) {
            Some(Asked::Send { cid, place }) if event["conversation"] == *place => {
                if let Some(id) = event["msgId"].as_str() {
                    self.ids.insert(id.to_owned(), cid.clone());
                }
                self.is_repeated_to_room(&cid, now);
                self.events.push(HistoryEvent::SendOk { cid, seq, duplicate });
            }
            Some(_) => self.failure = Some(format!("sent elsewhere: {event}")),
            None => {}
        }
    }

    fn failed(&mut self, event: &Value, now: Duration) {
        let code = u16::try_from(event["code"].as_u64().unwrap_or_default()).unwrap_or(u16::MAX);
        if let Some(cid) = self.answered_late(event) {
            return self.refused(cid, now, code);
        }
        match self.answered(event) {
            Some(Asked::Send { cid, .. }) => self.refused(cid, now, code),
            Some(Asked::Join) => self.failure = Some(format!("a join is refused: {event}")),
            Some(Asked::Pull { conv }) => {
                if let Some(check) = &mut self.end_check {
                    check.refused(&conv, code);
                }
            }
            // A read that is refused, or not answered, may have moved the mark or not.
            Some(Asked::Read { .. } | Asked::Sync) | None => {}
        }
    }

    /// Records a refusal. A copy of a message to a room may be refused after another one was accepted: it may be sent
    /// before the next client has joined.
    fn refused(&mut self, cid: String, now: Duration, code: u16) {
        let is_repeated = self.is_repeated_to_room(&cid, now);
        self.events.push(if is_repeated {
            HistoryEvent::SendInfo { cid }
        } else {
            HistoryEvent::SendFail { cid, code }
        });
    }

    fn done(&mut self, event: &Value) {
        match self.answered(event) {
            Some(Asked::Join) => self.joined(),
            Some(Asked::Read { conv, seq }) => {
                let user = self.profile.user.clone();
                self.events.push(HistoryEvent::ReadOk { user, conv, seq });
            }
            Some(Asked::Pull { conv }) => self.pulled(&conv, &event["page"]),
            Some(Asked::Send { .. }) => self.failure = Some(format!("no seq: {event}")),
            Some(Asked::Sync) | None => {}
        }
    }

    fn pulled(&mut self, conv: &str, page: &Value) {
        for push in page["messages"].as_array().into_iter().flatten() {
            let seq = push["seq"].as_u64().unwrap_or_default();
            let is_message = push["event"].is_null() && push["edit"].is_null();
            let cid = is_message.then(|| push["msgId"].as_str().unwrap_or_default().to_owned());
            let body = body(push);
            // The content of an own message may have been replaced.
            let is_own =
                self.own.contains_key(&body) || cid.as_ref().is_some_and(|id| self.ids.contains_key(id));
            if let Some(check) = self.end_check.as_mut().filter(|_| !is_own) {
                check.expect(conv, seq);
            }
            let (device, conv) = (self.history_device(), conv.to_owned());
            self.receive(device, conv, seq, cid, body, Via::Pull);
        }
        if let Some(check) = &mut self.end_check {
            check.advance(conv, page);
        }
    }

    fn show(&mut self, now: Duration, conv: String, seq: u64, cid: Option<String>, body: u64) {
        self.shown.entry(conv.clone()).or_default().insert(seq);
        let entry = (conv.clone(), seq);
        let is_repeat = !self.repeatable.is_empty() && self.repeatable.remove(&entry);
        let via = if self.is_ordered && !is_repeat { Via::App } else { Via::Pull };
        self.forget_older(now);
        // The position passes own messages together with the entry.
        let passed: Vec<_> = self.acked.range((conv.clone(), 0)..entry.clone()).cloned().collect();
        for (conv, seq) in passed {
            self.acked.remove(&(conv.clone(), seq));
            self.recent.push_back((now, conv, seq));
        }
        self.recent.push_back((now, entry.0, entry.1));
        self.receive(self.profile.device.clone(), conv, seq, cid, body, via);
    }

    fn receive(&mut self, device: String, conv: String, seq: u64, cid: Option<String>, body: u64, via: Via) {
        let (user, session) = (self.profile.user.clone(), self.application);
        self.events.push(HistoryEvent::Recv { user, device, session, conv, seq, cid, body, via });
    }
}

/// Returns the hash that stands for the content of an entry.
fn body(entry: &Value) -> u64 {
    entry["content"]["text"].as_str().map_or(0, text_hash)
}
