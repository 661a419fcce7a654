//! An index that gets a part of the records, late and twice, with logins between them, against what the log says.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// What is accepted in the group: at seq n the nth of these.
#[derive(Clone, Copy, Debug)]
enum Said {
    Message,
    Join(u8),
    Kick(u8),
}

/// What happens on the node.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// The next record comes.
    Next,
    /// The next record is lost.
    Lost,
    /// An earlier record comes again, so many before the next.
    Again(u8),
    /// A user logs in who read the store when it was so far beyond the next record.
    Login(u8, u8),
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        3 => Just(Said::Message),
        1 => (0..5_u8).prop_map(Said::Join),
        1 => (0..5_u8).prop_map(Said::Kick),
    ]
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        5 => Just(Happens::Next),
        1 => Just(Happens::Lost),
        1 => (1..4_u8).prop_map(Happens::Again),
        3 => (0..5_u8, 0..6_u8).prop_map(|(user, ahead)| Happens::Login(user, ahead)),
    ]
}

fn name(user: u8) -> UserId {
    UserId::new(&format!("u{user}")).unwrap()
}

/// Who is a member once so many are accepted, and the last change of members until then.
fn members(log: &[Said], seq: u64) -> (BTreeSet<UserId>, u64) {
    let (mut members, mut last) = (BTreeSet::new(), 0);
    for (said, seq) in log.iter().take(seq as usize).zip(1..) {
        match said {
            Said::Message => continue,
            Said::Join(user) => drop(members.insert(name(*user))),
            Said::Kick(user) => drop(members.remove(&name(*user))),
        }
        last = seq;
    }
    (members, last)
}

/// The shards of a node, as the keeper tells them.
struct Node {
    index: Index,
    /// Who is online, and who of them is in the index.
    online: BTreeSet<UserId>,
    here: BTreeSet<UserId>,
    /// Who was pushed what.
    pushed: Vec<(UserId, u64)>,
}

impl Node {
    fn change(&mut self, said: Said, seq: u64) {
        match said {
            Said::Message => {}
            Said::Join(user) => {
                if self.index.is_news(&name(user), seq) && self.online.contains(&name(user)) {
                    self.here.insert(name(user));
                }
            }
            Said::Kick(user) => {
                if self.index.is_news(&name(user), seq) {
                    self.here.remove(&name(user));
                }
            }
        }
    }

    fn record(&mut self, log: &[Said], seq: u64) {
        let said = log[seq as usize - 1];
        let member_seq = members(log, seq - 1).1;
        let mut step = self.index.record(seq, member_seq);
        if let Step::Read { from, to } = step {
            assert!(from < to && to <= member_seq);
            for read in from + 1..=to {
                self.change(log[read as usize - 1], read);
            }
            self.index.is_known(to);
            step = self.index.record(seq, member_seq);
        }
        let Step::Tell(ahead) = step else { return };
        let is_join = matches!(said, Said::Join(_));
        if is_join {
            self.change(said, seq);
        }
        let told = self.here.iter().filter(|user| !ahead.contains(user));
        self.pushed.extend(told.map(|user| (user.clone(), seq)));
        if !is_join {
            self.change(said, seq);
        }
        if !matches!(said, Said::Message) {
            self.index.is_known(seq);
        }
    }
}

proptest! {
    /// Nobody is pushed what was said while they were no member, but the change that makes them one or ends it; and who is
    /// in the index and has not read further misses nothing of what is told.
    #[test]
    fn a_push_is_for_those_who_are_members_at_its_seq(
        log in prop::collection::vec(said(), 1..40),
        happens in prop::collection::vec(happens(), 1..60),
    ) {
        let index = Index::new(0, 0);
        let mut node =
            Node { index, online: BTreeSet::new(), here: BTreeSet::new(), pushed: Vec::new() };
        let mut next = 1;
        // From which seq on a user who is online is to be pushed what is told.
        let mut since = std::collections::BTreeMap::<UserId, u64>::new();
        for it in happens {
            match it {
                Happens::Next | Happens::Lost if next > log.len() as u64 => break,
                Happens::Next => {
                    node.record(&log, next);
                    let (before, after) = (members(&log, next - 1).0, members(&log, next).0);
                    for (user, since) in &since {
                        // A removal is told to whom it removes.
                        if *since < next && (before.contains(user) || after.contains(user)) {
                            prop_assert!(node.pushed.contains(&(user.clone(), next)), "{user} missed {next}");
                        }
                    }
                    next += 1;
                }
                Happens::Lost => next += 1,
                Happens::Again(back) => {
                    if let Some(seq) = next.checked_sub(u64::from(back)).filter(|seq| *seq > 0 && *seq < next) {
                        let before = node.pushed.len();
                        let was_told = seq <= node.index.seen();
                        node.record(&log, seq);
                        prop_assert!(!was_told || node.pushed.len() == before, "{seq} is told twice");
                    }
                }
                Happens::Login(user, ahead) => {
                    let (user, as_of) = (name(user), (next - 1 + u64::from(ahead)).min(log.len() as u64));
                    // Who is online already is in the index, or is not: another connection changes nothing.
                    if node.online.insert(user.clone()) {
                        let is_in = members(&log, as_of).0.contains(&user);
                        if is_in && node.index.login(&user, as_of) {
                            node.here.insert(user.clone());
                        } else if is_in {
                            node.online.remove(&user);
                            continue;
                        }
                        since.insert(user, as_of);
                    }
                }
            }
        }
        for (user, seq) in &node.pushed {
            let (before, after) = (members(&log, seq - 1).0, members(&log, *seq).0);
            prop_assert!(before.contains(user) || after.contains(user), "{user} was pushed {seq}");
        }
    }
}

#[test]
fn little_is_read_after_much_was_told_and_who_read_before_it_is_let_in() {
    let mut index = Index::new(3, 3);
    for seq in 4..=90_000 {
        assert_eq!(index.record(seq, 3), Step::Tell(Vec::new()));
    }
    assert!(index.login(&name(1), 50_000), "no member came or went since");
    // An owner that has just taken over says more than it needs.
    assert_eq!(index.record(90_003, 90_002), Step::Read { from: 89_999, to: 90_002 });
    index.is_known(90_002);
    assert_eq!(index.record(90_003, 90_002), Step::Tell(Vec::new()));
    assert!(!index.login(&name(1), 90_001), "what was read may have named it");
}
