//! Erasure of what is stored of a user, in requests of a bounded size that the caller repeats until nothing is left.
//!
//! The order is: connections are closed, the user leaves all groups, its messages are recalled and its marks removed
//! conversation by conversation, then the block list goes, and last what no list has. So nothing is written behind a
//! cursor, except by a user that connects again.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{Extension, Json, extract::State};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    record::Role,
};
use tokio::time::Instant;

use super::{READ_TIME_MAX, ROWS_READ_MAX};
use crate::{
    api::{
        Api, Problem, ProblemDetails,
        access::{Caller, RouteNeed},
        blocks::evidence,
        conversations::{
            Parameters, bad, checked,
            cursor::{CursorPosition, ListName},
            turns::{Absence, in_turn_of_all, unavailable},
            user,
        },
        extract::IdPath,
        groups::member::leave,
        messages::{SendSource, recall::recall_for_operator},
        presence::{connections::names, person, prio},
    },
    bans::BanSubject,
    conversation::{history::sent, read_position::NOT_STORED},
    evidence::erasable,
    keys::Scope,
    link::{CloseOrder, Selected},
    store::{ConversationSeq, GroupOfUser, ListPage, MembersRequest, Store},
};

/// Most changes of one request: groups that are left, messages that are recalled, and blocks that end.
const CHANGES_MAX: usize = 200;

/// Time after which a request begins no further part.
const TIME_MAX: Duration = Duration::from_secs(2);

/// Recalls that wait for their answers at once, so that an erasure takes a small part of what the log takes.
const RECALLS_AT_ONCE: usize = 16;

/// Groups that are read at once; of each that the user owns, the owners are read, too.
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

/// Part of the erasure that comes next.
enum ErasureStage {
    /// Groups above this one are left.
    Groups(Option<ConversationId>),
    /// Messages after this position are recalled.
    Messages(Option<ConversationSeq>),
    /// The block list is removed, and what has no list.
    Rest,
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
    let list = ListName { name: "erasure", filters: &[user.as_str()] };
    let stage = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => ErasureStage::Groups(None),
        Some(CursorPosition::Key(after)) => ErasureStage::Groups(Some(after)),
        Some(CursorPosition::Row(after)) => ErasureStage::Messages(Some(after)),
        Some(CursorPosition::User(_)) => ErasureStage::Rest,
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new()).into()),
    };
    let erasure = ErasureRequest {
        api: &api,
        caller: &caller,
        source: &source,
        user: &user,
        limit,
        until: Instant::now() + TIME_MAX,
        outcome: ErasureOutcome::default(),
    };
    let (outcome, next) = erasure.run(stage).await?;
    let mut body = outcome.body(&user);
    match next {
        Some(next) => body["next"] = list.cursor(&next).into(),
        None => body["remains"] = api.reads.kept.remains(),
    }
    body["done"] = body["next"].is_null().into();
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
    /// Goes on from a stage; returns where the next request goes on, if something is left.
    async fn run(
        mut self,
        stage: ErasureStage,
    ) -> Result<(ErasureOutcome, Option<CursorPosition>), ProblemDetails> {
        let messages = match stage {
            ErasureStage::Groups(after) => {
                if after.is_none() {
                    self.close_connections().await;
                }
                if let Some(after) = self.leave_groups(after).await? {
                    return Ok((self.outcome, Some(CursorPosition::Key(after))));
                }
                Some(None)
            }
            ErasureStage::Messages(after) => Some(after),
            ErasureStage::Rest => None,
        };
        if let Some(after) = messages
            && let Some(after) = self.recall_messages(after).await?
        {
            return Ok((self.outcome, Some(CursorPosition::Row(after))));
        }
        let is_done = self.end_blocks().await? && self.remove_rest().await?;
        let rest = CursorPosition::User(self.user.clone());
        Ok((self.outcome, (!is_done).then_some(rest)))
    }

    /// Returns the number of changes that the request may still make.
    fn room(&self) -> usize {
        let ErasureOutcome { left, recalled, unblocked, .. } = &self.outcome;
        let changes = left + recalled + unblocked;
        if changes > 0 && Instant::now() >= self.until { 0 } else { self.limit.saturating_sub(changes) }
    }

    async fn close_connections(&mut self) {
        let selected = Selected::User(self.user.clone(), None);
        let order = CloseOrder { selected, reason: String::new(), reconnect_after: None };
        let closed = self.api.connections.close(&order, None).await;
        self.outcome.closed += closed.count;
        self.outcome.silent = names(&closed.silent).into_iter().map(str::to_owned).collect();
    }

    /// Leaves groups above `after`; returns the last one if there may be more.
    async fn leave_groups(
        &mut self,
        mut after: Option<ConversationId>,
    ) -> Result<Option<ConversationId>, ProblemDetails> {
        loop {
            let (of, from) = (self.user.clone(), after.clone());
            let work = move |store: Arc<dyn Store>, _| async move {
                let page = store.groups_of(&of, from.as_ref(), GROUPS_AT_ONCE).await.map_err(unavailable)?;
                with_last_owners(&*store, page).await
            };
            let page = in_turn_of_all(self.api, self.caller, work).await?;
            for (group, is_last_owner) in page.rows {
                if self.room() == 0 && after.is_some() {
                    return Ok(after);
                }
                self.outcome.left += usize::from(leave(self.api, &group, self.user).await?);
                if is_last_owner {
                    self.outcome.ownerless.push(group.as_str().to_owned());
                }
                after = Some(group);
            }
            let Some(next) = page.next else { return Ok(None) };
            after = Some(next);
            if self.room() == 0 || Instant::now() >= self.until {
                return Ok(after);
            }
        }
    }

    /// Recalls messages after `after`, and removes the marks of conversations that have no more; returns the position of
    /// the last one if there may be more.
    async fn recall_messages(
        &mut self,
        mut after: Option<ConversationSeq>,
    ) -> Result<Option<ConversationSeq>, ProblemDetails> {
        loop {
            // A request that left groups has to make progress here as well, or its cursor would not change.
            let (of, from, room) = (self.user.clone(), after.clone(), self.room().max(1));
            let work = move |store: Arc<dyn Store>, absence| async move {
                find(&*store, &of, from, room, absence).await
            };
            let found = in_turn_of_all(self.api, self.caller, work).await?;
            let (api, source) = (self.api, self.source);
            let recalls = stream::iter(found.sent).map(|at| recall_for_operator(api, source, at));
            let mut recalls = recalls.buffer_unordered(RECALLS_AT_ONCE);
            while let Some(is_recalled) = recalls.try_next().await? {
                self.outcome.recalled += usize::from(is_recalled);
            }
            let store = &self.api.cluster.ports.store;
            store.forget_marks(self.user, &found.ended).await.map_err(unavailable)?;
            self.outcome.kept.extend(found.kept);
            after = found.next;
            if after.is_none() || self.room() == 0 || Instant::now() >= self.until {
                return Ok(after);
            }
        }
    }

    /// Ends the user's blocks; returns whether none is left.
    async fn end_blocks(&mut self) -> Result<bool, ProblemDetails> {
        let cluster = &self.api.cluster;
        loop {
            let room = self.room().max(1);
            let blocks = cluster.ports.store.blocks(self.user, None, room).await.map_err(unavailable)?;
            if blocks.is_empty() {
                return Ok(true);
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

    /// Removes what has no list. Returns whether nothing is left: connections that began meanwhile are closed on all nodes.
    async fn remove_rest(&mut self) -> Result<bool, ProblemDetails> {
        let (api, user) = (self.api, self.user);
        self.close_connections().await;
        api.cluster.ports.store.forget_settings(user).await.map_err(unavailable)?;
        person::forget_chains(api, user).await?;
        prio::remove_of(api, user).await?;
        evidence::erase_of(api, &erasable(BanSubject::User(user.clone()))).await?;
        Ok(self.outcome.silent.is_empty())
    }
}

/// Returns the groups, and whether each has other members but no other owner.
async fn with_last_owners(
    store: &dyn Store,
    page: ListPage<GroupOfUser, ConversationId>,
) -> Result<ListPage<(ConversationId, bool), ConversationId>, Problem> {
    let mut rows = Vec::with_capacity(page.rows.len());
    for GroupOfUser { group: head, member } in page.rows {
        let group = head.conversation;
        let mut is_last_owner = false;
        if member.role == Role::Owner && head.members > 1 {
            let role = Some(Role::Owner);
            let request = MembersRequest { group: group.clone(), role, after: None, limit: 2 };
            let owners = store.member_page(&request).await.map_err(unavailable)?;
            // With a further page there may be others, far behind.
            is_last_owner = owners.is_some_and(|owners| owners.rows.len() < 2 && owners.next.is_none());
        }
        rows.push((group, is_last_owner));
    }
    Ok(ListPage { rows, next: page.next })
}

/// Finds up to `room` messages to recall.
async fn find(
    store: &dyn Store,
    user: &UserId,
    mut at: Option<ConversationSeq>,
    room: usize,
    absence: Absence,
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
    // What the store may lack can't be recalled, and the erasure is not complete without it.
    if absence == Absence::InDoubt {
        return Err(NOT_STORED.into());
    }
    Ok(FoundMessages { sent: messages, ended, kept, next: None })
}
