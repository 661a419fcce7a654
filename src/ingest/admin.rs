//! What an administrator asks of a group, and recalls: records like any other that no send stands for, and their answers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::DashMap;
use tidegate_protocol::{
    Code,
    id::{ConversationId, MsgId, UserId},
    machine::session::Answer,
    record::{Body, MemberAction, MemberChange, Origin, Recall, Record},
};
use tokio::sync::oneshot;

use super::intake::Intake;
use crate::{conversation::history::Refusal, delivery::in_flight::Unanswered, routes::NodeBoot};

/// The origin of records that no connection sent; no [`crate::mail::ConnKey`] packs to it (shards end at 63).
pub const ADMIN_CONN: u64 = u64::MAX;

/// How long an administrator waits for an answer before it is *unknown*.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Requests that wait for the ledger's word.
#[derive(Default)]
pub struct Pending {
    next: AtomicU64,
    waiting: DashMap<u64, oneshot::Sender<Answer>>,
    unanswered: Unanswered,
}

impl Pending {
    /// The records of this node that wait for the ledger's word, sends among them.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    /// Hands the answer to whoever asked, if they still wait.
    pub fn complete(&self, request: u64, answer: Answer) {
        if let Some((_, asker)) = self.waiting.remove(&request) {
            // The asker may have gone away meanwhile; the change stands all the same.
            asker.send(answer).ok();
        }
    }
}

/// An entry of [`Pending`] for as long as somebody waits for it.
struct Asking<'a> {
    pending: &'a Pending,
    request: u64,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.pending.waiting.remove(&self.request);
    }
}

/// The administrator's side of group changes.
#[derive(Clone)]
pub struct Admin {
    me: NodeBoot,
    intake: Arc<Intake>,
    pending: Arc<Pending>,
}

impl Admin {
    /// An administrator of the node.
    pub fn new(me: NodeBoot, intake: Arc<Intake>, pending: Arc<Pending>) -> Self {
        Self { me, intake, pending }
    }

    /// Appends the change and waits for the ledger's word; `now_ms` is the wall clock.
    pub async fn change(&self, change: MemberChange, now_ms: u64) -> Answer {
        self.append(Body::Member(change), now_ms).await
    }

    /// The same for a recall that is allowed.
    pub async fn recall(&self, recall: Recall, now_ms: u64) -> Answer {
        self.append(Body::Recall(recall), now_ms).await
    }

    /// Appends a record that is nobody's frame, and waits for the ledger's word, for 5 s at most: then it is *unknown*.
    pub async fn append(&self, body: Body, now_ms: u64) -> Answer {
        if self.intake.is_short() {
            return Answer::Refused { code: Code::Overloaded, message: "".into() };
        }
        let request = self.pending.next.fetch_add(1, Ordering::Relaxed);
        let (asker, answer) = oneshot::channel();
        self.pending.waiting.insert(request, asker);
        // The caller may cancel this at each `await`.
        let _asking = Asking { pending: &self.pending, request };
        let origin = Origin { node: self.me.node.clone(), boot: self.me.boot, conn: ADMIN_CONN, request };
        let record = Record { origin, received_at: now_ms, body, trace: None };
        let answer = if self.intake.send(record).await {
            tokio::time::timeout(ANSWER_DEADLINE, answer).await.ok().and_then(Result::ok)
        } else {
            None
        };
        answer.unwrap_or(Answer::Unknown)
    }

    /// Takes a user out of a group at the user's own wish.
    ///
    /// # Errors
    /// What the ledger says; `NOT_A_MEMBER` is what a repetition hears.
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
            Answer::Accepted { .. } | Answer::Duplicate { .. } => Ok(()),
            Answer::Refused { code, .. } => Err((code, "")),
            Answer::Unknown | Answer::AppendFailed => {
                Err((Code::Unknown, "ask again: NOT_A_MEMBER then says that it was done"))
            }
        }
    }

    /// A fresh idempotency key for a request that names none.
    pub fn fresh_request_id() -> MsgId {
        MsgId::new(&uuid::Uuid::now_v7().simple().to_string()).expect("32 hex digits are an id")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tidegate_protocol::id::NodeId;

    use super::*;

    #[tokio::test]
    async fn a_cancelled_call_leaves_no_bytes_counted_and_nobody_waiting() {
        let (intake, mut outlets) = Intake::new(1_000_000);
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        let admin = Admin::new(me, Arc::clone(&intake), Arc::default());
        let (group, user) = (ConversationId::parse("g:x").unwrap(), UserId::new("alice").unwrap());
        let leave = || admin.leave(group.clone(), user.clone(), 1);
        for _ in 0..outlets.records.max_capacity() {
            intake.offer_records(Vec::new());
        }
        assert_eq!(leave().now_or_never(), None, "it waits for room in the queue");
        assert_eq!((intake.waiting_bytes(), admin.pending.waiting.len()), (0, 0));
        outlets.records.try_recv().unwrap();
        assert_eq!(leave().now_or_never(), None, "it waits for an answer");
        assert!(intake.waiting_bytes() > 0, "the record is on its way");
        assert_eq!(admin.pending.waiting.len(), 0);
    }
}
