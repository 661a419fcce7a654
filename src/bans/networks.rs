//! Networks as readers find them: a large table, and a small one with what has changed since.
//!
//! A change copies the small table, and the writer merges both when it is full. Readers hold both by `Arc`, so that
//! neither makes them wait.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use foldhash::quality::RandomState;

use super::table::{NetworkKey, NetworkTable, bits_of};
use crate::{live::Live, networks::Network};

/// Most changes that are not merged yet.
pub(super) const CHANGES_MAX: usize = 1_024;

/// End of a network that was removed.
const REMOVED: u64 = 0;

/// End of a network that stays until it is removed.
pub(super) const NO_END: u64 = u64::MAX;

/// Networks in force.
#[derive(Clone)]
pub(super) struct NetworkSet {
    base: Arc<NetworkTable>,
    changes: Arc<NetworkTable>,
}

impl Default for NetworkSet {
    fn default() -> Self {
        let empty = || Arc::new(NetworkTable::new(std::iter::empty()));
        Self { base: empty(), changes: empty() }
    }
}

impl NetworkSet {
    /// Returns the latest end of the networks that contain the address and have not ended; `None` without any. `now_ms`
    /// is called only if one contains it.
    pub(super) fn end_of(&self, address: IpAddr, now_ms: impl Fn() -> u64) -> Option<u64> {
        let address = bits_of(address);
        let mut latest = REMOVED;
        for prefix in self.base.prefixes(address) {
            let key = NetworkKey::new(address, *prefix);
            let end = match self.changes.len() {
                0 => self.base.get(&key),
                _ => self.changes.get(&key).or_else(|| self.base.get(&key)),
            };
            latest = latest.max(end.unwrap_or(REMOVED));
        }
        for prefix in self.changes.prefixes(address) {
            let end = self.changes.get(&NetworkKey::new(address, *prefix));
            latest = latest.max(end.unwrap_or(REMOVED));
        }
        (latest != REMOVED && latest > now_ms()).then_some(latest)
    }
}

/// Writing side of a set: changes are noted, then published together.
#[derive(Default)]
pub(super) struct NetworkChanges {
    noted: HashMap<Network, u64, RandomState>,
    /// Whether a change is not published yet.
    is_pending: bool,
}

impl NetworkChanges {
    /// Returns whether a change is not published yet.
    pub(super) const fn is_pending(&self) -> bool {
        self.is_pending
    }

    /// Notes the end of a network; `None` if it is removed.
    pub(super) fn note(&mut self, network: Network, until_ms: Option<u64>) {
        self.noted.insert(network, until_ms.unwrap_or(REMOVED));
        self.is_pending = true;
    }

    /// Publishes the noted changes. If there are too many, a new table is built of `all` networks.
    pub(super) fn publish(&mut self, set: &Live<NetworkSet>, all: impl FnOnce() -> Vec<(Network, u64)>) {
        if !std::mem::take(&mut self.is_pending) {
            return;
        }
        let mut changed = NetworkSet::clone(&set.get());
        if self.noted.len() > CHANGES_MAX {
            *self = Self::default();
            changed.base = table(&all());
        }
        let noted: Vec<(Network, u64)> = self.noted.iter().map(|(network, end)| (*network, *end)).collect();
        changed.changes = table(&noted);
        set.set(changed);
    }
}

fn table(networks: &[(Network, u64)]) -> Arc<NetworkTable> {
    Arc::new(NetworkTable::new(networks.iter().map(|(network, end)| (NetworkKey::of(network), *end))))
}
