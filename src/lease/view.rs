//! Cluster view: derives losses of routes, live peers and dead runs from the replies to this node's renewals.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    cluster::PeerSnapshot,
    routes::{DEAD_AFTER, Lease, NodeBoot, NodeRow, NodeState},
};

/// Late calls in a row before the routes count as unavailable. One late call happens on any busy machine and says
/// nothing about the data: the renewal counter does.
const LATE_CALLS_MAX: u32 = 2;

/// Largest excess of the interval between two renewals, on the clock of the routes, over that between their replies.
const INTERVAL_TOLERANCE: Duration = Duration::from_secs(1);

/// State derived from the replies. A pure machine: the time is an argument.
pub(super) struct ClusterView {
    me: NodeBoot,
    lease: Duration,
    renewals: u64,
    /// When the last renewal was answered.
    renewed: Option<Instant>,
    announced: Option<NodeState>,
    unavailable: bool,
    /// Renewals sent since the last reply; each may have counted.
    attempts: u64,
    /// Late calls in a row.
    late: u32,
    /// Until when a lookup in the routes may be incomplete.
    doubt_until: Option<Instant>,
    losses: u64,
    known: HashMap<NodeBoot, KnownRun>,
    /// Runs that are retired or no longer listed, and whose counter had not risen for [`DEAD_AFTER`].
    silent: Vec<NodeBoot>,
    last: PeerSnapshot,
}

/// Run of another node, as last fetched.
struct KnownRun {
    row: NodeRow,
    /// When its renewal counter was last seen to rise, or watching began.
    last_renewal: Instant,
    /// Whether it counted as a peer although its lease had expired in its row.
    is_spared: bool,
}

impl KnownRun {
    /// Returns whether the run was among the peers.
    fn is_counted(&self) -> bool {
        self.row.lease == Lease::Live || self.is_spared
    }
}

impl ClusterView {
    pub(super) fn new(me: NodeBoot, lease: Duration) -> Self {
        Self {
            me,
            lease,
            renewals: 0,
            renewed: None,
            announced: None,
            unavailable: false,
            attempts: 0,
            late: 0,
            doubt_until: None,
            losses: 0,
            known: HashMap::new(),
            silent: Vec::new(),
            last: PeerSnapshot::default(),
        }
    }

    /// Returns whether the last call failed.
    pub(super) fn is_stale(&self) -> bool {
        self.last.stale
    }

    /// Notes that a renewal is sent.
    pub(super) fn on_renewal_sent(&mut self) {
        self.attempts += 1;
    }

    /// Returns the state that was announced last.
    pub(super) fn announced_state(&self) -> Option<NodeState> {
        self.announced
    }

    /// Takes the counter of a renewal; true if rows may have been lost, so that this node must re-assert its own.
    pub(super) fn renewed(&mut self, renewals: u64, announced: NodeState, now: Instant) -> bool {
        // While the lease was expired, peers passed this node over as if its rows were gone.
        let was_over =
            self.renewed.replace(now).is_some_and(|before| now - before + INTERVAL_TOLERANCE > self.lease);
        // After an outage no counter value can be trusted; a late renewal may have counted.
        let is_next = renewals > self.renewals && renewals <= self.renewals + self.attempts.max(1);
        let lost = self.unavailable || was_over || !is_next;
        (self.renewals, self.attempts, self.announced) = (renewals, 0, Some(announced));
        (self.unavailable, self.late) = (false, 0);
        if lost {
            // By then each node has renewed its lease, and so has noticed its loss and announces that it re-asserts its
            // routes (`asserting`), or its lease has expired.
            self.doubt_until = Some(now + self.lease);
            self.losses += 1;
            self.known.values_mut().for_each(|it| it.last_renewal = now);
        }
        lost
    }

    /// Takes a call that was late. The routes may only be slow, but their data is in doubt until they answer.
    pub(super) fn late(&mut self) -> PeerSnapshot {
        self.late += 1;
        self.unavailable |= self.late > LATE_CALLS_MAX;
        self.stale()
    }

    /// Takes a call that failed; the last list stays.
    pub(super) fn failed(&mut self) -> PeerSnapshot {
        self.unavailable = true;
        self.stale()
    }

    fn stale(&mut self) -> PeerSnapshot {
        self.last = PeerSnapshot { stale: true, may_be_incomplete: true, ..self.last.clone() };
        self.last.clone()
    }

    /// Returns whether a run may be dead soon, so that the nodes are fetched more often.
    pub(super) fn is_any_suspect(&self, now: Instant) -> bool {
        self.known.values().any(|it| it.row.lease != Lease::Retired && now - it.last_renewal >= DEAD_AFTER)
    }

    /// Returns the runs that ended, as of the last list, without having renewed their lease shortly before. Another node has
    /// retired them for that.
    pub(super) fn silent_runs(&self) -> &[NodeBoot] {
        &self.silent
    }

    /// Returns whether this node or a live peer is cordoned or draining.
    pub(super) fn is_any_draining(&self) -> bool {
        let mut states = self.last.others.iter().map(|row| row.info.state).chain(self.announced);
        states.any(|state| state != NodeState::Ready)
    }

    /// Takes the nodes that the routes list; returns the new snapshot, and the runs to sweep.
    pub(super) fn fetched(&mut self, rows: Vec<NodeRow>, now: Instant) -> (PeerSnapshot, Vec<NodeBoot>) {
        self.doubt_until = self.doubt_until.filter(|until| now < *until);
        let mut known = HashMap::new();
        let (mut others, mut dead) = (Vec::new(), Vec::new());
        for row in rows.iter().filter(|row| row.info.boot != self.me) {
            let run = &row.info.boot;
            let before = self.known.remove(run);
            let is_kept = self.doubt_until.is_some() && before.as_ref().is_some_and(KnownRun::is_counted);
            let last_renewal =
                before.filter(|it| it.row.renewals == row.renewals).map_or(now, |it| it.last_renewal);
            let mut is_spared = false;
            match row.lease {
                Lease::Live => others.push(row.clone()),
                Lease::Lapsed if now - last_renewal >= DEAD_AFTER => dead.push(run.clone()),
                // The loss set it back to an older lease, which it has not renewed yet.
                Lease::Lapsed if is_kept => {
                    is_spared = true;
                    others.push(NodeRow { lease: Lease::Live, ..row.clone() });
                }
                Lease::Lapsed => {}
                Lease::Retired => dead.push(run.clone()),
            }
            known.insert(run.clone(), KnownRun { row: row.clone(), last_renewal, is_spared });
        }
        let retired = known.iter().filter(|(_, it)| it.row.lease == Lease::Retired);
        let silent = retired.chain(&self.known).filter(|(_, it)| now - it.last_renewal >= DEAD_AFTER);
        self.silent = silent.map(|(run, _)| run.clone()).collect();
        if self.doubt_until.is_some() {
            // The loss removed it from the list, and it has not renewed yet; an old dump may list an earlier run
            // instead.
            let is_listed = |run: &NodeBoot| {
                let is_replacement =
                    |row: &NodeRow| row.info.boot.node == run.node && row.lease == Lease::Live;
                rows.iter().any(|row| row.info.boot == *run || is_replacement(row))
            };
            for (run, it) in self.known.drain().filter(|(run, it)| it.is_counted() && !is_listed(run)) {
                others.push(NodeRow { lease: Lease::Live, ..it.row.clone() });
                known.insert(run, it);
            }
        }
        self.known = known;
        others.sort_by(|a, b| a.info.boot.cmp(&b.info.boot));
        let may_be_incomplete = self.doubt_until.is_some() || others.iter().any(|row| row.info.asserting);
        let (rows, others, losses) = (rows.into(), Arc::from(others), self.losses);
        self.last = PeerSnapshot { rows, others, stale: false, may_be_incomplete, losses };
        (self.last.clone(), dead)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::lease::RENEW_INTERVAL;
    use crate::routes::NodeInfo;

    const LEASE_TIME: Duration = Duration::from_secs(10);

    fn run(name: &str, boot: u64) -> NodeBoot {
        NodeBoot { node: NodeId::new(name).unwrap(), boot }
    }

    fn row(of: &NodeBoot, renewals: u64, lease: Lease) -> NodeRow {
        let info = NodeInfo { peer_address: "127.0.0.1:7802".into(), ..NodeInfo::new(of.clone()) };
        NodeRow { info, renewals, lease }
    }

    fn names(rows: &[NodeRow]) -> Vec<String> {
        rows.iter().map(|row| row.info.boot.node.to_string()).collect()
    }

    /// Returns a view of node a after that many renewals without failure, and its time.
    fn view(count: u64) -> (ClusterView, Instant) {
        let mut view = ClusterView::new(run("a", 1), LEASE_TIME);
        let mut now = Instant::now();
        for renewals in 1..=count {
            assert!(!view.renewed(renewals, NodeState::Ready, now), "renewal {renewals} is the next one");
            now += RENEW_INTERVAL;
        }
        (view, now)
    }

    #[test]
    fn unexpected_counter_or_return_is_a_loss() {
        for renewals in [1, 3, 4, 6] {
            let (mut view, now) = view(4);
            assert!(view.renewed(renewals, NodeState::Ready, now), "{renewals} after 4");
            assert!(!view.renewed(renewals + 1, NodeState::Ready, now), "the counter continues from there");
        }
        let (mut unavailable, now) = view(4);
        assert!(unavailable.failed().stale);
        assert!(unavailable.renewed(5, NodeState::Ready, now), "after an outage anything may be lost");
        // The node was frozen, and did not renew.
        let (mut frozen, now) = view(4);
        assert!(!frozen.renewed(5, NodeState::Ready, now + LEASE_TIME - RENEW_INTERVAL - INTERVAL_TOLERANCE));
        assert!(
            frozen.renewed(6, NodeState::Ready, now + LEASE_TIME * 2),
            "its lease was expired for a while"
        );
    }

    #[test]
    fn late_reply_is_no_loss_if_the_counter_continues() {
        // The late renewal counted, or did not; or it was answered, and the list of nodes was late.
        for (asked, renewals) in [(2, 5), (2, 6), (1, 5), (3, 5), (3, 7)] {
            let (mut view, now) = view(4);
            (1..asked).for_each(|_| view.on_renewal_sent());
            let snapshot = view.late();
            assert!(snapshot.stale && snapshot.may_be_incomplete && view.is_stale());
            view.on_renewal_sent();
            assert!(
                !view.renewed(renewals, NodeState::Ready, now),
                "{renewals} after 4, asked {asked} times"
            );
            let (snapshot, _) = view.fetched(Vec::new(), now);
            assert!(!snapshot.stale && !snapshot.may_be_incomplete && snapshot.losses == 0);
        }
        for (late, asked, renewals) in [(1, 2, 4), (1, 2, 1), (1, 2, 7), (3, 4, 5), (0, 1, 6)] {
            let (mut view, now) = view(4);
            (0..asked).for_each(|_| view.on_renewal_sent());
            (0..late).for_each(|_| drop(view.late()));
            assert!(
                view.renewed(renewals, NodeState::Ready, now),
                "{renewals} after 4, {late} late, asked {asked} times"
            );
        }
        let (mut view, now) = view(4);
        view.on_renewal_sent();
        view.late();
        view.failed();
        view.on_renewal_sent();
        assert!(view.renewed(5, NodeState::Ready, now), "there was an outage too");
    }

    #[test]
    fn run_is_dead_once_expired_and_not_renewed_long_enough() {
        let (mut view, mut now) = view(1);
        let b = run("b", 1);
        let lapsed = || vec![row(&b, 7, Lease::Lapsed)];
        let (snapshot, dead) = view.fetched(lapsed(), now);
        assert!(dead.is_empty() && snapshot.others.is_empty());
        now += DEAD_AFTER - Duration::from_millis(1);
        assert!(view.fetched(lapsed(), now).1.is_empty());
        assert!(!view.is_any_suspect(now));
        // The run renews: it is alive, and the clock of the routes jumped.
        assert!(view.fetched(vec![row(&b, 8, Lease::Lapsed)], now).1.is_empty());
        now += DEAD_AFTER - Duration::from_millis(1);
        assert!(view.fetched(vec![row(&b, 8, Lease::Lapsed)], now).1.is_empty());
        now += Duration::from_millis(1);
        assert_eq!(view.fetched(vec![row(&b, 8, Lease::Lapsed)], now).1, std::slice::from_ref(&b));
        assert!(view.is_any_suspect(now));
        assert!(view.fetched(vec![row(&b, 8, Lease::Live)], now).1.is_empty(), "its lease is live");
        let own = row(&run("a", 1), 1, Lease::Lapsed);
        assert!(view.fetched(vec![own.clone()], now + LEASE_TIME).1.is_empty());
        assert!(view.fetched(vec![own], now + LEASE_TIME * 2).1.is_empty(), "never itself");
    }

    #[test]
    fn after_an_outage_no_run_is_dead_before_it_could_renew() {
        let (mut view, mut now) = view(1);
        let b = run("b", 1);
        view.fetched(vec![row(&b, 7, Lease::Live)], now);
        now += Duration::from_secs(60);
        let snapshot = view.failed();
        assert_eq!(
            (names(&snapshot.others), snapshot.stale, snapshot.may_be_incomplete),
            (vec!["b".to_owned()], true, true)
        );
        view.renewed(2, NodeState::Ready, now);
        assert!(view.fetched(vec![row(&b, 7, Lease::Lapsed)], now).1.is_empty(), "it could not renew yet");
        now += DEAD_AFTER;
        assert_eq!(view.fetched(vec![row(&b, 7, Lease::Lapsed)], now).1, [b]);
    }

    #[test]
    fn loss_removes_no_peer_before_it_could_renew() {
        let (mut view, mut now) = view(1);
        let (b, c) = (run("b", 1), run("c", 1));
        let both = vec![row(&b, 7, Lease::Live), row(&c, 7, Lease::Live)];
        assert_eq!(names(&view.fetched(both, now).0.others), ["b", "c"]);
        assert!(view.renewed(1, NodeState::Ready, now), "emptied");
        let (snapshot, _) = view.fetched(vec![row(&run("c", 2), 1, Lease::Live)], now);
        assert_eq!(
            (names(&snapshot.others), snapshot.may_be_incomplete),
            (vec!["b".into(), "c".into()], true)
        );
        assert_eq!(snapshot.others[1].info.boot.boot, 2, "the old run of c has ended");
        now += LEASE_TIME;
        let (snapshot, _) = view.fetched(vec![row(&run("c", 2), 4, Lease::Live)], now);
        assert_eq!((names(&snapshot.others), snapshot.may_be_incomplete), (vec!["c".to_owned()], false));
        // Without a loss, a node that is not listed has left.
        assert_eq!(names(&view.fetched(Vec::new(), now).0.others), [""; 0]);
    }

    #[test]
    fn peer_set_back_to_an_older_lease_stays_until_it_could_renew() {
        let (mut view, mut now) = view(1);
        let (b, c) = (run("b", 1), run("c", 1));
        let lapsed = || vec![row(&b, 3, Lease::Lapsed), row(&c, 3, Lease::Lapsed)];
        // The lease of c had expired before.
        view.fetched(vec![row(&b, 7, Lease::Live), row(&c, 3, Lease::Lapsed)], now);
        assert!(view.renewed(1, NodeState::Ready, now), "an old dump");
        for _ in 0..2 {
            assert_eq!(names(&view.fetched(lapsed(), now).0.others), ["b"]);
            now += DEAD_AFTER / 2;
        }
        let renewed = vec![row(&b, 4, Lease::Live)];
        assert_eq!(names(&view.fetched(renewed, now).0.others), ["b"]);
        // Without a loss an expired lease is expired.
        now += LEASE_TIME;
        assert_eq!(names(&view.fetched(vec![row(&b, 4, Lease::Lapsed)], now).0.others), [""; 0]);
        // A run that does not renew is dead.
        let (mut view, now) = view_of_b(&b);
        assert!(view.renewed(1, NodeState::Ready, now));
        view.fetched(vec![row(&b, 3, Lease::Lapsed)], now);
        let (snapshot, dead) = view.fetched(vec![row(&b, 3, Lease::Lapsed)], now + DEAD_AFTER);
        assert_eq!((names(&snapshot.others), dead), (Vec::new(), vec![b]));
    }

    #[test]
    fn earlier_run_restored_as_expired_hides_no_peer() {
        let (mut view, mut now) = view(1);
        let (b1, b2) = (run("b", 1), run("b", 2));
        view.fetched(vec![row(&b2, 7, Lease::Live)], now);
        assert!(view.renewed(1, NodeState::Ready, now), "a dump of the time of the first run");
        for _ in 0..2 {
            let (snapshot, _) = view.fetched(vec![row(&b1, 9, Lease::Lapsed)], now);
            assert_eq!(snapshot.others.iter().map(|it| &it.info.boot).collect::<Vec<_>>(), [&b2]);
            now += DEAD_AFTER / 2;
        }
        let both = vec![row(&b1, 9, Lease::Lapsed), row(&b2, 1, Lease::Live)];
        let (snapshot, _) = view.fetched(both, now);
        assert_eq!(snapshot.others.len(), 1);
        now += LEASE_TIME;
        assert!(view.fetched(vec![row(&b1, 9, Lease::Lapsed)], now).0.others.is_empty());
        // First set back to an older lease, then removed from the list.
        let (mut view, now) = view_of_b(&b1);
        assert!(view.renewed(1, NodeState::Ready, now));
        view.fetched(vec![row(&b1, 3, Lease::Lapsed)], now);
        assert_eq!(names(&view.fetched(Vec::new(), now).0.others), ["b"]);
        assert_eq!(names(&view.fetched(Vec::new(), now).0.others), ["b"]);
    }

    fn view_of_b(b: &NodeBoot) -> (ClusterView, Instant) {
        let (mut view, now) = view(1);
        view.fetched(vec![row(b, 7, Lease::Live)], now);
        (view, now)
    }

    #[test]
    fn lookups_are_doubtful_while_any_node_re_asserts_routes() {
        let (mut view, mut now) = view(1);
        let mut b = row(&run("b", 1), 7, Lease::Live);
        assert!(view.renewed(1, NodeState::Ready, now), "emptied");
        now += LEASE_TIME;
        b.info.asserting = true;
        for renewals in 8..60 {
            // Its hundreds of thousands of routes take longer than a lease; its other state does not matter.
            b.renewals = renewals;
            assert!(view.fetched(vec![b.clone()], now).0.may_be_incomplete);
            now += RENEW_INTERVAL;
        }
        b.info.asserting = false;
        assert!(!view.fetched(vec![b], now).0.may_be_incomplete);
    }

    #[test]
    fn live_cordoned_node_or_this_one_counts_as_draining() {
        let (mut view, now) = view(1);
        let mut b = row(&run("b", 1), 7, Lease::Live);
        view.fetched(vec![b.clone()], now);
        assert!(!view.is_any_draining());
        b.info.state = NodeState::Cordoned;
        view.fetched(vec![b.clone()], now);
        assert!(view.is_any_draining());
        b.lease = Lease::Lapsed;
        view.fetched(vec![b], now);
        assert!(!view.is_any_draining());
        view.renewed(2, NodeState::Draining, now);
        assert!(view.is_any_draining(), "this one");
    }

    #[test]
    fn retired_run_with_rows_is_swept_at_once() {
        let (mut view, now) = view(1);
        let b = run("b", 1);
        let (snapshot, dead) = view.fetched(vec![row(&b, 7, Lease::Retired)], now);
        assert_eq!((dead, snapshot.others.len()), (vec![b], 0));
    }
}
