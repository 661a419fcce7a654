//! Presence of conversations for those who watch them: what to read, whom to look up, and what to report (SPEC section 7).
//!
//! A driver runs rounds, one at a time: [`ConversationPresence::begin_round`], then reads of members and of settings and
//! lookups until each `poll_*` returns nothing, then reports, then [`ConversationPresence::end_round`]. The next round begins
//! [`ROUND_INTERVAL`] later, so no watcher gets two reports of a conversation within that. A read or lookup that fails changes
//! nothing, and is repeated in the next round.
//!
//! **Bounds.** Watches by [`CONNECTION_WATCHES_MAX`] and [`PresenceLimits`]. A round reads members, reads settings and looks up
//! users, of each kind at most [`PresenceLimits::users_per_round`]; what has waited longest comes first, so that more users
//! make a round of all of them longer, and no user waits for ever. What a round costs otherwise grows with what has changed.
//! Reports are in the order in which their watchers have waited: where there is room for some of them alone, the others are first in
//! the next round.
//!
//! **Memory.** About 480 bytes for each of [`PresenceLimits::members_max`] where all are different users with ids of 22 bytes, as
//! measured; less where users are members of several watched conversations.

mod due;
mod limits;
mod members;
mod reports;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use self::due::DueQueue;
pub use self::limits::{PresenceLimits, WatchRefusal};
use crate::{
    Time,
    id::{ConversationId, ConversationKind, UserId},
};

/// Most members of a conversation that can be watched.
pub const WATCH_MEMBERS_MAX: usize = 500;

/// Most watches of one connection.
pub const CONNECTION_WATCHES_MAX: usize = 32;

/// Most users of one read of settings, and of one lookup.
pub const LOOKUP_USERS_MAX: usize = 1_000;

/// Most conversations whose members are read at once.
pub const MEMBER_READS_MAX: usize = 20;

/// Time from the end of a round to the next one.
pub const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// Age at which members and settings are read again. With the round that does it, a change is seen within 10 s.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(8);

/// Most dropped reports in a row that make the pause before the next one longer: then it is 16 s.
const DROPS_MAX: u8 = 5;

/// What is watched: a group, or a direct conversation as one of its two users sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchSubject {
    /// Conversation.
    pub conversation: ConversationId,
    /// User who watches a direct conversation, which does not show one who blocks that user; `None` for a group.
    pub viewer: Option<UserId>,
}

impl WatchSubject {
    /// Returns what a member of the conversation watches.
    pub fn new(conversation: ConversationId, user: &UserId) -> Self {
        let is_direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        Self { conversation, viewer: is_direct.then(|| user.clone()) }
    }
}

/// Report of a conversation to some of its watchers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceReport<W> {
    /// Conversation.
    pub conversation: ConversationId,
    /// Watchers that get the report.
    pub watchers: Vec<W>,
    /// Members that are online and were not in the last report; if it is complete, all that are online.
    pub online: Vec<UserId>,
    /// Members of the last report that are not online any more.
    pub offline: Vec<UserId>,
    /// What it is for its watchers.
    pub kind: PresenceReportKind,
}

/// What a report is for its watchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PresenceReportKind {
    /// It has what changed since their last report.
    Changes,
    /// The report replaces what they know.
    Complete,
    /// Their watches have ended, because their users are no members or the group is too large. It is complete and empty.
    Last,
}

/// Watches of the connections of a node, each named by a `W`.
#[derive(Debug)]
pub struct ConversationPresence<W> {
    limits: PresenceLimits,
    /// Numbers of the watched subjects.
    numbers: BTreeMap<WatchSubject, u64>,
    subjects: BTreeMap<u64, Subject<W>>,
    next_number: u64,
    /// Subjects that each connection watches.
    watches: BTreeMap<W, Vec<u64>>,
    watch_count: usize,
    /// Number of watches of each user.
    of_users: BTreeMap<UserId, usize>,
    users: BTreeMap<UserId, WatchedUser>,
    /// Members of all subjects, those of a subject that was not read yet as they were when its watch began.
    members: usize,
    reads: DueQueue<u64>,
    settings: DueQueue<UserId>,
    lookups: DueQueue<UserId>,
    /// Subjects with a watcher to which something may have to be reported.
    changed: BTreeSet<u64>,
    /// Reports that come first: those of watches that have ended, and the second one of a subject.
    ready: VecDeque<PresenceReport<W>>,
    /// Last reports that were dropped, for the next round.
    dropped: VecDeque<PresenceReport<W>>,
    /// Whether the last lookup failed: until one succeeds nothing is reported.
    is_unavailable: bool,
    round: Option<Round>,
    next_round: Time,
}

/// Budgets of a round.
#[derive(Debug)]
struct Round {
    at: Time,
    members_left: usize,
    settings_left: usize,
    lookups_left: usize,
    /// Subjects that the round reports on, each with the time since when its watchers wait; `None` until its first report. What
    /// changes later is left to the next round.
    reporting: Option<BTreeSet<(Time, u64)>>,
}

#[derive(Debug)]
struct Subject<W> {
    subject: WatchSubject,
    watchers: BTreeMap<W, Watch>,
    /// Members, sorted. In a direct conversation without a user who blocks the viewer.
    members: Vec<UserId>,
    /// Number of members that count against the limit.
    counted: usize,
    /// Whether the members were read.
    is_read: bool,
    /// What watchers that are up to date know.
    reported: BTreeSet<UserId>,
    read_due: Time,
}

#[derive(Debug)]
struct Watch {
    user: UserId,
    /// Whether the watcher got every report since a complete one.
    is_current: bool,
    /// Whether the watch is older than the last read of members: an older read may lack a user who has just joined.
    is_checked: bool,
    /// Number of complete reports in a row that did not reach the watcher, at most [`DROPS_MAX`].
    drops: u8,
    /// Time before which no complete report is tried.
    retry_at: Time,
    /// Time from which on the watcher counts as waiting, when it lacks a report.
    waits_since: Time,
}

/// Member of watched subjects.
#[derive(Debug, Default)]
struct WatchedUser {
    subjects: BTreeSet<u64>,
    /// Whether others may see that the user is online; `None` until it is read.
    is_visible: Option<bool>,
    /// Whether the user is online; `None` until it is looked up.
    is_online: Option<bool>,
    setting_due: Time,
    /// Time of the next lookup, of a visible user.
    lookup_due: Option<Time>,
}

impl WatchedUser {
    /// Returns whether watchers see the user as online; `None` while that is not known.
    fn shown(&self) -> Option<bool> {
        match self.is_visible {
            Some(true) => self.is_online,
            Some(false) => Some(false),
            None => None,
        }
    }
}

impl<W: Copy + Ord> ConversationPresence<W> {
    /// Creates the state of a node without watches.
    pub fn new(limits: PresenceLimits) -> Self {
        Self {
            limits,
            numbers: BTreeMap::new(),
            subjects: BTreeMap::new(),
            next_number: 0,
            watches: BTreeMap::new(),
            watch_count: 0,
            of_users: BTreeMap::new(),
            users: BTreeMap::new(),
            members: 0,
            reads: DueQueue::default(),
            settings: DueQueue::default(),
            lookups: DueQueue::default(),
            changed: BTreeSet::new(),
            ready: VecDeque::new(),
            dropped: VecDeque::new(),
            is_unavailable: false,
            round: None,
            next_round: Time::ZERO,
        }
    }

    /// Returns the number of watches.
    pub fn watches(&self) -> usize {
        self.watch_count
    }

    /// Returns whether the connection watches the conversation.
    pub fn has_watch(&self, watcher: W, conversation: &ConversationId) -> bool {
        self.number_of(watcher, conversation).is_some()
    }

    /// Returns the number of watched conversations; a direct one counts for each user who watches it.
    pub fn watched(&self) -> usize {
        self.subjects.len()
    }

    /// Returns the number of distinct members of all watched conversations, as far as they were read.
    pub fn users(&self) -> usize {
        self.users.len()
    }

    /// Begins a watch of the connection `watcher` of `user`, who is one of the `members` members. A watch that exists gets a
    /// complete report again.
    ///
    /// # Errors
    /// A limit is reached; nothing changed.
    pub fn watch(
        &mut self,
        watcher: W,
        user: &UserId,
        subject: WatchSubject,
        members: usize,
    ) -> Result<(), WatchRefusal> {
        if members > WATCH_MEMBERS_MAX {
            return Err(WatchRefusal::GroupTooLarge);
        }
        if let Some(refusal) = self.limits.refusal_of(&subject.conversation) {
            return Err(refusal);
        }
        let (existing, conversation) = (self.numbers.get(&subject).copied(), subject.conversation.clone());
        let of_connection = self.watches.get(&watcher);
        let is_watched = existing.is_some_and(|number| of_connection.is_some_and(|it| it.contains(&number)));
        if !is_watched {
            self.check_limits(watcher, user, existing.is_none().then_some(members))?;
        }
        let number = match existing {
            Some(number) => number,
            None => self.add_subject(subject, members),
        };
        if !is_watched {
            self.watches.entry(watcher).or_default().push(number);
            self.watch_count += 1;
            *self.of_users.entry(user.clone()).or_default() += 1;
        }
        if let Some(subject) = self.subjects.get_mut(&number) {
            let (user, retry_at, waits_since) = (user.clone(), Time::ZERO, self.next_round);
            let watch = Watch { user, is_current: false, is_checked: false, drops: 0, retry_at, waits_since };
            subject.watchers.insert(watcher, watch);
        }
        self.changed.insert(number);
        // An earlier watch that has ended has nothing to report any more.
        self.drop_ready(watcher, |it| *it == conversation);
        Ok(())
    }

    /// Ends the watch of a conversation, if there is one.
    pub fn unwatch(&mut self, watcher: W, conversation: &ConversationId) {
        self.drop_ready(watcher, |it| it == conversation);
        if let Some(number) = self.number_of(watcher, conversation) {
            self.end_watch(watcher, number);
            self.drop_unwatched(number);
        }
    }

    /// Ends all watches of a connection that is closed.
    pub fn forget(&mut self, watcher: W) {
        self.drop_ready(watcher, |_| true);
        for number in self.watches.get(&watcher).cloned().unwrap_or_default() {
            self.end_watch(watcher, number);
            self.drop_unwatched(number);
        }
    }

    /// Handles that a report did not reach its watcher: the next one is complete. It comes in the next round, and later each time
    /// that it does not reach the watcher either.
    pub fn handle_dropped(&mut self, watcher: W, conversation: &ConversationId) {
        let next_round = self.next_round;
        if let Some(watch) = self.fall_behind(watcher, conversation) {
            watch.drops = (watch.drops + 1).min(DROPS_MAX);
            watch.retry_at = next_round + ROUND_INTERVAL * ((1 << watch.drops) / 2 - 1);
            // It had its turn: many that take nothing must not be first for ever.
            watch.waits_since = next_round;
        }
    }

    /// Handles that there was no room for a report on the way to its watcher, which has not refused it: the next round tries a
    /// complete one, before those of watchers that have waited for less time.
    pub fn handle_no_room(&mut self, watcher: W, conversation: &ConversationId) {
        self.fall_behind(watcher, conversation);
    }

    /// Handles that a last report did not reach its watcher: it is repeated in the next round.
    pub fn handle_last_dropped(&mut self, watcher: W, conversation: &ConversationId) {
        if !self.has_watch(watcher, conversation) {
            self.dropped.push_back(PresenceReport::last(conversation.clone(), vec![watcher]));
        }
    }

    /// Returns when the next round begins; `None` while nothing is watched.
    pub fn poll_timeout(&self) -> Option<Time> {
        let is_idle = self.subjects.is_empty() && self.ready.is_empty() && self.dropped.is_empty();
        (!is_idle).then_some(self.next_round)
    }

    /// Begins a round.
    pub fn begin_round(&mut self, now: Time) {
        let left = self.limits.users_per_round;
        let mut dropped: BTreeMap<ConversationId, Vec<W>> = BTreeMap::new();
        for report in self.dropped.drain(..) {
            dropped.entry(report.conversation).or_default().extend(report.watchers);
        }
        let again =
            dropped.into_iter().map(|(conversation, watchers)| PresenceReport::last(conversation, watchers));
        self.ready.extend(again);
        self.round = Some(Round {
            at: now,
            members_left: left,
            settings_left: left,
            lookups_left: left,
            reporting: None,
        });
    }

    /// Ends the round; the next one begins [`ROUND_INTERVAL`] later.
    pub fn end_round(&mut self, now: Time) {
        self.round = None;
        self.next_round = now + ROUND_INTERVAL;
    }

    /// Checks whether another watch may begin, of a conversation that is watched or of a new one with this many members.
    fn check_limits(
        &self,
        watcher: W,
        user: &UserId,
        new_members: Option<usize>,
    ) -> Result<(), WatchRefusal> {
        let limits = &self.limits;
        if self.watches.get(&watcher).is_some_and(|it| it.len() >= CONNECTION_WATCHES_MAX) {
            return Err(WatchRefusal::ConnectionFull);
        }
        if self.of_users.get(user).is_some_and(|it| *it >= limits.user_watches_max) {
            return Err(WatchRefusal::UserFull);
        }
        let is_full = new_members.is_some() && self.subjects.len() >= limits.watched_max;
        let needed = new_members.unwrap_or_default() + 1;
        if is_full || self.members + self.watch_count + needed > limits.members_max {
            return Err(WatchRefusal::NodeFull);
        }
        Ok(())
    }

    fn add_subject(&mut self, subject: WatchSubject, members: usize) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.members += members;
        self.numbers.insert(subject.clone(), number);
        // Not before what is overdue: who begins watches again and again delays no other ones.
        let due = self.next_round;
        self.reads.insert(due, number);
        let new = Subject {
            subject,
            watchers: BTreeMap::new(),
            members: Vec::new(),
            counted: members,
            is_read: false,
            reported: BTreeSet::new(),
            read_due: due,
        };
        self.subjects.insert(number, new);
        number
    }

    /// Returns the subject of the conversation that the connection watches.
    fn number_of(&self, watcher: W, conversation: &ConversationId) -> Option<u64> {
        let is_of = |number: &&u64| {
            self.subjects.get(*number).is_some_and(|it| it.subject.conversation == *conversation)
        };
        self.watches.get(&watcher)?.iter().find(is_of).copied()
    }

    /// Returns a watch that lacks a report: its next one is complete.
    fn fall_behind(&mut self, watcher: W, conversation: &ConversationId) -> Option<&mut Watch> {
        let number = self.number_of(watcher, conversation)?;
        let watch = self.subjects.get_mut(&number)?.watchers.get_mut(&watcher)?;
        watch.is_current = false;
        self.changed.insert(number);
        Some(watch)
    }

    fn end_watch(&mut self, watcher: W, number: u64) {
        let watchers = self.subjects.get_mut(&number).map(|it| &mut it.watchers);
        let Some(watch) = watchers.and_then(|it| it.remove(&watcher)) else { return };
        self.watch_count = self.watch_count.saturating_sub(1);
        if let Some(of_user) = self.of_users.get_mut(&watch.user) {
            *of_user = of_user.saturating_sub(1);
            if *of_user == 0 {
                self.of_users.remove(&watch.user);
            }
        }
        if let Some(of_connection) = self.watches.get_mut(&watcher) {
            of_connection.retain(|other| *other != number);
            if of_connection.is_empty() {
                self.watches.remove(&watcher);
            }
        }
    }

    /// Removes a subject without watchers, with those of its members that no other subject has.
    fn drop_unwatched(&mut self, number: u64) {
        if self.subjects.get(&number).is_none_or(|it| !it.watchers.is_empty()) {
            return;
        }
        let Some(subject) = self.subjects.remove(&number) else { return };
        self.numbers.remove(&subject.subject);
        self.reads.remove(subject.read_due, number);
        self.changed.remove(&number);
        self.members = self.members.saturating_sub(subject.counted);
        for user in subject.members {
            self.remove_member(&user, number);
        }
    }

    /// Removes the reports of these conversations for one watcher that wait.
    fn drop_ready(&mut self, watcher: W, is_of: impl Fn(&ConversationId) -> bool) {
        for reports in [&mut self.ready, &mut self.dropped] {
            for report in reports.iter_mut().filter(|it| is_of(&it.conversation)) {
                report.watchers.retain(|other| *other != watcher);
            }
            reports.retain(|it| !it.watchers.is_empty());
        }
    }
}
