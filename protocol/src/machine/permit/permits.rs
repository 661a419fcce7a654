//! Permits of one key at one shard.

use super::PermitRule;
use crate::Time;
use std::time::Duration;

/// Time after which an ask without an answer no longer holds up requests.
pub const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);

/// Lots of permits that are kept apart; more are merged, and expire with the earlier one.
const LOTS_MAX: usize = 4;

/// Asks without an answer that are remembered; the answers of older ones are ignored.
const ASKS_MAX: usize = 4;

/// Call that the driver sends to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitAsk {
    /// Number of the ask among those of this key and shard; its answer carries it.
    pub id: u64,
    /// Permits that are wanted.
    pub want: u32,
    /// Uses that are charged.
    pub charge: u32,
}

/// Whether a request may use a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitCheck {
    /// There is a permit.
    Ready,
    /// The limit is reached; one may be granted at that time.
    Refused(Time),
    /// An ask is in flight; its answer is overdue at that time.
    Waiting(Time),
    /// An ask is needed: count the request with [`Permits::handle_waiting`], and let it wait for [`ANSWER_TIMEOUT`].
    Missing,
    /// The answer is overdue: the share decides. Count the request with [`Permits::handle_waiting`] too.
    Overdue,
}

/// Permits that can be used until the same time.
#[derive(Clone, Copy, Debug, Default)]
struct PermitLot {
    /// First time at which they can't be used.
    until: Time,
    count: u32,
}

#[derive(Clone, Copy, Debug)]
struct OpenAsk {
    id: u64,
    sent: Time,
    want: u32,
}

/// Permits that a shard holds for one key, and its asks.
///
/// Before a turn ends, the driver calls [`Self::poll_ask`] for each key that requests wait for. Requests whose wait is over
/// are to be checked before that, or they would wait for the next ask.
#[derive(Clone, Debug, Default)]
pub struct Permits {
    lots: [PermitLot; LOTS_MAX],
    asks: [Option<OpenAsk>; ASKS_MAX],
    /// Number of the newest ask.
    newest: u64,
    /// Requests that wait for the next ask.
    waiting: u32,
    refused_until: Time,
    /// Whether the last answer granted less than was wanted.
    is_short: bool,
    /// Uses of the current period of a life, and of the one before.
    recent: [u32; 2],
    period: u64,
}

impl Permits {
    /// Returns whether a request may use a permit now; counts nothing.
    pub fn check(&self, now: Time) -> PermitCheck {
        if self.held(now) > 0 {
            return PermitCheck::Ready;
        }
        if now < self.refused_until {
            return PermitCheck::Refused(self.refused_until);
        }
        match self.asks.iter().flatten().find(|ask| ask.id == self.newest) {
            Some(ask) if now < ask.sent + ANSWER_TIMEOUT => PermitCheck::Waiting(ask.sent + ANSWER_TIMEOUT),
            Some(_) => PermitCheck::Overdue,
            None => PermitCheck::Missing,
        }
    }

    /// Uses a permit, after [`Self::check`] returned [`PermitCheck::Ready`]. Returns whether there was one.
    pub fn take(&mut self, rule: &PermitRule, now: Time) -> bool {
        let usable = self.lots.iter_mut().filter(|lot| lot.count > 0 && now < lot.until);
        let Some(lot) = usable.min_by_key(|lot| lot.until) else { return false };
        lot.count -= 1;
        self.move_period(rule, now);
        self.recent[0] = self.recent[0].saturating_add(1);
        true
    }

    /// Returns the number of permits that can be used now.
    pub fn held(&self, now: Time) -> u32 {
        let usable = self.lots.iter().filter(|lot| now < lot.until);
        usable.fold(0_u32, |sum, lot| sum.saturating_add(lot.count))
    }

    /// Counts a request that waits for the next ask.
    pub fn handle_waiting(&mut self) {
        self.waiting = self.waiting.saturating_add(1);
    }

    /// Returns the next ask, `None` if no request waits or an ask is in flight. Its time of sending is `now`, so call it
    /// before the call is sent.
    ///
    /// It asks for what waits, and for 1.25 times the uses of the last life; only for them while the limit is reached.
    pub fn poll_ask(&mut self, rule: &PermitRule, charge: u32, now: Time) -> Option<PermitAsk> {
        let is_in_flight = |ask: &&OpenAsk| ask.id == self.newest && now < ask.sent + ANSWER_TIMEOUT;
        if self.waiting == 0 && charge == 0 || self.asks.iter().flatten().any(|ask| is_in_flight(&ask)) {
            return None;
        }
        let spare = self.uses_of_last_life(rule, now);
        // While the limit is reached, what one shard does not use is missed by others.
        let spare = if self.is_short { spare } else { spare.saturating_add(spare / 4) };
        let want = self.waiting.saturating_add(spare).min(rule.limit);
        self.waiting = 0;
        self.newest += 1;
        let ask = OpenAsk { id: self.newest, sent: now, want };
        let at = (self.newest % ASKS_MAX as u64) as usize;
        self.asks[at] = Some(ask);
        Some(PermitAsk { id: ask.id, want, charge })
    }

    /// Takes the answer to an ask. Returns whether it was the first one, and the ask is not forgotten.
    pub fn handle_answer(
        &mut self,
        rule: &PermitRule,
        id: u64,
        granted: u32,
        wait: Duration,
        now: Time,
    ) -> bool {
        let at = (id % ASKS_MAX as u64) as usize;
        let Some(ask) = self.asks[at].take_if(|ask| ask.id == id) else { return false };
        let until = ask.sent + rule.life();
        let granted = granted.min(ask.want);
        if granted > 0 && now < until {
            self.hold(PermitLot { until, count: granted }, now);
        }
        self.is_short = granted < ask.want;
        if self.is_short {
            self.refused_until = self.refused_until.max(now + wait);
        }
        true
    }

    /// Forgets refusals, after another server began to answer or the rule changed.
    pub fn handle_change(&mut self) {
        self.refused_until = Time::ZERO;
    }

    fn hold(&mut self, lot: PermitLot, now: Time) {
        let is_free = |held: &&mut PermitLot| held.count == 0 || now >= held.until;
        if let Some(free) = self.lots.iter_mut().find(is_free) {
            *free = lot;
        } else if let Some(latest) = self.lots.iter_mut().max_by_key(|held| held.until) {
            latest.until = latest.until.min(lot.until);
            latest.count = latest.count.saturating_add(lot.count);
        }
    }

    fn uses_of_last_life(&mut self, rule: &PermitRule, now: Time) -> u32 {
        self.move_period(rule, now);
        let life_ms = millis(rule.life());
        let left = life_ms - now.as_millis() % life_ms;
        // At most the earlier count, so it fits.
        let earlier = (u64::from(self.recent[1]) * left / life_ms) as u32;
        self.recent[0].saturating_add(earlier)
    }

    fn move_period(&mut self, rule: &PermitRule, now: Time) {
        let period = now.as_millis() / millis(rule.life());
        self.recent = match period.saturating_sub(self.period) {
            0 => self.recent,
            1 => [0, self.recent[0]],
            _ => [0, 0],
        };
        self.period = self.period.max(period);
    }
}

const _: () = assert!(size_of::<Permits>() <= 256);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
