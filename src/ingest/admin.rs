//! Records without a client's send: group changes and recalls by administrators, and their answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, MsgId, UserId},
    machine::session::SubmitAnswer,
    record::{Body, MemberAction, MemberChange, Message, Origin, Recall, Record},
};
use tokio::{sync::oneshot, time::Instant};

use super::intake::Intake;
use crate::{
    delivery::pending::{ADMIN_CONN, Pending, PendingEntry},
    mail::Refusal,
    routes::NodeBoot,
};

/// Time after which an administrator's request without an answer is *unknown*.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Appends group changes and recalls for administrators.
#[derive(Clone)]
pub struct Admin {
    me: NodeBoot,
    intake: Arc<Intake>,
    pending: Arc<Pending>,
}

impl Admin {
    /// Creates an administrator of the run `me`.
    pub fn new(me: NodeBoot, intake: Arc<Intake>, pending: Arc<Pending>) -> Self {
        Self { me, intake, pending }
    }

    /// Appends the change and waits for the ledger's answer; `now_ms` is the wall clock.
    pub async fn change(&self, change: MemberChange, now_ms: u64) -> SubmitAnswer {
        self.append(Body::Member(change), now_ms).await
    }

    /// Appends a permitted recall and waits for the ledger's answer; `now_ms` is the wall clock.
    pub async fn recall(&self, recall: Recall, now_ms: u64) -> SubmitAnswer {
        self.append(Body::Recall(recall), now_ms).await
    }

    /// Appends a record that no client sent, and waits for the ledger's answer; *unknown* after 5 s.
    pub async fn append(&self, body: Body, now_ms: u64) -> SubmitAnswer {
        if self.intake.is_short() {
            return SubmitAnswer::Refused { code: Code::Overloaded, message: "".into() };
        }
        // Dropped, the entry removes itself, also when the caller cancels this future.
        let (entry, answer) = self.pending.begin();
        let record = self.record(entry.request, body, now_ms);
        let answer = if self.intake.send(record).await {
            tokio::time::timeout(REPLY_TIMEOUT, answer).await.ok().and_then(Result::ok)
        } else {
            None
        };
        answer.unwrap_or(SubmitAnswer::Unknown)
    }

    /// Queues a message for the log, and returns what waits for the ledger's answer. Messages of one caller are appended in
    /// the order of its calls, if it makes each after the former one has returned.
    ///
    /// # Errors
    /// The code to refuse the message with, because too much waits for the log or memory is short.
    pub async fn enqueue(&self, message: Message, now_ms: u64) -> Result<AwaitedAnswer<'_>, Code> {
        let (entry, answer) = self.pending.begin();
        let record = self.record(entry.request, Body::Message(message), now_ms);
        let until = Instant::now() + REPLY_TIMEOUT;
        let is_queued = self.intake.send_bounded(record).await?;
        Ok(AwaitedAnswer { _entry: entry, answer: is_queued.then_some(answer), until })
    }

    fn record(&self, request: u64, body: Body, now_ms: u64) -> Record {
        let (node, boot) = (self.me.node.clone(), self.me.boot);
        let origin = Origin { node, boot, conn: ADMIN_CONN, request };
        Record { origin, received_at: now_ms, body, trace: None }
    }

    /// Removes a user from a group at the user's own request.
    ///
    /// # Errors
    /// The refusal by the ledger; a repeated leave is `NOT_A_MEMBER`.
    pub async fn leave(&self, group: ConversationId, user: UserId, now_ms: u64) -> Result<(), Refusal> {
        let change = MemberChange {
            conversation: group,
            action: MemberAction::Leave,
            users: vec![user.clone()],
            role: None,
            by: Some(user),
            settings: BTreeMap::new(),
            request_id: Self::fresh_request_id(),
        };
        match self.change(change, now_ms).await {
            SubmitAnswer::Accepted { .. } | SubmitAnswer::Duplicate { .. } => Ok(()),
            SubmitAnswer::Refused { code, .. } => Err((code, "")),
            SubmitAnswer::Unknown | SubmitAnswer::AppendFailed => {
                Err((Code::Unknown, "retry; NOT_A_MEMBER then confirms the leave"))
            }
        }
    }

    /// Creates an idempotency key for a request that names none.
    pub fn fresh_request_id() -> MsgId {
        MsgId::new(&uuid::Uuid::now_v7().simple().to_string()).expect("32 hex digits are an id")
    }
}

/// Message in flight whose answer a caller waits for. Dropped, the message goes on, and its answer is discarded.
pub struct AwaitedAnswer<'a> {
    _entry: PendingEntry<'a>,
    /// `None` if the node shuts down.
    answer: Option<oneshot::Receiver<SubmitAnswer>>,
    until: Instant,
}

impl AwaitedAnswer<'_> {
    /// Returns the ledger's answer; *unknown* 5 s after the message was queued.
    pub async fn answer(self) -> SubmitAnswer {
        let Some(answer) = self.answer else { return SubmitAnswer::Unknown };
        tokio::time::timeout_at(self.until, answer)
            .await
            .ok()
            .and_then(Result::ok)
            .unwrap_or(SubmitAnswer::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tidegate_protocol::id::NodeId;

    use super::*;

    #[tokio::test]
    async fn cancelled_call_leaves_no_bytes_and_no_entry() {
        let (intake, mut outlets) = Intake::new(1_000_000);
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let admin = Admin::new(me, Arc::clone(&intake), Arc::default());
        let (group, user) = (ConversationId::parse("g:x").unwrap(), UserId::new("alice").unwrap());
        let leave = || admin.leave(group.clone(), user.clone(), 1);
        for _ in 0..outlets.records.max_capacity() {
            intake.offer_records(Vec::new());
        }
        assert_eq!(leave().now_or_never(), None, "waits for capacity in the queue");
        assert_eq!((intake.waiting_bytes(), admin.pending.len()), (0, 0));
        outlets.records.try_recv().unwrap();
        assert_eq!(leave().now_or_never(), None, "waits for an answer");
        assert!(intake.waiting_bytes() > 0, "the record is queued");
        assert_eq!(admin.pending.len(), 0);
    }
}
