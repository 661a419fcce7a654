//! Figures of the other nodes, as far as they are followed: what was received, and the position of the next query.

use std::collections::HashMap;

use tidegate_protocol::id::NodeId;

use super::events;
use crate::{
    figures::{CODES_ROWS_MAX, CodesRow, FiguresPage, FiguresQuery, RowRing, STATS_ROWS_MAX, StatsRow},
    link::LinkError,
    routes::NodeBoot,
};

/// Largest difference of a peer's clock at which its times are used as they are: some of it is the time of the answer
/// on its way.
const SKEW_MAX_MS: u64 = 2_000;

/// Followed peers. Bounded by the live nodes, and for each of them by the rows that a node keeps.
pub(super) struct FollowedPeers {
    /// Number of values of a row.
    width: usize,
    peers: HashMap<NodeBoot, FollowedPeer>,
}

/// Figures received from one run of a peer.
struct FollowedPeer {
    stats: RowRing<StatsRow>,
    stats_next: u64,
    codes: RowRing<CodesRow>,
    codes_next: u64,
}

impl FollowedPeers {
    /// Creates an empty list; rows get `width` values.
    pub(super) fn new(width: usize) -> Self {
        Self { width, peers: HashMap::new() }
    }

    /// Forgets all peers but these.
    pub(super) fn retain(&mut self, live: &[NodeBoot]) {
        self.peers.retain(|run, _| live.contains(run));
    }

    /// Returns the query for what is newer than the received figures of a peer.
    pub(super) fn query(&self, run: &NodeBoot) -> FiguresQuery {
        let (stats, codes) = self.peers.get(run).map_or((0, 0), |peer| (peer.stats_next, peer.codes_next));
        FiguresQuery { stats_from: Some(stats), codes_from: Some(codes), flows_after_ms: None }
    }

    /// Takes a peer's answer at the time `now_ms`, and appends its events to `out`. Times of a peer whose clock differs
    /// are those of this node's clock afterwards. A peer without an answer keeps its rows until it leaves the list of
    /// nodes, or its run has ended.
    pub(super) fn take(
        &mut self,
        run: &NodeBoot,
        now_ms: u64,
        answer: Result<FiguresPage, LinkError>,
        out: &mut String,
    ) {
        let mut page = match answer {
            Ok(page) => page,
            Err(error) => {
                tracing::debug!(%error, node = %run.node, "peer returned no figures");
                if error == LinkError::NotHere {
                    self.peers.remove(run);
                }
                return;
            }
        };
        let (node, width) = (run.node.as_str(), self.width);
        page.stats.iter_mut().for_each(|row| row.values.truncate(width));
        correct_times(&mut page, now_ms);
        let is_new = !self.peers.contains_key(run);
        let peer = self.peers.entry(run.clone()).or_insert_with(|| FollowedPeer {
            stats: RowRing::new(STATS_ROWS_MAX),
            stats_next: 0,
            codes: RowRing::new(CODES_ROWS_MAX),
            codes_next: 0,
        });
        (peer.stats_next, peer.codes_next) = (page.stats_next, page.codes_next);
        if is_new {
            events::put_past(node, page.stats.iter(), width, out);
        } else {
            page.stats.iter().for_each(|row| events::put_now(node, row, width, out));
        }
        if is_new || !page.codes.is_empty() {
            events::put_codes(node, page.codes.iter(), out);
        }
        page.stats.into_iter().for_each(|row| peer.stats.push(row));
        page.codes.into_iter().for_each(|row| peer.codes.push(row));
    }

    /// Returns the rows so far of each peer, shared with this list. Of two runs of a node the newer one comes last, and
    /// replaces what a client has of the other.
    pub(super) fn past(&self) -> Vec<NodePast> {
        let mut peers: Vec<_> = self.peers.iter().collect();
        peers.sort_by_key(|(_, peer)| peer.stats.rows().next_back().map(|row| row.at_ms));
        let past = |(run, peer): (&NodeBoot, &FollowedPeer)| NodePast {
            node: run.node.clone(),
            stats: peer.stats.clone(),
            codes: peer.codes.clone(),
        };
        peers.into_iter().map(past).collect()
    }
}

/// Rows of a node so far, for a new stream.
pub(super) struct NodePast {
    pub(super) node: NodeId,
    pub(super) stats: RowRing<StatsRow>,
    pub(super) codes: RowRing<CodesRow>,
}

impl NodePast {
    /// Returns the events with the rows.
    pub(super) fn events(&self, width: usize) -> String {
        let (node, mut out) = (self.node.as_str(), String::new());
        events::put_past(node, self.stats.rows(), width, &mut out);
        events::put_codes(node, self.codes.rows(), &mut out);
        out
    }
}

/// Replaces the times of a page by those of this node's clock, if the clocks differ by more than [`SKEW_MAX_MS`].
fn correct_times(page: &mut FiguresPage, now_ms: u64) {
    let sent_ms = page.now_ms;
    if sent_ms.abs_diff(now_ms) <= SKEW_MAX_MS {
        return;
    }
    let corrected = |at_ms: u64| (at_ms.saturating_add(now_ms)).saturating_sub(sent_ms).min(now_ms);
    page.stats.iter_mut().for_each(|row| row.at_ms = corrected(row.at_ms));
    page.codes.iter_mut().for_each(|row| row.at_ms = corrected(row.at_ms));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 100_000;

    fn run(boot: u64) -> NodeBoot {
        NodeBoot { node: NodeId::new("n2").unwrap(), boot }
    }

    fn page(times: &[u64], stats_next: u64, codes: &[u64]) -> FiguresPage {
        FiguresPage {
            stats: times.iter().map(|at_ms| StatsRow { at_ms: *at_ms, values: vec![*at_ms] }).collect(),
            stats_next,
            codes: codes.iter().map(|at_ms| CodesRow { at_ms: *at_ms, counts: vec![(4_014, 1)] }).collect(),
            codes_next: codes.len() as u64,
            now_ms: NOW_MS,
            ..FiguresPage::default()
        }
    }

    fn taken(peers: &mut FollowedPeers, boot: u64, answer: Result<FiguresPage, LinkError>) -> String {
        let mut out = String::new();
        peers.take(&run(boot), NOW_MS, answer, &mut out);
        out
    }

    fn start(peers: &FollowedPeers) -> String {
        peers.past().iter().map(|past| past.events(1)).collect()
    }

    #[test]
    fn peer_begins_with_its_past_and_goes_on_with_newer_rows() {
        let mut peers = FollowedPeers::new(1);
        let query = |stats, codes| FiguresQuery {
            stats_from: Some(stats),
            codes_from: Some(codes),
            flows_after_ms: None,
        };
        assert_eq!(peers.query(&run(1)), query(0, 0));
        let past = "event: past\ndata: {\"node\":\"n2\",\"rows\":[[5,5],[6,6]]}\n\n";
        let codes = "event: codes\ndata: {\"node\":\"n2\",\"everyMs\":10000,\"rows\":[[4,[[4014,1]]]]}\n\n";
        assert_eq!(taken(&mut peers, 1, Ok(page(&[5, 6], 9, &[4]))), [past, codes].concat());
        assert_eq!(peers.query(&run(1)), query(9, 1));
        // Without an answer, the next query is the same, and a new stream gets what there is.
        assert_eq!(taken(&mut peers, 1, Err(LinkError::Unavailable("old".into()))), "");
        assert_eq!(peers.query(&run(1)), query(9, 1));
        let now = "event: now\ndata: {\"node\":\"n2\",\"row\":[7,7]}\n\n";
        assert_eq!(taken(&mut peers, 1, Ok(page(&[7], 10, &[]))), now);
        let start = start(&peers);
        assert_eq!(start, [&past.replace("]]}", "],[7,7]]}"), codes].concat());
    }

    #[test]
    fn times_of_a_peer_with_another_clock_are_corrected() {
        let mut peers = FollowedPeers::new(1);
        let ahead = FiguresPage { now_ms: NOW_MS + 50_000, ..page(&[140_000, 149_000], 2, &[150_000]) };
        let out = taken(&mut peers, 1, Ok(ahead));
        assert!(out.contains("[[90000,140000],[99000,149000]]") && out.contains("[[100000,"), "{out}");
        let lies = FiguresPage { now_ms: 0, ..page(&[u64::MAX], 3, &[]) };
        assert!(taken(&mut peers, 1, Ok(lies)).contains("[100000,"), "not later than now");
        let close = FiguresPage { now_ms: NOW_MS - 1_500, ..page(&[98_000], 4, &[]) };
        assert!(taken(&mut peers, 1, Ok(close)).contains("[98000,"));
    }

    #[test]
    fn newer_run_of_a_node_comes_last_at_the_start_of_a_stream() {
        for boots in [[1, 2], [2, 1]] {
            let mut peers = FollowedPeers::new(1);
            boots.iter().for_each(|boot| drop(taken(&mut peers, *boot, Ok(page(&[5 + boot], 1, &[])))));
            let start = start(&peers);
            assert!(start.find("[[6,6]]") < start.find("[[7,7]]"), "{start}");
        }
    }

    #[test]
    fn run_that_has_left_is_forgotten_and_another_starts_over() {
        let mut peers = FollowedPeers::new(1);
        taken(&mut peers, 1, Ok(page(&[5], 1, &[])));
        peers.retain(&[run(1), run(2)]);
        assert!(taken(&mut peers, 2, Ok(page(&[8], 1, &[]))).starts_with("event: past\n"));
        taken(&mut peers, 1, Err(LinkError::NotHere));
        assert_eq!(peers.peers.keys().collect::<Vec<_>>(), [&run(2)]);
        peers.retain(&[]);
        assert!(peers.peers.is_empty());
    }

    #[test]
    fn kept_rows_are_bounded() {
        let mut peers = FollowedPeers::new(1);
        for n in 0..3 {
            taken(&mut peers, 1, Ok(page(&[n; STATS_ROWS_MAX], 0, &[n; CODES_ROWS_MAX])));
        }
        let peer = &peers.peers[&run(1)];
        assert_eq!((peer.stats.rows().len(), peer.codes.rows().len()), (STATS_ROWS_MAX, CODES_ROWS_MAX));
    }
}
