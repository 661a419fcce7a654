//! Switch of the rules in the middle of a log: with any owners, the outcomes are those of one replay.

use std::collections::BTreeSet;

use proptest::{collection::vec, prelude::*};
use tidegate_protocol::{
    Code,
    id::NodeId,
    machine::ledger::{LEDGER_NEWEST, Ledger, MODES_RULES, Outcome, Stop, kind_version},
    record::{Body, Origin, Position, Record, RuleChange},
};

use super::{
    properties::{body, check},
    store,
};

fn record(body: Body) -> Record {
    let origin = Origin { node: NodeId::new("n1").unwrap(), boot: 1, conn: 2, request: 3 };
    Record { origin, received_at: 1_000, body, trace: None }
}

/// Runs an owner from the store's position, and returns its answers up to `end` or to the rules that stop it.
fn own(newest: u32, log: &[Record], end: usize, archive_every: usize, store: &mut store::Store) -> Run {
    let mut run = Run { answers: Vec::new(), stop: None };
    let mut ledger = Ledger::resume(store.now.position, store.now.rules, 7);
    ledger.know_up_to(newest);
    let from = usize::try_from(store.now.position.offset).unwrap();
    for (nth, record) in log.iter().enumerate().take(end).skip(from) {
        let mut needs = BTreeSet::new();
        ledger.needs(record, &mut needs);
        ledger.load(store.now.position, store.now.read(&needs)).unwrap();
        match ledger.apply(nth as u64, record) {
            Ok(outcome) => run.answers.push((nth, outcome)),
            Err(stop) => {
                run.stop = Some(stop);
                break;
            }
        }
        if nth % archive_every == 0 {
            let to = Position::behind(nth as u64, &record.encode());
            let delta = ledger.take_delta(to).unwrap();
            assert_ne!(store.commit(0, &delta).unwrap(), store::Commit::Refused);
            ledger.archived(to).unwrap();
        }
    }
    run
}

struct Run {
    answers: Vec<(usize, Outcome)>,
    stop: Option<Stop>,
}

/// Versions of the rules before and after a switch, the newest that the older and the newer owners know.
#[derive(Clone, Copy, Debug)]
struct Switch {
    known: u32,
    newest: u32,
}

/// Checks switches in the middle of any log, with an owner of each version.
fn check_switches(runs: u32, switches: impl Strategy<Value = Switch>) {
    let bodies = || vec(body().prop_filter("one switch", |it| !matches!(it, Body::Rules(_))), 1..60);
    let windows = prop::option::of(prop::sample::select(&[0, 3, 9][..]));
    let strategy = (bodies(), bodies(), (switches, windows), 1..9usize, any::<prop::sample::Index>());
    check(
        runs,
        strategy,
        |(before, after, (Switch { known, newest }, dedup_window), archive_every, handed_over)| {
            // Only the later version keeps this window when a record drops keys.
            let window = RuleChange { ledger_version: known, dedup_window, ..RuleChange::default() };
            let window = Body::Rules(window);
            let switch = Body::Rules(RuleChange { ledger_version: newest, ..RuleChange::default() });
            let forget = Body::Rules(RuleChange { keys_from: 2, ..RuleChange::default() });
            let at = before.len() + 1;
            let bodies = [window].into_iter().chain(before).chain([switch, forget]).chain(after);
            let log: Vec<Record> = bodies.map(record).collect();

            let mut one = store::Store::new(true, true);
            let replay = own(newest, &log, log.len(), log.len(), &mut one);
            assert_eq!(replay.stop, None);
            for (nth, outcome) in &replay.answers {
                let version = if *nth < at { known } else { newest };
                let is_early = kind_version(&log[*nth].body) > version;
                let is_refused = matches!(outcome, Outcome::Refused { code: Code::NotYet });
                assert_eq!(is_refused, is_early, "record {nth}, switch at {at}: {outcome:?}");
            }

            let mut store = store::Store::new(true, true);
            let end = handed_over.index(log.len() + 1);
            let older = own(known, &log, end, archive_every, &mut store);
            assert_eq!(older.stop, (end > at).then_some(Stop::UnknownRules(newest)));
            assert_eq!(older.answers.len(), end.min(at), "it decides every record before the switch");
            let newer = own(newest, &log, log.len(), archive_every, &mut store);
            // The newer owner decides unarchived records again.
            for (nth, outcome) in older.answers.iter().chain(&newer.answers) {
                assert_eq!(*outcome, replay.answers[*nth].1, "record {nth}");
            }
            // An older owner that returns later can't start, so it gives no answers.
            if store.now.rules.ledger_version > known {
                let late = own(known, &log, log.len(), archive_every, &mut store);
                assert!(late.answers.is_empty());
            }
        },
    );
}

#[test]
fn owners_of_two_versions_decide_a_switch_as_one_replay() {
    check_switches(300, (1..LEDGER_NEWEST).prop_map(|known| Switch { known, newest: LEDGER_NEWEST }));
}

/// Edits and flags are what version 5 adds. A switch to a newer version skips it, so its own has runs of its own.
#[test]
fn edits_and_flags_are_early_until_the_switch_from_version_4_to_5() {
    check_switches(100, Just(Switch { known: MODES_RULES - 1, newest: MODES_RULES }));
}
