//! Choice of the shard of a new connection.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::net::tcp::Arrival;
use crate::shard::{DriverQueue, newcomer::Newcomer};

/// Queues of all shards; each clone hands over connections on its own.
#[derive(Clone)]
pub(super) struct Placement {
    shards: Arc<[DriverQueue]>,
    next: Arc<AtomicUsize>,
}

impl Placement {
    pub(super) fn new(shards: Vec<DriverQueue>) -> Self {
        Self { shards: shards.into(), next: Arc::default() }
    }

    /// Offers a connection to the shard with the fewest connections, then to the others; returns it if all are full.
    pub(super) fn offer(&self, newcomer: Newcomer<Arrival>) -> Result<(), Newcomer<Arrival>> {
        let (first, count) = (self.least_loaded(), self.shards.len());
        let mut refused = newcomer;
        for step in 0..count {
            match self.shards[(first + step) % count].offer(refused) {
                Ok(()) => return Ok(()),
                Err(newcomer) => refused = newcomer,
            }
        }
        Err(refused)
    }

    /// Returns the shard with the fewest connections; rotates among equals.
    fn least_loaded(&self) -> usize {
        let count = self.shards.len();
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let rotated = (0..count).map(|step| next.wrapping_add(step) % count);
        rotated.min_by_key(|at| self.shards[*at].shard().conns()).unwrap_or(0)
    }
}
