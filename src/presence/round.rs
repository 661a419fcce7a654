//! One round: reads and lookups that are due, then the reports to the shards.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, ConversationKind, UserId},
    machine::presence::{PresenceReport, WATCH_MEMBERS_MAX, WatchSubject},
    pb::{self, server_frame::Body as FrameBody},
};
use tokio::{
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{PresenceWatches, connected_devices};
use crate::{
    cluster::Cluster,
    log_limit::log_limited,
    mail::{ConnKey, Mail, PresenceFrame, ShardHandle, ShardHandles},
    store::{ReadClass, StoreError},
};

/// Longest time in which a round begins to read members, and settings, and longest one of a read: a store that is slow or silent
/// delays lookups by four times as much at most.
pub(super) const READS_MAX: Duration = Duration::from_secs(2);

/// Longest time in which a round begins to look users up, and longest one of a lookup.
const LOOKUPS_MAX: Duration = Duration::from_secs(5);

/// Reports that are posted before other tasks of the node have a turn.
const REPORTS_PER_TURN: usize = 64;

/// Members of the groups that were read, `None` for one that ended or is too large.
type GroupMembersFound = BTreeMap<ConversationId, Option<Vec<UserId>>>;

/// Parts of the node that a round uses.
pub(super) struct RoundParts<'a> {
    pub(super) watches: &'a PresenceWatches,
    pub(super) cluster: &'a Cluster,
    pub(super) shards: &'a ShardHandles,
}

impl RoundParts<'_> {
    /// Carries out one round.
    pub(super) async fn run(&self) {
        let PresenceWatches { machine, metrics, .. } = self.watches;
        let began = self.watches.now();
        machine.lock().begin_round(began);
        self.read_members(Instant::now() + READS_MAX).await;
        self.read_settings(Instant::now() + READS_MAX).await;
        self.look_up(Instant::now() + LOOKUPS_MAX).await;
        self.report().await;
        let now = self.watches.now();
        let mut machine = machine.lock();
        machine.end_round(now);
        self.watches.count(&machine);
        metrics.presence_rounds.record(now.since(began));
    }

    /// Reads the members that are due, and begins no read after a time. A failure ends it: the rest is left to the next round.
    async fn read_members(&self, until: Instant) {
        while Instant::now() < until {
            let subjects = self.watches.machine.lock().poll_members();
            if subjects.is_empty() {
                return;
            }
            let answered_by = Instant::now() + READS_MAX;
            let found = match self.members_of_groups(&subjects, answered_by).await {
                Ok(found) => found,
                Err(error) => {
                    log_limited!(warn, %error, "members of watched conversations not read; presence goes on with former ones");
                    return self.watches.machine.lock().handle_members_failed(&subjects);
                }
            };
            let members = subjects.iter().map(|subject| self.members_of(subject, &found, answered_by));
            let members = join_all(members).await;
            if !self.note_members(subjects, members) {
                return;
            }
            yield_now().await;
        }
    }

    /// Notes the members of subjects, and returns whether all were read.
    fn note_members(
        &self,
        subjects: Vec<WatchSubject>,
        members: Vec<Result<Option<Vec<UserId>>, StoreError>>,
    ) -> bool {
        let mut machine = self.watches.machine.lock();
        let mut failed = Vec::new();
        for (subject, members) in subjects.into_iter().zip(members) {
            match members {
                Ok(members) => machine.handle_members(&subject, members),
                Err(_) => failed.push(subject),
            }
        }
        machine.handle_members_failed(&failed);
        failed.is_empty()
    }

    /// Returns the members of a subject, those of a group from what was read before; `None` if it is deleted or too large.
    async fn members_of(
        &self,
        subject: &WatchSubject,
        groups: &GroupMembersFound,
        until: Instant,
    ) -> Result<Option<Vec<UserId>>, StoreError> {
        match &subject.viewer {
            Some(viewer) => self.members_of_direct(viewer, &subject.conversation, until).await.map(Some),
            None => Ok(groups.get(&subject.conversation).cloned().flatten()),
        }
    }

    async fn members_of_groups(
        &self,
        subjects: &[WatchSubject],
        until: Instant,
    ) -> Result<GroupMembersFound, StoreError> {
        let store = &self.cluster.ports.store;
        let groups = subjects.iter().filter(|it| it.viewer.is_none()).map(|it| it.conversation.clone());
        let groups: Vec<ConversationId> = groups.collect();
        if groups.is_empty() {
            return Ok(GroupMembersFound::new());
        }
        let heads = in_time(until, store.heads_of(&groups)).await?;
        let members = store.group_members(&groups, WATCH_MEMBERS_MAX, ReadClass::Client);
        let members = in_time(until, members).await?;
        let listed = members.into_iter().zip(heads).map(|(members, head)| {
            // The members of a deleted group stay in it.
            let is_open = head.is_some_and(|it| it.head.deleted_seq == 0);
            members.filter(|it| is_open && it.members <= WATCH_MEMBERS_MAX as u64).map(|it| it.users)
        });
        Ok(groups.into_iter().zip(listed).collect())
    }

    /// Returns the users of a direct conversation, without the other one if it blocks the viewer.
    async fn members_of_direct(
        &self,
        viewer: &UserId,
        conversation: &ConversationId,
        until: Instant,
    ) -> Result<Vec<UserId>, StoreError> {
        let is_blocked = self.cluster.is_blocked(viewer, conversation, until).await?;
        let ConversationKind::Direct(a, b) = conversation.kind() else { return Ok(Vec::new()) };
        let users = [a, b].into_iter().filter_map(|name| UserId::new(name).ok());
        Ok(users.filter(|user| !is_blocked || user == viewer).collect())
    }

    /// Reads the settings that are due, and begins no read after a time. A failure ends it: the rest is left to the next round.
    async fn read_settings(&self, until: Instant) {
        while Instant::now() < until {
            let users = self.watches.machine.lock().poll_settings();
            if users.is_empty() {
                return;
            }
            let answered_by = Instant::now() + READS_MAX;
            let found = match in_time(answered_by, self.cluster.ports.store.settings_of(&users)).await {
                Ok(found) => found,
                Err(error) => {
                    log_limited!(warn, %error, "settings of watched users not read; presence goes on with former ones");
                    return self.watches.machine.lock().handle_settings_failed(&users);
                }
            };
            {
                let mut machine = self.watches.machine.lock();
                for (user, settings) in users.iter().zip(found) {
                    machine.handle_setting(user, settings.is_visible());
                }
            }
            yield_now().await;
        }
    }

    /// Looks up the users that are due, and begins no lookup after a time: the rest is left to the next round.
    async fn look_up(&self, until: Instant) {
        let metrics = &self.watches.metrics;
        while Instant::now() < until {
            let users = self.watches.machine.lock().poll_lookup();
            if users.is_empty() {
                return;
            }
            metrics.presence_lookups.increment(users.len() as u64);
            let (peers, me) = (&self.cluster.peers, &self.cluster.me);
            let losses = peers.losses();
            let lookup = connected_devices(&*self.cluster.ports.routes, &users);
            let found = timeout(LOOKUPS_MAX, lookup).await;
            let is_sure = !peers.may_be_incomplete() && peers.losses() == losses;
            let found = match found {
                Ok(Ok(found)) if is_sure && found.is_complete && found.has_live(me) => found,
                _ => {
                    metrics.presence_lookups_failed.increment(1);
                    return self.watches.machine.lock().handle_lookup_failed();
                }
            };
            {
                let mut machine = self.watches.machine.lock();
                for (user, devices) in users.iter().zip(found.of_users) {
                    machine.handle_lookup(user, !devices.is_empty());
                }
            }
            yield_now().await;
        }
    }

    /// Posts the reports, each encoded once for all watchers of its conversation.
    async fn report(&self) {
        let shards = self.shards.get().map(Vec::as_slice).unwrap_or_default();
        let mut full = BTreeSet::new();
        for posted in 1.. {
            let report = self.watches.machine.lock().poll_report();
            let Some(report) = report else { return };
            self.post(report, shards, &mut full);
            if posted % REPORTS_PER_TURN == 0 {
                yield_now().await;
            }
        }
    }

    /// Posts a report to the shards of its watchers, except those that had no room in this round, which are `full`.
    fn post(&self, report: PresenceReport<ConnKey>, shards: &[ShardHandle], full: &mut BTreeSet<u8>) {
        let names = |users: Vec<UserId>| users.iter().map(UserId::to_string).collect();
        let (is_complete, is_last) = (report.is_complete(), report.is_last());
        let PresenceReport { conversation, watchers, online, offline, .. } = report;
        let mut by_shard: BTreeMap<u8, Vec<ConnKey>> = BTreeMap::new();
        for watcher in watchers {
            by_shard.entry(watcher.shard).or_default().push(watcher);
        }
        by_shard.retain(|shard, watchers| {
            let is_full = full.contains(shard);
            if is_full {
                self.watches.note_no_room(watchers, &conversation, is_last);
            }
            !is_full
        });
        if by_shard.is_empty() {
            return;
        }
        let presence = pb::Presence {
            conversation: conversation.to_string(),
            online: names(online),
            offline: names(offline),
            complete: is_complete,
            ended: is_last,
        };
        let frame = pb::ServerFrame { id: 0, body: Some(FrameBody::Presence(presence)) };
        let frame = Arc::new(PushFrame::new(&frame));
        for (shard, watchers) in by_shard {
            let mail = PresenceFrame {
                conversation: conversation.clone(),
                watchers: watchers.clone(),
                frame: Arc::clone(&frame),
                is_last,
            };
            let is_posted =
                shards.get(usize::from(shard)).is_some_and(|it| it.try_post(Mail::Presence(mail)));
            if !is_posted {
                full.insert(shard);
                self.watches.note_no_room(&watchers, &conversation, is_last);
            }
        }
    }
}

/// Returns the answer of the store, unless it comes too late.
async fn in_time<T>(
    until: Instant,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = timeout_at(until, answer).await;
    answer.unwrap_or_else(|_| Err(StoreError::Unavailable("no answer in time".to_owned())))
}
