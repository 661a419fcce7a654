//! Tests of orders by example, and of what outcomes, outages and a store that falls back mean for them.

use std::time::Duration;
use tidegate_protocol::machine::webhook::{
    ParkedConversation, REFUSED_ASIDE, WebhookAside, WebhookBatch, WebhookChange, WebhookCursor,
    WebhookDelivery, WebhookEvent, WebhookEventKind, WebhookFailure, WebhookNotice, WebhookOutcome,
    WebhookPage, WebhookSave, WebhookSettings, WebhookState, WebhookStep,
};

use super::{SETTINGS, at, delivery, entry, page, sends};

const FAILED: WebhookOutcome = WebhookOutcome::Failed(WebhookFailure::Timeout);

const ONE_LANE: WebhookSettings = WebhookSettings { parallel: 1, ..SETTINGS };

fn later(conversation: &str, seq: u64) -> WebhookEvent {
    WebhookEvent { kind: WebhookEventKind::Entry, ..entry(conversation, seq) }
}

fn replay(number: u64, after: u64) -> WebhookStep {
    WebhookStep { number, change: WebhookChange::Replay { after } }
}

/// Returns a delivery that continues from the cursor, and has read these events.
fn restarted(settings: WebhookSettings, cursor: WebhookCursor, events: &[WebhookEvent]) -> WebhookDelivery {
    let mut delivery = WebhookDelivery::new(settings, 7, 0);
    delivery.handle_owned(0, cursor, at(0));
    if !events.is_empty() {
        delivery.handle_page(0, &page(events), at(0));
    }
    delivery
}

fn save(delivery: &mut WebhookDelivery, now: u64) -> WebhookSave {
    let save = delivery.poll_save(at(now)).unwrap();
    delivery.handle_save(save.partition, true, at(now));
    save
}

fn cursor(save: &WebhookSave) -> WebhookCursor {
    WebhookCursor::decode(&save.bytes).unwrap()
}

fn take(delivery: &mut WebhookDelivery, batch: &WebhookBatch, now: u64) {
    delivery.handle_outcome(batch.ticket, WebhookOutcome::Taken, at(now));
}

fn events(conversation: &str, seqs: std::ops::RangeInclusive<u64>) -> Vec<WebhookEvent> {
    seqs.map(|seq| entry(conversation, seq)).collect()
}

#[test]
fn replay_begins_after_the_requests_in_flight_and_once_it_is_durable() {
    let all = events("g:a", 1..=6);
    let mut delivery = delivery(ONE_LANE, &all);
    let sent = sends(&mut delivery, 0).remove(0);
    delivery.handle_order(0, replay(3, 2), at(10));
    assert_eq!(delivery.last_order(0), Some(3));
    take(&mut delivery, &sent, 20);
    assert!(sends(&mut delivery, 20).is_empty(), "its effect is not saved");
    let saved = delivery.poll_save(at(20)).unwrap();
    assert!(saved.is_durable);
    assert_eq!((cursor(&saved).lanes, cursor(&saved).last_order), (vec![2], 3));
    delivery.handle_save(0, false, at(20));
    assert!(delivery.poll_save(at(1_019)).is_none(), "tried again later");
    assert!(save(&mut delivery, 1_020).is_durable);
    assert_eq!(delivery.poll_read(at(1_020)).unwrap().after, 2);
    let rest = WebhookPage { after: 2, items: page(&all).items.split_off(2), ..page(&all) };
    delivery.handle_page(0, &rest, at(1_020));
    assert_eq!(sends(&mut delivery, 1_020).remove(0).events, events("g:a", 3..=6));
}

#[test]
fn order_is_carried_out_once_whatever_crashes() {
    let all = events("g:a", 1..=4);
    let mut delivery = delivery(ONE_LANE, &all);
    let sent = sends(&mut delivery, 0).remove(0);
    take(&mut delivery, &sent, 0);
    let before = cursor(&save(&mut delivery, 1_000));
    // A crash before the order is saved: the cursor does not have it.
    let mut second = restarted(ONE_LANE, before, &[]);
    second.handle_order(0, replay(1, 0), at(0));
    let after = cursor(&save(&mut second, 0));
    assert_eq!(after.lanes, [0]);
    // A crash after it, and after the replay.
    let mut third = restarted(ONE_LANE, after, &all);
    third.handle_order(0, replay(1, 0), at(0));
    let sent = sends(&mut third, 0).remove(0);
    take(&mut third, &sent, 0);
    let done = cursor(&save(&mut third, 1_000));
    let mut fourth = restarted(ONE_LANE, done, &[]);
    fourth.handle_order(0, replay(1, 0), at(0));
    assert!(fourth.poll_save(at(0)).is_none() && fourth.poll_read(at(0)).is_none(), "not repeated");
    assert_eq!((fourth.last_order(0), fourth.last_order(9)), (Some(1), None));
}

fn parked(conversation: &str, next: u64, up_to: u64) -> ParkedConversation {
    ParkedConversation {
        conversation: entry(conversation, 1).conversation,
        next,
        up_to,
        pruned: 0,
        awaits_replay: false,
        tries: 3,
        failing: Duration::ZERO,
        refused: None,
    }
}

#[test]
fn replay_repeats_what_a_parked_conversation_had_taken() {
    let all = [events("g:a", 1..=4), events("g:b", 1..=1)].concat();
    let cursor = WebhookCursor { parked: vec![parked("g:a", 4, 4)], ..WebhookCursor::at(5, 1) };
    let mut delivery = restarted(ONE_LANE, cursor, &[]);
    delivery.handle_order(0, replay(1, 1), at(0));
    save(&mut delivery, 0);
    let rest = WebhookPage { after: 1, items: page(&all).items.split_off(1), ..page(&all) };
    delivery.handle_page(0, &rest, at(0));
    let mut taken = Vec::new();
    while let Some(batch) = delivery.poll_send(at(0)) {
        take(&mut delivery, &batch, 0);
        taken.extend(batch.events.into_iter().map(|it| (it.conversation.to_string(), it.seq)));
    }
    taken.sort();
    let expected = [("g:a", 2), ("g:a", 3), ("g:a", 4), ("g:b", 1)].map(|(key, seq)| (key.to_owned(), seq));
    assert_eq!((taken.as_slice(), delivery.parked()), (&expected[..], 0));
}

#[test]
fn replay_that_meets_a_request_in_flight_goes_back_before_it() {
    let all = events("g:a", 1..=4);
    let cursor = WebhookCursor { parked: vec![parked("g:a", 4, 4)], ..WebhookCursor::at(5, 1) };
    let mut delivery = restarted(ONE_LANE, cursor, &[]);
    delivery.handle_order(0, replay(1, 1), at(0));
    save(&mut delivery, 0);
    let former = sends(&mut delivery, 0).remove(0);
    assert_eq!(former.events, [later("g:a", 4)]);
    let rest = WebhookPage { after: 1, items: page(&all).items.split_off(1), ..page(&all) };
    delivery.handle_page(0, &rest, at(0));
    take(&mut delivery, &former, 0);
    assert_eq!(sends(&mut delivery, 0).remove(0).events, [later("g:a", 2)]);
}

#[test]
fn replay_from_behind_skips_what_is_parked() {
    let cursor = WebhookCursor { parked: vec![parked("g:a", 2, 4)], ..WebhookCursor::at(5, 1) };
    let mut delivery = restarted(ONE_LANE, cursor, &[]);
    delivery.handle_order(0, replay(1, 9), at(0));
    assert_eq!((delivery.parked(), save(&mut delivery, 0).partition), (0, 0));
    assert!(sends(&mut delivery, 400_000).is_empty());
}

#[test]
fn event_set_aside_is_dropped_by_order_and_by_a_late_success() {
    let aside = |seq: u64| WebhookAside {
        event: later("g:a", seq),
        tries: 9,
        at_ms: 5,
        failure: WebhookFailure::Status(400),
    };
    let kept = WebhookAside {
        event: WebhookEvent { kind: WebhookEventKind::Pruned, ..entry("g:a", 2) },
        ..aside(2)
    };
    let all = vec![aside(1), aside(2), kept.clone()];
    let cursor_before = WebhookCursor { aside: all, last_order: 4, ..WebhookCursor::at(0, 1) };
    let mut delivery = restarted(ONE_LANE, cursor_before, &events("g:a", 1..=2));
    let conversation = entry("g:a", 1).conversation;
    let drop = WebhookStep { number: 5, change: WebhookChange::Drop { conversation, seq: 1 } };
    delivery.handle_order(0, drop, at(0));
    assert_eq!(cursor(&save(&mut delivery, 0)).aside.len(), 2);
    let sent = sends(&mut delivery, 0).remove(0);
    take(&mut delivery, &sent, 0);
    assert_eq!(cursor(&save(&mut delivery, 1_000)).aside, [kept], "the other was taken in a replay");
}

#[test]
fn receiver_that_wants_no_events_gets_none_after_a_restart_until_an_order_resumes() {
    let mut delivery = delivery(SETTINGS, &events("g:a", 1..=2));
    let sent = sends(&mut delivery, 0).remove(0);
    delivery.handle_outcome(sent.ticket, WebhookOutcome::Gone, at(0));
    assert_eq!(delivery.poll_notice(), Some(WebhookNotice::Disabled));
    let saved = cursor(&save(&mut delivery, 1_000));
    assert!(saved.is_disabled);
    let mut delivery = restarted(SETTINGS, saved, &events("g:a", 1..=2));
    assert_eq!((delivery.state(), sends(&mut delivery, 0).len()), (WebhookState::Disabled, 0));
    let resume = WebhookStep { number: 1, change: WebhookChange::Resume };
    delivery.handle_order(0, resume, at(0));
    assert!(!cursor(&save(&mut delivery, 0)).is_disabled);
    assert_eq!((delivery.state(), sends(&mut delivery, 0).len()), (WebhookState::Active, 1));
}

#[test]
fn events_that_are_not_wanted_say_nothing_about_the_receiver() {
    let all: Vec<_> = (0..12).map(|it| entry(&format!("g:{it}"), 1)).collect();
    let mut delivery = delivery(ONE_LANE, &all);
    let mut now = 0;
    while delivery.state() == WebhookState::Active {
        if let Some(batch) = delivery.poll_send(at(now)) {
            delivery.handle_outcome(batch.ticket, FAILED, at(now));
        }
        now += 10;
    }
    now += 300_000;
    let probe = sends(&mut delivery, now).remove(0);
    delivery.handle_outcome(probe.ticket, WebhookOutcome::Passed, at(now));
    assert_eq!(delivery.state(), WebhookState::Failing, "nothing was sent");
    let next = sends(&mut delivery, now).remove(0);
    assert_ne!(next.events, probe.events, "the next probe follows at once");
    take(&mut delivery, &next, now);
    assert_eq!((delivery.state(), delivery.events()), (WebhookState::Active, 10));
}

/// Takes everything of `g:good` and refuses the rest.
fn run_refusing(delivery: &mut WebhookDelivery, times: impl Iterator<Item = u64>, is_up: bool) {
    for now in times {
        while let Some(batch) = delivery.poll_send(at(now)) {
            let is_good = batch.events.iter().all(|event| event.conversation.as_str() == "g:good");
            let outcome = match (is_up, is_good) {
                (true, true) => WebhookOutcome::Taken,
                (true, false) => WebhookOutcome::Failed(WebhookFailure::Status(500)),
                (false, _) => FAILED,
            };
            delivery.handle_outcome(batch.ticket, outcome, at(now));
        }
        while let Some(save) = delivery.poll_save(at(now)) {
            delivery.handle_save(save.partition, true, at(now));
        }
    }
}

#[test]
fn outage_does_not_count_as_time_in_which_an_event_failed() {
    let hour = 3_600_000;
    let aside_after = Duration::from_secs(24 * 3_600);
    let cursor = WebhookCursor { parked: vec![parked("g:bad", 1, 1)], ..WebhookCursor::at(0, 1) };
    let mut delivery = restarted(WebhookSettings { aside_after, ..ONE_LANE }, cursor, &[]);
    let mut number = 0;
    let mut good = |delivery: &mut WebhookDelivery, now: u64| {
        number += 1;
        let mut page = page(&[entry("g:good", number)]);
        (page.after, page.end, page.newest, page.items[0].number) = (number - 1, number, number, number);
        delivery.handle_page(0, &page, at(now));
    };
    // Works, is down for 40 hours, and works again.
    good(&mut delivery, 0);
    run_refusing(&mut delivery, 0..1, true);
    run_refusing(&mut delivery, (1..40).map(|it| it * hour), false);
    for minute in 0..10 {
        let now = 40 * hour + minute * 60_000;
        good(&mut delivery, now);
        run_refusing(&mut delivery, now..=now + 1, true);
    }
    assert_eq!((delivery.aside().count(), delivery.parked()), (0, 1), "it failed for ten minutes only");
    for minute in 10..26 * 60 {
        let now = 40 * hour + minute * 60_000;
        good(&mut delivery, now);
        run_refusing(&mut delivery, now..=now + 1, true);
    }
    let aside: Vec<_> = delivery.aside().cloned().collect();
    assert_eq!((aside.len(), delivery.parked()), (1, 0));
    assert_eq!(aside[0].failure, WebhookFailure::Status(500));
    assert!(aside[0].at_ms > 63 * hour, "{aside:?}");
    assert!(REFUSED_ASIDE < aside_after);
}

#[test]
fn store_that_falls_back_is_waited_for_and_what_comes_again_is_delivered_again() {
    let settings = WebhookSettings { parallel: 4, ..SETTINGS };
    let all: Vec<_> = (0..12).map(|it| entry(&format!("g:{it}"), 1)).collect();
    let mut delivery = delivery(settings, &all);
    let first = sends(&mut delivery, 0).remove(0);
    take(&mut delivery, &first, 0);
    // The store has 5 of the 12.
    delivery.handle_newest(0, 5);
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 12, "a read decides");
    delivery.handle_ahead(0, 5, at(0));
    assert_eq!((delivery.in_flight(), delivery.poll_read(at(0))), (0, None));
    for now in (1_000..5_000).step_by(500) {
        assert_eq!(delivery.poll_read(at(now)), None, "nothing to read at {now}");
    }
    delivery.handle_newest(0, 12);
    let mut reads = 0;
    while let Some(read) = delivery.poll_read(at(5_000)) {
        let items = page(&all).items.split_off(usize::try_from(read.after).unwrap());
        delivery.handle_page(0, &WebhookPage { after: read.after, items, ..page(&all) }, at(5_000));
        reads += 1;
        assert!(reads < 10, "a loop");
    }
    let mut taken = Vec::new();
    while let Some(batch) = delivery.poll_send(at(9_000)) {
        take(&mut delivery, &batch, 9_000);
        taken.extend(batch.events);
    }
    assert!(all[5..].iter().all(|event| taken.contains(event)), "{taken:?}");
}

#[test]
fn page_that_shows_less_than_before_ends_the_reading_until_more_comes() {
    let mut delivery = WebhookDelivery::new(ONE_LANE, 7, 0);
    delivery.handle_owned(0, WebhookCursor::at(5, 1), at(0));
    delivery.handle_newest(0, 100);
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 5);
    let page = WebhookPage { after: 5, end: 5, newest: 5, items: Vec::new() };
    delivery.handle_page(0, &page, at(0));
    assert_eq!(delivery.poll_read(at(0)), None);
    delivery.handle_newest(0, 6);
    assert_eq!(delivery.poll_read(at(0)).unwrap().after, 5);
}

#[test]
fn smaller_batches_are_in_force_at_once() {
    let mut delivery = delivery(ONE_LANE, &events("g:a", 1..=8));
    delivery.handle_settings(WebhookSettings { batch_max: 1, ..ONE_LANE }, at(0));
    assert_eq!(sends(&mut delivery, 0).remove(0).events.len(), 1);
}

#[test]
fn request_that_fails_after_batches_got_smaller_is_not_repeated_larger_than_they_are() {
    let mut delivery = delivery(ONE_LANE, &events("g:a", 1..=4));
    let sent = sends(&mut delivery, 0).remove(0);
    assert_eq!(sent.events.len(), 4);
    delivery.handle_settings(WebhookSettings { batch_max: 1, ..ONE_LANE }, at(10));
    delivery.handle_outcome(sent.ticket, FAILED, at(20));
    let again = sends(&mut delivery, 2_000).remove(0);
    assert_eq!(again.events, events("g:a", 1..=1));
}
