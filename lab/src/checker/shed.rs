//! Announced losses of a live room: which of the messages that did not come they may count.

use std::{cmp::Reverse, collections::BinaryHeap};

/// Announcement of a number of dropped messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShedCount {
    /// Event by which it came.
    pub(super) at: usize,
    pub(super) count: u64,
}

/// A message that did not come.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissingMessage {
    /// Event of its first attempt: no announcement before it counts the message.
    pub(super) sent: usize,
    /// Event of the last announcement that may count it; `None` if each one after `sent` may.
    pub(super) until: Option<usize>,
}

/// Returns how many of the messages no announcement counts. Each announcement counts those first that the fewest
/// later ones may count.
pub(super) fn uncounted(mut missing: Vec<MissingMessage>, sheds: &[ShedCount]) -> u64 {
    missing.sort_unstable_by_key(|message| message.sent);
    let mut missing = missing.into_iter().peekable();
    let (mut open, mut silent) = (BinaryHeap::new(), 0_u64);
    for shed in sheds {
        while let Some(message) = missing.next_if(|message| message.sent < shed.at) {
            open.push(Reverse(message.until.unwrap_or(usize::MAX)));
        }
        while open.peek().is_some_and(|Reverse(until)| *until < shed.at) {
            open.pop();
            silent += 1;
        }
        for _ in 0..shed.count.min(open.len() as u64) {
            open.pop();
        }
    }
    silent + (open.len() + missing.count()) as u64
}
