//! Tests of the guard: exact counts over all rules, a naive model, replaced rules, and repeated texts.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use tidegate_protocol::Time;

use super::{LimitCall, LimitContent, LimitLevel, LimitRefusal, LimitSubjects, RuleGuard, RuleSet};
use crate::metrics;

pub(super) fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

pub(super) fn set(text: &str) -> RuleSet {
    RuleSet::parse(text, Duration::from_secs(2)).unwrap()
}

pub(super) fn guard(text: &str) -> RuleGuard {
    RuleGuard::new(&set(text), metrics::install().0, Instant::now())
}

fn rule(id: &str, level: LimitLevel, window: &str, limit: u32) -> String {
    let call = if level == LimitLevel::Key { "api:post" } else { "send" };
    format!(
        "[[rule]]\nid = \"{id}\"\nlevel = \"{}\"\ncalls = [\"{call}\"]\nwindow = \"{window}\"\nlimit = {limit}\n",
        level.name()
    )
}

fn of_user(user: &str) -> LimitSubjects<'_> {
    LimitSubjects { user: Some(user), ..LimitSubjects::default() }
}

fn send(guard: &RuleGuard, subjects: &LimitSubjects<'_>, ms: u64) -> Result<(), LimitRefusal> {
    guard.admit(LimitCall::Send, subjects, at(ms), false, || Ok(()))
}

/// Returns the binding rule and the wait of a refusal.
fn refused(result: Result<(), LimitRefusal>) -> Option<(String, u64)> {
    let refusal = result.err()?;
    Some((refusal.rule?.id.to_string(), refusal.wait.as_millis() as u64))
}

/// Rules of ten levels and windows; all subjects of a request are the same for all threads, or of a thread alone.
const TEN: [(&str, LimitLevel, &str); 10] = [
    ("node", LimitLevel::Node, "1h"),
    ("org", LimitLevel::Organisation, "1h"),
    ("channel", LimitLevel::Channel, "30m"),
    ("user", LimitLevel::User, "1h"),
    ("user-short", LimitLevel::User, "20m"),
    ("device", LimitLevel::Device, "1h"),
    ("conversation", LimitLevel::Conversation, "1h"),
    ("address", LimitLevel::Address, "1h"),
    ("content", LimitLevel::Content, "1h"),
    ("content-short", LimitLevel::Content, "10m"),
];

fn all_subjects() -> LimitSubjects<'static> {
    LimitSubjects {
        organisation: Some("acme"),
        channel: Some("push"),
        user: Some("ann"),
        device: Some("phone"),
        conversation: Some("g:team"),
        is_stranger: false,
        address: Some([192, 0, 2, 1].into()),
        content: Some(LimitContent::Plain(b"buy now, it is cheap")),
        key: None,
        connection: None,
    }
}

/// Returns the hits that count in each rule.
fn used(guard: &RuleGuard, now: Time) -> Vec<(String, u32)> {
    let named = [
        (LimitLevel::Node, ""),
        (LimitLevel::Organisation, "acme"),
        (LimitLevel::Channel, "push"),
        (LimitLevel::User, "ann"),
        (LimitLevel::Device, "ann:phone"),
        (LimitLevel::Conversation, "g:team"),
        (LimitLevel::Address, "192.0.2.1"),
        (LimitLevel::Content, "Buy  NOW, it is cheap"),
    ];
    let states = named.iter().flat_map(|(level, name)| guard.states(*level, name, now).unwrap());
    states.map(|state| (state.rule.id.to_string(), state.used)).collect()
}

/// Offers `offered` messages on 64 threads, with one rule that binds at `limit`; returns how many are admitted.
fn offer(binding: usize, limit: u32, offered: usize) -> (usize, Vec<(String, u32)>) {
    let text: String = TEN
        .iter()
        .enumerate()
        .map(|(n, (id, level, window))| {
            rule(id, *level, window, if n == binding { limit } else { limit + 9 })
        })
        .collect();
    let guard = guard(&text);
    let (left, admitted) = (AtomicUsize::new(offered), AtomicUsize::new(0));
    let take = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
    thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                while take() {
                    if send(&guard, &all_subjects(), 5).is_ok() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    (admitted.into_inner(), used(&guard, at(5)))
}

#[test]
fn ten_rules_admit_exactly_their_limit_on_64_threads() {
    for (binding, (id, ..)) in TEN.iter().enumerate() {
        for limit in [7, 40] {
            for offered in [limit as usize, limit as usize + 1, limit as usize + 64] {
                let (admitted, used) = offer(binding, limit, offered);
                assert_eq!(admitted, limit as usize, "{id} of {offered}");
                assert_eq!(used.len(), TEN.len());
                assert!(used.iter().all(|(_, used)| *used == limit), "{used:?}");
            }
        }
    }
}

#[test]
fn refused_request_counts_in_no_rule_and_not_in_other_limits() {
    let text: String = TEN.iter().map(|(id, level, window)| rule(id, *level, window, 5)).collect();
    let guard = guard(&(text + &rule("tight", LimitLevel::Conversation, "1m", 2)));
    for _ in 0..2 {
        assert!(send(&guard, &all_subjects(), 0).is_ok());
    }
    let before = used(&guard, at(9));
    for _ in 0..50 {
        let refusal = guard
            .admit(LimitCall::Send, &all_subjects(), at(9), false, || panic!("other limits are not asked"));
        assert_eq!(refused(refusal), Some(("tight".to_owned(), 59_992)));
    }
    assert_eq!(used(&guard, at(9)), before);
    let other = LimitSubjects { conversation: Some("g:other"), ..all_subjects() };
    for _ in 0..50 {
        let refusal =
            guard.admit(LimitCall::Send, &other, at(9), false, || Err(Duration::from_millis(7).into()));
        let refusal: LimitRefusal = refusal.unwrap_err();
        assert!(refusal.rule.is_none() && refusal.wait == Duration::from_millis(7));
    }
    assert_eq!(used(&guard, at(9)), before);
}

#[test]
fn rule_with_the_longest_wait_is_named() {
    let guard = guard(
        &(rule("short", LimitLevel::User, "1s", 1) + &rule("long", LimitLevel::Organisation, "10s", 1)),
    );
    let subjects = LimitSubjects { organisation: Some("acme"), ..of_user("ann") };
    assert!(send(&guard, &subjects, 0).is_ok());
    assert_eq!(refused(send(&guard, &subjects, 1)), Some(("long".to_owned(), 10_000)));
    let elsewhere = LimitSubjects { organisation: Some("other"), ..of_user("ann") };
    assert_eq!(refused(send(&guard, &elsewhere, 1)), Some(("short".to_owned(), 1_000)));
    assert!(send(&guard, &elsewhere, 1_001).is_ok(), "the wait is the true one");
}

#[test]
fn rules_concern_only_their_calls_and_subjects() {
    let text = rule("org", LimitLevel::Organisation, "1s", 1)
        + "except = [\"friends\"]\n"
        + &rule("network", LimitLevel::Address, "1s", 1)
        + "except = [\"198.51.100.0/24\"]\n"
        + &rule("key", LimitLevel::Key, "1s", 1);
    let guard = guard(&text);
    for _ in 0..5 {
        assert!(send(&guard, &of_user("ann"), 0).is_ok(), "without an organisation");
        let friends = LimitSubjects { organisation: Some("friends"), ..of_user("ann") };
        assert!(send(&guard, &friends, 0).is_ok());
        for address in ["198.51.100.7", "127.0.0.1", "::1"] {
            let address = Some(address.parse::<IpAddr>().unwrap());
            assert!(send(&guard, &LimitSubjects { address, ..of_user("ann") }, 0).is_ok());
        }
        let acme = LimitSubjects { organisation: Some("acme"), ..LimitSubjects::default() };
        assert!(guard.admit(LimitCall::Join, &acme, at(0), false, || Ok::<_, LimitRefusal>(())).is_ok());
    }
    let key = LimitSubjects { key: Some("k1"), ..LimitSubjects::default() };
    let post = || guard.admit(LimitCall::ApiPost, &key, at(0), false, || Ok::<_, LimitRefusal>(()));
    assert!(post().is_ok());
    assert_eq!(refused(post()), Some(("key".to_owned(), 1_001)));
    let of = |address: &str| LimitSubjects { address: Some(address.parse().unwrap()), ..of_user("ann") };
    assert!(send(&guard, &of("2001:db8::1"), 0).is_ok());
    assert_eq!(refused(send(&guard, &of("2001:db8::2"), 0)).unwrap().0, "network");
}

#[test]
fn message_waits_if_all_rules_let_it() {
    let delay = |wait: &str| format!("action = \"delay\"\nmax_wait = \"{wait}\"\n");
    let text = rule("user", LimitLevel::User, "1s", 1)
        + &delay("1500ms")
        + &rule("org", LimitLevel::Organisation, "1500ms", 1)
        + &delay("1s")
        + &rule("channel", LimitLevel::Channel, "100ms", 1);
    let guard = guard(&text);
    let ask = |subjects: &LimitSubjects<'_>, can_wait| {
        let refused = guard.admit(LimitCall::Send, subjects, at(10), can_wait, || Ok(()));
        let refusal: LimitRefusal = refused.unwrap_err();
        (refusal.is_delay, refusal.wait.as_millis())
    };
    let all = LimitSubjects { organisation: Some("acme"), channel: Some("push"), ..of_user("ann") };
    assert!(send(&guard, &all, 0).is_ok());
    assert_eq!(ask(&of_user("ann"), true), (true, 991));
    assert_eq!(ask(&of_user("ann"), false), (false, 991));
    let of_org = LimitSubjects { organisation: Some("acme"), ..LimitSubjects::default() };
    assert_eq!(ask(&of_org, true), (false, 1_491), "longer than its max_wait");
    let both = LimitSubjects { channel: Some("push"), ..of_user("ann") };
    assert_eq!(ask(&both, true), (false, 991), "one of them refuses at once");
    let states = guard.states(LimitLevel::User, "ann", at(10)).unwrap();
    assert_eq!((states[0].totals.admitted, states[0].totals.refused, states[0].totals.delayed), (1, 2, 1));
}

#[test]
fn request_is_refused_in_advance_only_if_it_would_not_wait_and_counts_nowhere() {
    let text = rule("few", LimitLevel::User, "1s", 2)
        + &rule("calm", LimitLevel::Device, "1s", 1)
        + "action = \"delay\"\nmax_wait = \"1500ms\"\n";
    let guard = guard(&text);
    let of_device = |device| LimitSubjects { device: Some(device), ..of_user("ann") };
    let refuses = |device, ms| {
        let refusal = guard.refuses(LimitCall::Send, &of_device(device), at(ms));
        refusal.map(|refusal| (refusal.rule.unwrap().id.to_string(), refusal.wait.as_millis() as u64))
    };
    for _ in 0..9 {
        assert_eq!(refuses("phone", 0), None);
    }
    assert!(send(&guard, &of_device("phone"), 0).is_ok());
    assert_eq!(refuses("phone", 1), None, "it waits");
    assert!(send(&guard, &of_device("laptop"), 2).is_ok(), "nothing was counted in advance");
    assert_eq!(refuses("watch", 3), Some(("few".to_owned(), 998)));
    assert!(guard.refuses(LimitCall::Join, &of_device("watch"), at(3)).is_none());
    let totals = |level, name| guard.states(level, name, at(3)).unwrap()[0].totals;
    let of_user = totals(LimitLevel::User, "ann");
    assert_eq!((of_user.admitted, of_user.refused), (2, 1), "what it refuses is counted as refused");
    assert_eq!(totals(LimitLevel::Device, "ann:phone").delayed, 0);
}

#[test]
fn dry_run_refuses_nothing_and_counts_what_it_would() {
    let guard = guard(&(rule("dry", LimitLevel::User, "1s", 2) + "dry_run = true\n"));
    for _ in 0..5 {
        assert!(send(&guard, &of_user("ann"), 0).is_ok());
    }
    let state = &guard.states(LimitLevel::User, "ann", at(0)).unwrap()[0];
    assert_eq!(
        (state.used, state.totals.admitted, state.totals.refused, state.totals.dry_refused),
        (2, 5, 0, 3)
    );
}

#[test]
fn unchanged_rules_keep_their_windows_when_others_are_replaced() {
    let kept = rule("kept", LimitLevel::User, "1h", 3);
    let guard = guard(&(kept.clone() + &rule("changed", LimitLevel::User, "1h", 5)));
    for _ in 0..3 {
        assert!(send(&guard, &of_user("ann"), 0).is_ok());
    }
    guard.replace(&set(&(rule("first", LimitLevel::Node, "1h", 100)
        + &kept
        + &rule("changed", LimitLevel::User, "1h", 4))));
    assert_eq!(refused(send(&guard, &of_user("ann"), 1)).unwrap().0, "kept");
    let used: Vec<_> =
        guard.states(LimitLevel::User, "ann", at(1)).unwrap().iter().map(|it| it.used).collect();
    assert_eq!(used, [3, 0], "the rule that changed begins again");
    guard.replace(&set(&(kept.clone() + "dry_run = true\n")));
    assert!(send(&guard, &of_user("ann"), 2).is_ok());
    guard.replace(&set(&kept));
    assert_eq!(refused(send(&guard, &of_user("ann"), 3)).unwrap().0, "kept", "a dry run is the same rule");
    guard.replace(&RuleSet::default());
    assert!(send(&guard, &of_user("ann"), 4).is_ok());
}

#[test]
fn rules_may_be_replaced_while_requests_are_decided() {
    let (one, other) = (rule("a", LimitLevel::Node, "1h", 1_000), rule("b", LimitLevel::User, "1h", 1_000));
    let guard = guard(&one);
    let admitted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    admitted
                        .fetch_add(usize::from(send(&guard, &of_user("ann"), 0).is_ok()), Ordering::SeqCst);
                }
            });
        }
        for n in 0..200 {
            let order = if n % 2 == 0 { other.clone() + &one } else { one.clone() + &other };
            guard.replace(&set(&order));
        }
    });
    assert_eq!(admitted.into_inner(), 1_000);
}

#[test]
fn repeated_text_is_limited_and_other_texts_are_not() {
    for limit in 1..4 {
        let guard = guard(&rule("spam", LimitLevel::Content, "1m", limit));
        let say = |text: &str, ms| {
            let subjects =
                LimitSubjects { content: Some(LimitContent::Plain(text.as_bytes())), ..of_user("ann") };
            refused(send(&guard, &subjects, ms))
        };
        for n in 0..limit {
            assert_eq!(say(&format!("WIN {n} eur"), 0), None, "{limit}");
        }
        assert_eq!(say("win  7 EUR ", 1).unwrap().0, "spam");
        for n in 0..500 {
            let word: String = format!("{n}").bytes().map(|digit| char::from(digit + 50)).collect();
            assert_eq!(say(&format!("hello {word}"), 2), None);
        }
        assert_eq!(say("win 1 eur", 75_002), None, "a window and a quarter later");
    }
}

#[test]
fn nobody_uses_up_the_window_of_others() {
    let text = rule("group", LimitLevel::Conversation, "1m", 2)
        + &rule("node", LimitLevel::Node, "1m", 6)
        + &rule("spam", LimitLevel::Content, "1m", 2);
    let guard = guard(&text);
    let say = |user, is_stranger, text: &'static str| {
        let content = Some(LimitContent::Plain(text.as_bytes()));
        let subjects = LimitSubjects { conversation: Some("g:team"), is_stranger, content, ..of_user(user) };
        refused(send(&guard, &subjects, 0)).map(|(id, _)| id)
    };
    for _ in 0..2 {
        assert_eq!(say("eve", true, "ok"), None);
    }
    assert_eq!(say("eve", true, "other").as_deref(), Some("group"));
    for _ in 0..2 {
        assert_eq!(say("ann", false, "OK "), None, "members and short texts have windows of their own");
    }
    assert_eq!(say("mia", true, "ok"), None, "another stranger");
    assert_eq!(say("ann", false, "other").as_deref(), Some("group"));
    assert_eq!(say("leo", true, "another one"), None);
    assert_eq!(say("kim", true, "another one").as_deref(), Some("node"));
    let post = guard
        .admit(LimitCall::ApiPost, &LimitSubjects::default(), at(0), false, || Ok::<_, LimitRefusal>(()));
    assert!(post.is_ok(), "the admin API has a window of its own");
}

#[test]
fn more_new_texts_than_the_filter_takes_are_counted_in_the_table() {
    let guard = guard(&(rule("spam", LimitLevel::Content, "1h", 4) + "keys_max = 100\n"));
    let say = |n: u64, ms| {
        let text: String =
            format!("a text of its own {n}").bytes().map(|it| it.wrapping_add(50)).map(char::from).collect();
        send(
            &guard,
            &LimitSubjects { content: Some(LimitContent::Plain(text.as_bytes())), ..of_user("ann") },
            ms,
        )
        .is_ok()
    };
    let refused = (0..512).filter(|n| !say(*n, 0)).count();
    assert!(refused <= 1, "{refused}");
    assert_eq!((512..700).filter(|n| !say(*n, 1)).count(), 0, "the table forgets, and does not refuse");
    assert!((0..20).all(|n| say(n, 2)), "the filter reports each text once");
}

#[test]
fn states_are_those_of_named_subjects() {
    let guard = guard(&rule("device", LimitLevel::Device, "1m", 1));
    let subjects = LimitSubjects { device: Some("phone"), ..of_user("ann") };
    assert!(send(&guard, &subjects, 0).is_ok());
    let state = &guard.states(LimitLevel::Device, "ann:phone", at(1)).unwrap()[0];
    assert_eq!((state.used, state.wait), (1, Some(Duration::from_millis(60_000))));
    let other = &guard.states(LimitLevel::Device, "ann:tv", at(1)).unwrap()[0];
    assert_eq!((other.used, other.wait, other.is_excepted), (0, None, false));
    for (level, wrong) in [
        (LimitLevel::Node, "x"),
        (LimitLevel::User, ""),
        (LimitLevel::Device, "ann"),
        (LimitLevel::Device, "ann:"),
        (LimitLevel::Conversation, "nonsense"),
        (LimitLevel::Conversation, "d:bob:ann"),
        (LimitLevel::Content, "#x"),
        (LimitLevel::Address, "here"),
    ] {
        assert!(guard.states(level, wrong, at(1)).is_none(), "{wrong}");
    }
    assert!(guard.states(LimitLevel::Node, "", at(1)).unwrap().is_empty());
}

/// Requests by the naive model: all times at which a subject was admitted.
#[derive(Default)]
struct Naive(HashMap<(usize, String), Vec<u64>>);

impl Naive {
    /// Returns the rules that refuse a request at `now`, with the earliest time at which each admits it.
    fn admit(
        &mut self,
        rules: &[(LimitLevel, u64, u32)],
        subjects: &[String],
        now: u64,
    ) -> Vec<(usize, u64)> {
        let mut refusing = Vec::new();
        for (at, (_, window, limit)) in rules.iter().enumerate() {
            let hits = self.0.entry((at, subjects[at].clone())).or_default();
            hits.retain(|hit| hit + window >= now);
            if hits.len() >= *limit as usize {
                refusing.push((at, hits[hits.len() - *limit as usize] + window + 1));
            }
        }
        if refusing.is_empty() {
            for (at, subject) in subjects.iter().enumerate() {
                self.0.entry((at, subject.clone())).or_default().push(now);
            }
        }
        refusing
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Limits of at most 16 are exact to the millisecond, so guard and model agree on each request and each wait.
    #[test]
    fn guard_agrees_with_a_naive_model(
        limits in prop::collection::vec((0..4_usize, 1..20_u64, 1..=16_u32), 1..6),
        requests in prop::collection::vec((0..3_usize, 0..2_usize, 0..400_u64), 1..200),
    ) {
        let levels = [LimitLevel::Node, LimitLevel::Organisation, LimitLevel::User, LimitLevel::Device];
        let rules: Vec<(LimitLevel, u64, u32)> =
            limits.iter().map(|(level, window, limit)| (levels[*level], window * 100, *limit)).collect();
        let text: String = rules
            .iter()
            .enumerate()
            .map(|(n, (level, window, limit))| rule(&format!("r{n}"), *level, &format!("{window}ms"), *limit))
            .collect();
        let (guard, mut model, mut now) = (guard(&text), Naive::default(), 0);
        for (user, organisation, step) in requests {
            now += step;
            let (user, organisation) = (format!("u{user}"), format!("o{organisation}"));
            let subjects = LimitSubjects {
                organisation: Some(&organisation),
                user: Some(&user),
                device: Some("d"),
                ..LimitSubjects::default()
            };
            let named: Vec<String> = rules
                .iter()
                .map(|(level, ..)| match level {
                    LimitLevel::Node => String::new(),
                    LimitLevel::Organisation => organisation.clone(),
                    _ => user.clone(),
                })
                .collect();
            let refusing = model.admit(&rules, &named, now);
            let got = send(&guard, &subjects, now);
            let until = refusing.iter().map(|(_, until)| *until).max();
            prop_assert_eq!(got.err().map(|it| now + it.wait.as_millis() as u64), until);
        }
    }
}
