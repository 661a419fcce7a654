//! Records without a client's send: group changes and recalls by administrators, and their answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tidegate_protocol::{
    Code,
    id::{ConversationId, MsgId, UserId},
    machine::session::SubmitAnswer,
    record::{Body, MemberAction, MemberChange, Message, Origin, Recall, Record},
    trace::TraceContext,
};
use tokio::{sync::oneshot, time::Instant};

use super::intake::{Intake, IntakeSlot};
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

    /// Waits for capacity for a message with so many bytes of content. Nothing is sent, also if the call is cancelled.
    ///
    /// # Errors
    /// The code to refuse the message with, because too much waits for the log, memory is short or the node shuts down.
    pub async fn slot(&self, content_bytes: usize) -> Result<IntakeSlot<'_>, Code> {
        self.intake.slot(content_bytes).await
    }

    /// Queues a message for the log, in the order of the calls, and returns what waits for the ledger's answer.
    pub fn enqueue(
        &self,
        message: Message,
        slot: IntakeSlot<'_>,
        trace: Option<TraceContext>,
        now_ms: u64,
    ) -> AwaitedAnswer<'_> {
        let (entry, answer) = self.pending.begin();
        let record = self.record(entry.request, Body::Message(message), now_ms);
        slot.fill(Record { trace, ..record });
        AwaitedAnswer { _entry: entry, answer, until: Instant::now() + REPLY_TIMEOUT }
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
    answer: oneshot::Receiver<SubmitAnswer>,
    until: Instant,
}

impl AwaitedAnswer<'_> {
    /// Returns the ledger's answer; *unknown* 5 s after the message was queued.
    pub async fn answer(self) -> SubmitAnswer {
        tokio::time::timeout_at(self.until, self.answer)
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

    #[tokio::test]
    async fn message_that_waits_for_capacity_is_sent_only_with_its_slot() {
        let (intake, mut outlets) = Intake::new(1_000);
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let admin = Admin::new(me, Arc::clone(&intake), Arc::default());
        for _ in 0..outlets.records.max_capacity() {
            intake.offer_records(Vec::new());
        }
        assert!(admin.slot(10).now_or_never().is_none(), "the queue is full");
        assert_eq!((intake.waiting_bytes(), admin.pending.len()), (0, 0), "a cancelled wait holds nothing");
        assert_eq!(admin.slot(1_000).now_or_never().map(|it| it.err()), Some(Some(Code::Busy)));
        outlets.records.try_recv().unwrap();
        drop(admin.slot(10).now_or_never().unwrap());
        assert_eq!((intake.waiting_bytes(), outlets.records.len()), (0, outlets.records.max_capacity() - 1));
        let slot = admin.slot(2).now_or_never().unwrap().ok().unwrap();
        let content = bytes::Bytes::from_static(b"hi");
        let message = Message {
            conversation: ConversationId::parse("g:x").unwrap(),
            sender: UserId::new("alice").unwrap(),
            device: tidegate_protocol::id::DeviceId::new(".api").unwrap(),
            msg_id: MsgId::new("m").unwrap(),
            attempt: 0,
            body_hash: tidegate_protocol::record::body_hash(&content),
            content,
            order: tidegate_protocol::record::SenderOrder { epoch: 0, n: 0, chained: false },
            flags: 0,
            mode: Default::default(),
        };
        let awaited = admin.enqueue(message, slot, None, 1);
        assert_eq!((intake.waiting_bytes() > 0, admin.pending.len()), (true, 1));
        drop(awaited);
        assert_eq!((intake.waiting_bytes() > 0, admin.pending.len()), (true, 0), "the record goes on");
        drop(outlets);
        assert_eq!(admin.slot(2).now_or_never().map(|it| it.err()), Some(Some(Code::Draining)));
    }
}
