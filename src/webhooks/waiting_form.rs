//! Part of the definition of an endpoint about notices that messages wait.

use serde::{Deserialize, Serialize};

/// Longest delay of a notice, in ms.
const DELAY_MS_MAX: u64 = 600_000;

/// Longest repeat interval, in ms.
const REPEAT_MS_MAX: u64 = 24 * 3_600 * 1_000;

/// Notices that an endpoint wants: that a message waits for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WaitingForm {
    /// Time from a message to its notice.
    pub delay_ms: u64,
    /// Shortest time between two notices about a conversation to a user.
    pub repeat_ms: u64,
    /// Without a notice is who has at least done this.
    pub unless: WaitingUnless,
    /// Part of the message that a notice has.
    pub preview: WaitingPreview,
    /// Whether a notice has the number of all unread messages of the user.
    pub badge: bool,
}

/// State of a user in which no notice is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitingUnless {
    /// A device of the user has acked the message, or the user has read it.
    #[default]
    Acked,
    /// The user has read the message.
    Read,
    /// A device of the user is connected, or the user has read the message.
    Online,
}

/// Part of the newest message that a notice has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitingPreview {
    /// None.
    #[default]
    None,
    /// Its sender.
    Sender,
    /// Its sender, and the beginning of its text.
    Content,
}

impl Default for WaitingForm {
    fn default() -> Self {
        Self {
            delay_ms: 5_000,
            repeat_ms: 30_000,
            unless: WaitingUnless::default(),
            preview: WaitingPreview::default(),
            badge: false,
        }
    }
}

impl WaitingForm {
    /// Returns what is wrong with the fields, each with its name. `has_content` says whether the endpoint gets content.
    pub(super) fn problems(&self, has_content: bool) -> Vec<&'static str> {
        let preview = self.preview != WaitingPreview::Content || has_content;
        let checks = [
            (self.delay_ms <= DELAY_MS_MAX, "waiting.delayMs: at most 600000"),
            (
                (1_000..=REPEAT_MS_MAX).contains(&self.repeat_ms),
                "waiting.repeatMs: between one second and one day",
            ),
            (preview, "waiting.preview: content only with content = true"),
        ];
        checks.into_iter().filter(|(holds, _)| !holds).map(|(_, why)| why).collect()
    }
}
