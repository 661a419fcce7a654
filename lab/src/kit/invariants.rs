//! What holds in every case, and what a case forbids.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    board::{ConnectionLog, Log},
    pattern::{self, Bindings},
    step::Never,
};

/// What must not come after a point of a case.
pub(super) struct Ban {
    never: Never,
    frame: Option<Value>,
    events: usize,
    connections: usize,
    frames: Vec<usize>,
}

impl Ban {
    /// Creates a ban from this point of the log on.
    pub(super) fn new(never: Never, frame: Option<Value>, log: &Log) -> Self {
        Self {
            never,
            frame,
            events: log.events.len(),
            connections: log.connections.len(),
            frames: log.connections.iter().map(|entry| entry.frames.len()).collect(),
        }
    }

    fn check(&self, log: &Log) -> Result<(), String> {
        let matches =
            |pattern: &Value, value: &Value| pattern::bind(pattern, value, &mut Bindings::new()).is_ok();
        if let Some(kind) = &self.never.event {
            let client = self.never.client.as_deref().unwrap_or("c");
            let with = self.never.with.clone().unwrap_or_else(|| json!({}));
            let mut events = log.events[self.events..].iter();
            let found = events.find(|entry| {
                entry.client == client && entry.event["event"] == *kind && matches(&with, &entry.event)
            });
            if let Some(found) = found {
                return Err(format!("must not come: {}", found.event));
            }
        }
        if let Some(frame) = &self.frame {
            for (index, connection) in log.connections.iter().enumerate() {
                let from = self.frames.get(index).copied().unwrap_or_default();
                let found = connection.frames[from..].iter().find(|arrived| matches(frame, &arrived.frame));
                if let Some(found) = found {
                    return Err(format!("must not come: {}", found.frame));
                }
            }
        }
        if let Some(listener) = &self.never.open {
            let is_banned = |entry: &&ConnectionLog| listener == "*" || entry.listener == *listener;
            if log.connections[self.connections..].iter().any(|entry| is_banned(&entry)) {
                return Err(format!("no connection to {listener:?} may come"));
            }
        }
        Ok(())
    }
}

/// Checks the bans of a case and what holds in every case.
pub(super) fn check(log: &mut Log, bans: &[Ban]) -> Result<(), String> {
    for ban in bans {
        ban.check(log)?;
    }
    for connection in &log.connections {
        frames(connection)?;
    }
    events(log)
}

fn frames(connection: &ConnectionLog) -> Result<(), String> {
    if let Some(fault) = &connection.fault {
        return Err(format!("the client breaks the protocol: {fault}"));
    }
    let mut kinds = connection.frames.iter().map(|arrived| (arrived.kind.as_str(), &arrived.frame));
    match kinds.find(|(kind, _)| !kind.starts_with("ws")) {
        None => return Ok(()),
        Some(("hello", frame)) if frame["hello"]["version"] == 1 => {}
        Some((_, frame)) => return Err(format!("the first frame is not a hello of version 1: {frame}")),
    }
    match kinds.find(|(kind, _)| *kind == "hello") {
        Some(_) => Err("a second hello on one connection".to_owned()),
        None => Ok(()),
    }
}

fn events(log: &Log) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for entry in &log.events {
        let event = &entry.event;
        let key = match event["event"].as_str() {
            Some("unsupported") => return Err(format!("the adapter does not support this: {event}")),
            Some("sent" | "failed" | "done") if event["as"].is_string() => json!([entry.client, event["as"]]),
            Some("message") if event["conversation"].as_str().is_some_and(|it| it.starts_with("r:")) => {
                json!([entry.client, "message", event["conversation"], event["sender"], event["msgId"]])
            }
            Some("edited") => json!([entry.client, "edited", event["conversation"], event["edit"]]),
            Some(kind @ ("message" | "change")) => {
                json!([entry.client, kind, event["conversation"], event["seq"]])
            }
            _ => continue,
        };
        if !seen.insert(key.to_string()) {
            return Err(format!("reported twice: {event}"));
        }
    }
    Ok(())
}
