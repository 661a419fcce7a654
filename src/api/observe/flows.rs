//! Admin API of flows: how many clients moved between nodes in each second, summed over all nodes.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    time::{Duration, Instant},
};

use axum::{
    extract::{Query, State, rejection::QueryRejection},
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;
use tidegate_protocol::{Code, id::NodeId};

use super::super::{Api, Problem, peer_figures};
use crate::figures::{
    FLOWS_EVERY_MS, FLOWS_KEEP_MS, FLOWS_ROWS_MAX, FiguresPage, FiguresQuery, Flow, FlowsRow,
};

/// Largest lag of a peer's clock for which a response waits until that peer has completed a second, in ms.
const CLOCK_LAG_MAX_MS: u64 = 5_000;

/// How long the answers of all nodes serve further requests.
const SHARED_FOR: Duration = Duration::from_millis(500);

/// Parameters of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::api) struct FlowsQuery {
    /// Time after which rows are wanted, in ms since 1970.
    #[serde(default)]
    since: u64,
}

/// Returns the flows of all nodes after a time.
pub(in crate::api) async fn list(
    State(api): State<Api>,
    query: Result<Query<FlowsQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    let Query(FlowsQuery { since }) = query.map_err(|error| Problem(Code::BadContent, error.body_text()))?;
    let mut newest = api.stats.flows.newest.lock().await;
    let answers = match newest.take() {
        Some(answers) if answers.at.elapsed() < SHARED_FOR && answers.since <= since => answers,
        _ => query_all(&api, since).await,
    };
    let Answers { now_ms, silent, .. } = &answers;
    let mut body = format!(
        "{{\"everyMs\":{FLOWS_EVERY_MS},\"keepMs\":{FLOWS_KEEP_MS},\"nowMs\":{now_ms},\"silent\":{},\"rows\":[",
        json!(silent)
    );
    put_rows(&sum(&answers.pages, *now_ms, since), &mut body);
    body.push_str("]}");
    *newest = Some(answers);
    Ok(([(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")], body).into_response())
}

/// Answers of all nodes that a few requests share, so that many requests query the peers no more often than one.
#[derive(Default)]
pub(in crate::api) struct FlowsCache {
    /// Locked during a query: requests that come meanwhile wait for its answers.
    newest: tokio::sync::Mutex<Option<Answers>>,
}

/// Flows of all nodes that answered.
struct Answers {
    at: Instant,
    /// Time after which there are rows.
    since: u64,
    now_ms: u64,
    pages: Vec<FiguresPage>,
    silent: Vec<String>,
}

async fn query_all(api: &Api, since: u64) -> Answers {
    let query = FiguresQuery { flows_after_ms: Some(since), ..FiguresQuery::default() };
    let queries = peer_figures::live(&api.cluster).into_iter().map(|run| (run, query)).collect();
    let answers = api.stats.peer_figures.query(&*api.cluster.ports.link, queries).await;
    // Last, so that its seconds are complete at least as far as those of the peers.
    let own = api.cluster.figures.page(query);
    let now_ms = own.now_ms;
    let (mut pages, mut silent) = (vec![own], Vec::new());
    for (run, answer) in answers {
        match answer {
            Ok(page) => pages.push(page),
            Err(error) => {
                tracing::debug!(%error, node = %run.node, "peer returned no flows; they are missing in the response");
                silent.push(run.node.to_string());
            }
        }
    }
    Answers { at: Instant::now(), since, now_ms, pages, silent }
}

/// Returns the sums of the seconds that are complete on all nodes, the newest of them if there are too many. A clock
/// that lags by more than [`CLOCK_LAG_MAX_MS`] is not waited for.
fn sum(pages: &[FiguresPage], now_ms: u64, since: u64) -> Vec<FlowsRow> {
    let slowest = pages.iter().map(|page| page.now_ms).min().unwrap_or(now_ms);
    let complete_to = slowest.clamp(now_ms.saturating_sub(CLOCK_LAG_MAX_MS), now_ms);
    type Pairs<'a> = BTreeMap<(Option<&'a NodeId>, Option<&'a NodeId>), u64>;
    let mut rows: BTreeMap<u64, Pairs<'_>> = BTreeMap::new();
    for row in pages.iter().flat_map(|page| &page.flows) {
        let at_ms = row.at_ms / FLOWS_EVERY_MS * FLOWS_EVERY_MS;
        if at_ms <= since || at_ms.saturating_add(FLOWS_EVERY_MS) > complete_to {
            continue;
        }
        let sums = rows.entry(at_ms).or_default();
        for flow in &row.flows {
            let sum = sums.entry((flow.from.as_ref(), flow.to.as_ref())).or_default();
            *sum = sum.saturating_add(flow.count);
        }
    }
    let skipped = rows.len().saturating_sub(FLOWS_ROWS_MAX);
    let flow = |((from, to), count): ((Option<&NodeId>, Option<&NodeId>), u64)| Flow {
        from: from.cloned(),
        to: to.cloned(),
        count,
    };
    let row =
        |(at_ms, sums): (u64, Pairs<'_>)| FlowsRow { at_ms, flows: sums.into_iter().map(flow).collect() };
    rows.into_iter().skip(skipped).map(row).collect()
}

fn put_rows(rows: &[FlowsRow], out: &mut String) {
    let name = |node: &Option<NodeId>| node.as_ref().map_or(String::new(), ToString::to_string);
    for (nth, row) in rows.iter().enumerate() {
        write!(out, "{}[{},[", if nth > 0 { "," } else { "" }, row.at_ms).ok();
        for (nth, flow) in row.flows.iter().enumerate() {
            let (from, to) = (name(&flow.from), name(&flow.to));
            write!(out, "{}[\"{from}\",\"{to}\",{}]", if nth > 0 { "," } else { "" }, flow.count).ok();
        }
        out.push_str("]]");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(now_ms: u64, rows: &[(u64, &str, &str, u64)]) -> FiguresPage {
        let node = |name: &str| NodeId::new(name).ok();
        let row = |&(at_ms, from, to, count): &(u64, &str, &str, u64)| FlowsRow {
            at_ms,
            flows: vec![Flow { from: node(from), to: node(to), count }],
        };
        FiguresPage { now_ms, flows: rows.iter().map(row).collect(), ..FiguresPage::default() }
    }

    fn summed(pages: Vec<FiguresPage>, now_ms: u64, since: u64) -> String {
        let mut out = String::new();
        put_rows(&sum(&pages, now_ms, since), &mut out);
        out
    }

    #[test]
    fn rows_of_all_nodes_are_summed_by_second() {
        let n1 = page(9_500, &[(1_000, "n2", "n1", 2), (3_000, "", "n1", 1)]);
        let n2 = page(9_400, &[(1_000, "n1", "n2", 3), (2_000, "n2", "", 4), (3_000, "", "n1", 5)]);
        let all =
            "[1000,[[\"n1\",\"n2\",3],[\"n2\",\"n1\",2]]],[2000,[[\"n2\",\"\",4]]],[3000,[[\"\",\"n1\",6]]]";
        assert_eq!(summed(vec![n1.clone(), n2.clone()], 9_500, 0), all);
        assert_eq!(summed(vec![n1, n2], 9_500, 2_000), "[3000,[[\"\",\"n1\",6]]]");
    }

    #[test]
    fn second_is_returned_once_it_is_complete_on_all_nodes() {
        let n1 = || page(9_100, &[(8_000, "", "n1", 1)]);
        assert_ne!(summed(vec![n1(), page(9_000, &[])], 9_100, 0), "");
        assert_eq!(summed(vec![n1(), page(8_999, &[])], 9_100, 0), "", "n2 may still count in that second");
        assert_ne!(
            summed(vec![page(20_000, &[(8_000, "", "n1", 1)]), page(3, &[])], 20_000, 0),
            "",
            "its clock is wrong"
        );
        assert_eq!(
            summed(vec![n1(), page(u64::MAX, &[(u64::MAX - 9_000, "", "n2", 1)])], 9_000, 0)
                .matches("n2")
                .count(),
            0
        );
    }

    #[test]
    fn response_has_at_most_the_rows_of_fifteen_minutes() {
        let rows: Vec<_> = (1..=FLOWS_ROWS_MAX as u64 + 9).map(|n| (n * 1_000, "", "n1", 1)).collect();
        let now_ms = 10 * FLOWS_KEEP_MS;
        let sums = sum(&[page(now_ms, &rows)], now_ms, 0);
        assert_eq!((sums.len(), sums[0].at_ms), (FLOWS_ROWS_MAX, 10_000));
    }
}
