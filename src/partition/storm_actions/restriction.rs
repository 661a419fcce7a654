//! Posts by admins only while a group has a storm: a change of the group's settings that remembers what was before.
//!
//! The settings hold the memory, in [`STORM_POST`], so it is as durable as the restriction. A change of `post` by a person
//! removes it, and is then never undone.

use std::{collections::BTreeMap, time::Duration};

use tidegate_protocol::{
    id::{ConversationId, MsgId},
    machine::{
        ledger::{Head, Loaded},
        session::SubmitAnswer,
    },
    record::{MemberAction, MemberChange, body_hash},
    settings::{GroupSettings, POST, Post, STORM_POST},
};
use tokio::time::Instant;

use super::{
    StepError, StormActor,
    marker::{Marker, Restriction},
};
use crate::{bus::partition_of, log_limit::log_limited, store::Scan};

/// Interval at which restrictions without a storm in force are looked for, where storms restrict.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

const HEADS_PAGE_ROWS: usize = 256;

impl StormActor {
    /// Lets only admins post, unless that is so already. Returns false if a former restriction is not undone yet in the
    /// archive, or if the archive lags and has no such group. Otherwise it does not wait for an archive that lags: the
    /// restriction replaces the settings that are archived.
    pub(super) async fn restrict(
        &mut self,
        group: &ConversationId,
        restriction: Restriction,
    ) -> Result<bool, StepError> {
        let is_archived = self.wait_archived().await.is_ok();
        let Some(head) = self.head(group).await? else { return Ok(is_archived) };
        if let Some(marker) = Marker::of(&head) {
            return Ok(marker.restriction == restriction);
        }
        let is_restricted = GroupSettings::of(&head.settings).post == Post::Admins;
        if is_restricted || head.settings.contains_key(STORM_POST) {
            return Ok(true);
        }
        let before = head.settings.get(POST).map_or("", String::as_str);
        let marker = format!("{before}@{restriction}");
        let settings = [(POST, Post::Admins.word()), (STORM_POST, &marker)];
        self.change(group, request_id(restriction, group, "on")?, settings).await?;
        Ok(true)
    }

    /// Undoes the restriction of a group, if there is one.
    ///
    /// # Errors
    /// The archive lags, so it may lack the restriction, or a decision of a person that replaces it.
    pub(super) async fn lift(&mut self, group: &ConversationId) -> Result<(), StepError> {
        self.wait_archived().await?;
        match self.head(group).await? {
            Some(head) => self.lift_of(group, &head).await,
            None => Ok(()),
        }
    }

    async fn lift_of(&self, group: &ConversationId, head: &Head) -> Result<(), StepError> {
        let Some(marker) = Marker::of(head) else { return Ok(()) };
        let request_id = request_id(marker.restriction, group, "off")?;
        self.change(group, request_id, [(POST, marker.before), (STORM_POST, "")]).await
    }

    /// Undoes the restrictions of this partition's groups without a storm in force: once, and each minute where storms
    /// restrict.
    pub(super) async fn lift_left_over(&mut self) -> Result<(), StepError> {
        let is_due = match self.swept_at {
            Some(at) => at.elapsed() >= SWEEP_INTERVAL && self.table.rules().may_restrict(),
            None => true,
        };
        // An archive that lags may lack the decision of a person; the next pass tries again.
        if !is_due || self.wait_archived().await.is_err() {
            return Ok(());
        }
        let partitions = self.cluster.ports.bus.partitions();
        let mut after = None;
        loop {
            let scan = Scan::Heads { after, limit: HEADS_PAGE_ROWS, with_settings: true };
            let page =
                self.cluster.ports.store.scan(self.scope.partition, self.scope.fence, &scan).await?.rows;
            let is_last = page.len() < HEADS_PAGE_ROWS;
            after = None;
            for row in page {
                let Loaded::Head(group, Some(head)) = row else { continue };
                let is_mine =
                    partition_of(&group, partitions) == self.scope.partition && head.deleted_seq == 0;
                let is_in_force =
                    || self.acting.contains_key(&group) || self.table.entries().get(&group).is_some();
                if is_mine && head.settings.contains_key(STORM_POST) && !is_in_force() {
                    self.lift_of(&group, &head).await?;
                }
                after = Some(group);
            }
            if is_last || after.is_none() {
                break;
            }
        }
        self.swept_at = Some(Instant::now());
        Ok(())
    }

    async fn head(&self, group: &ConversationId) -> Result<Option<Head>, StepError> {
        let summary = self.cluster.ports.store.summary(group, None).await?;
        Ok(summary.map(|summary| summary.head).filter(|head| head.deleted_seq == 0))
    }

    /// Changes settings. A repetition under the same id has no effect.
    async fn change(
        &self,
        group: &ConversationId,
        request_id: MsgId,
        settings: [(&str, &str); 2],
    ) -> Result<(), StepError> {
        let change = MemberChange {
            conversation: group.clone(),
            action: MemberAction::Settings,
            users: Vec::new(),
            role: None,
            by: None,
            settings: settings
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into_iter()
                .collect::<BTreeMap<_, _>>(),
            request_id,
        };
        match self.ports.admin.change(change, (self.scope.wall_ms)()).await {
            SubmitAnswer::Accepted { .. } | SubmitAnswer::Duplicate { .. } => Ok(()),
            SubmitAnswer::Refused { code, .. } if !code.temporary() => {
                log_limited!(warn, %group, code = code.name(), "settings of a group with a storm not changed");
                Ok(())
            }
            SubmitAnswer::Refused { code, .. } => Err(StepError::Settings(code.name())),
            SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => Err(StepError::Settings("no answer")),
        }
    }
}

/// Returns the id of a change of settings, under which a repetition has no effect.
fn request_id(restriction: Restriction, group: &ConversationId, step: &str) -> Result<MsgId, StepError> {
    let hash = u128::from_be_bytes(body_hash(format!("{group}/{restriction}").as_bytes()));
    MsgId::new(&format!("storm-{hash:032x}-{step}")).map_err(|_| StepError::Settings("no request id"))
}
