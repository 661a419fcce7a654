//! Isolation of this node: tells a node that alone is cut off from the routes from a failure of the routes for all.
//!
//! A node without routes goes on, because they are usually unavailable for everybody. If its peers renew their leases,
//! they have taken it for dead instead: its users' new messages go past it, and its clients wait here for nothing
//! (flaw S55).

use std::time::Duration;

use tokio::time::Instant;

use crate::{link::LeaseStatus, routes::DEAD_AFTER};

/// Decision whether this run has ended for its peers. A pure machine: the time is an argument.
pub(super) struct Isolation {
    /// When the last renewal was answered; `None` before the first.
    renewed: Option<Instant>,
    /// Time after that from which the peers take the run for dead.
    dead_after: Duration,
}

impl Isolation {
    /// Creates the machine; `lease` is how long the routes grant a lease.
    pub(super) fn new(lease: Duration) -> Self {
        Self { renewed: None, dead_after: lease + DEAD_AFTER }
    }

    /// Takes a renewal that was answered.
    pub(super) fn renewed(&mut self, now: Instant) {
        self.renewed = Some(now);
    }

    /// Returns whether the peers must be asked: by now they would have taken this run for dead.
    pub(super) fn must_ask(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|renewed| now - renewed >= self.dead_after)
    }

    /// Returns whether this run has ended for its peers, by the answers of those that answered: some renew their leases,
    /// and none of these lists it. Without such an answer the routes may be unavailable for all, or this node may be cut
    /// off from everything; it goes on.
    pub(super) fn is_given_up(answers: &[LeaseStatus]) -> bool {
        let mut renewing = answers.iter().filter(|it| it.renews).peekable();
        renewing.peek().is_some() && renewing.all(|it| !it.lists_caller)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_TIME: Duration = Duration::from_secs(10);

    fn answer(renews: bool, lists_caller: bool) -> LeaseStatus {
        LeaseStatus { renews, lists_caller }
    }

    #[test]
    fn peers_are_asked_once_they_take_the_run_for_dead() {
        let (mut isolation, mut now) = (Isolation::new(LEASE_TIME), Instant::now());
        assert!(!isolation.must_ask(now + LEASE_TIME * 9), "it has no lease yet");
        isolation.renewed(now);
        now += LEASE_TIME + DEAD_AFTER;
        assert!(!isolation.must_ask(now - Duration::from_millis(1)));
        assert!(isolation.must_ask(now));
        isolation.renewed(now);
        assert!(!isolation.must_ask(now + LEASE_TIME));
    }

    #[test]
    fn run_is_given_up_if_peers_renew_and_none_of_them_lists_it() {
        let (gone, listed) = (answer(true, false), answer(true, true));
        let (without_routes, lists_from_memory) = (answer(false, false), answer(false, true));
        for (answers, is_given_up) in [
            (vec![], false),
            (vec![without_routes, lists_from_memory], false),
            (vec![gone], true),
            (vec![without_routes, gone, lists_from_memory], true),
            (vec![gone, listed], false),
            (vec![listed], false),
        ] {
            assert_eq!(Isolation::is_given_up(&answers), is_given_up, "{answers:?}");
        }
    }
}
