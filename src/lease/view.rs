//! What the node makes of the answers to its renewals: whether something was lost, who is there, who died.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    cluster::Seen,
    routes::{Lease, NodeBoot, NodeRow, NodeState, STILL_MIN},
};

/// So many calls in a row may be late before the routes are taken for away. One is on any machine that is busy, and says nothing
/// of what they hold: the beat does.
const LATE_MAX: u32 = 2;

/// Between two renewals by the clock of the routes may lie so much more than between their answers.
const CALL: Duration = Duration::from_secs(1);

/// What the answers add up to; a pure machine, time is an argument.
pub(crate) struct View {
    me: NodeBoot,
    lease: Duration,
    beat: u64,
    /// When the last renewal was answered.
    renewed: Option<Instant>,
    said: Option<NodeState>,
    away: bool,
    /// Renewals since the last one that was answered: each may have counted.
    asked: u64,
    /// Calls in a row that were late.
    late: u32,
    /// Until when a look-up may name too few.
    doubt_until: Option<Instant>,
    losses: u64,
    known: HashMap<NodeBoot, Known>,
    last: Seen,
}

/// Another run, as it was seen.
struct Known {
    row: NodeRow,
    /// When its beat was last seen to move, or watching began.
    moved: Instant,
    /// Its lease was over in the rows, and it was counted all the same.
    spared: bool,
}

impl Known {
    /// Whether it was among the others.
    fn counted(&self) -> bool {
        self.row.lease == Lease::Live || self.spared
    }
}

impl View {
    pub(crate) fn new(me: NodeBoot, lease: Duration) -> Self {
        Self {
            me,
            lease,
            beat: 0,
            renewed: None,
            said: None,
            away: false,
            asked: 0,
            late: 0,
            doubt_until: None,
            losses: 0,
            known: HashMap::new(),
            last: Seen::default(),
        }
    }

    /// Whether the last call failed.
    pub(crate) fn is_stale(&self) -> bool {
        self.last.stale
    }

    /// A renewal is asked for.
    pub(crate) fn asks(&mut self) {
        self.asked += 1;
    }

    /// The state that was told last.
    pub(crate) fn said(&self) -> Option<NodeState> {
        self.said
    }

    /// A renewal had this beat; true if rows may have been lost, so that this node must put its own back.
    pub(crate) fn renewed(&mut self, beat: u64, said: NodeState, now: Instant) -> bool {
        // While its lease was over the others passed it by, as if its rows were gone.
        let was_over = self.renewed.replace(now).is_some_and(|before| now - before + CALL > self.lease);
        // After an outage nobody can tell which beat would be right; what was only late may have counted.
        let is_next = beat > self.beat && beat <= self.beat + self.asked.max(1);
        let lost = self.away || was_over || !is_next;
        (self.beat, self.asked, self.said) = (beat, 0, Some(said));
        (self.away, self.late) = (false, 0);
        if lost {
            // By then each node has renewed its lease, and so has noticed what it lost and says that it is putting its
            // routes back (`asserting`), or its lease is over.
            self.doubt_until = Some(now + self.lease);
            self.losses += 1;
            self.known.values_mut().for_each(|it| it.moved = now);
        }
        lost
    }

    /// A call was not answered in time, by routes that may only be slow: what they hold is in doubt until they answer.
    pub(crate) fn late(&mut self) -> Seen {
        self.late += 1;
        self.away |= self.late > LATE_MAX;
        self.stale()
    }

    /// A call failed; what is known stays.
    pub(crate) fn failed(&mut self) -> Seen {
        self.away = true;
        self.stale()
    }

    fn stale(&mut self) -> Seen {
        self.last = Seen { stale: true, doubtful: true, ..self.last.clone() };
        self.last.clone()
    }

    /// Whether some run may be dead soon: the others are to know as soon as it is.
    pub(crate) fn is_waiting_for_one(&self, now: Instant) -> bool {
        self.known.values().any(|it| it.row.lease != Lease::Retired && now - it.moved >= STILL_MIN)
    }

    /// Whether this node leaves, or another one that lives.
    pub(crate) fn is_any_leaving(&self) -> bool {
        let mut states = self.last.others.iter().map(|row| row.info.state).chain(self.said);
        states.any(|state| state != NodeState::Ready)
    }

    /// The nodes as the routes list them: what to tell, and which runs are to be swept.
    pub(crate) fn looked(&mut self, rows: Vec<NodeRow>, now: Instant) -> (Seen, Vec<NodeBoot>) {
        self.doubt_until = self.doubt_until.filter(|until| now < *until);
        let mut known = HashMap::new();
        let (mut others, mut dead) = (Vec::new(), Vec::new());
        for row in rows.iter().filter(|row| row.info.boot != self.me) {
            let run = &row.info.boot;
            let before = self.known.remove(run);
            let counts = self.doubt_until.is_some() && before.as_ref().is_some_and(Known::counted);
            let moved = before.filter(|it| it.row.beat == row.beat).map_or(now, |it| it.moved);
            let mut spared = false;
            match row.lease {
                Lease::Live => others.push(row.clone()),
                Lease::Lapsed if now - moved >= STILL_MIN => dead.push(run.clone()),
                // Whom the loss put back to an older lease has not renewed yet.
                Lease::Lapsed if counts => {
                    spared = true;
                    others.push(NodeRow { lease: Lease::Live, ..row.clone() });
                }
                Lease::Lapsed => {}
                Lease::Retired => dead.push(run.clone()),
            }
            known.insert(run.clone(), Known { row: row.clone(), moved, spared });
        }
        if self.doubt_until.is_some() {
            // Whom the loss took off the list has not renewed yet.
            // An old dump may have an earlier run in its place.
            let listed = |run: &NodeBoot| {
                let other = |row: &NodeRow| row.info.boot.node == run.node && row.lease == Lease::Live;
                rows.iter().any(|row| row.info.boot == *run || other(row))
            };
            for (run, it) in self.known.drain().filter(|(run, it)| it.counted() && !listed(run)) {
                others.push(NodeRow { lease: Lease::Live, ..it.row.clone() });
                known.insert(run, it);
            }
        }
        self.known = known;
        others.sort_by(|a, b| a.info.boot.cmp(&b.info.boot));
        let doubtful = self.doubt_until.is_some() || others.iter().any(|row| row.info.asserting);
        let (rows, others, losses) = (rows.into(), Arc::from(others), self.losses);
        self.last = Seen { rows, others, stale: false, doubtful, losses };
        (self.last.clone(), dead)
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::lease::RENEW_EVERY;
    use crate::routes::NodeInfo;

    const LEASE: Duration = Duration::from_secs(10);

    fn run(name: &str, boot: u64) -> NodeBoot {
        NodeBoot { node: NodeId::new(name).unwrap(), boot }
    }

    fn row(of: &NodeBoot, beat: u64, lease: Lease) -> NodeRow {
        let info = NodeInfo {
            boot: of.clone(),
            peer_address: "127.0.0.1:7802".into(),
            client_addresses: Vec::new(),
            state: NodeState::Ready,
            conns: 0,
            capacity: 1,
            owns: Vec::new(),
            stands: Vec::new(),
            asserting: false,
            about: crate::routes::About::default(),
            rules: 1,
        };
        NodeRow { info, beat, lease }
    }

    fn names(rows: &[NodeRow]) -> Vec<String> {
        rows.iter().map(|row| row.info.boot.node.to_string()).collect()
    }

    /// A view of node a that has renewed `beats` times without fail, and its time.
    fn view(beats: u64) -> (View, Instant) {
        let mut view = View::new(run("a", 1), LEASE);
        let mut now = Instant::now();
        for beat in 1..=beats {
            assert!(!view.renewed(beat, NodeState::Ready, now), "beat {beat} is the next one");
            now += RENEW_EVERY;
        }
        (view, now)
    }

    #[test]
    fn any_beat_but_the_next_one_is_a_loss_and_so_is_a_return() {
        for beat in [1, 3, 4, 6] {
            let (mut view, now) = view(4);
            assert!(view.renewed(beat, NodeState::Ready, now), "{beat} after 4");
            assert!(!view.renewed(beat + 1, NodeState::Ready, now), "it goes on from there");
        }
        let (mut away, now) = view(4);
        assert!(away.failed().stale);
        assert!(away.renewed(5, NodeState::Ready, now), "it was away: nobody knows what was lost");
        // It stood still, and so did its renewals.
        let (mut frozen, now) = view(4);
        assert!(!frozen.renewed(5, NodeState::Ready, now + LEASE - RENEW_EVERY - CALL));
        assert!(frozen.renewed(6, NodeState::Ready, now + LEASE * 2), "nobody counted on it for a while");
    }

    #[test]
    fn a_late_answer_is_no_loss_where_the_beat_goes_on() {
        // The renewal that was late counted, or did not; or it was answered, and the list of nodes was late.
        for (asked, beat) in [(2, 5), (2, 6), (1, 5), (3, 5), (3, 7)] {
            let (mut view, now) = view(4);
            (1..asked).for_each(|_| view.asks());
            let seen = view.late();
            assert!(seen.stale && seen.doubtful && view.is_stale());
            view.asks();
            assert!(!view.renewed(beat, NodeState::Ready, now), "{beat} after 4, asked {asked} times");
            let (seen, _) = view.looked(Vec::new(), now);
            assert!(!seen.stale && !seen.doubtful && seen.losses == 0);
        }
        for (late, asked, beat) in [(1, 2, 4), (1, 2, 1), (1, 2, 7), (3, 4, 5), (0, 1, 6)] {
            let (mut view, now) = view(4);
            (0..asked).for_each(|_| view.asks());
            (0..late).for_each(|_| drop(view.late()));
            assert!(
                view.renewed(beat, NodeState::Ready, now),
                "{beat} after 4, {late} late, asked {asked} times"
            );
        }
        let (mut view, now) = view(4);
        view.asks();
        view.late();
        view.failed();
        view.asks();
        assert!(view.renewed(5, NodeState::Ready, now), "it was away too");
    }

    #[test]
    fn a_run_is_dead_when_its_lease_lapsed_and_its_beat_stood_still_long_enough() {
        let (mut view, mut now) = view(1);
        let b = run("b", 1);
        let lapsed = || vec![row(&b, 7, Lease::Lapsed)];
        let (seen, dead) = view.looked(lapsed(), now);
        assert!(dead.is_empty() && seen.others.is_empty());
        now += STILL_MIN - Duration::from_millis(1);
        assert!(view.looked(lapsed(), now).1.is_empty());
        assert!(!view.is_waiting_for_one(now));
        // It beats: it is alive, the clock of the routes had made a step.
        assert!(view.looked(vec![row(&b, 8, Lease::Lapsed)], now).1.is_empty());
        now += STILL_MIN - Duration::from_millis(1);
        assert!(view.looked(vec![row(&b, 8, Lease::Lapsed)], now).1.is_empty());
        now += Duration::from_millis(1);
        assert_eq!(view.looked(vec![row(&b, 8, Lease::Lapsed)], now).1, std::slice::from_ref(&b));
        assert!(view.is_waiting_for_one(now));
        assert!(view.looked(vec![row(&b, 8, Lease::Live)], now).1.is_empty(), "its lease lives");
        let own = row(&run("a", 1), 1, Lease::Lapsed);
        assert!(view.looked(vec![own.clone()], now + LEASE).1.is_empty());
        assert!(view.looked(vec![own], now + LEASE * 2).1.is_empty(), "never itself");
    }

    #[test]
    fn after_an_outage_nobody_is_dead_before_it_could_have_renewed() {
        let (mut view, mut now) = view(1);
        let b = run("b", 1);
        view.looked(vec![row(&b, 7, Lease::Live)], now);
        now += Duration::from_secs(60);
        let seen = view.failed();
        assert_eq!((names(&seen.others), seen.stale, seen.doubtful), (vec!["b".to_owned()], true, true));
        view.renewed(2, NodeState::Ready, now);
        assert!(view.looked(vec![row(&b, 7, Lease::Lapsed)], now).1.is_empty(), "it had no chance yet");
        now += STILL_MIN;
        assert_eq!(view.looked(vec![row(&b, 7, Lease::Lapsed)], now).1, [b]);
    }

    #[test]
    fn a_loss_takes_nobody_off_the_list_before_it_could_have_renewed() {
        let (mut view, mut now) = view(1);
        let (b, c) = (run("b", 1), run("c", 1));
        let both = vec![row(&b, 7, Lease::Live), row(&c, 7, Lease::Live)];
        assert_eq!(names(&view.looked(both, now).0.others), ["b", "c"]);
        assert!(view.renewed(1, NodeState::Ready, now), "emptied");
        let (seen, _) = view.looked(vec![row(&run("c", 2), 1, Lease::Live)], now);
        assert_eq!((names(&seen.others), seen.doubtful), (vec!["b".into(), "c".into()], true));
        assert_eq!(seen.others[1].info.boot.boot, 2, "the old run of c is over");
        now += LEASE;
        let (seen, _) = view.looked(vec![row(&run("c", 2), 4, Lease::Live)], now);
        assert_eq!((names(&seen.others), seen.doubtful), (vec!["c".to_owned()], false));
        // Without a loss, who is not listed has left.
        assert_eq!(names(&view.looked(Vec::new(), now).0.others), [""; 0]);
    }

    #[test]
    fn whom_a_loss_put_back_to_an_older_lease_counts_until_it_could_have_renewed() {
        let (mut view, mut now) = view(1);
        let (b, c) = (run("b", 1), run("c", 1));
        let lapsed = || vec![row(&b, 3, Lease::Lapsed), row(&c, 3, Lease::Lapsed)];
        // c was over before.
        view.looked(vec![row(&b, 7, Lease::Live), row(&c, 3, Lease::Lapsed)], now);
        assert!(view.renewed(1, NodeState::Ready, now), "an old dump");
        for _ in 0..2 {
            assert_eq!(names(&view.looked(lapsed(), now).0.others), ["b"]);
            now += STILL_MIN / 2;
        }
        let renewed = vec![row(&b, 4, Lease::Live)];
        assert_eq!(names(&view.looked(renewed, now).0.others), ["b"]);
        // Without a loss a lease that is over is over.
        now += LEASE;
        assert_eq!(names(&view.looked(vec![row(&b, 4, Lease::Lapsed)], now).0.others), [""; 0]);
        // It does not renew: it is dead.
        let (mut view, now) = view_of_b(&b);
        assert!(view.renewed(1, NodeState::Ready, now));
        view.looked(vec![row(&b, 3, Lease::Lapsed)], now);
        let (seen, dead) = view.looked(vec![row(&b, 3, Lease::Lapsed)], now + STILL_MIN);
        assert_eq!((names(&seen.others), dead), (Vec::new(), vec![b]));
    }

    #[test]
    fn a_loss_that_brings_an_earlier_run_back_as_lapsed_hides_nobody() {
        let (mut view, mut now) = view(1);
        let (b1, b2) = (run("b", 1), run("b", 2));
        view.looked(vec![row(&b2, 7, Lease::Live)], now);
        assert!(view.renewed(1, NodeState::Ready, now), "a dump of the time of the first run");
        for _ in 0..2 {
            let (seen, _) = view.looked(vec![row(&b1, 9, Lease::Lapsed)], now);
            assert_eq!(seen.others.iter().map(|it| &it.info.boot).collect::<Vec<_>>(), [&b2]);
            now += STILL_MIN / 2;
        }
        let both = vec![row(&b1, 9, Lease::Lapsed), row(&b2, 1, Lease::Live)];
        let (seen, _) = view.looked(both, now);
        assert_eq!(seen.others.len(), 1);
        now += LEASE;
        assert!(view.looked(vec![row(&b1, 9, Lease::Lapsed)], now).0.others.is_empty());
        // Put back to an older lease, then taken off the list.
        let (mut view, now) = view_of_b(&b1);
        assert!(view.renewed(1, NodeState::Ready, now));
        view.looked(vec![row(&b1, 3, Lease::Lapsed)], now);
        assert_eq!(names(&view.looked(Vec::new(), now).0.others), ["b"]);
        assert_eq!(names(&view.looked(Vec::new(), now).0.others), ["b"]);
    }

    fn view_of_b(b: &NodeBoot) -> (View, Instant) {
        let (mut view, now) = view(1);
        view.looked(vec![row(b, 7, Lease::Live)], now);
        (view, now)
    }

    #[test]
    fn look_ups_are_doubtful_as_long_as_any_node_is_putting_its_routes_back() {
        let (mut view, mut now) = view(1);
        let mut b = row(&run("b", 1), 7, Lease::Live);
        assert!(view.renewed(1, NodeState::Ready, now), "emptied");
        now += LEASE;
        b.info.asserting = true;
        for beat in 8..60 {
            // Its hundred thousands of routes take longer than a lease; what else it says is not asked.
            b.beat = beat;
            assert!(view.looked(vec![b.clone()], now).0.doubtful);
            now += RENEW_EVERY;
        }
        b.info.asserting = false;
        assert!(!view.looked(vec![b], now).0.doubtful);
    }

    #[test]
    fn a_node_leaves_when_it_says_so_and_lives() {
        let (mut view, now) = view(1);
        let mut b = row(&run("b", 1), 7, Lease::Live);
        view.looked(vec![b.clone()], now);
        assert!(!view.is_any_leaving());
        b.info.state = NodeState::Cordoned;
        view.looked(vec![b.clone()], now);
        assert!(view.is_any_leaving());
        b.lease = Lease::Lapsed;
        view.looked(vec![b], now);
        assert!(!view.is_any_leaving());
        view.renewed(2, NodeState::Draining, now);
        assert!(view.is_any_leaving(), "this one");
    }

    #[test]
    fn a_retired_run_with_rows_is_swept_at_once() {
        let (mut view, now) = view(1);
        let b = run("b", 1);
        let (seen, dead) = view.looked(vec![row(&b, 7, Lease::Retired)], now);
        assert_eq!((dead, seen.others.len()), (vec![b], 0));
    }
}
