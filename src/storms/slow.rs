//! Slow mode: one message per user and interval in a group, enforced by the node that receives the message.
//!
//! A user who is connected to several nodes has one message per interval on each. A slow mode ends by itself.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use tidegate_protocol::id::{ConversationId, ConversationKind, DeviceId, MsgId, UserId};
use tokio::time::Instant;

/// Most users that are remembered for one interval, shared by all groups in equal parts. Above it every further user of
/// the group has to wait until the interval is over; above half of it, every further one who is no member.
const USERS_MAX: usize = 1 << 18;

/// Users that are remembered for a group at least.
const GROUP_USERS_MIN: usize = 256;

/// Slow modes of all groups.
#[derive(Default)]
pub struct SlowModes {
    /// Number of slow modes, so that a send takes no lock without any.
    count: AtomicUsize,
    modes: RwLock<HashMap<ConversationId, Arc<SlowMode>>>,
    /// SipHash under a random key, so that nobody can choose users that collide.
    hasher: RandomState,
}

struct SlowMode {
    interval: Duration,
    exempt: HashSet<UserId>,
    until: Mutex<Instant>,
    users: Mutex<RecentUsers>,
}

/// Latest messages of users, by the hashes of these: those of this interval, and those of the one before.
struct RecentUsers {
    since: Instant,
    now: HashMap<u64, Latest>,
    before: HashMap<u64, Latest>,
}

/// Latest message of a user.
#[derive(Clone, Copy)]
struct Latest {
    at: Instant,
    /// Hash of its device and id.
    message: u64,
}

/// Message that slow mode decides about.
#[derive(Clone, Copy, Debug)]
pub struct SlowMessage<'a> {
    /// Group.
    pub group: &'a ConversationId,
    /// Sender.
    pub user: &'a UserId,
    /// Device of the sender.
    pub device: &'a DeviceId,
    /// Id, under which the device repeats the message.
    pub msg_id: &'a MsgId,
}

/// Message that slow mode admitted.
#[must_use]
pub struct SlowAdmission(Option<(Arc<SlowMode>, u64)>);

impl SlowAdmission {
    /// Forgets the message, because it was refused for another reason.
    pub fn withdraw(self) {
        if let Some((mode, key)) = self.0 {
            mode.users.lock().now.remove(&key);
        }
    }
}

impl SlowModes {
    /// Puts slow mode into force in a group until a time, or prolongs it.
    pub(super) fn set(&self, group: &ConversationId, interval: Duration, exempt: &[UserId], until: Instant) {
        let exempt: HashSet<UserId> = exempt.iter().cloned().collect();
        let mut modes = self.modes.write();
        let now = Instant::now();
        let known = modes.get(group).filter(|mode| mode.interval == interval && mode.exempt == exempt);
        if let Some(mode) = known {
            *mode.until.lock() = until;
        } else {
            let users = RecentUsers { since: now, now: HashMap::new(), before: HashMap::new() };
            let (until, users) = (Mutex::new(until), Mutex::new(users));
            modes.insert(group.clone(), Arc::new(SlowMode { interval, exempt, until, users }));
        }
        self.count.store(modes.len(), Ordering::Release);
    }

    /// Ends slow mode in a group.
    pub(super) fn remove(&self, group: &ConversationId) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut modes = self.modes.write();
        modes.remove(group);
        self.count.store(modes.len(), Ordering::Release);
    }

    /// Removes the slow modes that have ended.
    pub(super) fn expire(&self, now: Instant) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut modes = self.modes.write();
            modes.retain(|_, mode| *mode.until.lock() > now);
            self.count.store(modes.len(), Ordering::Release);
        }
    }

    /// Counts a message, if its user has sent none within the interval. A repetition of the latest one passes: it may have
    /// been accepted before. `is_stranger` returns whether the user is not known to be a member of the group.
    ///
    /// # Errors
    /// The time until the user may send the next one.
    pub fn admit(
        &self,
        message: SlowMessage<'_>,
        is_stranger: impl FnOnce() -> bool,
    ) -> Result<SlowAdmission, Duration> {
        let count = self.count.load(Ordering::Acquire);
        if count == 0 || !matches!(message.group.kind(), ConversationKind::Group(_)) {
            return Ok(SlowAdmission(None));
        }
        let mode = self.modes.read().get(message.group).cloned();
        let now = Instant::now();
        let is_slowed =
            |mode: &Arc<SlowMode>| *mode.until.lock() > now && !mode.exempt.contains(message.user);
        let Some(mode) = mode.filter(is_slowed) else { return Ok(SlowAdmission(None)) };
        let users_max = (USERS_MAX / count).max(GROUP_USERS_MIN) / if is_stranger() { 2 } else { 1 };
        let key = self.hasher.hash_one(message.user.as_str());
        let latest = Latest {
            at: now,
            message: self.hasher.hash_one((message.device.as_str(), message.msg_id.as_str())),
        };
        let is_counted = mode.users.lock().admit(key, latest, mode.interval, users_max)?;
        Ok(SlowAdmission(is_counted.then_some((mode, key))))
    }
}

impl RecentUsers {
    /// Returns whether the message is counted, and not a repetition.
    fn admit(
        &mut self,
        key: u64,
        latest: Latest,
        interval: Duration,
        users_max: usize,
    ) -> Result<bool, Duration> {
        let now = latest.at;
        let age = now.saturating_duration_since(self.since);
        if age >= interval {
            let past = std::mem::take(&mut self.now);
            self.before = if age >= interval * 2 { HashMap::new() } else { past };
            self.since = now;
        }
        let last = self.now.get(&key).or_else(|| self.before.get(&key));
        if last.is_some_and(|last| last.message == latest.message) {
            return Ok(false);
        }
        if let Some(wait) = last.and_then(|last| (last.at + interval).checked_duration_since(now))
            && !wait.is_zero()
        {
            return Err(wait);
        }
        if self.now.len() >= users_max {
            return Err((self.since + interval).saturating_duration_since(now));
        }
        self.now.insert(key, latest);
        Ok(true)
    }
}

#[cfg(test)]
impl SlowModes {
    /// Returns whether a second message of a member has to wait.
    pub(crate) fn refuses_second(&self, group: &ConversationId, user: &UserId) -> bool {
        let device = DeviceId::new("phone").unwrap();
        let [first, second] = ["first", "second"].map(|id| {
            let msg_id = &MsgId::new(id).unwrap();
            self.admit(SlowMessage { group, user, device: &device, msg_id }, || false)
        });
        drop(first);
        second.is_err()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn group() -> ConversationId {
        ConversationId::parse("g:tea").unwrap()
    }

    fn user(n: usize) -> UserId {
        UserId::new(&format!("u{n}")).unwrap()
    }

    fn modes() -> SlowModes {
        let modes = SlowModes::default();
        modes.set(&group(), INTERVAL, &[user(0)], Instant::now() + Duration::from_secs(60));
        modes
    }

    /// Admits the message with a number of the user with a number.
    fn admit(modes: &SlowModes, n: usize, message: usize) -> Result<SlowAdmission, Duration> {
        let (group, user) = (group(), user(n));
        let (device, msg_id) = (DeviceId::new("phone").unwrap(), MsgId::new(&format!("m{message}")).unwrap());
        let message = SlowMessage { group: &group, user: &user, device: &device, msg_id: &msg_id };
        modes.admit(message, || n >= STRANGERS)
    }

    /// Users from this number on are no members.
    const STRANGERS: usize = 1_000_000;

    /// Returns the wait of a new message.
    fn wait(modes: &SlowModes, n: usize) -> Option<Duration> {
        static NEXT: AtomicUsize = AtomicUsize::new(1_000);
        admit(modes, n, NEXT.fetch_add(1, Ordering::Relaxed)).err()
    }

    #[tokio::test(start_paused = true)]
    async fn user_has_one_message_per_interval_and_the_wait_is_exact() {
        let modes = modes();
        for step in [1, 7, 4_999, 5_000, 5_001, 12_345] {
            assert_eq!(wait(&modes, 1), None, "after {step} ms");
            time::advance(Duration::from_millis(1_700)).await;
            let left = wait(&modes, 1).expect("the second message waits");
            assert_eq!(left, Duration::from_millis(3_300));
            assert_eq!((wait(&modes, 0), wait(&modes, 0)), (None, None), "admins are exempt");
            time::advance(left - Duration::from_millis(1)).await;
            assert_eq!(wait(&modes, 1), Some(Duration::from_millis(1)));
            time::advance(Duration::from_millis(step)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn withdrawn_message_costs_nothing() {
        let modes = modes();
        let Ok(first) = admit(&modes, 1, 1) else { panic!("the first") };
        first.withdraw();
        assert_eq!(wait(&modes, 1), None);
        assert!(wait(&modes, 1).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn latest_message_may_be_repeated_and_renewals_keep_it() {
        let modes = modes();
        assert!(admit(&modes, 1, 7).is_ok());
        for _ in 0..2 {
            let Ok(again) = admit(&modes, 1, 7) else { panic!("a repetition passes") };
            // What withdraws a repetition leaves the first one.
            again.withdraw();
            assert!(admit(&modes, 1, 8).is_err());
            modes.set(&group(), INTERVAL, &[user(0)], Instant::now() + Duration::from_secs(60));
        }
        let direct = ConversationId::parse("d:ann:bob").unwrap();
        modes.set(&direct, INTERVAL, &[], Instant::now() + Duration::from_secs(60));
        assert!(!modes.refuses_second(&direct, &user(1)), "groups only");
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_use_half_of_the_users_of_a_group() {
        let modes = modes();
        for n in 0..USERS_MAX / 2 {
            assert_eq!(wait(&modes, STRANGERS + n), None);
        }
        assert!(wait(&modes, STRANGERS + USERS_MAX).is_some());
        assert_eq!(wait(&modes, 1), None, "members are admitted");
        for n in 1..2_000 {
            let other = ConversationId::parse(&format!("g:x{n}")).unwrap();
            modes.set(&other, INTERVAL, &[], Instant::now() + INTERVAL);
        }
        let before = modes.count.load(Ordering::Relaxed);
        time::advance(INTERVAL).await;
        modes.expire(Instant::now());
        assert_eq!((before, modes.count.load(Ordering::Relaxed)), (2_000, 1), "what has ended is removed");
    }

    #[tokio::test(start_paused = true)]
    async fn mode_ends_at_its_time_and_users_are_bounded() {
        let modes = modes();
        for n in 1..=USERS_MAX {
            assert_eq!(wait(&modes, n), None, "{n}");
        }
        time::advance(Duration::from_secs(2)).await;
        assert_eq!(
            wait(&modes, USERS_MAX + 1),
            Some(Duration::from_secs(3)),
            "full until the interval is over"
        );
        time::advance(Duration::from_secs(3)).await;
        assert_eq!(wait(&modes, USERS_MAX + 1), None);
        time::advance(Duration::from_secs(54)).await;
        assert_eq!(wait(&modes, 1), None);
        assert!(wait(&modes, 1).is_some());
        time::advance(Duration::from_secs(1)).await;
        assert_eq!((wait(&modes, 1), wait(&modes, 1)), (None, None), "the mode is over");
    }
}
