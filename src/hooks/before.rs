//! Hook `message.before`: decides about messages and edits of clients before their append, and may replace their content.
//!
//! Questions of all connections wait in one bounded queue; a request takes those that wait, so its server sees lists. A
//! connection has one question at a time, which keeps its messages in order.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use tidegate_protocol::{code::AppCode, id::ConversationKind, record::mode::UNCHECKED};
use tokio::time::{Instant as Deadline, timeout_at};

mod answer;
mod item;
mod queue;

pub use self::item::BeforeQuestion;
use self::{
    answer::{AnswerLimits, ItemAnswer},
    queue::{BatchQueue, BeforeAnswer, Waiting},
};
use super::{
    client::{HookClient, RequestEnd},
    failure::HookFailure,
    reason::AppReason,
    share::UserQuestions,
    started::StartedConversations,
};
use crate::{log_limit::log_limited, metrics::Metrics, supervised};

/// Bytes of a list of answers besides the contents.
const ANSWER_OVERHEAD_BYTES: usize = 64 * 1024;

/// Part of the time of a question, as a divisor, that may be over when its request begins as one with the whole time.
const FRESH_DIVISOR: u32 = 16;

/// Refusal of a message by the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppDenial {
    /// Code of the application, which the ledger remembers.
    pub code: AppCode,
    /// Code and text for the client.
    pub reason: Arc<AppReason>,
}

/// Decision about a message or an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeforeVerdict {
    /// The message goes on as it is.
    Allowed,
    /// There is no answer, and the hook fails open.
    Unchecked,
    /// The application refuses the message permanently.
    Denied(AppDenial),
    /// The message goes on with this encoded content.
    Replaced(Bytes),
    /// There is no answer, and the hook fails closed, or too many questions wait.
    Unavailable,
}

impl BeforeVerdict {
    /// Returns the flags of a message after this decision.
    pub const fn flags(&self, flags: u32) -> u32 {
        match self {
            Self::Unchecked => flags | UNCHECKED,
            _ => flags,
        }
    }
}

/// Settings of the hook.
#[derive(Clone, Debug)]
pub(crate) struct BeforeSettings {
    /// Longest time of a question, all waits included.
    pub(crate) timeout: Duration,
    /// Whether a message is accepted if there is no answer.
    pub(crate) fails_open: bool,
    /// Live rooms that are asked about: conversation keys, or prefixes that end with `*`.
    pub(crate) rooms: Vec<String>,
    /// Most requests at a time.
    pub(crate) in_flight_max: usize,
    /// Most questions that wait for a request.
    pub(crate) waiting_max: usize,
    /// Most bytes of an encoded content.
    pub(crate) content_bytes_max: usize,
}

/// Returns the most bytes of a list of answers: as much as a request may ask about, and a largest content, both with escapes.
pub(super) const fn answer_bytes_max(content_bytes_max: usize) -> usize {
    ANSWER_OVERHEAD_BYTES + 2 * (queue::BATCH_BYTES_MAX + content_bytes_max)
}

/// Hook `message.before`.
pub struct BeforeHook {
    shared: Arc<Shared>,
}

struct Shared {
    client: HookClient,
    settings: BeforeSettings,
    queue: BatchQueue,
    started: StartedConversations,
    questions: UserQuestions,
    /// Whether the next request has the whole time of a question, since one with less had no answer.
    next_is_whole: AtomicBool,
    metrics: Metrics,
}

impl BeforeHook {
    pub(super) fn new(client: HookClient, settings: BeforeSettings, metrics: Metrics) -> Self {
        let queue = BatchQueue::new(settings.in_flight_max, settings.waiting_max);
        let (started, questions) = (StartedConversations::new(settings.timeout), UserQuestions::default());
        let next_is_whole = AtomicBool::new(false);
        let shared = Shared { client, settings, queue, started, questions, next_is_whole, metrics };
        Self { shared: Arc::new(shared) }
    }

    /// Returns whether the hook is asked about messages of the conversation: about a room only if the settings name it.
    pub fn asks_about(&self, kind: ConversationKind<'_>) -> bool {
        match kind {
            ConversationKind::Room(room) => self.shared.settings.rooms.iter().any(|it| names_room(it, room)),
            ConversationKind::Direct(..) | ConversationKind::Group(_) => true,
        }
    }

    /// Decides about a message or an edit. `has_messages` is evaluated only if it is not known whether a direct conversation
    /// has messages.
    pub async fn decide(
        &self,
        question: BeforeQuestion,
        has_messages: impl Future<Output = Option<bool>>,
    ) -> BeforeVerdict {
        let shared = &self.shared;
        shared.metrics.hook_before_calls.increment(1);
        let began = Instant::now();
        let answer = shared.ask(&question, has_messages).await;
        shared.metrics.hook_before_times.record(began.elapsed());
        match answer {
            Ok(ItemAnswer::Allow) => BeforeVerdict::Allowed,
            Ok(ItemAnswer::Replace(content)) => {
                shared.metrics.hook_before_replacements.increment(1);
                BeforeVerdict::Replaced(content)
            }
            Ok(ItemAnswer::Deny(denial)) => {
                shared.metrics.hook_before_denials.increment(1);
                let (user, code) = (question.sender.as_str(), denial.code.number());
                log_limited!(info, user, code, "hook `message.before` refused a message");
                BeforeVerdict::Denied(denial)
            }
            Err(failure) => {
                shared.metrics.hook_before_failures.increment(1);
                let (why, is_accepted) = (failure.text(), shared.opens(&failure));
                log_limited!(warn, why, is_accepted, "hook `message.before` gave no valid answer");
                if is_accepted {
                    shared.metrics.hook_before_unchecked.increment(1);
                    return BeforeVerdict::Unchecked;
                }
                BeforeVerdict::Unavailable
            }
        }
    }
}

impl Shared {
    /// Returns whether a message is accepted after the failure. Users can cause full queues, refusals of requests, and answers
    /// that are none, as with a content that becomes too large.
    const fn opens(&self, failure: &HookFailure) -> bool {
        let is_of_server = !failure.is_answered() || failure.is_busy();
        self.settings.fails_open && is_of_server && !failure.is_full()
    }

    /// Returns whether a message begins a direct conversation; it is taken for the first one if the store is unavailable or
    /// slow.
    async fn is_first(
        &self,
        question: &BeforeQuestion,
        has_messages: impl Future<Output = Option<bool>>,
    ) -> bool {
        let place = &question.conversation;
        matches!(place.kind(), ConversationKind::Direct(..))
            && question.of.is_none()
            && self.started.has_messages(place, has_messages).await != Some(true)
    }

    async fn ask(
        self: &Arc<Self>,
        question: &BeforeQuestion,
        has_messages: impl Future<Output = Option<bool>>,
    ) -> Result<ItemAnswer, HookFailure> {
        // One for all that the question waits for: the reply to the sender counts on it.
        let deadline = Deadline::now() + self.settings.timeout;
        let _admitted = self.questions.admit(&question.sender).ok_or(HookFailure::UserFull)?;
        let is_first = self.is_first(question, has_messages).await;
        let json = question.encode(is_first);
        let (waiting, answer) = Waiting::new(json, question.msg_id.clone(), deadline);
        let starts = self.queue.push(waiting)?;
        if starts {
            supervised::spawn("requests of the hook `message.before`", Arc::clone(self).ask_all());
        }
        let answer = match timeout_at(deadline, answer).await {
            Ok(answer) => answer.map_err(|_| HookFailure::Timeout)?,
            Err(_) => Err(HookFailure::Timeout),
        };
        match answer {
            // It has waited for others, which says nothing about the server. Otherwise its request had all the time that the
            // store left.
            Err(HookFailure::Timeout) if !starts => Err(HookFailure::Full),
            answer => answer,
        }
    }

    /// Sends requests until no question waits.
    async fn ask_all(self: Arc<Self>) {
        while let Some(batch) = self.queue.take() {
            self.metrics.hook_before_requests.increment(1);
            match self.request(&batch).await {
                Ok(answers) => answer_all(batch, answers),
                // One message of the list may be the cause, which is no reason to refuse the others.
                Err(failure) if failure.is_answered() && batch.len() > 1 => {
                    for item in batch.into_iter().filter(|item| !item.is_over()) {
                        let one = vec![item];
                        let answers = self.request(&one).await.unwrap_or_else(|failure| vec![Err(failure)]);
                        answer_all(one, answers);
                    }
                }
                Err(failure) => batch.into_iter().for_each(|it| it.answer(Err(failure.clone()))),
            }
        }
    }

    /// Sends one request about these items, and returns the answer to each.
    async fn request(&self, batch: &[Waiting]) -> Result<Vec<BeforeAnswer>, HookFailure> {
        let limits = AnswerLimits { content_bytes_max: self.settings.content_bytes_max };
        let ids: Vec<_> = batch.iter().map(|it| it.msg_id.clone()).collect();
        let (end, body) = (self.request_end(batch), queue::body(batch));
        let answers = self.client.call_to(end, body, |body| answer::parse(body, &ids, limits)).await;
        if end.is_cut && matches!(answers, Err(HookFailure::Timeout)) {
            self.next_is_whole.store(true, Ordering::Relaxed);
        }
        answers
    }

    /// Returns the end of a request that begins now. Waits in the queue and for the store, which users can cause, cut the time
    /// of requests; those say nothing about a server that does not answer, so the request after such a one has the whole time.
    fn request_end(&self, batch: &[Waiting]) -> RequestEnd {
        let time = self.settings.timeout;
        let (deadline, whole) = (self.request_deadline(batch), Deadline::now() + time);
        let is_fresh = deadline + time / FRESH_DIVISOR >= whole;
        match is_fresh || self.next_is_whole.swap(false, Ordering::Relaxed) {
            true => RequestEnd { at: whole, is_cut: false },
            false => RequestEnd { at: deadline, is_cut: true },
        }
    }

    /// Returns the end of a request that begins now and may be cut: that of the last of its questions. It has half of the time
    /// of a question at least, as one has after a slow store, since a server can hardly answer within a shorter one.
    fn request_deadline(&self, batch: &[Waiting]) -> Deadline {
        let earliest = Deadline::now() + self.settings.timeout / 2;
        batch.iter().map(|item| item.deadline).fold(earliest, Deadline::max)
    }
}

fn answer_all(batch: Vec<Waiting>, answers: Vec<BeforeAnswer>) {
    batch.into_iter().zip(answers).for_each(|(it, answer)| it.answer(answer));
}

/// Returns whether a setting names the room.
fn names_room(named: &str, room: &str) -> bool {
    let Some(named) = named.strip_prefix("r:") else { return false };
    match named.strip_suffix('*') {
        Some(prefix) => room.starts_with(prefix),
        None => named == room,
    }
}

#[cfg(test)]
pub(super) mod tests;
