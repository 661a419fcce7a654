//! Many messages in one request, with the outcome of each: a batch of different messages, or one to many conversations.
//!
//! The request as a whole is checked first, and nothing is done if it has the wrong form. Messages of one conversation are
//! appended as they are listed; nothing is promised across conversations.

use std::{collections::BTreeMap, fmt, marker::PhantomData, pin::pin, sync::Arc, time::Duration};

use axum::{Json, extract::State, http::HeaderMap};
use futures_util::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{Value, json, value::RawValue};
use tidegate_protocol::{
    Code,
    id::{ConversationId, ConversationKind},
};
use tokio::{sync::Semaphore, time::Instant};

use super::{
    SendSource,
    form::{ContentForm, FlagWord, SendMessage, flags, one_id},
    sender::{MessageSender, OutgoingMessage, SentMessage},
};
use crate::api::{
    Api, Problem, ProblemDetails,
    access::idempotency_key,
    extract::{JsonObject, parse_object},
};

/// Most messages of a batch, and most targets of a broadcast.
const ITEMS_MAX: usize = 1_000;

/// Most messages of one conversation in an ordered batch, each of which waits for the answer to the one before.
const ORDERED_MAX: usize = 100;

/// Most messages of one request that are in flight or wait for their turn, so that a long list keeps those of others waiting
/// no longer than a short one.
const LIST_IN_FLIGHT_MAX: usize = 16;

/// Time until the last message of a request is queued for the log. It still gets its answer, within 5 s, and the request its
/// two entries in the audit log, 3 s each, before the response is due.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(15);

/// Most bytes of a target, with its kind and two users.
const TARGET_BYTES_MAX: usize = 160;

/// Request for many messages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SendBatch {
    /// Messages, each checked by itself.
    #[serde(deserialize_with = "few")]
    messages: Vec<Box<RawValue>>,
    #[serde(default)]
    ordered: bool,
}

/// Request for one message to many conversations.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(in crate::api) struct Broadcast {
    #[serde(deserialize_with = "few")]
    to: Vec<String>,
    #[serde(default)]
    from: Option<String>,
    content: ContentForm,
    #[serde(default)]
    flags: Vec<FlagWord>,
    #[serde(default)]
    request_id: Option<String>,
}

/// Message of a request, by its place in the list.
struct ListedMessage {
    index: usize,
    message: OutgoingMessage,
}

/// What the messages of one request share while they are sent.
struct ListSending<'a> {
    sender: &'a MessageSender,
    source: &'a SendSource,
    /// Turns of the messages among those of the request.
    turns: Semaphore,
    until: Instant,
}

type Outcome = Result<SentMessage, ProblemDetails>;

/// Outcomes of messages, by their places in the list.
type Outcomes = Vec<(usize, Outcome)>;

/// Sends a batch.
pub(in crate::api) async fn send(
    State(api): State<Api>,
    source: SendSource,
    headers: HeaderMap,
    JsonObject(body): JsonObject<SendBatch>,
) -> Result<Json<Value>, Problem> {
    if idempotency_key(&headers)?.is_some() {
        let why = "Idempotency-Key is not for batches: give each message a requestId";
        return Err(Problem(Code::BadContent, why.to_owned()));
    }
    let sender: Arc<MessageSender> = Arc::clone(&api.messages);
    let prepare = |item: &RawValue| -> Result<OutgoingMessage, ProblemDetails> {
        Ok(sender.prepare(parse_object::<SendMessage>(item.get().as_bytes())?, None)?)
    };
    // Each text is dropped when its message is made of it.
    let prepared: Vec<_> = body.messages.into_iter().map(|item| prepare(&item)).collect();
    if body.ordered {
        check_ordered(&prepared)?;
    }
    let outcomes = send_all(&sender, &source, prepared, body.ordered).await;
    Ok(response(outcomes, |_, outcome| outcome))
}

/// Sends one message to many conversations.
pub(in crate::api) async fn broadcast(
    State(api): State<Api>,
    source: SendSource,
    headers: HeaderMap,
    JsonObject(body): JsonObject<Broadcast>,
) -> Result<Json<Value>, ProblemDetails> {
    let id = one_id(body.request_id, idempotency_key(&headers)?)?;
    let missing = || Problem(Code::BadContent, "requestId: needed, here or as Idempotency-Key".to_owned());
    let id = id.ok_or_else(missing)?;
    let sender: Arc<MessageSender> = Arc::clone(&api.messages);
    let mut draft = sender.draft(body.from.as_deref(), body.content, Some(&id), None)?;
    draft.flags = flags(&body.flags);
    let addressed = |to: &String| draft.clone().addressed(to).map_err(ProblemDetails::from);
    let prepared = body.to.iter().map(addressed).collect();
    let outcomes = send_all(&sender, &source, prepared, false).await;
    Ok(response(outcomes, |index, mut outcome| {
        outcome["to"] = named(&body.to[index]).into();
        outcome
    }))
}

/// Returns a target as an outcome names it: the begin of a text that is too long for one.
fn named(target: &str) -> &str {
    let is_too_long = target.len() > TARGET_BYTES_MAX;
    let end = target.char_indices().nth(TARGET_BYTES_MAX / 4).filter(|_| is_too_long);
    end.and_then(|(end, _)| target.get(..end)).unwrap_or(target)
}

/// Checks what an ordered batch needs to be repeated as a whole: an id of each message, no live rooms, which remember none,
/// and few messages of each conversation. Those of the wrong form are outcomes of their own.
fn check_ordered(prepared: &[Result<OutgoingMessage, ProblemDetails>]) -> Result<(), Problem> {
    let bad = |why: String| Err(Problem(Code::BadContent, why));
    let mut counts: BTreeMap<&ConversationId, usize> = BTreeMap::new();
    for (index, message) in prepared.iter().enumerate() {
        let Ok(message) = message else { continue };
        if message.attempt == 0 {
            return bad(format!("messages[{index}].requestId: needed in an ordered batch"));
        }
        if matches!(message.conversation.kind(), ConversationKind::Room(_)) {
            return bad(format!("messages[{index}].to: no live rooms in an ordered batch; send it alone"));
        }
        let count = counts.entry(&message.conversation).or_default();
        *count += 1;
        if *count > ORDERED_MAX {
            let conversation = &message.conversation;
            return bad(format!(
                "{conversation}: at most {ORDERED_MAX} messages of a conversation in an ordered batch"
            ));
        }
    }
    Ok(())
}

/// Reads a list with at least one and at most [`ITEMS_MAX`] values, and keeps no more, however long it is.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(list: D) -> Result<Vec<T>, D::Error> {
    list.deserialize_seq(FewVisitor(PhantomData))
}

struct FewVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for FewVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of 1 to {ITEMS_MAX} values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element()? {
            if list.len() == ITEMS_MAX {
                return Err(A::Error::custom(format_args!("more than {ITEMS_MAX} values in one request")));
            }
            list.push(value);
        }
        if list.is_empty() { Err(A::Error::invalid_length(0, &self)) } else { Ok(list) }
    }
}

/// Sends messages, and returns their outcomes in the order of the list.
async fn send_all(
    sender: &MessageSender,
    source: &SendSource,
    prepared: Vec<Result<OutgoingMessage, ProblemDetails>>,
    is_ordered: bool,
) -> Vec<Outcome> {
    let mut outcomes: Outcomes = Vec::with_capacity(prepared.len());
    let mut by_conversation: BTreeMap<ConversationId, Vec<ListedMessage>> = BTreeMap::new();
    for (index, message) in prepared.into_iter().enumerate() {
        match message {
            Ok(message) => {
                let message = OutgoingMessage { is_of_batch: true, ..message };
                let list = by_conversation.entry(message.conversation.clone()).or_default();
                list.push(ListedMessage { index, message });
            }
            Err(refusal) => {
                sender.count_refused();
                outcomes.push((index, Err(refusal)));
            }
        }
    }
    let turns = Semaphore::new(LIST_IN_FLIGHT_MAX);
    let sending = &ListSending { sender, source, turns, until: Instant::now() + BEGIN_TIMEOUT };
    let lists = by_conversation.into_values().map(async |list| {
        if is_ordered { sending.one_by_one(list).await } else { sending.in_turn(list).await }
    });
    let mut lists = stream::iter(lists).buffer_unordered(LIST_IN_FLIGHT_MAX);
    while let Some(done) = lists.next().await {
        outcomes.extend(done);
    }
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

impl ListSending<'_> {
    /// Sends the messages of a conversation in order, without waiting for their answers in between.
    async fn in_turn(&self, list: Vec<ListedMessage>) -> Outcomes {
        let (mut in_flight, mut outcomes) = (FuturesUnordered::new(), Vec::with_capacity(list.len()));
        for ListedMessage { index, message } in list {
            let mut begin = pin!(async {
                let turn = self.turns.acquire().await;
                (turn, self.sender.begin(message, self.source, self.until).await)
            });
            // Answers that come meanwhile give back the turns that this message may wait for.
            let (turn, begun) = loop {
                tokio::select! {
                    begun = &mut begin => break begun,
                    Some(outcome) = in_flight.next(), if !in_flight.is_empty() => outcomes.push(outcome),
                }
            };
            in_flight.push(async move {
                let _turn = turn;
                (index, self.sender.finish(begun).await)
            });
        }
        while let Some(outcome) = in_flight.next().await {
            outcomes.push(outcome);
        }
        outcomes
    }

    /// Sends the messages of a conversation one after the other, up to the first that is not accepted.
    async fn one_by_one(&self, list: Vec<ListedMessage>) -> Outcomes {
        let (mut outcomes, mut is_broken) = (Vec::with_capacity(list.len()), false);
        for ListedMessage { index, message } in list {
            let outcome = if is_broken {
                self.sender.count_refused();
                let why = "an earlier message of this conversation was not accepted; repeat the whole batch";
                let refusal = ProblemDetails::from(Problem(Code::OrderBroken, why.to_owned()));
                Err(refusal.with("msgId", message.msg_id.as_str()))
            } else {
                let _turn = self.turns.acquire().await;
                self.sender.send(message, self.source, self.until).await
            };
            is_broken = outcome.is_err();
            outcomes.push((index, outcome));
        }
        outcomes
    }
}

/// Returns the body of a response, in which `add` may add to each outcome.
fn response(outcomes: Vec<Outcome>, add: impl Fn(usize, Value) -> Value) -> Json<Value> {
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    let results: Vec<Value> = outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Ok(sent) => {
                let mut body = sent.body();
                body.insert("status".to_owned(), sent.status().as_u16().into());
                Value::Object(body)
            }
            Err(refusal) => Value::Object(refusal.members()),
        })
        .enumerate()
        .map(|(index, outcome)| add(index, outcome))
        .collect();
    Json(json!({"results": results, "failed": failed}))
}
