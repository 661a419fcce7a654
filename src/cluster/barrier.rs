//! The barrier that readers pass before they read the store for a client: behind it, the store shows everything that the owners
//! who are there had told anybody before (ADR 16, DESIGN 6.1).
//!
//! An owner looks up whom a message is for after it has said that it tells it; a client is in the routes before it reads. So
//! either the owner finds the client, or the client's barrier waits for the message: never neither (DESIGN 6.4).
//!
//! What an owner told that is no more, its successor archives and then tells again, to whoever is there by then: so nobody waits
//! for that, and it comes late. Who would do something for good by what the store shows asks whether it shows that, too
//! ([`Ports::barrier_of`]).

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{Shared, WeakShared, join_all},
};
use tokio::{
    sync::Mutex as Turn,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    link::{Level, Link, LinkError, Settled, Told, UpTo},
    ports::Ports,
    routes::{NodeBoot, NodeRow},
};

/// A peer that is only slow says so after that time, and is waited for as long as the reader has time; one that says nothing for
/// a second is frozen or cut off.
const PATIENCE: Duration = Duration::from_millis(400);
const WAIT: Duration = Duration::from_secs(1);

/// How long one is waited for that said nothing the last time; it is to say at once where it is.
const WAIT_SILENT: Duration = Duration::from_millis(50);

/// Between the beginnings of two calls to one peer: what comes meanwhile shares the second one.
const PACE: Duration = Duration::from_millis(2);

/// What a peer said, which has archived what it told; none = nothing.
type Said = Option<Arc<Level>>;

type Call = Pin<Box<dyn Future<Output = Said> + Send>>;

/// The calls to peers.
#[derive(Debug, Default)]
pub(crate) struct Rounds(Mutex<HashMap<NodeBoot, Arc<Round>>>);

/// Those to one peer. Until it has said something to one the next does not begin, and all who come meanwhile share that.
#[derive(Default)]
struct Round {
    /// When the last one began.
    turn: Turn<Option<Instant>>,
    next: Mutex<Option<WeakShared<Call>>>,
    silent: AtomicBool,
}

impl std::fmt::Debug for Round {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Round").field("silent", &self.silent).finish_non_exhaustive()
    }
}

impl Rounds {
    fn of(&self, peer: &NodeBoot) -> Arc<Round> {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(rounds.entry(peer.clone()).or_default())
    }

    fn keep(&self, is_live: impl Fn(&NodeBoot) -> bool, live: usize) {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.len() > live {
            rounds.retain(|peer, _| is_live(peer));
        }
    }
}

impl Ports {
    /// Waits until the store shows everything that owners who are there, here and on other nodes, had told when this was
    /// called; for as long as they say that it does not. Ready at once where all archive first. A peer that says nothing is not
    /// waited for longer than a second.
    pub async fn barrier(&self) {
        if self.owned.ahead().is_allowed() {
            let runs = self.peers.runs();
            self.peers.rounds.keep(|run| runs.contains(run), runs.len());
            join_all(runs.iter().map(|run| self.pass(run))).await;
            self.pass_own(None).await;
        }
    }

    /// The same for who reads of one partition only: the others may be slow. An owner that its node has not told of yet archives
    /// first.
    pub async fn barrier_in(&self, partition: u32) {
        if self.owned.ahead().is_allowed() {
            let seen = self.peers.seen();
            let is_asked = |row: &&NodeRow| seen.doubtful || row.info.owns.contains(&partition);
            let asked = seen.others.iter().filter(is_asked);
            join_all(asked.map(|row| self.pass(&row.info.boot))).await;
            self.pass_own(Some(partition)).await;
        }
    }

    /// As [`Self::barrier`]; true, if the store shows of that partition what anybody can have told before: somebody has an owner who is
    /// level with those before it, and nobody who may own it says nothing.
    pub async fn barrier_of(&self, partition: u32) -> bool {
        if !self.owned.ahead().is_allowed() {
            return true;
        }
        let seen = self.peers.seen();
        let said = join_all(seen.others.iter().map(|row| self.pass(&row.info.boot))).await;
        let own = self.pass_own(None).await;
        let of = |all: &[UpTo]| all.iter().filter(|it| it.partition == partition).map(|it| it.offset).max();
        let (mut archived, mut owed) = (of(&own.archived), of(&own.owed));
        for (row, said) in seen.others.iter().zip(said) {
            match said {
                Some(level) => {
                    archived = archived.max(of(&level.archived));
                    owed = owed.max(of(&level.owed));
                }
                None if row.info.owns.contains(&partition) => return false,
                None => {}
            }
        }
        // Of a node that is not seen, nobody knows what it told.
        archived.is_some() && archived >= owed && !seen.doubtful && !seen.stale
    }

    async fn pass_own(&self, partition: Option<u32>) -> Level {
        let ahead = self.owned.ahead();
        ahead.settled(&ahead.told(partition)).await;
        ahead.level()
    }

    /// What the peer says to a call that began after this did.
    fn pass(&self, peer: &NodeBoot) -> Shared<Call> {
        let round = self.peers.rounds.of(peer);
        let mut next = round.next();
        if let Some(call) = next.as_ref().and_then(WeakShared::upgrade) {
            return call;
        }
        let call: Call = Box::pin(Arc::clone(&round).call(Arc::clone(&self.link), peer.clone()));
        let call = call.shared();
        *next = call.downgrade();
        call
    }
}

impl Round {
    async fn call(self: Arc<Self>, link: Arc<dyn Link>, peer: NodeBoot) -> Said {
        let mut last = self.turn.lock().await;
        if let Some(last) = *last {
            sleep_until(last + PACE).await;
        }
        // Who comes from here on asks for more than this does.
        *self.next() = None;
        *last = Some(Instant::now());
        let mut said = self.ask(&*link, &peer, Vec::new()).await;
        drop(last);
        loop {
            match said {
                Some(Settled::Level(level)) => return Some(Arc::new(level)),
                Some(Settled::NotYet(told)) => said = self.ask(&*link, &peer, told).await,
                None => return None,
            }
        }
    }

    async fn ask(&self, link: &dyn Link, peer: &NodeBoot, told: Vec<Told>) -> Option<Settled> {
        let (wait, patience) = match self.silent.load(Ordering::Relaxed) {
            true => (WAIT_SILENT, Duration::ZERO),
            false => (WAIT, PATIENCE),
        };
        let said = match timeout(wait, link.settled(peer, told, patience)).await {
            Ok(Ok(said)) => Some(said),
            // It is over, and tells nothing any more.
            Ok(Err(LinkError::NotHere)) => return None,
            Ok(Err(error)) => {
                tracing::debug!(%error, %peer, "what a peer told may not be archived yet");
                None
            }
            Err(_) => None,
        };
        self.silent.store(said.is_none(), Ordering::Relaxed);
        said
    }

    fn next(&self) -> MutexGuard<'_, Option<WeakShared<Call>>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
