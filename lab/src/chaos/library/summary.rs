//! What the devices with a library did, for the result of a run.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
};

use serde_json::{Value, json};

use super::message_names::is_label;
use crate::checker::{History, HistoryEvent, Id, Via};

/// Returns the counts of a history, or null when no library took part.
pub(in crate::chaos) fn summary(history: &History, names: &[String], kills: &AtomicU64) -> Value {
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
    let (mut sent, mut acked, mut refused, mut kept, mut shown, mut in_rooms, mut logins) =
        (0, 0, 0, 0, 0, 0, 0);
    let is_one = |user: Id, device: Id| devices.contains(&(user, device));
    for stamped in &history.events {
        let count = match stamped.event {
            HistoryEvent::SendInv { cid, attempt: 0, .. } if is_label(history.name(cid)) => &mut sent,
            HistoryEvent::SendKept { .. } => &mut kept,
            HistoryEvent::SendOk { cid, .. } if is_label(history.name(cid)) => &mut acked,
            HistoryEvent::SendFail { cid, .. } if is_label(history.name(cid)) => &mut refused,
            HistoryEvent::Recv { user, device, via: Via::Push, .. } if is_one(user, device) => &mut in_rooms,
            HistoryEvent::Recv { user, device, .. } if is_one(user, device) => &mut shown,
            HistoryEvent::Open { user, device, .. } if is_one(user, device) => &mut logins,
            _ => continue,
        };
        *count += 1_u64;
    }
    json!({
        "names": names, "devices": devices.len(), "logins": logins,
        "sent": sent, "acked": acked, "refused": refused, "shown": shown, "in_rooms": in_rooms,
        "kept": kept, "kills": kills.load(Ordering::Relaxed),
    })
}
