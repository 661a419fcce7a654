//! Driver of a shard: polls the shard's sockets on a thread of its own, and runs one turn after each wake-up.

use std::{io, sync::Arc, task::Wake, time::Instant};

use mio::{Events, Token};
use tidegate_protocol::Time;

use super::{Context, Shard, newcomer::NewcomerQueue};
use crate::{
    clock::{Now, wall_ms},
    net::{
        io::Ready,
        tcp::{Arrival, Tcp},
    },
};

/// Most events that one poll returns; the others are returned by the next one.
const EVENTS_MAX: usize = 1_024;

const WAKER: Token = Token(usize::MAX);

/// Shard on sockets, whose transport has the poll that watches them.
pub struct Driver {
    shard: Shard<Tcp>,
}

/// Queue of the new connections of a shard on sockets.
pub type DriverQueue = NewcomerQueue<Arrival>;

/// Waker of a sleeping poll.
struct PollWaker(mio::Waker);

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Err(error) = self.0.wake() {
            tracing::error!(%error, "failed to wake a shard; it continues after at most 100 ms");
        }
    }
}

/// Creates a shard on sockets that is ready to run, and the queue of its new connections.
///
/// # Errors
/// Fails if the kernel can't create the poll or its waker.
pub fn build(context: Context) -> io::Result<(Driver, DriverQueue)> {
    let transport = Tcp::new()?;
    let waker = Arc::new(PollWaker(mio::Waker::new(transport.registry(), WAKER)?));
    let (shard, newcomers) = Shard::new(context, transport, waker.into());
    Ok((Driver { shard }, newcomers))
}

impl Driver {
    /// Runs until the shard is over. The shard's time begins at `start`, which all shards of a node share.
    ///
    /// # Errors
    /// Fails if polling fails, which no connection can cause.
    pub fn run(mut self, start: Instant) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut meter = self.shard.turn_meter(start.elapsed());
        while !self.shard.is_over() {
            self.wait(&mut events)?;
            let begun = start.elapsed();
            meter.begin(begun);
            let at = Time::from_millis(begun.as_millis() as u64);
            self.turn(&events, Now { at, wall_ms: wall_ms() });
            meter.record(begun, start.elapsed(), self.shard.visit_lag());
        }
        Ok(())
    }

    /// Sleeps until there is work, at most 100 ms, and collects the events of the sockets. Called by [`Self::run`], and
    /// by tests and benchmarks that drive a shard with their own clock.
    ///
    /// # Errors
    /// Fails if polling fails.
    pub fn wait(&mut self, events: &mut Events) -> io::Result<()> {
        self.shard.about_to_sleep();
        let idle_for = self.shard.idle_for();
        let polled = self.shard.io.wait(events, idle_for);
        self.shard.awoke();
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs one turn of the shard with the collected events. Not generic, so that callers in other crates run, and
    /// measure, the code that the node runs.
    pub fn turn(&mut self, events: &Events, now: Now) {
        let of_sockets = events.iter().filter(|event| event.token() != WAKER);
        let ready = of_sockets.map(|event| Ready {
            slot: event.token().0 as u32,
            readable: event.is_readable() || event.is_error(),
            writable: event.is_writable(),
            ended: event.is_read_closed(),
        });
        self.shard.turn(now, ready, || events.iter().count() < events.capacity());
    }
}
