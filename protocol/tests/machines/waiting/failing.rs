//! Receivers that fail or refuse: how long they delay good notices, and what a full machine does.

use super::*;

/// Reads one message to bob in each of these conversations, from this number on.
fn read_each(machine: &mut Waiting, keys: &[String], first: u64, now: u64) {
    for (number, key) in (first..).zip(keys) {
        read(machine, key, number..=number, WaitingLook::Archived, now);
    }
}

fn bad(names: std::ops::Range<usize>) -> Vec<String> {
    names.map(|n| format!("g:bad{n:02}")).collect()
}

/// Returns the seconds after `since` until a good notice is taken, within two minutes.
fn good_after(machine: &mut Waiting, outcome: WaitingOutcome, since: u64) -> Option<u64> {
    (since..since + 120).find(|now| !judge(machine, outcome, *now).is_empty()).map(|now| now - since)
}

#[test]
fn fresh_refused_notices_ahead_of_a_good_one_are_probed_several_at_a_time() {
    const ROUNDS: usize = 4;
    let longest = (ROUNDS as u64 + 1) * ANSWERED_WAIT_MAX.as_secs();
    for is_refusing in [true, false] {
        let mut machine = owning();
        if is_refusing {
            read_each(&mut machine, &bad(90..91), 1, 0);
            assert!(judge(&mut machine, WaitingOutcome::Refused, 0).is_empty());
        }
        let mut keys = bad(0..ROUNDS * ALONE_MAX);
        keys.push("g:good".to_owned());
        read_each(&mut machine, &keys, 2, 0);
        if !is_refusing {
            // All are refused in one request.
            assert_eq!(round(&mut machine, WaitingOutcome::Refused, 0).len(), keys.len());
        }
        let taken = good_after(&mut machine, WaitingOutcome::Refused, 0);
        assert!(taken.is_some_and(|wait| wait <= longest), "{taken:?} of {longest} s");
    }
}

#[test]
fn probes_of_a_receiver_that_refuses_are_few_and_each_is_alone() {
    let mut machine = owning();
    read_each(&mut machine, &bad(0..1), 1, 0);
    assert_eq!(round(&mut machine, WaitingOutcome::Refused, 0).len(), 1);
    read_each(&mut machine, &bad(1..20), 2, 0);
    let probes = round(&mut machine, WaitingOutcome::Failed, 5);
    assert_eq!(probes.len(), ALONE_MAX);
    assert!(probes.iter().all(|it| it.is_alone && !it.has_failed), "{probes:?}");
    assert_eq!(machine.apart(), 1 + ALONE_MAX);
    assert_eq!(round(&mut machine, WaitingOutcome::Refused, 60).len(), 1, "it has stopped to answer");
    assert_eq!(round(&mut machine, WaitingOutcome::Refused, 120).len(), ALONE_MAX, "it answers again");
}

#[test]
fn notice_that_fails_delays_no_other_for_a_while_after_a_success() {
    let mut machine = owning();
    read(&mut machine, "g:good", 1..=1, WaitingLook::Archived, 0);
    assert_eq!(judge(&mut machine, WaitingOutcome::Failed, 0), [1]);
    read(&mut machine, "g:bad", 2..=2, WaitingLook::Archived, 1);
    // Tried after 256 s, and again after 512 s.
    let quiet = 400;
    assert!((1..quiet).all(|now| judge(&mut machine, WaitingOutcome::Failed, now).is_empty()));
    read(&mut machine, "g:good", 3..=3, WaitingLook::Archived, quiet);
    let taken = good_after(&mut machine, WaitingOutcome::Failed, quiet);
    assert!(taken.is_some_and(|wait| wait <= ANSWERED_WAIT_MAX.as_secs()), "{taken:?}");
    let late = quiet + 2 * SUCCESS_RECENT.as_secs();
    let tries =
        (quiet + 120..late).filter(|now| !round(&mut machine, WaitingOutcome::Failed, *now).is_empty());
    assert!(tries.count() < 10, "a receiver that is silent is probed seldom");
}

#[test]
fn full_machine_of_refused_notices_drops_some_and_reads_on() {
    const PART: usize = 512;
    let mut machine = owning();
    for number in 1..=(WAITING_MAX / PART) as u64 {
        let users = (0..PART).map(|n| to(&[&format!("u{number}-{n}")]).remove(0)).collect();
        machine.handle_archived(0, at(0));
        let (partition, after) = machine.poll_read(at(0)).unwrap();
        let messages = vec![(message(number, "g:bad", number), users)];
        let page = WaitingPage { after, end: number, messages, next: WaitingLook::Archived };
        machine.handle_page(partition, page, at(0));
    }
    machine.handle_archived(0, at(0));
    assert_eq!((machine.held(), machine.poll_read(at(0))), (WAITING_MAX, None));
    // Few rounds, each of which sorts all notices.
    let read_at = (1..3_600).step_by(60).find(|now| {
        judge(&mut machine, WaitingOutcome::Refused, *now);
        machine.poll_read(at(*now)).is_some()
    });
    let expected = REFUSED_MAX.as_secs()..2 * REFUSED_MAX.as_secs();
    assert!(read_at.is_some_and(|at| expected.contains(&at)), "{read_at:?}");
    assert!(machine.held() < WAITING_MAX && machine.apart() <= machine.held(), "{}", machine.held());
}

#[test]
fn lost_partition_takes_its_failed_notices_out_of_the_count() {
    let mut machine = owning();
    read_each(&mut machine, &bad(0..3), 1, 0);
    assert_eq!(round(&mut machine, WaitingOutcome::Refused, 0).len(), 3);
    assert_eq!(machine.apart(), 3);
    let pending = machine.poll_round(at(9)).unwrap();
    machine.handle_lost(0);
    machine.handle_round(pending.ticket, &[WaitingOutcome::Refused; 3], at(9));
    assert_eq!((machine.apart(), machine.held(), machine.poll_timeout(at(10))), (0, 0, None));
}
