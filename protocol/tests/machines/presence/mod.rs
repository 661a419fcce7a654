//! Tests of the presence of conversations: by example, and against a naive model.

mod model;

use std::collections::BTreeSet;

use tidegate_protocol::{
    Time,
    id::{ConversationId, UserId},
    machine::presence::{
        CONNECTION_WATCHES_MAX, ConversationPresence, LOOKUP_USERS_MAX, PresenceLimits, PresenceReport,
        REFRESH_INTERVAL, ROUND_INTERVAL, WATCH_MEMBERS_MAX, WatchRefusal, WatchSubject,
    },
};

type Machine = ConversationPresence<u64>;

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

fn group(name: &str) -> ConversationId {
    ConversationId::parse(&format!("g:{name}")).unwrap()
}

fn subject(name: &str) -> WatchSubject {
    WatchSubject::new(group(name), &user("any"))
}

fn users(names: &[&str]) -> Vec<UserId> {
    names.iter().map(|name| user(name)).collect()
}

/// Users who are members, hidden and online.
#[derive(Default)]
struct Facts<'a> {
    members: &'a [&'a str],
    hidden: &'a [&'a str],
    online: &'a [&'a str],
}

/// Handles all that the machine asks for by one of its polls.
fn handle_all<T>(
    machine: &mut Machine,
    poll: fn(&mut Machine) -> Vec<T>,
    mut handle: impl FnMut(&mut Machine, Vec<T>),
) {
    loop {
        let found = poll(machine);
        if found.is_empty() {
            return;
        }
        handle(machine, found);
    }
}

/// Runs a round in which all reads and lookups succeed, and returns its reports.
fn round(machine: &mut Machine, now: u64, facts: &Facts<'_>) -> Vec<PresenceReport<u64>> {
    begin(machine, now, facts);
    handle_all(machine, Machine::poll_lookup, |machine, found| {
        found.iter().for_each(|user| machine.handle_lookup(user, facts.online.contains(&user.as_str())));
    });
    end(machine, now)
}

/// Begins a round, and reads members and settings.
fn begin(machine: &mut Machine, now: u64, facts: &Facts<'_>) {
    machine.begin_round(Time::from_millis(now));
    handle_all(machine, Machine::poll_members, |machine, found| {
        found.iter().for_each(|subject| machine.handle_members(subject, Some(users(facts.members))));
    });
    for user in machine.poll_settings() {
        machine.handle_setting(&user, !facts.hidden.contains(&user.as_str()));
    }
}

/// Handles all that the machine returns by a `poll_*`.
fn drain<T>(
    machine: &mut Machine,
    poll: impl Fn(&mut Machine) -> Vec<T>,
    mut handle: impl FnMut(&mut Machine, T),
) {
    loop {
        let found = poll(machine);
        if found.is_empty() {
            return;
        }
        found.into_iter().for_each(|it| handle(machine, it));
    }
}

fn end(machine: &mut Machine, now: u64) -> Vec<PresenceReport<u64>> {
    let reports = std::iter::from_fn(|| machine.poll_report()).collect();
    machine.end_round(Time::from_millis(now));
    reports
}

fn names(users: &[UserId]) -> Vec<&str> {
    users.iter().map(UserId::as_str).collect()
}

/// Returns the users of a report that are online and offline, and whether it is complete.
fn shown(report: &PresenceReport<u64>) -> (Vec<&str>, Vec<&str>, bool) {
    (names(&report.online), names(&report.offline), report.is_complete())
}

fn watching(name: &str, watchers: &[u64]) -> Machine {
    let mut machine = Machine::new(PresenceLimits::default());
    for watcher in watchers {
        machine.watch(*watcher, &user("ann"), subject(name), 2).unwrap();
    }
    machine
}

#[test]
fn first_report_is_complete_and_later_ones_are_changes() {
    let mut machine = watching("tea", &[1, 2]);
    let members = &["ann", "bob", "cid"][..];
    let reports = round(&mut machine, 0, &Facts { members, online: &["ann"], ..Facts::default() });
    assert_eq!(reports.len(), 1, "one for both watchers");
    assert_eq!(reports[0].watchers, [1, 2]);
    assert_eq!(shown(&reports[0]), (vec!["ann"], vec![], true));
    assert_eq!(machine.poll_timeout(), Some(Time::ZERO + ROUND_INTERVAL));
    let facts = Facts { members, online: &["ann", "bob", "cid"], ..Facts::default() };
    let reports = round(&mut machine, 1_000, &facts);
    assert_eq!(shown(&reports[0]), (vec!["bob", "cid"], vec![], false));
    assert!(round(&mut machine, 2_000, &facts).is_empty(), "nothing has changed");
    machine.watch(3, &user("bob"), subject("tea"), 3).unwrap();
    let reports = round(&mut machine, 3_000, &Facts { members, online: &["cid"], ..Facts::default() });
    assert_eq!(reports.iter().map(|it| it.watchers.clone()).collect::<Vec<_>>(), [vec![1, 2], vec![3]]);
    assert_eq!(shown(&reports[0]), (vec![], vec!["ann", "bob"], false));
    assert_eq!(shown(&reports[1]), (vec!["cid"], vec![], true));
    machine.watch(1, &user("ann"), subject("tea"), 3).unwrap();
    let reports = round(&mut machine, 4_000, &facts);
    assert_eq!(reports.iter().map(|it| it.is_complete()).collect::<Vec<_>>(), [false, true], "watched again");
}

#[test]
fn report_after_a_dropped_one_is_complete() {
    let mut machine = watching("tea", &[1, 2]);
    let members = &["ann", "bob"][..];
    let facts = Facts { members, online: &["ann"], ..Facts::default() };
    round(&mut machine, 0, &facts);
    machine.handle_dropped(2, &group("tea"));
    let reports = round(&mut machine, 1_000, &facts);
    assert_eq!(reports.len(), 1, "the other watcher gets nothing");
    assert_eq!((reports[0].watchers.as_slice(), shown(&reports[0])), (&[2][..], (vec!["ann"], vec![], true)));
}

#[test]
fn watcher_that_takes_no_report_gets_fewer_and_fewer() {
    let mut machine = watching("tea", &[1, 2]);
    let facts = Facts { members: &["ann", "bob"], online: &["ann"], ..Facts::default() };
    let mut tries = Vec::new();
    for second in 0..60 {
        for report in round(&mut machine, second * 1_000, &facts) {
            assert_eq!(report.watchers.contains(&2), second == 0, "the other one has got it");
            tries.push(second);
            machine.handle_dropped(1, &group("tea"));
        }
    }
    assert_eq!(tries, [0, 1, 3, 7, 15, 31, 47]);
    let online = |names| Facts { members: &["ann", "bob"], online: names, ..Facts::default() };
    let reports = round(&mut machine, 63_000, &online(&["ann"]));
    assert_eq!((reports.len(), reports[0].is_complete()), (1, true), "this one arrives");
    assert_eq!(round(&mut machine, 64_000, &online(&["bob"])).len(), 1);
    machine.handle_dropped(1, &group("tea"));
    assert_eq!(
        round(&mut machine, 65_000, &online(&["bob"])).len(),
        1,
        "the next round is soon enough again"
    );
}

#[test]
fn watchers_take_turns_where_there_is_room_for_some() {
    let mut machine = Machine::new(PresenceLimits::default());
    for watcher in 0..10 {
        machine.watch(watcher, &user("ann"), subject(&format!("g{watcher}")), 2).unwrap();
    }
    let mut reported = [0; 10];
    for second in 0..60 {
        // Each round has a report for each watcher, and room for three.
        let online = if second % 2 == 0 { &["ann"][..] } else { &["ann", "bob"][..] };
        let facts = Facts { members: &["ann", "bob"], online, ..Facts::default() };
        for (nth, report) in round(&mut machine, second * 1_000, &facts).iter().enumerate() {
            let [watcher] = report.watchers[..] else { panic!("{report:?}") };
            if nth < 3 {
                reported[watcher as usize] = second;
            } else {
                machine.handle_no_room(watcher, &report.conversation);
            }
        }
        assert!(reported.iter().all(|it| second - it <= 4), "second {second}: {reported:?}");
    }
}

#[test]
fn nothing_is_reported_while_lookups_fail() {
    let mut machine = watching("tea", &[1]);
    let members = &["ann", "bob"][..];
    round(&mut machine, 0, &Facts { members, online: &["ann"], ..Facts::default() });
    for (nth, now) in [1_000, 2_000].into_iter().enumerate() {
        begin(&mut machine, now, &Facts { members, ..Facts::default() });
        assert_eq!(machine.poll_lookup().len(), 2);
        machine.handle_lookup_failed();
        assert!(machine.poll_lookup().is_empty(), "the round looks up no more");
        machine.watch(2, &user("bob"), subject("tea"), 2).unwrap();
        assert!(end(&mut machine, now).is_empty(), "round {nth}");
    }
    let reports = round(&mut machine, 3_000, &Facts { members, online: &["ann"], ..Facts::default() });
    assert_eq!(reports.len(), 1, "no user went offline");
    assert_eq!((reports[0].watchers.as_slice(), reports[0].is_complete()), (&[2][..], true));
}

#[test]
fn hidden_user_is_never_reported_and_not_looked_up() {
    let mut machine = watching("tea", &[1]);
    let members = &["ann", "bob"][..];
    let facts = Facts { members, hidden: &["bob"], online: &["ann", "bob"] };
    begin(&mut machine, 0, &facts);
    assert_eq!(machine.poll_lookup(), users(&["ann"]));
    machine.handle_lookup(&user("ann"), true);
    assert_eq!(shown(&end(&mut machine, 0)[0]), (vec!["ann"], vec![], true));
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let facts = Facts { members, hidden: &["ann"], online: &["ann", "bob"] };
    let reports = round(&mut machine, refreshed, &facts);
    assert_eq!(shown(&reports[0]), (vec!["bob"], vec!["ann"], false));
}

#[test]
fn watch_of_a_user_who_is_no_member_ends_with_a_last_report() {
    let mut machine = watching("tea", &[1]);
    machine.watch(2, &user("bob"), subject("tea"), 2).unwrap();
    let online = &["ann", "bob"][..];
    round(&mut machine, 0, &Facts { members: &["ann", "bob"], online, ..Facts::default() });
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let reports = round(&mut machine, refreshed, &Facts { members: &["bob"], online, ..Facts::default() });
    assert_eq!((reports[0].watchers.as_slice(), reports[0].is_last()), (&[1][..], true));
    assert_eq!(shown(&reports[0]), (vec![], vec![], true), "all are offline, whatever reached the watcher");
    assert_eq!(shown(&reports[1]), (vec![], vec!["ann"], false), "a member that has left is offline");
    assert!(!reports[1].is_last());
    assert_eq!((machine.watches(), machine.users()), (1, 1));
}

#[test]
fn watches_of_a_group_that_becomes_too_large_end() {
    let many: Vec<String> = (0..=WATCH_MEMBERS_MAX).map(|n| format!("u{n}")).chain(["ann".into()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let mut machine = watching("tea", &[1]);
    round(&mut machine, 0, &Facts { members: &["ann"], online: &["ann"], ..Facts::default() });
    let reports =
        round(&mut machine, refreshed, &Facts { members: &many, online: &many, ..Facts::default() });
    assert_eq!((reports.len(), reports[0].is_last()), (1, true));
    assert_eq!(shown(&reports[0]), (vec![], vec![], true));
    assert_eq!((machine.watches(), machine.watched(), machine.users()), (0, 0, 0));
    assert_eq!(machine.poll_timeout(), None);
    // A watch that begins again gets no report of the one before it.
    machine.watch(1, &user("ann"), subject("tea"), 1).unwrap();
    machine.begin_round(Time::from_millis(2 * refreshed));
    assert_eq!(machine.poll_members(), [subject("tea")]);
    machine.handle_members(&subject("tea"), None);
    machine.watch(1, &user("ann"), subject("tea"), 1).unwrap();
    assert!(end(&mut machine, 2 * refreshed).is_empty());
}

#[test]
fn read_that_began_before_a_watch_does_not_end_it() {
    let mut machine = watching("tea", &[1]);
    machine.begin_round(Time::ZERO);
    assert_eq!(machine.poll_members(), [subject("tea")]);
    // Bob joins the group meanwhile.
    machine.watch(2, &user("bob"), subject("tea"), 2).unwrap();
    machine.handle_members(&subject("tea"), Some(users(&["ann"])));
    assert_eq!(machine.watches(), 2);
    end(&mut machine, 0);
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let reports = round(&mut machine, refreshed, &Facts { members: &["ann"], ..Facts::default() });
    assert!(reports.iter().any(|it| it.is_last() && it.watchers == [2]), "{reports:?}");
}

#[test]
fn last_report_that_is_dropped_comes_in_the_next_round() {
    let mut machine = watching("tea", &[1]);
    round(&mut machine, 0, &Facts { members: &["ann"], online: &["ann"], ..Facts::default() });
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let reports = round(&mut machine, refreshed, &Facts { members: &["bob"], ..Facts::default() });
    assert_eq!((reports.len(), reports[0].is_last()), (1, true));
    machine.handle_last_dropped(1, &group("tea"));
    assert!(machine.poll_timeout().is_some());
    let reports = round(&mut machine, refreshed + 1_000, &Facts::default());
    assert_eq!((reports.len(), shown(&reports[0])), (1, (vec![], vec![], true)));
    machine.handle_last_dropped(1, &group("tea"));
    machine.unwatch(1, &group("tea"));
    assert_eq!(machine.poll_timeout(), None, "the client has ended it itself");
}

#[test]
fn full_connection_and_full_node_refuse_a_watch() {
    let limits = PresenceLimits { watched_max: 40, members_max: 140, ..PresenceLimits::default() };
    let (mut machine, ann) = (Machine::new(limits), user("ann"));
    for n in 0..CONNECTION_WATCHES_MAX {
        machine.watch(1, &ann, subject(&format!("g{n}")), 2).unwrap();
    }
    assert_eq!(machine.watch(1, &ann, subject("more"), 2), Err(WatchRefusal::ConnectionFull));
    assert_eq!(machine.watch(1, &ann, subject("g0"), 2), Ok(()), "watched already");
    assert_eq!(machine.watch(2, &ann, subject("large"), 44), Err(WatchRefusal::NodeFull));
    let too_large = machine.watch(1, &ann, subject("g0"), WATCH_MEMBERS_MAX + 1);
    assert_eq!(too_large, Err(WatchRefusal::GroupTooLarge), "also one that is watched");
    for n in CONNECTION_WATCHES_MAX..40 {
        machine.watch(2, &ann, subject(&format!("g{n}")), 2).unwrap();
    }
    assert_eq!(machine.watch(2, &ann, subject("more"), 2), Err(WatchRefusal::NodeFull));
    assert_eq!(machine.watch(2, &ann, subject("g0"), 2), Ok(()), "another connection watches it");
    machine.unwatch(1, &group("g1"));
    assert_eq!(machine.watch(2, &ann, subject("more"), 2), Ok(()));
    machine.forget(1);
    machine.forget(2);
    assert_eq!((machine.watches(), machine.watched()), (0, 0));
    assert_eq!(machine.watch(2, &ann, subject("large"), 139), Ok(()), "nothing else is counted any more");
    assert_eq!(
        machine.watch(3, &ann, subject("large"), 139),
        Err(WatchRefusal::NodeFull),
        "a watch counts too"
    );
    let mut off = Machine::new(PresenceLimits { watched_max: 0, ..PresenceLimits::default() });
    assert_eq!(off.watch(1, &ann, subject("tea"), 2), Err(WatchRefusal::Off));
    let mut groups = Machine::new(PresenceLimits { has_direct: false, ..PresenceLimits::default() });
    let direct = WatchSubject::new(ConversationId::direct(&ann, &user("bob")), &ann);
    assert_eq!(groups.watch(1, &ann, direct, 2), Err(WatchRefusal::DirectOff));
    assert_eq!(groups.watch(1, &ann, subject("tea"), 2), Ok(()));
}

#[test]
fn user_has_a_share_of_the_watches_over_all_connections() {
    let mut machine = Machine::new(PresenceLimits { user_watches_max: 3, ..PresenceLimits::default() });
    let (ann, bob) = (user("ann"), user("bob"));
    for (watcher, name) in [(1, "tea"), (1, "jam"), (2, "tea")] {
        machine.watch(watcher, &ann, subject(name), 2).unwrap();
        machine.watch(watcher, &ann, subject(name), 2).unwrap();
    }
    assert_eq!(machine.watch(3, &ann, subject("tea"), 2), Err(WatchRefusal::UserFull));
    assert_eq!(machine.watch(3, &ann, subject("ham"), 2), Err(WatchRefusal::UserFull));
    assert_eq!(machine.watch(4, &bob, subject("ham"), 2), Ok(()), "others have theirs");
    machine.unwatch(2, &group("tea"));
    machine.unwatch(2, &group("tea"));
    assert_eq!(machine.watch(3, &ann, subject("ham"), 2), Ok(()));
    assert_eq!(machine.watch(3, &ann, subject("tea"), 2), Err(WatchRefusal::UserFull));
    machine.forget(1);
    assert_eq!(machine.watch(3, &ann, subject("tea"), 2), Ok(()));
    // A watch that ends for another reason counts no more either.
    round(&mut machine, 0, &Facts { members: &["bob"], ..Facts::default() });
    for n in 0..3 {
        assert_eq!(machine.watch(5, &ann, subject(&format!("g{n}")), 2), Ok(()));
    }
}

#[test]
fn group_that_grows_while_the_node_is_full_keeps_its_watches() {
    let limits = PresenceLimits { members_max: 4, ..PresenceLimits::default() };
    let mut machine = Machine::new(limits);
    for watcher in [1, 2] {
        machine.watch(watcher, &user("cid"), subject("tea"), 2).unwrap();
    }
    let all = &["ann", "bob", "cid"][..];
    round(&mut machine, 0, &Facts { members: &["bob", "cid"], online: all, ..Facts::default() });
    let refreshed = REFRESH_INTERVAL.as_millis() as u64;
    let facts = Facts { members: all, online: all, ..Facts::default() };
    assert!(round(&mut machine, refreshed, &facts).is_empty(), "there is no room for another one");
    assert_eq!((machine.watches(), machine.users()), (2, 2));
    machine.unwatch(2, &group("tea"));
    let reports = round(&mut machine, 2 * refreshed, &facts);
    assert_eq!(shown(&reports[0]), (vec!["ann"], vec![], false), "shown once there is");
}

#[test]
fn watches_that_begin_again_and_again_delay_nothing_that_is_due() {
    let (mut machine, mallory) = (watching("old", &[1]), user("mallory"));
    let (old, zoe) = (subject("old"), user("zoe"));
    let [mut reads, mut settings, mut lookups] = [0; 3];
    for nth in 0..20_u64 {
        // As many new members as a round reads.
        machine.forget(2);
        for n in 0..4 {
            machine.watch(2, &mallory, subject(&format!("g{nth}-{n}")), 500).unwrap();
        }
        machine.begin_round(Time::from_millis(nth * 1_000));
        drain(&mut machine, Machine::poll_members, |machine, it| {
            reads += usize::from(it == old);
            let members = match it == old {
                true => vec![user("zoe"), user("ann")],
                false => {
                    let of_group = |n| user(&format!("{n}-{}", &it.conversation.as_str()[2..]));
                    (1..500).map(of_group).chain([mallory.clone()]).collect()
                }
            };
            machine.handle_members(&it, Some(members));
        });
        drain(&mut machine, Machine::poll_settings, |machine, it| {
            settings += usize::from(it == zoe);
            machine.handle_setting(&it, true);
        });
        drain(&mut machine, Machine::poll_lookup, |machine, it| {
            lookups += usize::from(it == zoe);
            machine.handle_lookup(&it, true);
        });
        end(&mut machine, nth * 1_000);
    }
    // Every 8 s, and every other round at least.
    assert!(
        reads >= 3 && settings >= 3 && lookups >= 10,
        "{reads} reads, {settings} and {lookups} of a user"
    );
}

#[test]
fn round_looks_up_no_more_users_than_it_may_and_all_in_turn() {
    let limits = PresenceLimits { users_per_round: 2_000, ..PresenceLimits::default() };
    let mut machine = Machine::new(limits);
    let mut seen = BTreeSet::new();
    for n in 0..10 {
        machine.watch(n, &user("ann"), subject(&format!("g{n}")), 500).unwrap();
    }
    for nth in 0..8_u64 {
        machine.begin_round(Time::from_millis(nth * 1_000));
        let mut reads = 0;
        handle_all(&mut machine, Machine::poll_members, |machine, found| {
            for it in &found {
                reads += 1;
                let name = it.conversation.as_str();
                let members = (1..500).map(|n| user(&format!("{}-{n}", &name[2..]))).chain([user("ann")]);
                machine.handle_members(it, Some(members.collect()));
            }
        });
        assert!(reads <= 4, "{reads} groups of 500");
        handle_all(&mut machine, Machine::poll_settings, |machine, found| {
            found.iter().for_each(|user| machine.handle_setting(user, true));
        });
        let mut looked_up = 0;
        handle_all(&mut machine, Machine::poll_lookup, |machine, found| {
            assert!(found.len() <= LOOKUP_USERS_MAX);
            looked_up += found.len();
            for user in found {
                machine.handle_lookup(&user, false);
                seen.insert(user);
            }
        });
        assert!(looked_up <= 2_000, "{looked_up}");
        end(&mut machine, nth * 1_000);
    }
    assert_eq!((seen.len(), machine.users()), (4_991, 4_991));
}

#[test]
fn direct_conversation_is_watched_by_each_of_its_users_apart() {
    let (ann, bob) = (user("ann"), user("bob"));
    let direct = ConversationId::direct(&ann, &bob);
    let of = |user: &UserId| WatchSubject::new(direct.clone(), user);
    let mut machine = Machine::new(PresenceLimits::default());
    machine.watch(1, &ann, of(&ann), 2).unwrap();
    machine.watch(2, &bob, of(&bob), 2).unwrap();
    machine.begin_round(Time::ZERO);
    assert_eq!(machine.poll_members(), [of(&ann), of(&bob)]);
    // Bob blocks Ann.
    machine.handle_members(&of(&ann), Some(vec![ann.clone()]));
    machine.handle_members(&of(&bob), Some(vec![ann.clone(), bob.clone()]));
    for user in machine.poll_settings() {
        machine.handle_setting(&user, true);
    }
    for user in machine.poll_lookup() {
        machine.handle_lookup(&user, true);
    }
    let reports = end(&mut machine, 0);
    let shown_to: Vec<_> = reports.iter().map(|it| (it.watchers[0], shown(it).0)).collect();
    assert_eq!(shown_to, [(1, vec!["ann"]), (2, vec!["ann", "bob"])]);
}
