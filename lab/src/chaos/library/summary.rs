//! What the devices with a library did, for the result of a run.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::message_names::is_label;
use crate::checker::{History, HistoryEvent, Id, Via};

/// Returns the counts of a history, or null when no library took part.
pub(in crate::chaos) fn summary(history: &History, names: &[String]) -> Value {
    if names.is_empty() {
        return Value::Null;
    }
    let mut devices: HashSet<(Id, Id)> = HashSet::new();
    for stamped in &history.events {
        if let HistoryEvent::SendInv { user, device, cid, .. } = stamped.event
            && is_label(history.name(cid))
        {
            devices.insert((user, device));
        }
    }
    let (mut sent, mut acked, mut refused, mut shown, mut logins) = (0, 0, 0, 0, 0);
    for stamped in &history.events {
        let count = match stamped.event {
            HistoryEvent::SendInv { cid, .. } if is_label(history.name(cid)) => &mut sent,
            HistoryEvent::SendOk { cid, .. } if is_label(history.name(cid)) => &mut acked,
            HistoryEvent::SendFail { cid, .. } if is_label(history.name(cid)) => &mut refused,
            HistoryEvent::Recv { user, device, via, .. }
                if via != Via::Push && devices.contains(&(user, device)) =>
            {
                &mut shown
            }
            HistoryEvent::Open { user, device, .. } if devices.contains(&(user, device)) => &mut logins,
            _ => continue,
        };
        *count += 1_u64;
    }
    json!({
        "names": names, "devices": devices.len(), "logins": logins,
        "sent": sent, "acked": acked, "refused": refused, "shown": shown,
    })
}
