//! Planted faults of delivery, one test each: the checker must find each of them within a bounded number of seeds, and
//! nothing in the same seed without the fault.

use std::panic::catch_unwind;

use tidegate::fault::planted::{Planted, plant};
use tidegate_lab::checker;

use crate::{deck::Deck, run};

/// Number of seeds within which a fault must be found.
const SEEDS: usize = 40;

/// Runs worlds of the deck with the fault until the checker finds one of the rules broken.
fn caught(fault: Planted, deck: Deck, rules: &[&str]) {
    for seed in (0..).filter(|seed| Deck::of(*seed) == deck).take(SEEDS) {
        plant(Some(fault));
        let history = catch_unwind(|| run(seed, false));
        plant(None);
        // A world that does not come to rest is no verdict of the checker.
        let Ok(history) = history else { continue };
        let broken = checker::check(&history, deck.budget()).broken;
        println!("{fault:?}: seed {seed}: {broken:?}");
        if !rules.iter().any(|rule| broken.contains_key(rule)) {
            continue;
        }
        let report = checker::check(&run(seed, false), deck.budget());
        assert!(report.is_clean(), "seed {seed} without {fault:?}: {:#?}", report.violations);
        return;
    }
    panic!("{fault:?} went unnoticed in {SEEDS} seeds");
}

macro_rules! mutants {
    ($($name:ident $fault:ident $deck:ident $rules:expr;)*) => {
        $(#[test]
        fn $name() {
            caught(Planted::$fault, Deck::$deck, &$rules);
        })*
    };
}

mutants! {
    mutant_push_before_its_membership PushBeforeMembership Everything ["leak-after-kick"];
    mutant_route_removed_without_its_token RouteWithoutToken Planned ["unpushed"];
    mutant_lost_behind BehindLost Planned ["unpushed"];
    mutant_window_that_forgets WindowForgets Planned ["unpushed"];
    mutant_drain_that_does_not_settle DrainUnsettled Planned ["stop-unanswered"];
    mutant_prune_by_the_clock_of_one_node PruneByOneClock Owners ["lost-acked"];
    mutant_lost_partition_archived_and_unpublished ArchivedUnpublished Owners ["unpushed"];
    mutant_planned_stop_without_the_queues_to_peers PeersNotFlushed Planned ["unpushed"];
    mutant_chain_that_skips_after_a_temporary_refusal ChainSkipsRefused Busy ["chain-order"];
    mutant_dedup_key_forgotten_too_early KeysForgotten Planned ["stored-twice", "ack-differs-on-retry"];
    mutant_routes_not_asserted_again RoutesNotReasserted Routes ["unpushed"];
    mutant_incomplete_routes_trusted IncompleteRoutesTrusted Routes ["unpushed"];
}
