//! `Numbers` with Redis: blocks from the floors, handed out by `seq_malloc.lua`. While Redis is away the node hands numbers
//! out by itself, from blocks that it reserves for itself alone: they are new, but no others rise with them.

use std::{
    num::NonZeroU64,
    ops::RangeInclusive,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use redis::Value;

use super::{
    ScratchError,
    numbers::{Block, FloorError, Floors, Numbers, Own, Seen},
};
use crate::{
    config,
    redis::{Call, Client, ConnectError, Script},
};

static SEQ_MALLOC: Script = Script::new(include_str!("../redis/seq_malloc.lua"));
static SEQ_PUBLISH: Script = Script::new(include_str!("../redis/seq_publish.lua"));

/// How long one refill may take before another caller does it: so short that the next call after a holder died has
/// its numbers within a second.
const LOCK: Duration = Duration::from_millis(300);
/// The same where the floors are slow, and then the next call takes as much longer: twice what they took last, up to this. With less than they take each caller would take the
/// lock from the one before, and nobody's block be published.
const LOCK_MAX: Duration = Duration::from_millis(900);
/// How long a caller waits for a lock and tries again before it goes on without numbers.
const GIVE_UP: Duration = Duration::from_millis(950);
/// Failures of the server or the floors in one call: one is an old connection, more are a server that is away.
const FAILURES_MAX: u32 = 3;
/// How long numbers that nobody takes stay ready; then the rest of their block is a hole.
const KEY_TTL: Duration = Duration::from_secs(24 * 3_600);
/// A block that lasted less than this was too small, one that lasted more than this times 60 too large.
const BLOCK_LASTS: Duration = Duration::from_secs(1);
/// How much a block may grow.
const GROWTH_MAX: u64 = 32;
/// Above no epoch, so that the first answer of the floors takes its place.
const UNKNOWN: u64 = u64::MAX;
/// Keys whose last number is remembered.
const SEEN_MAX: usize = 100_000;
/// Keys whose own block is remembered.
const OWN_MAX: usize = 10_000;

/// Numbers of profile `cluster`.
pub struct RedisNumbers {
    client: Arc<Client>,
    floors: Arc<dyn Floors>,
    block: u64,
    /// What the floors said; [`UNKNOWN`] before they were asked.
    epoch: AtomicU64,
    /// How long the floors took for the last block, in us.
    reserved_us: AtomicU64,
    /// Redis may have been rolled back, and the floors could not be told yet: what it has left is not taken (S9).
    doubtful: AtomicBool,
    seen: Mutex<Seen>,
    own: Mutex<Own>,
}

enum Malloc {
    Ok(RangeInclusive<u64>, u64),
    /// The lock is ours: what size the next block is to have.
    Refill(u64),
    Locked(Duration),
}

impl RedisNumbers {
    /// Numbers at the servers that the configuration names, from blocks of `block` numbers (100 for rooms, 50 otherwise:
    /// DESIGN 6.6), more under load. Connects with the first call, on the runtime of its caller.
    ///
    /// # Errors
    /// What is wrong with the configuration or its files; a server that is away is told by each call.
    pub fn connect(
        config: &config::Redis,
        floors: Arc<dyn Floors>,
        block: NonZeroU64,
    ) -> Result<Self, ConnectError> {
        Ok(Self::over(Arc::new(Client::new(config)?), floors, block))
    }

    /// Numbers over a connection that is shared.
    pub(crate) fn over(client: Arc<Client>, floors: Arc<dyn Floors>, block: NonZeroU64) -> Self {
        let (seen, own) = (Mutex::new(Seen::new(SEEN_MAX)), Mutex::new(Own::new(OWN_MAX)));
        let (epoch, doubtful) = (AtomicU64::new(UNKNOWN), AtomicBool::new(false));
        Self {
            client,
            floors,
            block: block.get(),
            epoch,
            reserved_us: AtomicU64::new(0),
            doubtful,
            seen,
            own,
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, key: &str) -> String {
        self.client.key("seq", &format!("{{{key}}}"))
    }

    /// Notes an epoch; false if a later one is known.
    fn learn(&self, epoch: u64) -> bool {
        let later = |known| (known == UNKNOWN || known < epoch).then_some(epoch);
        match self.epoch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later) {
            Ok(_) => true,
            Err(known) => known == epoch,
        }
    }

    async fn known_epoch(&self) -> Result<u64, ScratchError> {
        if self.epoch.load(Ordering::SeqCst) == UNKNOWN {
            self.learn(self.floors.epoch().await.map_err(away)?);
        }
        Ok(self.epoch.load(Ordering::SeqCst))
    }

    async fn malloc(&self, key: &str, count: u64, lock: &str) -> Result<Malloc, ScratchError> {
        let epoch = self.known_epoch().await?;
        let call = Call::script(&SEQ_MALLOC, [self.key(key)])
            .arg(count)
            .arg(lock)
            .arg(epoch)
            .arg(self.lock_time().as_millis())
            .arg(self.seen().get(key))
            .arg(LOCK_MAX.as_millis());
        let (state, numbers) = words(&self.client.one(call).await?)?;
        match (state.as_str(), numbers.as_slice()) {
            ("ok", [first, last, epoch]) => Ok(Malloc::Ok(*first..=*last, *epoch)),
            ("missing", _) => Ok(Malloc::Refill(self.block)),
            ("exhausted", [lasted, size]) => Ok(Malloc::Refill(self.next_size(*lasted, *size))),
            ("locked", [left]) => Ok(Malloc::Locked(Duration::from_micros(*left))),
            _ => Err(ScratchError::Unknown(format!("seq_malloc.lua said {state:?}"))),
        }
    }

    fn lock_time(&self) -> Duration {
        (Duration::from_micros(self.reserved_us.load(Ordering::Relaxed)) * 2).clamp(LOCK, LOCK_MAX)
    }

    async fn reserve(&self, key: &str, size: NonZeroU64) -> Result<Block, ScratchError> {
        let begun = Instant::now();
        let block = self.floors.reserve(key, size).await.map_err(away);
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.reserved_us.store(took.min(1_000_000), Ordering::Relaxed);
        block
    }

    fn next_size(&self, lasted_us: u64, size: u64) -> u64 {
        let lasted = Duration::from_micros(lasted_us);
        let next = if lasted < BLOCK_LASTS {
            size.saturating_mul(2)
        } else if lasted > BLOCK_LASTS * 60 {
            size / 2
        } else {
            size
        };
        next.clamp(self.block, self.block.saturating_mul(GROWTH_MAX))
    }

    /// Reserves a block and publishes it; none when it was refused, and then the block is a hole (S11).
    async fn refill(
        &self,
        key: &str,
        count: u64,
        lock: &str,
        size: u64,
    ) -> Result<Option<RangeInclusive<u64>>, ScratchError> {
        let size = NonZeroU64::new(size.max(count)).unwrap_or(NonZeroU64::MIN);
        let block = self.reserve(key, size).await?;
        self.learn(block.epoch);
        let call = Call::script(&SEQ_PUBLISH, [self.key(key)])
            .arg(lock)
            .arg(count)
            .arg(block.numbers.start())
            .arg(block.numbers.end())
            .arg(block.epoch)
            .arg(KEY_TTL.as_millis());
        let (state, numbers) = words(&self.client.one(call).await?)?;
        match (state.as_str(), numbers.as_slice()) {
            ("ok", [first, last]) if self.learn(block.epoch) => Ok(Some(*first..=*last)),
            ("ok" | "refused", _) => Ok(None),
            _ => Err(ScratchError::Unknown(format!("seq_publish.lua said {state:?}"))),
        }
    }
}

fn away(error: FloorError) -> ScratchError {
    ScratchError::Unavailable(error.to_string())
}

/// A word, then numbers.
fn words(answer: &Value) -> Result<(String, Vec<u64>), ScratchError> {
    let parts = |value: &Value| -> Option<(String, Vec<u64>)> {
        let Value::Array(parts) = value else { return None };
        let (word, numbers) = parts.split_first()?;
        let numbers = numbers.iter().map(|it| redis::from_redis_value_ref(it).ok()).collect::<Option<_>>()?;
        Some((redis::from_redis_value_ref(word).ok()?, numbers))
    };
    parts(answer).ok_or_else(|| ScratchError::Unknown("a script's answer was not understood".to_owned()))
}

/// Between callers that wait for one lock, so that they do not come back together.
fn jitter() -> Duration {
    Duration::from_micros(5_000 + rand::random::<u64>() % 15_000)
}

impl RedisNumbers {
    /// From a block that is this node's alone: nobody else has these numbers or ever will, whatever Redis believes. What
    /// Redis has left of older blocks lies below them, and is not taken here any more once it is back ([`Seen`]).
    async fn take_own(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        if let Some(numbers) = self.own().take(key, count.get()) {
            return Ok(numbers);
        }
        let size = NonZeroU64::new(self.block.max(count.get())).unwrap_or(NonZeroU64::MIN);
        let block = self.reserve(key, size).await?;
        self.learn(block.epoch);
        self.seen().raise(key, *block.numbers.end());
        let last = block.numbers.start() + (count.get() - 1);
        self.own().put(key, last + 1..=*block.numbers.end());
        Ok(*block.numbers.start()..=last)
    }

    async fn take_shared(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        let begun = Instant::now();
        // S10: from the caller, for this call alone.
        let lock = format!("{:032x}", rand::random::<u128>());
        let mut last = ScratchError::Unavailable("another caller holds the lock of these numbers".to_owned());
        let mut failures = 0;
        loop {
            if self.doubtful.load(Ordering::SeqCst) {
                return Err(ScratchError::Unavailable("it may have lost numbers that were given".to_owned()));
            }
            // Asked once more after the time is up: it may be this node that was held up, not the holder.
            let last_try = begun.elapsed() >= GIVE_UP;
            let outcome = match self.malloc(key, count.get(), &lock).await {
                Ok(Malloc::Ok(numbers, epoch)) => {
                    // Between the call and now somebody here may have seen that Redis was rolled back.
                    Ok(self.learn(epoch).then_some(numbers))
                }
                Ok(Malloc::Refill(size)) => self.refill(key, count.get(), &lock, size).await,
                Ok(Malloc::Locked(left)) if !last_try => {
                    tokio::time::sleep(jitter().min(left)).await;
                    Ok(None)
                }
                Ok(Malloc::Locked(_)) => Ok(None),
                Err(error) => Err(error),
            };
            match outcome {
                // Seen meanwhile.
                Ok(Some(_)) if self.doubtful.load(Ordering::SeqCst) => {}
                Ok(Some(numbers)) => {
                    self.seen().raise(key, *numbers.end());
                    return Ok(numbers);
                }
                Ok(None) => {}
                Err(error) => {
                    // What may have been handed out to nobody is a hole; asking again is safe.
                    failures += 1;
                    if failures == FAILURES_MAX {
                        return Err(error);
                    }
                    last = error;
                    tokio::time::sleep(jitter()).await;
                }
            }
            if last_try {
                return Err(last);
            }
        }
    }
}

#[async_trait]
impl Numbers for RedisNumbers {
    async fn take(&self, key: &str, count: NonZeroU64) -> Result<RangeInclusive<u64>, ScratchError> {
        match Box::pin(self.take_shared(key, count)).await {
            Ok(numbers) => {
                self.own().forget(key);
                Ok(numbers)
            }
            Err(error) => {
                tracing::debug!(%error, key, "numbers from a block of this node alone");
                self.take_own(key, count).await
            }
        }
    }

    async fn changed(&self) -> Result<(), ScratchError> {
        self.doubtful.store(true, Ordering::SeqCst);
        let epoch = self.floors.raise().await.map_err(away)?;
        self.learn(epoch);
        self.own().clear();
        self.doubtful.store(false, Ordering::SeqCst);
        Ok(())
    }
}
