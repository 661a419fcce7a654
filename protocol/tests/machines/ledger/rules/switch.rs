//! `Rules` records: none undoes another, and an unknown version stops the partition.

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
fn unknown_rules_stop_the_partition_at_their_record() {
    let mut it = Partition::new();
    it.send(message("d:ann:bob", "ann", "m1"));
    let newer = record(switch_to(LEDGER_NEWEST + 1));
    assert_eq!(it.ledger.apply(1, &newer), Err(Stop::UnknownRules(LEDGER_NEWEST + 1)));
    assert_eq!(it.ledger.next_offset(), 1);
    // A node of an earlier version that gets the partition later must not start.
    it.put(switch_to(2));
    let mut older = Ledger::resume(it.end(), it.ledger.rules(), 1);
    older.know_up_to(1);
    assert_eq!(older.knows(2), Err(Stop::UnknownRules(2)));
    assert_eq!(older.apply(2, &record(forget(0))), Err(Stop::UnknownRules(2)));
    assert_eq!(older.skip(2), Err(Stop::UnknownRules(2)));
    assert_eq!(older.next_offset(), 2);
}

#[test]
fn rules_records_do_not_undo_each_other_in_any_order() {
    let bodies = || [switch_to(2), forget(1), forget(2), window(3)];
    let mut ends = Vec::new();
    for first in 0..4 {
        for second in 0..4 {
            let mut it = Partition::new();
            for n in 1..=4 {
                it.send(message("d:ann:bob", "ann", &format!("m{n}")));
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
fn version_never_falls_and_omitted_rules_stay_from_2_on() {
    let mut it = Partition::new();
    it.put(window(5));
    it.put(forget(0));
    assert_eq!(it.ledger.rules().dedup_window, 0, "version 1 sets an omitted window to 0");
    it.put(window(5));
    it.put(switch_to(2));
    it.put(forget(1));
    it.put(switch_to(1));
    assert_eq!(it.ledger.rules(), Rules { ledger_version: 2, dedup_window: 5, keys_from: 1 });
    it.put(window(0));
    assert_eq!(it.ledger.rules().dedup_window, 0, "the record names the window");
}
