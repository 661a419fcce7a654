//! Rounds: which notices are decided together, and what becomes of them.

use super::{
    Duration, NODE_RETRY, PairKey, Partition, Pending, Time, Waiting, WaitingNotice, WaitingOutcome,
    WaitingRound,
};

/// Most notices of a round.
pub const ROUND_MAX: usize = 256;

/// Time for which the receiver refuses a notice while others succeed, until it is dropped.
pub const REFUSED_MAX: Duration = Duration::from_secs(600);

/// Longest delay between two tries.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Longest wait that a receiver may ask for.
const BUSY_MAX: Duration = Duration::from_secs(3_600);

impl Waiting {
    /// Returns notices that are to be decided; the next round follows after its outcomes.
    pub fn poll_round(&mut self, now: Time) -> Option<WaitingRound> {
        self.forget(now);
        if self.is_paused || self.is_refused || self.round.is_some() || now < self.wait_until {
            return None;
        }
        // A failing receiver is probed with one notice at a time.
        let limit = if self.failures > 0 { 1 } else { ROUND_MAX };
        let due = self.due.iter().take_while(|(at, _)| *at <= now);
        let alone_max = self.settings.alone_max.max(1);
        let mut alone = 0;
        let mut fits = |key: &PairKey| {
            let is_alone = self.pairs.get(key).is_some_and(|pair| pair.tries > 0);
            alone += usize::from(is_alone);
            !is_alone || alone <= alone_max
        };
        let due = due.filter(|(_, key)| self.may_decide(key) && fits(key)).take(limit);
        let due = due.map(|(_, key)| key.clone());
        let keys: Vec<PairKey> = due.collect();
        let notices: Vec<WaitingNotice> = keys.iter().filter_map(|key| self.take(key)).collect();
        if notices.is_empty() {
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.round = Some((ticket, keys));
        Some(WaitingRound { ticket, notices })
    }

    /// Returns the time of the next round; `None` if it waits for something else.
    pub(super) fn next_round(&self) -> Option<Time> {
        if self.is_paused || self.is_refused || self.round.is_some() {
            return None;
        }
        let (at, _) = self.due.iter().find(|(_, key)| self.may_decide(key))?;
        Some((*at).max(self.wait_until))
    }

    fn may_decide(&self, key: &PairKey) -> bool {
        let partition = self.pairs.get(key).and_then(|pair| self.partitions.get(&pair.partition));
        let may = |it: &Partition| (it.is_caught_up || self.is_full()) && !it.has_failed && !it.is_leaving;
        partition.is_some_and(may)
    }

    /// Moves a pending notice into the round.
    fn take(&mut self, key: &PairKey) -> Option<WaitingNotice> {
        let pair = self.pairs.get_mut(key)?;
        self.due.remove(&(pair.listed_at, key.clone()));
        let pending = pair.pending.take()?;
        let notice = WaitingNotice {
            user: key.user.clone(),
            newest: pending.newest.clone(),
            count: pending.count,
            mentioned: pending.mentioned,
            is_alone: pair.tries > 0,
        };
        pair.in_round = Some(pending);
        Some(notice)
    }

    /// Takes the outcomes of a round, in the order of its notices, and returns how many notices are dropped that the
    /// receiver has not taken for too long.
    pub fn handle_round(&mut self, ticket: u64, outcomes: &[WaitingOutcome], now: Time) -> usize {
        let Some((_, keys)) = self.round.take_if(|(number, _)| *number == ticket) else { return 0 };
        let is_any = |wanted: fn(&WaitingOutcome) -> bool| outcomes.iter().any(wanted);
        let has_failed = is_any(|it| matches!(it, WaitingOutcome::Refused | WaitingOutcome::Failed));
        if is_any(|it| *it == WaitingOutcome::Noticed) {
            (self.failures, self.last_success) = (0, Some(now));
        } else if has_failed {
            self.failures = self.failures.saturating_add(1);
            self.wait_until = now + delay(self.failures);
        }
        if is_any(|it| *it == WaitingOutcome::Undecided) {
            self.wait_until = self.wait_until.max(now + NODE_RETRY);
        }
        self.is_refused |= is_any(|it| *it == WaitingOutcome::Gone);
        let mut dropped = 0;
        for (key, outcome) in keys.into_iter().zip(outcomes) {
            if let WaitingOutcome::Busy(wait) = outcome {
                self.wait_until = self.wait_until.max(now + (*wait).clamp(NODE_RETRY, BUSY_MAX));
            }
            let Some(pending) = self.pairs.get_mut(&key).and_then(|pair| pair.in_round.take()) else {
                continue;
            };
            self.held -= 1;
            dropped += usize::from(self.settle(key, pending, *outcome, now));
        }
        self.forget(now);
        dropped
    }

    /// Ends a notice of a round, or makes it pending again. Returns whether it is dropped.
    fn settle(&mut self, key: PairKey, in_round: Pending, outcome: WaitingOutcome, now: Time) -> bool {
        let (repeat, failing_max, last_success) =
            (self.settings.repeat, self.settings.failing_max, self.last_success);
        let Some(pair) = self.pairs.get_mut(&key) else { return false };
        let mut at = now;
        let mut is_dropped = false;
        match outcome {
            WaitingOutcome::Settled | WaitingOutcome::Noticed => {
                if outcome == WaitingOutcome::Noticed {
                    pair.noticed_at = Some(now);
                }
                (pair.failing, pair.tries) = (None, 0);
            }
            WaitingOutcome::Refused | WaitingOutcome::Failed => {
                let longest = if outcome == WaitingOutcome::Refused { REFUSED_MAX } else { failing_max };
                let (since, last) = pair.failing.unwrap_or((now, now));
                // Only while others succeed it says something about the notice.
                let others_succeed = last_success.is_some_and(|success| success > last);
                is_dropped = pair.tries > 0 && others_succeed && now.since(since) >= longest;
                pair.failing = Some((since, now));
                pair.tries = pair.tries.saturating_add(1);
                at = now + delay(pair.tries);
            }
            WaitingOutcome::Busy(_) | WaitingOutcome::Gone | WaitingOutcome::Undecided => {}
        }
        let ends = is_dropped || matches!(outcome, WaitingOutcome::Settled | WaitingOutcome::Noticed);
        if is_dropped {
            (pair.failing, pair.tries) = (None, 0);
        }
        let partition = self.partitions.get_mut(&pair.partition);
        match &mut pair.pending {
            _ if ends => partition.into_iter().for_each(|it| it.let_go(in_round.first)),
            Some(later) => {
                partition.into_iter().for_each(|it| it.let_go(later.first.max(in_round.first)));
                later.add(in_round);
            }
            None => {
                pair.pending = Some(in_round);
                self.held += 1;
            }
        }
        let recent_until = pair.noticed_at.map_or(now, |noticed| noticed + repeat);
        if pair.pending.is_some() {
            pair.listed_at = at.max(recent_until);
            self.due.insert((pair.listed_at, key));
        } else {
            pair.listed_at = recent_until;
            self.recent.insert((recent_until, key));
        }
        is_dropped
    }
}

/// Returns the delay before a try after so many failures: 1, 2, 4 … 300 s.
fn delay(failures: u32) -> Duration {
    NODE_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(9)).min(RETRY_MAX)
}
