//! Many messages in one request, with the outcome of each: a batch of different messages, or one to many conversations.
//!
//! The request as a whole is checked first, and nothing is done if it has the wrong form. Messages of one conversation are
//! appended as they are listed; nothing is promised across conversations.

use std::{collections::BTreeMap, fmt, marker::PhantomData, pin::pin, sync::Arc, time::Duration};

use axum::{Json, extract::State, http::HeaderMap};
use futures_util::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_json::{Value, json, value::RawValue};
use tidegate_protocol::{Code, id::ConversationId};
use tokio::time::Instant;

use super::{
    SendSource,
    form::{ContentForm, SendMessage, idempotency_key, one_id},
    sender::{MessageSender, OutgoingMessage, SentMessage},
};
use crate::api::{
    Api, Problem, ProblemDetails,
    extract::{JsonObject, parse_object},
};

/// Most messages of a batch, and most targets of a broadcast.
const ITEMS_MAX: usize = 1_000;

/// Most messages of one conversation in an ordered batch, each of which waits for the answer to the one before.
const ORDERED_MAX: usize = 100;

/// Time in which the messages of a request have to begin. Those that begin last still get their answers before the response
/// is due: 3 s for a block list, and 5 s for the log.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(20);

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
    request_id: String,
}

/// Message of a request, by its place in the list.
struct ListedMessage {
    index: usize,
    message: OutgoingMessage,
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
        Ok(sender.prepare(parse_object::<SendMessage>(item.get().as_bytes())?)?)
    };
    let prepared = body.messages.iter().map(|item| prepare(item.as_ref())).collect();
    let outcomes = send_all(&sender, &source, prepared, body.ordered).await?;
    Ok(response(outcomes, |_, outcome| outcome))
}

/// Sends one message to many conversations.
pub(in crate::api) async fn broadcast(
    State(api): State<Api>,
    source: SendSource,
    headers: HeaderMap,
    JsonObject(body): JsonObject<Broadcast>,
) -> Result<Json<Value>, ProblemDetails> {
    let id = one_id(Some(body.request_id), idempotency_key(&headers)?)?;
    let sender: Arc<MessageSender> = Arc::clone(&api.messages);
    let draft = sender.draft(body.from.as_deref(), body.content, id.as_deref())?;
    let addressed = |to: &String| draft.clone().addressed(to).map_err(ProblemDetails::from);
    let prepared = body.to.iter().map(addressed).collect();
    let outcomes = send_all(&sender, &source, prepared, false).await?;
    Ok(response(outcomes, |index, mut outcome| {
        outcome["to"] = body.to[index].as_str().into();
        outcome
    }))
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
) -> Result<Vec<Outcome>, Problem> {
    let mut outcomes: Outcomes = Vec::with_capacity(prepared.len());
    let mut by_conversation: BTreeMap<ConversationId, Vec<ListedMessage>> = BTreeMap::new();
    for (index, message) in prepared.into_iter().enumerate() {
        match message {
            Ok(message) => {
                let message = OutgoingMessage { is_of_batch: true, ..message };
                let list = by_conversation.entry(message.conversation.clone()).or_default();
                list.push(ListedMessage { index, message });
            }
            Err(refusal) => outcomes.push((index, Err(refusal))),
        }
    }
    let longest = by_conversation.iter().find(|(_, list)| is_ordered && list.len() > ORDERED_MAX);
    if let Some((conversation, _)) = longest {
        let why =
            format!("{conversation}: at most {ORDERED_MAX} messages of a conversation in an ordered batch");
        return Err(Problem(Code::BadContent, why));
    }
    let until = Instant::now() + BEGIN_TIMEOUT;
    let lists = by_conversation.into_values().map(async |list| {
        if is_ordered {
            send_one_by_one(sender, source, list, until).await
        } else {
            send_listed(sender, source, list, until).await
        }
    });
    outcomes.extend(join_all(lists).await.into_iter().flatten());
    outcomes.sort_unstable_by_key(|(index, _)| *index);
    Ok(outcomes.into_iter().map(|(_, outcome)| outcome).collect())
}

/// Sends the messages of a conversation in order, without waiting for their answers in between.
async fn send_listed(
    sender: &MessageSender,
    source: &SendSource,
    list: Vec<ListedMessage>,
    until: Instant,
) -> Outcomes {
    let (mut in_flight, mut outcomes) = (FuturesUnordered::new(), Vec::with_capacity(list.len()));
    for ListedMessage { index, message } in list {
        let mut begin = pin!(sender.begin(message, source, until));
        // Answers that come meanwhile give back the places that this message may wait for.
        let begun = loop {
            tokio::select! {
                begun = &mut begin => break begun,
                Some(outcome) = in_flight.next(), if !in_flight.is_empty() => outcomes.push(outcome),
            }
        };
        in_flight.push(async move { (index, sender.finish(begun).await) });
    }
    while let Some(outcome) = in_flight.next().await {
        outcomes.push(outcome);
    }
    outcomes
}

/// Sends the messages of a conversation one after the other, up to the first that is not accepted.
async fn send_one_by_one(
    sender: &MessageSender,
    source: &SendSource,
    list: Vec<ListedMessage>,
    until: Instant,
) -> Outcomes {
    let (mut outcomes, mut is_broken) = (Vec::with_capacity(list.len()), false);
    for ListedMessage { index, message } in list {
        let outcome = if is_broken {
            let why = "an earlier message of this conversation was not accepted; repeat the whole batch";
            let refusal = ProblemDetails::from(Problem(Code::OrderBroken, why.to_owned()));
            Err(refusal.with("msgId", message.msg_id.as_str()))
        } else {
            sender.send(message, source, until).await
        };
        is_broken = outcome.is_err();
        outcomes.push((index, outcome));
    }
    outcomes
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
