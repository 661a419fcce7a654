//! Pacing of live rooms: passes over the members of one room keep the distance that its rule names.

use std::sync::Arc;

use tidegate_protocol::Time;

use super::Hub;
use crate::room_rules::RoomRules;

impl Hub {
    /// Replaces the rules of rooms.
    pub(in crate::shard) fn set_room_rules(&mut self, rules: Arc<RoomRules>) {
        if Arc::ptr_eq(&self.room_rules, &rules) {
            return;
        }
        let is_counting = self.room_rules.counts_members() || rules.counts_members();
        self.room_rules = rules;
        if is_counting {
            self.note_all_members();
        }
    }

    /// Begins a turn: rooms whose next pass is due are ready again.
    pub(in crate::shard) fn begin_turn(&mut self, now: Time) {
        self.now = now;
        if !self.paced.is_empty() {
            let (groups, ready) = (&self.groups, &mut self.ready);
            self.paced.retain(|index| {
                let is_due = groups[*index as usize].next_pass <= now;
                if is_due {
                    ready.push_back(*index);
                }
                !is_due
            });
        }
    }

    /// Returns the time of the next pass that a room waits for.
    pub(in crate::shard) fn next_pass(&self) -> Option<Time> {
        self.paced.iter().map(|index| self.groups[*index as usize].next_pass).min()
    }
}
