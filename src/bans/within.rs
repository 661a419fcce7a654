//! Bans of parts of a network.

use super::{BanBoard, BanSubject};
use crate::networks::Network;

impl BanBoard {
    /// Returns the number of bans in force by this author, of networks with this prefix within another one.
    pub fn count_within(&self, wide: &Network, prefix: u8, by: &str) -> usize {
        let (state, now_ms) = (self.state.lock(), self.now_ms());
        // Networks are in the order of their addresses, and those with the same one in the order of their prefixes.
        let rows = state.bans.range(BanSubject::Network(wide.first())..);
        let is_within =
            |subject: &BanSubject| matches!(subject, BanSubject::Network(it) if wide.includes(it));
        let is_part =
            |subject: &BanSubject| matches!(subject, BanSubject::Network(it) if it.prefix() == prefix);
        let parts =
            rows.take_while(|(subject, _)| is_within(subject)).filter(|(subject, _)| is_part(subject));
        parts.filter(|(_, kept)| kept.ban.record.by == by && !kept.ban.has_ended(now_ms)).count()
    }
}
