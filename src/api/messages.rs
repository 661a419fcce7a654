//! Messages that back ends send by the admin API: one, a batch, or one to many conversations; edits, recalls and
//! signals.

use std::{collections::BTreeMap, convert::Infallible, net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{HeaderMap, StatusCode, request::Parts},
    response::{IntoResponse as _, Response},
};
use serde_json::{Map, Value};
use tidegate_protocol::{id::MsgId, trace::TraceContext};
use tokio::time::Instant;

pub(super) mod batch;
pub(super) mod edit;
pub(super) mod form;
mod limits;
mod mode;
pub(super) mod recall;
mod room;
mod sender;
pub(super) mod signal;

pub(super) use self::form::one_id;
pub use self::sender::{MessageSender, SenderParts};
use self::{form::SendMessage, sender::SentMessage};
use super::{
    Api, ProblemDetails,
    access::{Caller, MessageIdForNow, channel_of, idempotency_key},
    caller::Ends,
    extract::JsonObject,
};
use crate::drain::Drainer;

/// Longest time until a single message is queued for the log.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Caller on whose behalf messages are sent, as the rules of limits count it.
pub(super) struct SendSource {
    key: Option<String>,
    address: Option<IpAddr>,
    channel: Option<String>,
    /// Id of a single message whose request has none.
    fresh: Option<MsgId>,
    /// Trace that the request belongs to, by its header `traceparent`.
    trace: Option<TraceContext>,
    drainer: Arc<Drainer>,
}

impl FromRequestParts<Api> for SendSource {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, Infallible> {
        let caller = parts.extensions.get::<Caller>();
        let ends = parts.extensions.get::<Ends>();
        Ok(Self {
            key: caller.and_then(Caller::key).map(str::to_owned),
            address: ends.map(|ends| ends.caller.ip().to_canonical()),
            channel: channel_of(&parts.headers),
            fresh: parts.extensions.get::<MessageIdForNow>().map(|MessageIdForNow(id)| id.clone()),
            trace: parts.headers.get("traceparent").and_then(|it| it.to_str().ok()?.parse().ok()),
            drainer: Arc::clone(&api.drainer),
        })
    }
}

impl SentMessage {
    /// Returns the status of the response to a request that sends this message alone.
    const fn status(&self) -> StatusCode {
        match self {
            Self { is_stored: false, .. } => StatusCode::ACCEPTED,
            Self { is_duplicate: true, .. } => StatusCode::OK,
            _ => StatusCode::CREATED,
        }
    }

    /// Returns the body of that response.
    fn body(&self) -> Map<String, Value> {
        let mut body: BTreeMap<&str, Value> = BTreeMap::from([
            ("conversation", self.conversation.as_str().into()),
            ("msgId", self.msg_id.as_str().into()),
            ("seq", self.seq.into()),
            ("time", self.time.into()),
            ("duplicate", self.is_duplicate.into()),
        ]);
        if !self.is_stored {
            body.insert("stored", false.into());
        }
        body.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// Sends one message, and answers when a client's send would be acked.
pub(super) async fn send(
    State(api): State<Api>,
    source: SendSource,
    headers: HeaderMap,
    JsonObject(body): JsonObject<SendMessage>,
) -> Result<Response, ProblemDetails> {
    let sender: Arc<MessageSender> = Arc::clone(&api.messages);
    let body = body.with_key(idempotency_key(&headers)?)?;
    let message = match sender.prepare(body, source.fresh.clone()) {
        Ok(message) => message,
        Err(problem) => {
            sender.count_refused();
            return Err(problem.into());
        }
    };
    let sent = sender.send(message, &source, Instant::now() + TURN_TIMEOUT).await?;
    Ok((sent.status(), Json(Value::Object(sent.body()))).into_response())
}
