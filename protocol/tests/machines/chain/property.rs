//! Property tests of the nextId chain: order, termination of holds, and agreement with a naive model.

use super::{LIMITS, T0, id, release};
use proptest::prelude::*;
use std::{collections::BTreeSet, time::Duration};
use tidegate_protocol::{
    Time,
    machine::chain::{Chain, ChainAlarm, Offer},
};

/// Naive chain, written without regard to speed.
#[derive(Default)]
struct Model {
    expected: u32,
    /// (id, next, bytes) in order of arrival.
    held: Vec<(u32, u32, usize)>,
    done: Vec<u32>,
    skipped: Vec<u32>,
    resumed_at: Option<u32>,
    retractable: bool,
    still_since: Time,
    alarmed: Option<Time>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Held,
    Ready,
    Done,
    Skipped,
    BadLink,
    Waiting,
    Full,
}

fn kind(offer: &Offer<u32>) -> Kind {
    match offer {
        Offer::Held => Kind::Held,
        Offer::Ready => Kind::Ready,
        Offer::Done(_) => Kind::Done,
        Offer::Skipped(_) => Kind::Skipped,
        Offer::BadLink(_) => Kind::BadLink,
        Offer::Waiting(_) => Kind::Waiting,
        Offer::Full { .. } => Kind::Full,
    }
}

impl Model {
    fn ready(&self) -> Option<usize> {
        self.held.iter().position(|held| held.0 == self.expected)
    }

    fn leads_to(&self, id: u32) -> Option<u32> {
        self.held.iter().find(|held| held.1 == id).map(|held| held.0)
    }

    fn bytes(&self) -> usize {
        self.held.iter().map(|held| held.2).sum()
    }

    fn offer(&mut self, id: u32, next: u32, bytes: usize, now: Time) -> Kind {
        let due = id == self.expected;
        if self.held.iter().any(|held| held.0 == id) {
            return Kind::Waiting;
        }
        if !due && self.done.contains(&id) {
            return Kind::Done;
        }
        if !due && self.skipped.contains(&id) {
            return Kind::Skipped;
        }
        if !due && self.resumed_at == Some(next) {
            if self.leads_to(id).is_none() {
                self.skipped.push(id);
            }
            return Kind::Skipped;
        }
        let mut before = Some(id);
        while let Some(at) = before {
            if at == next {
                return Kind::BadLink;
            }
            before = self.leads_to(at);
        }
        let used = self.done.contains(&next) || self.skipped.contains(&next) || next == self.expected;
        if used || self.leads_to(next).is_some() {
            return Kind::BadLink;
        }
        let full = self.held.len() >= LIMITS.hold_max || self.bytes() + bytes > LIMITS.hold_bytes_max;
        if !due && !self.held.is_empty() && full {
            return Kind::Full;
        }
        if self.held.is_empty() {
            (self.still_since, self.alarmed) = (now, None);
        }
        self.held.push((id, next, bytes));
        if due { Kind::Ready } else { Kind::Held }
    }

    fn release(&mut self, now: Time) -> Option<u32> {
        let (id, next, _) = self.held.remove(self.ready()?);
        self.done.push(id);
        self.expected = next;
        (self.still_since, self.alarmed, self.retractable) = (now, None, true);
        Some(id)
    }

    fn retract(&mut self, now: Time) -> bool {
        if !self.retractable {
            return false;
        }
        self.expected = self.done.pop().expect("something was released");
        (self.still_since, self.alarmed, self.retractable) = (now, None, false);
        true
    }

    fn timeout(&mut self, now: Time) -> Option<ChainAlarm> {
        let due = self.alarmed.unwrap_or(self.still_since) + LIMITS.order_timeout;
        if self.held.is_empty() || self.ready().is_some() || due > now {
            return None;
        }
        if self.alarmed.is_none() {
            self.alarmed = Some(now);
            return Some(ChainAlarm::Blocked { expected: id(self.expected) });
        }
        let mut first = self.held[0].0;
        while let Some(before) = self.leads_to(first) {
            first = before;
        }
        let expected = std::mem::replace(&mut self.expected, first);
        self.skipped.push(expected);
        self.resumed_at = Some(first);
        (self.still_since, self.alarmed, self.retractable) = (now, None, false);
        Some(ChainAlarm::Skipped { expected: id(expected), resumed_at: id(first) })
    }
}

#[derive(Clone, Debug)]
enum Op {
    Offer { id: u32, next: u32, bytes: usize },
    Release,
    Retract,
    Pass { ms: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![8 => 0..200usize, 1 => 900..1_200usize];
    prop_oneof![
        // Mostly the straight chain, so that there is progress; sometimes any link.
        4 => (0..24u32, bytes.clone()).prop_map(|(id, bytes)| Op::Offer { id, next: id + 1, bytes }),
        2 => (0..24u32, 0..24u32, bytes).prop_map(|(id, next, bytes)| Op::Offer { id, next, bytes }),
        3 => Just(Op::Release),
        1 => Just(Op::Retract),
        2 => (1..150u64).prop_map(|ms| Op::Pass { ms }),
    ]
}

/// Chain and model under comparison, with the released ids.
struct Pair {
    chain: Chain<u32>,
    model: Model,
    now: Time,
    out: BTreeSet<u32>,
    retracts: usize,
}

impl Pair {
    fn apply(&mut self, op: Op) -> Result<(), TestCaseError> {
        match op {
            Op::Offer { id: n, next, bytes } => {
                let offer = self.chain.offer(id(n), id(next), n, bytes, self.now);
                prop_assert_eq!(kind(&offer), self.model.offer(n, next, bytes, self.now));
                if let Offer::Full { item, expected } = offer {
                    prop_assert_eq!((item, &expected), (n, self.chain.expected()));
                }
            }
            Op::Release => {
                let released = self.chain.poll_release(self.now);
                prop_assert_eq!(released, self.model.release(self.now));
                if let Some(n) = released {
                    prop_assert!(self.out.insert(n), "m{n} was released twice");
                }
            }
            Op::Retract => {
                if let Some(last) = self.model.done.last().copied() {
                    let retracted = self.model.retract(self.now);
                    prop_assert_eq!(self.chain.retract(&id(last), self.now), retracted);
                    if retracted {
                        self.retracts += 1;
                        self.out.remove(&last);
                    }
                }
            }
            Op::Pass { ms } => {
                self.now = self.now + Duration::from_millis(ms);
                prop_assert_eq!(self.chain.handle_timeout(self.now), self.model.timeout(self.now));
                prop_assert!(self.chain.poll_timeout().is_none_or(|next| next > self.now));
            }
        }
        prop_assert_eq!(self.chain.expected(), &id(self.model.expected));
        prop_assert_eq!(self.chain.is_ready(), self.model.ready().is_some());
        prop_assert_eq!(self.chain.held(), self.model.held.len());
        prop_assert_eq!(self.chain.held_bytes(), self.model.bytes());
        let waiting = self.chain.held() - usize::from(self.chain.is_ready());
        // Each retract after its successor was offered adds one: the successor was ready and waits again. A session
        // retracts before it offers anything else, so this never happens there.
        prop_assert!(waiting <= LIMITS.hold_max + self.retracts);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_permutation_within_capacity_is_released_in_chain_order(
        order in Just((0..9u32).collect::<Vec<_>>()).prop_shuffle()
    ) {
        let mut chain = Chain::new(id(0), LIMITS);
        let mut released = Vec::new();
        for n in order {
            let offer = chain.offer(id(n), id(n + 1), n, 10, T0);
            prop_assert!(matches!(offer, Offer::Held | Offer::Ready));
            released.extend(release(&mut chain, T0));
            prop_assert!(chain.held() <= LIMITS.hold_max);
        }
        prop_assert_eq!(released, (0..9).collect::<Vec<_>>());
        prop_assert_eq!((chain.held_bytes(), chain.poll_timeout()), (0, None));
    }

    #[test]
    fn lost_frames_end_every_hold_and_keep_unbroken_runs_in_order(
        order in Just((0..9u32).collect::<Vec<_>>()).prop_shuffle(),
        lost in proptest::collection::vec(any::<bool>(), 9),
    ) {
        let mut chain = Chain::new(id(0), LIMITS);
        let mut released = Vec::new();
        for n in order.into_iter().filter(|n| !lost[*n as usize]) {
            chain.offer(id(n), id(n + 1), n, 10, T0);
            released.extend(release(&mut chain, T0));
        }
        let mut skips = 0;
        while let Some(due) = chain.poll_timeout() {
            skips += u32::from(matches!(chain.handle_timeout(due), Some(ChainAlarm::Skipped { .. })));
            prop_assert!(chain.poll_timeout().is_none_or(|next| next > due));
            released.extend(release(&mut chain, due));
        }
        prop_assert!(skips <= 9);
        prop_assert_eq!(released.len(), lost.iter().filter(|lost| !**lost).count());
        for n in (1..9).filter(|n| !lost[*n - 1] && !lost[*n]) {
            let position = |n: usize| released.iter().position(|id| *id as usize == n);
            prop_assert!(position(n - 1) < position(n), "m{} before m{n} in {released:?}", n - 1);
        }
    }

    #[test]
    fn chain_equals_the_naive_model(ops in proptest::collection::vec(op(), 1..120)) {
        let chain = Chain::new(id(0), LIMITS);
        let mut pair = Pair { chain, model: Model::default(), now: T0, out: BTreeSet::new(), retracts: 0 };
        for op in ops {
            pair.apply(op)?;
        }
        let mut chain = pair.chain;
        release(&mut chain, pair.now);
        while let Some(due) = chain.poll_timeout() {
            chain.handle_timeout(due);
            release(&mut chain, due);
        }
        prop_assert_eq!((chain.held(), chain.held_bytes()), (0, 0), "every hold ends");
    }
}
