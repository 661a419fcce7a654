//! Asking the owner again for answers that did not come, every 300 ms (DESIGN 6.1).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tidegate_protocol::machine::session::Answer;
use tokio::time;

use super::{
    admin::Pending,
    answered::{self, Answered},
    deliver::Outbound,
};
use crate::{
    link::{Ask, Word},
    metrics::Metrics,
    ports::Ports,
    routes::NodeBoot,
};

/// Between two looks at what waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Nodes asked at once.
const NODES_MAX: usize = 16;

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
    loop {
        tick.tick().await;
        let due = pending.unanswered().due(time::Instant::now());
        if due.is_empty() {
            continue;
        }
        let asked = by_owner(due, &ports);
        let mut calls = stream::iter(asked.into_iter().map(|(to, asks)| {
            let (ports, answered) = (&ports, &answered);
            async move {
                let words = ask(ports, answered, &to, &asks).await;
                (asks, words)
            }
        }))
        .buffer_unordered(NODES_MAX);
        while let Some((asks, words)) = calls.next().await {
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
            out.flush().await;
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

async fn ask(ports: &Arc<Ports>, answered: &Arc<Answered>, to: &NodeBoot, asks: &[Ask]) -> Vec<Word> {
    if *to == ports.me {
        return answered::words(answered, ports, to, asks).await;
    }
    let call = ports.link.answers_again(&ports.me, to, asks.to_vec());
    match time::timeout(CALL_MAX, call).await {
        Ok(Ok(words)) => words,
        Ok(Err(error)) => {
            tracing::debug!(%error, peer = %to, "an owner was not asked for answers");
            Vec::new()
        }
        Err(_) => Vec::new(),
    }
}
