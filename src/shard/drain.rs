//! A shard in a drain: tells its clients their slots, and closes them when their slots are over.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_protocol::{
    Code,
    codec::Wire,
    machine::drain::{Notice, Pace, Share},
    pb,
};

use super::{Shard, conn::Conn};
use crate::{
    mail::{ConnKey, Drain, Progress},
    net::upgrade::Transport,
};

/// Clients told in one turn before the others get theirs.
const NOTICE_BUDGET: usize = 256;

/// The drain of one shard.
pub(super) struct Leaving {
    share: Share<ConnKey>,
    counted: Counted,
}

/// What this shard has in the counts of the node; taken out again when the drain is forgotten.
struct Counted {
    progress: Arc<Progress>,
    unnoticed: usize,
    waiting: usize,
}

impl Counted {
    /// Changes the shared counts from what was said before to this.
    fn say(&mut self, unnoticed: usize, waiting: usize) {
        let change = |count: &AtomicUsize, before: usize, now: usize| {
            if now > before {
                count.fetch_add(now - before, Ordering::Relaxed);
            } else {
                count.fetch_sub(before - now, Ordering::Relaxed);
            }
        };
        change(&self.progress.unnoticed, self.unnoticed, unnoticed);
        change(&self.progress.waiting, self.waiting, waiting);
        (self.unnoticed, self.waiting) = (unnoticed, waiting);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.say(0, 0);
    }
}

impl Shard {
    /// The node's drain goes on.
    pub(super) fn on_drain(&mut self, order: Drain) {
        match order {
            Drain::Begin(pace, progress) => self.begin_leaving(pace, progress),
            Drain::Rush => {
                self.end_slots();
                self.ask_all_to_leave(Code::Draining);
            }
            Drain::Cut => {
                self.end_slots();
                for slot in self.conns.slots() {
                    self.with_conn(slot, Self::cut_off);
                }
            }
            Drain::Forget => self.leaving = None,
        }
    }

    fn begin_leaving(&mut self, pace: Pace, progress: Arc<Progress>) {
        let keys: Vec<ConnKey> =
            self.conns.slots().iter().filter_map(|slot| Some(self.conns.peek(*slot)?.key)).collect();
        let shards = self.context.shards().len();
        let share = Share::new(pace, self.context.index, shards, rand::random(), keys.into_iter());
        // The driver counted this shard as one that has not begun.
        let mut counted = Counted { progress, unnoticed: 1, waiting: 1 };
        counted.say(share.unnoticed(), share.waiting());
        self.leaving = Some(Leaving { share, counted });
    }

    /// Nobody has a slot any more; whoever comes is still refused.
    fn end_slots(&mut self) {
        let now = Pace { start: self.now, window: Duration::ZERO, handover: Duration::ZERO };
        let progress = self.leaving.take().map_or_else(Arc::default, |old| Arc::clone(&old.counted.progress));
        let share = Share::new(now, 0, 1, 0, std::iter::empty());
        self.leaving = Some(Leaving { share, counted: Counted { progress, unnoticed: 0, waiting: 0 } });
    }

    /// Tells some, and closes those whose slot is over.
    pub(super) fn leave_in_turn(&mut self) {
        let Some(mut leaving) = self.leaving.take() else { return };
        for _ in 0..NOTICE_BUDGET {
            let Some(notice) = leaving.share.poll_notice(self.now) else { break };
            if let Some(slot) = self.conns.find(notice.who) {
                self.with_conn(slot, |shard, conn| shard.tell(conn, notice));
            }
        }
        while let Some(key) = leaving.share.poll_close(self.now) {
            if let Some(slot) = self.conns.find(key) {
                self.ask_to_leave(slot, Code::Draining);
            }
        }
        leaving.counted.say(leaving.share.unnoticed(), leaving.share.waiting());
        self.leaving = Some(leaving);
    }

    /// How long until somebody is to be told or closed.
    pub(super) fn next_slot(&self) -> Duration {
        let due = self.leaving.as_ref().and_then(|leaving| leaving.share.poll_timeout());
        due.map_or(Duration::MAX, |due| due.since(self.now))
    }

    /// A client that logs in during a drain hears its slot behind its Welcome.
    pub(super) fn tell_late(&mut self, conn: &mut Conn) {
        let notice = self.leaving.as_ref().and_then(|leaving| leaving.share.tell(conn.key, self.now));
        if let Some(notice) = notice {
            self.tell(conn, notice);
        }
    }

    fn tell(&mut self, conn: &mut Conn, notice: Notice<ConnKey>) {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let goaway = pb::GoAway {
            after_ms: ms(notice.after),
            window_ms: ms(notice.window),
            alternates: self.alternates(conn),
            reason: "the node stops".to_owned(),
        };
        if conn.session.begin_drain(goaway, &mut self.scratch.actions) {
            self.act(conn);
            self.flush(conn);
        }
    }

    /// Where this client may go instead.
    fn alternates(&self, conn: &Conn) -> Vec<String> {
        let Some(who) = &conn.who else { return Vec::new() };
        let transport = match self.conns.hot[conn.key.slot as usize].wire {
            Wire::Tcp | Wire::JsonLine => Transport::Tcp,
            Wire::WsBinary | Wire::WsText => Transport::Ws,
        };
        self.context.assigner.alternates(who.route.user.as_str(), transport)
    }

    /// Asks every session to leave; sends in flight get their answers first, within the reply deadline.
    pub(super) fn ask_all_to_leave(&mut self, code: Code) {
        for slot in self.conns.slots() {
            self.ask_to_leave(slot, code);
        }
    }

    /// Asks one session to leave.
    pub(super) fn ask_to_leave(&mut self, slot: u32, code: Code) {
        self.with_conn(slot, |shard, conn| {
            conn.session.leave(code, "", &mut shard.scratch.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }

    /// The deadline has come: what the socket takes at once is still said.
    fn cut_off(&mut self, conn: &mut Conn) {
        conn.session.close(Code::Draining, "", &mut self.scratch.actions);
        self.act(conn);
        self.flush(conn);
        if !matches!(conn.ending, Some(super::conn::Ending::Lingering(_))) {
            self.peer_gone(conn);
        }
    }
}
