//! Re-assertion of routes after a loss: lists the shard's routes, and closes the
//! connections whose routes are not current.

use tidegate_protocol::Code;

use super::Shard;
use crate::{
    mail::{Reassert, Slice},
    net::io::Io,
};

/// Most slots that are read for one mail.
const SLOTS_PER_MAIL: u32 = 4_096;

/// Most routes that one mail lists.
const ROUTES_PER_MAIL: usize = 500;

impl<I: Io> Shard<I> {
    pub(super) fn on_reassert(&mut self, order: Reassert) {
        match order {
            // The caller stops waiting only when the node stops.
            Reassert::Collect(from, reply) => drop(reply.send(self.routes_from(from))),
            Reassert::Settle(results) => {
                for (key, route, is_current) in results {
                    let conn_slot = self.conns.find(key).filter(|slot| {
                        let login = self.conns.peek(*slot).and_then(|conn| conn.login.as_deref());
                        login.is_some_and(|login| login.route == route)
                    });
                    match (conn_slot, is_current) {
                        (Some(slot), false) => self.close_now(slot, Code::Replaced),
                        // The connection closed before its row was re-asserted, so the row has no owner.
                        (None, true) => self.unregister(route),
                        (Some(_), true) | (None, false) => {}
                    }
                }
            }
        }
    }

    fn routes_from(&self, from: u32) -> Slice {
        let slots = u32::try_from(self.conns.hot.len()).unwrap_or(u32::MAX);
        let (mut rows, mut slot) = (Vec::new(), from);
        while slot < slots && slot - from < SLOTS_PER_MAIL && rows.len() < ROUTES_PER_MAIL {
            if let Some(conn) = self.conns.peek(slot)
                && let Some(login) = conn.login.as_deref()
            {
                rows.push((conn.key, login.route.clone()));
            }
            slot += 1;
        }
        Slice { rows, next: (slot < slots).then_some(slot) }
    }
}
