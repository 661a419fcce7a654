//! Modes of messages of the API, and what waits until all nodes know them.

use tidegate_protocol::{Code, machine::ledger::MODES_RULES, record::MessageMode};

use super::sender::{MessageSender, OutgoingMessage};
use crate::api::Problem;

impl MessageSender {
    /// Returns the mode of a message. The system speaks as the operator where it is no party of the conversation; until all
    /// nodes know that, it needs a membership, as it did before.
    pub(super) fn mode(&self, message: &OutgoingMessage) -> MessageMode {
        let OutgoingMessage { conversation, sender, flags, .. } = message;
        let is_operator = self.is_system(sender)
            && !conversation.is_direct_of(sender)
            && self.parts.cluster.peers.all_follow(MODES_RULES);
        MessageMode { is_operator, ..MessageMode::of_flags(*flags) }
    }

    /// Refuses what nodes of a former version would skip, until all know it.
    pub(super) fn check_rules(&self) -> Result<(), Problem> {
        if self.parts.cluster.peers.all_follow(MODES_RULES) {
            return Ok(());
        }
        let why =
            "not all nodes know edits, silent and transient messages yet; repeat it when all are updated";
        Err(Problem(Code::NotYet, why.to_owned()))
    }
}
