//! Asking the owner again for answers that did not come, every 300 ms (DESIGN 6.1).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tidegate_protocol::machine::session::Answer;
use tokio::time;

use super::admin::Pending;
use crate::{
    delivery::{
        answer_cache::{self, Answered},
        local::Outbound,
    },
    link::{Ask, Word},
    metrics::Metrics,
    ports::Ports,
    routes::NodeBoot,
};

/// Between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A call that takes longer is given up; the next one asks about the same.
const CALL_MAX: Duration = Duration::from_millis(1_000);

/// Asks for the answers of what this node has appended, for as long as it lives.
pub async fn ask_again(
    ports: Arc<Ports>,
    pending: Arc<Pending>,
    answered: Arc<Answered>,
    mut out: Outbound,
    metrics: Metrics,
) {
    pending.unanswered().track();
    let mut tick = time::interval(LOOK_EVERY);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    // One call at a time to each owner: one that does not answer holds up no other.
    let (mut calls, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        tokio::select! {
            // In this order, so that a simulation runs the same way each time.
            biased;
            Some(Asked { to, asks, words }) = calls.next() => {
                busy.remove(&to);
                take(&asks, words, &ports, &mut out, &metrics);
                out.flush().await;
            }
            _ = tick.tick() => {
                let due = pending.unanswered().due(time::Instant::now());
                for (to, asks) in by_owner(due, &ports) {
                    if busy.insert(to.clone()) {
                        calls.push(ask(&ports, &answered, to, asks));
                    }
                }
            }
        }
    }
}

fn take(asks: &[Ask], words: Vec<Word>, ports: &Ports, out: &mut Outbound, metrics: &Metrics) {
    for (ask, word) in asks.iter().zip(words) {
        match word {
            Word::Said(outcome) => {
                metrics.answers_recovered.increment(1);
                out.answer_here(ask.conn, ask.request, outcome);
            }
            // It was answered, and nobody knows how: the client finds out by asking again under its id.
            Word::Forgotten => out.answer(ask.conn, ask.request, Answer::Unknown),
            Word::NotYet => {}
            Word::NotOwner => ports.peers.look_again(),
        }
    }
}

/// Who is to be asked what. A partition without a known owner is not asked about; the next look may know one.
fn by_owner(due: BTreeMap<u32, Vec<Ask>>, ports: &Ports) -> BTreeMap<NodeBoot, Vec<Ask>> {
    let mut by_owner: BTreeMap<NodeBoot, Vec<Ask>> = BTreeMap::new();
    for (partition, asks) in due {
        let mut owners = ports.peers.owners_of(partition);
        if ports.owned.has(partition) {
            owners.push(ports.me.clone());
        }
        if owners.is_empty() {
            ports.peers.look_again();
        }
        for owner in owners {
            by_owner.entry(owner).or_default().extend(&asks);
        }
    }
    by_owner
}

struct Asked {
    to: NodeBoot,
    asks: Vec<Ask>,
    words: Vec<Word>,
}

/// No words if the owner did not answer in time, wherever it is: this node's own may wait for a store.
async fn ask(ports: &Arc<Ports>, answered: &Arc<Answered>, to: NodeBoot, asks: Vec<Ask>) -> Asked {
    let call = async {
        if to == ports.me {
            return answer_cache::words(answered, ports, &to, &asks).await;
        }
        ports.link.answers_again(&ports.me, &to, asks.clone()).await.unwrap_or_else(|error| {
            tracing::debug!(%error, peer = %to, "an owner was not asked for answers");
            Vec::new()
        })
    };
    let words = time::timeout(CALL_MAX, call).await.unwrap_or_default();
    Asked { to, asks, words }
}
