//! Block lists as this node enforces them: a filter over all blocks, and decisions for pairs that are in it.
//!
//! The filter has no false negatives, so a sender that nobody blocks costs a few memory accesses. A pair in the filter
//! is looked up in the store once. Both have a limit in bytes; a full filter has more false positives, which cost
//! lookups and nothing else. Other nodes' changes are found by the version of the lists, within [`REFRESH_INTERVAL`] or
//! at once by a notification.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tidegate_protocol::id::{ConversationId, ConversationKind, UserId};
use tokio::{sync::Notify, time};

use super::Cluster;
use crate::{
    link::BestEffortMessage,
    log_limit::log_limited,
    store::{Store, StoreError},
};

/// Interval at which a node checks the version of the block lists.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time that a notified peer may take to confirm.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Blocks that are read at a time.
const PAGE: usize = 1_000;

/// Size of the filter, in 64-bit words: of a node with few blocks, and the largest, 16 MiB for about 13 million blocks.
const FILTER_WORDS_MIN: usize = 1 << 10;
const FILTER_WORDS_MAX: usize = 1 << 21;

/// Bits of the filter for each block; with [`PROBES`], below 1 % of other pairs are in it by chance.
const BITS_PER_BLOCK: usize = 10;
const PROBES: u64 = 6;

/// Most remembered decisions, about 2 MiB; a further one makes the node forget the others.
const DECISIONS_MAX: usize = 8_192;

/// Answer to the question whether a user may write to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockVerdict {
    /// The recipient does not block the sender.
    Allowed,
    /// The recipient blocks the sender.
    Blocked,
    /// The store has to be asked, with [`Cluster::look_up_block`].
    Unknown,
}

/// What the node knows of the block lists.
#[derive(Default)]
pub struct Blocks {
    state: RwLock<BlocksState>,
    /// Whether all blocks are read and there are none, so that a sender takes no lock.
    is_empty: AtomicBool,
    refresh: Notify,
}

#[derive(Default)]
struct BlocksState {
    /// `None` until all blocks are read: every pair is looked up.
    filter: Option<PairFilter>,
    /// Version up to which the filter has all blocks.
    version: u64,
    /// Number of changes of the lists that this node has learned of: a lookup that began before is not remembered.
    changes: u64,
    decisions: HashMap<(UserId, UserId), bool>,
}

impl BlocksState {
    /// Forgets the decisions, because a list has changed.
    fn note_change(&mut self) {
        self.changes += 1;
        self.decisions.clear();
    }
}

/// Bloom filter of pairs of users. Its hashes are keyed, so that no choice of names fills it.
struct PairFilter {
    words: Vec<u64>,
    pairs: usize,
    keys: RandomState,
}

impl PairFilter {
    fn new(words: usize) -> Self {
        Self { words: vec![0; words], pairs: 0, keys: RandomState::new() }
    }

    fn is_full(&self) -> bool {
        self.words.len() < FILTER_WORDS_MAX && self.pairs * BITS_PER_BLOCK > self.words.len() * 64
    }

    /// Returns the bits of a pair, as word and mask.
    fn bits(&self, user: &str, other: &str) -> impl Iterator<Item = (usize, u64)> + use<> {
        let hash = self.keys.hash_one((user, other));
        let (first, step, bits) = (hash >> 32, hash << 1 | 1, self.words.len() as u64 * 64);
        (0..PROBES).map(move |nth| {
            let bit = first.wrapping_add(nth.wrapping_mul(step & 0xffff_ffff)) % bits;
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn add(&mut self, user: &UserId, other: &UserId) {
        self.pairs += 1;
        for (word, mask) in self.bits(user.as_str(), other.as_str()) {
            self.words[word] |= mask;
        }
    }

    fn may_have(&self, user: &str, other: &str) -> bool {
        self.pairs > 0 && self.bits(user, other).all(|(word, mask)| self.words[word] & mask != 0)
    }
}

impl Blocks {
    /// Returns whether `sender` may write to `user`, as far as this node knows.
    fn verdict(&self, user: &str, sender: &UserId) -> BlockVerdict {
        let state = self.state.read();
        if state.filter.as_ref().is_some_and(|filter| !filter.may_have(user, sender.as_str())) {
            return BlockVerdict::Allowed;
        }
        let Ok(user) = UserId::new(user) else { return BlockVerdict::Allowed };
        match state.decisions.get(&(user, sender.clone())) {
            Some(true) => BlockVerdict::Blocked,
            Some(false) => BlockVerdict::Allowed,
            None => BlockVerdict::Unknown,
        }
    }

    /// Notes whether the filter has no pairs; called with the state locked, after each change of the filter.
    fn note_filter(&self, state: &BlocksState) {
        let is_empty = state.filter.as_ref().is_some_and(|filter| filter.pairs == 0);
        self.is_empty.store(is_empty, Ordering::Release);
    }

    /// Applies a change that the store has confirmed to this node. Requests a larger filter if it is full.
    fn note_changed(&self, user: &UserId, other: &UserId, is_blocked: bool) {
        let mut state = self.state.write();
        if is_blocked && let Some(filter) = &mut state.filter {
            filter.add(user, other);
            if filter.is_full() {
                self.refresh.notify_one();
            }
            self.note_filter(&state);
        }
        state.note_change();
    }

    /// Requests a check of the version now.
    pub fn request_refresh(&self) {
        self.refresh.notify_one();
    }

    /// Reads the blocks that were added since the last call, and all of them if the filter is full.
    async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let (mut from, mut fresh, mut changes) = {
            let state = self.state.read();
            let (from, fresh) = match &state.filter {
                None => (state.version, Some(PairFilter::new(FILTER_WORDS_MIN))),
                Some(filter) if filter.is_full() => (0, Some(PairFilter::new(filter.words.len() * 2))),
                Some(_) => (state.version, None),
            };
            (from, fresh, state.changes)
        };
        loop {
            let page = store.blocks_since(from, PAGE).await?;
            if page.version < from {
                // The store fell back to an older state. What the filter has in excess costs lookups only.
                from = 0;
                let mut state = self.state.write();
                state.version = 0;
                state.note_change();
                continue;
            }
            let is_last = page.added.len() < PAGE;
            from =
                page.added.last().map_or(page.version, |it| if is_last { page.version } else { it.version });
            let mut state = self.state.write();
            let filter = match &mut fresh {
                Some(filter) => Some(filter),
                None => state.filter.as_mut(),
            };
            let Some(filter) = filter else { return Ok(()) };
            page.added.iter().for_each(|it| filter.add(&it.user, &it.other));
            let (is_full, words) = (filter.is_full(), filter.words.len());
            self.note_filter(&state);
            if is_full {
                // The pairs are not kept: read all of them again for a larger one.
                fresh = Some(PairFilter::new(words * 2));
                from = 0;
            } else if is_last && fresh.is_some() && state.changes != changes {
                // A change by this node went into the former filter only.
                changes = state.changes;
            } else if is_last {
                if state.version != page.version {
                    state.note_change();
                }
                state.version = page.version;
                if fresh.is_some() {
                    state.filter = fresh;
                    self.note_filter(&state);
                }
                return Ok(());
            }
        }
    }
}

/// Keeps the node's knowledge of the block lists up to date until the node stops. Alone, its own changes are all there
/// are: after the first read it reads them again only for a larger filter.
pub(crate) async fn follow_blocks(cluster: Arc<Cluster>, is_alone: bool) {
    loop {
        match cluster.blocks.refresh(&*cluster.ports.store).await {
            Ok(()) if is_alone => {
                cluster.blocks.refresh.notified().await;
                continue;
            }
            Ok(()) => {}
            Err(error) => {
                log_limited!(warn, %error, "block lists not read; those read before stay in force");
            }
        }
        time::timeout(REFRESH_INTERVAL, cluster.blocks.refresh.notified()).await.ok();
    }
}

impl Cluster {
    /// Returns whether a message of `sender` may be written to the conversation, as far as its recipient blocks users.
    pub fn block_verdict(&self, sender: &UserId, conversation: &ConversationId) -> BlockVerdict {
        // The change that makes it false is stored before the block is confirmed.
        if self.blocks.is_empty.load(Ordering::Acquire) {
            return BlockVerdict::Allowed;
        }
        match recipient(sender, conversation) {
            Some(user) => self.blocks.verdict(user, sender),
            None => BlockVerdict::Allowed,
        }
    }

    /// Returns whether the recipient of a direct conversation blocks the sender, by the store if the node does not know.
    ///
    /// # Errors
    /// Those of [`Self::look_up_block`].
    pub async fn is_blocked(
        &self,
        sender: &UserId,
        conversation: &ConversationId,
        until: time::Instant,
    ) -> Result<bool, StoreError> {
        let verdict = match self.block_verdict(sender, conversation) {
            BlockVerdict::Unknown => self.look_up_block(sender, conversation, until).await?,
            known => known,
        };
        Ok(verdict != BlockVerdict::Allowed)
    }

    /// Looks the verdict up in the store and remembers it.
    ///
    /// # Errors
    /// The store is unavailable, or has not answered by `until`.
    pub async fn look_up_block(
        &self,
        sender: &UserId,
        conversation: &ConversationId,
        until: time::Instant,
    ) -> Result<BlockVerdict, StoreError> {
        let user = recipient(sender, conversation).and_then(|user| UserId::new(user).ok());
        let Some(user) = user else { return Ok(BlockVerdict::Allowed) };
        let changes = self.blocks.state.read().changes;
        let lookup = time::timeout_at(until, self.ports.store.is_blocked(&user, sender));
        let is_blocked =
            lookup.await.unwrap_or_else(|_| Err(StoreError::Unavailable("no reply in time".to_owned())))?;
        let mut state = self.blocks.state.write();
        if state.changes == changes {
            if state.decisions.len() >= DECISIONS_MAX {
                state.decisions.clear();
            }
            state.decisions.insert((user, sender.clone()), is_blocked);
        }
        Ok(if is_blocked { BlockVerdict::Blocked } else { BlockVerdict::Allowed })
    }

    /// Puts a change of a block list in force on this node, notifies the others, and returns those that were not reached:
    /// they learn of it by the version.
    pub async fn publish_block(&self, user: &UserId, other: &UserId, is_blocked: bool) -> Vec<String> {
        self.blocks.note_changed(user, other, is_blocked);
        let message = BestEffortMessage::BlocksChanged { conversation: ConversationId::direct(user, other) };
        let others = self.peers.others();
        let notify = others.iter().map(async |row| {
            let sent = self.ports.link.send_best_effort(&row.info.boot, vec![message.clone()]);
            let is_sent = matches!(time::timeout(NOTIFY_TIMEOUT, sent).await, Ok(Ok(())));
            (!is_sent).then(|| row.info.boot.node.to_string())
        });
        futures_util::future::join_all(notify).await.into_iter().flatten().collect()
    }
}

/// Returns the user that a direct message goes to; `None` in other conversations, and for a message to oneself.
fn recipient<'a>(sender: &UserId, conversation: &'a ConversationId) -> Option<&'a str> {
    match conversation.kind() {
        ConversationKind::Direct(a, b) if a != b => Some(if a == sender.as_str() { b } else { a }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
