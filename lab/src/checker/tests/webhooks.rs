//! Planted faults of webhooks, of the stream and of the topic of messages.

use super::{super::*, Tape, body_of};

fn delivered(conv: &'static str, seq: u64, cid: Option<&'static str>) -> HistoryEvent<&'static str> {
    let body = cid.map_or(0, body_of);
    HistoryEvent::Delivered { endpoint: "crm", conv, seq, cid, body }
}

/// The clean history, whose entries an endpoint has taken, one of them twice.
fn tape() -> Tape {
    let mut tape = super::clean();
    for (seq, cid) in [(1, "a1"), (2, "a2"), (2, "a2"), (3, "a3"), (4, "a4")] {
        tape.add(delivered("d:ann:bob", seq, Some(cid)));
    }
    for (seq, cid) in [(1, None), (2, Some("b2")), (3, None), (4, Some("b5"))] {
        tape.add(delivered("g:g", seq, cid));
    }
    tape.add(HistoryEvent::CaughtUp { endpoint: "crm" });
    tape
}

#[test]
fn repeated_deliveries_are_counted_and_allowed() {
    let report = check(&tape().history(), Budget::default());
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!((report.delivered, report.delivered_again), (9, 1));
    assert_eq!(report.delivered_by, BTreeMap::from([("webhook", 9)]));
}

fn is(it: &Stamped<String>, wanted: &str, at: u64) -> bool {
    matches!(&it.event, HistoryEvent::Delivered { conv, seq, .. } if conv == wanted && *seq == at)
}

#[test]
fn event_that_never_comes_is_lost_once_the_endpoint_has_all() {
    let lost = tape().with(|events| events.retain(|it| !is(it, "g:g", 4)));
    assert_eq!(lost, ["webhook-lost"]);
    let unfinished = tape().with(|events| {
        events.retain(|it| !is(it, "g:g", 4) && !matches!(it.event, HistoryEvent::CaughtUp { .. }));
    });
    assert_eq!(unfinished, [""; 0], "it may still come");
}

#[test]
fn event_that_passes_an_earlier_one_of_its_conversation_is_named() {
    let passed = tape().with(|events| {
        let at = |seq| events.iter().position(|it| is(it, "g:g", seq)).unwrap();
        let (two, three) = (at(2), at(3));
        let earlier = events[two].event.clone();
        events[two].event = events[three].event.clone();
        events[three].event = earlier;
    });
    assert_eq!(passed, ["webhook-order"]);
    let other_conversation = tape().with(|events| {
        let at = events.iter().position(|it| is(it, "d:ann:bob", 4)).unwrap();
        let late = events.remove(at);
        let end = events.len() - 1;
        events.insert(end, late);
    });
    assert_eq!(other_conversation, [""; 0], "there is no order between conversations");
}

#[test]
fn event_that_was_not_accepted_is_named() {
    let other = tape().with(|events| {
        for it in events.iter_mut().filter(|it| is(it, "g:g", 4)) {
            let HistoryEvent::Delivered { cid, .. } = &mut it.event else { continue };
            *cid = Some("b2".to_owned());
        }
    });
    assert_eq!(other, ["webhook-phantom"]);
    let changed = tape().with(|events| {
        for it in events.iter_mut().filter(|it| is(it, "g:g", 4)) {
            let HistoryEvent::Delivered { body, .. } = &mut it.event else { continue };
            *body += 1;
        }
    });
    assert_eq!(changed, ["webhook-phantom"]);
    let changed_repeat = tape().with(|events| {
        let repeat = events.iter_mut().rfind(|it| is(it, "d:ann:bob", 2)).unwrap();
        let HistoryEvent::Delivered { body, .. } = &mut repeat.event else { return };
        *body += 1;
    });
    assert_eq!(changed_repeat, ["webhook-phantom"], "the second delivery of the same entry");
    let beyond = tape().with(|events| {
        let at = events.len() - 1;
        let more = delivered("g:g", 5, Some("b4")).map(str::to_owned);
        let stamp = events[at].at;
        events.insert(at, Stamped { at: stamp, event: more });
    });
    assert_eq!(beyond, ["webhook-phantom"], "a refused message");
}

/// The same tape, whose entries a reader has taken in place of the endpoint.
fn taken_by(reader: &str) -> Tape {
    let mut tape = tape();
    for it in &mut tape.0 {
        if let HistoryEvent::Delivered { endpoint, .. } | HistoryEvent::CaughtUp { endpoint } = &mut it.event
        {
            *endpoint = reader.to_owned();
        }
    }
    tape
}

#[test]
fn faults_of_a_reader_are_named_by_what_it_reads() {
    for (reader, rules) in [
        ("stream", ["stream-lost", "stream-order", "stream-phantom"]),
        ("topic", ["topic-lost", "topic-order", "topic-phantom"]),
    ] {
        let tape = taken_by(reader);
        let report = check(&tape.history(), Budget::default());
        assert!(report.is_clean(), "{:?}", report.violations);
        assert_eq!(report.delivered_by, BTreeMap::from([(reader, 9)]));
        let lost = tape.with(|events| events.retain(|it| !is(it, "g:g", 4)));
        assert_eq!(lost, [rules[0]]);
        let passed = tape.with(|events| {
            let at = events.iter().position(|it| is(it, "g:g", 3)).unwrap();
            let late = events.remove(at);
            let end = events.len() - 1;
            events.insert(end, late);
        });
        assert_eq!(passed, [rules[1]]);
        let phantom = tape.with(|events| {
            for it in events.iter_mut().filter(|it| is(it, "g:g", 4)) {
                let HistoryEvent::Delivered { body, .. } = &mut it.event else { continue };
                *body += 1;
            }
        });
        assert_eq!(phantom, [rules[2]]);
    }
}
