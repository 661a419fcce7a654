//! Reports: what has changed for watchers that are up to date, and everything for the others.

use std::collections::BTreeSet;

use super::{ConversationPresence, PresenceReport, PresenceReportKind, Subject};
use crate::{
    Time,
    id::{ConversationId, UserId},
};

impl<W> PresenceReport<W> {
    /// Returns whether the report replaces what the watchers know.
    pub fn is_complete(&self) -> bool {
        self.kind != PresenceReportKind::Changes
    }

    /// Returns whether the watches have ended.
    pub fn is_last(&self) -> bool {
        self.kind == PresenceReportKind::Last
    }

    /// Returns the report that ends watches: all users are offline, whatever the watchers knew.
    pub(super) fn last(conversation: ConversationId, watchers: Vec<W>) -> Self {
        let (online, offline) = (Vec::new(), Vec::new());
        Self { conversation, watchers, online, offline, kind: PresenceReportKind::Last }
    }
}

impl<W: Copy + Ord> ConversationPresence<W> {
    /// Returns the next report of the round, after its lookups. While lookups fail there are only last ones, of watches that
    /// have ended.
    pub fn poll_report(&mut self) -> Option<PresenceReport<W>> {
        let round = self.round.as_mut()?;
        if let Some(report) = self.ready.pop_front() {
            return Some(report);
        }
        // Without users to look up, what is known does not depend on a lookup.
        if self.is_unavailable && !self.lookups.is_empty() {
            return None;
        }
        let at = round.at;
        let reporting = round.reporting.get_or_insert_with(|| {
            let since = |number: &u64| self.subjects.get(number).map_or(at, |it| it.waits_since(at));
            let changed = std::mem::take(&mut self.changed);
            changed.into_iter().map(|number| (since(&number), number)).collect()
        });
        while let Some((_, number)) = reporting.pop_first() {
            let Some(subject) = self.subjects.get_mut(&number) else { continue };
            if subject.watchers.values().all(|it| !it.is_current && it.retry_at > at) {
                self.changed.insert(number);
                continue;
            }
            let (mut online, mut is_known) = (BTreeSet::new(), subject.is_read);
            for user in &subject.members {
                match self.users.get(user).and_then(|it| it.shown()) {
                    Some(true) => drop(online.insert(user.clone())),
                    Some(false) => {}
                    // The subject counts as changed again when the user is known.
                    None => is_known = false,
                }
            }
            let change = subject.change(&online, at);
            let complete = if is_known { subject.complete(&online, at) } else { None };
            subject.reported = online;
            if is_known && subject.watchers.values().any(|watch| !watch.is_current) {
                self.changed.insert(number);
            }
            self.ready.extend(change.into_iter().chain(complete));
            if let Some(report) = self.ready.pop_front() {
                return Some(report);
            }
        }
        None
    }
}

impl<W: Copy + Ord> Subject<W> {
    /// Returns since when the watchers that may get a report now wait for one: those that are up to date not at all, and of the
    /// others the one that has waited longest counts.
    fn waits_since(&self, now: Time) -> Time {
        let behind = self.watchers.values().filter(|watch| !watch.is_current && watch.retry_at <= now);
        behind.map(|watch| watch.waits_since).min().unwrap_or(now)
    }

    /// Returns the report of what has changed, for the watchers that are up to date.
    fn change(&mut self, online: &BTreeSet<UserId>, now: Time) -> Option<PresenceReport<W>> {
        if *online == self.reported {
            return None;
        }
        let current = self.watchers.iter_mut().filter(|(_, watch)| watch.is_current);
        let watchers: Vec<W> = current
            .map(|(watcher, watch)| {
                watch.drops = 0;
                watch.waits_since = now;
                *watcher
            })
            .collect();
        (!watchers.is_empty()).then(|| PresenceReport {
            conversation: self.subject.conversation.clone(),
            watchers,
            online: online.difference(&self.reported).cloned().collect(),
            offline: self.reported.difference(online).cloned().collect(),
            kind: PresenceReportKind::Changes,
        })
    }

    /// Returns the report of everything for the other watchers that get one now, which are up to date then.
    fn complete(&mut self, online: &BTreeSet<UserId>, now: Time) -> Option<PresenceReport<W>> {
        let behind = self.watchers.iter_mut().filter(|(_, watch)| !watch.is_current && watch.retry_at <= now);
        let watchers: Vec<W> = behind
            .map(|(watcher, watch)| {
                watch.is_current = true;
                *watcher
            })
            .collect();
        (!watchers.is_empty()).then(|| PresenceReport {
            conversation: self.subject.conversation.clone(),
            watchers,
            online: online.iter().cloned().collect(),
            offline: Vec::new(),
            kind: PresenceReportKind::Complete,
        })
    }
}
