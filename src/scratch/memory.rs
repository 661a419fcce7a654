//! `Scratch` in memory: bounded by forgetting what was not used for longest.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tidegate_protocol::{
    Time,
    id::{DeviceId, UserId},
};

use super::{ChainSave, ChainState, DONE_IDS_MAX, Hit, Scratch, ScratchError, WindowRule};

/// What one entry costs beside its ids and times, roughly.
const ENTRY_BYTES: usize = 128;

/// The scratch of profile `single`.
pub struct MemoryScratch {
    now: Box<dyn Fn() -> Time + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    chains: Young<(UserId, DeviceId), ChainState>,
    windows: Young<(String, Duration), VecDeque<Time>>,
}

/// A map of two generations: when the young one has half of the bytes allowed, the old one is forgotten and the
/// young one takes its place. Whatever was touched since survives.
struct Young<K, V> {
    /// With the bytes that each is charged.
    young: HashMap<K, (V, usize)>,
    old: HashMap<K, (V, usize)>,
    bytes: usize,
    half: usize,
}

impl MemoryScratch {
    /// Keeps at most about `max_bytes` each of chains and of windows; `now` is the node's monotonic clock.
    pub fn new(max_bytes: usize, now: impl Fn() -> Time + Send + Sync + 'static) -> Self {
        let state = State { chains: Young::new(max_bytes / 2), windows: Young::new(max_bytes / 2) };
        Self { now: Box::new(now), state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Scratch for MemoryScratch {
    async fn save_chains(&self, saves: Vec<ChainSave>) -> Result<(), ScratchError> {
        let mut state = self.lock();
        for ChainSave { user, device, state: mut chain } in saves {
            let key = (user, device);
            if state.chains.get(&key).is_some_and(|saved| saved.epoch > chain.epoch) {
                continue;
            }
            for ids in [&mut chain.done, &mut chain.skipped] {
                ids.drain(..ids.len().saturating_sub(DONE_IDS_MAX));
            }
            let bytes = chain.done.iter().chain(&chain.skipped).map(|id| id.as_str().len() + 32).sum();
            state.chains.put(key, chain, bytes);
        }
        Ok(())
    }

    async fn load_chain(&self, user: &UserId, device: &DeviceId) -> Result<Option<ChainState>, ScratchError> {
        Ok(self.lock().chains.get(&(user.clone(), device.clone())).cloned())
    }

    async fn hit(&self, rules: &[WindowRule]) -> Result<Hit, ScratchError> {
        let mut state = self.lock();
        // Under the lock, so that times in a window never fall.
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

/// How long until one more hit would pass; forgets the hits that have left the window.
fn wait(hits: Option<&mut VecDeque<Time>>, rule: &WindowRule, now: Time) -> Option<Duration> {
    let limit = rule.limit as usize;
    if limit == 0 {
        return Some(rule.window);
    }
    let hits = hits?;
    while hits.front().is_some_and(|&hit| hit + rule.window <= now) {
        hits.pop_front();
    }
    let last_in_the_way = hits.get(hits.len().checked_sub(limit)?)?;
    Some((*last_in_the_way + rule.window).since(now))
}

impl<K: Hash + Eq, V> Young<K, V> {
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
