//! Presence under random changes: a watcher knows in the end who is online, and gets no report too early.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidegate_protocol::{
    Time,
    id::UserId,
    machine::presence::{PresenceLimits, PresenceReport, ROUND_INTERVAL},
};

use super::{Machine, handle_all, subject, user};

const USERS: usize = 6;
const GROUPS: usize = 3;
const WATCHERS: u64 = 4;
const LIMITS: PresenceLimits = PresenceLimits {
    watched_max: 2,
    members_max: 13,
    user_watches_max: 2,
    users_per_round: 4,
    has_direct: true,
};

#[derive(Clone, Debug)]
enum Step {
    Online(usize),
    Hidden(usize),
    Member(usize, usize),
    Watch(u64, usize),
    Unwatch(u64, usize),
    Forget(u64),
    /// Round after this time, with these faults: members, settings, lookups, reports, room for reports.
    Round(u64, [bool; 5]),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..USERS).prop_map(Step::Online),
        1 => (0..USERS).prop_map(Step::Hidden),
        2 => (0..GROUPS, 0..USERS).prop_map(|(group, user)| Step::Member(group, user)),
        3 => (0..WATCHERS, 0..GROUPS).prop_map(|(watcher, group)| Step::Watch(watcher, group)),
        1 => (0..WATCHERS, 0..GROUPS).prop_map(|(watcher, group)| Step::Unwatch(watcher, group)),
        1 => (0..WATCHERS).prop_map(Step::Forget),
        4 => (0..5_000_u64, any::<[bool; 5]>()).prop_map(|(pause, faults)| Step::Round(pause, faults)),
    ]
}

fn name(n: usize) -> UserId {
    user(&format!("u{n}"))
}

/// What a watcher has got: who is online, and when.
#[derive(Default)]
struct Known {
    online: BTreeSet<UserId>,
    at: Option<Time>,
    is_complete: bool,
    /// Whether the last report ended the watch.
    has_ended: bool,
}

struct World {
    machine: Machine,
    now: Time,
    online: BTreeSet<UserId>,
    hidden: BTreeSet<UserId>,
    members: [BTreeSet<UserId>; GROUPS],
    /// Watches that the machine has accepted, as long as their users stay members.
    watches: BTreeMap<(u64, usize), Known>,
}

impl World {
    fn new() -> Self {
        let all: BTreeSet<UserId> = (0..USERS).map(name).collect();
        Self {
            machine: Machine::new(LIMITS),
            now: Time::ZERO,
            online: BTreeSet::new(),
            hidden: BTreeSet::new(),
            members: std::array::from_fn(|n| all.iter().take(2 + n).cloned().collect()),
            watches: BTreeMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        let toggle = |set: &mut BTreeSet<UserId>, user: UserId| {
            if !set.remove(&user) {
                set.insert(user);
            }
        };
        match step {
            Step::Online(n) => toggle(&mut self.online, name(*n)),
            Step::Hidden(n) => toggle(&mut self.hidden, name(*n)),
            Step::Member(group, n) => toggle(&mut self.members[*group], name(*n)),
            Step::Watch(watcher, group) => {
                let of = name(*watcher as usize);
                let members = &self.members[*group];
                if members.contains(&of) {
                    let begun = self.machine.watch(*watcher, &of, subject(&group.to_string()), members.len());
                    if begun.is_ok() {
                        let known = self.watches.entry((*watcher, *group)).or_default();
                        known.is_complete = false;
                        known.has_ended = false;
                    }
                }
            }
            Step::Unwatch(watcher, group) => {
                self.machine.unwatch(*watcher, &subject(&group.to_string()).conversation);
                self.watches.remove(&(*watcher, *group));
            }
            Step::Forget(watcher) => {
                self.machine.forget(*watcher);
                self.watches.retain(|(other, _), _| other != watcher);
            }
            Step::Round(pause, faults) => self.round(*pause, *faults),
        }
    }

    fn round(&mut self, pause: u64, [members, settings, lookups, reports, no_room]: [bool; 5]) {
        let Some(due) = self.machine.poll_timeout() else { return };
        self.now = due.max(Time::from_millis(self.now.as_millis() + pause));
        self.machine.begin_round(self.now);
        handle_all(&mut self.machine, Machine::poll_members, |machine, found| {
            if members {
                return machine.handle_members_failed(&found);
            }
            for it in &found {
                let group: usize = it.conversation.as_str()[2..].parse().unwrap();
                let members = self.members[group].iter().cloned().collect();
                machine.handle_members(it, Some(members));
            }
        });
        handle_all(&mut self.machine, Machine::poll_settings, |machine, found| {
            if settings {
                return machine.handle_settings_failed(&found);
            }
            for user in found {
                machine.handle_setting(&user, !self.hidden.contains(&user));
            }
        });
        let mut looked_up = 0;
        handle_all(&mut self.machine, Machine::poll_lookup, |machine, found| {
            looked_up += found.len();
            if lookups {
                return machine.handle_lookup_failed();
            }
            for user in found {
                machine.handle_lookup(&user, self.online.contains(&user));
            }
        });
        assert!(looked_up <= LIMITS.users_per_round, "{looked_up}");
        while let Some(report) = self.machine.poll_report() {
            self.report(&report, reports, no_room);
        }
        self.machine.end_round(self.now);
        assert!(self.machine.watched() <= LIMITS.watched_max, "{}", self.machine.watched());
    }

    fn report(&mut self, report: &PresenceReport<u64>, is_dropped: bool, has_no_room: bool) {
        let group: usize = report.conversation.as_str()[2..].parse().unwrap();
        for watcher in &report.watchers {
            if (is_dropped || has_no_room) && report.is_last() {
                self.machine.handle_last_dropped(*watcher, &report.conversation);
                continue;
            }
            if is_dropped {
                self.machine.handle_dropped(*watcher, &report.conversation);
                continue;
            }
            if has_no_room {
                self.machine.handle_no_room(*watcher, &report.conversation);
                continue;
            }
            let known = self.watches.get_mut(&(*watcher, group)).expect("a watch of this connection");
            let is_due = known.at.is_none_or(|at| self.now >= at + ROUND_INTERVAL);
            assert!(is_due, "{watcher} got a report at {:?}, and one at {}", known.at, self.now);
            known.at = Some(self.now);
            known.has_ended = report.is_last();
            if report.is_complete() {
                known.online.clear();
                known.is_complete = true;
            } else {
                let is_known = |user: &UserId| known.online.contains(user);
                assert!(!report.online.iter().any(is_known), "a change names who is online only now");
            }
            known.online.extend(report.online.iter().cloned());
            known.online.retain(|user| !report.offline.contains(user));
        }
    }

    /// Compares what the watchers know with what is so, once all has been read and looked up again.
    fn check(&mut self) {
        for _ in 0..40 {
            self.round(1_000, [false; 5]);
        }
        let mut watches = 0;
        let watched =
            |group: &usize| self.watches.keys().any(|it| it.1 == *group && self.is_watched(it.0, it.1));
        let members: usize = (0..GROUPS).filter(watched).map(|group| self.members[group].len()).sum();
        let has_room = members + self.machine.watches() <= LIMITS.members_max;
        for ((watcher, group), known) in &self.watches {
            let members = &self.members[*group];
            let is_member = members.contains(&name(*watcher as usize));
            let shown = |user: &&UserId| self.online.contains(*user) && !self.hidden.contains(*user);
            let expected: BTreeSet<UserId> = members.iter().filter(shown).cloned().collect();
            if self.is_watched(*watcher, *group) {
                watches += 1;
                assert!(is_member && known.is_complete, "{watcher} watches {group}");
                let is_right = known.online == expected || !has_room && known.online.is_subset(&expected);
                assert!(is_right, "{watcher} knows {:?} of {group}, not {expected:?}", known.online);
            } else {
                assert!(known.online.is_empty(), "{watcher} was left with {:?} of {group}", known.online);
            }
            assert_eq!(known.has_ended, !self.is_watched(*watcher, *group), "{watcher} learns of an end");
        }
        assert_eq!(watches, self.machine.watches());
        let limits =
            (self.machine.watched() <= LIMITS.watched_max, self.machine.users() <= LIMITS.members_max);
        assert_eq!(limits, (true, true));
    }

    /// Returns whether the machine has the watch: without it, ending it changes nothing.
    fn is_watched(&self, watcher: u64, group: usize) -> bool {
        self.machine.has_watch(watcher, &subject(&group.to_string()).conversation)
    }
}

proptest! {
    #[test]
    fn watchers_know_in_the_end_who_is_online(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        for it in &steps {
            world.step(it);
        }
        world.check();
    }
}
