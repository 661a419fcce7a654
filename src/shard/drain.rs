//! Drain of a shard: notifies its clients of their slots, and closes each connection when its slot ends.

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

use super::{Shard, conn::Conn, newcomer::NEWCOMERS_MAX};
use crate::{
    fault::planted::{Planted, is_planted},
    mail::{ConnKey, DrainCommand, DrainProgress},
    net::{io::Io, upgrade::Transport},
};

/// Clients notified in one turn, before the rest of the turn runs.
const NOTICE_BUDGET: usize = 256;

/// State of the drain of one shard.
pub(super) struct ShardDrain {
    share: Share<ConnKey>,
    counts: ShardCounts,
}

/// This shard's share of the node-wide drain counts; subtracted when the drain is forgotten.
struct ShardCounts {
    progress: Arc<DrainProgress>,
    unnoticed: usize,
    waiting: usize,
}

impl ShardCounts {
    /// Replaces this shard's share of the node-wide counts.
    fn update(&mut self, unnoticed: usize, waiting: usize) {
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

impl Drop for ShardCounts {
    fn drop(&mut self) {
        self.update(0, 0);
    }
}

impl<I: Io> Shard<I> {
    /// Carries out a step of the node's drain.
    pub(super) fn on_drain(&mut self, order: DrainCommand) {
        match order {
            DrainCommand::Begin(pace, progress) => self.begin_drain(pace, progress),
            DrainCommand::Rush => {
                self.end_slots();
                self.close_all_gracefully(Code::Draining);
            }
            DrainCommand::Cut => {
                self.end_slots();
                for slot in self.conns.slots() {
                    self.with_conn(slot, Self::close_at_deadline);
                }
            }
            DrainCommand::Forget => self.drain = None,
        }
    }

    fn begin_drain(&mut self, pace: Pace, progress: Arc<DrainProgress>) {
        // Connections that were accepted before the drain get slots.
        self.take_newcomers(NEWCOMERS_MAX);
        let keys: Vec<ConnKey> =
            self.conns.slots().iter().filter_map(|slot| Some(self.conns.peek(*slot)?.key)).collect();
        let shards = self.context.shards().len();
        let seed = self.context.seed.wrapping_add(self.context.index as u64);
        let share = Share::new(pace, self.context.index, shards, seed, keys.into_iter());
        // The driver has counted this shard as not begun: one in each count.
        let mut counts = ShardCounts { progress, unnoticed: 1, waiting: 1 };
        counts.update(share.unnoticed(), share.waiting());
        self.drain = Some(ShardDrain { share, counts });
    }

    /// Ends all slots; new connections are still refused.
    fn end_slots(&mut self) {
        let now = Pace { start: self.now, window: Duration::ZERO, handover: Duration::ZERO };
        let progress = self.drain.take().map_or_else(Arc::default, |old| Arc::clone(&old.counts.progress));
        let share = Share::new(now, 0, 1, 0, std::iter::empty());
        self.drain = Some(ShardDrain { share, counts: ShardCounts { progress, unnoticed: 0, waiting: 0 } });
    }

    /// Notifies up to [`NOTICE_BUDGET`] clients, and closes the connections whose slots have ended.
    pub(super) fn advance_drain(&mut self) {
        let Some(mut drain) = self.drain.take() else { return };
        for _ in 0..NOTICE_BUDGET {
            let Some(notice) = drain.share.poll_notice(self.now) else { break };
            if let Some(slot) = self.conns.find(notice.who) {
                self.with_conn(slot, |shard, conn| shard.send_notice(conn, notice));
            }
        }
        while let Some(key) = drain.share.poll_close(self.now) {
            if let Some(slot) = self.conns.find(key) {
                self.close_gracefully(slot, Code::Draining);
            }
        }
        drain.counts.update(drain.share.unnoticed(), drain.share.waiting());
        self.drain = Some(drain);
    }

    /// Returns the time until the next notice or close is due.
    pub(super) fn next_slot(&self) -> Duration {
        let due = self.drain.as_ref().and_then(|drain| drain.share.poll_timeout());
        due.map_or(Duration::MAX, |due| due.since(self.now))
    }

    /// Notifies a client that logged in during the drain of its slot, after its Welcome.
    pub(super) fn notify_late_login(&mut self, conn: &mut Conn) {
        let notice = self.drain.as_ref().and_then(|drain| drain.share.late_notice(conn.key, self.now));
        if let Some(notice) = notice {
            self.send_notice(conn, notice);
        }
    }

    fn send_notice(&mut self, conn: &mut Conn, notice: Notice<ConnKey>) {
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let goaway = pb::GoAway {
            after_ms: ms(notice.after),
            window_ms: ms(notice.window),
            alternates: self.alternates(conn),
            reason: "the node stops".to_owned(),
        };
        if conn.session.begin_drain(goaway, &mut self.buffers.actions) {
            self.act(conn);
            self.flush(conn);
        }
    }

    /// Returns the addresses of other nodes that this client may connect to.
    fn alternates(&self, conn: &Conn) -> Vec<String> {
        let Some(login) = &conn.login else { return Vec::new() };
        let transport = match self.conns.hot[conn.key.slot as usize].wire {
            Wire::Tcp | Wire::JsonLine => Transport::Tcp,
            Wire::WsBinary | Wire::WsText => Transport::Ws,
        };
        self.context.assigner.alternates(login.route.user.as_str(), transport)
    }

    /// Closes all connections gracefully: sends in flight are answered first, within the reply deadline.
    pub(super) fn close_all_gracefully(&mut self, code: Code) {
        for slot in self.conns.slots() {
            self.close_gracefully(slot, code);
        }
    }

    /// Closes one connection gracefully, once its sends in flight are answered.
    pub(super) fn close_gracefully(&mut self, slot: u32, code: Code) {
        self.with_conn(slot, |shard, conn| {
            if is_planted(Planted::DrainUnsettled) {
                conn.session.close(code, "", &mut shard.buffers.actions);
            }
            conn.session.leave(code, "", &mut shard.buffers.actions);
            shard.act(conn);
            shard.flush(conn);
        });
    }

    /// Closes the connection at the deadline of the drain, after writing what its socket takes at once.
    fn close_at_deadline(&mut self, conn: &mut Conn) {
        conn.session.close(Code::Draining, "", &mut self.buffers.actions);
        self.act(conn);
        self.flush(conn);
        if !matches!(conn.ending, Some(super::conn::Ending::Lingering(_))) {
            self.abort(conn);
        }
    }
}
