//! Admin API of storms: groups with more messages than the threshold, on all nodes, each of which knows its partitions.

use axum::{Json, extract::State};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tidegate_protocol::machine::storm::{StormId, StormPhase};

use super::super::{Api, Problem, extract::IdPath};
use crate::{
    cluster::Cluster,
    storms::{self, StormDetails, StormView, StormsQuery},
};

/// Returns the storms of all nodes, those with the most messages first.
pub(in crate::api) async fn list(State(api): State<Api>) -> Json<Value> {
    let collected = collect(&api.cluster, &StormsQuery::default()).await;
    let Collected { storms: mut found, total, silent } = collected.without_doubles();
    storms::sort(&mut found);
    let storms: Vec<Value> = found.iter().map(|view| show(&api.cluster, view)).collect();
    Json(json!({"storms": storms, "total": total, "silent": silent}))
}

/// Returns the messages of a group in the window, and its storm if there is one.
pub(in crate::api) async fn of_group(
    State(api): State<Api>,
    IdPath(group): IdPath<String>,
) -> Result<Json<Value>, Problem> {
    let conversation = super::group(&group)?;
    let query = StormsQuery { group: Some(conversation.clone()) };
    let Collected { storms, silent, .. } = collect(&api.cluster, &query).await;
    let of_group = storms.into_iter().filter(|it| it.conversation == conversation);
    // While a partition moves, its former owner may still have a watch.
    let found = of_group.max_by_key(|it| (it.storm.is_some(), it.phase != StormPhase::Unknown, it.count));
    let view = found.unwrap_or_else(|| api.cluster.storms.unwatched(conversation));
    let mut shown = show(&api.cluster, &view);
    shown["silent"] = json!(silent);
    Ok(Json(shown))
}

/// Watches of all nodes.
struct Collected {
    storms: Vec<StormView>,
    total: u64,
    /// Nodes that did not answer, or are too old to know the query.
    silent: Vec<String>,
}

/// Queries this node and all its peers concurrently; a peer has the time of a link call to reply.
async fn collect(cluster: &Cluster, query: &StormsQuery) -> Collected {
    let own = cluster.storms.page(query);
    let mut collected = Collected { storms: own.storms, total: own.total, silent: Vec::new() };
    let others = cluster.peers.others();
    let calls = others.iter().map(|row| cluster.ports.link.storms(&row.info.boot, query.clone()));
    for (row, reply) in others.iter().zip(join_all(calls).await) {
        match reply {
            Ok(page) => {
                collected.storms.extend(page.storms);
                collected.total = collected.total.saturating_add(page.total);
            }
            Err(error) => {
                let node = row.info.boot.node.to_string();
                tracing::debug!(%error, node, "peer returned no storms; they are missing in the response");
                collected.silent.push(node);
            }
        }
    }
    collected
}

impl Collected {
    /// Removes the storms of former owners whose partitions are moving, which a new owner has, too.
    fn without_doubles(mut self) -> Self {
        self.storms.sort_by(|a, b| a.conversation.cmp(&b.conversation).then_with(|| b.count.cmp(&a.count)));
        let listed = self.storms.len();
        self.storms.dedup_by(|next, kept| next.conversation == kept.conversation);
        self.total = self.total.saturating_sub((listed - self.storms.len()) as u64);
        self
    }
}

fn show(cluster: &Cluster, view: &StormView) -> Value {
    let mut shown = json!({
        "conversation": view.conversation.as_str(),
        "state": word(view.phase),
        "count": view.count,
        "threshold": view.threshold,
        "windowMs": view.window_ms,
    });
    if let Some(StormDetails { seq, since_ms, peak, profile }) = &view.storm {
        let id = StormId { conversation: view.conversation.clone(), seq: *seq };
        shown["id"] = json!(id.to_string());
        shown["sinceMs"] = json!(since_ms);
        shown["peak"] = json!(peak);
        let entry = cluster.storms.entries().get(&view.conversation);
        if let Some(action) = entry.and_then(|entry| entry.action) {
            shown["action"] = json!(action.to_string());
        }
        if let Some(it) = profile {
            shown["profile"] = json!({"startMs": it.start_ms, "partMs": it.part_ms, "counts": it.counts});
        }
    }
    shown
}

fn word(phase: StormPhase) -> &'static str {
    match phase {
        StormPhase::Unknown => "unknown",
        StormPhase::Quiet => "quiet",
        StormPhase::Storm => "storm",
        StormPhase::Cooling => "cooling",
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::ConversationId;

    use super::*;

    #[test]
    fn storm_of_a_moving_partition_is_listed_once() {
        let view = |name: &str, count| StormView {
            conversation: ConversationId::parse(name).unwrap(),
            phase: StormPhase::Storm,
            count,
            threshold: 100,
            window_ms: 60_000,
            storm: None,
        };
        let storms = vec![view("g:a", 150), view("g:b", 300), view("g:a", 170)];
        let all = Collected { storms, total: 3, silent: Vec::new() }.without_doubles();
        let counts: Vec<u32> = all.storms.iter().map(|it| it.count).collect();
        assert_eq!((counts, all.total), (vec![170, 300], 2));
    }
}
