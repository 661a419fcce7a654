//! Minimal owner: runs records through the ledger and archives the result.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use tidegate::store::{Fence, Store};
use tidegate_protocol::{
    id::{ConversationId, MsgId, NodeId},
    machine::ledger::{Delta, LEDGER_NEWEST, Ledger, Outcome},
    record::{
        Body, MemberAction, MemberChange, Message, Origin, Position, Record, Role, RuleChange, SenderOrder,
        body_hash,
    },
};

use super::{TOPIC, device, group, user};

pub(crate) struct Owner {
    store: Arc<dyn Store>,
    partition: u32,
    pub(crate) fence: Fence,
    pub(crate) ledger: Ledger,
    /// Position after the last applied record.
    pub(crate) position: Position,
    /// Receive time of the records.
    pub(crate) time: u64,
}

impl Owner {
    pub(crate) async fn take_over(store: &Arc<dyn Store>, partition: u32, fence: u128) -> Self {
        let fence = Fence(fence);
        let taken = store.take_over(partition, fence, TOPIC).await.unwrap();
        let ledger = Ledger::resume(taken.position, taken.rules, 1);
        Self { store: Arc::clone(store), partition, fence, ledger, position: taken.position, time: 1_000 }
    }

    /// Applies records as the next ones of the log, without an archive.
    pub(crate) async fn apply(&mut self, bodies: &[Body]) -> (Vec<Outcome>, Delta) {
        let origin = Origin { node: NodeId::new("n").unwrap(), boot: 1, conn: 1, request: 1 };
        let received_at = self.time;
        let record =
            |body: &Body| Record { origin: origin.clone(), received_at, body: body.clone(), trace: None };
        let records: Vec<_> = bodies.iter().map(record).collect();
        let mut needs = BTreeSet::new();
        for record in &records {
            self.ledger.needs(record, &mut needs);
        }
        let needs: Vec<_> = needs.into_iter().collect();
        let snapshot = self.store.load(self.partition, self.fence, &needs).await.unwrap();
        self.ledger.load(snapshot.position, snapshot.rows).unwrap();
        let mut outcomes = Vec::new();
        for record in &records {
            let offset = self.ledger.next_offset();
            outcomes.push(self.ledger.apply(offset, record).unwrap());
            self.position = Position::behind(offset, &record.encode());
        }
        (outcomes, self.ledger.take_delta(self.position).unwrap())
    }

    /// Applies and archives records.
    pub(crate) async fn run<const N: usize>(&mut self, bodies: &[Body; N]) -> [Outcome; N] {
        let (outcomes, delta) = self.apply(bodies).await;
        self.store.archive(self.partition, self.fence, &delta).await.unwrap();
        self.ledger.archived(delta.to).unwrap();
        outcomes.try_into().unwrap()
    }
}

/// Returns the record that switches to the newest rules.
pub(crate) fn newest_rules() -> Body {
    Body::Rules(RuleChange { ledger_version: LEDGER_NEWEST, ..RuleChange::default() })
}

pub(crate) fn message(to: &ConversationId, sender: &str, id: &str, attempt: u32, text: &str) -> Body {
    Body::Message(Message {
        conversation: to.clone(),
        sender: user(sender),
        device: device("phone"),
        msg_id: MsgId::new(id).unwrap(),
        attempt,
        content: Bytes::copy_from_slice(text.as_bytes()),
        order: SenderOrder { epoch: 1, n: 0, chained: false },
        flags: 0,
        mode: Default::default(),
        body_hash: body_hash(text.as_bytes()),
    })
}

pub(crate) fn change(name: &str, action: MemberAction, users: &[&str], request: &str) -> Body {
    Body::Member(MemberChange {
        conversation: group(name),
        action,
        users: users.iter().map(|name| user(name)).collect(),
        role: matches!(action, MemberAction::Create | MemberAction::Join).then_some(Role::Member),
        by: None,
        settings: Default::default(),
        request_id: MsgId::new(request).unwrap(),
    })
}
