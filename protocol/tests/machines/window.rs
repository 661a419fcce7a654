//! Tests of the window of unacked pushes: by example, and against a naive model.

use proptest::prelude::*;
use std::{collections::BTreeMap, time::Duration};
use tidegate_protocol::{
    Time,
    id::{ConversationId, GroupId},
    machine::window::{Tracked, Verdict, Window, WindowLimits},
};

const LIMITS: WindowLimits =
    WindowLimits { count_max: 6, bytes_max: 100, ack_timeout: Duration::from_millis(50), tries: 3 };
const T0: Time = Time::ZERO;

fn group(n: u8) -> ConversationId {
    ConversationId::group(&GroupId::new(&format!("g{n}")).expect("well formed"))
}

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

#[test]
fn ack_covers_all_lower_seqs_of_its_conversation_only() {
    let mut window = Window::new(LIMITS);
    for seq in 1..=3 {
        assert_eq!(window.track(&group(1), seq, seq, 1, T0), Tracked::Ok);
    }
    window.track(&group(2), 1, 100, 1, T0);
    window.ack(&group(1), 2);
    assert_eq!(window.len(), 2);
    window.ack(&group(1), 1);
    window.ack(&group(9), 7);
    assert_eq!(window.len(), 2, "lower and unknown acks have no effect");
    let mut resend = Vec::new();
    assert_eq!(window.handle_timeout(at(50), &mut resend), Verdict::Fine);
    resend.sort_unstable();
    assert_eq!(resend, [3, 100]);
}

#[test]
fn ack_names_when_the_push_was_sent_unless_it_was_resent() {
    let mut window = Window::new(LIMITS);
    window.track(&group(1), 1, 1, 1, at(7));
    window.track(&group(1), 2, 2, 1, at(9));
    assert_eq!(window.ack(&group(2), 9), None, "unknown");
    assert_eq!(window.ack(&group(1), 2), Some(at(9)), "the newest that it covers");
    assert_eq!(window.ack(&group(1), 2), None, "acked before");
    window.track(&group(1), 3, 3, 1, at(10));
    window.handle_timeout(at(60), &mut Vec::new());
    assert_eq!(window.ack(&group(1), 3), None, "it is unknown which of the two was acked");
}

#[test]
fn full_window_refuses_more_pushes() {
    let mut window = Window::new(LIMITS);
    for seq in 1..=6 {
        assert_eq!(window.track(&group(1), seq, seq, 1, T0), Tracked::Ok);
    }
    assert_eq!(window.track(&group(1), 7, 7, 1, T0), Tracked::Full);
    assert_eq!(window.track(&group(1), 6, 6, 1, T0), Tracked::Ok, "already tracked");
    window.ack(&group(1), 6);
    assert!(window.is_empty());
    assert_eq!(window.track(&group(1), 8, 8, 101, T0), Tracked::Full, "bytes count as well");
}

#[test]
fn a_client_that_never_acks_is_given_up_after_three_resends() {
    let mut window = Window::new(LIMITS);
    window.track(&group(1), 1, 1, 1, T0);
    let mut resend = Vec::new();
    for _ in 0..3 {
        let due = window.poll_timeout().expect("one in flight");
        assert_eq!(window.handle_timeout(due, &mut resend), Verdict::Fine);
    }
    assert_eq!(resend, [1, 1, 1]);
    let due = window.poll_timeout().expect("one in flight");
    assert_eq!(window.handle_timeout(due, &mut resend), Verdict::GiveUp);
    assert_eq!((resend.len(), window.is_empty(), window.poll_timeout()), (3, true, None));
}

#[test]
fn push_is_not_resent_before_its_timeout() {
    let mut window = Window::new(LIMITS);
    window.track(&group(1), 1, 1, 1, T0);
    window.track(&group(1), 2, 2, 1, at(20));
    let mut resend = Vec::new();
    assert_eq!(window.handle_timeout(at(49), &mut resend), Verdict::Fine);
    assert!(resend.is_empty());
    window.handle_timeout(at(50), &mut resend);
    assert_eq!(resend, [1]);
    assert_eq!(window.poll_timeout(), Some(at(70)));
}

#[test]
fn resends_are_ordered_by_conversation_and_seq() {
    // Each window has a map of its own, whose order differs.
    for _ in 0..8 {
        let mut window = Window::new(WindowLimits::default());
        for n in [7, 3, 9, 1, 5, 8, 2, 6, 4] {
            for seq in [2, 1] {
                assert_eq!(window.track(&group(n), seq, (n, seq), 1, at(0)), Tracked::Ok);
            }
        }
        let mut resend = Vec::new();
        window.handle_timeout(at(60_000), &mut resend);
        let expected: Vec<(u8, u64)> = (1..=9).flat_map(|n| [(n, 1), (n, 2)]).collect();
        assert_eq!(resend, expected);
    }
}

#[test]
fn a_window_is_small_enough_to_box() {
    assert!(size_of::<Window<u64>>() <= 128, "{}", size_of::<Window<u64>>());
}

#[derive(Clone, Debug)]
enum Op {
    Track { conversation: u8, seq: u64, bytes: usize },
    Ack { conversation: u8, seq: u64 },
    Pass { ms: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3u8, 1..20u64, 0..40usize)
            .prop_map(|(conversation, seq, bytes)| Op::Track { conversation, seq, bytes }),
        2 => (0..4u8, 0..20u64).prop_map(|(conversation, seq)| Op::Ack { conversation, seq }),
        2 => (1..80u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

#[derive(Clone, Copy)]
struct Push {
    bytes: usize,
    deadline: Time,
    resent: u8,
}

struct Pair {
    window: Window<(u8, u64)>,
    model: BTreeMap<(u8, u64), Push>,
    now: Time,
    /// Numbers of tracked, acked and given-up pushes.
    counts: [usize; 3],
}

impl Pair {
    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Track { conversation, seq, bytes } => self.track(conversation, seq, bytes)?,
            Op::Ack { conversation, seq } => {
                self.window.ack(&group(conversation), seq);
                let before = self.model.len();
                self.model.retain(|key, _| key.0 != conversation || key.1 > seq);
                self.counts[1] += before - self.model.len();
            }
            Op::Pass { ms } => self.pass(ms)?,
        }
        let (window, model) = (&self.window, &self.model);
        prop_assert_eq!(window.len(), model.len());
        prop_assert_eq!(window.bytes(), model.values().map(|push| push.bytes).sum::<usize>());
        prop_assert!(window.len() <= LIMITS.count_max && window.bytes() <= LIMITS.bytes_max);
        prop_assert_eq!(window.is_empty(), window.poll_timeout().is_none());
        let earliest = model.values().map(|push| push.deadline).min();
        prop_assert!(window.poll_timeout() <= earliest, "early is fine, late is not");
        prop_assert_eq!(self.counts[0], self.counts[1] + self.counts[2] + window.len());
        Ok(())
    }

    fn track(&mut self, conversation: u8, seq: u64, bytes: usize) -> Result<(), TestCaseError> {
        let key = (conversation, seq);
        let held: usize = self.model.values().map(|push| push.bytes).sum();
        let tracked = self.model.contains_key(&key);
        let fits = self.model.len() < LIMITS.count_max && held + bytes <= LIMITS.bytes_max;
        let expected = if tracked || fits { Tracked::Ok } else { Tracked::Full };
        prop_assert_eq!(self.window.track(&group(conversation), seq, key, bytes, self.now), expected);
        if fits && !tracked {
            self.model.insert(key, Push { bytes, deadline: self.now + LIMITS.ack_timeout, resent: 0 });
            self.counts[0] += 1;
        }
        Ok(())
    }

    fn pass(&mut self, ms: u64) -> Result<(), TestCaseError> {
        self.now = self.now + Duration::from_millis(ms);
        let now = self.now;
        let mut resend = Vec::new();
        let verdict = self.window.handle_timeout(now, &mut resend);
        let mut expected = Vec::new();
        if self.model.values().any(|push| push.deadline <= now && push.resent == LIMITS.tries) {
            prop_assert_eq!(verdict, Verdict::GiveUp);
            self.counts[2] += self.model.len();
            self.model.clear();
        } else {
            prop_assert_eq!(verdict, Verdict::Fine);
            for (key, push) in self.model.iter_mut().filter(|(_, push)| push.deadline <= now) {
                *push = Push { deadline: now + LIMITS.ack_timeout, resent: push.resent + 1, ..*push };
                prop_assert!(push.resent <= LIMITS.tries);
                expected.push(*key);
            }
        }
        // Seqs are in order within a conversation; conversations are in any order.
        resend.sort_by_key(|key| key.0);
        prop_assert_eq!(resend, expected);
        prop_assert!(self.window.poll_timeout().is_none_or(|next| next > now));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn each_push_ends_acked_or_in_flight_or_given_up_once(ops in proptest::collection::vec(op(), 1..80)) {
        let window = Window::new(LIMITS);
        let mut pair = Pair { window, model: BTreeMap::new(), now: T0, counts: [0; 3] };
        for op in ops {
            pair.apply(op)?;
        }
    }
}
