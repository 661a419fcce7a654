//! Limits of messages and edits of the API: the rules, and the slow mode of groups.

use tidegate_protocol::{
    Code,
    id::{ConversationId, MsgId, UserId},
};

use super::{
    SendSource,
    sender::{MessageSender, OutgoingMessage, SenderParts},
};
use crate::{
    api::{Problem, ProblemDetails},
    limits::{LimitCall, LimitContent, LimitRefusal, LimitSubjects, LimitWaits},
    storms::{SlowAdmission, SlowMessage},
};

/// What the rules count of a message or an edit.
pub(super) struct CountedContent<'a> {
    pub(super) conversation: &'a ConversationId,
    /// `None` for the operator.
    pub(super) sender: Option<&'a UserId>,
    pub(super) msg_id: &'a MsgId,
    pub(super) content: &'a [u8],
}

impl OutgoingMessage {
    /// Returns what the rules count of the message.
    pub(super) fn counted(&self) -> CountedContent<'_> {
        let Self { conversation, sender, msg_id, content, .. } = self;
        CountedContent { conversation, sender: Some(sender), msg_id, content }
    }
}

impl MessageSender {
    /// Counts a message or an edit in the rules of its key, its conversation and the like, or in none.
    pub(super) async fn check_limits(
        &self,
        counted: CountedContent<'_>,
        source: &SendSource,
    ) -> Result<Option<SlowAdmission>, ProblemDetails> {
        let SenderParts { cluster, rules, system_user, .. } = &self.parts;
        let CountedContent { conversation, sender, msg_id, content } = counted;
        let user = sender.filter(|sender| *sender != system_user);
        let subjects = LimitSubjects {
            key: source.key.as_deref(),
            address: source.address,
            channel: source.channel.as_deref(),
            user: user.map(UserId::as_str),
            conversation: Some(conversation.as_str()),
            content: Some(LimitContent::Encoded(content)),
            ..LimitSubjects::default()
        };
        // Slow mode is for users, as their other limits are.
        let mut slowed = None;
        let mut waits = LimitWaits::default();
        loop {
            let slow = || {
                if let Some(user) = user {
                    let asked = SlowMessage { group: conversation, user, device: &self.device, msg_id };
                    slowed = Some(cluster.storms.entries().slow().admit(asked, || false)?);
                }
                Ok::<_, LimitRefusal>(())
            };
            match rules.admit(LimitCall::ApiSend, &subjects, rules.now(), waits, slow) {
                Ok(()) => return Ok(slowed),
                Err(LimitRefusal { asking: Some(asking), .. }) => {
                    waits = asking.waits;
                    asking.answered().await;
                }
                Err(refusal) => {
                    let why = match &refusal.rule {
                        Some(rule) => {
                            format!("the rule `{}` (GET /v1/rules) refuses this message for now", rule.id)
                        }
                        None => "the group is in slow mode".to_owned(),
                    };
                    return Err(ProblemDetails::from(Problem(Code::RateLimited, why)).after(refusal.wait));
                }
            }
        }
    }
}
