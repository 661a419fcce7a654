//! Hook `allow`: decides whether a user may join a room, write or signal to a conversation, start one, or recall a message.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_protocol::id::{ConversationId, ConversationKind, RoomId, UserId};
use tokio::time::Instant as Deadline;

use super::{
    cache::{PairMap, PairQuestion},
    client::HookClient,
    failure::HookFailure,
    reason::AppReason,
    share::UserQuestions,
    started::StartedConversations,
};
use crate::{config::AllowAction, log_limit::log_limited, metrics::Metrics};

/// Longest time for which an answer holds.
const TTL_MAX: Duration = Duration::from_secs(60);

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

/// Whether the node knows that a question is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuestionBasis {
    /// The node does.
    Known,
    /// The store could not tell, so the stricter question is asked. A denial is not remembered: it would outlast that.
    Assumed,
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
    /// Answers by action, user and target.
    answers: PairMap<AllowAction, HookVerdict>,
    started: StartedConversations,
    questions: UserQuestions,
    metrics: Metrics,
}

/// Question about a request of a user.
#[derive(Clone, Copy)]
struct AllowQuestion<'a> {
    action: AllowAction,
    user: &'a UserId,
    conversation: &'a ConversationId,
    basis: QuestionBasis,
}

impl<'a> AllowQuestion<'a> {
    /// Returns what an answer to the question is remembered by.
    fn key(&self) -> PairQuestion<'a, AllowAction> {
        let two = target(self.user, self.conversation);
        PairQuestion { about: self.action, one: self.user.as_str(), two }
    }
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
        let started = StartedConversations::new(client.timeout());
        Self {
            client,
            settings,
            answers: PairMap::new(),
            started,
            questions: UserQuestions::default(),
            metrics,
        }
    }

    /// Returns whether the user may write to the conversation, if that needs no question.
    pub fn may_write(&self, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        if let ConversationKind::Direct(a, b) = conversation.kind() {
            if a == b {
                return Some(HookVerdict::Allowed);
            }
            if self.asks(AllowAction::Start) && !self.started.is_known(conversation) {
                return self.known(AllowAction::Start, user, conversation);
            }
        }
        self.may(AllowAction::Write, user, conversation)
    }

    /// Decides whether the user may write to the conversation. `has_messages` is evaluated only if it matters.
    pub async fn decide_write(
        &self,
        user: &UserId,
        conversation: &ConversationId,
        has_messages: impl Future<Output = Option<bool>>,
    ) -> HookVerdict {
        // A send that waited for its block list has not been checked for a known answer.
        if let Some(known) = self.may_write(user, conversation) {
            return known;
        }
        let deadline = self.client.deadline();
        let is_asked =
            matches!(conversation.kind(), ConversationKind::Direct(..)) && self.asks(AllowAction::Start);
        let is_started = match is_asked {
            true => self.started.has_messages(conversation, has_messages).await,
            false => Some(true),
        };
        let (action, basis) = match is_started {
            Some(true) => (AllowAction::Write, QuestionBasis::Known),
            Some(false) => (AllowAction::Start, QuestionBasis::Known),
            None => (AllowAction::Start, QuestionBasis::Assumed),
        };
        self.decide_until(deadline, AllowQuestion { action, user, conversation, basis }).await
    }

    /// Returns whether the user may join the room, if that needs no question.
    pub fn may_join(&self, user: &UserId, room: &RoomId) -> Option<HookVerdict> {
        self.may(AllowAction::Join, user, &ConversationId::room(room))
    }

    /// Decides whether the user may join the room.
    pub async fn decide_join(&self, user: &UserId, room: &RoomId) -> HookVerdict {
        self.decide(AllowAction::Join, user, &ConversationId::room(room)).await
    }

    /// Returns whether the user may signal to the conversation, if that needs no question.
    pub fn may_signal(&self, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        self.may(AllowAction::Signal, user, conversation)
    }

    /// Decides whether the user may signal to the conversation.
    pub async fn decide_signal(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide(AllowAction::Signal, user, conversation).await
    }

    /// Decides whether the user may recall messages of the conversation.
    pub async fn decide_recall(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide(AllowAction::Recall, user, conversation).await
    }

    /// Decides whether the user may edit messages of the conversation: who may write to it may.
    pub async fn decide_edit(&self, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        self.decide(AllowAction::Write, user, conversation).await
    }

    /// Returns whether the action is allowed, if that needs no question: it is not asked about, is between the user's own
    /// devices, or was answered recently.
    fn may(&self, action: AllowAction, user: &UserId, conversation: &ConversationId) -> Option<HookVerdict> {
        let is_own = matches!(conversation.kind(), ConversationKind::Direct(a, b) if a == b);
        if is_own || !self.asks(action) {
            return Some(HookVerdict::Allowed);
        }
        self.known(action, user, conversation)
    }

    fn asks(&self, action: AllowAction) -> bool {
        self.settings.actions.contains(&action)
    }

    /// Returns the answer that the cache has. Each refusal among them refuses one request.
    fn known(
        &self,
        action: AllowAction,
        user: &UserId,
        conversation: &ConversationId,
    ) -> Option<HookVerdict> {
        let question = AllowQuestion { action, user, conversation, basis: QuestionBasis::Known };
        let known = self.answers.get(&question.key(), Instant::now());
        if matches!(known, Some(HookVerdict::Denied(_))) {
            self.metrics.hook_allow_cached_denials.increment(1);
        }
        known
    }

    fn remember(&self, question: AllowQuestion<'_>, verdict: HookVerdict, ttl: Duration) {
        let bytes = match &verdict {
            HookVerdict::Denied(Some(reason)) => reason.bytes(),
            _ => 0,
        };
        self.answers.insert(&question.key(), verdict, Instant::now() + ttl, bytes);
    }

    async fn decide(&self, action: AllowAction, user: &UserId, conversation: &ConversationId) -> HookVerdict {
        let question = AllowQuestion { action, user, conversation, basis: QuestionBasis::Known };
        self.decide_until(self.client.deadline(), question).await
    }

    async fn decide_until(&self, deadline: Deadline, question: AllowQuestion<'_>) -> HookVerdict {
        if let Some(known) = self.may(question.action, question.user, question.conversation) {
            return known;
        }
        match self.ask(deadline, question).await {
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

    async fn ask(&self, deadline: Deadline, question: AllowQuestion<'_>) -> Result<HookVerdict, HookFailure> {
        self.metrics.hook_allow_calls.increment(1);
        let PairQuestion { about, one, two } = question.key();
        let asked = Question { user: one, action: about.name(), target: two };
        let body = serde_json::to_vec(&asked).unwrap_or_default();
        let began = Instant::now();
        let answer = match self.questions.admit(question.user) {
            Some(_admitted) => {
                let parse = |answer: &[u8]| serde_json::from_slice::<Answer>(answer).ok();
                self.client.call_until(deadline, body, parse).await
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
                if allow || question.basis == QuestionBasis::Known {
                    self.remember(question, verdict.clone(), ttl);
                }
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
    use std::{
        future::{pending, ready},
        path::Path,
        sync::Arc,
    };

    use super::*;
    use crate::{
        breaker::GuardedService,
        hooks::{before::tests::server, client::ClientSettings, signing::Signer},
        metrics,
    };

    fn hook(url: &str, in_flight_max: usize) -> AllowHook {
        let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let timeout = Duration::from_secs(1);
        let client = ClientSettings { timeout, in_flight_max, waiting_max: 0, answer_bytes_max: 100 };
        let client = HookClient::new(url, Path::new(""), signer, client, GuardedService::HookAllow).unwrap();
        let settings = AllowSettings {
            actions: AllowAction::ALL.to_vec(),
            ttl: Duration::from_secs(10),
            fails_open: true,
        };
        AllowHook::new(client, settings, metrics::install().0)
    }

    #[tokio::test]
    async fn denial_of_a_start_is_remembered_only_if_the_store_could_tell() {
        let (url, mut requests) = server().await;
        let hook = hook(&url, 1);
        let (ann, place) = (UserId::new("ann").unwrap(), ConversationId::parse("d:ann:bob").unwrap());
        let mut deny = async || {
            let asked = requests.recv().await.unwrap();
            assert_eq!(asked.body["action"], "start");
            asked.respond(200, r#"{"allow":false}"#).await;
        };
        let (denied, ()) = tokio::join!(hook.decide_write(&ann, &place, pending()), deny());
        assert_eq!((denied, hook.may_write(&ann, &place)), (HookVerdict::Denied(None), None), "a slow store");
        let (denied, ()) = tokio::join!(hook.decide_write(&ann, &place, ready(None)), deny());
        assert_eq!((denied, hook.may_write(&ann, &place)), (HookVerdict::Denied(None), None));
        let (denied, ()) = tokio::join!(hook.decide_write(&ann, &place, ready(Some(false))), deny());
        assert_eq!(Some(denied), hook.may_write(&ann, &place), "it has no message");
    }

    #[tokio::test]
    async fn full_queue_never_opens() {
        let hook = hook("http://127.0.0.1:1/", 0);
        let (ann, hall) = (UserId::new("ann").unwrap(), RoomId::new("hall").unwrap());
        assert_eq!(hook.decide_join(&ann, &hall).await, HookVerdict::Unavailable);
        assert!(!hook.opens(&HookFailure::UserFull) && !hook.opens(&HookFailure::Status(403)));
        assert!(hook.opens(&HookFailure::Timeout) && hook.opens(&HookFailure::Status(500)));
    }
}
