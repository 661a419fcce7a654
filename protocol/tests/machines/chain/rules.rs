//! Rules of the nextId chain: the failures of S37, each by name, and the limits and promises around them.

use super::{LIMITS, T0, id, release};
use tidegate_protocol::{
    Time,
    id::MsgId,
    machine::chain::{Chain, ChainAlarm, Offer},
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn chain(first: u32) -> Chain<u32> {
    Chain::new(id(first), LIMITS)
}

/// Offers message `n` of the chain m0 → m1 → m2 …
fn offer(chain: &mut Chain<u32>, n: u32, now: Time) -> Offer<u32> {
    chain.offer(id(n), id(n + 1), n, 10, now)
}

#[test]
fn a_lost_frame_is_skipped_by_name_after_an_alarm() {
    let mut chain = chain(0);
    assert_eq!(offer(&mut chain, 2, at(5)), Offer::Held);
    assert_eq!(offer(&mut chain, 1, at(50)), Offer::Held);
    assert_eq!(chain.poll_timeout(), Some(at(105)));
    assert_eq!(chain.handle_timeout(at(104)), None);
    assert_eq!(chain.handle_timeout(at(105)), Some(ChainAlarm::Blocked { expected: id(0) }));
    assert_eq!(chain.handle_timeout(at(204)), None, "the alarm is raised once");
    let skipped = ChainAlarm::Skipped { expected: id(0), resumed_at: id(1) };
    assert_eq!(chain.handle_timeout(at(205)), Some(skipped), "m2 arrived first, but m1 leads to it");
    assert_eq!(release(&mut chain, at(206)), [1, 2]);
    assert_eq!(offer(&mut chain, 0, at(300)), Offer::Skipped(0), "permanently refused");
    assert_eq!(offer(&mut chain, 3, at(301)), Offer::Ready, "the chain continues");
}

#[test]
fn a_late_sweep_still_raises_the_alarm_before_it_skips() {
    let mut chain = chain(0);
    offer(&mut chain, 1, T0);
    assert!(matches!(chain.handle_timeout(at(10_000)), Some(ChainAlarm::Blocked { .. })));
    assert_eq!(chain.poll_timeout(), Some(at(10_100)));
}

#[test]
fn two_devices_have_two_chains_and_a_fork_in_one_is_refused() {
    let (mut phone, mut desk) = (chain(0), chain(0));
    for device in [&mut phone, &mut desk] {
        assert_eq!(offer(device, 0, T0), Offer::Ready);
        assert_eq!(offer(device, 1, T0), Offer::Held, "m0 is ready and not yet released");
        assert_eq!(release(device, T0), [0, 1], "the chains are independent");
    }
    assert_eq!(phone.offer(id(50), id(2), 50, 1, T0), Offer::BadLink(50), "m1 leads to m2 already");
    assert_eq!(phone.offer(id(60), id(61), 60, 1, T0), Offer::Held);
    assert_eq!(phone.offer(id(70), id(61), 70, 1, T0), Offer::BadLink(70), "m60 leads to m61 already");
}

#[test]
fn the_retry_of_a_released_id_is_done_and_never_held() {
    let mut chain = chain(0);
    offer(&mut chain, 0, T0);
    assert_eq!(release(&mut chain, T0), [0]);
    assert_eq!(offer(&mut chain, 0, T0), Offer::Done(0));
    assert_eq!((chain.held(), chain.expected()), (0, &id(1)));
    let mut later = Chain::resume(id(1), [id(0)], LIMITS);
    assert_eq!(offer(&mut later, 0, T0), Offer::Done(0), "also at the next login");
}

#[test]
fn lost_state_and_reordered_frames_do_not_get_stuck() {
    let mut adopted = chain(5);
    assert_eq!(offer(&mut adopted, 6, T0), Offer::Held);
    assert_eq!(offer(&mut adopted, 5, T0), Offer::Ready, "the declared id was adopted");
    assert_eq!(release(&mut adopted, T0), [5, 6]);

    let mut wrong = Chain::new(MsgId::new("fresh").expect("well formed"), LIMITS);
    assert_eq!(offer(&mut wrong, 6, T0), Offer::Held);
    assert_eq!(offer(&mut wrong, 5, T0), Offer::Held);
    wrong.handle_timeout(at(100));
    assert!(matches!(wrong.handle_timeout(at(200)), Some(ChainAlarm::Skipped { .. })));
    assert_eq!(release(&mut wrong, at(200)), [5, 6], "the id was not declared, the skip finds it");
}

#[test]
fn a_declared_id_that_is_not_saved_as_done_is_adopted() {
    let mut chain = Chain::adopt(id(7), id(3), [id(1), id(2)], LIMITS);
    assert_eq!(offer(&mut chain, 8, T0), Offer::Held);
    assert_eq!(offer(&mut chain, 2, T0), Offer::Done(2), "a done id stays done");
    assert_eq!(offer(&mut chain, 7, T0), Offer::Ready);
    assert_eq!(release(&mut chain, T0), [7, 8]);
}

#[test]
fn adopted_id_that_was_skipped_yields_to_the_saved_one() {
    let mut chain = Chain::adopt(id(1), id(4), [id(0), id(2), id(3)], LIMITS);
    assert_eq!(offer(&mut chain, 4, T0), Offer::Held);
    assert_eq!(offer(&mut chain, 1, T0), Offer::Skipped(1), "m2, its successor, is done");
    assert_eq!(release(&mut chain, T0), [4]);
    assert_eq!(offer(&mut chain, 1, T0), Offer::Skipped(1), "permanently");
    assert_eq!(chain.expected(), &id(5));
    assert_eq!(chain.offer(id(5), id(2), 5, 1, T0), Offer::BadLink(5), "it yields once");
}

#[test]
fn message_that_links_to_itself_or_in_a_cycle_is_refused() {
    let mut chain = chain(0);
    assert_eq!(chain.offer(id(0), id(0), 0, 1, T0), Offer::BadLink(0));
    assert_eq!(chain.offer(id(7), id(7), 7, 1, T0), Offer::BadLink(7));
    assert_eq!(chain.offer(id(7), id(8), 7, 1, T0), Offer::Held);
    assert_eq!(chain.offer(id(8), id(9), 8, 1, T0), Offer::Held);
    assert_eq!(chain.offer(id(9), id(7), 9, 1, T0), Offer::BadLink(9));
    assert_eq!(chain.offer(id(9), id(0), 9, 1, T0), Offer::BadLink(9), "the expected id is taken as well");
    assert_eq!(offer(&mut chain, 0, T0), Offer::Ready, "m0 can still arrive");
    assert_eq!(release(&mut chain, T0), [0]);
    assert_eq!(chain.offer(id(1), id(0), 1, 1, T0), Offer::BadLink(1), "m0 was used");
}

#[test]
fn a_withheld_id_cannot_fill_memory() {
    let mut by_count = chain(0);
    for n in 1..=8 {
        assert_eq!(offer(&mut by_count, n, T0), Offer::Held);
    }
    for n in 9..10_000 {
        assert_eq!(offer(&mut by_count, n, T0), Offer::Full { item: n, expected: id(0) });
    }
    assert_eq!(by_count.held(), 8);
    assert_eq!(offer(&mut by_count, 0, T0), Offer::Ready, "the expected id always fits");
    assert_eq!(release(&mut by_count, T0), [0, 1, 2, 3, 4, 5, 6, 7, 8]);

    let mut by_bytes = chain(0);
    assert_eq!(by_bytes.offer(id(1), id(2), 1, 600, T0), Offer::Held);
    assert!(matches!(by_bytes.offer(id(2), id(3), 2, 401, T0), Offer::Full { .. }));
    assert_eq!(by_bytes.offer(id(2), id(3), 2, 400, T0), Offer::Held);
    assert_eq!(by_bytes.held_bytes(), 1_000);
}

#[test]
fn a_message_larger_than_the_whole_hold_is_held_alone() {
    let mut chain = chain(0);
    assert_eq!(chain.offer(id(1), id(2), 1, 5_000, T0), Offer::Held);
    assert!(matches!(chain.offer(id(2), id(3), 2, 1, T0), Offer::Full { .. }));
}

#[test]
fn held_id_that_is_resent_is_not_held_twice() {
    let mut chain = chain(0);
    assert_eq!(offer(&mut chain, 1, T0), Offer::Held);
    assert_eq!(offer(&mut chain, 1, T0), Offer::Waiting(1));
    assert_eq!(chain.held(), 1);
}

#[test]
fn retracted_id_is_expected_again_and_successors_stay_held() {
    let mut chain = chain(0);
    offer(&mut chain, 1, T0);
    offer(&mut chain, 0, T0);
    assert_eq!(chain.poll_release(at(10)), Some(0));
    assert!(chain.retract(&id(0), at(10)));
    assert!(!chain.retract(&id(0), at(10)), "once");
    assert_eq!((chain.expected(), chain.held(), chain.is_ready()), (&id(0), 1, false));
    assert_eq!(chain.poll_timeout(), Some(at(110)), "the client gets the whole timeout to resend");
    assert_eq!(offer(&mut chain, 0, at(20)), Offer::Ready);
    assert_eq!(release(&mut chain, at(20)), [0, 1]);
    assert!(!chain.retract(&id(0), at(20)), "m1 was released after it");
}

#[test]
fn release_cannot_be_retracted_after_a_skip() {
    let mut chain = chain(0);
    offer(&mut chain, 2, T0);
    offer(&mut chain, 0, T0);
    assert_eq!(release(&mut chain, T0), [0]);
    chain.handle_timeout(at(100));
    assert!(matches!(chain.handle_timeout(at(200)), Some(ChainAlarm::Skipped { .. })));
    assert!(!chain.retract(&id(0), at(200)));
}

#[test]
fn late_message_linking_to_the_resumed_id_is_skipped_too() {
    let mut chain = chain(0);
    offer(&mut chain, 3, T0);
    chain.handle_timeout(at(100));
    chain.handle_timeout(at(200));
    assert_eq!(release(&mut chain, at(200)), [3]);
    assert_eq!(offer(&mut chain, 2, at(200)), Offer::Skipped(2));
    assert_eq!(offer(&mut chain, 2, at(200)), Offer::Skipped(2));
}

#[test]
fn timeout_counts_from_the_last_progress() {
    let mut chain = chain(0);
    offer(&mut chain, 5, T0);
    for n in 0..4 {
        let now = at(90 * u64::from(n + 1));
        assert_eq!(offer(&mut chain, n, now), Offer::Ready);
        assert_eq!(release(&mut chain, now), [n]);
        assert_eq!(chain.handle_timeout(now), None);
    }
    assert_eq!(chain.poll_timeout(), Some(at(460)));
}

#[test]
fn chain_is_blocked_since_its_last_progress_whatever_was_alarmed() {
    let mut chain = chain(0);
    assert_eq!(chain.blocked_since(), None, "nothing is held");
    offer(&mut chain, 1, at(10));
    offer(&mut chain, 3, at(20));
    assert_eq!(chain.blocked_since(), Some(at(10)));
    assert!(matches!(chain.handle_timeout(at(110)), Some(ChainAlarm::Blocked { .. })));
    assert_eq!(chain.blocked_since(), Some(at(10)), "an alarm is no progress");
    offer(&mut chain, 0, at(120));
    assert_eq!(chain.blocked_since(), None, "one is ready");
    assert_eq!(release(&mut chain, at(130)), [0, 1]);
    assert_eq!(chain.blocked_since(), Some(at(130)), "3 waits for 2");
    chain.handle_timeout(at(230));
    assert!(matches!(chain.handle_timeout(at(330)), Some(ChainAlarm::Skipped { .. })));
    assert_eq!(chain.blocked_since(), None, "3 is ready");
}

#[test]
fn saved_state_with_its_expected_id_as_done_is_repaired() {
    let mut chain = Chain::resume(id(3), [id(2), id(3)], LIMITS);
    assert_eq!(offer(&mut chain, 3, T0), Offer::Ready);
}

#[test]
fn memory_of_done_ids_is_bounded() {
    let mut chain = chain(0);
    for n in 0..1_000 {
        offer(&mut chain, n, T0);
        assert_eq!(release(&mut chain, T0), [n]);
    }
    assert_eq!(offer(&mut chain, 999, T0), Offer::Done(999));
    assert_eq!(offer(&mut chain, 744, T0), Offer::Done(744));
    assert_eq!(offer(&mut chain, 742, T0), Offer::Held, "no longer remembered, nor is its successor");
}
