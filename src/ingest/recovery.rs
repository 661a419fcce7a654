//! Recovery of lost answers: every 300 ms, asks the owner again about records of this node without an answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tidegate_protocol::machine::session::SubmitAnswer;
use tokio::time;

use crate::{
    cluster::Cluster,
    delivery::{
        answer_cache::{self, AnswerCache},
        local::LocalDispatcher,
        pending::Pending,
    },
    link::{AnswerStatus, Ask},
    metrics::Metrics,
    routes::NodeBoot,
};

const RECOVERY_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Timeout of a query to an owner; a later query repeats its questions.
const QUERY_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Recovers the answers of records that this node has appended, for as long as the node lives.
pub async fn ask_again(
    cluster: Arc<Cluster>,
    pending: Arc<Pending>,
    answered: Arc<AnswerCache>,
    mut out: LocalDispatcher,
    metrics: Metrics,
) {
    pending.in_flight().track();
    let mut tick = time::interval(RECOVERY_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    // One query at a time to each owner, so that a silent one delays no other.
    let (mut calls, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        tokio::select! {
            // Fixed order, so that a simulation seed reproduces a run.
            biased;
            Some(QueryReply { to, asks, statuses }) = calls.next() => {
                busy.remove(&to);
                apply_statuses(&asks, statuses, &cluster, &mut out, &metrics);
                out.flush().await;
            }
            _ = tick.tick() => {
                let due = pending.in_flight().due(time::Instant::now());
                for (to, asks) in by_owner(due, &cluster) {
                    if busy.insert(to.clone()) {
                        calls.push(query(&cluster, &answered, to, asks));
                    }
                }
            }
        }
    }
}

fn apply_statuses(
    asks: &[Ask],
    statuses: Vec<AnswerStatus>,
    cluster: &Cluster,
    out: &mut LocalDispatcher,
    metrics: &Metrics,
) {
    for (ask, status) in asks.iter().zip(statuses) {
        match status {
            AnswerStatus::Answered(outcome) => {
                metrics.answers_recovered.increment(1);
                out.answer_here(ask.conn, ask.request, outcome);
            }
            // The outcome is decided but no longer known: the client finds it by a retry with its id.
            AnswerStatus::Forgotten => out.answer(ask.conn, ask.request, SubmitAnswer::Unknown),
            AnswerStatus::NotYet => {}
            AnswerStatus::NotOwner => cluster.peers.request_refresh(),
        }
    }
}

/// Groups the questions by owner. Those of a partition without a known owner wait for a later check.
fn by_owner(due: BTreeMap<u32, Vec<Ask>>, cluster: &Cluster) -> BTreeMap<NodeBoot, Vec<Ask>> {
    let mut by_owner: BTreeMap<NodeBoot, Vec<Ask>> = BTreeMap::new();
    for (partition, asks) in due {
        let mut owners = cluster.peers.owners_of(partition);
        if cluster.owned.has(partition) {
            owners.push(cluster.me.clone());
        }
        if owners.is_empty() {
            cluster.peers.request_refresh();
        }
        for owner in owners {
            by_owner.entry(owner).or_default().extend(&asks);
        }
    }
    by_owner
}

struct QueryReply {
    to: NodeBoot,
    asks: Vec<Ask>,
    statuses: Vec<AnswerStatus>,
}

/// Queries one owner. Returns no status if it does not reply in time; an owner on this node may wait for the store too.
async fn query(
    cluster: &Arc<Cluster>,
    answered: &Arc<AnswerCache>,
    to: NodeBoot,
    asks: Vec<Ask>,
) -> QueryReply {
    let call = async {
        if to == cluster.me {
            return answer_cache::words(answered, cluster, &to, &asks).await;
        }
        cluster.ports.link.answers_again(&cluster.me, &to, asks.clone()).await.unwrap_or_else(|error| {
            tracing::debug!(%error, peer = %to, "query for lost answers failed; retrying");
            Vec::new()
        })
    };
    let statuses = time::timeout(QUERY_TIMEOUT, call).await.unwrap_or_default();
    QueryReply { to, asks, statuses }
}
