//! Number of members of a live room, over all nodes, as rarely as it is worth a frame.
//!
//! **Promise.** Frames are at least [`MEMBERS_INTERVAL`] apart, and each differs from the one before by at least 1 % and at
//! least one member. The first one waits as long, so that it has the numbers of other nodes. Exchanges with other nodes
//! follow the same rule, and are repeated each [`MEMBERS_REPEAT_INTERVAL`] while there are members, so one that is lost is
//! only late. A run that is new here gets one as soon as the last one is [`MEMBERS_INTERVAL`] old.
//!
//! **Error bound.** A frame is as of the last exchange of each other run. Without a change for [`MEMBERS_INTERVAL`], the number
//! that members know is wrong by less than 2 %, and by less than 1 % once all runs have repeated theirs. The members of a run
//! that has ended without an exchange count for at most [`MEMBERS_EXPIRY`].
//!
//! **Memory.** 24 bytes for each of at most [`MEMBERS_RUNS_MAX`] other runs. One run more replaces one that has expired; without
//! such a run its members do not count until there is one.

use crate::Time;
use std::time::Duration;

/// Least time between two frames, and between two exchanges of a change.
pub const MEMBERS_INTERVAL: Duration = Duration::from_secs(2);

/// Time after which an exchange is repeated.
pub const MEMBERS_REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time from the last exchange of a run until its members no longer count.
pub const MEMBERS_EXPIRY: Duration = Duration::from_secs(30);

/// Maximum number of other runs.
pub const MEMBERS_RUNS_MAX: usize = 128;

/// Number of members of one room at one node.
#[derive(Clone, Debug, Default)]
pub struct RoomMembers {
    own: u64,
    others: Vec<MembersOfRun>,
    /// Whether another run has appeared since the last exchange.
    has_new_run: bool,
    /// Time of the first poll with members.
    began: Option<Time>,
    /// Numbers of the last frame and of the last exchange, with their times.
    framed: Option<(u64, Time)>,
    exchanged: Option<(u64, Time)>,
    repeat_spread: Duration,
}

#[derive(Clone, Copy, Debug)]
struct MembersOfRun {
    run: u64,
    members: u64,
    at: Time,
}

impl RoomMembers {
    /// Sets the number of members at this node.
    pub fn set_own(&mut self, members: u64) {
        self.own = members;
    }

    /// Takes an exchange of another run. Returns whether it is new here.
    pub fn handle_exchange(&mut self, run: u64, members: u64, now: Time) -> bool {
        let known = self.others.iter().position(|it| it.run == run);
        if members == 0 {
            known.map(|at| self.others.swap_remove(at));
            return false;
        }
        let new = MembersOfRun { run, members, at: now };
        let expired = || self.others.iter().position(|it| now >= it.at + MEMBERS_EXPIRY);
        let is_full = self.others.len() >= MEMBERS_RUNS_MAX;
        match known.or_else(|| is_full.then(expired).flatten()) {
            Some(at) => self.others[at] = new,
            None if is_full => return false,
            None => self.others.push(new),
        }
        self.has_new_run |= known.is_none();
        known.is_none()
    }

    /// Shortens the time between repeats by up to a fifth, by the own run, so that those of many rooms spread.
    pub fn spread_repeats(&mut self, run: u64) {
        self.repeat_spread = Duration::from_millis(run % (MEMBERS_REPEAT_INTERVAL.as_millis() as u64 / 5));
    }

    /// Returns the number of all members.
    pub fn total(&self, now: Time) -> u64 {
        let live = self.others.iter().filter(|it| now < it.at + MEMBERS_EXPIRY);
        live.fold(self.own, |sum, it| sum.saturating_add(it.members))
    }

    /// Returns the number of the last frame.
    pub fn framed(&self) -> Option<u64> {
        self.framed.map(|(members, _)| members)
    }

    /// Returns the number of members for the other nodes of the room, `None` if it is too early or known there.
    pub fn poll_exchange(&mut self, now: Time) -> Option<u64> {
        let is_due = match self.exchanged {
            None => self.own > 0,
            Some((last, at)) => {
                let repeat_interval = MEMBERS_REPEAT_INTERVAL.saturating_sub(self.repeat_spread);
                let has_news = self.own > 0 && self.has_new_run || differs(self.own, last);
                now >= at + MEMBERS_INTERVAL && has_news || self.own > 0 && now >= at + repeat_interval
            }
        };
        is_due.then(|| {
            (self.exchanged, self.has_new_run) = (Some((self.own, now)), false);
            self.own
        })
    }

    /// Returns the number for the members, `None` if it is too early or close to the last one.
    pub fn poll_frame(&mut self, now: Time) -> Option<u64> {
        self.others.retain(|it| now < it.at + MEMBERS_EXPIRY);
        let total = self.total(now);
        let is_due = match self.framed {
            None => total > 0 && now >= *self.began.get_or_insert(now) + MEMBERS_INTERVAL,
            Some((last, at)) => now >= at + MEMBERS_INTERVAL && differs(total, last),
        };
        is_due.then(|| {
            self.framed = Some((total, now));
            total
        })
    }
}

/// Returns whether a number differs from the last one by at least 1 % of it, and at all.
fn differs(members: u64, last: u64) -> bool {
    members != last && members.abs_diff(last).saturating_mul(100) >= last
}
