//! Reads of members and settings, and lookups of users: what a round still has to do, and what it has found.

use super::{
    ConversationPresence, LOOKUP_USERS_MAX, MEMBER_READS_MAX, PresenceReport, REFRESH_INTERVAL,
    ROUND_INTERVAL, WATCH_MEMBERS_MAX, Watch, WatchSubject, WatchedUser,
};
use crate::{Time, id::UserId};

impl<W: Copy + Ord> ConversationPresence<W> {
    /// Returns the next subjects whose members are to be read, at most [`MEMBER_READS_MAX`]; none if the round has read all that
    /// are due, or as many members as it may.
    pub fn poll_members(&mut self) -> Vec<WatchSubject> {
        let mut found = Vec::new();
        let Some(round) = &mut self.round else { return found };
        self.reads.poll(
            round.at,
            REFRESH_INTERVAL,
            MEMBER_READS_MAX,
            &mut round.members_left,
            |number, again| {
                let subject = self.subjects.get_mut(number)?;
                subject.watchers.values_mut().for_each(|watch| watch.is_checked = true);
                subject.read_due = again;
                found.push(subject.subject.clone());
                Some(subject.counted.max(1))
            },
        );
        found
    }

    /// Handles the members of a subject: those of a direct conversation without a user who blocks the viewer. `None` if the
    /// group is deleted or has more than [`WATCH_MEMBERS_MAX`]. Watches of users who are no members end with a last report.
    /// While the node has no room for more members, those that are new in a group are not shown.
    pub fn handle_members(&mut self, subject: &WatchSubject, members: Option<Vec<UserId>>) {
        let Some(number) = self.numbers.get(subject).copied() else { return };
        let mut members = members.unwrap_or_default();
        members.sort_unstable();
        members.dedup();
        if members.len() > WATCH_MEMBERS_MAX {
            members.clear();
        }
        self.end_watches_of_others(number, &members);
        let Some(it) = self.subjects.get_mut(&number) else { return };
        let others = self.members.saturating_sub(it.counted);
        let room = self.limits.members_max.saturating_sub(others + self.watch_count);
        let mut members = shown_members(&it.members, members, room);
        for user in &mut members {
            // One copy of an id is kept, however often it is read.
            if let Some((known, _)) = self.users.get_key_value(user) {
                user.clone_from(known);
            }
        }
        it.counted = members.len();
        self.members = others + members.len();
        it.is_read = true;
        let former = std::mem::take(&mut it.members);
        for user in former.iter().filter(|user| members.binary_search(user).is_err()) {
            self.remove_member(user, number);
        }
        for user in members.iter().filter(|user| former.binary_search(user).is_err()) {
            self.add_member(user, number);
        }
        if let Some(it) = self.subjects.get_mut(&number) {
            it.members = members;
        }
        self.changed.insert(number);
        self.drop_unwatched(number);
    }

    /// Handles that the members of these subjects could not be read: what was read before stays in force.
    pub fn handle_members_failed(&mut self, subjects: &[WatchSubject]) {
        let Some(again) = self.again() else { return };
        for subject in subjects {
            let number = self.numbers.get(subject).copied();
            if let Some(number) = number
                && let Some(it) = self.subjects.get_mut(&number)
            {
                self.reads.postpone(&mut it.read_due, again, number);
            }
        }
    }

    /// Returns the next users whose setting is to be read, at most [`LOOKUP_USERS_MAX`].
    pub fn poll_settings(&mut self) -> Vec<UserId> {
        let Some(round) = &mut self.round else { return Vec::new() };
        let left = &mut round.settings_left;
        self.settings.poll(round.at, REFRESH_INTERVAL, LOOKUP_USERS_MAX, left, |user, again| {
            self.users.get_mut(user)?.setting_due = again;
            Some(1)
        })
    }

    /// Handles whether others may see that a user is online.
    pub fn handle_setting(&mut self, user: &UserId, is_visible: bool) {
        let Some(it) = self.users.get_mut(user) else { return };
        let before = it.shown();
        it.is_visible = Some(is_visible);
        match it.lookup_due {
            None if is_visible => {
                it.lookup_due = Some(self.next_round);
                self.lookups.insert(self.next_round, user.clone());
            }
            Some(due) if !is_visible => {
                (it.lookup_due, it.is_online) = (None, None);
                self.lookups.remove(due, user.clone());
            }
            _ => {}
        }
        if it.shown() != before {
            self.changed.extend(&it.subjects);
        }
    }

    /// Handles that the settings of these users could not be read: those that were read before stay in force.
    pub fn handle_settings_failed(&mut self, users: &[UserId]) {
        let Some(again) = self.again() else { return };
        for user in users {
            if let Some(it) = self.users.get_mut(user) {
                self.settings.postpone(&mut it.setting_due, again, user.clone());
            }
        }
    }

    /// Returns the next users to look up, at most [`LOOKUP_USERS_MAX`].
    pub fn poll_lookup(&mut self) -> Vec<UserId> {
        let Some(round) = &mut self.round else { return Vec::new() };
        let left = &mut round.lookups_left;
        self.lookups.poll(round.at, ROUND_INTERVAL, LOOKUP_USERS_MAX, left, |user, again| {
            self.users.get_mut(user)?.lookup_due = Some(again);
            Some(1)
        })
    }

    /// Handles whether a user is online, by a lookup that succeeded.
    pub fn handle_lookup(&mut self, user: &UserId, is_online: bool) {
        self.is_unavailable = false;
        let Some(it) = self.users.get_mut(user).filter(|it| it.lookup_due.is_some()) else { return };
        let before = it.shown();
        it.is_online = Some(is_online);
        if it.shown() != before {
            self.changed.extend(&it.subjects);
        }
    }

    /// Handles a lookup that failed, or whose result may be incomplete: the round looks up no more, and until a later lookup
    /// succeeds nothing is reported.
    pub fn handle_lookup_failed(&mut self) {
        self.is_unavailable = true;
        if let Some(round) = &mut self.round {
            round.lookups_left = 0;
        }
    }

    /// Returns the time at which a failed read is repeated: in the next round.
    fn again(&self) -> Option<Time> {
        Some(self.round.as_ref()?.at + ROUND_INTERVAL)
    }

    /// Ends the watches of users who are not among the members, each with a last report.
    fn end_watches_of_others(&mut self, number: u64, members: &[UserId]) {
        let Some(subject) = self.subjects.get(&number) else { return };
        let is_other = |watch: &Watch| watch.is_checked && members.binary_search(&watch.user).is_err();
        let ended = subject.watchers.iter().filter(|(_, watch)| is_other(watch));
        let ended: Vec<W> = ended.map(|(watcher, _)| *watcher).collect();
        if ended.is_empty() {
            return;
        }
        self.ready.push_back(PresenceReport::last(subject.subject.conversation.clone(), ended.clone()));
        for watcher in ended {
            self.end_watch(watcher, number);
        }
    }

    fn add_member(&mut self, user: &UserId, number: u64) {
        let due = self.next_round;
        let it = self.users.entry(user.clone()).or_insert_with(|| {
            self.settings.insert(due, user.clone());
            WatchedUser { setting_due: due, ..WatchedUser::default() }
        });
        it.subjects.insert(number);
    }

    pub(super) fn remove_member(&mut self, user: &UserId, number: u64) {
        let Some(it) = self.users.get_mut(user) else { return };
        it.subjects.remove(&number);
        if it.subjects.is_empty() {
            self.settings.remove(it.setting_due, user.clone());
            if let Some(due) = it.lookup_due {
                self.lookups.remove(due, user.clone());
            }
            self.users.remove(user);
        }
    }
}

/// Returns the members of a conversation that are shown, sorted: all, or where there is no room for all those of the former ones
/// that are left, and as many others as fit.
fn shown_members(former: &[UserId], members: Vec<UserId>, room: usize) -> Vec<UserId> {
    if members.len() <= room {
        return members;
    }
    let (mut shown, new): (Vec<UserId>, Vec<UserId>) =
        members.into_iter().partition(|user| former.binary_search(user).is_ok());
    let left = room.saturating_sub(shown.len());
    shown.extend(new.into_iter().take(left));
    shown.sort_unstable();
    shown
}
