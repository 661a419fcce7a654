//! Switch of the ledger's rules: an owner appends it once every live node has agreed to the version (ADR 13).
//!
//! Only the record takes effect, so it does not matter which owner appends it, how often, or in which order. But each
//! later owner of the partition must know the rules: a node that does not has to leave the partition to others.

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
    cluster::{PeerSnapshot, Peers},
    routes::{Lease, NodeBoot},
};

const CONSENT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before a switch that is not in force yet is appended again.
const SWITCH_RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Known and wanted versions of the ledger's rules, from the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Newest version that the node can follow.
    pub known: u32,
    /// Newest version to switch to.
    pub wanted: u32,
    /// How long all live nodes must have agreed.
    pub settle: Duration,
    /// Whether other nodes must agree. A node without peers switches a new log at once, and an existing one after
    /// `settle`, until which the former version can be started again.
    pub has_peers: bool,
}

impl Default for Settings {
    /// Returns settings that switch to the newest version, after a minute.
    fn default() -> Self {
        Self { known: LEDGER_NEWEST, wanted: LEDGER_NEWEST, settle: Duration::from_secs(60), has_peers: true }
    }
}

impl Settings {
    /// Returns the version that the node announces: the newest one that it agrees to.
    pub fn announced(&self) -> u32 {
        self.known.min(self.wanted)
    }
}

/// Version that the live nodes agree on, and since when; time is an argument.
#[derive(Debug, Default)]
struct Consent {
    since: Option<(u32, Instant)>,
}

impl Consent {
    /// Updates the agreed version; returns it once all nodes have agreed for long enough.
    fn update(
        &mut self,
        snapshot: &PeerSnapshot,
        me: &NodeBoot,
        settings: &Settings,
        now: Instant,
    ) -> Option<u32> {
        // A stale list, or one read after a loss, may lack nodes.
        let is_complete =
            !snapshot.stale && !snapshot.may_be_incomplete && snapshot.lease_of(me) == Some(Lease::Live);
        if !is_complete {
            self.since = None;
            return None;
        }
        // A node whose lease has expired may come back until it is retired.
        let unretired = snapshot.rows.iter().filter(|row| row.lease != Lease::Retired);
        let others = unretired.chain(snapshot.others.iter()).filter(|row| row.info.boot != *me);
        let lowest = others.map(|row| row.info.rules).min().unwrap_or(u32::MAX).min(settings.announced());
        let since = match self.since {
            Some((version, since)) if version == lowest => since,
            _ => now,
        };
        self.since = Some((lowest, since));
        (now.saturating_duration_since(since) >= settings.settle).then_some(lowest)
    }
}

/// Switches the rules of one partition, for as long as its owner has it.
pub(crate) struct Switcher<'a> {
    pub(crate) partition: u32,
    pub(crate) me: &'a NodeBoot,
    pub(crate) bus: &'a dyn Bus,
    pub(crate) peers: &'a Peers,
    pub(crate) settings: Settings,
    /// Whether the log was empty when this run of the node began.
    pub(crate) is_log_new: bool,
    /// Rules in force, as published by the owner.
    pub(crate) rules: watch::Receiver<Rules>,
    /// Wall clock, in ms since 1970; for display only.
    pub(crate) wall_ms: fn() -> u64,
}

impl Switcher<'_> {
    /// Appends the switch whenever a newer version is agreed on, until the owner exits.
    pub(crate) async fn run(mut self) {
        let (mut consent, begun) = (Consent::default(), Instant::now());
        let mut checks = interval(CONSENT_CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let agreed = match self.settings.has_peers {
                true => consent.update(&self.peers.snapshot(), self.me, &self.settings, Instant::now()),
                false => {
                    let is_settled = self.is_log_new || begun.elapsed() >= self.settings.settle;
                    is_settled.then_some(self.settings.announced())
                }
            };
            let Some(version) = agreed.filter(|version| *version > self.rules.borrow().ledger_version) else {
                continue;
            };
            let change = RuleChange { ledger_version: version, ..RuleChange::default() };
            let appended =
                retention::append(self.bus, self.partition, Body::Rules(change), (self.wall_ms)()).await;
            if let Err(error) = appended {
                tracing::warn!(%error, partition = self.partition, version, "rules switch not appended; retrying");
                continue;
            }
            let in_force = self.rules.wait_for(|rules| rules.ledger_version >= version);
            if let Ok(Err(_)) = timeout(SWITCH_RETRY_INTERVAL, in_force).await {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::id::NodeId;

    use super::*;
    use crate::routes::{NodeInfo, NodeRow};

    const RULES_SETTLE_TIME: Duration = Duration::from_secs(60);

    fn run(name: &str) -> NodeBoot {
        NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 }
    }

    fn row(name: &str, rules: u32, lease: Lease) -> NodeRow {
        NodeRow::new(NodeInfo { rules, ..NodeInfo::new(run(name)) }, lease)
    }

    fn snapshot(rows: &[NodeRow]) -> PeerSnapshot {
        let others = rows.iter().filter(|row| row.lease == Lease::Live && row.info.boot != run("a"));
        PeerSnapshot { others: others.cloned().collect(), rows: rows.into(), ..PeerSnapshot::default() }
    }

    fn settings() -> Settings {
        Settings { known: 3, wanted: 3, settle: RULES_SETTLE_TIME, has_peers: true }
    }

    /// Returns the agreed version after the snapshots, each taken that many seconds after the first.
    fn agreed(snapshots: &[(u64, PeerSnapshot)]) -> Option<u32> {
        let (mut consent, begin) = (Consent::default(), Instant::now());
        let update = |(after, snapshot): &(u64, PeerSnapshot)| {
            consent.update(snapshot, &run("a"), &settings(), begin + Duration::from_secs(*after))
        };
        snapshots.iter().map(update).last().flatten()
    }

    #[test]
    fn lowest_version_of_live_nodes_counts_after_the_settle_time() {
        let both = |rules| snapshot(&[row("a", 3, Lease::Live), row("b", rules, Lease::Live)]);
        assert_eq!(agreed(&[(0, both(2))]), None);
        assert_eq!(agreed(&[(0, both(2)), (59, both(2))]), None);
        assert_eq!(agreed(&[(0, both(2)), (60, both(2))]), Some(2));
        assert_eq!(agreed(&[(0, both(9)), (60, both(9))]), Some(3), "not above its own newest version");
        assert_eq!(agreed(&[(0, both(2)), (30, both(1)), (60, both(2)), (119, both(2))]), None);
        let alone = || snapshot(&[row("a", 3, Lease::Live)]);
        assert_eq!(agreed(&[(0, alone()), (60, alone())]), Some(3));
        assert_eq!(
            agreed(&[(0, both(2)), (30, alone()), (60, both(2))]),
            None,
            "its return restarts the settle time"
        );
    }

    #[test]
    fn node_with_an_expired_lease_counts_until_it_is_retired() {
        let with = |lease| snapshot(&[row("a", 3, Lease::Live), row("b", 1, lease)]);
        assert_eq!(agreed(&[(0, with(Lease::Lapsed)), (60, with(Lease::Lapsed))]), Some(1));
        assert_eq!(agreed(&[(0, with(Lease::Retired)), (60, with(Lease::Retired))]), Some(3));
    }

    #[test]
    fn nothing_is_agreed_while_the_node_list_may_be_incomplete() {
        let sure = || snapshot(&[row("a", 3, Lease::Live), row("b", 3, Lease::Live)]);
        assert_eq!(agreed(&[(0, sure()), (60, sure())]), Some(3));
        let unsure = [
            PeerSnapshot { stale: true, ..sure() },
            PeerSnapshot { may_be_incomplete: true, ..sure() },
            snapshot(&[row("b", 3, Lease::Live)]),
            snapshot(&[row("a", 3, Lease::Lapsed), row("b", 3, Lease::Live)]),
            PeerSnapshot::default(),
        ];
        for unsure in unsure {
            assert_eq!(agreed(&[(0, unsure.clone()), (60, unsure.clone())]), None, "{unsure:?}");
            assert_eq!(agreed(&[(0, sure()), (30, unsure), (60, sure())]), None, "the settle time restarts");
        }
    }

    #[test]
    fn announced_version_is_the_lower_of_known_and_wanted() {
        assert_eq!(Settings { wanted: 2, ..settings() }.announced(), 2);
        assert_eq!(Settings { known: 1, ..settings() }.announced(), 1);
    }
}
