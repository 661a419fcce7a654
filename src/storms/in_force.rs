//! Storms in force, as the durable entries of their owners describe them: for slow mode on every node, and for the next
//! owner. An entry ends by itself, so that nothing stays in force after an owner that crashed.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::storm::{StormAction, StormInForce},
};
use tokio::time::Instant;

use super::slow::SlowModes;

/// Most bytes of the names of exempt users in an entry; further ones are not exempt.
const EXEMPT_BYTES_MAX: usize = 3_072;

/// Longest time until the end of an entry, whatever the store says: more than two of the longest windows.
const LEFT_MAX: Duration = Duration::from_secs(3 * 86_400);

/// Time for which a removed entry is remembered, so that a late page does not bring it back.
const REMOVED_KEPT: Duration = Duration::from_secs(60);

/// Storm in force in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StormEntry {
    /// State for the next owner.
    pub storm: StormInForce,
    /// Restriction in force; `None` if the storm is only reported.
    pub action: Option<StormAction>,
    /// Users whom slow mode does not concern.
    pub exempt: Vec<UserId>,
    /// Times that an operator replaced the action.
    pub changes: u32,
}

/// Storm of a group, as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveStorm {
    /// Group.
    pub group: ConversationId,
    /// State for a next owner.
    pub storm: StormInForce,
    /// Messages in the window.
    pub count: u32,
}

/// Text of an entry.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    seq: u64,
    since_ms: u64,
    peak: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cooling_since_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    action: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    exempt: Vec<String>,
    #[serde(default)]
    changes: u32,
}

impl StormEntry {
    /// Encodes the entry, in less than 4,096 bytes.
    pub fn encode(&self) -> Bytes {
        let mut bytes = 0;
        let exempt = self.exempt.iter().take_while(|name| {
            bytes += name.as_str().len() + 3;
            bytes <= EXEMPT_BYTES_MAX
        });
        let raw = RawEntry {
            seq: self.storm.seq,
            since_ms: self.storm.since_ms,
            peak: self.storm.peak,
            cooling_since_ms: self.storm.cooling_since_ms,
            action: self.action.map(|action| action.to_string()),
            exempt: exempt.map(ToString::to_string).collect(),
            changes: self.changes,
        };
        serde_json::to_vec(&raw).unwrap_or_default().into()
    }

    /// Decodes an entry; `None` if it is not one. An action that this version does not know is none.
    pub fn decode(value: &[u8]) -> Option<Self> {
        let raw: RawEntry = serde_json::from_slice(value).ok()?;
        let storm = StormInForce {
            seq: raw.seq,
            since_ms: raw.since_ms,
            peak: raw.peak,
            cooling_since_ms: raw.cooling_since_ms,
        };
        let exempt = raw.exempt.iter().filter_map(|name| UserId::new(name).ok()).collect();
        let action = raw.action.as_deref().and_then(StormAction::parse);
        Some(Self { storm, action, exempt, changes: raw.changes })
    }
}

/// Entries of all groups, by their versions.
#[derive(Default)]
pub struct StormEntries {
    entries: Mutex<BTreeMap<ConversationId, Versioned>>,
    slow: SlowModes,
}

struct Versioned {
    version: u64,
    /// `None` if the entry was removed.
    entry: Option<StormEntry>,
    until: Instant,
}

impl StormEntries {
    /// Applies a state of an entry, unless a newer one is known: `None` if it was removed, and else the time until its
    /// end. Returns whether it was applied.
    pub fn apply(&self, group: &ConversationId, version: u64, entry: Option<(StormEntry, Duration)>) -> bool {
        let mut entries = self.entries.lock();
        if entries.get(group).is_some_and(|known| known.version > version) {
            return false;
        }
        let now = Instant::now();
        let until = now + entry.as_ref().map_or(REMOVED_KEPT, |(_, left)| (*left).min(LEFT_MAX));
        let entry = entry.map(|(entry, _)| entry);
        match &entry {
            Some(StormEntry { action: Some(StormAction::Slow(interval)), exempt, .. }) => {
                self.slow.set(group, *interval, exempt, until);
            }
            _ => self.slow.remove(group),
        }
        entries.insert(group.clone(), Versioned { version, entry, until });
        true
    }

    /// Removes what has ended. To be called each second.
    pub fn expire(&self) {
        let now = Instant::now();
        self.entries.lock().retain(|_, it| it.until > now);
        self.slow.expire(now);
    }

    /// Lets any state of an entry replace the known one, because the versions of the store begin again.
    pub fn forget_versions(&self) {
        self.entries.lock().values_mut().for_each(|it| it.version = 0);
    }

    /// Returns the storm in force in a group.
    pub fn get(&self, group: &ConversationId) -> Option<StormEntry> {
        let entries = self.entries.lock();
        entries.get(group).filter(|it| it.until > Instant::now()).and_then(|it| it.entry.clone())
    }

    /// Returns the version of a group's entry, as this node has read it; 0 if there is none.
    pub fn version(&self, group: &ConversationId) -> u64 {
        let entries = self.entries.lock();
        let live = entries.get(group).filter(|it| it.entry.is_some() && it.until > Instant::now());
        live.map_or(0, |it| it.version)
    }

    /// Returns the groups with a storm in force, as far as `is_wanted`, with the seqs of the storms.
    pub fn groups(&self, is_wanted: impl Fn(&ConversationId) -> bool) -> Vec<(ConversationId, u64)> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let live = entries.iter().filter(|(group, it)| it.until > now && is_wanted(group));
        live.filter_map(|(group, it)| Some((group.clone(), it.entry.as_ref()?.storm.seq))).collect()
    }

    /// Returns the slow modes in force.
    pub const fn slow(&self) -> &SlowModes {
        &self.slow
    }
}
