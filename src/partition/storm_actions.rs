//! Actions of an owner about the storms of its groups: notices, the durable entry of each storm in force, slow mode and
//! posts by admins only.
//!
//! Each second the task compares the storms of the owner's table with what it has done, so a step that fails is tried
//! again. An entry ends by itself unless it is renewed. A next owner continues the storms that have an entry, and undoes
//! restrictions that no storm in force explains, so a crash between any two steps leaves nothing behind.

mod entry;
mod marker;
mod recipients;
mod restriction;
mod retries;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tidegate_protocol::{
    id::{ConversationId, UserId},
    machine::storm::{StormAction, StormInForce},
    pb,
};
use tokio::time::{Instant, sleep, timeout};

use self::{marker::Restriction, recipients::recipients, retries::StepRetries};
use crate::{
    bus::partition_of,
    cluster::Cluster,
    delivery::notices::NoticeSender,
    ingest::admin::Admin,
    log_limit::log_limited,
    metrics::Metrics,
    store::{Fence, InvalidGuard, StoreError},
    storms::{ActiveStorm, StormEntry, StormTable},
};

/// Interval at which storms are compared with what was done about them.
const PASS_INTERVAL: Duration = Duration::from_secs(1);

/// Shortest time for which an entry is in force after its renewal; two windows if they are longer.
const ENTRY_MIN: Duration = Duration::from_secs(10);

/// Part of that time after which an entry is renewed.
const RENEW_PART: u32 = 4;

/// Ended storms that are remembered, so that a late entry does not bring one back.
const ENDED_MAX: usize = 1_024;

/// Time for one read of the entries at a take-over, and attempts.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
const READ_ATTEMPTS: u32 = 5;

/// Ways of an owner to act on storms.
pub struct StormPorts {
    /// Changes of group settings.
    pub admin: Admin,
    /// Notices to members and admins.
    pub notices: NoticeSender,
}

/// Step that failed, and is tried again.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Entry(#[from] InvalidGuard),
    #[error("settings not changed: {0}")]
    Settings(&'static str),
    #[error("another entry of the storm was stored")]
    Changed,
    #[error("the archive lags")]
    ArchiveLag,
    #[error("the log can't be reached")]
    Log,
}

impl StepError {
    /// Returns whether the partition has another owner, so that this one must not act any more.
    fn is_fenced(&self) -> bool {
        matches!(self, Self::Store(StoreError::Fenced))
    }
}

/// Partition of an owner, with the settings that concern its groups.
#[derive(Clone, Copy)]
pub(super) struct StormScope {
    pub(super) partition: u32,
    pub(super) fence: Fence,
    /// Most members of a group whose members are all notified.
    pub(super) small_group_max: usize,
    pub(super) wall_ms: fn() -> u64,
}

/// Task of one owner that acts on the storms of its table.
pub(super) struct StormActor {
    scope: StormScope,
    cluster: Arc<Cluster>,
    table: Arc<StormTable>,
    ports: Arc<StormPorts>,
    metrics: Metrics,
    acting: BTreeMap<ConversationId, Acting>,
    ended: VecDeque<(ConversationId, u64)>,
    swept_at: Option<Instant>,
    /// Whether the archive was found to lag in this pass, so that no further step waits for it.
    archive_lags: bool,
    retries: StepRetries,
}

/// Storm that was begun, with what was done about it.
#[derive(Clone)]
struct Acting {
    storm: StormInForce,
    count: u32,
    action: Option<StormAction>,
    exempt: Vec<UserId>,
    /// Times that an operator replaced the action.
    changes: u32,
    /// Version of its entry, as this owner wrote it last or found it; 0 if there is none.
    version: u64,
    renew_at: Instant,
    is_restricted: bool,
    is_over_notified: bool,
}

/// Reads the entries about storms, so that those of a former owner are known; gives up after some attempts.
pub(super) async fn read_entries(cluster: &Cluster) {
    for _ in 0..READ_ATTEMPTS {
        match timeout(READ_TIMEOUT, cluster.read_guard()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => log_limited!(warn, %error, "entries of storms not read; retrying"),
            Err(_) => log_limited!(warn, "entries of storms not read in time; retrying"),
        }
        sleep(PASS_INTERVAL).await;
    }
    log_limited!(warn, "entries of storms not read; a storm in force may be reported again");
}

impl StormActor {
    pub(super) fn new(
        scope: StormScope,
        cluster: Arc<Cluster>,
        table: Arc<StormTable>,
        ports: Arc<StormPorts>,
        metrics: Metrics,
    ) -> Self {
        let (acting, ended, retries) = (BTreeMap::new(), VecDeque::new(), StepRetries::default());
        let (swept_at, archive_lags) = (None, false);
        Self { scope, cluster, table, ports, metrics, acting, ended, swept_at, archive_lags, retries }
    }

    /// Acts on storms until it is dropped, or the partition has another owner.
    pub(super) async fn run(mut self) {
        read_entries(&self.cluster).await;
        loop {
            if let Err(error) = self.pass().await {
                if error.is_fenced() {
                    return;
                }
                self.metrics.storm_steps_failed.increment(1);
                log_limited!(warn, %error, partition = self.scope.partition, "action on a storm failed; retrying");
            }
            tokio::select! {
                // Fixed order, so that a simulation seed reproduces a run.
                biased;
                () = self.table.changed() => {}
                () = sleep(PASS_INTERVAL) => {}
            }
        }
    }

    /// Does what is due. Groups whose steps fail wait before they are tried again, so that one which always fails does not
    /// keep the others waiting.
    ///
    /// # Errors
    /// So many steps failed that further ones would probably fail, too.
    async fn pass(&mut self) -> Result<(), StepError> {
        self.adopt();
        self.archive_lags = false;
        let active = self.table.active().into_iter();
        let active: BTreeMap<ConversationId, ActiveStorm> = active.map(|it| (it.group.clone(), it)).collect();
        let acting = &self.acting;
        self.retries.begin_pass(|group| active.contains_key(group) || acting.contains_key(group));
        let seq_of = |group: &ConversationId| active.get(group).map(|it| it.storm.seq);
        let over = acting.iter().filter(|(group, it)| seq_of(group) != Some(it.storm.seq));
        let over: Vec<ConversationId> = over.map(|(group, _)| group.clone()).collect();
        for group in over.into_iter().filter(|group| self.retries.is_due(group)).collect::<Vec<_>>() {
            let done = self.end(&group).await;
            self.note(&group, done)?;
        }
        for (group, storm) in active {
            // A former storm of the group ends first.
            let is_next = self.acting.get(&group).is_none_or(|it| it.storm.seq == storm.storm.seq);
            if is_next && self.retries.is_due(&group) {
                let done = self.continue_storm(storm).await;
                self.note(&group, done)?;
            }
        }
        self.lift_left_over().await
    }

    /// Counts and logs a failure of the steps for a group.
    ///
    /// # Errors
    /// The pass ends.
    fn note(&mut self, group: &ConversationId, done: Result<(), StepError>) -> Result<(), StepError> {
        if let Some((error, pause)) = self.retries.note(group, done)? {
            self.metrics.storm_steps_failed.increment(1);
            log_limited!(warn, %error, %group, ?pause, "action on a storm failed; retrying");
        }
        Ok(())
    }

    async fn continue_storm(&mut self, storm: ActiveStorm) -> Result<(), StepError> {
        if !self.acting.contains_key(&storm.group) {
            self.begin(&storm).await?;
        }
        // The entry is renewed although a change by an operator waits for the archive.
        let followed = self.follow_operator(&storm.group).await;
        self.maintain(storm).await?;
        followed
    }

    /// Replaces the action of a storm in force by the one that an operator has set for the group, if that is another.
    async fn follow_operator(&mut self, group: &ConversationId) -> Result<(), StepError> {
        let own = self.table.rules().own_action_of(group);
        let (Some(action), Some(acting)) = (own, self.acting.get(group)) else { return Ok(()) };
        if acting.action == action {
            return Ok(());
        }
        if acting.action == Some(StormAction::Admins) {
            self.lift(group).await?;
        }
        if let Some(acting) = self.acting.get_mut(group) {
            (acting.action, acting.changes) = (action, acting.changes.saturating_add(1));
            (acting.is_restricted, acting.renew_at) = (false, Instant::now());
        }
        Ok(())
    }

    /// Continues storms of this partition that have an entry and are not known to the table.
    fn adopt(&self) {
        let partitions = self.cluster.ports.bus.partitions();
        let is_mine = |group: &ConversationId| partition_of(group, partitions) == self.scope.partition;
        for (group, seq) in self.table.entries().groups(is_mine) {
            let is_over = self.ended.iter().any(|(ended, of)| *ended == group && *of >= seq);
            if !is_over && !self.acting.contains_key(&group) {
                self.table.adopt(&group);
            }
        }
    }

    /// Notifies the recipients of a new storm and chooses the action. A storm that a former owner has begun keeps its
    /// action, and is not notified again.
    async fn begin(&mut self, active: &ActiveStorm) -> Result<(), StepError> {
        let (group, storm) = (&active.group, active.storm);
        let version = self.table.entries().version(group);
        let entry = self.table.entries().get(group).filter(|it| it.storm.seq == storm.seq);
        let (action, exempt, changes) = match entry {
            Some(entry) => (entry.action, entry.exempt, entry.changes),
            None => {
                let found = recipients(&*self.cluster.ports.store, group, self.scope.small_group_max).await?;
                let action = self.table.rules().action_of(group);
                self.notify(pb::NoticeKind::Storm, group, &found.notified, active, action);
                (action, found.admins, 0)
            }
        };
        let (count, renew_at) = (active.count, Instant::now());
        let acting = Acting {
            storm,
            count,
            action,
            exempt,
            changes,
            version,
            renew_at,
            is_restricted: false,
            is_over_notified: false,
        };
        self.acting.insert(group.clone(), acting);
        Ok(())
    }

    /// Stores the entry if it is due, and then restricts the group if the action does.
    async fn maintain(&mut self, active: ActiveStorm) -> Result<(), StepError> {
        let ActiveStorm { group, storm, count } = active;
        let Some(acting) = self.acting.get_mut(&group) else { return Ok(()) };
        let has_cooled = acting.storm.cooling_since_ms != storm.cooling_since_ms;
        (acting.storm, acting.count) = (storm, count);
        let acting = acting.clone();
        let hold = (self.table.rules().of(&group).window() * 2).max(ENTRY_MIN);
        if has_cooled || Instant::now() >= acting.renew_at {
            let Acting { storm, action, exempt, changes, .. } = acting.clone();
            self.store_entry(&group, StormEntry { storm, action, exempt, changes }, hold).await?;
            if let Some(acting) = self.acting.get_mut(&group) {
                acting.renew_at = Instant::now() + hold / RENEW_PART;
            }
        }
        if acting.action == Some(StormAction::Admins) && !acting.is_restricted {
            let restriction = Restriction { seq: storm.seq, changes: acting.changes };
            let is_restricted = self.restrict(&group, restriction).await?;
            if let Some(acting) = self.acting.get_mut(&group) {
                acting.is_restricted = is_restricted;
            }
        }
        Ok(())
    }

    /// Undoes the action of a storm that is over, notifies the recipients and removes the entry. The entry goes last, so
    /// that a next owner repeats the steps after a crash. An owner that has lost the partition sees no further messages, so
    /// it ends nothing.
    async fn end(&mut self, group: &ConversationId) -> Result<(), StepError> {
        let Some(acting) = self.acting.get(group).cloned() else { return Ok(()) };
        let is_restricted = acting.action == Some(StormAction::Admins);
        if is_restricted && self.archive_lags {
            return Err(StepError::ArchiveLag);
        }
        self.check_owner().await?;
        if is_restricted {
            self.lift(group).await?;
        }
        if !acting.is_over_notified {
            // Without them the notice is left out, and the entry is removed in time.
            if let Ok(found) = recipients(&*self.cluster.ports.store, group, self.scope.small_group_max).await
            {
                let count = self.table.view(group).map_or(0, |view| view.count);
                let over = ActiveStorm { group: group.clone(), storm: acting.storm, count };
                self.notify(pb::NoticeKind::StormOver, group, &found.notified, &over, acting.action);
            }
            if let Some(acting) = self.acting.get_mut(group) {
                acting.is_over_notified = true;
            }
        }
        self.remove_entry(group).await?;
        self.acting.remove(group);
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((group.clone(), acting.storm.seq));
        Ok(())
    }

    fn notify(
        &self,
        kind: pb::NoticeKind,
        group: &ConversationId,
        users: &[UserId],
        storm: &ActiveStorm,
        action: Option<StormAction>,
    ) {
        let rule = self.table.rules().of(group);
        let notice = pb::Notice {
            kind: kind as i32,
            conversation: group.to_string(),
            count: storm.count,
            threshold: rule.threshold(),
            window_ms: u64::try_from(rule.window().as_millis()).unwrap_or(u64::MAX),
            since: storm.storm.since_ms,
            action: action.map(StormAction::word).unwrap_or_default().to_owned(),
            interval_ms: action.map(StormAction::interval_ms).unwrap_or_default(),
            ..pb::Notice::default()
        };
        self.ports.notices.send(group, users, notice);
    }
}
