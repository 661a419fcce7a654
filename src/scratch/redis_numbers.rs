//! `Numbers` adapter for Redis: durably reserved blocks, whose numbers `seq_malloc.lua` issues.
//!
//! While Redis is unavailable the node issues numbers itself, from blocks that it reserves for itself. These numbers
//! are unique, but do not rise in step with those of other nodes.

use std::{
    num::NonZeroU64,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use redis::Value;
use tidegate_protocol::machine::storm::StormRule;

use super::{
    ScratchError,
    numbers::{
        Block, FloorError, Floors, HighestNumbers, Numbers, OwnBlocks, SharedStorm, SharedWindow,
        WindowChange,
    },
};
use crate::{
    config,
    redis::{Call, ConnectError, RedisClient, RedisKey, Script},
};

static SEQ_MALLOC: Script = Script::new(include_str!("../redis/seq_malloc.lua"));
static SEQ_PUBLISH: Script = Script::new(include_str!("../redis/seq_publish.lua"));

/// Shortest time for which a refill holds its lock. Short, so that after a holder died the next call succeeds within a
/// second.
const REFILL_LOCK_MIN: Duration = Duration::from_millis(300);
/// Longest time for which a refill holds its lock: twice the last reservation, if that was slow. A lock shorter than
/// the reservation would pass from caller to caller without any block being published.
const REFILL_LOCK_MAX: Duration = Duration::from_millis(900);
/// Time for which a caller retries before it uses a block of its own.
const TAKE_RETRY_MAX: Duration = Duration::from_millis(950);
/// Limit on the failures in one call: a single one may be a stale connection, more mean that a server is unavailable.
const FAILURES_MAX: u32 = 3;
/// Time for which unused numbers stay available; then the rest of their block becomes a hole.
const KEY_TTL: Duration = Duration::from_secs(24 * 3_600);
/// Time that a block should last. One that lasted less was too small; one that lasted over 60 times as long, too large.
const BLOCK_USE_MIN: Duration = Duration::from_secs(1);
/// Limit on the growth of a block, as a multiple of its initial size.
const BLOCK_GROWTH_MAX: u64 = 32;
/// Placeholder of an unknown epoch; the first epoch from the number store replaces it.
const UNKNOWN_EPOCH: u64 = u64::MAX;
/// Limit on the keys whose last number is remembered.
const HIGHEST_KEYS_MAX: usize = 100_000;
/// Limit on the keys with an own block.
const OWN_KEYS_MAX: usize = 10_000;

/// Numbers of profile `cluster`.
pub struct RedisNumbers {
    client: Arc<RedisClient>,
    floors: Arc<dyn Floors>,
    block: u64,
    /// Highest known epoch; [`UNKNOWN_EPOCH`] before the first query.
    epoch: AtomicU64,
    /// Duration of the last reservation, in µs.
    reservation_us: AtomicU64,
    /// Whether Redis may have been rolled back and the epoch is not raised yet, so that its numbers are not used (S9).
    may_be_rolled_back: AtomicBool,
    highest: Mutex<HighestNumbers>,
    own: Mutex<OwnBlocks>,
}

/// Messages to count in the window of a key.
#[derive(Clone, Copy)]
struct Hits {
    messages: u64,
    /// Rule of storms; `None` without a window.
    rule: Option<StormRule>,
    /// First number of a storm whose last change the caller knows, or 0.
    known: u64,
}

/// Numbers, with the window if one is wanted.
type Taken = (RangeInclusive<u64>, Option<SharedWindow>);

enum Malloc {
    /// Numbers, the epoch of their block, and the window, if one is wanted.
    Ok(RangeInclusive<u64>, u64, Option<SharedWindow>),
    /// Nothing is issued, as wanted, and there is no window.
    Nothing,
    /// Lock acquired, with the size of the block to reserve.
    Refill(u64),
    Locked(Duration),
}

impl RedisNumbers {
    /// Creates an allocator on the configured servers, with blocks of `block` numbers, and larger ones under load.
    /// Connects with the first call, on the runtime of its caller.
    ///
    /// # Errors
    /// The configuration or one of its files is invalid. An unavailable server is an error of each call instead.
    pub fn connect(
        config: &config::RedisConfig,
        floors: Arc<dyn Floors>,
        block: NonZeroU64,
    ) -> Result<Self, ConnectError> {
        Ok(Self::over(Arc::new(RedisClient::new(config)?), floors, block))
    }

    /// Creates an allocator on a shared client.
    pub(crate) fn over(client: Arc<RedisClient>, floors: Arc<dyn Floors>, block: NonZeroU64) -> Self {
        let highest = Mutex::new(HighestNumbers::new(HIGHEST_KEYS_MAX));
        let own = Mutex::new(OwnBlocks::new(OWN_KEYS_MAX));
        let (epoch, may_be_rolled_back) = (AtomicU64::new(UNKNOWN_EPOCH), AtomicBool::new(false));
        Self {
            client,
            floors,
            block: block.get(),
            epoch,
            reservation_us: AtomicU64::new(0),
            may_be_rolled_back,
            highest,
            own,
        }
    }

    fn highest(&self) -> MutexGuard<'_, HighestNumbers> {
        self.highest.lock()
    }

    fn own(&self) -> MutexGuard<'_, OwnBlocks> {
        self.own.lock()
    }

    fn key(&self, key: &str) -> String {
        self.client.key(RedisKey::Numbers, &format!("{{{key}}}"))
    }

    /// Records an epoch; returns false if a later one is known.
    fn record_epoch(&self, epoch: u64) -> bool {
        let later = |known| (known == UNKNOWN_EPOCH || known < epoch).then_some(epoch);
        match self.epoch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later) {
            Ok(_) => true,
            Err(known) => known == epoch,
        }
    }

    async fn current_epoch(&self) -> Result<u64, ScratchError> {
        if self.epoch.load(Ordering::SeqCst) == UNKNOWN_EPOCH {
            self.record_epoch(self.floors.epoch().await.map_err(unavailable)?);
        }
        Ok(self.epoch.load(Ordering::SeqCst))
    }

    /// Calls `seq_malloc.lua`.
    async fn malloc(&self, key: &str, count: u64, lock: &str, hits: &Hits) -> Result<Malloc, ScratchError> {
        let epoch = self.current_epoch().await?;
        let call = Call::script(&SEQ_MALLOC, [self.key(key)])
            .arg(count)
            .arg(lock)
            .arg(epoch)
            .arg(self.lock_time().as_millis())
            .arg(self.highest().get(key))
            .arg(REFILL_LOCK_MAX.as_millis())
            .arg(hits.messages)
            .arg(hits.rule.map_or(0, |rule| rule.window().as_millis()))
            .arg(hits.rule.map_or(0, |rule| rule.threshold()))
            .arg(hits.known);
        let (state, numbers) = parse_reply(&self.client.one(call).await?)?;
        match (state.as_str(), numbers.as_slice()) {
            ("ok", [first, last, epoch, window @ ..]) => {
                Ok(Malloc::Ok(*first..=*last, *epoch, window_of(window)))
            }
            ("none", _) => Ok(Malloc::Nothing),
            ("missing", _) => Ok(Malloc::Refill(self.block)),
            ("exhausted", [lasted, size]) => Ok(Malloc::Refill(self.next_size(*lasted, *size))),
            ("locked", [left]) => Ok(Malloc::Locked(Duration::from_micros(*left))),
            _ => Err(ScratchError::Unknown(format!("unexpected reply of seq_malloc.lua: {state:?}"))),
        }
    }

    fn lock_time(&self) -> Duration {
        let reservation = Duration::from_micros(self.reservation_us.load(Ordering::Relaxed));
        (reservation * 2).clamp(REFILL_LOCK_MIN, REFILL_LOCK_MAX)
    }

    async fn reserve(&self, key: &str, size: NonZeroU64) -> Result<Block, ScratchError> {
        let (begun, above) = (Instant::now(), self.highest().get(key));
        let block = self.floors.reserve(key, size, above).await.map_err(unavailable);
        let elapsed_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.reservation_us.store(elapsed_us.min(1_000_000), Ordering::Relaxed);
        block
    }

    /// Raises the epoch above the highest known one.
    async fn raise_epoch(&self) -> Result<(), ScratchError> {
        let known = self.epoch.load(Ordering::SeqCst);
        let known = if known == UNKNOWN_EPOCH { 0 } else { known };
        let epoch = self.floors.raise(known).await.map_err(unavailable)?;
        self.record_epoch(epoch);
        Ok(())
    }

    fn next_size(&self, lasted_us: u64, size: u64) -> u64 {
        let lasted = Duration::from_micros(lasted_us);
        let next = if lasted < BLOCK_USE_MIN {
            size.saturating_mul(2)
        } else if lasted > BLOCK_USE_MIN * 60 {
            size / 2
        } else {
            size
        };
        next.clamp(self.block, self.block.saturating_mul(BLOCK_GROWTH_MAX))
    }

    /// Reserves a block and publishes it to Redis. `None` if Redis refuses it, and the block becomes a hole (S11).
    async fn refill(
        &self,
        key: &str,
        count: u64,
        lock: &str,
        size: u64,
    ) -> Result<Option<RangeInclusive<u64>>, ScratchError> {
        let size = NonZeroU64::new(size.max(count)).unwrap_or(NonZeroU64::MIN);
        let block = self.reserve(key, size).await?;
        if !self.record_epoch(block.epoch) {
            // The floors fell back to an older state.
            self.raise_epoch().await?;
            return Ok(None);
        }
        let call = Call::script(&SEQ_PUBLISH, [self.key(key)])
            .arg(lock)
            .arg(count)
            .arg(block.numbers.start())
            .arg(block.numbers.end())
            .arg(block.epoch)
            .arg(KEY_TTL.as_millis());
        let (state, numbers) = parse_reply(&self.client.one(call).await?)?;
        match (state.as_str(), numbers.as_slice()) {
            ("ok", [first, last]) if self.record_epoch(block.epoch) => Ok(Some(*first..=*last)),
            ("refused", [last, epoch]) => {
                self.highest().raise(key, *last);
                self.record_epoch(*epoch);
                Ok(None)
            }
            ("ok" | "refused", _) => Ok(None),
            _ => Err(ScratchError::Unknown(format!("unexpected reply of seq_publish.lua: {state:?}"))),
        }
    }
}

/// Reads the window of a reply of `seq_malloc.lua`; `None` if it has none.
fn window_of(reply: &[u64]) -> Option<SharedWindow> {
    let [count, change, seq, since_ms, peak, is_cooling] = *reply else { return None };
    let short = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let storm = SharedStorm { seq, since_ms, peak: short(peak), is_cooling: is_cooling > 0 };
    let change = match change {
        1 => Some(WindowChange::Started),
        2 => Some(WindowChange::Ended),
        _ => None,
    };
    Some(SharedWindow { count: short(count), storm: (seq > 0).then_some(storm), change })
}

fn unavailable(error: FloorError) -> ScratchError {
    ScratchError::Unavailable(error.to_string())
}

/// Parses a script's reply: a state, then numbers.
fn parse_reply(reply: &Value) -> Result<(String, Vec<u64>), ScratchError> {
    let parts = |value: &Value| -> Option<(String, Vec<u64>)> {
        let Value::Array(parts) = value else { return None };
        let (state, numbers) = parts.split_first()?;
        let numbers = numbers.iter().map(|it| redis::from_redis_value_ref(it).ok()).collect::<Option<_>>()?;
        Some((redis::from_redis_value_ref(state).ok()?, numbers))
    };
    parts(reply).ok_or_else(|| ScratchError::Unknown("unexpected reply of a script".to_owned()))
}

/// Returns a random retry delay, so that callers that wait for one lock do not all retry at once.
fn jitter() -> Duration {
    Duration::from_micros(5_000 + rand::random::<u64>() % 15_000)
}

impl RedisNumbers {
    /// Takes numbers from a block of this node, which no other node ever gets, whatever the state of Redis. Older
    /// blocks in Redis lie below them, so this node does not use those once Redis returns ([`HighestNumbers`]).
    async fn take_own(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        if let Some(numbers) = self.own().take(key, count.get()) {
            return Ok(numbers);
        }
        let size = NonZeroU64::new(self.block.max(count.get())).unwrap_or(NonZeroU64::MIN);
        let mut block = self.reserve(key, size).await?;
        if !self.record_epoch(block.epoch) {
            // The floors fell back to an older state. A block of the old epoch would come again.
            self.raise_epoch().await?;
            block = self.reserve(key, size).await?;
        }
        self.highest().raise(key, *block.numbers.end());
        let last = block.numbers.start() + (count.get() - 1);
        self.own().put(key, last + 1..=*block.numbers.end());
        Ok(*block.numbers.start()..=last)
    }

    async fn take_shared(&self, key: &str, count: NonZeroU64, hits: Hits) -> Result<Taken, ScratchError> {
        let begun = Instant::now();
        // S10: a random lock token for this call only.
        let lock = format!("{:032x}", rand::random::<u128>());
        let mut last = ScratchError::Unavailable("another caller holds the refill lock".to_owned());
        let (mut failures, mut may_be_counted) = (0, false);
        loop {
            if self.may_be_rolled_back.load(Ordering::SeqCst) {
                return Err(ScratchError::Unavailable("Redis may have been rolled back".to_owned()));
            }
            // One more attempt after the time is up: this node may have been delayed, not the lock holder.
            let is_last_attempt = begun.elapsed() >= TAKE_RETRY_MAX;
            // Messages of a call in doubt may be counted already; twice would be a storm too early.
            let hits = if may_be_counted { Hits { messages: 0, ..hits } } else { hits };
            let outcome = match self.malloc(key, count.get(), &lock, &hits).await {
                Ok(Malloc::Ok(numbers, epoch, window)) => {
                    may_be_counted = true;
                    // A rollback of Redis may have been detected during the call.
                    Ok(self.record_epoch(epoch).then_some((numbers, window)))
                }
                Ok(Malloc::Nothing) => Ok(None),
                Ok(Malloc::Refill(size)) => match self.refill(key, count.get(), &lock, size).await {
                    Ok(Some(numbers)) => Ok(Some((numbers, self.count_only(key, &hits).await))),
                    other => other.map(|_| None),
                },
                Ok(Malloc::Locked(left)) if !is_last_attempt => {
                    tokio::time::sleep(jitter().min(left)).await;
                    Ok(None)
                }
                Ok(Malloc::Locked(_)) => Ok(None),
                Err(error) => {
                    may_be_counted = true;
                    Err(error)
                }
            };
            match outcome {
                // Not used: a rollback was detected during the call.
                Ok(Some(_)) if self.may_be_rolled_back.load(Ordering::SeqCst) => {}
                Ok(Some((numbers, window))) => {
                    self.highest().raise(key, *numbers.end());
                    return Ok((numbers, window));
                }
                Ok(None) => {}
                Err(error) => {
                    // A retry is safe: numbers that the failed attempt may have taken become a hole.
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                    last = error;
                    tokio::time::sleep(jitter()).await;
                }
            }
            if is_last_attempt {
                return Err(last);
            }
        }
    }
}

impl RedisNumbers {
    /// Takes numbers from Redis, or from a block of this node while it is unavailable.
    async fn take_any(&self, key: &str, count: NonZeroU64, hits: Hits) -> Result<Taken, ScratchError> {
        match Box::pin(self.take_shared(key, count, hits)).await {
            Ok(taken) => {
                self.own().remove(key);
                Ok(taken)
            }
            Err(error) => {
                tracing::debug!(%error, key, "numbers from Redis unavailable; using this node's own block");
                Ok((self.take_own(key, count).await?, None))
            }
        }
    }

    /// Counts messages whose numbers are issued; without a reply they may not be counted.
    async fn count_only(&self, key: &str, hits: &Hits) -> Option<SharedWindow> {
        hits.rule?;
        match self.malloc(key, 0, "", hits).await {
            Ok(Malloc::Ok(_, _, window)) => window,
            _ => None,
        }
    }
}

#[async_trait]
impl Numbers for RedisNumbers {
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        Ok(self.take_any(key, count, Hits { messages: 0, rule: None, known: 0 }).await?.0)
    }

    async fn take_counted(
        &self,
        key: &str,
        count: NonZeroU64,
        rule: StormRule,
        known: u64,
    ) -> Result<Taken, ScratchError> {
        self.take_any(key, count, Hits { messages: count.get(), rule: Some(rule), known }).await
    }

    async fn window(
        &self,
        key: &str,
        rule: StormRule,
        known: u64,
    ) -> Result<Option<SharedWindow>, ScratchError> {
        match self.malloc(key, 0, "", &Hits { messages: 0, rule: Some(rule), known }).await? {
            Malloc::Ok(_, _, window) => Ok(window),
            Malloc::Nothing | Malloc::Refill(_) | Malloc::Locked(_) => Ok(None),
        }
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        self.may_be_rolled_back.store(true, Ordering::SeqCst);
        self.raise_epoch().await?;
        self.own().clear();
        self.may_be_rolled_back.store(false, Ordering::SeqCst);
        Ok(())
    }
}
