//! What is done from time to time, and beside: interest declared and renewed, heads looked at, hints told.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use tidegate_protocol::id::ConversationId;
use tokio::time::{self, Instant};

use super::{Done, Head, Keeper, TICK};
use crate::{
    large_group::subscriber::{GENERATION, Source},
    mail::Audience,
    routes::RoutesError,
};

/// Between two renewals of interest, whose lease is three times as long, and two looks at where the groups stand.
const RENEW_EVERY: Duration = Duration::from_secs(20);

/// How long what is told and not archived is waited for.
const BARRIER_MAX: Duration = Duration::from_secs(5);

/// For so long a large group is known as such that has no member here.
const RECENT: Duration = Duration::from_secs(60);

/// Large groups without members here that are remembered; above it those of the last seconds are forgotten early.
const RECENT_MAX: usize = 10_000;

/// After so many rounds in which it was small a group is let go.
const SMALL_ROUNDS: u32 = 2;

/// Groups declared or looked at in one go.
const PAGE: usize = 500;

impl Keeper {
    /// Anything may have been missed.
    pub(super) fn gap(&mut self) {
        tracing::warn!("records of large groups were lost on their way here: members look where those stand");
        self.metrics.node_topic_gaps.increment(1);
        self.groups.values_mut().for_each(|state| state.look = true);
        // A group may have become large by what was lost.
        let here = self.directory.groups();
        self.strange.extend(here.into_iter().filter(|group| !self.groups.contains_key(group)));
    }

    pub(super) fn open_feed(&mut self) {
        let ports = Arc::clone(&self.ports);
        self.jobs.spawn(async move {
            time::sleep(TICK).await;
            Done::Feed(ports.bus.consume_node(&ports.me).await)
        });
    }

    pub(super) fn declared(&mut self, groups: Vec<ConversationId>, result: &Result<(), RoutesError>) {
        if let Err(error) = result {
            tracing::debug!(%error, "the other nodes do not know of members of large groups here yet");
        }
        for group in groups {
            let Some(state) = self.groups.get_mut(&group) else { continue };
            state.declaring = false;
            if result.is_ok() {
                self.shared.declared.insert(group);
                // What was told before the others knew passed this node by.
                state.look |= !state.declared;
            }
            state.declared = result.is_ok();
        }
    }

    pub(super) fn stand(&mut self, heads: Vec<Head>, soon: bool) {
        for Head { group, seq, is_large } in heads {
            let Some(state) = self.groups.get_mut(&group) else { continue };
            if is_large && soon {
                state.check = state.check.max(seq);
            } else if is_large {
                // What was there a round ago has had its time.
                state.check = state.check.max(state.stood);
                (state.stood, state.small) = (seq, 0);
            } else if !soon {
                // It is told by name. A record of its large days that is still on its way finds it again.
                (state.stood, state.small) = (0, state.small + 1);
                if state.small >= SMALL_ROUNDS {
                    self.groups.remove(&group);
                    self.shared.declared.remove(&group);
                }
            }
        }
    }

    pub(super) async fn tick(&mut self) {
        let owed = self.shared.owed.lock().unwrap_or_else(PoisonError::into_inner).take();
        for hint in owed {
            self.record(hint, Source::Peer).await;
        }
        for (group, state) in &mut self.groups {
            let check = std::mem::take(&mut state.check);
            if check > state.index.seen().max(state.hinted) {
                state.hinted = check;
                self.metrics.behind.increment(1);
                self.out.behind(group, check, Audience::Members);
            }
        }
        let losses = self.ports.peers.seen().losses;
        let lost = std::mem::replace(&mut self.losses, losses) != losses;
        if lost || self.renewed.elapsed() >= RENEW_EVERY {
            self.renewed = Instant::now();
            self.round(lost);
        }
        let (mut to_declare, mut to_look) = (Vec::new(), Vec::new());
        for (group, state) in &mut self.groups {
            if !state.declared && !state.declaring {
                state.declaring = true;
                to_declare.push(group.clone());
            }
            if std::mem::take(&mut state.look) {
                to_look.push(group.clone());
            }
        }
        self.declare(to_declare);
        self.look(to_look, true);
        self.look_at_strange();
    }

    /// Forgets what has no members here, and renews what has.
    fn round(&mut self, lost: bool) {
        let (directory, shared) = (&self.directory, &self.shared);
        self.groups.retain(|group, state| {
            state.index.keep(|user| !directory.user(user).is_empty());
            let here = !directory.conversation(group).is_empty();
            if !here {
                shared.declared.remove(group);
            }
            // What the others were told is gone with the routes: a look follows when they know again.
            state.declared &= !lost;
            here
        });
        // A login that came to nothing leaves none of its own behind.
        let groups = &self.groups;
        shared.declared.retain(|group| !lost && groups.contains_key(group));
        self.recent.retain(|_, heard| heard.elapsed() < RECENT);
        if self.recent.len() > RECENT_MAX {
            self.recent.clear();
        }
        let all: Vec<ConversationId> = self.groups.keys().cloned().collect();
        if !lost {
            let renew = self.groups.iter().filter(|(_, it)| it.declared).map(|(group, _)| group.clone());
            let renew = renew.collect();
            self.declare(renew);
        }
        if !self.looking && !all.is_empty() {
            self.looking = true;
            self.look(all, false);
        }
    }

    fn declare(&mut self, groups: Vec<ConversationId>) {
        for page in groups.chunks(PAGE) {
            let (ports, groups) = (Arc::clone(&self.ports), page.to_vec());
            self.jobs.spawn(async move {
                let interests: Vec<(ConversationId, u64)> =
                    groups.iter().map(|group| (group.clone(), GENERATION)).collect();
                let result = ports.routes.declare(&ports.me, &interests).await;
                Done::Declared(groups, result)
            });
        }
    }

    /// Reads where groups stand; what can't be read is looked at in the next round.
    fn look(&mut self, groups: Vec<ConversationId>, soon: bool) {
        if groups.is_empty() {
            return;
        }
        let (ports, small_max) = (Arc::clone(&self.ports), self.small_max);
        self.jobs.spawn(async move {
            // What was told and passed this node by is in the heads then; or in those of the next round.
            time::timeout(BARRIER_MAX, ports.barrier()).await.ok();
            let mut heads = Vec::with_capacity(groups.len());
            for group in groups {
                if let Ok(Some(head)) = Head::read(&*ports.store, &group, small_max).await {
                    heads.push(head);
                }
            }
            Done::Heads(heads, soon)
        });
    }
}
