//! Changes of the cluster: derived from one list of nodes to the next, as this node fetches them.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    cluster::PeerSnapshot,
    events::NodeChange,
    routes::{Lease, NodeBoot, NodeState},
};

/// Most runs that are remembered as lapsed; the return of an older one is not published.
const LAPSED_RUNS_MAX: usize = 256;

/// Live runs and owners, as they were seen last. A pure machine.
#[derive(Default)]
pub(super) struct ClusterChanges {
    /// Live runs with whether they drain; `None` before the first list.
    runs: Option<BTreeMap<NodeBoot, bool>>,
    /// Owner of each partition, also one that has ended.
    owners: BTreeMap<u32, NodeBoot>,
    /// Runs that were reported as lapsed and have not returned, the latest last.
    lapsed: VecDeque<NodeBoot>,
}

/// Live run as it is now: this one, or one of the list.
pub(super) struct LiveRun<'a> {
    pub(super) run: &'a NodeBoot,
    pub(super) state: NodeState,
    pub(super) owns: &'a [u32],
}

impl ClusterChanges {
    /// Takes a list of nodes, and returns what has changed since the one before. Of the first one only that this run has
    /// joined. Runs of `silent` that have ended count as lapsed: the first node that sees an expired lease retires its run,
    /// so others may never see it expired.
    pub(super) fn take(
        &mut self,
        snapshot: &PeerSnapshot,
        silent: &[NodeBoot],
        me: LiveRun<'_>,
    ) -> Vec<NodeChange> {
        let me_run = me.run;
        let others = snapshot.others.iter().map(|row| &row.info).filter(|info| info.boot != *me_run);
        let others = others.map(|info| LiveRun { run: &info.boot, state: info.state, owns: &info.owns });
        let live: Vec<LiveRun<'_>> = others.chain([me]).collect();
        let drains = |it: &LiveRun<'_>| (it.run.clone(), it.state != NodeState::Ready);
        let now: BTreeMap<NodeBoot, bool> = live.iter().map(drains).collect();
        let mut changes = Vec::new();
        // Moves come first: there may be more than are kept for followers, and they must not evict what became of the runs.
        self.take_owners(&live, &mut changes);
        match self.runs.take() {
            None => changes.push(NodeChange::Joined(me_run.clone())),
            Some(before) => {
                let has_lapsed = |run: &NodeBoot| {
                    let mut rows = snapshot.rows.iter();
                    let is_expired = rows.any(|row| row.info.boot == *run && row.lease == Lease::Lapsed);
                    is_expired || silent.contains(run)
                };
                self.compare(&before, &now, has_lapsed, &mut changes);
            }
        }
        self.runs = Some(now);
        changes
    }

    /// Compares the runs of two lists.
    fn compare(
        &mut self,
        before: &BTreeMap<NodeBoot, bool>,
        now: &BTreeMap<NodeBoot, bool>,
        has_lapsed: impl Fn(&NodeBoot) -> bool,
        changes: &mut Vec<NodeChange>,
    ) {
        for run in before.keys().filter(|run| !now.contains_key(run)) {
            if !has_lapsed(run) {
                changes.push(NodeChange::Left(run.clone()));
                continue;
            }
            if self.lapsed.len() >= LAPSED_RUNS_MAX {
                self.lapsed.pop_front();
            }
            self.lapsed.push_back(run.clone());
            changes.push(NodeChange::Lapsed(run.clone()));
        }
        for (run, drains) in now {
            let drained = before.get(run).copied();
            if drained.is_none() {
                let reported = self.lapsed.iter().position(|lapsed| lapsed == run);
                let was_lapsed = reported.and_then(|at| self.lapsed.remove(at)).is_some();
                let change = if was_lapsed { NodeChange::Returned } else { NodeChange::Joined };
                changes.push(change(run.clone()));
            }
            match (drained.unwrap_or_default(), drains) {
                (false, true) => changes.push(NodeChange::Draining(run.clone())),
                (true, false) => changes.push(NodeChange::Ready(run.clone())),
                _ => {}
            }
        }
    }

    /// Takes the owners over. While two runs announce a partition, the one before stays its owner.
    fn take_owners(&mut self, live: &[LiveRun<'_>], changes: &mut Vec<NodeChange>) {
        let mut claims: BTreeMap<u32, Vec<&NodeBoot>> = BTreeMap::new();
        for LiveRun { run, owns, .. } in live {
            owns.iter().for_each(|partition| claims.entry(*partition).or_default().push(run));
        }
        for (partition, claimants) in claims {
            let before = self.owners.get(&partition);
            let Some(to) = claimants.first().filter(|_| before.is_none_or(|it| !claimants.contains(&it)))
            else {
                continue;
            };
            if let Some(from) = self.owners.insert(partition, (*to).clone()) {
                changes.push(NodeChange::Moved { partition, from, to: (*to).clone() });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_protocol::id::NodeId;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        lease::{RENEW_INTERVAL, view::ClusterView},
        routes::{NodeInfo, NodeRow},
    };

    fn run(name: &str, boot: u64) -> NodeBoot {
        NodeBoot { node: NodeId::new(name).unwrap(), boot }
    }

    fn row(of: &NodeBoot, state: NodeState, owns: &[u32], lease: Lease) -> NodeRow {
        NodeRow::new(NodeInfo { state, owns: owns.to_vec(), ..NodeInfo::new(of.clone()) }, lease)
    }

    fn live(of: &NodeBoot, owns: &[u32]) -> NodeRow {
        row(of, NodeState::Ready, owns, Lease::Live)
    }

    /// View of node a, run 1.
    #[derive(Default)]
    struct View(ClusterChanges);

    impl View {
        fn take(&mut self, rows: &[NodeRow], owns: &[u32]) -> Vec<NodeChange> {
            let others = rows.iter().filter(|row| row.lease == Lease::Live).cloned();
            let snapshot =
                PeerSnapshot { rows: rows.into(), others: others.collect(), ..PeerSnapshot::default() };
            let me = run("a", 1);
            self.0.take(&snapshot, &[], LiveRun { run: &me, state: NodeState::Ready, owns })
        }
    }

    #[test]
    fn runs_join_drain_and_leave_or_lapse() {
        let (a, b, c) = (run("a", 1), run("b", 1), run("c", 1));
        let mut view = View::default();
        let first = view.take(&[live(&b, &[])], &[]);
        assert_eq!(first, [NodeChange::Joined(a)], "what was there before is no change");
        assert_eq!(view.take(&[live(&b, &[])], &[]), []);
        let draining = |run: &NodeBoot| row(run, NodeState::Draining, &[], Lease::Live);
        let changes = view.take(&[live(&b, &[]), draining(&c)], &[]);
        assert_eq!(changes, [NodeChange::Joined(c.clone()), NodeChange::Draining(c.clone())]);
        let changes = view.take(&[row(&b, NodeState::Cordoned, &[], Lease::Live), live(&c, &[])], &[]);
        assert_eq!(changes, [NodeChange::Draining(b.clone()), NodeChange::Ready(c.clone())]);
        assert_eq!(view.take(&[draining(&b), live(&c, &[])], &[]), [], "it drains already");
        let lapsed = || row(&c, NodeState::Ready, &[], Lease::Lapsed);
        let changes = view.take(&[row(&b, NodeState::Draining, &[], Lease::Retired), lapsed()], &[]);
        assert_eq!(changes, [NodeChange::Left(b), NodeChange::Lapsed(c.clone())]);
        assert_eq!(view.take(&[lapsed()], &[]), [], "once");
        assert_eq!(view.take(&[live(&c, &[])], &[]), [NodeChange::Returned(c.clone())], "it was frozen");
        let restarted = run("c", 2);
        assert_eq!(
            view.take(&[live(&restarted, &[])], &[]),
            [NodeChange::Left(c), NodeChange::Joined(restarted)]
        );
    }

    #[test]
    fn partition_moves_from_its_last_owner_once_another_one_has_it_alone() {
        let (a, b, c) = (run("a", 1), run("b", 1), run("c", 1));
        let moved = |partition, from: &NodeBoot, to: &NodeBoot| NodeChange::Moved {
            partition,
            from: from.clone(),
            to: to.clone(),
        };
        let mut view = View::default();
        view.take(&[live(&b, &[0, 1]), live(&c, &[2])], &[]);
        assert_eq!(view.take(&[live(&b, &[0, 1]), live(&c, &[2])], &[3]), [], "a first owner is no move");
        assert_eq!(view.take(&[live(&b, &[0, 1]), live(&c, &[2])], &[1, 3]), [], "b has not released it");
        assert_eq!(view.take(&[live(&b, &[0]), live(&c, &[2])], &[1, 3]), [moved(1, &b, &a)]);
        let dead = row(&b, NodeState::Ready, &[0], Lease::Lapsed);
        let changes = view.take(&[dead, live(&c, &[2])], &[1, 3]);
        assert_eq!(changes, [NodeChange::Lapsed(b.clone())]);
        assert_eq!(view.take(&[live(&c, &[0, 2])], &[1, 3]), [moved(0, &b, &c)], "also long after its end");
        assert_eq!(view.take(&[live(&c, &[2])], &[1, 3]), []);
        assert_eq!(view.take(&[live(&c, &[0, 2])], &[1, 3]), [], "back at the same one");
    }

    #[test]
    fn moves_of_all_partitions_of_a_dead_node_come_before_its_end() {
        let b = run("b", 1);
        let all: Vec<u32> = (0..1_000).collect();
        let mut view = View::default();
        view.take(&[live(&b, &all)], &[]);
        let changes = view.take(&[row(&b, NodeState::Ready, &all, Lease::Lapsed)], &all);
        assert_eq!((changes.len(), changes.last()), (1_001, Some(&NodeChange::Lapsed(b))));
    }

    #[test]
    fn returns_are_remembered_of_the_latest_lapsed_runs() {
        let mut view = View::default();
        let runs: Vec<NodeBoot> = (0..=LAPSED_RUNS_MAX as u64).map(|boot| run("b", boot)).collect();
        for it in &runs {
            view.take(&[live(it, &[])], &[]);
            view.take(&[row(it, NodeState::Ready, &[], Lease::Lapsed)], &[]);
        }
        let rows: Vec<NodeRow> = runs.iter().map(|it| live(it, &[])).collect();
        let changes = view.take(&rows, &[]);
        assert_eq!(
            changes[..2],
            [NodeChange::Joined(runs[0].clone()), NodeChange::Returned(runs[1].clone())]
        );
        assert_eq!((changes.len(), view.0.lapsed.len()), (runs.len(), 0));
    }

    /// Node that derives changes from the lists that it fetches.
    struct Observer {
        me: NodeBoot,
        view: ClusterView,
        changes: ClusterChanges,
    }

    impl Observer {
        fn new(name: &str) -> Self {
            let me = run(name, 1);
            let view = ClusterView::new(me.clone(), Duration::from_secs(10));
            Self { me, view, changes: ClusterChanges::default() }
        }

        /// Fetches a list of nodes; returns what has changed, and the runs to retire.
        fn fetch(&mut self, rows: &[NodeRow], now: Instant) -> (Vec<NodeChange>, Vec<NodeBoot>) {
            let (snapshot, dead) = self.view.fetched(rows.to_vec(), now);
            let me = LiveRun { run: &self.me, state: NodeState::Ready, owns: &[] };
            (self.changes.take(&snapshot, self.view.silent_runs(), me), dead)
        }
    }

    #[test]
    fn crashed_run_lapses_for_each_observer_whichever_retires_it() {
        let c = run("c", 1);
        let renewed = |renewals, lease| vec![NodeRow { renewals, ..row(&c, NodeState::Ready, &[], lease) }];
        for (ended, left) in
            [(Vec::new(), renewed(7, Lease::Retired)), (renewed(7, Lease::Retired), Vec::new())]
        {
            let (mut first, mut second) = (Observer::new("a"), Observer::new("b"));
            let start = Instant::now();
            first.fetch(&renewed(7, Lease::Live), start);
            // It sees the last renewal as late as it can.
            let seen = start + RENEW_INTERVAL;
            second.fetch(&renewed(6, Lease::Live), start);
            assert_eq!(second.fetch(&renewed(7, Lease::Live), seen).0, []);
            let expired = start + Duration::from_secs(10);
            let lapsed = vec![NodeChange::Lapsed(c.clone())];
            assert_eq!(first.fetch(&renewed(7, Lease::Lapsed), expired), (lapsed.clone(), vec![c.clone()]));
            assert_eq!(second.fetch(&ended, expired).0, lapsed, "{ended:?}");
            // One that renewed until its end has left.
            let mut third = Observer::new("d");
            third.fetch(&renewed(6, Lease::Live), start);
            third.fetch(&renewed(7, Lease::Live), expired - RENEW_INTERVAL);
            assert_eq!(third.fetch(&left, expired).0, [NodeChange::Left(c.clone())]);
        }
        // A renewal that was not seen shows in the retired row.
        let (mut late, start) = (Observer::new("a"), Instant::now());
        late.fetch(&renewed(6, Lease::Live), start);
        let (changes, _) = late.fetch(&renewed(7, Lease::Retired), start + Duration::from_secs(7));
        assert_eq!(changes, [NodeChange::Left(c)]);
    }
}
