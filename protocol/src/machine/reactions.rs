//! Reactions of a live room: sums per kind and second, and totals over all nodes.
//!
//! **Promise.** Each node counts its own reactions, and sends the numbers since it began, not the differences. A receiver
//! keeps the largest number of each node. So an exchange that is lost, doubled or out of order is only late: once a later
//! one arrives, totals are exact. At a node that stays, totals never fall, also when another one ends or starts again.
//!
//! **Error bound.** A node without contact shows totals as of the last exchange. Exchanges repeat each [`REPEAT_INTERVAL`]
//! without a change. What a run had counted before a node learned of the room is in the totals there, and in no sum: a run
//! counts as one of before if its first exchange that arrives is not the first one that it sent, and arrives within
//! [`HISTORY_SPAN`] of the first use of the room there.
//!
//! **Memory.** At most [`REACTION_KINDS_MAX`] kinds of [`REACTION_RUNS_MAX`] runs, 32 bytes each, and 48 bytes a run; a run
//! that has ended keeps no kinds. One kind more is refused. One run more replaces one that has ended, or else one without an
//! exchange for [`RUN_EXPIRY`]; without such a run it is not counted until there is one. The totals keep the numbers of runs
//! that were replaced. One of these that was only without contact, and exchanges again, is added again.

use crate::Time;
use std::{fmt, time::Duration};

/// Maximum number of kinds of a room.
pub const REACTION_KINDS_MAX: usize = 16;

/// Maximum number of other runs whose numbers are kept apart.
pub const REACTION_RUNS_MAX: usize = 128;

/// Time between two frames, and between two exchanges that have news.
pub const REACTION_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which an exchange without news is repeated.
pub const REPEAT_INTERVAL: Duration = Duration::from_secs(10);

/// Time without an exchange after which a run may be replaced by another one: three repeats.
pub const RUN_EXPIRY: Duration = Duration::from_secs(30);

/// Time from the first use of a room at a node in which runs that are new to it count as older than that.
pub const HISTORY_SPAN: Duration = Duration::from_secs(15);

/// Maximum length of the name of a kind, in bytes.
pub const REACTION_KIND_BYTES_MAX: usize = 16;

/// Name of a kind of reactions, such as `like` or an emoji: 1 to [`REACTION_KIND_BYTES_MAX`] bytes of UTF-8 without control
/// characters and white space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactionKind {
    bytes: [u8; REACTION_KIND_BYTES_MAX],
    len: u8,
}

impl ReactionKind {
    /// Creates the kind, `None` if the name is not allowed.
    pub fn new(name: &str) -> Option<Self> {
        let is_printable = |it: char| !it.is_control() && !it.is_whitespace();
        if name.is_empty() || name.len() > REACTION_KIND_BYTES_MAX || !name.chars().all(is_printable) {
            return None;
        }
        let mut bytes = [0; REACTION_KIND_BYTES_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Some(Self { bytes, len: name.len() as u8 })
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Debug for ReactionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Number of reactions of a kind that a run of a node has counted since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionCount {
    /// Kind.
    pub kind: ReactionKind,
    /// Number since the begin of the run.
    pub count: u64,
}

/// Numbers that a run sends to the other nodes of its room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReactionExchange {
    /// Numbers of all kinds of the run.
    pub counts: Vec<ReactionCount>,
    /// Whether the run sends numbers for the first time.
    pub is_first: bool,
    /// Whether the run ends with it.
    pub is_last: bool,
}

/// Reactions of a kind for the members of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReactionSum {
    /// Kind.
    pub kind: ReactionKind,
    /// Number since the last frame.
    pub sum: u64,
    /// Number since the room began, as far as it is known here.
    pub total: u64,
}

/// Reactions of one room at one node.
#[derive(Clone, Debug, Default)]
pub struct RoomReactions {
    /// Kinds of all runs, in order of their first use here.
    kinds: Vec<KindTotals>,
    own: Vec<ReactionCount>,
    runs: Vec<OtherRun>,
    /// Time of the first input that has one.
    began: Option<Time>,
    framed_at: Option<Time>,
    exchanged_at: Option<Time>,
    has_news: bool,
    repeat_spread: Duration,
}

#[derive(Clone, Copy, Debug)]
struct KindTotals {
    kind: ReactionKind,
    total: u64,
    /// Total up to which reactions are in sums, or are history.
    framed: u64,
    /// Total of the last frame.
    shown: u64,
}

#[derive(Clone, Debug)]
struct OtherRun {
    run: u64,
    /// Time of the last exchange.
    at: Time,
    is_ended: bool,
    counts: Vec<ReactionCount>,
}

impl RoomReactions {
    /// Counts a reaction of a client. Returns `false` if its kind is one too many.
    pub fn handle_reaction(&mut self, kind: ReactionKind) -> bool {
        let Some(at) = self.kind(kind) else { return false };
        self.kinds[at].total = self.kinds[at].total.saturating_add(1);
        let own = entry(&mut self.own, kind);
        own.count = own.count.saturating_add(1);
        self.has_news = true;
        true
    }

    /// Takes an exchange of another run. Returns how many of its kinds are not counted: they are too many here, or the run is.
    pub fn handle_exchange(&mut self, run: u64, exchange: &ReactionExchange, now: Time) -> usize {
        let began = *self.began.get_or_insert(now);
        let is_history = !exchange.is_first && now < began + HISTORY_SPAN && !self.has_run(run);
        let Some(at) = self.run(run, now) else { return exchange.counts.len() };
        self.runs[at].at = now;
        if self.runs[at].is_ended {
            return 0;
        }
        let mut refused = 0;
        for ReactionCount { kind, count } in &exchange.counts {
            let Some(of_kind) = self.kind(*kind) else {
                refused += 1;
                continue;
            };
            let known = entry(&mut self.runs[at].counts, *kind);
            if *count > known.count {
                let totals = &mut self.kinds[of_kind];
                totals.total = totals.total.saturating_add(count - known.count);
                if is_history {
                    totals.framed = totals.framed.saturating_add(count - known.count);
                }
                known.count = *count;
            }
        }
        if exchange.is_last {
            (self.runs[at].is_ended, self.runs[at].counts) = (true, Vec::new());
        }
        refused
    }

    /// Returns whether exchanges of the run are known.
    pub fn has_run(&self, run: u64) -> bool {
        self.runs.iter().any(|it| it.run == run)
    }

    /// Returns the number of kinds that are held of all other runs.
    pub fn entries(&self) -> usize {
        self.runs.iter().map(|it| it.counts.len()).sum()
    }

    /// Shortens the time between repeats by up to a fifth, by the own run, so that those of many rooms spread.
    pub fn spread_repeats(&mut self, run: u64) {
        self.repeat_spread = Duration::from_millis(run % (REPEAT_INTERVAL.as_millis() as u64 / 5));
    }

    /// Lets the next exchange be due as if there were news, for a node that is new to the room.
    pub fn repeat_exchange(&mut self) {
        self.has_news = true;
    }

    /// Returns the numbers to send to the other nodes of the room, `None` if it is too early or there is nothing.
    pub fn poll_exchange(&mut self, now: Time) -> Option<ReactionExchange> {
        let interval = if self.has_news {
            REACTION_INTERVAL
        } else {
            REPEAT_INTERVAL.saturating_sub(self.repeat_spread)
        };
        if self.own.is_empty() || self.exchanged_at.is_some_and(|at| now < at + interval) {
            return None;
        }
        let is_first = self.exchanged_at.replace(now).is_none();
        self.has_news = false;
        Some(ReactionExchange { counts: self.own.clone(), is_first, is_last: false })
    }

    /// Returns what to send to the members, `None` if it is too early or nothing changed.
    pub fn poll_frame(&mut self, now: Time) -> Option<Vec<ReactionSum>> {
        self.began.get_or_insert(now);
        if self.framed_at.is_some_and(|at| now < at + REACTION_INTERVAL) {
            return None;
        }
        let mut sums = Vec::new();
        for KindTotals { kind, total, framed, shown } in &mut self.kinds {
            if total > shown {
                sums.push(ReactionSum { kind: *kind, sum: *total - *framed, total: *total });
                (*framed, *shown) = (*total, *total);
            }
        }
        if sums.is_empty() {
            return None;
        }
        self.framed_at = Some(now);
        Some(sums)
    }

    /// Returns the last exchange of the own run.
    pub fn last_exchange(&self) -> ReactionExchange {
        let is_first = self.exchanged_at.is_none();
        ReactionExchange { counts: self.own.clone(), is_first, is_last: true }
    }

    /// Returns all totals, with what is in no frame yet.
    pub fn totals(&self) -> Vec<ReactionCount> {
        self.kinds.iter().map(|it| ReactionCount { kind: it.kind, count: it.total }).collect()
    }

    /// Returns the totals of the last frame, for a member that joins: its next sums follow them.
    pub fn framed_totals(&self) -> Vec<ReactionCount> {
        let of_frame = |it: &KindTotals| ReactionCount { kind: it.kind, count: it.shown };
        self.kinds.iter().filter(|it| it.shown > 0).map(of_frame).collect()
    }

    /// Returns the position of a kind, after adding it if there is space.
    fn kind(&mut self, kind: ReactionKind) -> Option<usize> {
        if let Some(at) = self.kinds.iter().position(|it| it.kind == kind) {
            return Some(at);
        }
        if self.kinds.len() >= REACTION_KINDS_MAX {
            return None;
        }
        self.kinds.push(KindTotals { kind, total: 0, framed: 0, shown: 0 });
        Some(self.kinds.len() - 1)
    }

    /// Returns the position of a run, after adding it; `None` if there is no place for it.
    fn run(&mut self, run: u64, now: Time) -> Option<usize> {
        if let Some(at) = self.runs.iter().position(|it| it.run == run) {
            return Some(at);
        }
        let new = OtherRun { run, at: now, is_ended: false, counts: Vec::new() };
        if self.runs.len() < REACTION_RUNS_MAX {
            self.runs.push(new);
            return Some(self.runs.len() - 1);
        }
        // A run that may exchange again would be added again.
        let is_over = |at: &usize| self.runs[*at].is_ended || now >= self.runs[*at].at + RUN_EXPIRY;
        let over = (0..self.runs.len()).filter(is_over);
        let first = over.min_by_key(|at| (!self.runs[*at].is_ended, self.runs[*at].at))?;
        self.runs[first] = new;
        Some(first)
    }
}

fn entry(counts: &mut Vec<ReactionCount>, kind: ReactionKind) -> &mut ReactionCount {
    let at = counts.iter().position(|it| it.kind == kind).unwrap_or_else(|| {
        counts.push(ReactionCount { kind, count: 0 });
        counts.len() - 1
    });
    &mut counts[at]
}
