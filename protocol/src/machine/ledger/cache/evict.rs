//! Eviction: the least recently used archived rows go first, in steps that keep up with what comes in.

use std::collections::{HashMap, VecDeque};

use super::{Cache, Conversation, ROW_HEADS_CACHED, User, weight};

/// Queue entries that one call visits at least.
const VISITS_MIN: usize = 1_024;

/// Queue entries that one call visits for each record since the last call. A record uses one conversation and one key;
/// each use costs at most one entry that is queued again, and one that is evicted.
const VISITS_PER_RECORD: usize = 8;

/// Offsets after which a use of a queued conversation counts as another one. A batch loads its rows before it uses them.
const USE_SPACING: u64 = 4_096;

/// Entries from which on a table is worth being shrunk.
const SHRINK_ENTRIES_MIN: usize = 1_024;

/// Which rows of a conversation may go.
struct Cut {
    /// Offset below which a last use is long ago.
    before: u64,
    archived: u64,
}

/// Number of evicted rows, and their bytes.
#[derive(Default)]
struct Evicted {
    rows: usize,
    bytes: usize,
}

impl Cache {
    /// Evicts unused archived rows; see [`crate::machine::ledger::Ledger::evict`].
    pub(in crate::machine::ledger) fn evict(
        &mut self,
        before: u64,
        archived: u64,
        bytes_max: usize,
    ) -> usize {
        let records = usize::try_from(self.now.saturating_sub(self.evicted_at)).unwrap_or(usize::MAX);
        self.evicted_at = self.now;
        let visits = records.saturating_mul(VISITS_PER_RECORD).max(VISITS_MIN);
        let mut dropped = 0;
        // Whether the first entry, and thus all behind it, must wait.
        let (mut waits, mut pinned_key) = (false, false);
        for _ in 0..visits.min(self.queue.len() + self.key_queue.len()) {
            let over = self.bytes > bytes_max;
            let conversation = self.queue.front().map(|(_, since)| *since).filter(|_| over || !waits);
            let key = self.key_queue.front().map(|(_, since)| *since).filter(|_| !pinned_key);
            let Some(oldest) = conversation.into_iter().chain(key).min().filter(|it| over || *it < before)
            else {
                break;
            };
            if key == Some(oldest) {
                match self.evict_key(archived) {
                    Some(count) => dropped += count,
                    // All further keys are newer, so they are pinned too.
                    None => pinned_key = true,
                }
            } else {
                match self.visit(before, archived, over) {
                    Some(count) => dropped += count,
                    None => waits = true,
                }
            }
        }
        self.shrink();
        dropped
    }

    /// Evicts the key that is first in the queue; `None` if it is not archived yet.
    fn evict_key(&mut self, archived: u64) -> Option<usize> {
        let (hash, since) = self.key_queue.front()?;
        // Set again since: a later entry of the queue represents it.
        let slot = self.keys.get(hash).filter(|slot| slot.changed <= *since);
        if slot.is_some_and(|slot| slot.changed > archived) {
            return None;
        }
        let mut dropped = 0;
        if let Some(slot) = slot {
            if let Some(key) = slot.value {
                self.keys_complete_from = self.keys_complete_from.max(key.offset + 1);
            }
            self.keys.remove(hash);
            self.bytes -= weight::KEY;
            dropped = 1;
        }
        self.key_queue.pop_front();
        self.bytes -= weight::QUEUED_KEY;
        Some(dropped)
    }

    /// Evicts what may go of the conversation that is first in the queue, and queues the rest again. `None` if it was
    /// used only as it was queued, but not long ago: it may go soon.
    fn visit(&mut self, before: u64, archived: u64, over: bool) -> Option<usize> {
        let (id, queued) = self.queue.front()?;
        let unused = queued.saturating_add(USE_SPACING);
        let touched = self.conversations.get(id).map_or(0, |it| it.touched);
        if !over && (before..unused).contains(&touched) {
            return None;
        }
        let (id, _) = self.queue.pop_front()?;
        let Some(it) = self.conversations.get_mut(&id) else { return Some(0) };
        // When over the limit, everything goes that was not used since it was queued.
        let before = if over { before.max(unused) } else { before };
        let evicted = it.evict(&Cut { before, archived });
        self.bytes -= evicted.bytes;
        if it.is_empty() {
            self.conversations.remove(&id);
            self.bytes -= weight::conversation(&id);
        } else {
            self.queue.push_back((id, self.now));
        }
        Some(evicted.rows)
    }

    /// Returns the memory of tables that are mostly empty, as they are after a flood.
    fn shrink(&mut self) {
        shrink_queue(&mut self.queue);
        shrink_queue(&mut self.key_queue);
        shrink_map(&mut self.conversations, SHRINK_ENTRIES_MIN);
        shrink_map(&mut self.keys, SHRINK_ENTRIES_MIN);
    }
}

fn shrink_queue<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > 4 * queue.len() + SHRINK_ENTRIES_MIN {
        queue.shrink_to(2 * queue.len());
    }
}

fn shrink_map<K: Eq + std::hash::Hash, V, S: std::hash::BuildHasher>(map: &mut HashMap<K, V, S>, min: usize) {
    if map.capacity() > 4 * map.len() + min {
        map.shrink_to(2 * map.len());
    }
}

impl Conversation {
    /// Drops the oldest archived row heads until few remain, and returns their number.
    pub(super) fn trim_rows(&mut self, archived: u64) -> usize {
        let before = self.rows.len();
        while self.rows.len() > ROW_HEADS_CACHED
            && self.rows.front().is_some_and(|(_, slot)| slot.changed <= archived)
        {
            self.rows.pop_front();
        }
        before - self.rows.len()
    }

    fn evict(&mut self, cut: &Cut) -> Evicted {
        let rows = self.rows.len();
        self.rows.retain(|(_, slot)| slot.changed > cut.archived);
        let mut evicted = Evicted { rows: 0, bytes: (rows - self.rows.len()) * weight::ROW };
        if self.rows.is_empty() {
            self.rows = VecDeque::new();
        }
        self.users.retain(|id, user| {
            if user.touched < cut.before {
                user.evict(cut, &mut evicted);
            }
            let stays = user.member.is_some() || !user.devices.is_empty();
            evicted.bytes += if stays { 0 } else { weight::user(id) };
            stays
        });
        shrink_map(&mut self.users, 16);
        let pinned = self.head.as_ref().is_some_and(|slot| slot.changed > cut.archived);
        if self.touched < cut.before
            && !pinned
            && let Some(slot) = self.head.take()
        {
            evicted.rows += 1;
            evicted.bytes += slot.value.as_ref().map_or(0, weight::settings);
        }
        evicted
    }

    fn is_empty(&self) -> bool {
        self.head.is_none() && self.users.is_empty() && self.rows.is_empty()
    }
}

impl User {
    fn evict(&mut self, cut: &Cut, evicted: &mut Evicted) {
        let devices = self.devices.len();
        self.devices.retain(|(id, slot)| {
            let stays = slot.changed > cut.archived;
            evicted.bytes += if stays { 0 } else { weight::device(id) };
            stays
        });
        evicted.rows += devices - self.devices.len();
        if self.member.as_ref().is_some_and(|slot| slot.changed <= cut.archived) {
            self.member = None;
            evicted.rows += 1;
        }
    }
}
