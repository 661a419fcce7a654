//! The self-test of presence: a node reports a device as connected that is not, and the other way round.

use super::*;

#[test]
fn a_node_is_wrong_about_who_is_there() {
    let mut tape = clean();
    tape.add(HistoryEvent::Close { session: 3, code: 0 });
    tape.add(HistoryEvent::Left { user: "bob", device: "p" });
    for (user, online) in [("ann", true), ("bob", false), ("dan", false)] {
        tape.add(HistoryEvent::Presence { node: "n1", user, device: "p", online });
    }
    let report = check(&tape.history(), Budget::default());
    assert!(report.is_clean(), "{:#?}", report.violations);
    assert_eq!(report.presences, 3);
    for nth in 1..=3 {
        let said = tape.0.len() - nth;
        let rules = tape.with(|it| {
            let HistoryEvent::Presence { online, .. } = &mut it[said].event else { panic!("no word") };
            *online = !*online;
        });
        assert_eq!(rules, ["presence-diverged"]);
    }
}
