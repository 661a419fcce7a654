//! Limiter: rate limits of addresses, users and devices, shared by all shards of a node.
//!
//! The connections of a user may be on different shards, so the limits are counted for the node: in stripes by subject,
//! each under a lock that covers a few look-ups in memory and no I/O. All limits of a subject are in one stripe, and a
//! request that has to pass several of them counts in all or in none.
//!
//! The time of a request is that of its shard's turn. Shards may differ by the length of a turn, so a limit may be
//! exceeded by the hits of such a moment, and by nothing else; see [`tidegate_protocol::machine::rate`].

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tidegate_protocol::{
    Time,
    id::{ConversationId, ConversationKind, DeviceId, UserId},
    machine::rate::{RateLimit, RateTable, RecentKeys},
};

use crate::{budget::network_of, metrics::Metrics};

/// Stripes of the tables.
const STRIPES: usize = 16;

/// Most subjects that each limit counts separately, in all stripes.
const KEYS_MAX: usize = 32 * 1_024;

/// Windows that further subjects share, for each limit in all stripes.
const SHARED: usize = 64;

/// Most pairs of a user and a direct conversation that count as known, in all stripes: 2 MiB.
const PAIRS_MAX: usize = 256 * 1_024;

/// Numbers of a node's limits; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimits {
    /// Refused tokens per second from one address, or IPv6 /64.
    pub address_logins: u32,
    /// Logins per second of one user.
    pub user_logins: u32,
    /// Joins of live rooms per second of one device.
    pub joins: u32,
    /// Queries per second of one user: reads of conversations, and changes other than messages.
    pub queries: u32,
    /// Messages per second of one user.
    pub sends: u32,
    /// Signals per second of one user.
    pub signals: u32,
    /// Direct conversations per minute that one user writes to first.
    pub new_conversations: u32,
}

/// Rate limits of one node.
pub struct Limiter {
    /// SipHash under a random key, so that nobody can choose subjects that collide.
    hasher: RandomState,
    stripes: Vec<Mutex<Stripe>>,
    limits: SharedLimits,
    metrics: Metrics,
}

/// Numbers in force, read without a lock. The tables of the stripes decide; a number of 0 only saves the look at them.
#[derive(Default)]
struct SharedLimits {
    address_logins: AtomicU32,
    user_logins: AtomicU32,
    joins: AtomicU32,
    queries: AtomicU32,
    sends: AtomicU32,
    signals: AtomicU32,
    new_conversations: AtomicU32,
}

/// Windows of the subjects of one stripe; no table for a limit of 0.
struct Stripe {
    limits: RateLimits,
    address_logins: Option<RateTable>,
    user_logins: Option<RateTable>,
    joins: Option<RateTable>,
    queries: Option<RateTable>,
    sends: Option<RateTable>,
    signals: Option<RateTable>,
    conversations: Option<NewConversations>,
}

/// Limit on new direct conversations.
struct NewConversations {
    table: RateTable,
    /// Pairs of a user and a conversation that the user has written to.
    known: RecentKeys,
}

/// Time until a refused request is admitted, if the subject makes no other one meanwhile.
type Wait = Duration;

impl Limiter {
    /// Creates a limiter without hits.
    pub fn new(limits: RateLimits, metrics: Metrics) -> Self {
        let hasher = RandomState::new();
        let stripes = (0..STRIPES).map(|n| Mutex::new(Stripe::new(&limits, hasher.hash_one(n)))).collect();
        let shared = SharedLimits::default();
        shared.set(&limits);
        Self { hasher, stripes, limits: shared, metrics }
    }

    /// Replaces the numbers. Limits that change count from zero; the others go on.
    pub fn set_limits(&self, limits: RateLimits) {
        for (n, stripe) in self.stripes.iter().enumerate() {
            let fresh = Stripe::new(&limits, self.hasher.hash_one(n));
            stripe.lock().adopt(fresh);
        }
        self.limits.set(&limits);
    }

    /// Counts a refused token of the address. Valid tokens never count, so strangers leave the others behind their
    /// address alone. Loopback addresses are exempt: proxies and tools of this machine have them.
    ///
    /// # Errors
    /// The limit of the address is reached.
    pub fn refused_token_from(&self, address: IpAddr, now: Time) -> Result<(), Wait> {
        if is_off(&self.limits.address_logins) || address.to_canonical().is_loopback() {
            return Ok(());
        }
        let key = self.hasher.hash_one(network_of(address));
        self.hit(key, key, now, |stripe| &mut stripe.address_logins)
    }

    /// Returns the time until [`Self::refused_token_from`] admits the address, without counting anything; `None` if it
    /// does now.
    pub fn refused_token_wait(&self, address: IpAddr, now: Time) -> Option<Wait> {
        if is_off(&self.limits.address_logins) || address.to_canonical().is_loopback() {
            return None;
        }
        let key = self.hasher.hash_one(network_of(address));
        let mut stripe = self.stripe(key).lock();
        let free_at = stripe.address_logins.as_mut()?.check(key, now).err()?;
        Some(free_at.since(now))
    }

    /// Counts a login of the user.
    ///
    /// # Errors
    /// The limit of the user is reached.
    pub fn login(&self, user: &UserId, now: Time) -> Result<(), Wait> {
        if is_off(&self.limits.user_logins) {
            return Ok(());
        }
        let key = self.hasher.hash_one(user.as_str());
        self.hit(key, key, now, |stripe| &mut stripe.user_logins)
    }

    /// Counts a join of a live room.
    ///
    /// # Errors
    /// The limit of the device is reached.
    pub fn join(&self, user: &UserId, device: &DeviceId, now: Time) -> Result<(), Wait> {
        if is_off(&self.limits.joins) {
            return Ok(());
        }
        let of_user = self.hasher.hash_one(user.as_str());
        let key = self.hasher.hash_one((user.as_str(), device.as_str()));
        self.hit(of_user, key, now, |stripe| &mut stripe.joins)
    }

    /// Counts a query.
    ///
    /// # Errors
    /// The limit of the user is reached.
    pub fn query(&self, user: &UserId, now: Time) -> Result<(), Wait> {
        if is_off(&self.limits.queries) {
            return Ok(());
        }
        let key = self.hasher.hash_one(user.as_str());
        self.hit(key, key, now, |stripe| &mut stripe.queries)
    }

    /// Counts a signal.
    ///
    /// # Errors
    /// The limit of the user is reached.
    pub fn signal(&self, user: &UserId, now: Time) -> Result<(), Wait> {
        if is_off(&self.limits.signals) {
            return Ok(());
        }
        let key = self.hasher.hash_one(user.as_str());
        self.hit(key, key, now, |stripe| &mut stripe.signals)
    }

    /// Counts a message, and the direct conversation if it is new: if the user has not written to it lately, or if
    /// [`PAIRS_MAX`] is too small to remember that. Retries count as messages.
    ///
    /// # Errors
    /// The limit of the user's messages or new conversations is reached; then neither is counted.
    pub fn send(&self, user: &UserId, conversation: &ConversationId, now: Time) -> Result<(), Wait> {
        let is_direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        if is_off(&self.limits.sends) && (is_off(&self.limits.new_conversations) || !is_direct) {
            return Ok(());
        }
        let key = self.hasher.hash_one(user.as_str());
        let pair = self.hasher.hash_one((user.as_str(), conversation.as_str()));
        let mut stripe = self.stripe(key).lock();
        let Stripe { sends, conversations, .. } = &mut *stripe;
        let mut conversations = conversations.as_mut().filter(|_| is_direct);
        let is_new = conversations.as_ref().is_some_and(|it| !it.known.contains(pair));
        let by_count = sends.as_mut().map_or(Ok(()), |table| table.check(key, now));
        let by_conversation = match &mut conversations {
            Some(it) if is_new => it.table.check(key, now),
            _ => Ok(()),
        };
        let admitted = match (by_count, by_conversation) {
            (Ok(()), Ok(())) => {
                if let Some(table) = sends {
                    table.commit(key, now);
                }
                if let Some(it) = conversations.as_mut() {
                    if is_new {
                        it.table.commit(key, now);
                    }
                    it.known.insert(pair);
                }
                Ok(())
            }
            (Err(one), Err(other)) => Err(one.max(other)),
            (Err(free_at), Ok(())) | (Ok(()), Err(free_at)) => Err(free_at),
        };
        let of_sends = sends.as_mut().map_or(0, RateTable::forgotten);
        let forgotten = of_sends + conversations.map_or(0, |it| it.table.forgotten());
        drop(stripe);
        self.count(admitted, forgotten, now)
    }

    fn stripe(&self, key: u64) -> &Mutex<Stripe> {
        // Tables place keys by their low bits.
        &self.stripes[(key >> 48) as usize % STRIPES]
    }

    /// Counts a hit of `key` in the stripe of `subject`.
    fn hit(
        &self,
        subject: u64,
        key: u64,
        now: Time,
        table: fn(&mut Stripe) -> &mut Option<RateTable>,
    ) -> Result<(), Wait> {
        let mut stripe = self.stripe(subject).lock();
        let Some(table) = table(&mut stripe) else { return Ok(()) };
        let (admitted, forgotten) = (table.hit(key, now), table.forgotten());
        drop(stripe);
        self.count(admitted, forgotten, now)
    }

    fn count(&self, admitted: Result<(), Time>, forgotten: u64, now: Time) -> Result<(), Wait> {
        if forgotten > 0 {
            self.metrics.rate_hits_forgotten.increment(forgotten);
        }
        admitted.map_err(|free_at| {
            self.metrics.rate_limited.increment(1);
            free_at.since(now)
        })
    }
}

fn is_off(limit: &AtomicU32) -> bool {
    limit.load(Ordering::Relaxed) == 0
}

impl SharedLimits {
    fn set(&self, limits: &RateLimits) {
        let all = [
            (&self.address_logins, limits.address_logins),
            (&self.user_logins, limits.user_logins),
            (&self.joins, limits.joins),
            (&self.queries, limits.queries),
            (&self.sends, limits.sends),
            (&self.signals, limits.signals),
            (&self.new_conversations, limits.new_conversations),
        ];
        for (shared, limit) in all {
            shared.store(limit, Ordering::Relaxed);
        }
    }
}

impl Stripe {
    /// Takes those tables of `fresh` whose limits differ.
    fn adopt(&mut self, fresh: Self) {
        if self.limits == fresh.limits {
            return;
        }
        let (old, new) = (self.limits, fresh.limits);
        let take = |is_changed: bool, table: &mut Option<RateTable>, fresh: Option<RateTable>| {
            if is_changed {
                *table = fresh;
            }
        };
        take(old.address_logins != new.address_logins, &mut self.address_logins, fresh.address_logins);
        take(old.user_logins != new.user_logins, &mut self.user_logins, fresh.user_logins);
        take(old.joins != new.joins, &mut self.joins, fresh.joins);
        take(old.queries != new.queries, &mut self.queries, fresh.queries);
        take(old.sends != new.sends, &mut self.sends, fresh.sends);
        take(old.signals != new.signals, &mut self.signals, fresh.signals);
        if old.new_conversations != new.new_conversations {
            // Pairs that wrote to each other before stay known.
            self.conversations = match (self.conversations.take(), fresh.conversations) {
                (Some(old), Some(new)) => Some(NewConversations { known: old.known, ..new }),
                (_, fresh) => fresh,
            };
        }
        self.limits = new;
    }

    fn new(limits: &RateLimits, seed: u64) -> Self {
        let table = |count: u32, window: Duration| {
            let limit = RateLimit::new(count, window);
            (count > 0).then(|| RateTable::new(limit, KEYS_MAX / STRIPES, SHARED / STRIPES, seed))
        };
        let per_second = |count| table(count, Duration::from_secs(1));
        Self {
            limits: *limits,
            address_logins: per_second(limits.address_logins),
            user_logins: per_second(limits.user_logins),
            joins: per_second(limits.joins),
            queries: per_second(limits.queries),
            sends: per_second(limits.sends),
            signals: per_second(limits.signals),
            conversations: table(limits.new_conversations, Duration::from_secs(60))
                .map(|table| NewConversations { table, known: RecentKeys::new(PAIRS_MAX / STRIPES) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    fn limiter(limits: RateLimits) -> Limiter {
        Limiter::new(limits, metrics::install().0)
    }

    fn user(name: &str) -> UserId {
        UserId::new(name).unwrap()
    }

    fn direct(one: &str, other: &str) -> ConversationId {
        ConversationId::parse(&format!("d:{one}:{other}")).unwrap()
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn x1_user_may_write_to_few_new_users_and_goes_on_with_the_others() {
        let limiter = limiter(RateLimits { new_conversations: 3, ..RateLimits::default() });
        let alice = user("alice");
        let to = |other: &str, now| limiter.send(&alice, &direct("alice", other), at(now));
        for other in ["bob", "carl", "dora"] {
            assert_eq!(to(other, 1_000), Ok(()));
        }
        assert_eq!(to("emil", 2_000), Err(ms(59_001)));
        for now in 2_000..2_200 {
            assert_eq!(to("carl", now), Ok(()), "a known conversation");
        }
        let group = ConversationId::parse("g:team").unwrap();
        assert_eq!(limiter.send(&alice, &group, at(2_000)), Ok(()), "a group is no direct conversation");
        let bob = user("bob");
        assert_eq!(
            limiter.send(&bob, &direct("bob", "emil"), at(2_000)),
            Ok(()),
            "bob has a limit of his own"
        );
        assert_eq!(to("emil", 61_000), Err(ms(1)));
        assert_eq!(to("emil", 61_001), Ok(()));
        assert_eq!(to("bob", 61_001), Ok(()), "bob is still known");
    }

    #[test]
    fn replaced_limits_count_from_zero_and_others_go_on() {
        let limiter = limiter(RateLimits { queries: 1, joins: 1, ..RateLimits::default() });
        let (alice, phone) = (user("alice"), DeviceId::new("phone").unwrap());
        assert_eq!((limiter.query(&alice, at(0)), limiter.join(&alice, &phone, at(0))), (Ok(()), Ok(())));
        limiter.set_limits(RateLimits { queries: 2, joins: 1, user_logins: 1, ..RateLimits::default() });
        assert_eq!((limiter.query(&alice, at(1)), limiter.query(&alice, at(1))), (Ok(()), Ok(())));
        assert!(limiter.query(&alice, at(1)).is_err() && limiter.join(&alice, &phone, at(1)).is_err());
        assert!(limiter.login(&alice, at(1)).is_ok() && limiter.login(&alice, at(1)).is_err());
        limiter.set_limits(RateLimits::default());
        assert!(limiter.query(&alice, at(1)).is_ok() && limiter.join(&alice, &phone, at(1)).is_ok());
    }

    #[test]
    fn limiter_counts_a_refused_message_in_no_limit() {
        let limiter = limiter(RateLimits { sends: 2, new_conversations: 1, ..RateLimits::default() });
        let alice = user("alice");
        let to = |other: &str, now| limiter.send(&alice, &direct("alice", other), at(now));
        assert_eq!(to("bob", 0), Ok(()));
        for _ in 0..5 {
            assert_eq!(to("carl", 0), Err(ms(60_001)));
        }
        assert_eq!(to("bob", 0), Ok(()), "refusals are no messages");
        assert_eq!(to("bob", 1), Err(ms(1_000)));
        assert_eq!(to("carl", 60_000), Err(ms(1)));
        assert_eq!(to("carl", 60_001), Ok(()));
    }

    #[test]
    fn limiter_exempts_loopback_and_counts_an_ipv6_network_as_one_address() {
        let limiter = limiter(RateLimits { address_logins: 1, ..RateLimits::default() });
        let from = |address: &str| limiter.refused_token_from(address.parse().unwrap(), at(5));
        for _ in 0..100 {
            for address in ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"] {
                assert_eq!(from(address), Ok(()));
            }
        }
        assert_eq!(from("192.0.2.1"), Ok(()));
        assert_eq!(from("::ffff:192.0.2.1"), Err(ms(1_001)));
        assert_eq!(from("192.0.2.2"), Ok(()));
        assert_eq!(from("2001:db8::1"), Ok(()));
        assert_eq!(from("2001:db8::2"), Err(ms(1_001)));
        assert_eq!(from("2001:db8:0:1::2"), Ok(()));
    }

    #[test]
    fn limiter_looks_at_an_address_without_counting() {
        let limiter = limiter(RateLimits { address_logins: 1, ..RateLimits::default() });
        let (address, other): (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        for _ in 0..5 {
            assert_eq!(limiter.refused_token_wait(address, at(5)), None);
        }
        assert_eq!(limiter.refused_token_from(address, at(5)), Ok(()));
        assert_eq!(limiter.refused_token_wait(address, at(5)), Some(ms(1_001)));
        assert_eq!(limiter.refused_token_wait(other, at(5)), None);
        assert_eq!(limiter.refused_token_wait(address, at(1_006)), None);
        for _ in 0..5 {
            assert_eq!(limiter.refused_token_from([127, 0, 0, 1].into(), at(5)), Ok(()));
        }
        assert_eq!(limiter.refused_token_wait([127, 0, 0, 1].into(), at(5)), None);
    }

    #[test]
    fn limiter_without_limits_admits_everything() {
        let limiter = limiter(RateLimits::default());
        let alice = user("alice");
        for n in 0..1_000 {
            let conversation = direct("alice", &format!("b{n}"));
            assert_eq!(limiter.send(&alice, &conversation, at(0)), Ok(()));
            assert_eq!(limiter.login(&alice, at(0)), Ok(()));
            assert_eq!(limiter.query(&alice, at(0)), Ok(()));
        }
    }

    /// The shards of a node have one limiter, so they are threads on one here.
    #[test]
    fn limiter_holds_for_all_threads_together() {
        let limiter = limiter(RateLimits { queries: 100, ..RateLimits::default() });
        let alice = user("alice");
        let admitted = || (0..1_000).filter(|n| limiter.query(&alice, at(n / 10)).is_ok()).count();
        let all = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(admitted)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        });
        assert_eq!(all, 100);
    }
}
