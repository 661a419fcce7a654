//! Names of messages that a library sent. The library chooses their ids, which the lab does not know when it records the
//! send; each has a text of its own, by which the history names it everywhere.

use std::collections::HashMap;

use crate::checker::{History, HistoryEvent, Id};

/// Beginning of the names; no other name begins with it.
const PREFIX: &str = "library";

/// Returns whether a name is that of a message that a library sent.
pub(super) fn is_label(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Returns the name of a message in a history.
pub(super) fn label(device: usize, number: u64) -> String {
    format!("{PREFIX}{device}.{number}")
}

/// Names the messages of libraries in everything that was received or stored. A message that a library sent under two ids
/// has one name then, so the checker finds that it is stored twice. An edited message keeps its name.
pub(in crate::chaos) fn name_messages(history: &mut History) {
    let mut names: HashMap<u64, Id> = HashMap::new();
    for stamped in &history.events {
        if let HistoryEvent::SendInv { cid, body, .. } = stamped.event
            && is_label(history.name(cid))
        {
            names.insert(body, cid);
        }
        if let HistoryEvent::EditInv { body, was, .. } = stamped.event
            && let Some(name) = names.get(&was).copied()
        {
            names.insert(body, name);
        }
    }
    let mut by_id: HashMap<Id, Id> = HashMap::new();
    for stamped in &mut history.events {
        if let HistoryEvent::Recv { cid: Some(cid), body, .. }
        | HistoryEvent::Delivered { cid: Some(cid), body, .. }
        | HistoryEvent::LogMessage { cid, body, .. } = &mut stamped.event
            && let Some(name) = names.get(body)
        {
            by_id.insert(*cid, *name);
            *cid = *name;
        }
    }
    // The answer to a message from a store names it by its id.
    for stamped in &mut history.events {
        if let HistoryEvent::SendOk { cid, .. } = &mut stamped.event
            && let Some(name) = by_id.get(cid)
        {
            *cid = *name;
        }
    }
}
