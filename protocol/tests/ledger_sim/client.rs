//! Simulated device: its sent messages and the answers it has received.

use std::collections::BTreeMap;

use bytes::Bytes;
use tidegate_protocol::{
    id::{ConversationId, DeviceId, MsgId, UserId},
    machine::ledger::Outcome,
    record::{Message, SenderOrder, body_hash},
};

/// Sent message, with the sender's state.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) conversation: ConversationId,
    pub(crate) msg_id: MsgId,
    pub(crate) content: Bytes,
    pub(crate) attempt: u32,
    /// Time of the first attempt, in events of the simulation.
    pub(crate) begun: u64,
    /// Seq and time of the first ack.
    pub(crate) acked: Option<(u64, u64)>,
    pub(crate) refused: bool,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) user: UserId,
    pub(crate) device: DeviceId,
    pub(crate) chains: bool,
    pub(crate) epoch: u64,
    pub(crate) node: usize,
    numbers: BTreeMap<ConversationId, u64>,
    pub(crate) sent: Vec<Sent>,
}

impl Client {
    pub(crate) fn new(user: UserId, device: DeviceId, chains: bool) -> Self {
        Self { user, device, chains, epoch: 1, node: 0, numbers: BTreeMap::new(), sent: Vec::new() }
    }

    /// Opens a new connection, with a newer epoch and chain numbers from 0.
    pub(crate) fn reconnect(&mut self, above: u64, node: usize) {
        self.epoch = self.epoch.max(above) + 1;
        self.node = node;
        self.numbers.clear();
    }

    /// Builds the message that the client's node appends.
    pub(crate) fn message(&mut self, index: usize, chained: bool) -> Message {
        let sent = &self.sent[index];
        let number = self.numbers.entry(sent.conversation.clone()).or_default();
        let order = SenderOrder { epoch: self.epoch, n: if chained { *number } else { 0 }, chained };
        *number += u64::from(chained);
        Message {
            conversation: sent.conversation.clone(),
            sender: self.user.clone(),
            device: self.device.clone(),
            msg_id: sent.msg_id.clone(),
            attempt: sent.attempt,
            content: sent.content.clone(),
            order,
            flags: 0,
            mode: Default::default(),
            body_hash: body_hash(&sent.content),
        }
    }

    /// Returns the messages without an answer, in the order of their first attempts.
    pub(crate) fn open(&self) -> Vec<usize> {
        let open = self.sent.iter().enumerate().filter(|(_, it)| it.acked.is_none() && !it.refused);
        open.map(|(index, _)| index).collect()
    }

    /// Handles an answer; an error is a broken promise. An `exempt` id was misused, so it may have two seqs.
    pub(crate) fn answered(
        &mut self,
        index: usize,
        outcome: Outcome,
        now: u64,
        exempt: bool,
    ) -> Result<(), String> {
        let sent = &mut self.sent[index];
        match outcome {
            Outcome::Accepted { seq, .. } | Outcome::Duplicate { seq, .. } => match sent.acked {
                Some((before, _)) if before != seq && !exempt => {
                    return Err(format!("{} was acked with {before}, then with {seq}", sent.msg_id));
                }
                Some(_) => {}
                None => sent.acked = Some((seq, now)),
            },
            Outcome::Refused { code } | Outcome::RefusedBefore { code }
                if !code.temporary() && sent.acked.is_none() =>
            {
                sent.refused = true
            }
            _ => {}
        }
        Ok(())
    }
}
