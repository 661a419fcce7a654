//! An index that gets some of the records, late and twice, with logins in between, compared with the log.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Record of the group's log; the nth one has seq n.
#[derive(Clone, Copy, Debug)]
enum LogEntry {
    Message,
    Join(u8),
    Kick(u8),
}

/// Event on the node.
#[derive(Clone, Copy, Debug)]
enum NodeAction {
    /// The next record arrives.
    Next,
    /// The next record is lost.
    Lost,
    /// An earlier record arrives again, this many before the next.
    Again(u8),
    /// A user logs in who has read the store this far beyond the next record.
    Login(u8, u8),
}

fn entry() -> impl Strategy<Value = LogEntry> {
    prop_oneof![
        3 => Just(LogEntry::Message),
        1 => (0..5_u8).prop_map(LogEntry::Join),
        1 => (0..5_u8).prop_map(LogEntry::Kick),
    ]
}

fn actions() -> impl Strategy<Value = NodeAction> {
    prop_oneof![
        5 => Just(NodeAction::Next),
        1 => Just(NodeAction::Lost),
        1 => (1..4_u8).prop_map(NodeAction::Again),
        3 => (0..5_u8, 0..6_u8).prop_map(|(user, ahead)| NodeAction::Login(user, ahead)),
    ]
}

fn name(user: u8) -> UserId {
    UserId::new(&format!("u{user}")).unwrap()
}

/// Returns the members at `seq`, and the last membership change up to it.
fn members(log: &[LogEntry], seq: u64) -> (BTreeSet<UserId>, u64) {
    let (mut members, mut last) = (BTreeSet::new(), 0);
    for (entry, seq) in log.iter().take(seq as usize).zip(1..) {
        match entry {
            LogEntry::Message => continue,
            LogEntry::Join(user) => drop(members.insert(name(*user))),
            LogEntry::Kick(user) => drop(members.remove(&name(*user))),
        }
        last = seq;
    }
    (members, last)
}

/// Shards of a node, as the subscriber task updates them.
struct Node {
    index: Index,
    /// Users online, and those of them that are in the index.
    online: BTreeSet<UserId>,
    indexed: BTreeSet<UserId>,
    /// Pushes, by user.
    pushed: Vec<(UserId, u64)>,
}

impl Node {
    fn change(&mut self, entry: LogEntry, seq: u64) {
        match entry {
            LogEntry::Message => {}
            LogEntry::Join(user) => {
                if self.index.is_newer(&name(user), seq) && self.online.contains(&name(user)) {
                    self.indexed.insert(name(user));
                }
            }
            LogEntry::Kick(user) => {
                if self.index.is_newer(&name(user), seq) {
                    self.indexed.remove(&name(user));
                }
            }
        }
    }

    fn record(&mut self, log: &[LogEntry], seq: u64) {
        let entry = log[seq as usize - 1];
        let member_seq = members(log, seq - 1).1;
        let mut step = self.index.record(seq, member_seq);
        if let Step::CatchUp { from, to } = step {
            assert!(from < to && to <= member_seq);
            for read in from + 1..=to {
                self.change(log[read as usize - 1], read);
            }
            self.index.set_indexed(to);
            step = self.index.record(seq, member_seq);
        }
        let Step::Push(ahead) = step else { return };
        let is_join = matches!(entry, LogEntry::Join(_));
        if is_join {
            self.change(entry, seq);
        }
        let recipients = self.indexed.iter().filter(|user| !ahead.contains(user));
        self.pushed.extend(recipients.map(|user| (user.clone(), seq)));
        if !is_join {
            self.change(entry, seq);
        }
        if !matches!(entry, LogEntry::Message) {
            self.index.set_indexed(seq);
        }
    }
}

proptest! {
    /// Users get no push of records outside their membership, except the change that begins or ends it. An indexed user
    /// who has not read further misses no pushed record.
    #[test]
    fn push_goes_only_to_members_at_its_seq(
        log in prop::collection::vec(entry(), 1..40),
        actions in prop::collection::vec(actions(), 1..60),
    ) {
        let index = Index::new(0, 0);
        let mut node =
            Node { index, online: BTreeSet::new(), indexed: BTreeSet::new(), pushed: Vec::new() };
        let mut next = 1;
        // Seq above which each online user must get what is pushed.
        let mut since = std::collections::BTreeMap::<UserId, u64>::new();
        for it in actions {
            match it {
                NodeAction::Next | NodeAction::Lost if next > log.len() as u64 => break,
                NodeAction::Next => {
                    node.record(&log, next);
                    let (before, after) = (members(&log, next - 1).0, members(&log, next).0);
                    for (user, since) in &since {
                        // A removed user gets the removal.
                        if *since < next && (before.contains(user) || after.contains(user)) {
                            prop_assert!(node.pushed.contains(&(user.clone(), next)), "{user} missed {next}");
                        }
                    }
                    next += 1;
                }
                NodeAction::Lost => next += 1,
                NodeAction::Again(back) => {
                    if let Some(seq) = next.checked_sub(u64::from(back)).filter(|seq| *seq > 0 && *seq < next) {
                        let before = node.pushed.len();
                        let was_pushed = seq <= node.index.published_to();
                        node.record(&log, seq);
                        prop_assert!(!was_pushed || node.pushed.len() == before, "{seq} is pushed twice");
                    }
                }
                NodeAction::Login(user, ahead) => {
                    let (user, as_of) = (name(user), (next - 1 + u64::from(ahead)).min(log.len() as u64));
                    // A user who is online already is in the index, or is not: another connection changes nothing.
                    if node.online.insert(user.clone()) {
                        let is_in = members(&log, as_of).0.contains(&user);
                        if is_in && node.index.login(&user, as_of) {
                            node.indexed.insert(user.clone());
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
fn catch_up_reads_little_and_admits_an_earlier_login() {
    let mut index = Index::new(3, 3);
    for seq in 4..=90_000 {
        assert_eq!(index.record(seq, 3), Step::Push(Vec::new()));
    }
    assert!(index.login(&name(1), 50_000), "no membership change since");
    // A new owner reports a `member_seq` that is higher than needed.
    assert_eq!(index.record(90_003, 90_002), Step::CatchUp { from: 89_999, to: 90_002 });
    index.set_indexed(90_002);
    assert_eq!(index.record(90_003, 90_002), Step::Push(Vec::new()));
    assert!(!index.login(&name(1), 90_001), "the changes that were read may concern this user");
}
