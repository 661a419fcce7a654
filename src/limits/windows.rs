//! Windows of the subjects of one rule, and what it has refused.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::Counter;
use parking_lot::{Mutex, MutexGuard};
use tidegate_protocol::{
    Time,
    machine::{
        permit::PermitRule,
        rate::{RateLimit, RateSlot, RateTable},
        threshold::Threshold,
    },
};

use super::{
    content::SeenOnce,
    dynamic::{LimitSignals, StripeLimits},
    kinds::LimitLevel,
    permit_table::{PermitTable, PermitView},
    refused::{RefusedSubjects, SubjectRefusals},
    rule::LimitRule,
};
use crate::metrics::Metrics;

/// Most stripes of a rule.
const STRIPES_MAX: usize = 16;

/// Fewest subjects of a stripe, if a rule has several.
const STRIPE_KEYS_MIN: usize = 256;

/// Windows that further subjects share, for each rule in all stripes.
const SHARED: usize = 64;

/// Windows of one rule, in stripes by subject, each under a lock of its own.
pub(super) struct RuleWindows {
    /// Position in the order in which locks are taken; unique in the process of a node, and higher for newer rules.
    pub(super) serial: u64,
    /// Id of the rule.
    pub(super) rule: Arc<str>,
    stripes: Vec<Mutex<Stripe>>,
    pub(super) counts: RuleCounts,
    /// What a dynamic rule did since the load was last followed.
    pub(super) signals: LimitSignals,
}

/// Requests that a rule concerned, since its windows began.
#[derive(Default)]
pub(super) struct RuleCounts {
    /// Admitted by all rules.
    pub(super) admitted: AtomicU64,
    /// Refused by this rule.
    pub(super) refused: AtomicU64,
    /// Let wait by this rule.
    pub(super) delayed: AtomicU64,
    /// Admitted, but over the limit of this rule in its dry run.
    pub(super) dry_refused: AtomicU64,
    /// Subjects that this rule refused. Its lock is taken under those of stripes, and covers no other.
    pub(super) subjects: Mutex<RefusedSubjects>,
}

/// Requests of all subjects that a rule concerned, since it is in force with this window and limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// Requests that all rules admitted.
    pub admitted: u64,
    /// Requests that this rule refused.
    pub refused: u64,
    /// Requests that this rule let wait.
    pub delayed: u64,
    /// Requests that this rule would have refused if it were no dry run.
    pub dry_refused: u64,
    /// Requests that this rule refused within the last minute.
    pub refused_last_minute: u64,
}

impl RuleCounts {
    /// Returns the counts.
    pub(super) fn totals(&self, now: Time) -> RuleTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RuleTotals {
            admitted: read(&self.admitted),
            refused: read(&self.refused),
            delayed: read(&self.delayed),
            dry_refused: read(&self.dry_refused),
            refused_last_minute: self.subjects.lock().last_minute(now),
        }
    }
}

/// Windows of the subjects of one stripe.
pub(super) struct Stripe {
    pub(super) table: RateTable,
    /// Limits of a dynamic rule.
    pub(super) limits: Option<StripeLimits>,
    /// Texts that occurred once and have no window yet, for a rule of contents.
    seen: Option<SeenOnce>,
    /// Permits of the subjects, for a rule in cluster scope; the table stays empty then.
    pub(super) permits: Option<PermitTable>,
}

impl RuleWindows {
    /// Creates windows without hits; `is_clustered` says whether the rule counts the requests of all nodes.
    pub(super) fn new(rule: &LimitRule, serial: u64, is_clustered: bool, hasher: &RandomState) -> Self {
        // A power of two, so that a key is assigned without a division.
        let count = 1 << (rule.keys_max / STRIPE_KEYS_MIN).clamp(1, STRIPES_MAX).ilog2();
        let stripe = |n: usize| {
            let (keys, shared) = (rule.keys_max.div_ceil(count), SHARED.div_ceil(count));
            let table = RateTable::new(rule.limit, keys, shared, hasher.hash_one((serial, n)));
            let is_content = rule.level == LimitLevel::Content;
            let seen = (is_content && !is_clustered).then(|| SeenOnce::new(rule.limit.window()));
            let limit = PermitRule::new(rule.limit.count(), rule.limit.window());
            let permits = is_clustered.then(|| PermitTable::new(limit, keys));
            let limits = rule.dynamic.map(|_| StripeLimits::new(rule.limit));
            Mutex::new(Stripe { table, limits, seen, permits })
        };
        Self {
            serial,
            rule: Arc::from(&*rule.id),
            stripes: (0..count).map(stripe).collect(),
            counts: RuleCounts::default(),
            signals: LimitSignals::default(),
        }
    }

    /// Locks each stripe in turn.
    pub(super) fn stripes(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe>> {
        self.stripes.iter().map(Mutex::lock)
    }

    /// Locks the stripe of a subject.
    #[inline]
    pub(super) fn stripe(&self, key: u64) -> MutexGuard<'_, Stripe> {
        // Tables place keys by their low bits.
        self.stripes[(key >> 48) as usize & (self.stripes.len() - 1)].lock()
    }
}

impl Stripe {
    /// Replaces the limit of a dynamic rule.
    pub(super) fn set_limit(&mut self, limit: RateLimit) {
        self.table.set_limit(limit);
        if let Some(limits) = &mut self.limits {
            limits.set(limit);
        }
    }

    /// Returns the slot of a subject of a rule in cluster scope.
    pub(super) fn slot(&self, key: u64) -> RateSlot {
        self.table.find(key)
    }

    /// Returns the slot of a subject for [`Self::commit`], and when its request is admitted if it is not now; counts nothing.
    pub(super) fn check(&mut self, key: u64, now: Time) -> (RateSlot, Option<Time>) {
        let mut slot = self.table.find(key);
        if self.seen.is_some() && !slot.has_entry() {
            self.open(key, now);
            slot = self.table.find(key);
        }
        (slot, self.checked(slot, now).err())
    }

    fn checked(&mut self, slot: RateSlot, now: Time) -> Result<(), Time> {
        match &self.limits {
            None => self.table.check_at(slot, now),
            Some(limits) => self.table.check_within(slot, &limits.of(slot.key()), now),
        }
    }

    /// Counts a request, which [`Self::check`] has admitted under the same lock. Returns how many hits were forgotten to make
    /// space for it.
    pub(super) fn commit(&mut self, slot: RateSlot, now: Time) -> u64 {
        if let Some(seen) = self.seen.as_mut().filter(|_| !slot.has_entry()) {
            let key = slot.key();
            if self.table.used(key, now) == 0 && seen.insert(key, now) {
                return 0;
            }
        }
        match &mut self.limits {
            None => self.table.commit_at(slot, now),
            Some(limits) => {
                let key = slot.key();
                let used = self.table.commit_within(slot, &limits.of(key), now, |key| limits.of(key).count());
                limits.note_use(key, used);
            }
        }
        self.table.forgotten()
    }

    /// Returns the number of requests that count now, and when the next one is admitted if none is now.
    pub(super) fn state(&mut self, key: u64, now: Time) -> (u32, Option<Time>) {
        self.open(key, now);
        let slot = self.table.find(key);
        (self.table.used(key, now), self.checked(slot, now).err())
    }

    /// Gives a text that occurs again a window of its own, in which its first occurrence counts.
    fn open(&mut self, key: u64, now: Time) {
        let Some(seen) = &mut self.seen else { return };
        // Without space for a window, the hits of the shared one count instead.
        if !self.table.contains(key)
            && self.table.used(key, now) == 0
            && let Some(first) = seen.last(key, now)
        {
            self.table.commit(key, first);
        }
    }
}

/// State of a rule for one subject.
#[derive(Clone, Debug)]
pub struct SubjectState {
    /// Rule.
    pub rule: Arc<LimitRule>,
    /// Whether the subject is one that the rule does not count.
    pub is_excepted: bool,
    /// Requests of the subject that count now.
    pub used: u32,
    /// Time until the next request is admitted; `None` if it is now.
    pub wait: Option<Duration>,
    /// Requests of the subject that this rule refused.
    pub refusals: SubjectRefusals,
    /// Requests of all subjects.
    pub totals: RuleTotals,
    /// What decides about the subject, for a rule in cluster scope that it has used on this node. `used` is of this node.
    pub permits: Option<PermitView>,
    /// Limit of the subject now and what it follows from, for a dynamic rule.
    pub threshold: Option<Threshold>,
}

/// Rule in force with what it did.
#[derive(Clone, Debug)]
pub struct RuleUse {
    /// Rule.
    pub rule: Arc<LimitRule>,
    /// Requests of all subjects.
    pub totals: RuleTotals,
    /// Subjects that it refused.
    pub refused: Vec<SubjectRefusals>,
    /// Limit of subjects without a history now, for a dynamic rule.
    pub threshold: Option<Threshold>,
}

/// Metrics of the requests of a level.
pub(super) struct LevelCounters<'a> {
    pub(super) admitted: &'a Counter,
    pub(super) refused: &'a Counter,
    pub(super) delayed: &'a Counter,
}

/// Adds one to a counter.
pub(super) fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Returns the counters of a level.
pub(super) fn counters(metrics: &Metrics, level: LimitLevel) -> LevelCounters<'_> {
    let m = metrics;
    let (admitted, refused, delayed) = match level {
        LimitLevel::Node => (&m.limit_admitted_node, &m.limit_refused_node, &m.limit_delayed_node),
        LimitLevel::Organisation => (&m.limit_admitted_org, &m.limit_refused_org, &m.limit_delayed_org),
        LimitLevel::Channel => {
            (&m.limit_admitted_channel, &m.limit_refused_channel, &m.limit_delayed_channel)
        }
        LimitLevel::User => (&m.limit_admitted_user, &m.limit_refused_user, &m.limit_delayed_user),
        LimitLevel::Device => (&m.limit_admitted_device, &m.limit_refused_device, &m.limit_delayed_device),
        LimitLevel::Conversation => {
            (&m.limit_admitted_conversation, &m.limit_refused_conversation, &m.limit_delayed_conversation)
        }
        LimitLevel::Address => {
            (&m.limit_admitted_address, &m.limit_refused_address, &m.limit_delayed_address)
        }
        LimitLevel::Content => {
            (&m.limit_admitted_content, &m.limit_refused_content, &m.limit_delayed_content)
        }
        LimitLevel::Key => (&m.limit_admitted_key, &m.limit_refused_key, &m.limit_delayed_key),
    };
    LevelCounters { admitted, refused, delayed }
}
