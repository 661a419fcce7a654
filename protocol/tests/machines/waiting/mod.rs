//! Notices that messages wait: by example, and against a model with crashes, outages and reads in between.

mod failing;
mod model;

use std::time::Duration;

use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
    machine::waiting::{
        ANSWERED_WAIT_MAX, REFUSED_MAX, ROUND_MAX, SUCCESS_RECENT, WAITING_MAX, Waiting, WaitingLook,
        WaitingMessage, WaitingNotice, WaitingOutcome, WaitingPage, WaitingRecipient, WaitingSave,
        WaitingSettings,
    },
};

const REPEAT: Duration = Duration::from_secs(30);

const ALONE_MAX: usize = 4;

fn settings() -> WaitingSettings {
    WaitingSettings { repeat: REPEAT, failing_max: Duration::from_secs(86_400), alone_max: ALONE_MAX }
}

fn at(seconds: u64) -> Time {
    Time::from_millis(seconds * 1_000)
}

fn message(number: u64, key: &str, seq: u64) -> WaitingMessage {
    let (conversation, sender) = (ConversationId::parse(key).unwrap(), UserId::new("ann").unwrap());
    WaitingMessage { number, conversation, seq, time: number, sender }
}

fn to(users: &[&str]) -> Vec<WaitingRecipient> {
    let user = |name: &&str| WaitingRecipient { user: UserId::new(name).unwrap(), is_mentioned: false };
    users.iter().map(user).collect()
}

/// Machine that owns a partition, from whose feed messages to bob are read.
fn owning() -> Waiting {
    let mut machine = Waiting::new(settings());
    machine.handle_owned(0, 0, at(0));
    machine
}

/// Reads a page of messages to bob in one conversation, whose numbers are also seqs.
fn read(
    machine: &mut Waiting,
    key: &str,
    numbers: std::ops::RangeInclusive<u64>,
    next: WaitingLook,
    now: u64,
) {
    machine.handle_archived(0, at(now));
    let (partition, after) = machine.poll_read(at(now)).unwrap();
    let end = (*numbers.end()).max(after);
    let messages = numbers.map(|number| (message(number, key, number), to(&["bob"]))).collect();
    machine.handle_page(partition, WaitingPage { after, end, messages, next }, at(now));
}

/// Decides the next round with one outcome for all.
fn round(machine: &mut Waiting, outcome: WaitingOutcome, now: u64) -> Vec<WaitingNotice> {
    let Some(round) = machine.poll_round(at(now)) else { return Vec::new() };
    assert!(machine.poll_round(at(now)).is_none(), "one at a time");
    machine.handle_round(round.ticket, &vec![outcome; round.notices.len()], at(now));
    round.notices
}

/// Decides the next round: notices in conversations whose key begins with `g:bad` have that outcome, and the others are
/// taken. Returns the seqs of those.
fn judge(machine: &mut Waiting, bad: WaitingOutcome, now: u64) -> Vec<u64> {
    let Some(round) = machine.poll_round(at(now)) else { return Vec::new() };
    let is_bad = |it: &WaitingNotice| it.newest.conversation.as_str().starts_with("g:bad");
    let outcome = |it| if is_bad(it) { bad } else { WaitingOutcome::Noticed };
    let outcomes: Vec<WaitingOutcome> = round.notices.iter().map(outcome).collect();
    machine.handle_round(round.ticket, &outcomes, at(now));
    round.notices.iter().filter(|it| !is_bad(it)).map(|it| it.newest.seq).collect()
}

fn saved(machine: &mut Waiting, now: u64) -> Option<u64> {
    let save = machine.poll_save(at(now))?;
    machine.handle_save(save.partition, true, at(now));
    Some(save.number)
}

#[test]
fn messages_within_the_repeat_interval_are_one_notice_about_the_newest() {
    let mut machine = owning();
    read(&mut machine, "g:a", 1..=2, WaitingLook::Archived, 1);
    let first = round(&mut machine, WaitingOutcome::Noticed, 1);
    assert_eq!(first.iter().map(|it| (it.newest.seq, it.count)).collect::<Vec<_>>(), [(2, 2)]);
    read(&mut machine, "g:a", 3..=3, WaitingLook::Archived, 5);
    read(&mut machine, "g:a", 4..=4, WaitingLook::Archived, 9);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 30), []);
    assert_eq!(saved(&mut machine, 10), Some(2));
    assert_eq!(machine.poll_timeout(at(10)), Some(at(31)), "when it may be noticed again");
    let second = round(&mut machine, WaitingOutcome::Noticed, 31);
    let seqs = second.iter().map(|it| (it.oldest.seq, it.newest.seq, it.count));
    assert_eq!(seqs.collect::<Vec<_>>(), [(3, 4, 2)]);
    read(&mut machine, "g:b", 5..=5, WaitingLook::Archived, 32);
    assert_eq!(
        round(&mut machine, WaitingOutcome::Noticed, 32).len(),
        1,
        "another conversation does not wait"
    );
}

#[test]
fn number_that_is_saved_never_passes_a_notice_that_is_not_decided() {
    let mut machine = owning();
    read(&mut machine, "g:a", 1..=1, WaitingLook::Archived, 1);
    assert_eq!(saved(&mut machine, 1), None, "it is pending");
    let pending = machine.poll_round(at(1)).unwrap();
    assert_eq!(saved(&mut machine, 1), None, "it is being decided");
    machine.handle_round(pending.ticket, &[WaitingOutcome::Failed], at(1));
    assert_eq!(saved(&mut machine, 1), None, "it is pending again");
    read(&mut machine, "g:a", 2..=2, WaitingLook::Archived, 2);
    let again = round(&mut machine, WaitingOutcome::Settled, 2);
    assert_eq!((again[0].newest.seq, again[0].count, again[0].is_alone), (2, 2, true));
    assert_eq!(saved(&mut machine, 2), Some(2));
    read(&mut machine, "g:a", 3..=3, WaitingLook::Archived, 3);
    round(&mut machine, WaitingOutcome::Settled, 3);
    let save = machine.poll_save(at(4)).unwrap();
    machine.handle_save(save.partition, false, at(4));
    read(&mut machine, "g:a", 4..=4, WaitingLook::Archived, 4);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 4), [], "nothing is sent while saves fail");
    assert_eq!(saved(&mut machine, 5), Some(3));
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 5).len(), 1);
}

#[test]
fn partition_that_is_behind_is_read_before_it_is_decided() {
    let mut machine = owning();
    read(&mut machine, "g:a", 1..=5, WaitingLook::Now, 1);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 1), []);
    read(&mut machine, "g:a", 6..=9, WaitingLook::At(at(8)), 1);
    let notices = round(&mut machine, WaitingOutcome::Noticed, 1);
    assert_eq!(notices.iter().map(|it| (it.newest.seq, it.count)).collect::<Vec<_>>(), [(9, 9)]);
    assert_eq!(machine.poll_timeout(at(2)), Some(at(2)), "the number is to be saved");
    assert_eq!(saved(&mut machine, 2), Some(9));
    assert_eq!(machine.poll_timeout(at(2)), Some(at(8)), "the next entry is due");
}

#[test]
fn partition_that_is_far_behind_keeps_no_other_from_being_read() {
    let mut machine = owning();
    machine.handle_owned(1, 0, at(0));
    let read: Vec<u32> = (1..=3)
        .map(|now| {
            let (partition, after) = machine.poll_read(at(now)).unwrap();
            let page = WaitingPage { after, end: after + 1, messages: Vec::new(), next: WaitingLook::Now };
            machine.handle_page(partition, page, at(now));
            partition
        })
        .collect();
    assert_eq!(read, [0, 1, 0]);
}

#[test]
fn full_machine_stops_reading_and_decides_although_it_is_behind() {
    let mut machine = owning();
    let mut number = 0;
    while let Some((partition, after)) = machine.poll_read(at(1)) {
        number += 1;
        let users: Vec<WaitingRecipient> =
            (0..512).map(|n| to(&[&format!("u{number}-{n}")]).remove(0)).collect();
        let messages = vec![(message(number, "g:a", number), users)];
        machine.handle_page(
            partition,
            WaitingPage { after, end: number, messages, next: WaitingLook::Now },
            at(1),
        );
    }
    assert_eq!(machine.held(), WAITING_MAX);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 1).len(), ROUND_MAX);
    assert!(machine.poll_read(at(1)).is_some());
}

/// Machine with as many notices as it takes, all of which wait for a repeat interval of a day; those of `u0-…` the longest.
fn full_of_repeats() -> Waiting {
    const PART: usize = 512;
    let day = Duration::from_secs(86_400);
    let mut machine = Waiting::new(WaitingSettings { repeat: day, ..settings() });
    machine.handle_owned(0, 0, at(0));
    let parts = (WAITING_MAX / PART) as u64;
    for number in 1..=2 * parts {
        let part = (number - 1) % parts;
        let users = (0..PART).map(|n| to(&[&format!("u{part}-{n}")]).remove(0)).collect();
        machine.handle_archived(0, at(number));
        let (partition, after) = machine.poll_read(at(number)).unwrap();
        let messages = vec![(message(number, "g:a", number), users)];
        let page = WaitingPage { after, end: number, messages, next: WaitingLook::Archived };
        machine.handle_page(partition, page, at(number));
        while !round(&mut machine, WaitingOutcome::Noticed, number).is_empty() && number <= parts {}
    }
    machine
}

#[test]
fn full_machine_decides_those_early_that_wait_for_the_repeat_interval() {
    let mut machine = full_of_repeats();
    // The last page has filled it, and a round has gone early.
    assert_eq!(machine.held(), WAITING_MAX - ROUND_MAX);
    read(&mut machine, "g:new", 100..=100, WaitingLook::Archived, 100);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 100).len(), 1, "it is not full any more");
    let users: Vec<WaitingRecipient> = (0..ROUND_MAX).map(|n| to(&[&format!("new-{n}")]).remove(0)).collect();
    machine.handle_archived(0, at(101));
    let (partition, after) = machine.poll_read(at(101)).unwrap();
    let messages = vec![(message(101, "g:b", 101), users)];
    let page = WaitingPage { after, end: 101, messages, next: WaitingLook::Archived };
    machine.handle_page(partition, page, at(101));
    machine.handle_archived(0, at(101));
    assert_eq!(machine.poll_read(at(101)), None, "it is full");
    assert_eq!(machine.poll_timeout(at(101)), Some(at(101)));
    let failed = round(&mut machine, WaitingOutcome::Failed, 101);
    assert_eq!(failed.len(), ROUND_MAX);
    let probe = round(&mut machine, WaitingOutcome::Noticed, 110);
    assert_eq!(probe.len(), 1, "a full machine probes a receiver that fails with one that waits");
    assert!(machine.poll_read(at(110)).is_some());
}

#[test]
fn refused_notices_on_a_quiet_endpoint_delay_no_other() {
    let mut machine = owning();
    for (number, key) in (1..=5).zip(["g:bad1", "g:bad2", "g:bad3", "g:bad4", "g:bad5"]) {
        read(&mut machine, key, number..=number, WaitingLook::Archived, 0);
    }
    let mut tries = 0;
    for now in 0..1_200 {
        let notices = round(&mut machine, WaitingOutcome::Refused, now);
        tries += notices.len();
        assert!(notices.iter().all(|it| it.is_alone) || now == 0, "{now}");
    }
    assert!((5 * 10..5 * 20).contains(&tries), "each by its own delays: {tries}");
    for (good, now) in [(6, 1_200), (7, 1_300)] {
        read(&mut machine, "g:good", good..=good, WaitingLook::Archived, now);
        let mut taken = None;
        for later in now..now + 60 {
            let is_taken = !judge(&mut machine, WaitingOutcome::Refused, later).is_empty();
            taken = taken.or(is_taken.then_some(later - now));
        }
        assert!(taken.is_some_and(|wait| wait <= ANSWERED_WAIT_MAX.as_secs()), "{good}: {taken:?}");
    }
}

#[test]
fn failing_receiver_is_probed_with_one_notice_each_time_another_one() {
    let mut machine = owning();
    for (number, key) in (1..=5).zip(["g:a", "g:b", "g:c", "g:d", "g:e"]) {
        read(&mut machine, key, number..=number, WaitingLook::Archived, 1);
    }
    assert_eq!(round(&mut machine, WaitingOutcome::Failed, 1).len(), 5);
    assert!(machine.is_failing());
    let mut probed = Vec::new();
    for now in 2..200 {
        for notice in round(&mut machine, WaitingOutcome::Failed, now) {
            probed.push((now, notice.newest.seq));
        }
    }
    assert!((5..10).contains(&probed.len()), "{probed:?}");
    let seqs: Vec<u64> = probed.iter().map(|(_, seq)| *seq).collect();
    assert!(seqs[..5].windows(2).all(|two| two[0] != two[1]), "{seqs:?}");
    let mut now = 200;
    let mut taken = 0;
    while taken < 5 && now < 1_200 {
        taken += round(&mut machine, WaitingOutcome::Noticed, now).len();
        now += 1;
    }
    assert_eq!((taken, machine.is_failing()), (5, false), "one notice for each conversation");
}

#[test]
fn round_has_few_notices_that_have_failed_before_and_all_others() {
    let mut machine = owning();
    let users = |prefix: &str| -> Vec<WaitingRecipient> {
        (0..20).map(|n| to(&[&format!("{prefix}{n}")]).remove(0)).collect()
    };
    let page = |machine: &mut Waiting, number: u64, prefix: &str, now: u64| {
        machine.handle_archived(0, at(now));
        let (partition, after) = machine.poll_read(at(now)).unwrap();
        let messages = vec![(message(number, "g:a", number), users(prefix))];
        let page = WaitingPage { after, end: number, messages, next: WaitingLook::Archived };
        machine.handle_page(partition, page, at(now));
    };
    page(&mut machine, 1, "bad", 1);
    let first = machine.poll_round(at(1)).unwrap();
    let outcomes: Vec<WaitingOutcome> = (0..first.notices.len())
        .map(|n| if n == 0 { WaitingOutcome::Noticed } else { WaitingOutcome::Failed })
        .collect();
    machine.handle_round(first.ticket, &outcomes, at(1));
    page(&mut machine, 2, "good", 5);
    let second = round(&mut machine, WaitingOutcome::Noticed, 5);
    let alone = second.iter().filter(|it| it.is_alone).count();
    assert_eq!((alone, second.len() - alone), (ALONE_MAX, 20));
    assert_eq!(machine.poll_timeout(at(5)), Some(at(5)), "the rest follows at once");
    let rest: usize = (0..4).map(|_| round(&mut machine, WaitingOutcome::Noticed, 5).len()).sum();
    assert_eq!((rest, machine.held()), (19 - ALONE_MAX, 0));
}

#[test]
fn notice_has_the_messages_that_mention_the_user() {
    let mut machine = owning();
    machine.handle_archived(0, at(1));
    let (partition, after) = machine.poll_read(at(1)).unwrap();
    let messages = [(1, false), (2, true), (3, true), (4, false)].map(|(number, is_mentioned)| {
        let recipient = WaitingRecipient { is_mentioned, ..to(&["bob"]).remove(0) };
        (message(number, "g:a", number), vec![recipient])
    });
    let page = WaitingPage { after, end: 4, messages: messages.to_vec(), next: WaitingLook::Archived };
    machine.handle_page(partition, page, at(1));
    let notices = round(&mut machine, WaitingOutcome::Noticed, 1);
    let mentioned = notices[0].mentioned.map(|it| (it.oldest, it.newest));
    assert_eq!((notices[0].newest.seq, mentioned), (4, Some((2, 3))));
}

#[test]
fn notice_that_is_refused_while_others_succeed_is_dropped_in_the_end() {
    let mut machine = owning();
    read(&mut machine, "g:bad", 1..=1, WaitingLook::Archived, 0);
    let (mut dropped, mut number) = (None, 1);
    for now in 1..3_000 {
        if now % 20 == 0 {
            number += 1;
            read(&mut machine, "g:a", number..=number, WaitingLook::Archived, now);
        }
        let Some(round) = machine.poll_round(at(now)) else { continue };
        let is_bad = |it: &WaitingNotice| it.newest.conversation.as_str() == "g:bad";
        let outcome = |it| if is_bad(it) { WaitingOutcome::Refused } else { WaitingOutcome::Noticed };
        let outcomes: Vec<WaitingOutcome> = round.notices.iter().map(outcome).collect();
        for notice in machine.handle_round(round.ticket, &outcomes, at(now)) {
            assert_eq!((notice.user.as_str(), notice.conversation.as_str(), notice.seq), ("bob", "g:bad", 1));
            dropped = dropped.or(Some(now));
        }
    }
    let dropped = dropped.unwrap();
    assert!((REFUSED_MAX.as_secs()..REFUSED_MAX.as_secs() + 400).contains(&dropped), "{dropped}");
    assert!(saved(&mut machine, 3_000) > Some(1));
}

#[test]
fn notice_is_not_dropped_while_nothing_succeeds() {
    let mut machine = owning();
    read(&mut machine, "g:a", 1..=1, WaitingLook::Archived, 0);
    for now in 1..2_000 {
        if let Some(round) = machine.poll_round(at(now)) {
            assert_eq!(machine.handle_round(round.ticket, &[WaitingOutcome::Refused], at(now)), []);
        }
    }
    assert_eq!(machine.held(), 1);
}

#[test]
fn receiver_that_wants_nothing_is_left_alone_until_it_is_resumed() {
    let mut machine = owning();
    read(&mut machine, "g:a", 1..=1, WaitingLook::Archived, 1);
    assert_eq!(round(&mut machine, WaitingOutcome::Gone, 1).len(), 1);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 900), []);
    machine.handle_resumed();
    assert_eq!(round(&mut machine, WaitingOutcome::Busy(Duration::from_secs(20)), 900).len(), 1);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 919), [], "as long as it asked for");
    machine.handle_paused(true);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 920), []);
    machine.handle_paused(false);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 920).len(), 1);
}

#[test]
fn lost_partition_is_forgotten_and_its_round_has_no_effect() {
    let mut machine = owning();
    machine.handle_owned(1, 7, at(900));
    read(&mut machine, "g:a", 1..=1, WaitingLook::Archived, 1);
    let pending = machine.poll_round(at(1)).unwrap();
    machine.handle_lost(0);
    assert_eq!((machine.held(), machine.decided(0), machine.decided(1)), (0, None, Some(7)));
    machine.handle_owned(0, 0, at(2));
    machine.handle_round(pending.ticket, &[WaitingOutcome::Noticed], at(2));
    read(&mut machine, "g:a", 1..=1, WaitingLook::Archived, 2);
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 2).len(), 1, "decided again");
    read(&mut machine, "g:a", 2..=2, WaitingLook::Archived, 3);
    machine.handle_release(0, at(3));
    assert_eq!(machine.poll_save(at(3)), Some(WaitingSave { partition: 0, number: 1 }));
    assert_eq!(round(&mut machine, WaitingOutcome::Noticed, 60), [], "it is handed over");
}
