//! Subscriber task: handles commands, node-topic events, job results and timer ticks, one after the other.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use prost::Message as _;
use tidegate_protocol::{
    codec::PushFrame,
    id::{ConversationId, UserId},
    pb,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, Instant, MissedTickBehavior},
};

use super::{
    Command, Groups, Login, RecordSource, Shared,
    index::{Index, Step},
    members::LocalMembers,
};
use crate::{
    bus::{NodeEvent, NodeFeed, ReadError},
    cluster::Cluster,
    delivery::{local::LocalDispatcher, trace_steps},
    directory::Directory,
    log_limit::log_limited,
    mail::{Audience, ConnKey, Delivery},
    metrics::Metrics,
    routes::RoutesError,
    store::StoreError,
};

/// Interval between checks for missed records, undeclared interest and undiscovered groups.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(1);

/// Task that owns the state of large groups on this node.
pub(super) struct SubscriberTask {
    cluster: Arc<Cluster>,
    directory: Arc<Directory>,
    shared: Arc<Shared>,
    small_max: u64,
    out: LocalDispatcher,
    metrics: Metrics,
    groups: Groups<GroupState>,
    /// Large groups that had no local member when a record of them last arrived.
    recent: Groups<Instant>,
    /// Groups with local members that may have become large in a record that this node missed.
    undiscovered: BTreeSet<ConversationId>,
    /// Group without local members whose index could not be brought up at the last tick.
    catch_up_failed: Option<ConversationId>,
    jobs: JoinSet<JobResult>,
    /// Whether the heads of all groups are being read; with a slow store that may take longer than a round.
    is_reading_heads: bool,
    renewed: Instant,
    losses: u64,
}

/// State of a large group with local members.
#[derive(Default)]
struct GroupState {
    index: Index,
    /// Whether the other nodes know that it has local members.
    declared: bool,
    declaring: bool,
    /// Whether its head in the store must be read, because records may have been missed.
    check_head: bool,
    /// Head at the last round; if the index is behind it at the next one, records were missed.
    last_head: u64,
    /// Seq up to which members get `Behind`, unless it is pushed by then. Without local members it stays until the index
    /// has the changes up to it.
    hint_to: u64,
    /// Seq up to which members got `Behind`.
    hinted_to: u64,
    /// Rounds in a row that found it small.
    small_rounds: u32,
    /// Background read of all its members; until it ends, members get only `Behind`.
    reading: Option<MembersRead>,
    /// Seq of the login that created this state while no local member was indexed. The record of a join up to it may
    /// still arrive, for other users who are connected here.
    created_as_of: u64,
    /// Connected users of such a join whose membership could not be read yet.
    late_joiners: BTreeSet<UserId>,
}

/// Result of a background job.
enum JobResult {
    Declared(Vec<ConversationId>, Result<(), RoutesError>),
    Heads(Vec<GroupHead>, bool),
    Undiscovered(Vec<(ConversationId, Option<GroupHead>)>),
    Members(ConversationId, Result<LocalMembers, StoreError>),
    Feed(Result<Box<dyn NodeFeed>, ReadError>),
}

/// Head of a group in the store.
struct GroupHead {
    group: ConversationId,
    seq: u64,
    is_large: bool,
}

/// Background read of all members of a group.
struct MembersRead {
    /// Seq up to which the index is right afterwards.
    to: u64,
    /// Users that logged in during the read.
    logged_in: Vec<UserId>,
}

/// Error: the index can't be brought up to a record now, because the store does not answer or the members are still
/// being read.
struct IndexUnavailable;

impl From<StoreError> for IndexUnavailable {
    fn from(error: StoreError) -> Self {
        tracing::debug!(%error, "failed to read large-group members; sending Behind");
        Self
    }
}

impl SubscriberTask {
    pub(super) fn new(
        cluster: Arc<Cluster>,
        directory: Arc<Directory>,
        shared: Arc<Shared>,
        small_max: u64,
        out: LocalDispatcher,
        metrics: Metrics,
    ) -> Self {
        Self {
            cluster,
            directory,
            shared,
            small_max,
            out,
            metrics,
            groups: Groups::default(),
            recent: Groups::default(),
            undiscovered: BTreeSet::new(),
            catch_up_failed: None,
            jobs: JoinSet::new(),
            is_reading_heads: false,
            renewed: Instant::now(),
            losses: 0,
        }
    }

    /// Runs until every [`GroupSubscriber`](super::GroupSubscriber) handle is dropped.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>, feed: Box<dyn NodeFeed>) {
        let mut feed = Some(feed);
        let mut tick = time::interval(MAINTENANCE_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.losses = self.cluster.peers.snapshot().losses;
        let mut is_feed_first = false;
        loop {
            // Commands and events take turns at being first, so that neither delays the other for long.
            is_feed_first = !is_feed_first;
            tokio::select! {
                biased;
                _ = tick.tick() => self.on_tick().await,
                Some(done) = self.jobs.join_next() => match done {
                    Ok(JobResult::Declared(groups, result)) => self.on_declared(groups, &result),
                    Ok(JobResult::Heads(heads, at_once)) => {
                        self.is_reading_heads &= at_once;
                        self.on_heads(heads, at_once);
                    }
                    Ok(JobResult::Undiscovered(found)) => self.adopt(found).await,
                    Ok(JobResult::Members(group, here)) => self.on_members(&group, here),
                    Ok(JobResult::Feed(Ok(opened))) => {
                        feed = Some(opened);
                        self.on_gap();
                    }
                    Ok(JobResult::Feed(Err(error))) => {
                        tracing::debug!(%error, "failed to open the node topic; retrying");
                        self.open_feed();
                    }
                    Err(error) => {
                        self.is_reading_heads = false;
                        tracing::error!(%error, "background job for large groups failed");
                    }
                },
                input = next(&mut commands, &mut feed, is_feed_first) => match input {
                    Input::Command(Some(command)) => self.handle(command).await,
                    Input::Command(None) => return,
                    Input::Event(Some(NodeEvent::Records(records))) => {
                        for record in records {
                            self.on_record(record, RecordSource::Peer).await;
                        }
                    }
                    Input::Event(Some(NodeEvent::Gap)) => self.on_gap(),
                    Input::Event(None) => {
                        feed = None;
                        self.open_feed();
                    }
                },
            }
            self.out.flush().await;
        }
    }

    async fn handle(&mut self, command: Command) {
        match command {
            Command::Record(record, from) => {
                self.shared.queued_bytes.fetch_sub(record.len(), Ordering::Relaxed);
                self.on_record(record, from).await;
            }
            Command::Login(login) => self.on_login(*login).await,
            Command::PeerPush(peer_push, applied) => {
                let (mut push, delivery) = *peer_push;
                // The link keeps no order with the group's records: a newer change must not be undone.
                let indexed_to =
                    self.groups.get(&delivery.conversation).map_or(0, |state| state.index.indexed_to());
                if push.seq <= indexed_to {
                    push.event = None;
                }
                self.out.push_from_peer(&push, delivery);
                self.out.flush().await;
                applied.send(()).ok();
            }
        }
    }

    async fn on_login(&mut self, login: Login) {
        let Login { key, user, groups, indexed } = login;
        let mut all = Vec::with_capacity(groups.len());
        for it in groups {
            let is_first = self.directory.conversation(&it.group).is_empty();
            let is_new = is_first && !self.groups.contains_key(&it.group);
            let large = it.members > self.small_max
                || self.groups.contains_key(&it.group)
                || self.recent.contains_key(&it.group);
            if large {
                let ensured = self.ensure_state(&it.group, it.as_of, 0).await;
                let mut state = self.groups.get_mut(&it.group).filter(|_| ensured.is_ok());
                if let Some(state) = state.as_deref_mut().filter(|_| is_new) {
                    state.created_as_of = it.as_of;
                }
                if !state.is_some_and(|state| state.login(&user, it.as_of)) {
                    indexed.send(false).ok();
                    return;
                }
            }
            all.push(it.group);
        }
        self.out.memberships(key, all).await;
        indexed.send(true).ok();
    }

    async fn on_record(&mut self, record: Bytes, from: RecordSource) {
        let Ok(fan_out) = pb::FanOut::decode(record) else {
            log_limited!(error, "undecodable node-topic record; skipped");
            return;
        };
        if fan_out.conversation.is_empty() {
            return self.on_gap();
        }
        let Ok(group) = ConversationId::parse(&fan_out.conversation) else { return };
        if fan_out.push.is_empty() {
            return self.schedule_hint(&group, fan_out.seq);
        }
        if self.dispatch(&group, &fan_out, from).await.is_err() {
            self.metrics.fan_outs_lost.increment(1);
            self.schedule_hint(&group, fan_out.seq);
        }
    }

    /// Schedules `Behind` for members that lack records up to `seq`, unless those are pushed soon.
    fn schedule_hint(&mut self, group: &ConversationId, seq: u64) {
        match self.groups.get_mut(group) {
            Some(state) => state.hint_to = state.hint_to.max(seq),
            None if self.directory.conversation(group).is_empty() => {}
            None => {
                self.undiscovered.insert(group.clone());
            }
        }
    }

    async fn dispatch(
        &mut self,
        group: &ConversationId,
        record: &pb::FanOut,
        from: RecordSource,
    ) -> Result<(), IndexUnavailable> {
        let event = record.change.then(|| pb::Push::decode(record.push.clone()).ok()?.event).flatten();
        let kind = event.as_ref().and_then(|event| pb::MemberChange::try_from(event.change).ok());
        let users = || event.iter().flat_map(|event| &event.users).filter_map(|id| UserId::new(id).ok());
        let is_join = matches!(kind, Some(pb::MemberChange::Created | pb::MemberChange::Joined));
        let is_local_join = is_join && users().any(|user| !self.directory.user(&user).is_empty());
        if !is_local_join && self.directory.conversation(group).is_empty() {
            if from == RecordSource::Peer {
                self.metrics.fan_outs_idle.increment(1);
            }
            self.recent.insert(group.clone(), Instant::now());
            if !self.groups.contains_key(group) {
                return Ok(());
            }
            // The index may lack the join of a connected user, whose record failed or was lost (flaw S83).
        }
        self.ensure_state(group, preceding_member_seq(record), record.seq.saturating_sub(1)).await?;
        if self.groups.get(group).is_some_and(|state| state.reading.is_some()) {
            return Err(IndexUnavailable);
        }
        // Records before the change that made the group large were pushed by name.
        let small_to = record.large_from.saturating_sub(1);
        let pushed_to =
            self.groups.get(group).map_or(u64::MAX, |state| state.index.published_to().max(small_to));
        let hole = pushed_to < record.seq.saturating_sub(1);
        let mut step = self.step(group, record);
        if let Step::CatchUp { from, to } = step {
            self.catch_up(group, from, to).await?;
            step = self.step(group, record);
        }
        if step == Step::Late && is_local_join {
            self.note_late_joiners(group, record.seq, users());
            return self.add_late_joiners(group).await;
        }
        let (Step::Push(ahead), Some(state)) = (step, self.groups.get_mut(group)) else { return Ok(()) };
        let newer = |users: &mut dyn Iterator<Item = UserId>| -> Arc<[UserId]> {
            users.filter(|user| state.index.is_newer(user, record.seq)).collect()
        };
        let moved = if record.change { newer(&mut users()) } else { Arc::default() };
        if record.change {
            state.index.set_indexed(record.seq);
        }
        let ahead: Arc<[UserId]> = ahead.into();
        self.out.remove_members(group, Arc::clone(&ahead));
        if is_join {
            self.out.add_members(group, Arc::clone(&moved));
        }
        self.out.push_to_members(self.delivery(group, record));
        if hole {
            // After the push, which the hint would otherwise replace.
            self.out.behind(group, record.seq - 1, Audience::Members);
        }
        match kind {
            Some(pb::MemberChange::Left | pb::MemberChange::Kicked) => self.out.remove_members(group, moved),
            Some(pb::MemberChange::Deleted) => self.out.retain_members(group, Arc::default()),
            _ => {}
        }
        if !ahead.is_empty() {
            // These users have read further on their new connection; their other connections may not have.
            self.out.add_members(group, Arc::clone(&ahead));
            self.out.behind(group, record.seq, Audience::Users(ahead));
        }
        Ok(())
    }

    fn step(&mut self, group: &ConversationId, record: &pb::FanOut) -> Step {
        self.groups
            .get_mut(group)
            .map_or(Step::Late, |state| state.index.record(record.seq, preceding_member_seq(record)))
    }

    fn delivery(&self, group: &ConversationId, record: &pb::FanOut) -> Delivery {
        let me = &self.cluster.me;
        let mine = record.node == me.node.as_str() && record.boot == me.boot;
        Delivery {
            conversation: group.clone(),
            seq: record.seq,
            audience: Audience::Members,
            frame: Arc::new(
                PushFrame::from_push(&record.push).traced(trace_steps::parse_trace(&record.traceparent)),
            ),
            origin: mine.then(|| ConnKey::unpack(record.conn)),
            tracked: false,
            class: 0,
        }
    }
}

/// Returns the seq up to which membership changes precede a record: neither its own nor later ones.
fn preceding_member_seq(record: &pb::FanOut) -> u64 {
    record.member_seq.min(record.seq.saturating_sub(1))
}

/// Next input of the task, except for its own ticks and jobs.
enum Input {
    /// Command; `None` once the subscriber is dropped.
    Command(Option<Command>),
    /// Event of the feed; `None` once it has ended.
    Event(Option<NodeEvent>),
}

/// Waits for a command or an event; if both wait, returns the event if `is_feed_first`.
async fn next(
    commands: &mut mpsc::Receiver<Command>,
    feed: &mut Option<Box<dyn NodeFeed>>,
    is_feed_first: bool,
) -> Input {
    if is_feed_first {
        tokio::select! {
            biased;
            event = next_event(feed) => Input::Event(event),
            command = commands.recv() => Input::Command(command),
        }
    } else {
        tokio::select! {
            biased;
            command = commands.recv() => Input::Command(command),
            event = next_event(feed) => Input::Event(event),
        }
    }
}

/// Waits for the next event of the feed; forever while the feed is closed.
async fn next_event(feed: &mut Option<Box<dyn NodeFeed>>) -> Option<NodeEvent> {
    match feed {
        Some(feed) => feed.next().await,
        None => std::future::pending().await,
    }
}

mod catch_up;
mod maintenance;
#[cfg(test)]
mod tests;
mod undiscovered;
