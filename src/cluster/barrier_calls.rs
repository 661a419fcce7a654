//! Calls of readers to all peers, shared by the readers that wait at the same time (`barrier` has the barrier).

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{Shared, WeakShared},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    link::{ArchiveStatus, ArchivedUpTo, Link, LinkError, PublishedMark},
    routes::NodeBoot,
};

/// Time after which a slow peer replies that it is not caught up; the reader queries it again for as long as it can
/// wait.
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);

/// Time after which a peer without a reply counts as frozen or cut off.
const CALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time to wait for a peer that did not reply last time; it is asked to reply at once.
const SILENT_CALL_TIMEOUT: Duration = Duration::from_millis(50);

/// Shortest interval between the starts of two calls to one peer; readers that arrive in between share the second call.
const CALL_INTERVAL_MIN: Duration = Duration::from_millis(2);

/// Archived offsets of a peer that has archived what it published; `None` if it did not reply.
pub(crate) type PeerArchive = Option<Arc<ArchivedUpTo>>;

pub(crate) type Call = Pin<Box<dyn Future<Output = PeerArchive> + Send>>;

/// Barrier calls to all peers.
#[derive(Debug, Default)]
pub(crate) struct BarrierCalls(Mutex<HashMap<NodeBoot, Arc<PeerCalls>>>);

/// Calls to one peer. The next one begins once the current one got its first reply; readers that arrive before share
/// it.
#[derive(Default)]
struct PeerCalls {
    /// Start of the last call.
    last_start: AsyncMutex<Option<Instant>>,
    next: Mutex<Option<WeakShared<Call>>>,
    silent: AtomicBool,
}

impl std::fmt::Debug for PeerCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerCalls").field("silent", &self.silent).finish_non_exhaustive()
    }
}

impl BarrierCalls {
    fn of(&self, peer: &NodeBoot) -> Arc<PeerCalls> {
        let mut barrier_calls = self.0.lock();
        Arc::clone(barrier_calls.entry(peer.clone()).or_default())
    }

    pub(crate) fn retain(&self, is_live: impl Fn(&NodeBoot) -> bool, live: usize) {
        let mut barrier_calls = self.0.lock();
        if barrier_calls.len() > live {
            barrier_calls.retain(|peer, _| is_live(peer));
        }
    }

    /// Returns the peer's reply to a call that starts from now on; other readers share the call.
    pub(crate) fn call(&self, link: &Arc<dyn Link>, peer: &NodeBoot) -> Shared<Call> {
        let calls = self.of(peer);
        let mut next = calls.next();
        if let Some(call) = next.as_ref().and_then(WeakShared::upgrade) {
            return call;
        }
        let call: Call = Box::pin(Arc::clone(&calls).call(Arc::clone(link), peer.clone()));
        let call = call.shared();
        *next = call.downgrade();
        call
    }
}

impl PeerCalls {
    async fn call(self: Arc<Self>, link: Arc<dyn Link>, peer: NodeBoot) -> PeerArchive {
        let mut last = self.last_start.lock().await;
        if let Some(last) = *last {
            sleep_until(last + CALL_INTERVAL_MIN).await;
        }
        // Readers that arrive from here on need a later call.
        *self.next() = None;
        *last = Some(Instant::now());
        let mut reply = self.query(&*link, &peer, Vec::new()).await;
        drop(last);
        loop {
            match reply {
                Some(ArchiveStatus::ArchivedUpTo(up_to)) => return Some(Arc::new(up_to)),
                Some(ArchiveStatus::NotYet(marks)) => reply = self.query(&*link, &peer, marks).await,
                None => return None,
            }
        }
    }

    async fn query(
        &self,
        link: &dyn Link,
        peer: &NodeBoot,
        marks: Vec<PublishedMark>,
    ) -> Option<ArchiveStatus> {
        let (wait, reply_within) = match self.silent.load(Ordering::Relaxed) {
            true => (SILENT_CALL_TIMEOUT, Duration::ZERO),
            false => (CALL_TIMEOUT, REPLY_TIMEOUT),
        };
        let reply = match timeout(wait, link.archive_status(peer, marks, reply_within)).await {
            Ok(Ok(reply)) => Some(reply),
            // That run has ended, and publishes nothing more.
            Ok(Err(LinkError::NotHere)) => return None,
            Ok(Err(error)) => {
                tracing::debug!(%error, %peer, "barrier call failed; published records may be unarchived");
                None
            }
            Err(_) => None,
        };
        self.silent.store(reply.is_none(), Ordering::Relaxed);
        reply
    }

    fn next(&self) -> MutexGuard<'_, Option<WeakShared<Call>>> {
        self.next.lock()
    }
}
