//! `Rules` records: none undoes another, and what this node does not know stops the partition.

use tidegate_protocol::machine::ledger::LEDGER_NEWEST;

use super::*;

fn switch_to(ledger_version: u32) -> Body {
    Body::Rules(RuleChange { ledger_version, ..RuleChange::default() })
}

fn forget(keys_from: u64) -> Body {
    Body::Rules(RuleChange { keys_from, ..RuleChange::default() })
}

fn window(dedup_window: u64) -> Body {
    Body::Rules(RuleChange { dedup_window: Some(dedup_window), ..RuleChange::default() })
}

#[test]
fn rules_that_are_not_known_stop_the_partition_where_it_is() {
    let mut it = Partition::new();
    it.say(message("d:ann:bob", "ann", "m1"));
    let newer = record(switch_to(LEDGER_NEWEST + 1));
    assert_eq!(it.ledger.apply(1, &newer), Err(Stop::UnknownRules(LEDGER_NEWEST + 1)));
    assert_eq!(it.ledger.next_offset(), 1);
    // A node of an earlier version that gets the partition later does not begin.
    it.put(switch_to(2));
    let mut older = Ledger::resume(it.end(), it.ledger.rules(), 1);
    older.know_up_to(1);
    assert_eq!(older.knows(2), Err(Stop::UnknownRules(2)));
    assert_eq!(older.apply(2, &record(forget(0))), Err(Stop::UnknownRules(2)));
    assert_eq!(older.skip(2), Err(Stop::UnknownRules(2)));
    assert_eq!(older.next_offset(), 2);
}

#[test]
fn records_of_several_appenders_undo_nothing_of_each_other_in_any_order() {
    let bodies = || [switch_to(2), forget(1), forget(2), window(3)];
    let mut ends = Vec::new();
    for first in 0..4 {
        for second in 0..4 {
            let mut it = Partition::new();
            for n in 1..=4 {
                it.say(message("d:ann:bob", "ann", &format!("m{n}")));
            }
            it.put(switch_to(2));
            let mut bodies = bodies();
            bodies.swap(0, first);
            bodies.swap(1, second);
            for body in bodies {
                it.put(body);
            }
            ends.push(it.ledger.rules());
        }
    }
    let expected = Rules { ledger_version: 2, dedup_window: 3, keys_from: 2 };
    assert!(ends.iter().all(|rules| *rules == expected), "{ends:?}");
}

#[test]
fn a_version_never_falls_and_from_2_on_only_what_is_named_changes() {
    let mut it = Partition::new();
    it.put(window(5));
    it.put(forget(0));
    assert_eq!(it.ledger.rules().dedup_window, 0, "version 1 knows no record without a window");
    it.put(window(5));
    it.put(switch_to(2));
    it.put(forget(1));
    it.put(switch_to(1));
    assert_eq!(it.ledger.rules(), Rules { ledger_version: 2, dedup_window: 5, keys_from: 1 });
    it.put(window(0));
    assert_eq!(it.ledger.rules().dedup_window, 0, "it is named");
}
