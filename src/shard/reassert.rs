//! The shard's part in putting routes back after a loss: it names its own, and hears which stand.

use tidegate_protocol::Code;

use super::Shard;
use crate::mail::{Reassert, Slice};

/// Places that one mail looks at, and routes that it names at most.
const PLACES: u32 = 4_096;
const ROUTES: usize = 500;

impl Shard {
    pub(super) fn on_reassert(&mut self, order: Reassert) {
        match order {
            // Nobody waits for it any more when the node stops.
            Reassert::Collect(from, reply) => drop(reply.send(self.routes_from(from))),
            Reassert::Settle(settled) => {
                for (key, route, stands) in settled {
                    let here = self.conns.find(key).filter(|slot| {
                        let who = self.conns.peek(*slot).and_then(|conn| conn.who.as_deref());
                        who.is_some_and(|who| who.route == route)
                    });
                    match (here, stands) {
                        (Some(slot), false) => self.close_now(slot, Code::Replaced),
                        // It closed before its row was put back: that row is nobody's.
                        (None, true) => self.unregister(route),
                        (Some(_), true) | (None, false) => {}
                    }
                }
            }
        }
    }

    fn routes_from(&self, from: u32) -> Slice {
        let places = u32::try_from(self.conns.hot.len()).unwrap_or(u32::MAX);
        let (mut rows, mut slot) = (Vec::new(), from);
        while slot < places && slot - from < PLACES && rows.len() < ROUTES {
            if let Some(conn) = self.conns.peek(slot)
                && let Some(who) = conn.who.as_deref()
            {
                rows.push((conn.key, who.route.clone()));
            }
            slot += 1;
        }
        Slice { rows, next: (slot < places).then_some(slot) }
    }
}
