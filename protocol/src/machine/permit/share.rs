//! Shares of a limit: what a node uses while the server is unavailable, and what it charges on return.

use super::PermitRule;
use crate::{Time, machine::rate::RateLog};
use std::time::Duration;

/// Time for which the breaker must have been closed before permits are used again.
const CLOSED_MIN: Duration = Duration::from_secs(1);

/// Source of the decisions of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// Permits of the server.
    Permits,
    /// The node's share of each limit.
    Shares,
}

/// Whether a node has charged its uses of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeStep {
    /// Nothing to charge: permits decide.
    Done,
    /// Charge so many uses with the next ask; the share decides until it is answered.
    Send(u32),
    /// A charge is in flight; the share decides.
    Pending,
}

/// Returns the share of a node among those that are known, each by a hash of its name, itself included.
///
/// The shares add up to the limit: each node has the whole part, and the rest goes to the first nodes in a random order
/// that depends on the key, so that small limits are spread over the nodes. All nodes compute the same.
pub fn share_of(limit: u32, key: u64, node: u64, nodes: &[u64]) -> u32 {
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX).max(1);
    let weight = |node: u64| (mixed(key ^ mixed(node)), node);
    let before = nodes.iter().filter(|other| weight(**other) < weight(node)).count();
    limit / count + u32::from(before < (limit % count) as usize)
}

/// Returns the number after one step of splitmix64.
const fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// Source of the decisions of a node, with hysteresis: shares from the moment at which the breaker opens until it has been
/// closed for a second.
///
/// An answer that is late decides only the requests that waited for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShareSwitch {
    is_on_shares: bool,
    closed_since: Option<Time>,
    /// Rises whenever uses have to be charged.
    generation: u64,
    /// Generation since which another server answers.
    server_generation: u64,
}

impl ShareSwitch {
    /// Takes the state of the breaker; call it after each change.
    pub fn handle_breaker(&mut self, is_open: bool, now: Time) {
        if is_open {
            self.is_on_shares = true;
            self.closed_since = None;
        } else if self.is_on_shares {
            self.closed_since = self.closed_since.or(Some(now));
        }
    }

    /// Takes notice of another server that answers: what it knows of this node's permits is uncertain, so all uses have to
    /// be charged.
    pub fn handle_server_change(&mut self) {
        self.generation += 1;
        self.server_generation = self.generation;
    }

    /// Returns when to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        self.closed_since.map(|since| since + CLOSED_MIN)
    }

    /// Returns to permits if the breaker has been closed for long enough.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.closed_since = None;
            self.is_on_shares = false;
            self.generation += 1;
        }
    }

    /// Returns the source of decisions; each key stays on its share until its charge is [`ChargeStep::Done`].
    pub const fn source(&self) -> LimitSource {
        if self.is_on_shares { LimitSource::Shares } else { LimitSource::Permits }
    }

    /// Returns the generation, for [`KeyUses`].
    pub const fn generation(&self) -> u64 {
        self.generation
    }
}

/// A node's own uses of one key, by permit and by share.
#[derive(Clone, Debug)]
pub struct KeyUses {
    log: RateLog,
    /// Uses by share that are not charged; on the heap, because most keys have none.
    by_share: Option<Box<RateLog>>,
    /// Generation up to which uses are charged.
    charged: u64,
    charging: Option<Charging>,
}

/// Charge in flight.
#[derive(Clone, Copy, Debug)]
struct Charging {
    generation: u64,
    /// Uses by share after the charge was sent.
    later: u32,
}

const _: () = assert!(size_of::<KeyUses>() <= 96);

impl KeyUses {
    /// Creates the uses of a key that is used for the first time in this generation.
    pub fn new(generation: u64) -> Self {
        Self { log: RateLog::default(), by_share: None, charged: generation, charging: None }
    }

    /// Counts uses by permit. Once a turn is enough.
    pub fn handle_permits(&mut self, rule: &PermitRule, count: u32, now: Time) {
        self.log.commit_many(&rule.node_limit(rule.limit), count, now);
    }

    /// Returns whether a request may be admitted by share; counts nothing.
    ///
    /// # Errors
    /// The share is used up; the error is the earliest time at which a use is free.
    pub fn check_share(&mut self, rule: &PermitRule, share: u32, now: Time) -> Result<(), Time> {
        if share == 0 {
            return Err(now + rule.window());
        }
        self.log.check(&rule.node_limit(share), now)
    }

    /// Counts a use by share at once: other shards of the node must see it.
    pub fn commit_share(&mut self, rule: &PermitRule, share: u32, now: Time) {
        let limit = rule.node_limit(share);
        self.log.commit(&limit, now);
        self.by_share.get_or_insert_default().commit(&limit, now);
        if let Some(charging) = &mut self.charging {
            charging.later = charging.later.saturating_add(1);
        }
    }

    /// Returns the node's uses of the last window.
    pub fn used(&mut self, rule: &PermitRule, now: Time) -> u32 {
        self.log.used(&rule.node_limit(rule.limit), now)
    }

    /// Returns the uses by share of the last window that are not charged.
    pub fn used_by_share(&mut self, rule: &PermitRule, now: Time) -> u32 {
        let Some(log) = &mut self.by_share else { return 0 };
        let used = log.used(&rule.node_limit(rule.limit), now);
        if used == 0 {
            self.by_share = None;
        }
        used
    }

    /// Returns whether permits decide: the key has nothing to charge, or it is charged. Otherwise the share decides.
    pub fn is_charged(&mut self, rule: &PermitRule, switch: &ShareSwitch, now: Time) -> bool {
        self.uncharged(rule, switch, now) == 0
    }

    /// Returns the uses to charge: of the same server only those by share, because it has counted the permits.
    fn uncharged(&mut self, rule: &PermitRule, switch: &ShareSwitch, now: Time) -> u32 {
        if self.charged >= switch.generation() {
            return 0;
        }
        let uses = if self.charged < switch.server_generation {
            self.used(rule, now)
        } else {
            self.used_by_share(rule, now)
        };
        if uses == 0 {
            self.charged = switch.generation();
        }
        uses
    }

    /// Returns whether the key has to be charged first. A caller that sends the charge with its next ask calls
    /// [`Self::handle_charge_sent`], and [`Self::handle_charged`] or [`Self::handle_charge_lost`] when that call has ended.
    pub fn poll_charge(&mut self, rule: &PermitRule, switch: &ShareSwitch, now: Time) -> ChargeStep {
        match self.uncharged(rule, switch, now) {
            0 => ChargeStep::Done,
            _ if self.charging.is_some() => ChargeStep::Pending,
            uses => ChargeStep::Send(uses),
        }
    }

    /// Takes notice that the charge of a generation is being sent.
    pub fn handle_charge_sent(&mut self, generation: u64) {
        self.charging = Some(Charging { generation, later: 0 });
    }

    /// Takes the answer to the charge in flight. Uses by share since it was sent are charged after the next return.
    pub fn handle_charged(&mut self, rule: &PermitRule, now: Time) {
        let Some(charging) = self.charging.take() else { return };
        self.charged = self.charged.max(charging.generation);
        self.by_share = (charging.later > 0).then(|| {
            let mut log = Box::<RateLog>::default();
            log.commit_many(&rule.node_limit(rule.limit), charging.later, now);
            log
        });
    }

    /// Takes notice that the call of the charge in flight has ended without an answer, so it is sent again.
    pub fn handle_charge_lost(&mut self) {
        self.charging = None;
    }
}
