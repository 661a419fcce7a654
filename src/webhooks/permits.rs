//! Permits for the requests of all endpoints of a node, shared out so that no endpoint keeps the others waiting.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{endpoint::ENDPOINTS_MAX, newest::NewestNumbers};
use crate::store::ConsumerName;

/// Most requests of all endpoints of a node at a time. With [`super::REQUEST_BYTES_MAX`], it bounds their memory.
pub const FEED_REQUESTS_MAX: usize = 96;

/// Most of them beyond the first one of each share, so that the events of every endpoint can have one at any time, and its
/// notices too.
const FURTHER_REQUESTS_MAX: usize = FEED_REQUESTS_MAX - 2 * ENDPOINTS_MAX;

/// What the deliverers of a node share: the permits for their requests, at most [`FEED_REQUESTS_MAX`], and the reads of the
/// newest numbers.
///
/// An endpoint has at most as many permits as lanes, and can have its first one at any time: however slow the others are,
/// its requests go on. A permit that gets free goes to the endpoint that has the fewest of
/// those that wait: while others wait, none gets more than its equal share.
#[derive(Default)]
pub struct WebhookPermits {
    shares: Mutex<Shares>,
    pub(super) newest: NewestNumbers,
}

#[derive(Default)]
struct Shares {
    in_use: usize,
    /// Endpoints with a permit, or with a request that waits for one.
    endpoints: BTreeMap<ConsumerName, Share>,
}

#[derive(Default)]
struct Share {
    in_use: usize,
    lanes: usize,
    /// Requests that wait: at most those that an endpoint has in flight.
    waiting: VecDeque<oneshot::Sender<WebhookPermit>>,
}

/// Permit for one request; free again on drop.
pub(crate) struct WebhookPermit {
    permits: Arc<WebhookPermits>,
    endpoint: ConsumerName,
}

impl WebhookPermits {
    /// Waits for a permit. A caller that stops waiting leaves nothing behind.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        endpoint: &ConsumerName,
        lanes: usize,
    ) -> Option<WebhookPermit> {
        let (sender, permit) = oneshot::channel();
        {
            let mut shares = self.shares.lock();
            let share = shares.endpoints.entry(endpoint.clone()).or_default();
            share.lanes = lanes.max(1);
            share.waiting.push_back(sender);
        }
        self.grant();
        permit.await.ok()
    }

    /// Gives free permits to those that wait.
    fn grant(self: &Arc<Self>) {
        loop {
            let next = self.shares.lock().next();
            let Some((endpoint, waiting)) = next else { return };
            // If the request has ended meanwhile, the permit is free again.
            waiting.send(WebhookPermit { permits: Arc::clone(self), endpoint }).ok();
        }
    }
}

impl Shares {
    /// Takes a free permit for the endpoint with the fewest.
    fn next(&mut self) -> Option<(ConsumerName, oneshot::Sender<WebhookPermit>)> {
        for share in self.endpoints.values_mut() {
            share.waiting.retain(|waiting| !waiting.is_closed());
        }
        self.endpoints.retain(|_, share| share.in_use > 0 || !share.waiting.is_empty());
        if self.in_use >= FEED_REQUESTS_MAX {
            return None;
        }
        let further: usize = self.endpoints.values().map(|it| it.in_use.saturating_sub(1)).sum();
        let may_have = |it: &Share| it.in_use == 0 || further < FURTHER_REQUESTS_MAX;
        let waiting = self.endpoints.iter_mut();
        let waiting =
            waiting.filter(|(_, it)| !it.waiting.is_empty() && it.in_use < it.lanes && may_have(it));
        let (endpoint, share) = waiting.min_by_key(|(_, it)| it.in_use)?;
        let sender = share.waiting.pop_front()?;
        share.in_use += 1;
        self.in_use += 1;
        Some((endpoint.clone(), sender))
    }
}

impl Drop for WebhookPermit {
    fn drop(&mut self) {
        {
            let mut shares = self.permits.shares.lock();
            shares.in_use -= 1;
            if let Some(share) = shares.endpoints.get_mut(&self.endpoint) {
                share.in_use -= 1;
            }
        }
        self.permits.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn name(name: &str) -> ConsumerName {
        ConsumerName::new(name).unwrap()
    }

    fn take(permits: &Arc<WebhookPermits>, endpoint: &str, lanes: usize, count: usize) -> Vec<WebhookPermit> {
        let endpoint = name(endpoint);
        let taken = (0..count).map_while(|_| permits.acquire(&endpoint, lanes).now_or_never());
        taken.flatten().collect()
    }

    #[test]
    fn endpoint_has_at_most_its_lanes_and_the_node_its_total() {
        let permits = Arc::new(WebhookPermits::default());
        let first = take(&permits, "a", 4, 9);
        assert_eq!(first.len(), 4);
        let second = take(&permits, "b", 100, 100);
        assert_eq!(second.len(), 1 + FURTHER_REQUESTS_MAX - 3);
        assert_eq!(take(&permits, "d", 100, 100).len(), 1, "slow ones leave the first permit of each");
        drop((first, second));
        assert_eq!(take(&permits, "c", 100, 100).len(), 1 + FURTHER_REQUESTS_MAX);
        assert_eq!(permits.shares.lock().endpoints.len(), 0, "nothing is left behind");
    }

    #[test]
    fn events_and_notices_of_the_last_endpoint_have_a_permit_while_all_others_hang() {
        let permits = Arc::new(WebhookPermits::default());
        let mut hung = Vec::new();
        for endpoint in 1..ENDPOINTS_MAX {
            hung.extend(take(&permits, &format!("w.{endpoint}"), 32, 32));
            hung.extend(take(&permits, &format!("n.{endpoint}"), 32, 32));
        }
        assert_eq!(take(&permits, "w.last", 32, 32).len(), 1, "{} hang", hung.len());
        assert_eq!(take(&permits, "n.last", 32, 32).len(), 1, "{} hang", hung.len());
    }

    #[tokio::test]
    async fn endpoints_share_equally_while_all_want_more() {
        let permits = Arc::new(WebhookPermits::default());
        let mut held = take(&permits, "a", 100, 100);
        let waiting = ["a", "b", "c"].map(|it| {
            let (permits, endpoint) = (Arc::clone(&permits), name(it));
            let wait = move || {
                let (permits, endpoint) = (Arc::clone(&permits), endpoint.clone());
                tokio::spawn(async move { permits.acquire(&endpoint, 100).await })
            };
            std::iter::repeat_with(wait).take(40).collect::<Vec<_>>()
        });
        tokio::task::yield_now().await;
        // Each request ends once, the oldest first, and its permit passes on.
        while let Some(ended) = held.pop() {
            drop(ended);
            tokio::task::yield_now().await;
        }
        let of = |at: usize| waiting[at].iter().filter(|it| it.is_finished()).count();
        let counts = [of(0), of(1), of(2)];
        assert!(counts.iter().all(|it| (10..=13).contains(it)), "{counts:?}");
    }
}
