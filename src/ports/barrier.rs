//! The barrier that readers pass before they read the store for a client: behind it, the store shows everything that anybody
//! was told before (ADR 16, DESIGN 6.1).
//!
//! An owner looks up whom a message is for after it has said that it tells it; a client is in the routes before it reads. So
//! either the owner finds the client, or the client's barrier waits for the message: never neither (DESIGN 6.4).

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{sync::Mutex as Turn, time};

use super::Ports;
use crate::{link::LinkError, routes::NodeBoot};

/// A peer that takes longer is frozen or cut off. What it told and did not archive comes late, then: from itself, when it is
/// there again, or from who takes over and tells it again.
const WAIT: Duration = Duration::from_secs(1);

/// How long one is waited for that did not answer the last time.
const WAIT_SILENT: Duration = Duration::from_millis(50);

/// Between the beginnings of two calls to one peer: what comes meanwhile shares the second one.
const PACE: Duration = Duration::from_millis(2);

/// The calls to peers; one at a time to each.
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<HashMap<NodeBoot, Arc<Round>>>);

#[derive(Debug, Default)]
struct Round {
    turn: Turn<Option<time::Instant>>,
    begun: AtomicU64,
    ended: AtomicU64,
    silent: AtomicBool,
}

impl Rounds {
    fn of(&self, peer: &NodeBoot) -> Arc<Round> {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(rounds.entry(peer.clone()).or_default())
    }

    fn keep(&self, live: &[NodeBoot]) {
        let mut rounds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rounds.len() > live.len() {
            rounds.retain(|peer, _| live.contains(peer));
        }
    }
}

impl Ports {
    /// Waits until the store shows everything that owners, here and on other nodes, had told when this was called. Ready at
    /// once where all archive first.
    ///
    /// A peer that does not answer is not waited for longer than a second.
    pub async fn barrier(&self) {
        if !self.owned.ahead().is_allowed() {
            return;
        }
        let peers = self.peers.runs();
        if !peers.is_empty() {
            self.peers.rounds.keep(&peers);
            join_all(peers.iter().map(|peer| self.pass(peer))).await;
        }
        self.owned.ahead().settled().await;
    }

    /// A call that began after this did has ended.
    async fn pass(&self, peer: &NodeBoot) {
        let round = self.peers.rounds.of(peer);
        let begun = round.begun.load(Ordering::SeqCst);
        let mut last = round.turn.lock().await;
        if round.ended.load(Ordering::SeqCst) > begun {
            return;
        }
        if let Some(last) = *last {
            time::sleep_until(last + PACE).await;
        }
        *last = Some(time::Instant::now());
        let this = round.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let wait = if round.silent.load(Ordering::Relaxed) { WAIT_SILENT } else { WAIT };
        let said = time::timeout(wait, self.link.settled(peer)).await;
        // One that was dropped meanwhile has ended nothing: who waits for it calls for itself.
        round.ended.store(this, Ordering::SeqCst);
        let silent = match said {
            Ok(Ok(())) | Ok(Err(LinkError::NotHere)) => false,
            Ok(Err(error)) => {
                tracing::debug!(%error, %peer, "what a peer told may not be archived yet");
                true
            }
            Err(_) => true,
        };
        round.silent.store(silent, Ordering::Relaxed);
    }
}
