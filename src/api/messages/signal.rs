//! Signals of the admin API: volatile events to those who are connected, which nobody stores.

use std::{collections::HashSet, sync::Arc};

use axum::{Extension, Json, extract::State, http::StatusCode};
use prost::Message as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    codec::PushFrame,
    content::Content,
    id::{ConversationId, ConversationKind, UserId, check_id},
    machine::gate::GateClass,
    pb::{self, server_frame::Body as FrameBody},
};

use super::{
    SendSource,
    form::{ContentForm, target},
    recall::user_in,
    sender::{MessageSender, SenderParts},
};
use crate::{
    api::{Api, Problem, ProblemDetails, access::Caller, conversations::turns, extract::JsonObject},
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
    Extension(caller): Extension<Caller>,
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
    sender.check_load(&source, GateClass::Signal)?;
    sender.check_sender(&from)?;
    let is_of_others =
        matches!(conversation.kind(), ConversationKind::Direct(..)) && !conversation.is_direct_of(&from);
    if is_of_others && !sender.is_system(&from) {
        let why = "this is a direct conversation of other users".to_owned();
        return Err(Problem(Code::NotAMember, why).into());
    }
    if sender.is_blocked(&from, &conversation).await? {
        return Err(Problem(Code::Forbidden, String::new()).into());
    }
    sender.admit_signal(&from, &conversation, &source).await?;
    let (audience, only) = sender.recipients_of_signal(&from, &conversation, &api, &caller).await?;
    let signal = pb::Signal {
        conversation: conversation.to_string(),
        kind: body.kind,
        content,
        sender: from.to_string(),
        ..Default::default()
    };
    let frame = Arc::new(PushFrame::new(&pb::ServerFrame { id: 0, body: Some(FrameBody::Signal(signal)) }));
    let key = conversation.to_string();
    let dropped = api.reads.devices.signal(&Volatile { conversation, audience, only, frame, origin: None });
    sender.parts.metrics.signals_dropped.increment(dropped);
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
        caller: &Caller,
    ) -> Result<(Audience, GroupUsers), Problem> {
        if let ConversationKind::Direct(one, other) = conversation.kind() {
            let both = [one, other].into_iter().take(if one == other { 1 } else { 2 });
            return Ok((Audience::Users(both.filter_map(|id| UserId::new(id).ok()).collect()), None));
        }
        let (group, max) = (conversation.clone(), self.parts.small_group_max);
        let read = turns::in_turn(api, caller, async {}, move |store, ()| async move {
            group_size::with_members(&*store, &group, max).await.map_err(|code| Problem(code, String::new()))
        });
        let size = match read.await {
            Err(Problem(Code::NotAMember, _)) => {
                return Err(Problem(Code::NotFound, "there is no such group".to_owned()));
            }
            size => size?,
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

    /// Counts a signal in the limit of its sender, and in the rules of the sender, the conversation and the like.
    async fn admit_signal(
        &self,
        from: &UserId,
        conversation: &ConversationId,
        source: &SendSource,
    ) -> Result<(), ProblemDetails> {
        let SenderParts { rules, limiter, conn_settings, .. } = &self.parts;
        let refused = |why: &str, wait| {
            Err(ProblemDetails::from(Problem(Code::RateLimited, why.to_owned())).after(wait))
        };
        if conn_settings.get().limits.signals_per_second == 0 {
            let why = "no signals are accepted (limits.signals_per_second = 0)".to_owned();
            return Err(Problem(Code::Unsupported, why).into());
        }
        if !self.is_system(from)
            && let Err(wait) = limiter.signal(from, rules.now())
        {
            return refused("the user sends more signals than limits.signals_per_second allows", wait);
        }
        let subjects = LimitSubjects {
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
                    return refused("a rule (GET /v1/rules) refuses this signal for now", refusal.wait);
                }
            }
        }
    }
}
