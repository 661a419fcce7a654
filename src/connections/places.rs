//! Places of lists: a node makes a few at a time, and the others wait in the order in which they came.

use std::time::Duration;

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

/// Most lists of a kind that wait for a place.
const WAITING_MAX: usize = 64;

/// Longest wait for a place; with it, a node answers within the time of a call.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Places of the lists of one kind.
pub(super) struct ListPlaces {
    places: Semaphore,
    waiting: Semaphore,
}

impl ListPlaces {
    pub(super) const fn new(places: usize) -> Self {
        Self { places: Semaphore::const_new(places), waiting: Semaphore::const_new(WAITING_MAX) }
    }

    /// Waits for a place, which is held until the permit is dropped; `None` if too many wait, or if it takes too long.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        let _waiting = self.waiting.try_acquire().ok()?;
        timeout(WAIT_MAX, self.places.acquire()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::{Pin, pin},
        task::Poll,
    };

    use super::*;

    async fn is_waiting(mut list: Pin<&mut impl Future>) -> bool {
        poll_fn(|cx| Poll::Ready(list.as_mut().poll(cx).is_pending())).await
    }

    #[tokio::test(start_paused = true)]
    async fn lists_wait_in_order_within_bounds() {
        let places = ListPlaces::new(1);
        let first = places.take().await.unwrap();
        let (mut second, mut third) = (pin!(places.take()), pin!(places.take()));
        assert!(is_waiting(second.as_mut()).await && is_waiting(third.as_mut()).await);
        drop(first);
        assert!(is_waiting(third.as_mut()).await, "the second came before");
        drop(second.await.unwrap());
        let third = third.await;
        assert!(third.is_some());
        let mut waiting = Vec::new();
        for _ in 0..WAITING_MAX {
            let mut more = Box::pin(places.take());
            assert!(is_waiting(more.as_mut()).await);
            waiting.push(more);
        }
        assert!(places.take().await.is_none(), "too many wait");
        assert!(waiting.pop().unwrap().await.is_none(), "it takes too long");
    }
}
