//! `Scratch` adapter in memory, bounded by evicting the least recently written entries; chains count by user, and each
//! user has few.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    mem,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::{
    id::{ConversationId, DeviceId, UserId},
    machine::{
        permit::{GRANT_BYTES_MAX, GrantLog},
        storm::RECEIVE_SKEW_MS,
    },
};

use super::{
    CHAINS_PER_USER_MAX, ChainSave, ChainState, ChainStep, DONE_IDS_MAX, PermitAnswers, PermitCall, Scratch,
    ScratchError, WindowEntry, WindowUpdate,
};

/// Approximate size of an entry in addition to its ids and times.
const ENTRY_BYTES: usize = 128;

/// Approximate size of a mirrored message.
const MESSAGE_BYTES: usize = 32;

/// Scratch store of profile `single`.
pub struct MemoryScratch {
    wall_ms: Box<dyn Fn() -> u64 + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    chains: GenerationMap<UserId, UserChains>,
    windows: GenerationMap<ConversationId, MirroredWindow>,
    /// Grants by the name of the key.
    grants: GenerationMap<String, GrantLog>,
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
    /// Creates an empty store with approximately `max_bytes` each for chains, windows and permits. `wall_ms` returns the
    /// ms since 1970.
    pub fn new(max_bytes: usize, wall_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        let (chains, windows) = (GenerationMap::new(max_bytes / 2), GenerationMap::new(max_bytes / 2));
        let state = State { chains, windows, grants: GenerationMap::new(max_bytes / 2) };
        Self { wall_ms: Box::new(wall_ms), state: Mutex::new(state) }
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

    async fn chain_devices(&self, user: &UserId) -> Result<Vec<DeviceId>, ScratchError> {
        let state = self.lock();
        let chains = state.chains.get(user).into_iter().flat_map(|chains| &chains.chains);
        Ok(chains.map(|it| it.device.clone()).collect())
    }

    async fn forget_chain(&self, user: &UserId, device: &DeviceId) -> Result<bool, ScratchError> {
        let mut state = self.lock();
        let Some(mut chains) = state.chains.take(user) else { return Ok(false) };
        let is_removed = chains.take(device).is_some();
        let bytes = chains.bytes;
        if !chains.chains.is_empty() {
            state.chains.put(user.clone(), chains, bytes);
        }
        Ok(is_removed)
    }

    async fn mirror_windows(
        &self,
        window: Duration,
        updates: &[WindowUpdate],
    ) -> Result<Vec<u64>, ScratchError> {
        let now_ms = (self.wall_ms)();
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let since_ms = now_ms.saturating_sub(window_ms);
        let mut state = self.lock();
        let counts = updates.iter().map(|update| {
            let mut mirrored = state.windows.take(&update.group).unwrap_or_default();
            mirrored.messages.retain(|_, (_, received_ms)| *received_ms > since_ms);
            for entry in &update.entries {
                if entry.received_ms > since_ms && entry.received_ms <= now_ms.saturating_add(RECEIVE_SKEW_MS)
                {
                    mirrored.add(*entry);
                }
            }
            let count = mirrored.messages.values().map(|(messages, _)| u64::from(*messages)).sum();
            let bytes = mirrored.messages.len() * MESSAGE_BYTES;
            state.windows.put(update.group.clone(), mirrored, bytes);
            count
        });
        Ok(counts.collect())
    }

    async fn grant_permits(&self, calls: &[PermitCall]) -> Result<PermitAnswers, ScratchError> {
        let now_us = (self.wall_ms)().saturating_mul(1_000);
        let mut state = self.lock();
        let grants = calls.iter().map(|call| {
            let key = call.key_name();
            let mut log = state.grants.take(&key).unwrap_or_default();
            let grant = log.grant(&call.limit.request(call.ask, now_us));
            state.grants.put(key, log, GRANT_BYTES_MAX);
            grant
        });
        Ok(PermitAnswers { grants: grants.collect(), server: 0 })
    }
}

/// Mirrored window of a group: the number of messages and the receive time of each entry, by its seq.
#[derive(Default)]
struct MirroredWindow {
    messages: BTreeMap<u64, (u32, u64)>,
}

impl MirroredWindow {
    fn add(&mut self, entry: WindowEntry) {
        let last = self.messages.last_key_value().map_or(0, |(seq, _)| *seq);
        let above = u32::try_from(entry.seq.saturating_sub(last)).unwrap_or(u32::MAX);
        let messages = if entry.messages == 1 { 1 } else { entry.messages.min(above) };
        if messages > 0 {
            self.messages.entry(entry.seq).or_insert((messages, entry.received_ms));
        }
    }
}

impl<K: Hash + Eq, V> GenerationMap<K, V> {
    fn new(half: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), bytes: 0, half }
    }

    fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).map(|(value, _)| value).or_else(|| self.old.get(key).map(|(value, _)| value))
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
