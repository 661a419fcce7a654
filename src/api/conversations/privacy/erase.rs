//! Erasure of what is stored of a user, in requests of a bounded size that the caller repeats until nothing is left.
//!
//! The order is: connections are closed, the user leaves all groups, its messages are recalled and its marks removed
//! conversation by conversation, then the block list goes, and last what no list has. Messages that were in flight may be
//! stored behind a cursor, so a pass that found something is followed by another one.

use std::{collections::BTreeSet, future::ready, sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
    record::Role,
};
use tokio::time::Instant;

use super::{
    READ_TIME_MAX, ROWS_READ_MAX, in_turn_of_complete,
    position::{ErasurePosition, ErasureStage},
};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::{Caller, RouteNeed},
        blocks::evidence,
        conversations::{Parameters, bad, checked, turns::unavailable, user},
        extract::IdPath,
        groups::member::leave,
        messages::{
            SendSource,
            recall::{OperatorRecall, recall_for_operator},
        },
        presence::{connections::names, person, prio},
    },
    bans::BanSubject,
    conversation::history::sent,
    evidence::erasable,
    keys::Scope,
    link::{CloseOrder, Selected},
    store::{ConversationSeq, GroupOfUser, MembersRequest, Store},
};

/// Most changes of one request: groups that are left, messages that are recalled, and blocks that end.
const CHANGES_MAX: usize = 200;

/// Time after which a request begins no further part.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Recalls that wait for their answers at once, so that an erasure takes a small part of what the log takes.
const RECALLS_AT_ONCE: usize = 16;

/// Groups that are read at once.
const GROUPS_AT_ONCE: usize = 20;

/// Conversations that end in one part.
const ENDED_MAX: usize = 200;

/// Query of an erasure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct EraseQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

/// Erases the next part of what is stored of a user.
///
/// It needs the scopes of what it does: otherwise a key that may only close connections could recall messages.
pub(in crate::api) async fn erase(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    source: SendSource,
    IdPath(id): IdPath<String>,
    query: Parameters<EraseQuery>,
) -> Result<Json<Value>, ProblemDetails> {
    for scope in [Scope::Messages, Scope::Groups] {
        if caller.require(RouteNeed::Scope(scope)).is_err() {
            let why = format!("the key does not have the scope `{scope}`, which an erasure needs as well");
            return Err(Problem(Code::ScopeMissing, why).into());
        }
    }
    let (user, query) = (user(&id)?, checked(query)?);
    let limit = query.limit.unwrap_or(CHANGES_MAX);
    if !(1..=CHANGES_MAX).contains(&limit) {
        return Err(bad(format!("limit: between 1 and {CHANGES_MAX}")).into());
    }
    if api.messages.is_system(&user) {
        let why = "this user is the sender of messages of the admin API (api.system_user)";
        return Err(Problem(Code::Forbidden, why.to_owned()).into());
    }
    let mut erasure = ErasureRequest {
        api: &api,
        caller: &caller,
        source: &source,
        user: &user,
        limit,
        until: Instant::now() + TIME_MAX,
        position: ErasurePosition::of(&user, query.cursor.as_deref())?,
        outcome: ErasureOutcome::default(),
    };
    let is_done = match erasure.run().await {
        Ok(is_done) => is_done,
        // Names of groups would be lost with a refusal; the next request gets it if it lasts.
        Err(_) if erasure.outcome.has_changes() => false,
        Err(problem) => return Err(problem),
    };
    let ErasureRequest { position, outcome, .. } = erasure;
    let mut body = outcome.body(&user);
    match is_done {
        true => body["remains"] = api.reads.kept.remains(),
        false => body["next"] = position.cursor(&user).into(),
    }
    body["done"] = is_done.into();
    Ok(Json(body))
}

/// Counts of one request, and names that its caller has to know.
#[derive(Default)]
struct ErasureOutcome {
    closed: u64,
    left: usize,
    recalled: usize,
    unblocked: usize,
    ownerless: Vec<String>,
    kept: BTreeSet<ConversationId>,
    silent: BTreeSet<String>,
}

impl ErasureOutcome {
    /// Returns the number of changes that count towards the limit of a request.
    fn changes(&self) -> usize {
        self.left + self.recalled + self.unblocked
    }

    /// Returns whether the request changed something that its caller has to know.
    fn has_changes(&self) -> bool {
        self.closed > 0 || self.changes() > 0 || !self.ownerless.is_empty()
    }

    /// Counts a recall. A message of a group that the ledger no longer has may still be stored, if the group was deleted
    /// meanwhile.
    fn count(&mut self, recalled: OperatorRecall, at: &ConversationSeq) {
        match recalled {
            OperatorRecall::Recalled => self.recalled += 1,
            OperatorRecall::Repeated => {}
            OperatorRecall::NotFound => {
                if matches!(at.conversation.kind(), ConversationKind::Group(_)) {
                    self.kept.insert(at.conversation.clone());
                }
            }
        }
    }

    fn body(self, user: &UserId) -> Value {
        let kept: Vec<&str> = self.kept.iter().map(ConversationId::as_str).collect();
        json!({
            "user": user.as_str(),
            "closed": self.closed,
            "left": self.left,
            "recalled": self.recalled,
            "unblocked": self.unblocked,
            "ownerless": self.ownerless,
            "kept": kept,
            "silent": self.silent,
        })
    }
}

/// Request that erases a part.
struct ErasureRequest<'a> {
    api: &'a Api,
    caller: &'a Caller,
    source: &'a SendSource,
    user: &'a UserId,
    limit: usize,
    until: Instant,
    /// Position after the last part that is finished.
    position: ErasurePosition,
    outcome: ErasureOutcome,
}

/// Messages to recall, and conversations that have no more.
struct FoundMessages {
    sent: Vec<ConversationSeq>,
    ended: Vec<ConversationId>,
    /// Conversations with messages that can't be recalled.
    kept: BTreeSet<ConversationId>,
    /// Position of the next part; `None` if this is the last.
    next: Option<ConversationSeq>,
}

impl ErasureRequest<'_> {
    /// Goes on from the position. Returns whether nothing is left: a whole pass closed, left and recalled nothing.
    async fn run(&mut self) -> Result<bool, ProblemDetails> {
        if let ErasureStage::Groups(after) = &self.position.stage {
            if after.is_none() {
                self.close_connections().await;
            }
            if !self.leave_groups().await? {
                return Ok(false);
            }
            self.position.stage = ErasureStage::Messages(None);
        }
        if matches!(self.position.stage, ErasureStage::Messages(_)) {
            if !self.recall_messages().await? {
                return Ok(false);
            }
            self.position.stage = ErasureStage::Rest;
        }
        if !self.end_blocks().await? {
            return Ok(false);
        }
        self.remove_rest().await?;
        let is_done = !self.position.is_changed;
        self.position = ErasurePosition::START;
        Ok(is_done)
    }

    /// Returns the number of changes that the request may still make.
    fn room(&self) -> usize {
        let changes = self.outcome.changes();
        if changes > 0 && Instant::now() >= self.until { 0 } else { self.limit.saturating_sub(changes) }
    }

    async fn close_connections(&mut self) {
        let selected = Selected::User(self.user.clone(), None);
        let order = CloseOrder { selected, reason: String::new(), reconnect_after: None };
        let closed = self.api.connections.close(&order, None).await;
        self.outcome.closed += closed.count;
        self.outcome.silent = names(&closed.silent).into_iter().map(str::to_owned).collect();
        // What these connections sent may be behind the position.
        self.position.is_changed |= closed.count > 0 || !closed.silent.is_empty();
    }

    /// Leaves groups above the position; returns whether none is left.
    async fn leave_groups(&mut self) -> Result<bool, ProblemDetails> {
        loop {
            let ErasureStage::Groups(after) = &self.position.stage else { return Ok(true) };
            let (of, from) = (self.user.clone(), after.clone());
            let work = move |store: Arc<dyn Store>| async move {
                store.groups_of(&of, from.as_ref(), GROUPS_AT_ONCE).await.map_err(unavailable)
            };
            let page = in_turn_of_complete(self.api, self.caller, work).await?;
            for GroupOfUser { group: head, member } in page.rows {
                if self.room() == 0 {
                    return Ok(false);
                }
                let group = head.conversation;
                let may_be_last = member.role == Role::Owner && head.members > 1;
                let is_last_owner = may_be_last && self.is_last_owner(&group).await?;
                let left = leave(self.api, &group, self.user).await;
                let may_have_left = match &left {
                    Ok(is_left) => *is_left,
                    Err(Problem(code, _)) => *code == Code::Unknown,
                };
                if may_have_left && is_last_owner {
                    self.outcome.ownerless.push(group.as_str().to_owned());
                }
                let is_left = left?;
                self.outcome.left += usize::from(is_left);
                self.position.is_changed |= is_left;
                self.position.stage = ErasureStage::Groups(Some(group));
            }
            let Some(next) = page.next else { return Ok(true) };
            self.position.stage = ErasureStage::Groups(Some(next));
            if Instant::now() >= self.until {
                return Ok(false);
            }
        }
    }

    /// Returns whether no other owner was found. Those far behind in a large group are not found.
    async fn is_last_owner(&self, group: &ConversationId) -> Result<bool, Problem> {
        let request = MembersRequest { group: group.clone(), role: Some(Role::Owner), after: None, limit: 2 };
        let work = move |store: Arc<dyn Store>| async move {
            store.member_page(&request).await.map_err(unavailable)
        };
        let owners = in_turn_of_complete(self.api, self.caller, work).await?;
        Ok(owners.is_some_and(|owners| owners.rows.len() < 2))
    }

    /// Recalls messages after the position, and removes the marks of conversations that have no more; returns whether
    /// none is left.
    async fn recall_messages(&mut self) -> Result<bool, ProblemDetails> {
        loop {
            let ErasureStage::Messages(after) = &self.position.stage else { return Ok(true) };
            let (of, from, room) = (self.user.clone(), after.clone(), self.room());
            if room == 0 {
                return Ok(false);
            }
            let work = move |store: Arc<dyn Store>| async move { find(&*store, &of, from, room).await };
            let found = in_turn_of_complete(self.api, self.caller, work).await?;
            self.outcome.kept.extend(found.kept);
            if !self.recall(found.sent).await? {
                return Ok(false);
            }
            let store = &self.api.cluster.ports.store;
            store.forget_marks(self.user, &found.ended).await.map_err(unavailable)?;
            if found.next.is_none() {
                return Ok(true);
            }
            self.position.stage = ErasureStage::Messages(found.next);
            if Instant::now() >= self.until {
                return Ok(false);
            }
        }
    }

    /// Recalls messages in their order, and moves the position with each. Returns whether all were recalled: none begins
    /// after the deadline, except the first change of a request.
    async fn recall(&mut self, found: Vec<ConversationSeq>) -> Result<bool, ProblemDetails> {
        let (api, source, until, count) = (self.api, self.source, self.until, found.len());
        let is_first_change = self.outcome.changes() == 0;
        let begun = stream::iter(found.into_iter().enumerate())
            .take_while(move |(index, _)| ready((is_first_change && *index == 0) || Instant::now() < until));
        let recalls = begun.map(|(_, at)| async move {
            let recalled = recall_for_operator(api, source, at.clone()).await?;
            Ok::<_, ProblemDetails>((recalled, at))
        });
        let (mut recalls, mut finished) = (recalls.buffered(RECALLS_AT_ONCE), 0);
        while let Some((recalled, at)) = recalls.try_next().await? {
            self.outcome.count(recalled, &at);
            self.position.is_changed |= recalled == OperatorRecall::Recalled;
            self.position.stage = ErasureStage::Messages(Some(at));
            finished += 1;
        }
        Ok(finished == count)
    }

    /// Ends the user's blocks; returns whether none is left.
    async fn end_blocks(&mut self) -> Result<bool, ProblemDetails> {
        let cluster = &self.api.cluster;
        loop {
            let room = self.room();
            let blocks =
                cluster.ports.store.blocks(self.user, None, room.max(1)).await.map_err(unavailable)?;
            if blocks.is_empty() {
                return Ok(true);
            }
            if room == 0 {
                return Ok(false);
            }
            for block in blocks {
                cluster.ports.store.unblock(self.user, &block.other).await.map_err(unavailable)?;
                cluster.publish_block(self.user, &block.other, false).await;
                self.outcome.unblocked += 1;
                if self.room() == 0 {
                    return Ok(false);
                }
            }
        }
    }

    /// Removes what has no list, and closes connections that began meanwhile.
    async fn remove_rest(&mut self) -> Result<(), ProblemDetails> {
        let (api, user) = (self.api, self.user);
        self.close_connections().await;
        let store = &api.cluster.ports.store;
        store.forget_settings(user).await.map_err(unavailable)?;
        person::forget_chains(api, user).await?;
        for change in [
            prio::remove_of(api, user).await?,
            evidence::erase_of(api, &erasable(BanSubject::User(user.clone()))).await?,
        ] {
            self.position.is_changed |= !change.pending.is_empty();
            self.outcome.silent.extend(change.pending);
        }
        let groups = store.groups_of(user, None, 1).await.map_err(unavailable)?;
        self.position.is_changed |= !groups.rows.is_empty();
        Ok(())
    }
}

/// Finds up to `room` messages to recall.
async fn find(
    store: &dyn Store,
    user: &UserId,
    mut at: Option<ConversationSeq>,
    room: usize,
) -> Result<FoundMessages, Problem> {
    let (until, mut rows) = (Instant::now() + READ_TIME_MAX, 0);
    let (mut messages, mut ended, mut kept) = (Vec::new(), Vec::new(), BTreeSet::new());
    while let Some(step) = sent::step(store, user, at.as_ref()).await.map_err(unavailable)? {
        let conversation = &step.membership.conversation;
        let open: Vec<u64> =
            step.rows.iter().filter(|it| it.recalled.is_none()).map(|it| it.row.seq).collect();
        let place = |seq| ConversationSeq { conversation: conversation.clone(), seq };
        if step.membership.head.deleted_seq > 0 {
            // The ledger takes no change of a deleted group.
            kept.extend((!open.is_empty()).then(|| conversation.clone()));
        } else {
            let fits = room - messages.len();
            messages.extend(open.iter().take(fits).map(|seq| place(*seq)));
            if let Some(first_left) = open.get(fits) {
                let next = Some(place(first_left.saturating_sub(1)));
                return Ok(FoundMessages { sent: messages, ended, kept, next });
            }
        }
        if step.is_last() {
            ended.push(conversation.clone());
        }
        rows += step.visited;
        at = Some(step.next);
        if rows >= ROWS_READ_MAX || ended.len() >= ENDED_MAX || Instant::now() >= until {
            return Ok(FoundMessages { sent: messages, ended, kept, next: at });
        }
    }
    Ok(FoundMessages { sent: messages, ended, kept, next: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_that_the_ledger_no_longer_has_is_named_as_kept() {
        let mut outcome = ErasureOutcome::default();
        let at =
            |key: &str| ConversationSeq { conversation: ConversationId::parse(key).expect("a key"), seq: 1 };
        outcome.count(OperatorRecall::NotFound, &at("g:gone"));
        outcome.count(OperatorRecall::NotFound, &at("d:ann:bob"));
        outcome.count(OperatorRecall::Repeated, &at("g:tea"));
        outcome.count(OperatorRecall::Recalled, &at("g:tea"));
        assert_eq!(outcome.kept, BTreeSet::from([at("g:gone").conversation]));
        assert_eq!(outcome.changes(), 1);
    }
}
