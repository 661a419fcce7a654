//! Tests of failures by example: halving, parking, events set aside, failing endpoints, saves and hand-overs.

use std::time::Duration;
use tidegate_protocol::{
    Time,
    machine::webhook::{
        FAILING_AFTER, PARKED_MAX, ParkedConversation, REFUSED_ASIDE, RELEASE_MAX, RETRY_AFTER_MAX,
        SAVE_INTERVAL, UNSAVED_MAX, WebhookBatch, WebhookChange, WebhookCursor, WebhookDelivery,
        WebhookEvent, WebhookEventKind, WebhookFailure, WebhookNotice, WebhookOutcome, WebhookPage,
        WebhookSettings, WebhookState, WebhookStep,
    },
};

use super::{SETTINGS, at, delivery, entry, page, sends};

/// Answers of a receiver that refuses a request, and of one that fails.
const REFUSED: WebhookOutcome = WebhookOutcome::Refused(400);
const FAILED: WebhookOutcome = WebhookOutcome::Failed(WebhookFailure::Status(500));

const ONE_LANE: WebhookSettings = WebhookSettings { parallel: 1, ..SETTINGS };

/// Delivers from `begin` to `end` with a receiver, and saves. Returns all requests.
fn run(
    delivery: &mut WebhookDelivery,
    begin: u64,
    end: u64,
    mut receiver: impl FnMut(&WebhookBatch) -> WebhookOutcome,
) -> Vec<(u64, WebhookBatch)> {
    let (mut now, mut sent) = (begin, Vec::new());
    while now <= end {
        while let Some(batch) = delivery.poll_send(at(now)) {
            let outcome = receiver(&batch);
            delivery.handle_outcome(batch.ticket, outcome, at(now));
            sent.push((now, batch));
        }
        while let Some(save) = delivery.poll_save(at(now)) {
            delivery.handle_save(save.partition, true, at(now));
        }
        let next = delivery.poll_timeout(at(now)).map_or(end, Time::as_millis);
        assert!(next >= now || next == 0, "the driver would wait for {next} at {now}");
        now = next.max(now + 1);
    }
    sent
}

/// Returns the event of a parked conversation, whose kind is not known.
fn later(conversation: &str, seq: u64) -> WebhookEvent {
    WebhookEvent { kind: WebhookEventKind::Entry, ..entry(conversation, seq) }
}

fn notices(delivery: &mut WebhookDelivery) -> Vec<WebhookNotice> {
    std::iter::from_fn(|| delivery.poll_notice()).collect()
}

fn cursor(delivery: &mut WebhookDelivery, now: u64) -> WebhookCursor {
    delivery.handle_release(0, at(now));
    let save = delivery.poll_save(at(now) + RELEASE_MAX).unwrap();
    assert!(save.is_final);
    WebhookCursor::decode(&save.bytes).unwrap()
}

/// Events of two conversations in turn; the first of `g:bad` is poison.
fn with_poison() -> Vec<WebhookEvent> {
    (1..=6).flat_map(|seq| [entry("g:bad", seq), entry("g:good", seq)]).collect()
}

fn is_bad(batch: &WebhookBatch) -> bool {
    batch.events.iter().any(|event| event.conversation.as_str() == "g:bad" && event.seq == 1)
}

fn refuses_poison(batch: &WebhookBatch) -> WebhookOutcome {
    if is_bad(batch) { REFUSED } else { WebhookOutcome::Taken }
}

#[test]
fn s85_bad_conversation_delays_only_itself() {
    let mut delivery = delivery(ONE_LANE, &with_poison());
    let sent = run(&mut delivery, 0, 60_000, refuses_poison);
    let good = sent.iter().flat_map(|(at, batch)| batch.events.iter().map(move |event| (*at, event)));
    let good: Vec<_> = good.filter(|(_, event)| event.conversation.as_str() == "g:good").collect();
    let taken = good.last().unwrap();
    assert!(taken.1.seq == 6 && taken.0 < 20_000, "{taken:?}");
    assert_eq!(delivery.parked(), 1);
    let parked = WebhookNotice::Parked(entry("g:bad", 1));
    assert!(notices(&mut delivery).contains(&parked));
    let saved = cursor(&mut delivery, 60_000);
    assert_eq!((saved.lanes[0], saved.parked[0].next, saved.parked[0].up_to), (12, 1, 6));
}

#[test]
fn s86_parked_event_is_set_aside_after_refusals_while_others_succeed() {
    let mut delivery = delivery(ONE_LANE, &with_poison());
    let quiet = u64::try_from(REFUSED_ASIDE.as_millis()).unwrap() * 3;
    run(&mut delivery, 0, quiet, refuses_poison);
    assert_eq!(delivery.aside().count(), 0, "nothing else succeeds meanwhile");
    let mut sent = Vec::new();
    for (minute, number) in (1..=15).zip(13..) {
        let mut more = page(&[entry("g:good", number - 6)]);
        (more.after, more.end, more.newest, more.items[0].number) = (number - 1, number, number, number);
        let now = quiet + minute * 60_000;
        delivery.handle_page(0, &more, at(now));
        sent.extend(run(&mut delivery, now, now + 59_000, refuses_poison));
    }
    assert_eq!(delivery.aside().map(|it| it.event.clone()).collect::<Vec<_>>(), [later("g:bad", 1)]);
    let mut bad = sent.iter().flat_map(|(_, batch)| &batch.events);
    let last = bad.rfind(|event| event.conversation.as_str() == "g:bad").unwrap();
    assert_eq!((last.clone(), delivery.parked()), (later("g:bad", 6), 0), "it has caught up");
    assert!(notices(&mut delivery).contains(&WebhookNotice::Aside(later("g:bad", 1))));
}

#[test]
fn failing_endpoint_gets_one_probe_at_a_time_and_nothing_is_parked() {
    let events: Vec<_> = (0..12).map(|it| entry(&format!("g:{it}"), 1)).collect();
    let mut delivery = delivery(SETTINGS, &events);
    let sent = run(&mut delivery, 0, 3_600_000, |_| FAILED);
    assert_eq!((delivery.state(), delivery.parked()), (WebhookState::Failing, 0));
    assert_eq!(notices(&mut delivery), [WebhookNotice::Failing]);
    let probes: Vec<_> = sent.iter().filter(|(at, _)| *at > 10_000).collect();
    assert!(probes.iter().all(|(_, batch)| batch.events.len() == 1), "{probes:?}");
    assert!((12..90).contains(&probes.len()), "{} probes in an hour", probes.len());
    let now = 3_600_000 + 300_000;
    let probe = sends(&mut delivery, now);
    assert_eq!(probe.len(), 1);
    delivery.handle_outcome(probe[0].ticket, WebhookOutcome::Taken, at(now));
    assert_eq!(notices(&mut delivery), [WebhookNotice::Recovered]);
    for second in 0..4 {
        assert_eq!(sends(&mut delivery, now + second * 1_000).len(), 1, "lane after {second} s");
    }
}

#[test]
fn poison_of_a_quiet_endpoint_does_not_hide_that_it_works() {
    // Even where the queue of the lane has no other conversation: the delivery then looks past it.
    for batch_max in [4, 1] {
        let events = [entry("g:bad", 1), entry("g:bad", 2), entry("g:good", 1), entry("g:good", 2)];
        let settings = WebhookSettings { batch_max, ..ONE_LANE };
        let mut delivery = delivery(settings, &events);
        run(&mut delivery, 0, 60_000, refuses_poison);
        while let Some(read) = delivery.poll_read(at(60_000)) {
            let mut page = page(&events);
            page.items.drain(..usize::try_from(read.after).unwrap());
            page.after = read.after;
            delivery.handle_page(0, &page, at(60_000));
        }
        run(&mut delivery, 0, 400_000, refuses_poison);
        assert!(FAILING_AFTER > 1 && delivery.parked() == 1, "{batch_max}: {:?}", delivery.state());
        assert_eq!(cursor(&mut delivery, 400_000).lanes[0], 4, "{batch_max}");
    }
}

#[test]
fn receiver_decides_how_long_it_is_left_alone() {
    let mut delivery = delivery(SETTINGS, &[entry("g:a", 1)]);
    let first = sends(&mut delivery, 0).remove(0);
    delivery.handle_outcome(first.ticket, WebhookOutcome::Busy(Duration::from_secs(90)), at(0));
    assert!(sends(&mut delivery, 89_999).is_empty());
    let second = sends(&mut delivery, 90_000).remove(0);
    let ever = WebhookOutcome::Busy(Duration::MAX);
    delivery.handle_outcome(second.ticket, ever, at(90_000));
    let end = 90_000 + u64::try_from(RETRY_AFTER_MAX.as_millis()).unwrap();
    assert!(sends(&mut delivery, end - 1).is_empty());
    let third = sends(&mut delivery, end).remove(0);
    delivery.handle_outcome(third.ticket, WebhookOutcome::Gone, at(end));
    assert_eq!((delivery.state(), sends(&mut delivery, end * 2).len()), (WebhookState::Disabled, 0));
    let step = WebhookStep { number: 1, change: WebhookChange::Resume };
    delivery.handle_order(0, step, at(end));
    assert_eq!(sends(&mut delivery, end * 2).len(), 0, "the order is not saved");
    assert!(delivery.poll_save(at(end)).unwrap().is_durable);
    delivery.handle_save(0, true, at(end));
    assert_eq!(sends(&mut delivery, end * 2).len(), 1, "the cursor was kept");
}

#[test]
fn deliveries_wait_for_a_cursor_that_is_not_saved() {
    let events: Vec<_> = (1..=40).map(|seq| entry("g:a", seq)).collect();
    let settings = WebhookSettings { batch_max: 10, ..ONE_LANE };
    let mut delivery = delivery(settings, &events);
    let first = sends(&mut delivery, 0).remove(0);
    delivery.handle_outcome(first.ticket, WebhookOutcome::Taken, at(0));
    let save = delivery.poll_save(at(0) + SAVE_INTERVAL).unwrap();
    assert_eq!(WebhookCursor::decode(&save.bytes).unwrap().lanes, [10]);
    delivery.handle_save(0, false, at(1_000));
    assert!(sends(&mut delivery, 1_500).is_empty(), "the save failed");
    assert!(delivery.poll_save(at(1_999)).is_none());
    delivery.poll_save(at(2_000)).unwrap();
    delivery.handle_save(0, true, at(2_000));
    assert_eq!(sends(&mut delivery, 2_000).len(), 1);
}

#[test]
fn repeated_events_after_a_crash_are_bounded() {
    let events: Vec<_> = (1..=3_000).map(|seq| entry("g:a", seq)).collect();
    let settings = WebhookSettings { batch_max: 100, ..ONE_LANE };
    let mut delivery = delivery(settings, &events);
    let mut taken = 0;
    while let Some(batch) = delivery.poll_send(at(0)) {
        taken += batch.events.len() as u64;
        delivery.handle_outcome(batch.ticket, WebhookOutcome::Taken, at(0));
        delivery.handle_page(
            0,
            &WebhookPage {
                after: taken,
                end: 3_000,
                newest: 3_000,
                items: page(&events).items.split_off(usize::try_from(taken).unwrap()),
            },
            at(0),
        );
    }
    assert_eq!(taken, UNSAVED_MAX);
    assert!(delivery.poll_save(at(0)).is_some(), "the cursor is due at once");
}

#[test]
fn events_that_did_not_fit_stay_in_their_lane() {
    let mut delivery = delivery(ONE_LANE, &(1..=5).map(|seq| entry("g:a", seq)).collect::<Vec<_>>());
    let first = sends(&mut delivery, 0).remove(0);
    assert_eq!(first.events.len(), 5);
    delivery.handle_shortened(first.ticket, 2);
    delivery.handle_outcome(first.ticket, WebhookOutcome::Taken, at(0));
    let second = sends(&mut delivery, 0).remove(0);
    assert_eq!(second.events, [entry("g:a", 3), entry("g:a", 4), entry("g:a", 5)]);
}

#[test]
fn hand_over_waits_two_seconds_for_requests_in_flight() {
    let mut delivery = delivery(ONE_LANE, &[entry("g:a", 1), entry("g:a", 2)]);
    let sent = sends(&mut delivery, 0).remove(0);
    delivery.handle_release(0, at(100));
    assert!(delivery.poll_save(at(2_099)).is_none());
    delivery.handle_outcome(sent.ticket, WebhookOutcome::Taken, at(1_000));
    let save = delivery.poll_save(at(1_000)).unwrap();
    assert_eq!(WebhookCursor::decode(&save.bytes).unwrap().lanes, [2]);
    delivery.handle_save(0, true, at(1_000));
    assert_eq!(notices(&mut delivery), [WebhookNotice::Released(0)]);
    assert_eq!(delivery.poll_timeout(at(1_000)), None);
}

#[test]
fn other_number_of_lanes_starts_at_the_lowest_number() {
    let mut delivery = delivery(SETTINGS, &(0..9).map(|it| entry(&format!("g:{it}"), 1)).collect::<Vec<_>>());
    let sent = sends(&mut delivery, 0);
    assert!(sent.len() > 1, "several lanes");
    let last = sent.iter().find(|it| it.events[0].conversation.as_str() != "g:0").unwrap();
    delivery.handle_outcome(last.ticket, WebhookOutcome::Taken, at(0));
    delivery.handle_settings(ONE_LANE, at(0));
    assert_eq!((delivery.in_flight(), cursor(&mut delivery, 0).lanes), (0, vec![0]));
}

#[test]
fn hole_in_the_feed_is_reported_once() {
    let mut delivery = WebhookDelivery::new(SETTINGS, 7, 0);
    delivery.handle_owned(3, WebhookCursor::at(5, 4), at(0));
    delivery.handle_newest(3, 100);
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 5);
    delivery.handle_gap(3, &(6..=49), at(0));
    assert_eq!(notices(&mut delivery), [WebhookNotice::Gap { partition: 3, first: 6, last: 49 }]);
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 49);
    delivery.handle_gap(3, &(6..=49), at(0));
    assert_eq!(notices(&mut delivery), []);
}

#[test]
fn hole_is_reported_again_if_a_lane_that_is_behind_finds_it_to_begin_lower() {
    let mut delivery = WebhookDelivery::new(SETTINGS, 7, 0);
    let lanes = vec![50, 10, 50, 50];
    delivery.handle_owned(3, WebhookCursor { lanes, ..WebhookCursor::at(0, 4) }, at(0));
    delivery.handle_newest(3, 100);
    let gap = |first| [WebhookNotice::Gap { partition: 3, first, last: 99 }];
    for first in [51, 11] {
        assert_eq!(delivery.poll_read(at(0)).unwrap().after + 1, first);
        delivery.handle_gap(3, &(first..=99), at(0));
        assert_eq!(notices(&mut delivery), gap(first));
    }
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 99);
    delivery.handle_ahead(3, 40, at(0));
    delivery.handle_gap(3, &(41..=60), at(0));
    assert_eq!(notices(&mut delivery).len(), 1, "the store fell back to 40: these are other events");
}

#[test]
fn lane_waits_when_no_more_conversations_can_be_parked() {
    let parked = |nth: usize| ParkedConversation {
        conversation: entry(&format!("g:parked{nth}"), 1).conversation,
        next: 1,
        up_to: 1,
        pruned: 0,
        awaits_replay: false,
        tries: 20,
        failing: Duration::ZERO,
        refused: None,
    };
    let cursor = WebhookCursor { parked: (0..PARKED_MAX).map(parked).collect(), ..WebhookCursor::at(0, 1) };
    let mut delivery = WebhookDelivery::new(ONE_LANE, 7, 0);
    delivery.handle_owned(0, cursor, at(0));
    delivery.handle_owned(1, WebhookCursor::at(0, 1), at(0));
    delivery.handle_page(0, &page(&[entry("g:bad", 1), entry("g:good", 1)]), at(0));
    let mut bad = 0;
    for seq in 1..20 {
        // A second partition succeeds all the time.
        let mut good = page(&[entry("g:other", seq)]);
        (good.after, good.end, good.newest, good.items[0].number) = (seq - 1, seq, seq, seq);
        delivery.handle_page(1, &good, at(seq * 5_000));
        while let Some(batch) = delivery.poll_send(at(seq * 5_000)) {
            let is_other = batch.partition == 1;
            let outcome = if is_other { WebhookOutcome::Taken } else { FAILED };
            bad += u32::from(is_bad(&batch));
            delivery.handle_outcome(batch.ticket, outcome, at(seq * 5_000));
            while let Some(save) = delivery.poll_save(at(seq * 5_000)) {
                delivery.handle_save(save.partition, true, at(seq * 5_000));
            }
        }
    }
    assert_eq!((delivery.parked(), delivery.aside().count()), (PARKED_MAX, 0));
    assert!(bad > 3, "{bad} tries");
    assert_eq!((delivery.state(), delivery.behind()), (WebhookState::Active, 2), "the lane waits");
}

#[test]
fn pruning_of_a_parked_conversation_is_sent_last() {
    let mut events = with_poison();
    let pruned = WebhookEvent { kind: WebhookEventKind::Pruned, ..entry("g:bad", 4) };
    events.insert(9, pruned.clone());
    let mut delivery = delivery(ONE_LANE, &events);
    let mut tries = 0;
    let sent = run(&mut delivery, 0, 600_000, |batch| {
        tries += u32::from(is_bad(batch));
        if is_bad(batch) && tries < 9 { FAILED } else { WebhookOutcome::Taken }
    });
    let bad = sent.iter().flat_map(|(_, batch)| &batch.events);
    let mut bad: Vec<_> = bad.filter(|event| event.conversation.as_str() == "g:bad").cloned().collect();
    let last: Vec<_> = bad.split_off(bad.len() - 7);
    let mut expected: Vec<_> = (1..=6).map(|seq| later("g:bad", seq)).collect();
    expected.push(pruned);
    assert_eq!((last, delivery.parked()), (expected, 0));
}
