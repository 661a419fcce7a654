//! `Scratch` adapter in memory, bounded by evicting the least recently written entries; chains count by user, and each
//! user has few.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    mem,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::{
    Time,
    id::{DeviceId, UserId},
};

use super::{
    CHAINS_PER_USER_MAX, ChainSave, ChainState, ChainStep, DONE_IDS_MAX, Hit, Scratch, ScratchError,
    WindowRule,
};

/// Approximate size of an entry in addition to its ids and times.
const ENTRY_BYTES: usize = 128;

/// Scratch store of profile `single`.
pub struct MemoryScratch {
    now: Box<dyn Fn() -> Time + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    chains: GenerationMap<UserId, UserChains>,
    windows: GenerationMap<(String, Duration), VecDeque<Time>>,
}

/// Map of two generations. When the young one reaches half of the allowed bytes, it replaces the old one, whose entries
/// are evicted unless they were written since.
struct GenerationMap<K, V> {
    /// Entries with the bytes charged for each.
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    bytes: usize,
    half: usize,
}

impl MemoryScratch {
    /// Creates an empty store with approximately `max_bytes` for chains, and as many for windows. `now` is the node's
    /// monotonic clock.
    pub fn new(max_bytes: usize, now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        let (chains, windows) = (GenerationMap::new(max_bytes / 2), GenerationMap::new(max_bytes / 2));
        let state = State { chains, windows };
        Self { now: Box::new(now), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Chains of one user, the one saved longest ago first.
#[derive(Default)]
struct UserChains {
    chains: Vec<SavedChain>,
    /// Sum of the bytes charged for each.
    bytes: usize,
}

struct SavedChain {
    device: DeviceId,
    state: ChainState,
    bytes: usize,
}

impl UserChains {
    fn get(&self, device: &DeviceId) -> Option<&ChainState> {
        self.chains.iter().find(|it| it.device == *device).map(|it| &it.state)
    }

    fn take(&mut self, device: &DeviceId) -> Option<ChainState> {
        let at = self.chains.iter().position(|it| it.device == *device)?;
        Some(self.remove(at).state)
    }

    fn put(&mut self, device: DeviceId, state: ChainState) {
        drop(self.take(&device));
        let ids = state.done.iter().chain(&state.skipped);
        let bytes = ENTRY_BYTES + ids.map(|id| id.as_str().len() + 32).sum::<usize>();
        self.bytes += bytes;
        self.chains.push(SavedChain { device, state, bytes });
        if self.chains.len() > CHAINS_PER_USER_MAX {
            drop(self.remove(0));
        }
    }

    fn remove(&mut self, at: usize) -> SavedChain {
        let removed = self.chains.remove(at);
        self.bytes -= removed.bytes;
        removed
    }
}

impl State {
    fn chain(&self, user: &UserId, device: &DeviceId) -> Option<&ChainState> {
        self.chains.get(user)?.get(device)
    }

    fn put_chain(&mut self, user: UserId, device: DeviceId, chain: ChainState) {
        let mut chains = self.chains.take(&user).unwrap_or_default();
        chains.put(device, chain);
        let bytes = chains.bytes;
        self.chains.put(user, chains, bytes);
    }
}

/// Returns what orders the states of a chain.
fn order(chain: &ChainState) -> [u64; 2] {
    [chain.epoch, chain.changes]
}

#[async_trait]
impl Scratch for MemoryScratch {
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError> {
        let mut state = self.lock();
        for ChainSave { user, device, state: mut chain } in saves {
            if state.chain(&user, &device).is_some_and(|saved| order(saved) > order(&chain)) {
                continue;
            }
            for ids in [&mut chain.done, &mut chain.skipped] {
                ids.drain(..ids.len().saturating_sub(DONE_IDS_MAX));
            }
            state.put_chain(user, device, chain);
        }
        Ok(())
    }

    async fn advance_chain(&self, step: ChainStep) -> Result<bool, ScratchError> {
        let mut state = self.lock();
        let (user, device) = (step.user.clone(), step.device.clone());
        let Some(saved) = state.chain(&user, &device) else { return Ok(false) };
        if saved.epoch > step.epoch || (saved.epoch == step.epoch && saved.changes >= step.number) {
            return Ok(true);
        }
        // A state of an older connection may have changes that the newer one, which loaded it earlier, does not know.
        if saved.epoch != step.epoch || saved.changes + 1 != step.number {
            return Ok(false);
        }
        let Some(mut chains) = state.chains.take(&user) else { return Ok(false) };
        if let Some(mut chain) = chains.take(&device) {
            chain.apply(step);
            chains.put(device, chain);
        }
        let bytes = chains.bytes;
        state.chains.put(user, chains, bytes);
        Ok(true)
    }

    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError> {
        Ok(self.lock().chain(user, device).cloned())
    }

    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError> {
        let mut state = self.lock();
        // Read under the lock, so that times in a window never decrease.
        let now = (self.now)();
        let mut longest: Option<(Duration, usize)> = None;
        for (index, rule) in rules.iter().enumerate() {
            let hits = state.windows.get_mut(&(rule.key.clone(), rule.window));
            if let Some(wait) = wait(hits, rule, now)
                && longest.is_none_or(|(most, _)| wait > most)
            {
                longest = Some((wait, index));
            }
        }
        if let Some((retry_after, rule)) = longest {
            return Ok(Hit::Refused { rule, retry_after });
        }
        for rule in rules {
            let key = (rule.key.clone(), rule.window);
            let mut hits = state.windows.take(&key).unwrap_or_default();
            hits.push_back(now);
            let bytes = rule.key.len() + hits.len() * mem::size_of::<Time>();
            state.windows.put(key, hits, bytes);
        }
        Ok(Hit::Allowed)
    }
}

/// Returns the time until another hit would be allowed, or `None` if it is allowed now. Drops hits older than the
/// window.
fn wait(hits: Option<&mut VecDeque<Time>>, rule: &WindowRule, now: Time) -> Option<Duration> {
    let limit = rule.limit as usize;
    if limit == 0 {
        return Some(rule.window);
    }
    let hits = hits?;
    while hits.front().is_some_and(|&hit| hit + rule.window <= now) {
        hits.pop_front();
    }
    let blocking = hits.get(hits.len().checked_sub(limit)?)?;
    Some((*blocking + rule.window).since(now))
}

impl<K: Hash + Eq, V> GenerationMap<K, V> {
    fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), bytes: 0, half }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).map(|(value, _)| value).or_else(|| self.old.get(key).map(|(value, _)| value))
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let found = self.young.get_mut(key).or_else(|| self.old.get_mut(key));
        found.map(|(value, _)| value)
    }

    fn take(&mut self, key: &K) -> Option<V> {
        if let Some((value, bytes)) = self.young.remove(key) {
            self.bytes -= bytes;
            return Some(value);
        }
        self.old.remove(key).map(|(value, _)| value)
    }

    fn put(&mut self, key: K, value: V, bytes: usize) {
        drop(self.take(&key));
        let bytes = bytes + ENTRY_BYTES;
        self.young.insert(key, (value, bytes));
        self.bytes += bytes;
        if self.bytes > self.half {
            self.old = mem::take(&mut self.young);
            self.bytes = 0;
        }
    }
}
