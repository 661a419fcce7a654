//! Random feeds, readers, outages and crashes, against what a naive model says must be noticed.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const USERS: [&str; 3] = ["bob", "carol", "dave"];
const KEYS: [&str; 3] = ["g:a", "g:b", "g:c"];

/// Step of a world.
#[derive(Clone, Debug)]
enum Step {
    /// A message to some users.
    Message { key: usize, users: usize },
    /// A user reads a conversation.
    Read { key: usize, user: usize },
    /// Time passes.
    Pass(u64),
    /// The receiver changes what it answers.
    Answer(WaitingOutcome),
    /// The next saves fail, or succeed again.
    Saves(bool),
    /// The owner crashes, and another one begins at the saved number.
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let outcome = prop_oneof![
        4 => Just(WaitingOutcome::Noticed),
        1 => Just(WaitingOutcome::Failed),
        1 => Just(WaitingOutcome::Refused),
        1 => Just(WaitingOutcome::Undecided),
        1 => Just(WaitingOutcome::Busy(Duration::from_secs(9))),
    ];
    prop_oneof![
        8 => (0..KEYS.len(), 1..8_usize).prop_map(|(key, users)| Step::Message { key, users }),
        2 => (0..KEYS.len(), 0..USERS.len()).prop_map(|(key, user)| Step::Read { key, user }),
        6 => (1..40_u64).prop_map(Step::Pass),
        2 => outcome.prop_map(Step::Answer),
        1 => any::<bool>().prop_map(Step::Saves),
        1 => Just(Step::Crash),
    ]
}

/// Notice that the receiver has taken.
#[derive(Clone, Copy, Debug)]
struct Noticed {
    at: u64,
    seq: u64,
    count: u64,
}

/// World: a feed, what users have read, and what they were noticed of.
struct World {
    machine: Waiting,
    now: u64,
    /// Messages: conversation, seq, and the users that they are for.
    feed: Vec<(usize, u64, usize)>,
    seqs: [u64; 3],
    read: BTreeMap<(usize, usize), u64>,
    noticed: BTreeMap<(usize, usize), Vec<Noticed>>,
    answer: WaitingOutcome,
    saves: bool,
    saved: u64,
    has_crashed: bool,
}

impl World {
    fn new() -> Self {
        let (noticed, read) = (BTreeMap::new(), BTreeMap::new());
        Self {
            machine: owning(),
            now: 0,
            feed: Vec::new(),
            seqs: [0; 3],
            read,
            noticed,
            answer: WaitingOutcome::Noticed,
            saves: true,
            saved: 0,
            has_crashed: false,
        }
    }

    fn is_read(&self, pair: (usize, usize), seq: u64) -> bool {
        self.read.get(&pair).is_some_and(|read| *read >= seq)
    }

    /// Does what the machine asks for now. Pages have at most three messages.
    fn run(&mut self) {
        loop {
            let now = at(self.now);
            if let Some((partition, after)) = self.machine.poll_read(now) {
                let rest = &self.feed[after as usize..];
                let page = &rest[..rest.len().min(3)];
                let messages = (after + 1..).zip(page).map(|(number, (key, seq, users))| {
                    let users: Vec<&str> =
                        (0..3).filter(|n| users & (1 << n) != 0).map(|n| USERS[n]).collect();
                    (message(number, KEYS[*key], *seq), to(&users))
                });
                let next = if rest.len() > 3 { WaitingLook::Now } else { WaitingLook::Archived };
                let end = after + page.len() as u64;
                let page = WaitingPage { after, end, messages: messages.collect(), next };
                self.machine.handle_page(partition, page, now);
            } else if let Some(save) = self.machine.poll_save(now) {
                if self.saves {
                    self.saved = save.number;
                }
                self.machine.handle_save(save.partition, self.saves, now);
            } else if let Some(round) = self.machine.poll_round(now) {
                let outcomes: Vec<WaitingOutcome> = round.notices.iter().map(|it| self.decide(it)).collect();
                self.machine.handle_round(round.ticket, &outcomes, now);
            } else {
                let next = self.machine.poll_timeout(now);
                assert!(next.is_none_or(|next| next > now), "the driver would spin at {now:?}");
                return;
            }
        }
    }

    fn decide(&mut self, notice: &WaitingNotice) -> WaitingOutcome {
        let key = KEYS.iter().position(|it| *it == notice.newest.conversation.as_str()).unwrap();
        let user = USERS.iter().position(|it| *it == notice.user.as_str()).unwrap();
        if self.is_read((key, user), notice.newest.seq) {
            return WaitingOutcome::Settled;
        }
        if self.answer == WaitingOutcome::Noticed {
            let noticed = self.noticed.entry((key, user)).or_default();
            noticed.push(Noticed { at: self.now, seq: notice.newest.seq, count: notice.count });
        }
        self.answer
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Message { key, users } => {
                self.seqs[*key] += 1;
                self.feed.push((*key, self.seqs[*key], *users));
                self.machine.handle_archived(0, at(self.now));
            }
            Step::Read { key, user } => drop(self.read.insert((*key, *user), self.seqs[*key])),
            Step::Pass(seconds) => {
                for _ in 0..*seconds {
                    self.run();
                    self.now += 1;
                }
            }
            Step::Answer(answer) => self.answer = *answer,
            Step::Saves(saves) => self.saves = *saves,
            Step::Crash => {
                self.has_crashed = true;
                self.machine = Waiting::new(settings());
                self.machine.handle_owned(0, self.saved, at(self.now));
            }
        }
    }

    fn check(&self) {
        for (key, seq, users) in &self.feed {
            for user in (0..3).filter(|user| users & (1 << user) != 0) {
                let noticed = self.noticed.get(&(*key, user)).into_iter().flatten();
                let is_noticed = noticed.clone().any(|of| of.seq >= *seq);
                assert!(
                    self.is_read((*key, user), *seq) || is_noticed,
                    "{user} is not noticed of {key}/{seq}"
                );
            }
        }
        if self.has_crashed {
            return;
        }
        for (pair, noticed) in &self.noticed {
            for two in noticed.windows(2) {
                assert!(
                    two[1].at >= two[0].at + REPEAT.as_secs(),
                    "{pair:?} is noticed too often: {noticed:?}"
                );
                assert!(two[1].seq > two[0].seq, "{pair:?} is noticed twice of a message: {noticed:?}");
            }
            let for_pair =
                self.feed.iter().filter(|(key, _, users)| *key == pair.0 && users & (1 << pair.1) != 0);
            let counted: u64 = noticed.iter().map(|of| of.count).sum();
            assert!(counted <= for_pair.count() as u64, "{pair:?} counts a message twice: {noticed:?}");
        }
        assert_eq!((self.machine.held(), self.machine.decided(0)), (0, Some(self.feed.len() as u64)));
        assert_eq!(self.machine.apart(), 0);
    }
}

proptest! {
    #[test]
    fn nobody_is_left_without_a_notice_or_noticed_too_often(steps in proptest::collection::vec(step(), 0..60)) {
        let mut world = World::new();
        for it in &steps {
            world.step(it);
        }
        world.step(&Step::Answer(WaitingOutcome::Noticed));
        world.step(&Step::Saves(true));
        world.step(&Step::Pass(1_000));
        world.check();
    }
}
