//! Admin API of the history of a conversation.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    id::{ConversationId, UserId},
    machine::session::{Pull, SEQS_MAX, Which},
};

use super::{
    ENTRIES_BYTES_MAX, NUMBER_MAX, Parameters, bad, checked, conversation,
    cursor::{CursorPosition, ListName},
    entries::page_entry,
    limit,
    turns::{in_turn, reader},
    user,
};
use crate::{
    api::{Api, Problem, access::Caller, extract::IdPath},
    conversation::{
        consistent::{beyond_head, read_history},
        history::{FoundPage, HistoryPage, PageBytes},
        read_position::NOT_STORED,
        reader::Viewer,
    },
    store::Store,
};

/// Part of a history that a request asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct HistoryQuery {
    cursor: Option<String>,
    direction: Option<PageDirection>,
    seqs: Option<String>,
    around: Option<u64>,
    since: Option<u64>,
    limit: Option<usize>,
    r#as: Option<String>,
}

/// Order of a first page.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PageDirection {
    /// From the end of the conversation, the newest first.
    Backward,
    /// From its beginning, the oldest first.
    Forward,
}

/// Query of a single entry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct EntryQuery {
    r#as: Option<String>,
}

/// Returns a page of a history.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath(id): IdPath<String>,
    query: Parameters<HistoryQuery>,
) -> Result<Json<Value>, Problem> {
    let (id, query) = (conversation(&id)?, checked(query)?);
    let as_text = query.r#as.clone().unwrap_or_default();
    let as_user = query.r#as.as_deref().map(user).transpose()?;
    let pull = pull(&id, &query, &ListName { name: "history", filters: &[id.as_str(), &as_text] })?;
    let respond = move |pull: &Pull, found: &FoundPage| {
        page(pull, found, &ListName { name: "history", filters: &[id.as_str(), &as_text] })
    };
    read(&api, &caller, pull, as_user, respond).await.map(Json)
}

/// Returns one entry of a history.
pub(in crate::api) async fn one(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    IdPath((id, seq)): IdPath<(String, String)>,
    query: Parameters<EntryQuery>,
) -> Result<Json<Value>, Problem> {
    let (id, query) = (conversation(&id)?, checked(query)?);
    let bad_seq = || Problem(Code::BadId, "seq: a number from 1 on".into());
    let seq = seq.parse().ok().filter(|seq| (1..=NUMBER_MAX).contains(seq)).ok_or_else(bad_seq)?;
    let pull = Pull { conversation: id.clone(), which: Which::Seqs(vec![seq]), limit: 1 };
    let as_user = query.r#as.as_deref().map(user).transpose()?;
    let missing = move |why: &str| Problem(Code::NotFound, format!("seq {seq}: {why}"));
    let respond = move |_: &Pull, found: &FoundPage| {
        let Some(page) = &found.page else { return Err(missing("not in this conversation")) };
        match page.rows.first() {
            Some(row) => {
                let mut entry = page_entry(page, row);
                entry.insert("conversation".into(), json!(id.as_str()));
                Ok(Value::Object(entry))
            }
            None if !page.recalled.is_empty() => Err(missing("the message was recalled")),
            None if !page.expired.is_empty() => Err(missing("removed, or not visible to this user")),
            None => Err(missing("not in this conversation")),
        }
    };
    read(&api, &caller, pull, as_user, respond).await.map(Json)
}

/// Reads a page, and builds its response in the same turn.
async fn read(
    api: &Api,
    caller: &Caller,
    pull: Pull,
    as_user: Option<UserId>,
    respond: impl FnOnce(&Pull, &FoundPage) -> Result<Value, Problem> + Send + 'static,
) -> Result<Value, Problem> {
    let conversation = pull.conversation.clone();
    let bytes = PageBytes { content: ENTRIES_BYTES_MAX, entries: ENTRIES_BYTES_MAX };
    let work = move |store: Arc<dyn Store>, above| async move {
        let reader = match &as_user {
            Some(user) => Some(reader(&*store, user).await?),
            None => None,
        };
        let viewer = reader.as_ref().map_or(Viewer::Admin, Viewer::User);
        let found = read_history(&*store, viewer, &pull, bytes, above).await?;
        respond(&pull, &found)
    };
    in_turn(api, caller, beyond_head(&api.cluster, &conversation), work).await
}

/// Returns what a request asks for.
fn pull(id: &ConversationId, query: &HistoryQuery, list: &ListName<'_>) -> Result<Pull, Problem> {
    let number = |name: &str, value: u64| match value <= NUMBER_MAX {
        true => Ok(value),
        false => Err(bad(format!("{name}: at most {NUMBER_MAX}"))),
    };
    let limit = limit(query.limit)?;
    let (which, limit) = match query {
        HistoryQuery { cursor: None, direction, seqs: None, around: None, since: None, .. } => {
            let is_forward = *direction == Some(PageDirection::Forward);
            (if is_forward { Which::After(0) } else { Which::Before(u64::MAX) }, limit)
        }
        HistoryQuery {
            cursor: Some(cursor), direction: None, seqs: None, around: None, since: None, ..
        } => match list.position(cursor)? {
            CursorPosition::Before(seq) => (Which::Before(seq), limit),
            CursorPosition::After(seq) => (Which::After(seq), limit),
            _ => return Err(Problem(Code::CursorInvalid, String::new())),
        },
        HistoryQuery {
            cursor: None, direction: None, seqs: Some(seqs), around: None, since: None, ..
        } => (Which::Seqs(parse_seqs(seqs)?), SEQS_MAX),
        HistoryQuery {
            cursor: None, direction: None, seqs: None, around: Some(seq), since: None, ..
        } => {
            // The limit counts both sides.
            (Which::Around(number("around", *seq)?.max(1)), (limit / 2).max(1))
        }
        HistoryQuery {
            cursor: None, direction: None, seqs: None, around: None, since: Some(time), ..
        } => (Which::Since(number("since", *time)?), limit),
        _ => return Err(bad("use one of cursor, direction, seqs, around, since")),
    };
    Ok(Pull { conversation: id.clone(), which, limit })
}

/// Parses seqs, separated by commas, and sorts them.
fn parse_seqs(text: &str) -> Result<Vec<u64>, Problem> {
    let wrong = || bad(format!("seqs: at most {SEQS_MAX} numbers from 1 on, separated by commas"));
    let seqs = text.split(',').map(|seq| seq.parse().ok().filter(|seq| (1..=NUMBER_MAX).contains(seq)));
    let mut seqs = seqs.take(SEQS_MAX + 1).collect::<Option<Vec<u64>>>().ok_or_else(wrong)?;
    if seqs.len() > SEQS_MAX {
        return Err(wrong());
    }
    seqs.sort_unstable();
    seqs.dedup();
    Ok(seqs)
}

/// Returns the response to a pull. A page beyond the end is empty, so that a caller can repeat it until there is more.
fn page(pull: &Pull, found: &FoundPage, list: &ListName<'_>) -> Result<Value, Problem> {
    let (view, none) = (&found.view, HistoryPage::default());
    let page = match (&found.page, &pull.which) {
        (Some(page), _) => page,
        // A cursor names a seq that existed.
        (None, Which::After(cursor)) if *cursor > view.max() && view.is_open() => {
            return Err(NOT_STORED.into());
        }
        (None, Which::Around(seq)) => {
            return Err(Problem(Code::NotFound, format!("seq {seq}: not in this conversation")));
        }
        (None, _) => &none,
    };
    let mut body = json!({
        "conversation": pull.conversation.as_str(),
        "messages": page.rows.iter().map(|row| page_entry(page, row)).collect::<Vec<_>>(),
        "recalled": page.recalled,
        "expired": page.expired.iter().map(|it| json!({"first": it.first, "last": it.last})).collect::<Vec<_>>(),
        "completeTo": page.expired.last().map_or(0, |it| it.last).max(view.max()),
    });
    if let (false, Some(body)) = (page.left.is_empty(), body.as_object_mut()) {
        body.insert("left".into(), json!(page.left));
    }
    let (before, after) = ends(pull, page, view.max());
    if let (Some(before), Some(body)) = (before.filter(|before| *before > 1), body.as_object_mut()) {
        body.insert("older".into(), json!(list.cursor(&CursorPosition::Before(before))));
    }
    // Nothing follows the end of a membership or of the group, or the bound of the user.
    let after = after.filter(|after| view.is_open() || *after < view.max());
    if let (Some(after), Some(body)) = (after, body.as_object_mut()) {
        body.insert("newer".into(), json!(list.cursor(&CursorPosition::After(after))));
    }
    Ok(body)
}

/// Returns the seqs before and after which the neighbouring pages begin; `None` for single seqs.
fn ends(pull: &Pull, page: &HistoryPage, max: u64) -> (Option<u64>, Option<u64>) {
    if matches!(pull.which, Which::Seqs(_)) {
        return (None, None);
    }
    let seqs = || {
        let rows = page.rows.iter().map(|row| row.row.seq).chain(page.recalled.iter().copied());
        rows.chain(page.expired.iter().flat_map(|range| [range.first, range.last]))
    };
    let (first, last) = match pull.which {
        Which::After(cursor) => (cursor.saturating_add(1), cursor),
        Which::Before(cursor) => {
            let last = cursor.saturating_sub(1).min(max);
            (last.saturating_add(1), last)
        }
        Which::Since(_) | Which::Seqs(_) | Which::Around(_) => (max.saturating_add(1), max),
    };
    let first = seqs().min().unwrap_or(first);
    let last = match pull.which {
        // Entries beyond the first page of a cut one may be missing at its end.
        Which::Before(_) => last,
        _ => seqs().max().unwrap_or(last),
    };
    (Some(first), Some(last))
}
