//! State of the notices of an endpoint on a node, for operators.

use std::collections::VecDeque;

use tidegate_protocol::machine::waiting::DroppedNotice;

/// Most notices set aside that are shown.
const ASIDE_SHOWN: usize = 16;

/// Notices of an endpoint on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeStatus {
    /// Notices that are not decided.
    pub waiting: usize,
    /// Of these, those that have failed and are sent alone.
    pub apart: usize,
    /// Partitions of which no notices are sent, because their cursor is damaged or of a newer version.
    pub unreadable: usize,
    /// Notices that were set aside since the node sends them: the endpoint has not taken them for too long.
    pub aside_count: u64,
    /// The newest of them, the newest last.
    pub aside: VecDeque<DroppedNotice>,
    /// Reason of the last failure since the last success.
    pub last_error: Option<String>,
}

impl NoticeStatus {
    /// Adds notices that are set aside.
    pub(crate) fn set_aside(&mut self, notices: Vec<DroppedNotice>) {
        self.aside_count = self.aside_count.saturating_add(notices.len() as u64);
        self.aside.extend(notices);
        self.aside.drain(..self.aside.len().saturating_sub(ASIDE_SHOWN));
    }
}
