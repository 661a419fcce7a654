//! Guard: the rules in force, which decide about requests of all shards and of the admin API.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tidegate_protocol::{
    Time,
    machine::{permit::ANSWER_TIMEOUT, rate::RateSlot},
};

use super::{
    book::{RuleBook, RuleDraft, RuleView},
    dynamic::Thresholds,
    file::RuleSet,
    keys::SubjectKeys,
    kinds::{ConnectionKeys, LimitCall, LimitLevel},
    permit_table::{PermitState, has_waited},
    permits::PermitBoard,
    refusal::{AnswerWait, LimitRefusal, LimitWaits},
    rule::{LimitRule, LimitScope, RuleForm},
    subjects::LimitSubjects,
    windows::{RuleUse, RuleWindows, Stripe, SubjectState, add_one, counters},
};
use crate::{live::Live, metrics::Metrics};

/// Rules of a node, shared by its shards and its admin port.
pub struct RuleGuard {
    /// SipHash under a random key, so that nobody can choose subjects that collide.
    pub(super) hasher: RandomState,
    pub(super) in_force: Live<RulesInForce>,
    /// Calls that rules count, one bit each, so that the others take no lock.
    counted: AtomicU32,
    /// All rules that the node knows; locked while those in force are replaced.
    known: Mutex<KnownRules>,
    start: Instant,
    /// Cluster scope; `None` on a single node, where all rules are in node scope.
    pub(super) board: Option<PermitBoard>,
    /// Load that the limits of dynamic rules follow.
    pub(super) thresholds: Thresholds,
    pub(super) metrics: Metrics,
}

/// Rules of all sources.
#[derive(Default)]
struct KnownRules {
    book: RuleBook,
    /// Serial of the last windows.
    last_serial: u64,
}

/// Rules with their windows, in the order of their serials: all threads take the locks in this order, those with former
/// rules included.
#[derive(Clone, Default)]
pub(super) struct RulesInForce {
    pub(super) rules: Vec<RuleInForce>,
    /// Positions of the rules that count a call.
    by_call: [Vec<usize>; LimitCall::ALL.len()],
}

/// Rule with its windows.
#[derive(Clone)]
pub(super) struct RuleInForce {
    pub(super) rule: Arc<LimitRule>,
    pub(super) windows: Arc<RuleWindows>,
}

/// Windows of the subjects of a request; those of most sets of rules need no heap.
type Hits<'a> = SmallVec<[Hit<'a>; 12]>;

/// Window of one subject of a request, locked until the request is decided.
struct Hit<'a> {
    of: &'a RuleInForce,
    slot: RateSlot,
    stripe: MutexGuard<'a, Stripe>,
    /// Time at which the subject is admitted; `None` if it is now.
    free_at: Option<Time>,
    /// Boxed, so that the windows of rules in node scope are small to move.
    permit: Option<Box<PermitHit>>,
}

/// What a subject of a rule in cluster scope needs.
struct PermitHit {
    state: PermitState,
    /// Whether the key has to be asked for.
    needs_ask: bool,
    /// Time of the check, read just before it: that of the turn may be too old for a permit.
    at: Time,
}

impl RulesInForce {
    /// Returns whether the windows with the serial are in force.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.rules.binary_search_by_key(&serial, |it| it.windows.serial).is_ok()
    }
}

impl Hit<'_> {
    fn is_asking(&self) -> bool {
        self.permit.as_ref().is_some_and(|permit| permit.state == PermitState::Asking)
    }
}

impl RuleGuard {
    /// Creates a guard with these rules and no hits. `start` is the time base of the shards.
    pub fn new(rules: &RuleSet, metrics: Metrics, start: Instant) -> Self {
        Self::with(rules, metrics, start, None)
    }

    /// Creates the guard of a node with others, by the hash of its id. The caller carries the asks of rules in cluster scope
    /// to Redis.
    pub fn clustered(rules: &RuleSet, metrics: Metrics, start: Instant, node: u64) -> Self {
        let clock = Box::new(move || time_since(start));
        Self::with(rules, metrics, start, Some(PermitBoard::new(node, clock)))
    }

    pub(super) fn with(
        rules: &RuleSet,
        metrics: Metrics,
        start: Instant,
        board: Option<PermitBoard>,
    ) -> Self {
        let hasher = RandomState::new();
        let guard = Self {
            in_force: Live::default(),
            counted: AtomicU32::new(0),
            known: Mutex::default(),
            start,
            board,
            thresholds: Thresholds::new(hasher.hash_one("histories")),
            hasher,
            metrics,
        };
        guard.replace(rules);
        guard
    }

    /// Returns the time of the shards, for requests that no shard handles.
    pub fn now(&self) -> Time {
        time_since(self.start)
    }

    /// Replaces the rules of the file. A rule that counts the same subjects in the same windows as the former one with its id
    /// goes on; others begin without hits.
    pub fn replace(&self, set: &RuleSet) {
        self.change(|book| book.set_file(set.clone()));
    }

    /// Applies changed rules of the admin API: their ids with version and value, or `None` for one that was removed.
    pub fn apply_stored<'a>(&self, changed: impl Iterator<Item = (&'a str, Option<(u64, &'a [u8])>)>) {
        self.change(|book| {
            for (id, stored) in changed {
                match stored {
                    Some((version, value)) => book.put(id, version, value),
                    None => book.remove(id),
                }
            }
        });
    }

    /// Removes the rules of the admin API with other ids than these.
    pub fn retain_stored(&self, ids: &BTreeSet<String>) {
        self.change(|book| book.retain(ids));
    }

    /// Returns all rules that the node knows, with what becomes of them.
    pub fn views(&self) -> Vec<RuleView> {
        self.known.lock().book.merged().1
    }

    /// Returns what is notable about the rules in force: which of them refuses first.
    pub fn overlaps(&self) -> Vec<String> {
        self.known.lock().book.overlaps()
    }

    /// Returns what would become of a rule of the admin API on this node; changes nothing.
    pub fn check_rule(&self, id: &str, form: RuleForm) -> RuleDraft {
        self.known.lock().book.check(id, form)
    }

    /// Changes the rules that the node knows, and puts those in force that fit.
    fn change(&self, change: impl FnOnce(&mut RuleBook)) {
        let mut known = self.known.lock();
        change(&mut known.book);
        let former = self.in_force.get();
        let mut all = RulesInForce::default();
        for rule in known.book.merged().0 {
            let continued = former.rules.iter().find(|it| rule.continues(&it.rule));
            let windows = continued.map(|it| Arc::clone(&it.windows)).unwrap_or_else(|| {
                known.last_serial += 1;
                let is_clustered = self.board.is_some() && rule.scope == LimitScope::Cluster;
                Arc::new(RuleWindows::new(&rule, known.last_serial, is_clustered, &self.hasher))
            });
            all.rules.push(RuleInForce { rule: Arc::new(rule), windows });
        }
        all.rules.sort_by_key(|it| it.windows.serial);
        let mut counted = 0;
        for (at, it) in all.rules.iter().enumerate() {
            for call in it.rule.calls.iter().filter(|call| it.rule.level.is_in(*call)) {
                all.by_call[call as usize].push(at);
                counted |= 1 << call as u32;
            }
        }
        self.thresholds.carry(&former.rules, &all.rules);
        self.thresholds.apply(&all.rules);
        self.in_force.set(all);
        self.counted.store(counted, Ordering::Relaxed);
    }

    /// Returns whether a rule counts the call, so that its subjects are needed.
    pub fn counts(&self, call: LimitCall) -> bool {
        self.counted.load(Ordering::Relaxed) & (1 << call as u32) != 0
    }

    /// Counts a request in all rules that concern it, if all of them and `others` admit it; otherwise in none. If the caller
    /// waits for space, the refusal may be one after whose wait it tries again ([`LimitRefusal::is_delay`]); after one with
    /// [`LimitRefusal::asking`] it tries again in any case.
    ///
    /// `others` decides about the request by other limits. It runs under the locks of the rules, after they have admitted
    /// the request.
    ///
    /// # Errors
    /// A rule or `others` refuses the request; the error names the rule with the longest wait.
    pub fn admit<E: From<LimitRefusal>>(
        &self,
        call: LimitCall,
        subjects: &LimitSubjects<'_>,
        now: Time,
        waits: impl Into<LimitWaits>,
        others: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.counts(call) {
            return others();
        }
        let (in_force, waits) = (self.in_force.get(), waits.into());
        // In place: it is large.
        let mut hits = Hits::new();
        let is_clear = self.check(&mut hits, &in_force, call, subjects, now, waits.asking_since);
        if !is_clear && let Some(refusal) = self.refusal(&mut hits, subjects, now, waits) {
            return Err(refusal.into());
        }
        others()?;
        self.commit(&mut hits, subjects, now);
        Ok(())
    }

    /// Returns the refusal by a rule that a request would get now without a wait; counts an admitted one nowhere. For requests
    /// that cost something before [`Self::admit`] decides about them.
    pub fn refuses(&self, call: LimitCall, subjects: &LimitSubjects<'_>, now: Time) -> Option<LimitRefusal> {
        if !self.counts(call) {
            return None;
        }
        let (in_force, mut hits) = (self.in_force.get(), Hits::new());
        if self.check(&mut hits, &in_force, call, subjects, now, None) {
            return None;
        }
        let binding = binding(&hits, now, true).filter(|(_, refusal)| !refusal.is_delay);
        let refusal = binding.map(|(binding, refusal)| {
            self.count_refusal(binding, false, subjects, now);
            refusal
        })?;
        // Nothing else asks for a subject whose requests all end here.
        if let Some(board) = &self.board {
            list_asks(board, &mut hits, true);
        }
        Some(refusal)
    }

    /// Returns the keys of a connection's subjects, which are valid for this guard as long as its subjects stay the same.
    pub fn connection_keys(&self, subjects: &LimitSubjects<'_>) -> ConnectionKeys {
        SubjectKeys::new(&self.hasher, LimitCall::Send, subjects).of_connection()
    }

    /// Locks and checks the windows of all rules that concern a request. Returns whether nothing but [`Self::commit`] is left
    /// to do: no rule refuses it, not even in a dry run, and none is in cluster scope.
    fn check<'a>(
        &self,
        hits: &mut Hits<'a>,
        in_force: &'a RulesInForce,
        call: LimitCall,
        subjects: &LimitSubjects<'_>,
        now: Time,
        asking_since: Option<Time>,
    ) -> bool {
        let (mut plan, mut is_clear) = (None, true);
        let mut keys = SubjectKeys::new(&self.hasher, call, subjects);
        for at in &in_force.by_call[call as usize] {
            let of = &in_force.rules[*at];
            let Some(key) = keys.of(&of.rule) else { continue };
            let mut stripe = of.windows.stripe(key);
            let Some((board, permits)) = self.board.as_ref().zip(stripe.permits.as_mut()) else {
                let (slot, free_at) = stripe.check(key, now);
                is_clear &= free_at.is_none();
                hits.push(Hit { of, slot, stripe, free_at, permit: None });
                continue;
            };
            is_clear = false;
            let plan = plan.get_or_insert_with(|| board.plan.get());
            let at = now.max(board.now());
            let new = || (board.next_born(), keys.everywhere_by(of.rule.level, of.rule.prefix));
            let (state, needs_ask) = permits.check(key, plan, has_waited(asking_since, at), at, new);
            let free_at = match state {
                PermitState::Until(free_at) => Some(free_at),
                _ => None,
            };
            let (slot, permit) = (stripe.slot(key), Some(Box::new(PermitHit { state, needs_ask, at })));
            hits.push(Hit { of, slot, stripe, free_at, permit });
        }
        is_clear
    }

    /// Returns the refusal of a request by one of the rules, and counts it; or the wait for permits, which are asked for.
    fn refusal(
        &self,
        hits: &mut Hits<'_>,
        subjects: &LimitSubjects<'_>,
        now: Time,
        waits: LimitWaits,
    ) -> Option<LimitRefusal> {
        let refusal = binding(hits, now, waits.for_space).map(|(binding, refusal)| {
            self.count_refusal(binding, refusal.is_delay, subjects, now);
            refusal
        });
        note_refusals(hits);
        let Some(board) = &self.board else { return refusal };
        list_asks(board, hits, refusal.is_some());
        refusal.or_else(|| asking(hits, waits))
    }

    fn count_refusal(&self, binding: &Hit<'_>, is_delay: bool, subjects: &LimitSubjects<'_>, now: Time) {
        let of_level = counters(&self.metrics, binding.of.rule.level);
        let counts = &binding.of.windows.counts;
        if is_delay {
            of_level.delayed.increment(1);
            add_one(&counts.delayed);
        } else {
            of_level.refused.increment(1);
            add_one(&counts.refused);
            let (key, level) = (binding.slot.key(), binding.of.rule.level);
            counts.subjects.lock().count(key, now, || subjects.name(level, key));
            self.metrics.rate_limited.increment(1);
        }
    }

    /// Counts an admitted request.
    fn commit(&self, hits: &mut Hits<'_>, subjects: &LimitSubjects<'_>, now: Time) {
        let (mut forgotten, mut levels) = (0, 0_u32);
        for hit in hits {
            let counts = &hit.of.windows.counts;
            let nth = counts.admitted.fetch_add(1, Ordering::Relaxed);
            if hit.of.rule.dynamic.is_some() {
                let (level, key, serial) = (hit.of.rule.level, hit.slot.key(), hit.of.windows.serial);
                let name = || Some(subjects.name(level, key)).filter(|name| self.is_named(level, name, key));
                self.thresholds.count(&hit.of.rule, serial, nth, key, name);
            }
            levels |= 1 << hit.of.rule.level as u32;
            if hit.free_at.is_some() {
                add_one(&counts.dry_refused);
                self.metrics.limit_dry_refused.increment(1);
            } else if let Some((permit, permits)) = hit.permit.as_ref().zip(hit.stripe.permits.as_mut()) {
                permits.commit(hit.slot.key(), permit.state, permit.at);
                if matches!(permit.state, PermitState::Share(_)) {
                    self.metrics.limit_by_share.increment(1);
                }
            } else {
                forgotten += hit.stripe.commit(hit.slot, now);
            }
        }
        while levels != 0 {
            let level = LimitLevel::ALL[levels.trailing_zeros() as usize];
            counters(&self.metrics, level).admitted.increment(1);
            levels &= levels - 1;
        }
        if forgotten > 0 {
            self.metrics.rate_hits_forgotten.increment(forgotten);
        }
    }

    /// Returns the states of all rules of a level for the subject with the name; `None` if it is no name of a subject.
    pub fn states(&self, level: LimitLevel, name: &str, now: Time) -> Option<Vec<SubjectState>> {
        let subjects = LimitSubjects::named(level, name)?;
        let in_force = self.in_force.get();
        let of_level = in_force.rules.iter().filter(|it| it.rule.level == level);
        Some(of_level.map(|it| self.state(it, &subjects, now)).collect())
    }

    fn state(&self, of: &RuleInForce, subjects: &LimitSubjects<'_>, now: Time) -> SubjectState {
        let call = of.rule.calls.iter().next().unwrap_or(LimitCall::Send);
        let key = SubjectKeys::new(&self.hasher, call, subjects).of(&of.rule);
        let (used, free_at, permits) = key.map_or((0, None, None), |key| {
            let mut stripe = of.windows.stripe(key);
            match self.board.as_ref().zip(stripe.permits.as_mut()) {
                Some((board, permits)) => permits.state(key, &board.plan.get(), now),
                None => {
                    let (used, free_at) = stripe.state(key, now);
                    (used, free_at, None)
                }
            }
        });
        let refusals = key.map(|key| of.windows.counts.subjects.lock().of(key, now));
        SubjectState {
            rule: Arc::clone(&of.rule),
            is_excepted: key.is_none(),
            used,
            wait: free_at.map(|free_at| free_at.since(now)),
            refusals: refusals.unwrap_or_default(),
            totals: of.windows.counts.totals(now),
            permits,
            threshold: key.map_or_else(
                || self.thresholds.of(&of.rule),
                |key| self.thresholds.of_key(&of.rule, of.windows.serial, key),
            ),
        }
    }

    /// Returns the rules in force with what they did, by id.
    pub fn uses(&self, now: Time) -> Vec<RuleUse> {
        let in_force = self.in_force.get();
        let of_rule = |it: &RuleInForce| {
            let counts = &it.windows.counts;
            let refused = counts.subjects.lock().all(now);
            let threshold = self.thresholds.of(&it.rule);
            RuleUse { rule: Arc::clone(&it.rule), totals: counts.totals(now), refused, threshold }
        };
        let mut uses: Vec<RuleUse> = in_force.rules.iter().map(of_rule).collect();
        uses.sort_by(|a, b| a.rule.id.cmp(&b.rule.id));
        uses
    }
}

fn time_since(start: Instant) -> Time {
    // By the clock of the runtime, which a simulation sets.
    let elapsed = tokio::time::Instant::from_std(start).elapsed();
    Time::from_millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the window with the longest wait among those that refuse a request, and the refusal.
fn binding<'h, 'a>(hits: &'h [Hit<'a>], now: Time, can_wait: bool) -> Option<(&'h Hit<'a>, LimitRefusal)> {
    let refuses = |hit: &&Hit<'_>| hit.free_at.is_some() && !hit.of.rule.is_dry_run;
    let binding = hits.iter().filter(refuses).max_by_key(|hit| hit.free_at)?;
    let wait = binding.free_at?.since(now);
    let is_within = |rule: &LimitRule| rule.max_wait.is_some_and(|max_wait| wait <= max_wait);
    let is_delay = can_wait && hits.iter().filter(refuses).all(|hit| is_within(&hit.of.rule));
    let limit = binding.stripe.limits.as_ref().map(|limits| limits.of(binding.slot.key()).count());
    let rule = Some(Arc::clone(&binding.of.rule));
    Some((binding, LimitRefusal { wait, rule, limit, is_delay, asking: None }))
}

/// Notes the refusals of rules whose limits follow the load, and those that dry runs leave out.
fn note_refusals(hits: &[Hit<'_>]) {
    for hit in hits.iter().filter(|hit| hit.free_at.is_some()) {
        if let Some(limits) = &hit.stripe.limits {
            hit.of.windows.signals.note_refusal(limits, hit.slot.key(), hit.of.rule.is_dry_run);
        }
    }
}

/// Lists the keys that have to be asked for. A request that is refused needs no permit itself.
fn list_asks(board: &PermitBoard, hits: &mut Hits<'_>, is_refused: bool) {
    for hit in hits {
        let Some(at) = hit.permit.as_ref().filter(|permit| permit.needs_ask).map(|permit| permit.at) else {
            continue;
        };
        let key = hit.slot.key();
        if (!is_refused || !hit.is_asking())
            && hit.stripe.permits.as_mut().is_some_and(|permits| permits.want(key, at))
        {
            board.push(&hit.of.windows, key);
        }
    }
}

/// Returns the wait of a request that an answer decides about. Called under the locks of its keys, so that no answer is
/// missed.
fn asking(hits: &mut Hits<'_>, waits: LimitWaits) -> Option<LimitRefusal> {
    let hit = hits.iter_mut().find(|hit| hit.is_asking() && !hit.of.rule.is_dry_run)?;
    let (at, key) = (hit.permit.as_ref()?.at, hit.slot.key());
    let since = waits.asking_since.unwrap_or(at);
    let asking = AnswerWait {
        waits: LimitWaits { asking_since: Some(since), ..waits },
        left: (since + ANSWER_TIMEOUT).since(at),
        ended: hit.stripe.permits.as_mut()?.ended(key),
    };
    let rule = Some(Arc::clone(&hit.of.rule));
    Some(LimitRefusal { wait: ANSWER_TIMEOUT, rule, limit: None, is_delay: false, asking: Some(asking) })
}
