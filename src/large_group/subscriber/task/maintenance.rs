//! Periodic work of the subscriber task: declares and renews interest, checks heads, and sends hints.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::id::ConversationId;
use tokio::time::{self, Instant};

use super::{GroupHead, JobResult, MAINTENANCE_INTERVAL, SubscriberTask};
use crate::{
    large_group::subscriber::{Groups, INTEREST_GENERATION, RecordSource},
    log_limit::log_limited,
    mail::Audience,
    routes::RoutesError,
    supervised,
};

/// Interval between rounds, which check all heads and renew interest; the lease of an interest is three times as long.
pub(super) const INTEREST_RENEW_INTERVAL: Duration = Duration::from_secs(20);

/// Longest wait for published records to be archived before heads are read.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a large group without local members is remembered as large.
const RECENT_RETENTION: Duration = Duration::from_secs(60);

/// Large groups without local members that are remembered; beyond that, all are forgotten early.
const RECENT_GROUPS_MAX: usize = 10_000;

/// Rounds in a row that must find a group small before it is dropped.
const SMALL_ROUNDS_MAX: u32 = 2;

/// Groups declared or checked in one batch.
const GROUPS_PAGE: usize = 500;

impl SubscriberTask {
    /// Handles a gap: any record may have been missed.
    pub(super) fn on_gap(&mut self) {
        log_limited!(
            warn,
            "records of large groups lost; checking the heads of all groups with local members"
        );
        self.metrics.node_topic_gaps.increment(1);
        self.groups.values_mut().for_each(|state| state.check_head = true);
        // A lost record may have made a group large.
        let here = self.directory.groups();
        self.undiscovered.extend(here.into_iter().filter(|group| !self.groups.contains_key(group)));
    }

    pub(super) fn open_feed(&mut self) {
        let cluster = Arc::clone(&self.cluster);
        supervised::spawn_in(&mut self.jobs, "a job of the subscriber", async move {
            time::sleep(MAINTENANCE_INTERVAL).await;
            JobResult::Feed(cluster.ports.bus.consume_node(&cluster.me).await)
        });
    }

    pub(super) fn on_declared(&mut self, groups: Vec<ConversationId>, result: &Result<(), RoutesError>) {
        if let Err(error) = result {
            tracing::debug!(%error, "failed to declare interest in large groups; retrying");
        }
        for group in groups {
            let Some(state) = self.groups.get_mut(&group) else { continue };
            state.declaring = false;
            if result.is_ok() {
                self.shared.declared.insert(group);
                // Records published before the interest was declared did not reach this node.
                state.check_head |= !state.declared;
            }
            state.declared = result.is_ok();
        }
    }

    pub(super) fn on_heads(&mut self, heads: Vec<GroupHead>, at_once: bool) {
        for GroupHead { group, seq, is_large } in heads {
            let Some(state) = self.groups.get_mut(&group) else { continue };
            if is_large && at_once {
                state.hint_to = state.hint_to.max(seq);
            } else if is_large {
                // Records of the round before have had time to arrive.
                state.hint_to = state.hint_to.max(state.last_head);
                (state.last_head, state.small_rounds) = (seq, 0);
            } else if !at_once {
                // A small group's pushes name their users. A late record from before it shrank tracks it again.
                (state.last_head, state.small_rounds) = (0, state.small_rounds + 1);
                if state.small_rounds >= SMALL_ROUNDS_MAX {
                    self.groups.remove(&group);
                    self.shared.declared.remove(&group);
                }
            }
        }
    }

    pub(super) async fn on_tick(&mut self) {
        let missed = self.shared.missed.lock().take_hints();
        for hint in missed {
            self.on_record(hint, RecordSource::Peer).await;
        }
        self.catch_up_without_members().await;
        for (group, state) in sorted(&mut self.groups) {
            if state.may_lack_join(group, &self.directory) {
                continue;
            }
            let hint_to = std::mem::take(&mut state.hint_to);
            if hint_to > state.index.published_to().max(state.hinted_to) {
                state.hinted_to = hint_to;
                self.metrics.behind.increment(1);
                self.out.behind(group, hint_to, Audience::Members);
            }
        }
        let late = sorted(&mut self.groups).into_iter().filter(|(_, state)| !state.late_joiners.is_empty());
        for group in late.map(|(group, _)| group.clone()).collect::<Vec<_>>() {
            // Without a reply of the store, the next tick tries again.
            self.add_late_joiners(&group).await.ok();
        }
        let losses = self.cluster.peers.snapshot().losses;
        let lost = std::mem::replace(&mut self.losses, losses) != losses;
        if lost || self.renewed.elapsed() >= INTEREST_RENEW_INTERVAL {
            self.renewed = Instant::now();
            self.start_round(lost);
        }
        let (mut to_declare, mut to_check) = (Vec::new(), Vec::new());
        for (group, state) in sorted(&mut self.groups) {
            if !state.declared && !state.declaring {
                state.declaring = true;
                to_declare.push(group.clone());
            }
            if std::mem::take(&mut state.check_head) {
                to_check.push(group.clone());
            }
        }
        self.declare(to_declare);
        self.read_heads(to_check, true);
        self.check_undiscovered();
    }

    /// Drops groups without local members, and renews the others. `lost` says that the routes have lost the
    /// declarations.
    fn start_round(&mut self, lost: bool) {
        let (directory, shared) = (&self.directory, &self.shared);
        self.groups.retain(|group, state| {
            state.index.retain_users(|user| !directory.user(user).is_empty());
            let here = !directory.conversation(group).is_empty() || state.may_lack_join(group, directory);
            if !here {
                shared.declared.remove(group);
            }
            // The declaration was lost with the routes; a head check follows once it is made again.
            state.declared &= !lost;
            here
        });
        // A failed login must leave no declaration behind.
        let groups = &self.groups;
        shared.declared.retain(|group| !lost && groups.contains_key(group));
        self.recent.retain(|_, seen_at| seen_at.elapsed() < RECENT_RETENTION);
        if self.recent.len() > RECENT_GROUPS_MAX {
            self.recent.clear();
        }
        let all: Vec<ConversationId> =
            sorted(&mut self.groups).into_iter().map(|(group, _)| group.clone()).collect();
        if !lost {
            let is_declared = |group: &&ConversationId| self.groups.get(*group).is_some_and(|it| it.declared);
            self.declare(all.iter().filter(is_declared).cloned().collect());
        }
        if !self.is_reading_heads && !all.is_empty() {
            self.is_reading_heads = true;
            self.read_heads(all, false);
        }
    }

    fn declare(&mut self, groups: Vec<ConversationId>) {
        for page in groups.chunks(GROUPS_PAGE) {
            let (cluster, groups) = (Arc::clone(&self.cluster), page.to_vec());
            supervised::spawn_in(&mut self.jobs, "a job of the subscriber", async move {
                let interests: Vec<(ConversationId, u64)> =
                    groups.iter().map(|group| (group.clone(), INTEREST_GENERATION)).collect();
                let result = cluster.ports.routes.declare(&cluster.me, &interests).await.map(drop);
                JobResult::Declared(groups, result)
            });
        }
    }

    /// Reads the heads of groups in the background; a head that can't be read is tried again in the next round.
    fn read_heads(&mut self, groups: Vec<ConversationId>, at_once: bool) {
        if groups.is_empty() {
            return;
        }
        let (cluster, small_max) = (Arc::clone(&self.cluster), self.small_max);
        supervised::spawn_in(&mut self.jobs, "a job of the subscriber", async move {
            // Published records that did not reach this node show in these heads, or in those of the next round.
            time::timeout(BARRIER_TIMEOUT, cluster.barrier()).await.ok();
            let mut heads = Vec::with_capacity(groups.len());
            for group in groups {
                if let Ok(Some(head)) = GroupHead::read(&*cluster.ports.store, &group, small_max).await {
                    heads.push(head);
                }
            }
            JobResult::Heads(heads, at_once)
        });
    }
}

/// Returns the groups in the order of their ids: that of the map differs from process to process.
fn sorted<T>(groups: &mut Groups<T>) -> Vec<(&ConversationId, &mut T)> {
    let mut sorted: Vec<_> = groups.iter_mut().collect();
    sorted.sort_unstable_by_key(|(id, _)| *id);
    sorted
}
