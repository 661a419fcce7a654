//! Parameters of a stream of events: what its client wants, and where it begins.

use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind, UserId},
};

use super::{FeedNumbers, batch::StreamFilter};
use crate::{
    api::{
        ProblemDetails,
        conversations::{
            bad,
            cursor::{CursorPosition, ListName},
        },
        refusal,
    },
    events::NODE_EVENT_TYPES,
    store::FeedKind,
    webhooks::{FILTER_USERS_MAX, WebhookFilter},
};

/// Header in which browsers and libraries repeat the last `id:` when they connect again.
const LAST_EVENT_ID: &str = "last-event-id";

/// Kinds of the feed that have events.
const KINDS: [FeedKind; 5] =
    [FeedKind::Message, FeedKind::Change, FeedKind::Recall, FeedKind::Edit, FeedKind::Prune];

/// Parameters of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct StreamQuery {
    /// Types, or beginnings of types with `*`, separated by commas; `None` for all.
    types: Option<String>,
    /// Conversations, or beginnings of their keys with `*`; `None` for all.
    conversations: Option<String>,
    /// Users of whom an event has to be; `None` for all.
    users: Option<String>,
    /// Whether events have the content of messages.
    #[serde(default)]
    content: bool,
    /// Cursor after which the stream begins.
    after: Option<String>,
    /// Where it begins without a cursor.
    from: Option<FeedEnd>,
}

/// End of the feed.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FeedEnd {
    /// After what is stored now.
    Now,
    /// With the oldest entry that is kept.
    Oldest,
}

/// Start of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamStart {
    Now,
    Oldest,
    /// After these numbers, and with the first entry of other partitions.
    After(FeedNumbers),
}

impl StreamQuery {
    /// Returns whether events with content are requested.
    pub(super) fn with_content(&self) -> bool {
        self.content
    }

    /// Returns what the stream contains and where it begins.
    ///
    /// # Errors
    /// A parameter has no valid value, or contradicts another one.
    pub(super) fn parse(
        self,
        headers: &HeaderMap,
        source: &str,
    ) -> Result<(StreamFilter, StreamStart), ProblemDetails> {
        let (filter, node_types) = self.filter()?;
        let filter = StreamFilter::new(filter, source, self.content).with_nodes(node_types);
        if self.after.is_some() && self.from.is_some() {
            return Err(bad("after and from: only one of them").into());
        }
        // A client that connects again repeats its first request, with the header added.
        let last = match headers.get(LAST_EVENT_ID) {
            Some(value) if !value.is_empty() => Some(value.to_str().map_err(|_| unreadable())?),
            _ => None,
        };
        let start = match (last.or(self.after.as_deref()), self.from) {
            (Some(cursor), _) => StreamStart::After(numbers(source, cursor)?),
            (None, Some(FeedEnd::Oldest)) => StreamStart::Oldest,
            (None, Some(FeedEnd::Now) | None) => StreamStart::Now,
        };
        Ok((filter, start))
    }

    /// Returns what is wanted of the feed, and the types of changes of the cluster. These have neither a conversation nor a
    /// user, and come only to those that ask for their types.
    fn filter(&self) -> Result<(WebhookFilter, Vec<&'static str>), ProblemDetails> {
        let types = items("types", self.types.as_deref())?;
        let conversations = items("conversations", self.conversations.as_deref())?;
        let may_have_nodes = self.conversations.is_none() && self.users.is_none();
        let mut node_types = Vec::new();
        let named = !types.is_empty();
        let types = if types.is_empty() { vec!["tidegate.*".to_owned()] } else { types };
        let conversations: Vec<String> =
            conversations.iter().map(|it| conversation(it)).collect::<Result<_, _>>()?;
        for wanted in &types {
            let alone = new_filter(std::slice::from_ref(wanted), &[], &[])?;
            // Of any conversation.
            let has_events = ConversationId::parse("g:any")
                .is_ok_and(|any| KINDS.iter().any(|kind| alone.may_want(&any, *kind)));
            let of_nodes = NODE_EVENT_TYPES.into_iter().filter(|kind| named && alone.wants_type(kind));
            let of_nodes: Vec<_> = of_nodes.collect();
            if !has_events && of_nodes.is_empty() {
                let message = format!("types: the stream has no events of `{wanted}`");
                let cure = "Use types of docs/events.md (the feed), such as tidegate.message.accepted, or tidegate.member.* for several.";
                return Err(refusal(StatusCode::BAD_REQUEST, Code::BadContent, &message, cure));
            }
            if may_have_nodes {
                node_types.extend(of_nodes);
            } else if !has_events {
                let message = format!("types: events of `{wanted}` are of no conversation and of no user");
                let cure = "Open a stream without conversations and users for changes of the cluster.";
                return Err(refusal(StatusCode::BAD_REQUEST, Code::BadContent, &message, cure));
            }
        }
        Ok((new_filter(&types, &conversations, &users(self.users.as_deref())?)?, node_types))
    }
}

/// Returns the users of a list.
fn users(list: Option<&str>) -> Result<Vec<String>, ProblemDetails> {
    let users = items("users", list)?;
    if users.len() > FILTER_USERS_MAX {
        return Err(bad(format!("users: at most {FILTER_USERS_MAX}")).into());
    }
    for user in &users {
        UserId::new(user).map_err(|error| wrong_id(&format!("users: `{user}`: {error}")))?;
    }
    Ok(users)
}

fn new_filter(
    types: &[String],
    conversations: &[String],
    users: &[String],
) -> Result<WebhookFilter, ProblemDetails> {
    WebhookFilter::new(types, conversations, users)
        .map_err(|error| bad(format!("types, conversations: {error}")).into())
}

/// Returns the items of a list; none if it is absent.
fn items(name: &str, list: Option<&str>) -> Result<Vec<String>, ProblemDetails> {
    let items: Vec<String> = list.into_iter().flat_map(|list| list.split(',')).map(str::to_owned).collect();
    if items.iter().any(String::is_empty) {
        return Err(bad(format!("{name}: write values that are separated by commas, or leave it out")).into());
    }
    Ok(items)
}

/// Returns the pattern of a conversation, whose users may be in any order. Rooms are not in the feed.
fn conversation(text: &str) -> Result<String, ProblemDetails> {
    let refused = |why: &str| wrong_id(&format!("conversations: `{text}`: {why}"));
    if let Some(beginning) = text.strip_suffix('*') {
        let is_possible =
            ["d:", "g:"].iter().any(|it| it.starts_with(beginning) || beginning.starts_with(it));
        let why = "no stored conversation begins so; keys begin with d: or g:";
        return if is_possible { Ok(text.to_owned()) } else { Err(refused(why)) };
    }
    let key = ConversationId::addressable(text).map_err(|error| refused(&error.to_string()))?;
    match key.kind() {
        ConversationKind::Room(_) => Err(refused("messages of live rooms are not stored and have no events")),
        ConversationKind::Direct(..) | ConversationKind::Group(_) => Ok(key.as_str().to_owned()),
    }
}

fn wrong_id(message: &str) -> ProblemDetails {
    let cure = "Name users by their ids, and conversations by keys such as g:team or d:alice:bob, or by a beginning with *: g:*.";
    refusal(StatusCode::BAD_REQUEST, Code::BadId, message, cure)
}

/// Returns the cursor after these numbers. It belongs to the feed and not to a filter, so that a client which wants more
/// types from now on misses nothing.
pub(super) fn cursor(source: &str, numbers: &FeedNumbers) -> String {
    list(&[source]).cursor(&CursorPosition::Feed(numbers.clone()))
}

fn list<'a>(filters: &'a [&'a str]) -> ListName<'a> {
    ListName { name: "feed", filters }
}

fn numbers(source: &str, cursor: &str) -> Result<FeedNumbers, ProblemDetails> {
    match list(&[source]).position(cursor) {
        Ok(CursorPosition::Feed(numbers)) => Ok(numbers),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> ProblemDetails {
    let message = "the cursor is damaged, or was made by another cluster";
    let cure =
        "Take it from the last `id:` line of a stream of this cluster; without one, begin with from=oldest.";
    refusal(StatusCode::BAD_REQUEST, Code::CursorInvalid, message, cure)
}
