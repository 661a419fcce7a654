//! Rounds: which notices are decided together, and what becomes of them.

use super::{
    DroppedNotice, Duration, NODE_RETRY, PairKey, Partition, Pending, Time, Waiting, WaitingNotice,
    WaitingOutcome, WaitingRound,
};

/// Most notices of a round.
pub const ROUND_MAX: usize = 256;

/// Time for which the receiver refuses a notice until it is dropped, if others succeed meanwhile or the machine is full.
pub const REFUSED_MAX: Duration = Duration::from_secs(600);

/// Fewest tries until a notice is dropped: a receiver that asks to wait makes the time pass without tries.
const DROP_TRIES_MIN: u32 = 5;

/// Longest delay of a round after refusals, and after failures that may be those of single notices: others may be taken.
pub const ANSWERED_WAIT_MAX: Duration = Duration::from_secs(5);

/// Time since the last success for which a notice that keeps failing alone says nothing about the receiver.
pub const SUCCESS_RECENT: Duration = Duration::from_secs(600);

/// Longest delay between two tries.
const RETRY_MAX: Duration = Duration::from_secs(300);

/// Longest wait that a receiver may ask for.
const BUSY_MAX: Duration = Duration::from_secs(3_600);

/// Notice of a round with its outcome.
struct EndedNotice {
    key: PairKey,
    pending: Pending,
    outcome: WaitingOutcome,
    /// Whether the machine was full before the round ended.
    is_full: bool,
}

impl Waiting {
    /// Returns notices that are to be decided; the next round follows after its outcomes.
    pub fn poll_round(&mut self, now: Time) -> Option<WaitingRound> {
        self.forget(now);
        // All notices of a full machine may wait for their next try: they are not gone through in each turn of the driver.
        if self.next_round().is_none_or(|at| at > now) {
            return None;
        }
        let is_probe = self.failures > 0;
        let keys = if is_probe { self.probes(now) } else { self.due_keys(now) };
        let notices: Vec<WaitingNotice> = keys.iter().filter_map(|key| self.take(key, is_probe)).collect();
        if notices.is_empty() {
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.round = Some((ticket, keys));
        Some(WaitingRound { ticket, notices })
    }

    /// Returns the pairs of the next round.
    fn due_keys(&self, now: Time) -> Vec<PairKey> {
        let alone_max = self.settings.alone_max.max(1);
        let mut alone = 0;
        let mut fits = |key: &PairKey| {
            let is_alone = self.tries(key) > 0;
            alone += usize::from(is_alone);
            !is_alone || alone <= alone_max
        };
        self.may_be_decided(now).filter(|&key| fits(key)).take(ROUND_MAX).cloned().collect()
    }

    /// Returns the pairs with which a failing receiver is probed: those that have failed the least, and so may be taken; few
    /// of a receiver that answers. A full machine takes those that have failed the most in every second round, so that it
    /// gets to drop some.
    fn probes(&self, now: Time) -> Vec<PairKey> {
        let most = if self.is_answering { self.settings.alone_max.max(1) } else { 1 };
        let drops_next = self.is_answering && self.is_full() && self.next_ticket.is_multiple_of(2);
        let rank = |tries: u32| if drops_next { u32::MAX - tries } else { tries };
        let mut probes: Vec<(u32, &PairKey)> =
            self.may_be_decided(now).map(|key| (rank(self.tries(key)), key)).collect();
        // Stable: of the same rank, those first that are due for the longest time.
        probes.sort_by_key(|(rank, _)| *rank);
        probes.into_iter().take(most).map(|(_, key)| key.clone()).collect()
    }

    /// Returns the pairs that may be decided, those first that are due for the longest time.
    fn may_be_decided(&self, now: Time) -> impl Iterator<Item = &PairKey> {
        let is_full = self.is_full();
        let due = self.due.iter().take_while(move |(at, _)| *at <= now || is_full);
        let due = due.filter(move |(at, key)| *at <= now || self.is_hastened(key)).map(|(_, key)| key);
        due.filter(|key| self.may_decide(key))
    }

    fn tries(&self, key: &PairKey) -> u32 {
        self.pairs.get(key).map_or(0, |pair| pair.tries)
    }

    /// Returns whether a notice does not wait for the repeat interval: pairs that wait would keep all others from being
    /// read. Those that have failed wait for their next try in any case.
    fn is_hastened(&self, key: &PairKey) -> bool {
        self.is_full() && self.tries(key) == 0
    }

    /// Returns the time of the next round; `None` if it waits for something else.
    pub(super) fn next_round(&self) -> Option<Time> {
        if self.is_paused || self.is_refused || self.round.is_some() {
            return None;
        }
        // The driver asks several times in each of its turns, so the partitions answer where they can.
        let mut deciding = self.partitions.values().filter(|it| self.decides(it)).peekable();
        deciding.peek()?;
        if self.is_full() && deciding.any(|it| it.fresh > 0) {
            return Some(self.wait_until);
        }
        let (at, _) = self.due.iter().find(|(_, key)| self.may_decide(key))?;
        Some((*at).max(self.wait_until))
    }

    fn may_decide(&self, key: &PairKey) -> bool {
        let partition = self.pairs.get(key).and_then(|pair| self.partitions.get(&pair.partition));
        partition.is_some_and(|it| self.decides(it))
    }

    fn decides(&self, it: &Partition) -> bool {
        (it.is_caught_up || self.is_full()) && !it.has_failed && !it.is_leaving
    }

    /// Moves a pending notice into the round.
    fn take(&mut self, key: &PairKey, is_probe: bool) -> Option<WaitingNotice> {
        let pair = self.pairs.get_mut(key)?;
        if self.due.remove(&(pair.listed_at, key.clone()))
            && pair.tries == 0
            && let Some(partition) = self.partitions.get_mut(&pair.partition)
        {
            partition.fresh -= 1;
        }
        let pending = pair.pending.take()?;
        let notice = WaitingNotice {
            user: key.user.clone(),
            oldest: pending.oldest.clone(),
            newest: pending.newest.clone(),
            count: pending.count,
            mentioned: pending.mentioned,
            is_alone: is_probe || pair.tries > 0,
            has_failed: pair.tries > 0,
        };
        pair.in_round = Some(pending);
        Some(notice)
    }

    /// Takes the outcomes of a round, in the order of its notices, and returns the notices that are dropped, because the
    /// receiver has not taken them for too long.
    pub fn handle_round(
        &mut self,
        ticket: u64,
        outcomes: &[WaitingOutcome],
        now: Time,
    ) -> Vec<DroppedNotice> {
        let Some((_, keys)) = self.round.take_if(|(number, _)| *number == ticket) else { return Vec::new() };
        let is_any = |wanted: fn(&WaitingOutcome) -> bool| outcomes.iter().any(wanted);
        let is_full = self.is_full();
        if is_any(|it| *it == WaitingOutcome::Noticed) {
            (self.failures, self.last_success) = (0, Some(now));
        } else if is_any(|it| matches!(it, WaitingOutcome::Failed | WaitingOutcome::Refused)) {
            self.note_failure(&keys, outcomes, now);
        }
        if is_any(|it| *it == WaitingOutcome::Undecided) {
            self.wait_until = self.wait_until.max(now + NODE_RETRY);
        }
        self.is_refused |= is_any(|it| *it == WaitingOutcome::Gone);
        let mut dropped = Vec::new();
        for (key, outcome) in keys.into_iter().zip(outcomes) {
            if let WaitingOutcome::Busy(wait) = outcome {
                self.wait_until = self.wait_until.max(now + (*wait).clamp(NODE_RETRY, BUSY_MAX));
            }
            let Some(pending) = self.pairs.get_mut(&key).and_then(|pair| pair.in_round.take()) else {
                continue;
            };
            self.held -= 1;
            let notice = DroppedNotice {
                user: key.user.clone(),
                conversation: key.conversation.clone(),
                seq: pending.newest.seq,
            };
            let ended = EndedNotice { key, pending, outcome: *outcome, is_full };
            dropped.extend(self.settle(ended, now).then_some(notice));
        }
        self.forget(now);
        dropped
    }

    /// Notes what a round without a success says about the receiver, and how long the next one waits.
    fn note_failure(&mut self, keys: &[PairKey], outcomes: &[WaitingOutcome], now: Time) {
        let has_failed = outcomes.contains(&WaitingOutcome::Failed);
        self.is_answering = !has_failed;
        // A notice that has failed alone before says nothing new, unless the receiver is silent for long.
        let is_silent = self.last_success.is_none_or(|success| now.since(success) >= SUCCESS_RECENT);
        let is_news = |(key, it): (&PairKey, &WaitingOutcome)| match it {
            WaitingOutcome::Refused => self.tries(key) < 2,
            WaitingOutcome::Failed => self.tries(key) < 2 || is_silent,
            _ => false,
        };
        let has_news = keys.iter().zip(outcomes).any(is_news);
        self.failures = self.failures.saturating_add(u32::from(has_news));
        if has_news || has_failed {
            let longest = if has_news && has_failed { RETRY_MAX } else { ANSWERED_WAIT_MAX };
            self.wait_until = now + delay(self.failures).min(longest);
        } else if self.failures > 0 {
            self.wait_until = now + NODE_RETRY;
        }
    }

    /// Ends a notice of a round, or makes it pending again. Returns whether it is dropped.
    fn settle(&mut self, ended: EndedNotice, now: Time) -> bool {
        let EndedNotice { key, pending: in_round, outcome, is_full } = ended;
        let (repeat, failing_max, last_success) =
            (self.settings.repeat, self.settings.failing_max, self.last_success);
        let Some(pair) = self.pairs.get_mut(&key) else { return false };
        let was_apart = pair.tries > 0;
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
                let is_refused = outcome == WaitingOutcome::Refused;
                let longest = if is_refused { REFUSED_MAX } else { failing_max };
                let (since, last) = pair.failing.unwrap_or((now, now));
                // Only while others succeed it says something about the notice. No other may succeed if none is read.
                let others_succeed = last_success.is_some_and(|success| success > last);
                let is_old = pair.tries >= DROP_TRIES_MIN && now.since(since) >= longest;
                is_dropped = is_old && (others_succeed || is_refused && is_full);
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
        let mut partition = self.partitions.get_mut(&pair.partition);
        match &mut pair.pending {
            _ if ends => partition.iter_mut().for_each(|it| it.let_go(in_round.first())),
            Some(later) => {
                partition.iter_mut().for_each(|it| it.let_go(later.first().max(in_round.first())));
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
            partition.iter_mut().for_each(|it| it.fresh += usize::from(pair.tries == 0));
            self.due.insert((pair.listed_at, key));
        } else {
            pair.listed_at = recent_until;
            self.recent.insert((recent_until, key));
        }
        self.apart = self.apart + usize::from(pair.tries > 0) - usize::from(was_apart);
        is_dropped
    }
}

/// Returns the delay before a try after so many failures: 1, 2, 4 … 300 s.
fn delay(failures: u32) -> Duration {
    NODE_RETRY.saturating_mul(1 << failures.saturating_sub(1).min(9)).min(RETRY_MAX)
}
