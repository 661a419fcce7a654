//! Signals of the admin API: volatile events to those who are connected, which nobody stores.

use std::{collections::HashSet, sync::Arc};

use axum::{Json, extract::State, http::StatusCode};
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    content::Content,
    id::{ConversationId, ConversationKind, UserId, check_id},
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    SendSource,
    form::{ContentForm, target},
    recall::user_in,
    sender::{MessageSender, SenderParts},
};
use crate::{
    api::{Api, Problem, ProblemDetails, extract::JsonObject},
    conversation::group_size,
    limits::{LimitCall, LimitRefusal, LimitSubjects, LimitWaits},
    mail::{Audience, Volatile},
};

/// Request for one signal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct SendSignal {
    to: String,
    #[serde(default)]
    from: Option<String>,
    kind: String,
    #[serde(default)]
    content: Option<ContentForm>,
}

/// Sends a signal to the devices of its recipients that are connected now.
pub(in crate::api) async fn send(
    State(api): State<Api>,
    source: SendSource,
    JsonObject(body): JsonObject<SendSignal>,
) -> Result<(StatusCode, Json<Value>), ProblemDetails> {
    let sender = &api.messages;
    let SenderParts { conn_settings, system_user, .. } = &sender.parts;
    let from = body.from.as_deref().map(|id| user_in("from", id)).transpose()?;
    let from = from.unwrap_or_else(|| system_user.clone());
    let conversation = target(&body.to, &from)?;
    if matches!(conversation.kind(), ConversationKind::Room(_)) {
        let why = "a live room accepts no signals; send a message, which is as volatile".to_owned();
        return Err(Problem(Code::Unsupported, why).into());
    }
    check_id(&body.kind).map_err(|error| Problem(Code::BadId, format!("kind: {error}")))?;
    let bytes_max = conn_settings.get().limits.signal_bytes_max as usize;
    let content = body.content.map(|content| content.encoded(bytes_max)).transpose()?;
    let content = content.map(Content::decode).transpose();
    let content = content.map_err(|error| Problem(Code::BadContent, format!("content: {error}")))?;
    sender.check_node(&conversation, &source)?;
    sender.check_sender(&from)?;
    if sender.is_blocked(&from, &conversation).await? {
        return Err(Problem(Code::Forbidden, String::new()).into());
    }
    let (audience, only) = sender.recipients_of_signal(&from, &conversation, &api).await?;
    sender.admit_signal(&from, &conversation, &source).await?;
    let signal = pb::Signal {
        conversation: conversation.to_string(),
        kind: body.kind,
        content,
        sender: from.to_string(),
        ..Default::default()
    };
    let frame = Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(FrameBody::Signal(signal)) }));
    let key = conversation.to_string();
    api.reads.devices.signal(&Volatile { conversation, audience, only, frame, origin: None });
    Ok((StatusCode::ACCEPTED, Json(json!({"conversation": key, "stored": false}))))
}

/// Members of a small group; `None` for a direct conversation.
type GroupUsers = Option<Arc<HashSet<UserId>>>;

impl MessageSender {
    /// Returns who gets a signal: both users, or the members of a small group, of which its sender must be one.
    async fn recipients_of_signal(
        &self,
        from: &UserId,
        conversation: &ConversationId,
        api: &Api,
    ) -> Result<(Audience, GroupUsers), Problem> {
        if let ConversationKind::Direct(one, other) = conversation.kind() {
            let both = [one, other].into_iter().take(if one == other { 1 } else { 2 });
            return Ok((Audience::Users(both.filter_map(|id| UserId::new(id).ok()).collect()), None));
        }
        let (store, max) = (&*api.cluster.ports.store, self.parts.small_group_max);
        let size = group_size::with_members(store, conversation, max).await;
        let size = match size {
            Err(Code::NotAMember) => {
                return Err(Problem(Code::NotFound, "there is no such group".to_owned()));
            }
            size => size.map_err(|code| Problem(code, String::new()))?,
        };
        if !size.small {
            return Err(Problem(Code::Forbidden, "signals go to small groups only".to_owned()));
        }
        let is_member = size.members.as_ref().is_some_and(|members| members.contains(from));
        if !is_member && !self.is_system(from) {
            return Err(Problem(Code::NotAMember, String::new()));
        }
        Ok((Audience::Members, size.members))
    }

    /// Counts a signal in the rules of its key, its sender and the like.
    async fn admit_signal(
        &self,
        from: &UserId,
        conversation: &ConversationId,
        source: &SendSource,
    ) -> Result<(), ProblemDetails> {
        let rules = &self.parts.rules;
        let subjects = LimitSubjects {
            key: source.key.as_deref(),
            address: source.address,
            channel: source.channel.as_deref(),
            user: Some(from).filter(|from| !self.is_system(from)).map(UserId::as_str),
            conversation: Some(conversation.as_str()),
            ..LimitSubjects::default()
        };
        let mut waits = LimitWaits::default();
        loop {
            let admitted =
                rules.admit(LimitCall::Signal, &subjects, rules.now(), waits, || Ok::<_, LimitRefusal>(()));
            let Err(refusal) = admitted else { return Ok(()) };
            match refusal.asking {
                Some(asking) => {
                    waits = asking.waits;
                    asking.answered().await;
                }
                None => {
                    let why = "a rule (GET /v1/rules) refuses this signal for now".to_owned();
                    return Err(ProblemDetails::from(Problem(Code::RateLimited, why)).after(refusal.wait));
                }
            }
        }
    }
}
