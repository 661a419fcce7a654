//! Hook `allow`: decides whether a user may join a room, write or signal to a conversation, start one, or recall a message.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_protocol::id::{ConversationId, ConversationKind, RoomId, UserId};

use super::{
    cache::{PairMap, PairQuestion},
    client::HookClient,
    failure::HookFailure,
    reason::AppReason,
    share::UserQuestions,
};
use crate::{config::AllowAction, log_limit::log_limited, metrics::Metrics};

/// Longest time for which an answer holds.
const TTL_MAX: Duration = Duration::from_secs(60);

/// Time for which a conversation is known to have messages.
const STARTED_TTL: Duration = Duration::from_secs(600);

/// Decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookVerdict {
    /// The user may.
    Allowed,
    /// The user may not, for the reason that the application gives.
    Denied(Option<Arc<AppReason>>),
    /// The hook gave no answer and fails closed, or too many questions are in flight.
    Unavailable,
}

/// Settings of the hook.
#[derive(Clone, Debug)]
pub(crate) struct AllowSettings {
    /// Questions that are asked.
    pub(crate) actions: Vec<AllowAction>,
    /// Time for which an answer holds that names none.
    pub(crate) ttl: Duration,
    /// Whether a request is allowed if there is no answer.
    pub(crate) fails_open: bool,
}

/// Hook `allow`.
pub struct AllowHook {
    client: HookClient,
    settings: AllowSettings,
    /// Answers by action, user and target; without an action whether the conversation has messages.
    answers: PairMap<Option<AllowAction>, HookVerdict>,
    questions: UserQuestions,
    metrics: Metrics,
}

#[derive(Serialize)]
struct Question<'a> {
    user: &'a str,
    action: &'static str,
    target: &'a str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    allow: bool,
    ttl_ms: Option<u64>,
    code: Option<Value>,
    message: Option<Value>,
}

/// Target of a message, as requests name it: the other user of a direct conversation, otherwise the conversation.
fn target<'a>(user: &UserId, conversation: &'a ConversationId) -> &'a str {
    match conversation.kind() {
        ConversationKind::Direct(a, b) => {
            if a == user.as_str() {
                b
            } else {
                a
            }
        }
        ConversationKind::Group(_) | ConversationKind::Room(_) => conversation.as_str(),
    }
}

impl AllowHook {
    pub(super) fn new(client: HookClient, settings: AllowSettings, metrics: Metrics) -> Self {
        Self { client, settings, answers: PairMap::new(), questions: UserQuestions::default(), metrics }
    }

    /// Returns whether the user may write to the conversation, if that needs no question.
    pub fn may_write(&self, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        if let ConversationKind::Direct(a, b) = conversation.kind() {
            if a == b {
                return Some(HookVerdict::Allowed);
            }
            if self.asks(AllowAction::Start) && self.known(None, user, conversation.as_str()).is_none() {
                return self.known(Some(AllowAction::Start), user, target(user, conversation));
            }
        }
        self.may(AllowAction::Write, user, conversation)
    }

    /// Decides whether the user may write to the conversation. `has_messages` is evaluated only if it matters.
    pub async fn decide_write(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        has_messages: impl Future<Output = bool>,
    ) -> HookVerdict {
        // A send that waited for its block list has not been checked for a known answer.
        if let Some(known) = self.may_write(user, conversation) {
            return known;
        }
        let is_direct = matches!(conversation.kind(), ConversationKind::Direct(..));
        if is_direct && self.asks(AllowAction::Start) {
            let started = self.known(None, user, conversation.as_str()).is_some();
            if !started && !has_messages.await {
                return self.decide(user, AllowAction::Start, target(user, conversation)).await;
            }
            self.remember(None, user, conversation.as_str(), HookVerdict::Allowed, STARTED_TTL);
        }
        match self.may(AllowAction::Write, user, conversation) {
            Some(known) => known,
            None => self.decide(user, AllowAction::Write, target(user, conversation)).await,
        }
    }

    /// Returns whether the user may join the room, if that needs no question.
    pub fn may_join(&self, user: &UserId, room: &RoomId) -> Option<HookVerdict> {
        match self.asks(AllowAction::Join) {
            true => self.known(Some(AllowAction::Join), user, ConversationId::room(room).as_str()),
            false => Some(HookVerdict::Allowed),
        }
    }

    /// Decides whether the user may join the room.
    pub async fn decide_join(&self, user: &UserId, room: &RoomId) -> HookVerdict {
        self.decide(user, AllowAction::Join, ConversationId::room(room).as_str()).await
    }

    /// Returns whether the user may signal to the conversation, if that needs no question.
    pub fn may_signal(&self, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        self.may(AllowAction::Signal, user, conversation)
    }

    /// Decides whether the user may signal to the conversation.
    pub async fn decide_signal(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide(user, AllowAction::Signal, target(user, conversation)).await
    }

    /// Decides whether the user may recall messages of the conversation.
    pub async fn decide_recall(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide_about(AllowAction::Recall, user, conversation).await
    }

    /// Decides whether the user may edit messages of the conversation: who may write to it may.
    pub async fn decide_edit(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide_about(AllowAction::Write, user, conversation).await
    }

    async fn decide_about(
        &self,
        action: AllowAction,
        user: &UserId,
        conversation: &ConversationId,
    ) -> HookVerdict {
        match self.may(action, user, conversation) {
            Some(known) => known,
            None => self.decide(user, action, target(user, conversation)).await,
        }
    }

    /// Returns whether the action is allowed, if that needs no question: it is not asked about, is between the user's own
    /// devices, or was answered recently.
    fn may(&self, action: AllowAction, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        let is_own = matches!(conversation.kind(), ConversationKind::Direct(a, b) if a == b);
        if is_own || !self.asks(action) {
            return Some(HookVerdict::Allowed);
        }
        self.known(Some(action), user, target(user, conversation))
    }

    fn asks(&self, action: AllowAction) -> bool {
        self.settings.actions.contains(&action)
    }

    fn known(&self, action: Option<AllowAction>, user: &UserId, target: &str) -> Option<HookVerdict> {
        self.answers.get(&PairQuestion { about: action, one: user.as_str(), two: target }, Instant::now())
    }

    fn remember(
        &self,
        action: Option<AllowAction>,
        user: &UserId,
        target: &str,
        verdict: HookVerdict,
        ttl: Duration,
    ) {
        let bytes = match &verdict {
            HookVerdict::Denied(Some(reason)) => reason.bytes(),
            _ => 0,
        };
        let question = PairQuestion { about: action, one: user.as_str(), two: target };
        self.answers.insert(&question, verdict, Instant::now() + ttl, bytes);
    }

    async fn decide(&self, user: &UserId, action: AllowAction, target: &str) -> HookVerdict {
        if let Some(known) = self.known(Some(action), user, target) {
            return known;
        }
        match self.ask(user, action, target).await {
            Ok(verdict) => verdict,
            Err(failure) if failure.is_refusal() => HookVerdict::Denied(None),
            Err(failure) if self.opens(&failure) => {
                self.metrics.hook_allow_unchecked.increment(1);
                HookVerdict::Allowed
            }
            Err(_) => HookVerdict::Unavailable,
        }
    }

    /// Returns whether a request is allowed after the failure. Users can cause refusals and full queues themselves.
    const fn opens(&self, failure: &HookFailure) -> bool {
        self.settings.fails_open && !failure.is_refusal() && !failure.is_full()
    }

    async fn ask(
        &self,
        user: &UserId,
        action: AllowAction,
        target: &str,
    ) -> Result<HookVerdict, HookFailure> {
        self.metrics.hook_allow_calls.increment(1);
        let question = Question { user: user.as_str(), action: action.name(), target };
        let body = serde_json::to_vec(&question).unwrap_or_default();
        let began = Instant::now();
        let answer = match self.questions.admit(user) {
            Some(_admitted) => {
                self.client.call(body, |answer| serde_json::from_slice::<Answer>(answer).ok()).await
            }
            None => Err(HookFailure::UserFull),
        };
        self.metrics.hook_allow_times.record(began.elapsed());
        match answer {
            Ok(Answer { allow, ttl_ms, code, message }) => {
                let ttl = ttl_ms.map_or(self.settings.ttl, Duration::from_millis).min(TTL_MAX);
                let verdict = match allow {
                    true => HookVerdict::Allowed,
                    false => {
                        self.metrics.hook_allow_denials.increment(1);
                        HookVerdict::Denied(AppReason::of(code.as_ref(), message.as_ref()))
                    }
                };
                self.remember(Some(action), user, target, verdict.clone(), ttl);
                Ok(verdict)
            }
            Err(failure) => {
                self.metrics.hook_allow_failures.increment(1);
                let (why, is_allowed) = (failure.text(), self.opens(&failure));
                log_limited!(warn, why, is_allowed, "hook `allow` gave no valid answer");
                Err(failure)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::{
        breaker::GuardedService,
        hooks::{client::ClientSettings, signing::Signer},
        metrics,
    };

    #[tokio::test]
    async fn full_queue_never_opens() {
        let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let timeout = Duration::from_secs(1);
        let client = ClientSettings { timeout, in_flight_max: 0, waiting_max: 0, answer_bytes_max: 0 };
        let client =
            HookClient::new("http://127.0.0.1:1/", Path::new(""), signer, client, GuardedService::HookAllow)
                .unwrap();
        let settings = AllowSettings {
            actions: AllowAction::ALL.to_vec(),
            ttl: Duration::from_secs(10),
            fails_open: true,
        };
        let hook = AllowHook::new(client, settings, metrics::install().0);
        let (ann, hall) = (UserId::new("ann").unwrap(), RoomId::new("hall").unwrap());
        assert_eq!(hook.decide_join(&ann, &hall).await, HookVerdict::Unavailable);
        assert!(!hook.opens(&HookFailure::UserFull) && !hook.opens(&HookFailure::Status(403)));
        assert!(hook.opens(&HookFailure::Timeout) && hook.opens(&HookFailure::Status(500)));
    }
}
