//! Announced losses of a live room: how many of the messages that did not come they may count.

/// Announcement of a number of dropped messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShedCount {
    /// Event by which it came.
    pub(super) at: usize,
    pub(super) count: u64,
}

/// Returns how many messages that did not come no announcement counts. `missing` has the events of their first attempts: no
/// announcement before it counts a message, and each one after it may.
pub(super) fn uncounted(mut missing: Vec<usize>, sheds: &[ShedCount]) -> u64 {
    missing.sort_unstable();
    let mut missing = missing.into_iter().peekable();
    let mut open = 0_u64;
    for shed in sheds {
        while missing.next_if(|sent| *sent < shed.at).is_some() {
            open += 1;
        }
        open = open.saturating_sub(shed.count);
    }
    open + missing.count() as u64
}
