//! Export of what is stored of a user, in pages: settings and devices, block list, then conversation by conversation the
//! marks and the messages that the user has sent.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationKind, UserId},
    machine::ledger::Stay,
};
use tokio::time::Instant;

use super::{READ_TIME_MAX, ROWS_READ_MAX, in_turn_of_complete};
use crate::{
    api::{
        Api, Problem,
        access::Caller,
        conversations::{
            Parameters, checked,
            cursor::{CursorPosition, ListName},
            entries::entry,
            limit_up_to,
            turns::unavailable,
            user,
        },
        extract::IdPath,
        presence::{connections::revoke, person},
    },
    conversation::{history::sent, unread::View},
    store::{ConversationSeq, Membership, Store, StoredRow},
};

/// Most messages of a page.
const MESSAGES_MAX: usize = 1_000;

/// Entries of the block list on a page.
const BLOCKS_PER_PAGE: usize = 500;

/// Bytes of the conversations and messages of a page, which leave room for the rest of the MiB.
const BYTES_MAX: usize = 768 * 1_024;

/// Part of an export that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct ExportQuery {
    cursor: Option<String>,
    limit: Option<usize>,
}

/// Position in an export.
enum ExportPosition {
    /// Before everything.
    Start,
    /// In the block list.
    Blocks(UserId),
    /// In the conversations.
    Conversations(ConversationSeq),
}

/// Returns a page of what is stored of a user.
pub(in crate::api) async fn export(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    query: Parameters<ExportQuery>,
) -> Result<Json<Value>, Problem> {
    let (user, query) = (user(&id)?, checked(query)?);
    let limit = limit_up_to(query.limit, MESSAGES_MAX)?;
    let list = ListName { name: "export", filters: &[user.as_str()] };
    let at = match query.cursor.as_deref().map(|cursor| list.position(cursor)).transpose()? {
        None => ExportPosition::Start,
        Some(CursorPosition::User(after)) => ExportPosition::Blocks(after),
        Some(CursorPosition::Row(after)) => ExportPosition::Conversations(after),
        Some(_) => return Err(Problem(Code::CursorInvalid, String::new())),
    };
    let mut body = match at {
        ExportPosition::Start => of_nodes(&api, &user).await?,
        _ => Map::from_iter([("user".to_owned(), user.as_str().into())]),
    };
    let of = user.clone();
    let work = move |store: Arc<dyn Store>| async move { ExportPage::of(of, limit).read(&*store, at).await };
    let (stored, next) = in_turn_of_complete(&api, &caller, work).await?;
    body.extend(stored);
    match next {
        Some(next) => drop(body.insert("next".to_owned(), list.cursor(&next).into())),
        None => drop(body.insert("remains".to_owned(), api.reads.kept.remains())),
    }
    Ok(Json(body.into()))
}

/// Returns what nodes and Redis have of the user.
async fn of_nodes(api: &Api, user: &UserId) -> Result<Map<String, Value>, Problem> {
    let revocations: Vec<Value> = api.cluster.revocations.of(user).iter().map(revoke::view).collect();
    let prio = api.cluster.priorities.get(user);
    let all = [
        ("user", user.as_str().into()),
        ("devices", person::exported_devices(api, user).await?.into()),
        ("prio", prio.map(|it| json!({"prio": it.class, "untilMs": it.until_ms})).into()),
        ("revocations", revocations.into()),
    ];
    Ok(all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Page of what the store has.
struct ExportPage {
    user: UserId,
    limit: usize,
    fields: Map<String, Value>,
    conversations: Vec<Value>,
    messages: Vec<Value>,
    bytes: usize,
}

impl ExportPage {
    /// Creates an empty page of at most `limit` messages.
    fn of(user: UserId, limit: usize) -> Self {
        let (conversations, messages) = (Vec::new(), Vec::new());
        Self { user, limit, fields: Map::new(), conversations, messages, bytes: 0 }
    }

    /// Reads the page, and returns its fields and the position of the next one.
    async fn read(
        mut self,
        store: &dyn Store,
        at: ExportPosition,
    ) -> Result<(Map<String, Value>, Option<CursorPosition>), Problem> {
        let (after_block, after) = match at {
            ExportPosition::Start => {
                let found = store.settings_of(std::slice::from_ref(&self.user)).await.map_err(unavailable)?;
                let settings = found.first().copied().unwrap_or_default();
                self.fields.insert("settings".to_owned(), person::settings(&settings));
                (Some(None), None)
            }
            ExportPosition::Blocks(after) => (Some(Some(after)), None),
            ExportPosition::Conversations(after) => (None, Some(after)),
        };
        let mut next = match after_block {
            Some(after) => self.blocks(store, after.as_ref()).await?,
            None => None,
        };
        if next.is_none() {
            next = self.conversations(store, after).await?.map(CursorPosition::Row);
        }
        self.fields.insert("conversations".to_owned(), self.conversations.into());
        self.fields.insert("messages".to_owned(), self.messages.into());
        Ok((self.fields, next))
    }

    /// Adds a part of the block list, and returns where it goes on.
    async fn blocks(
        &mut self,
        store: &dyn Store,
        after: Option<&UserId>,
    ) -> Result<Option<CursorPosition>, Problem> {
        let mut found = store.blocks(&self.user, after, BLOCKS_PER_PAGE + 1).await.map_err(unavailable)?;
        let has_more = found.len() > BLOCKS_PER_PAGE;
        found.truncate(BLOCKS_PER_PAGE);
        let blocks: Vec<Value> =
            found.iter().map(|it| json!({"user": it.other.as_str(), "time": it.time})).collect();
        self.fields.insert("blocks".to_owned(), blocks.into());
        Ok(found.pop().filter(|_| has_more).map(|last| CursorPosition::User(last.other)))
    }

    /// Adds conversations and messages until the page is full, and returns where they go on.
    async fn conversations(
        &mut self,
        store: &dyn Store,
        mut at: Option<ConversationSeq>,
    ) -> Result<Option<ConversationSeq>, Problem> {
        let (until, mut rows) = (Instant::now() + READ_TIME_MAX, 0);
        while let Some(step) = sent::step(store, &self.user, at.as_ref()).await.map_err(unavailable)? {
            if step.is_first {
                let shown = conversation(&step.membership, &self.user);
                if !self.fits(&shown) {
                    return Ok(at);
                }
                self.conversations.push(shown);
            }
            for stored in &step.rows {
                let shown = message(&step.membership, stored);
                if self.messages.len() == self.limit || !self.fits(&shown) {
                    let seq = stored.row.seq.saturating_sub(1);
                    return Ok(Some(ConversationSeq { seq, ..step.next }));
                }
                self.messages.push(shown);
            }
            rows += step.visited;
            at = Some(step.next);
            if rows >= ROWS_READ_MAX || Instant::now() >= until {
                return Ok(at);
            }
        }
        Ok(None)
    }

    /// Counts an entry. The first of a page fits, whatever its size.
    fn fits(&mut self, entry: &Value) -> bool {
        let bytes = entry.to_string().len();
        let fits = self.bytes == 0 || self.bytes + bytes <= BYTES_MAX;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

/// Returns a conversation with what the user has in it.
fn conversation(membership: &Membership, user: &UserId) -> Value {
    let Membership { conversation, member_view, head, .. } = membership;
    let (member, level) = (&member_view.member, &member_view.level);
    let stay = |it: &Stay| json!({"joinedSeq": it.joined_seq, "leftSeq": it.left_seq});
    let hidden: Vec<u64> = level.hidden.iter().map(|it| it.seq).collect();
    let mut shown = json!({
        "conversation": conversation.as_str(),
        "member": member.is_in() && head.deleted_seq == 0,
        "joinedSeq": member.joined_seq,
        "leftSeq": (!member.is_in()).then_some(member.left_seq),
        "earlier": member_view.stays.iter().map(stay).collect::<Vec<_>>(),
        "readSeq": level.mark.seq,
        "clearedSeq": level.cleared.seq,
        "hidden": hidden,
    });
    if let Some(push) = level.push {
        shown["push"] = push.word().into();
    }
    if let Some(bound) = level.bound {
        shown["boundSeq"] = bound.seq.into();
    }
    match conversation.kind() {
        ConversationKind::Direct(one, other) => {
            shown["peer"] = (if one == user.as_str() { other } else { one }).into();
        }
        ConversationKind::Group(_) | ConversationKind::Room(_) => {
            shown["role"] = member.role.word().into();
            shown["muted"] = member.muted.into();
            shown["deleted"] = (head.deleted_seq > 0).into();
        }
    }
    shown
}

/// Returns a message that the user has sent. It has no content if it was recalled, or edited by others after the user's
/// membership had ended.
fn message(membership: &Membership, stored: &StoredRow) -> Value {
    let Membership { conversation, member_view, head, .. } = membership;
    let mut shown = entry(stored);
    shown.insert("conversation".to_owned(), conversation.as_str().into());
    if !View::whole(conversation, head, member_view).may_have(stored) {
        shown.remove("content");
    }
    if let Some((seq, time)) = stored.recalled {
        shown.remove("content");
        shown.insert("recalled".to_owned(), json!({"seq": seq, "time": time}));
    }
    shown.into()
}
