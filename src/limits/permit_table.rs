//! Permits of the subjects of a rule in cluster scope: whether each may use one, and what has to be asked for.

use std::{sync::Arc, time::Duration};

use foldhash::{HashMap, HashMapExt as _};
use tidegate_protocol::{
    Time,
    machine::permit::{
        ANSWER_TIMEOUT, ChargeStep, Grant, KeyUses, LimitSource, PermitAsk, PermitCheck, PermitRule, Permits,
        ShareSwitch, share_of,
    },
};
use tokio::sync::watch;

/// What decides about the keys of a node in cluster scope.
#[derive(Clone, Debug, Default)]
pub(super) struct PermitPlan {
    pub(super) switch: ShareSwitch,
    /// This node, by the hash of its id.
    pub(super) node: u64,
    /// All live nodes, this one included.
    pub(super) nodes: Arc<[u64]>,
}

impl PermitPlan {
    /// Returns the share of this node.
    pub(super) fn share(&self, rule: &PermitRule, subject: u128) -> u32 {
        // Truncated to the lower half of a hash.
        share_of(rule.limit(), subject as u64, self.node, &self.nodes)
    }
}

/// Ask of one key.
pub(super) struct KeyAsk {
    pub(super) key: u64,
    born: u64,
    /// Hash of the subject, the same on all nodes.
    pub(super) subject: u128,
    pub(super) limit: PermitRule,
    pub(super) ask: PermitAsk,
    charges: bool,
}

/// Permits and uses of the subjects of one stripe.
pub(super) struct PermitTable {
    limit: PermitRule,
    keys_max: usize,
    entries: HashMap<u64, Box<PermitEntry>>,
    /// Time of the last search for entries to remove.
    swept: Time,
}

struct PermitEntry {
    /// Number that no other entry has: an answer to an earlier entry of the key is ignored.
    born: u64,
    subject: u128,
    permits: Permits,
    uses: KeyUses,
    /// Time since which the key is listed for an ask, if it is.
    listed: Option<Time>,
    /// Generation of the last decision; refusals of earlier ones are forgotten.
    generation: u64,
    /// Closed when an ask of the key has ended, for the requests that wait for that.
    ended: Option<watch::Sender<()>>,
}

impl PermitEntry {
    /// Forgets refusals of an earlier generation: the server may not know what they were for.
    fn follow(&mut self, switch: &ShareSwitch) {
        if self.generation != switch.generation() {
            self.generation = switch.generation();
            self.permits.handle_change();
        }
    }

    /// Returns whether the key has been listed for as long as an answer may take, because no ask could be sent.
    fn is_stuck(&self, now: Time) -> bool {
        self.listed.is_some_and(|since| now >= since + ANSWER_TIMEOUT)
    }
}

/// Shortest time between two searches for entries to remove.
const SWEEP_INTERVAL_MS: u64 = 10;

/// Whether a request is admitted in cluster scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PermitState {
    /// By a permit.
    Permit,
    /// By this share of the node.
    Share(u32),
    /// Not before that time.
    Until(Time),
    /// An answer of the server decides.
    Asking,
}

/// State of a subject on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitView {
    /// What decides about its next request.
    pub source: LimitSource,
    /// Share of this node.
    pub share: u32,
}

impl PermitTable {
    /// Creates an empty table.
    pub(super) fn new(limit: PermitRule, keys_max: usize) -> Self {
        Self { limit, keys_max, entries: HashMap::new(), swept: Time::ZERO }
    }

    /// Returns whether a request of the subject is admitted now, and whether an ask is needed; counts nothing.
    /// `has_waited` says that the request has waited for an answer for as long as it may.
    pub(super) fn check(
        &mut self,
        key: u64,
        plan: &PermitPlan,
        has_waited: bool,
        now: Time,
        new: impl FnOnce() -> (u64, u128),
    ) -> (PermitState, bool) {
        let limit = self.limit;
        let retry_at = now + limit.life();
        // While all entries are in use, a new subject waits until one is free: a full table never admits more.
        let Some(entry) = self.entry(key, plan, now, new) else {
            return (PermitState::Until(retry_at), false);
        };
        entry.follow(&plan.switch);
        let by_share = |entry: &mut PermitEntry| match by_share(entry, &limit, plan, now) {
            Ok(share) => PermitState::Share(share),
            Err(free_at) => PermitState::Until(free_at),
        };
        if plan.switch.source() == LimitSource::Shares {
            return (by_share(entry), false);
        }
        if !entry.uses.is_charged(&limit, &plan.switch, now) {
            return (by_share(entry), true);
        }
        match entry.permits.check(now) {
            PermitCheck::Ready => (PermitState::Permit, false),
            PermitCheck::Refused(free_at) => (PermitState::Until(free_at), false),
            PermitCheck::Waiting(_) if has_waited => (by_share(entry), false),
            PermitCheck::Waiting(_) => (PermitState::Asking, false),
            PermitCheck::Missing if entry.is_stuck(now) => (by_share(entry), true),
            // What was granted to this request was used by later ones.
            PermitCheck::Missing if has_waited => (PermitState::Until(retry_at), true),
            PermitCheck::Missing => (PermitState::Asking, true),
            PermitCheck::Overdue => (by_share(entry), true),
        }
    }

    /// Counts a request, which [`Self::check`] has admitted under the same lock at the same time.
    pub(super) fn commit(&mut self, key: u64, state: PermitState, now: Time) {
        let limit = self.limit;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match state {
            PermitState::Permit => {
                entry.permits.take(&limit, now);
                entry.uses.handle_permits(&limit, 1, now);
            }
            PermitState::Share(share) => entry.uses.commit_share(&limit, share, now),
            PermitState::Until(_) | PermitState::Asking => {}
        }
    }

    /// Counts a request that needs an ask. Returns whether the caller has to list the key.
    pub(super) fn want(&mut self, key: u64, now: Time) -> bool {
        let Some(entry) = self.entries.get_mut(&key) else { return false };
        entry.permits.handle_waiting();
        let is_new = entry.listed.is_none();
        entry.listed.get_or_insert(now);
        is_new
    }

    /// Returns what is closed when an ask of the key has ended. [`Self::check`] has created the entry under the same lock.
    pub(super) fn ended(&mut self, key: u64) -> watch::Receiver<()> {
        let Some(entry) = self.entries.get_mut(&key) else { return watch::channel(()).1 };
        entry.ended.get_or_insert_with(|| watch::channel(()).0).subscribe()
    }

    /// Returns the ask of a listed key, if one is due.
    pub(super) fn take_ask(&mut self, key: u64, plan: &PermitPlan, now: Time) -> Option<KeyAsk> {
        let limit = self.limit;
        let entry = self.entries.get_mut(&key)?;
        entry.listed = None;
        entry.follow(&plan.switch);
        let charge = match entry.uses.poll_charge(&limit, &plan.switch, now) {
            ChargeStep::Send(uses) => uses,
            ChargeStep::Done | ChargeStep::Pending => 0,
        };
        let ask = entry.permits.poll_ask(&limit, charge, now)?;
        let charges = ask.charge > 0;
        if charges {
            entry.uses.handle_charge_sent(plan.switch.generation());
        }
        Some(KeyAsk { key, born: entry.born, subject: entry.subject, limit, ask, charges })
    }

    /// Takes the answer to an ask. Returns whether the caller has to list the key again: more requests may wait.
    pub(super) fn handle_answer(&mut self, taken: &KeyAsk, grant: &Grant, now: Time) -> bool {
        let limit = self.limit;
        let Some(entry) = self.entry_of(taken) else { return false };
        // Rounded up, so that the wait is over when it ends.
        let wait = Duration::from_millis(grant.wait_us.div_ceil(1_000));
        entry.permits.handle_answer(&limit, taken.ask.id, grant.granted, wait, now);
        if taken.charges {
            entry.uses.handle_charged(&limit, now);
        }
        let is_new = entry.listed.is_none();
        entry.listed.get_or_insert(now);
        is_new
    }

    /// Takes notice that the call of an ask has ended, after [`Self::handle_answer`] if it was answered. The caller drops
    /// what this returns, which wakes the requests that wait, once it has left the lock.
    pub(super) fn handle_end(&mut self, taken: &KeyAsk, is_answered: bool) -> Option<watch::Sender<()>> {
        let entry = self.entry_of(taken)?;
        if taken.charges && !is_answered {
            entry.uses.handle_charge_lost();
        }
        entry.ended.take()
    }

    fn entry_of(&mut self, taken: &KeyAsk) -> Option<&mut PermitEntry> {
        let entry = self.entries.get_mut(&taken.key)?;
        (entry.born == taken.born).then_some(&mut **entry)
    }

    /// Returns the uses of the last window on this node, when the next request is admitted if none is now, and what decides.
    pub(super) fn state(
        &mut self,
        key: u64,
        plan: &PermitPlan,
        now: Time,
    ) -> (u32, Option<Time>, Option<PermitView>) {
        let limit = self.limit;
        let Some(entry) = self.entries.get_mut(&key) else { return (0, None, None) };
        entry.follow(&plan.switch);
        let is_by_share = plan.switch.source() == LimitSource::Shares
            || !entry.uses.is_charged(&limit, &plan.switch, now)
            || match entry.permits.check(now) {
                PermitCheck::Overdue => true,
                PermitCheck::Missing => entry.is_stuck(now),
                _ => false,
            };
        let share = plan.share(&limit, entry.subject);
        let (source, free_at) = if is_by_share {
            (LimitSource::Shares, by_share(entry, &limit, plan, now).err())
        } else {
            let refused = match entry.permits.check(now) {
                PermitCheck::Refused(free_at) => Some(free_at),
                _ => None,
            };
            (LimitSource::Permits, refused)
        };
        (entry.uses.used(&limit, now), free_at, Some(PermitView { source, share }))
    }

    /// Returns the entry of a key, a new one if there is space.
    fn entry(
        &mut self,
        key: u64,
        plan: &PermitPlan,
        now: Time,
        new: impl FnOnce() -> (u64, u128),
    ) -> Option<&mut PermitEntry> {
        if !self.entries.contains_key(&key) {
            if self.entries.len() >= self.keys_max {
                self.sweep(plan, now);
            }
            if self.entries.len() >= self.keys_max {
                return None;
            }
            let (born, subject) = new();
            let generation = plan.switch.generation();
            let (permits, uses) = (Permits::default(), KeyUses::new(generation));
            let entry = PermitEntry { born, subject, permits, uses, listed: None, generation, ended: None };
            self.entries.insert(key, Box::new(entry));
        }
        self.entries.get_mut(&key).map(|entry| &mut **entry)
    }

    /// Removes the entries without uses; if all have some, those without permits and asks whose uses the server keeps.
    fn sweep(&mut self, plan: &PermitPlan, now: Time) {
        if now.as_millis() < self.swept.as_millis() + SWEEP_INTERVAL_MS {
            return;
        }
        self.swept = now;
        let limit = self.limit;
        let is_busy = |entry: &PermitEntry| {
            entry.listed.is_some()
                || entry.permits.held(now) > 0
                || matches!(entry.permits.check(now), PermitCheck::Waiting(_))
        };
        let before = self.entries.len();
        self.entries.retain(|_, entry| is_busy(entry) || entry.uses.used(&limit, now) > 0);
        if self.entries.len() == before {
            let is_on_shares = plan.switch.source() == LimitSource::Shares;
            // Otherwise a subject could use its share again.
            self.entries.retain(|_, entry| {
                is_busy(entry)
                    || is_on_shares
                    || !entry.uses.is_charged(&limit, &plan.switch, now)
                    || entry.uses.used_by_share(&limit, now) > 0
            });
        }
    }
}

/// Returns the share by which a request is admitted.
///
/// # Errors
/// The share is used up; the error is the time at which to try again. While Redis answers, that is at most the life of a
/// permit later, because its next answer decides and not the share.
fn by_share(entry: &mut PermitEntry, limit: &PermitRule, plan: &PermitPlan, now: Time) -> Result<u32, Time> {
    let share = plan.share(limit, entry.subject);
    entry.uses.check_share(limit, share, now).map(|()| share).map_err(|free_at| match plan.switch.source() {
        LimitSource::Shares => free_at,
        LimitSource::Permits => free_at.min(now + limit.life()),
    })
}

/// Returns whether a request that began to wait for an answer at that time has waited for as long as it may.
pub(super) fn has_waited(since: Option<Time>, now: Time) -> bool {
    since.is_some_and(|since| now >= since + ANSWER_TIMEOUT)
}
