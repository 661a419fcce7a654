//! Planted faults, one test each: the simulation must catch every one of them within a bounded number of seeds.

use tidegate_protocol::machine::ledger::Mutation;

use crate::{owner::Fault, world};

/// Number of seeds within which a fault must be caught.
const SEEDS: u64 = 300;

fn caught(fault: Fault) {
    let found = (0..SEEDS).find_map(|seed| world::run(seed, fault).err().map(|broken| (seed, broken)));
    let (seed, broken) = found.unwrap_or_else(|| panic!("{fault:?} went unnoticed in {SEEDS} seeds"));
    println!("{fault:?}: seed {seed}: {broken}");
}

macro_rules! mutants {
    ($($name:ident $fault:expr;)*) => {
        $(#[test]
        fn $name() {
            caught($fault);
        })*
    };
}

mutants! {
    no_epoch_check_is_caught Fault::Ledger(Mutation::NoEpochCheck);
    undetected_lost_append_in_a_chain_is_caught Fault::Ledger(Mutation::NoChainCheck);
    chain_checked_before_the_duplicate_is_caught Fault::Ledger(Mutation::ChainBeforeDuplicate);
    membership_checked_before_the_duplicate_is_caught Fault::Ledger(Mutation::MembershipBeforeDuplicate);
    refused_record_that_keeps_its_number_is_caught Fault::Ledger(Mutation::RefusedKeepsNumber);
    ignored_attempt_is_caught Fault::Ledger(Mutation::AttemptIgnored);
    a_window_by_time_is_caught Fault::Ledger(Mutation::WindowByTime);
    deciding_clock_an_hour_ahead_is_caught Fault::Ledger(Mutation::ClockDecides);
    dedup_forgotten_on_take_over_is_caught Fault::DedupForgotten;
    a_refusal_forgotten_on_take_over_is_caught Fault::RefusalForgotten;
    an_archive_without_fence_is_caught Fault::ArchiveWithoutFence;
    an_archive_without_position_check_is_caught Fault::ArchiveWithoutPosition;
    a_seq_from_a_stale_head_is_caught Fault::StaleHead;
    zombie_that_reads_a_newer_store_is_caught Fault::ZombieReadsNewer;
    evicted_row_taken_as_absent_is_caught Fault::EvictedIsAbsent;
    silent_position_reset_on_a_replaced_log_is_caught Fault::LogReplacedIgnored;
    rows_unpinned_before_their_archive_is_done_are_caught Fault::UnpinnedTooEarly;
    a_store_that_drops_keys_by_itself_is_caught Fault::StoreDropsKeys;
    a_rules_record_that_undoes_another_is_caught Fault::Ledger(Mutation::RulesReplaced);
    unchained_refusal_forgotten_is_caught Fault::Ledger(Mutation::UnchainedRefusalForgotten);
    request_refusal_forgotten_is_caught Fault::Ledger(Mutation::RequestRefusalForgotten);
    edit_refusal_forgotten_is_caught Fault::Ledger(Mutation::EditRefusalForgotten);
    denial_forgotten_is_caught Fault::Ledger(Mutation::DenialForgotten);
    silent_message_with_an_ordinal_is_caught Fault::Ledger(Mutation::SilentCounts);
    operator_who_needs_a_membership_is_caught Fault::Ledger(Mutation::OperatorNeedsMembership);
    stored_content_of_a_transient_message_is_caught Fault::Ledger(Mutation::TransientStored);
    a_recall_decided_by_a_pruned_row_is_caught Fault::Ledger(Mutation::PrunedRowAnswers);
    older_node_that_skips_unknown_rules_is_caught Fault::UnknownRulesIgnored;
}
