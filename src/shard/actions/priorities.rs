//! Priorities of connections in live rooms: set at the login, and again when a token or an administrator changes them.

use tidegate_protocol::id::UserId;

use crate::{
    entry_board::ChangedKeys,
    net::io::Io,
    shard::{
        Shard,
        conn::{Conn, set_class},
    },
};

/// Most connections that are looked at in one turn.
const SLOTS_PER_TURN: usize = 1_000;

/// State of a look through all connections.
#[derive(Default)]
pub(in crate::shard) struct PriorityScan {
    /// Version of the priorities that are applied, or that the scan applies.
    version: u64,
    next: usize,
}

impl PriorityScan {
    /// Returns whether connections are left to look at.
    pub(in crate::shard) const fn is_running(&self) -> bool {
        self.next > 0
    }
}

impl<I: Io> Shard<I> {
    /// Applies changed priorities to open connections, at most to as many as one turn may look at. A login sets that of its
    /// own connection, so connections that are added during a look need none.
    pub(in crate::shard) fn apply_priorities(&mut self) {
        if self.context.cluster.priorities.version() != self.priority_scan.version {
            let (changed, version) =
                self.context.cluster.priorities.changed_since(self.priority_scan.version);
            self.priority_scan.version = version;
            match changed {
                ChangedKeys::Named(users) => users.iter().for_each(|user| self.prioritize_user(user)),
                ChangedKeys::Many => self.priority_scan.next = self.conns.hot.len(),
            }
        }
        for _ in 0..self.priority_scan.next.min(SLOTS_PER_TURN) {
            self.priority_scan.next -= 1;
            self.prioritize_slot(self.priority_scan.next as u32);
        }
    }

    fn prioritize_user(&mut self, user: &UserId) {
        for slot in self.hub.slots(user).to_vec() {
            self.prioritize_slot(slot);
        }
    }

    fn prioritize_slot(&mut self, slot: u32) {
        let Some(login) = self.conns.peek(slot).and_then(|conn| conn.login.as_deref()) else { return };
        let claimed = login.grants.as_deref().and_then(|grants| grants.priority);
        let class = self.context.cluster.priorities.class(&login.route.user, claimed);
        set_class(&mut self.conns.hot[slot as usize].flags, class);
    }

    /// Sets the priority of a connection that is logged in.
    pub(in crate::shard) fn prioritize(&mut self, conn: &Conn) {
        let Some(login) = conn.login.as_deref() else { return };
        let claimed = login.grants.as_deref().and_then(|grants| grants.priority);
        let class = self.context.cluster.priorities.class(&login.route.user, claimed);
        set_class(&mut self.conns.hot[conn.key.slot as usize].flags, class);
    }
}
