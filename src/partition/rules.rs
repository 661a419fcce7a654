//! Switching the rules of the ledger: an owner appends the switch when every live node has agreed to it (DESIGN 6.1).
//!
//! The record alone acts, so it does not matter who appends it, how often, or in which order beside others. What matters is
//! that whoever gets the partition later can follow: a node that does not know the rules has to leave it to others.

use std::time::Duration;

use tidegate_protocol::{
    machine::ledger::LEDGER_NEWEST,
    record::{Body, RuleChange, Rules},
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::retention;
use crate::{
    bus::Bus,
    cluster::{Peers, Seen},
    routes::{Lease, NodeBoot},
};

/// Between two looks at what the nodes announce.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// After this a switch that is not in force is appended again.
const AGAIN: Duration = Duration::from_secs(10);

/// What a node knows and wants of the ledger's rules.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The newest version that it can follow.
    pub known: u32,
    /// The version to switch to at most.
    pub wanted: u32,
    /// For so long all live nodes must have agreed.
    pub settle: Duration,
}

impl Default for Settings {
    /// The newest, after a minute.
    fn default() -> Self {
        Self { known: LEDGER_NEWEST, wanted: LEDGER_NEWEST, settle: Duration::from_secs(60) }
    }
}

impl Settings {
    /// What the node announces: the version up to which it agrees.
    pub fn announced(&self) -> u32 {
        self.known.min(self.wanted)
    }
}

/// Watches what the live nodes announce; time is an argument.
#[derive(Debug, Default)]
struct Consent {
    since: Option<(u32, Instant)>,
}

impl Consent {
    /// The version that all have agreed on for long enough.
    fn look(&mut self, seen: &Seen, me: &NodeBoot, settings: &Settings, now: Instant) -> Option<u32> {
        // Without a look of late, or after a loss, there may be nodes that are not listed.
        let sure = !seen.stale && !seen.doubtful && seen.lease_of(me) == Some(Lease::Live);
        if !sure {
            self.since = None;
            return None;
        }
        // One whose lease has run out may come back until it is retired.
        let there = seen.rows.iter().filter(|row| row.lease != Lease::Retired);
        let others = there.chain(seen.others.iter()).filter(|row| row.info.boot != *me);
        let all = others.map(|row| row.info.rules).min().unwrap_or(u32::MAX).min(settings.announced());
        let since = match self.since {
            Some((version, since)) if version == all => since,
            _ => now,
        };
        self.since = Some((all, since));
        (now.saturating_duration_since(since) >= settings.settle).then_some(all)
    }
}

/// Switches one partition, for as long as its owner has it.
pub(crate) struct Switcher<'a> {
    pub(crate) partition: u32,
    pub(crate) me: &'a NodeBoot,
    pub(crate) bus: &'a dyn Bus,
    pub(crate) peers: &'a Peers,
    pub(crate) settings: Settings,
    /// Those in force, as the owner has them.
    pub(crate) rules: watch::Receiver<Rules>,
    /// The wall clock, in ms since 1970: for people.
    pub(crate) wall_ms: fn() -> u64,
}

impl Switcher<'_> {
    /// Until the owner is gone.
    pub(crate) async fn run(mut self) {
        let mut consent = Consent::default();
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let agreed = consent.look(&self.peers.seen(), self.me, &self.settings, Instant::now());
            let Some(version) = agreed.filter(|version| *version > self.rules.borrow().ledger_version) else {
                continue;
            };
            let change = RuleChange { ledger_version: version, ..RuleChange::default() };
            let appended =
                retention::append(self.bus, self.partition, Body::Rules(change), (self.wall_ms)()).await;
            if let Err(error) = appended {
                tracing::warn!(%error, partition = self.partition, "the switch of the rules waits");
                continue;
            }
            let in_force = self.rules.wait_for(|rules| rules.ledger_version >= version);
            if let Ok(Err(_)) = timeout(AGAIN, in_force).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::routes::{About, NodeInfo, NodeRow, NodeState};

    const SETTLE: Duration = Duration::from_secs(60);

    fn run(name: &str) -> NodeBoot {
        NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
    }

    fn row(name: &str, rules: u32, lease: Lease) -> NodeRow {
        let info = NodeInfo {
            boot: run(name),
            peer_address: String::new(),
            client_addresses: Vec::new(),
            state: NodeState::Ready,
            conns: 0,
            capacity: 1,
            owns: Vec::new(),
            stands: Vec::new(),
            asserting: false,
            about: About::default(),
            rules,
        };
        NodeRow { info, beat: 1, lease }
    }

    fn seen(rows: &[NodeRow]) -> Seen {
        let others = rows.iter().filter(|row| row.lease == Lease::Live && row.info.boot != run("a"));
        Seen { others: others.cloned().collect(), rows: rows.into(), ..Seen::default() }
    }

    fn settings() -> Settings {
        Settings { known: 3, wanted: 3, settle: SETTLE }
    }

    /// What is agreed on at the end, of looks that many seconds after the first one.
    fn agreed(looks: &[(u64, Seen)]) -> Option<u32> {
        let (mut consent, begin) = (Consent::default(), Instant::now());
        let look = |(after, seen): &(u64, Seen)| {
            consent.look(seen, &run("a"), &settings(), begin + Duration::from_secs(*after))
        };
        looks.iter().map(look).last().flatten()
    }

    #[test]
    fn the_lowest_of_all_live_nodes_counts_when_it_has_stood_for_long_enough() {
        let both = |rules| seen(&[row("a", 3, Lease::Live), row("b", rules, Lease::Live)]);
        assert_eq!(agreed(&[(0, both(2))]), None);
        assert_eq!(agreed(&[(0, both(2)), (59, both(2))]), None);
        assert_eq!(agreed(&[(0, both(2)), (60, both(2))]), Some(2));
        assert_eq!(agreed(&[(0, both(9)), (60, both(9))]), Some(3), "no more than it knows itself");
        assert_eq!(agreed(&[(0, both(2)), (30, both(1)), (60, both(2)), (119, both(2))]), None);
        let alone = || seen(&[row("a", 3, Lease::Live)]);
        assert_eq!(agreed(&[(0, alone()), (60, alone())]), Some(3));
        assert_eq!(agreed(&[(0, both(2)), (30, alone()), (60, both(2))]), None, "it came back");
    }

    #[test]
    fn a_node_that_may_come_back_counts_and_one_that_is_over_does_not() {
        let with = |lease| seen(&[row("a", 3, Lease::Live), row("b", 1, lease)]);
        assert_eq!(agreed(&[(0, with(Lease::Lapsed)), (60, with(Lease::Lapsed))]), Some(1));
        assert_eq!(agreed(&[(0, with(Lease::Retired)), (60, with(Lease::Retired))]), Some(3));
    }

    #[test]
    fn nothing_is_agreed_on_while_somebody_may_be_missing_from_the_list() {
        let sure = || seen(&[row("a", 3, Lease::Live), row("b", 3, Lease::Live)]);
        assert_eq!(agreed(&[(0, sure()), (60, sure())]), Some(3));
        let unsure = [
            Seen { stale: true, ..sure() },
            Seen { doubtful: true, ..sure() },
            seen(&[row("b", 3, Lease::Live)]),
            seen(&[row("a", 3, Lease::Lapsed), row("b", 3, Lease::Live)]),
            Seen::default(),
        ];
        for unsure in unsure {
            assert_eq!(agreed(&[(0, unsure.clone()), (60, unsure.clone())]), None, "{unsure:?}");
            assert_eq!(agreed(&[(0, sure()), (30, unsure), (60, sure())]), None, "it begins anew");
        }
    }

    #[test]
    fn a_node_announces_what_it_knows_and_wants() {
        assert_eq!(Settings { wanted: 2, ..settings() }.announced(), 2);
        assert_eq!(Settings { known: 1, ..settings() }.announced(), 1);
    }
}
