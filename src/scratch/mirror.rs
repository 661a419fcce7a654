//! Messages for the mirrors of windows, which other systems read.

use tidegate_protocol::id::ConversationId;

/// Most messages of a window that are mirrored one by one.
pub const MIRROR_MEMBERS_MAX: usize = 1_000;

/// Accepted messages of a group, for the mirror of its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowUpdate {
    /// Group.
    pub group: ConversationId,
    /// Messages in the order of their seqs. An entry stands for several messages only if there are more than
    /// [`MIRROR_MEMBERS_MAX`].
    pub entries: Vec<WindowEntry>,
}

/// Message of a window, or consecutive messages of one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowEntry {
    /// Seq of the last message.
    pub seq: u64,
    /// Number of messages.
    pub messages: u32,
    /// Receive time of the last message, in ms since 1970.
    pub received_ms: u64,
}
