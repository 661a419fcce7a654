//! Tests of limits that follow the load: their exact counts, what they report, and how rules are written.

use std::{sync::mpsc, time::Duration};

use proptest::prelude::*;
use tidegate_protocol::{
    machine::threshold::{LoadPressure, PressureSignal, Threshold},
    pb,
};

use super::{
    super::{
        LimitCall, LimitLevel, LimitRefusal, LimitSubjects, RuleForm, RuleGuard, RuleSet,
        tests::{at, guard, set},
    },
    RecentUse,
};

const RULE: &str =
    "[[rule]]\nid = \"r\"\nlevel = \"user\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n";
const BOUNDS: &str = "dynamic = { min = 5, max = 150 }\n";

/// Monday 09:00.
const WALL_MS: u64 = (4 * 24 + 9) * 3_600_000;

fn busy(value: f64) -> LoadPressure {
    LoadPressure { signal: PressureSignal::ShardBusy, shard: Some(0), value, target: 0.9 }
}

fn send(guard: &RuleGuard, user: &str, ms: u64) -> Result<(), LimitRefusal> {
    let subjects = LimitSubjects { user: Some(user), ..LimitSubjects::default() };
    guard.admit(LimitCall::Send, &subjects, at(ms), false, || Ok(()))
}

/// Lets the rules follow a shard that was busy for that part of a second.
fn follow(guard: &RuleGuard, value: f64) {
    guard.follow_load(&[busy(value)], at(0), WALL_MS, |_| false);
}

fn threshold(guard: &RuleGuard, user: &str) -> Threshold {
    guard.states(LimitLevel::User, user, at(0)).unwrap()[0].threshold.unwrap()
}

/// Floods the guard at one time; returns how many are admitted.
fn flood(guard: &RuleGuard, user: &str, ms: u64) -> usize {
    (0..300).filter(|_| send(guard, user, ms).is_ok()).count()
}

#[test]
fn dynamic_rule_admits_exactly_its_present_limit() {
    let guard = guard(&(RULE.to_owned() + BOUNDS));
    let mut limits = Vec::new();
    for second in 0..60 {
        let limit = threshold(&guard, "ann").limit;
        assert_eq!(flood(&guard, "ann", second * 2_000), limit as usize, "second {second}");
        limits.push(limit);
        follow(&guard, if second < 20 { 2.0 } else { 0.5 });
    }
    assert_eq!(limits[..4], [100, 82, 67, 55], "by a fifth each second");
    assert_eq!(limits[15..21], [10; 6], "the least load factor is 0.1");
    assert!(limits[21..].windows(2).all(|two| two[0] <= two[1]) && limits[59] > 25, "{limits:?}");
}

#[test]
fn dynamic_rule_keeps_within_its_bounds() {
    let guard = guard(&(RULE.to_owned() + "dynamic = { min = 60, max = 110 }\n"));
    for second in 0..20 {
        flood(&guard, "ann", second * 2_000);
        follow(&guard, 2.0);
    }
    assert_eq!((threshold(&guard, "ann").limit, flood(&guard, "ann", 100_000)), (60, 60));
    for second in 0..120 {
        flood(&guard, "ann", 200_000 + second * 2_000);
        follow(&guard, 0.1);
    }
    let raised = threshold(&guard, "ann");
    assert_eq!(
        (raised.load_hundredths, raised.limit),
        (120, 110),
        "it is reached, so it may rise above its base"
    );
    assert_eq!(flood(&guard, "ann", 900_000), 110);
}

#[test]
fn refusals_before_the_hook_let_a_reached_limit_rise() {
    let guard = guard(&(RULE.to_owned() + BOUNDS));
    let ann = LimitSubjects { user: Some("ann"), ..LimitSubjects::default() };
    for second in 0..120 {
        let ms = second * 2_000;
        // The check in advance is the only one that refuses.
        while guard.refuses(LimitCall::Send, &ann, at(ms)).is_none() {
            send(&guard, "ann", ms).unwrap();
        }
        follow(&guard, 0.1);
    }
    assert_eq!(threshold(&guard, "ann").load_hundredths, 120);
}

#[test]
fn refusal_of_a_dynamic_rule_names_the_present_limit() {
    let guard = guard(&(RULE.to_owned() + BOUNDS));
    flood(&guard, "ann", 0);
    follow(&guard, 2.0);
    let refusal = (0..300).find_map(|_| send(&guard, "ben", 5_000).err()).unwrap();
    let mut error = pb::Error::default();
    refusal.describe(&mut error);
    assert_eq!(error.detail["limit"], "82");
    assert_eq!(
        threshold(&guard, "ben").to_string(),
        "base 100 x load 0.82 x history 1 = 82 (bounds 5 to 150); load: shard 0 busy 2.00 of 0.90"
    );
    assert_eq!(guard.uses(at(0))[0].threshold.unwrap().limit, 82);
}

#[test]
fn other_rules_do_not_follow_the_load() {
    let guard = guard(RULE);
    for second in 0..9 {
        assert_eq!(flood(&guard, "ann", second * 2_000), 100);
        follow(&guard, 2.0);
    }
    assert!(guard.states(LimitLevel::User, "ann", at(0)).unwrap()[0].threshold.is_none());
}

#[test]
fn changed_rule_has_its_present_limit_at_once() {
    let guard = guard(&(RULE.to_owned() + BOUNDS));
    flood(&guard, "ann", 0);
    (0..9).for_each(|_| follow(&guard, 2.0));
    let former = threshold(&guard, "ann").limit;
    assert!(former < 20, "{former}");
    // The window goes on with other bounds, and a rule whose limit follows no load begins a new one.
    guard.replace(&set(&(RULE.to_owned() + "dynamic = { min = 40, max = 150 }\n")));
    assert_eq!(flood(&guard, "ann", 500), 0);
    assert_eq!(flood(&guard, "ben", 500), 40);
    guard.replace(&set(RULE));
    assert_eq!(flood(&guard, "ann", 500), 100);
    guard.replace(&set(&(RULE.to_owned() + BOUNDS)));
    assert_eq!(flood(&guard, "ann", 500), former as usize, "not its base for a second");
}

/// Follows the load for some seconds, in each of which the user sends so many messages; returns the load factors in
/// hundredths.
fn factors(guard: &RuleGuard, sent: &[usize]) -> Vec<u32> {
    let second = |(n, sent): (usize, &usize)| {
        let now = n as u64 * 1_100;
        (0..*sent).for_each(|_| send(guard, "ann", now).unwrap());
        guard.follow_load(&[busy(2.0)], at(now + 999), WALL_MS, |_| false);
        threshold(guard, "ann").load_hundredths
    };
    sent.iter().enumerate().map(second).collect()
}

#[test]
fn margin_that_no_subject_uses_delays_a_lasting_load_no_more() {
    let guard = guard(&(RULE.to_owned() + BOUNDS));
    assert_eq!(factors(&guard, &[50, 50, 50, 0]), [82, 67, 41, 34], "from 0.5 on in the third second");
}

#[test]
fn long_window_keeps_what_was_used_of_it() {
    let with_window = |window: &str| guard(&(RULE.replace("1s", window) + BOUNDS));
    assert_eq!(factors(&with_window("1m"), &[50, 0, 0, 0]), [82, 67, 41, 34], "still from 0.5 on");
    assert_eq!(factors(&with_window("3s"), &[50, 0, 0, 0])[2..], [41, 34]);
    assert_eq!(factors(&with_window("1s"), &[50, 0, 0, 0])[2..], [55, 45], "nothing is used any more");
    let mut recent = RecentUse::default();
    let values = [0.5, 0.9, 0.1, 0.3, 0.2, 0.0];
    let largest = values
        .into_iter()
        .enumerate()
        .map(|(n, value)| recent.largest(value, Duration::from_secs(2), at(n as u64 * 1_000)));
    assert_eq!(largest.collect::<Vec<_>>(), [0.5, 0.9, 0.9, 0.9, 0.3, 0.3]);
}

#[test]
fn request_waits_for_no_step() {
    let guard = guard(&(OF_ORGS.to_owned() + BOUNDS));
    let (sender, receiver) = mpsc::sync_channel(1);
    let keys = guard.thresholds.keys.lock();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let subjects = LimitSubjects { organisation: Some("acme"), ..LimitSubjects::default() };
            let admit =
                || guard.admit(LimitCall::Send, &subjects, at(0), false, || Ok::<_, LimitRefusal>(()));
            sender.send((0..90).filter(|_| admit().is_ok()).count())
        });
        let admitted = receiver.recv_timeout(Duration::from_secs(9));
        drop(keys);
        assert_eq!(admitted, Ok(90));
    });
}

#[test]
fn regular_order_of_requests_leaves_no_subject_out() {
    let mut office = Office::new();
    for _ in 0..200 {
        (0..16).for_each(|n| assert_eq!(office.send(&format!("org-{n}"), 1), 1));
        office.now_ms += 100;
    }
    assert_eq!(office.guard.thresholds.keys.lock().all().len(), 16);
}

#[test]
fn bounds_of_a_dynamic_rule_are_checked() {
    let problems = |text: &str| RuleSet::parse(text, Duration::from_secs(2)).unwrap_err().join("\n");
    for wrong in
        ["min = 0, max = 150", "min = 101, max = 150", "min = 5, max = 99", "min = 5, max = 1000000001"]
    {
        let found = problems(&format!("{RULE}dynamic = {{ {wrong} }}\n"));
        assert_eq!(
            found, "rule `r`: dynamic: min between 1 and the limit, max between the limit and 1000000000",
            "{wrong}"
        );
    }
    let found = problems(&format!("{RULE}{BOUNDS}scope = \"cluster\"\n"));
    assert!(found.starts_with("rule `r`: dynamic: only with scope = \"node\""), "{found}");
    let found = problems(&(RULE.replace("1s", "2m") + BOUNDS));
    assert_eq!(found, "rule `r`: dynamic: only with a window of at most 1m");
    for wrong in ["dynamic = true\n", "dynamic = { min = 5 }\n", "dynamic = { min = 5, max = 150, by = 2 }\n"]
    {
        problems(&(RULE.to_owned() + wrong));
    }
}

#[test]
fn stored_rules_without_bounds_are_read_and_stay_as_they_are() {
    const OLD: &str = r#"{"level":"user","calls":["send"],"window":"1s","limit":100}"#;
    let form: RuleForm = serde_json::from_str(OLD).unwrap();
    assert_eq!(serde_json::to_value(&form).unwrap(), as_json(OLD));
    let new = OLD.replace('}', r#","dynamic":{"max":150,"min":5}}"#);
    let form: RuleForm = serde_json::from_str(&new).unwrap();
    assert_eq!(serde_json::to_value(&form).unwrap(), as_json(&new));
    let guard = guard("");
    guard.apply_stored([("r", Some((1, new.as_bytes()))), ("old", Some((2, OLD.as_bytes())))].into_iter());
    let states = guard.states(LimitLevel::User, "ann", at(0)).unwrap();
    let dynamic: Vec<(&str, bool)> = states.iter().map(|it| (&*it.rule.id, it.threshold.is_some())).collect();
    assert_eq!(dynamic.len(), 2);
    assert!(dynamic.contains(&("r", true)) && dynamic.contains(&("old", false)), "{dynamic:?}");
}

/// Returns the rule as JSON.
fn as_json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

proptest! {
    /// Whatever the load, each message is admitted or refused by the limit of its time.
    #[test]
    fn dynamic_rule_agrees_with_a_naive_model(
        base in 1_u32..60,
        steps in prop::collection::vec((0_u64..400, 1_usize..40, 0.0_f64..2.5), 1..60),
    ) {
        const WINDOW_MS: u64 = 1_000;
        let text = RULE.replace("limit = 100", &format!("limit = {base}"));
        let guard = guard(&format!("{text}dynamic = {{ min = 1, max = {} }}\n", base * 2));
        let (mut now, mut admitted) = (0, Vec::new());
        for (wait, hits, pressure) in steps {
            now += wait;
            let limit = threshold(&guard, "ann").limit as usize;
            for _ in 0..hits {
                let within = |ms: u64| admitted.iter().filter(|hit| **hit + ms >= now).count();
                let (counted, late) = (within(WINDOW_MS), within(WINDOW_MS + WINDOW_MS.div_ceil(16)));
                if send(&guard, "ann", now).is_ok() {
                    prop_assert!(counted < limit, "{counted} of {limit} at {now}");
                    admitted.push(now);
                } else {
                    prop_assert!(late >= limit, "{late} of {limit} at {now}");
                }
            }
            follow(&guard, pressure);
        }
    }
}

const OF_ORGS: &str =
    "[[rule]]\nid = \"org-1s\"\nlevel = \"org\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n";
const HOUR_MS: u64 = 3_600_000;
const WEEK_MS: u64 = 168 * HOUR_MS;

/// Organisations that use a guard, by the clock of the guard and by that of the wall.
struct Office {
    guard: RuleGuard,
    now_ms: u64,
}

impl Office {
    fn new() -> Self {
        Self::with("")
    }

    /// Office whose rule has a further line.
    fn with(line: &str) -> Self {
        Self { guard: guard(&(OF_ORGS.to_owned() + BOUNDS + line)), now_ms: 0 }
    }

    /// Sends messages of an organisation in the present millisecond; returns how many are admitted.
    fn send(&self, org: &str, count: usize) -> usize {
        let subjects = LimitSubjects { organisation: Some(org), ..LimitSubjects::default() };
        let admit = || {
            self.guard.admit(LimitCall::Send, &subjects, at(self.now_ms), false, || Ok::<_, LimitRefusal>(()))
        };
        (0..count).filter(|_| admit().is_ok()).count()
    }

    fn follow(&mut self, wall_ms: u64, value: f64) {
        self.guard.follow_load(&[busy(value)], at(self.now_ms), wall_ms, |_| false);
        self.now_ms += 2_000;
    }

    /// Lets an hour of a week pass in which the organisation sends so many messages each second.
    fn hour(&mut self, week: u64, org: &str, count: usize, load: f64) {
        let begin = WALL_MS + week * WEEK_MS;
        for second in 0..3_300 {
            self.send(org, count);
            self.follow(begin + second * 1_000, load);
            if second == 0 {
                self.read(None);
            }
        }
        self.follow(begin + HOUR_MS, load);
    }

    /// Reads the profiles of all subjects that became busy: each is the value.
    fn read(&self, value: Option<&[u8]>) -> usize {
        let unread = self.guard.unread_profiles(usize::MAX);
        unread.iter().for_each(|key| self.guard.handle_profile(key, value));
        unread.len()
    }

    /// Lets a second of the hour that is learnt pass, and returns the limit of the organisation with its explanation.
    fn limit(&mut self, org: &str, week: u64) -> (u32, String) {
        self.follow(WALL_MS + week * WEEK_MS, 0.9);
        let threshold =
            self.guard.states(LimitLevel::Organisation, org, at(self.now_ms)).unwrap()[0].threshold;
        (threshold.unwrap().limit, threshold.unwrap().to_string())
    }
}

#[test]
fn subject_is_limited_by_what_it_uses_at_this_hour() {
    let mut office = Office::new();
    for week in 0..2 {
        office.hour(week, "acme", 16, 0.9);
        assert_eq!(office.guard.changed_profiles().len(), 1);
    }
    let (limit, why) = office.limit("acme", 2);
    assert_eq!(
        (limit, why.as_str()),
        (
            50,
            "base 100 x load 1 x history 0.5 = 50 (bounds 5 to 150); load: shard 0 busy 0.90 of 0.90; \
             history: Monday 09:00, mean 16, deviation 1, 2 weeks"
        )
    );
    assert_eq!(
        (office.send("acme", 300), office.send("other", 300)),
        (50, 100),
        "a flood at an unusual hour"
    );
    // A flood that only its history refuses raises no other limit above its base.
    for _ in 0..20 {
        office.now_ms += 2_000;
        office.send("acme", 300);
        office.follow(WALL_MS + 2 * WEEK_MS, 0.1);
    }
    assert_eq!(office.limit("other", 2).0, 100);
    office.follow(WALL_MS + 2 * WEEK_MS + HOUR_MS, 0.9);
    assert_eq!(office.send("acme", 300), 100, "the next hour is not known");
}

#[test]
fn history_is_kept_over_a_restart() {
    let mut office = Office::new();
    (0..2).for_each(|week| office.hour(week, "acme", 16, 0.9));
    let stored = office.guard.changed_profiles();
    assert_eq!(stored[0].key.name.len(), "org-1s/org/".len() + 32);
    assert_eq!(stored[0].value.len(), 845);
    office.guard.handle_profiles_stored(&stored);
    assert!(office.guard.changed_profiles().is_empty());
    office.hour(2, "acme", 16, 0.9);
    let newer = office.guard.changed_profiles();
    office.guard.handle_profiles_stored(&stored);
    assert_eq!(office.guard.changed_profiles().len(), 1, "what was learnt meanwhile is not stored yet");
    office.guard.handle_profiles_stored(&newer);
    assert!(office.guard.changed_profiles().is_empty());
    let (key, value) = (&stored[0].key, &stored[0].value);

    let restarted = |value: &[u8]| {
        let mut office = Office::new();
        office.send("acme", 16);
        assert_eq!(office.guard.unread_profiles(9)[0].name, key.name, "the same on all nodes");
        assert_eq!((office.read(Some(value)), office.read(None)), (1, 0));
        office.limit("acme", 2).0
    };
    assert_eq!(restarted(value), 50);
    let mut other_window = value.clone();
    other_window[1] ^= 1;
    for unusable in [&[][..], &value[1..], &other_window, &[&[9][..], &value[1..]].concat()] {
        assert_eq!(restarted(unusable), 100, "a profile of another form or window is none");
    }
}

#[test]
fn hours_under_load_or_with_refusals_are_not_learnt() {
    for (count, load, line) in [(16, 1.2, ""), (120, 0.9, ""), (120, 0.9, "dry_run = true\n")] {
        let mut office = Office::with(line);
        (0..2).for_each(|week| office.hour(week, "acme", count, load));
        assert!(office.guard.changed_profiles().is_empty(), "{count} messages at {load} {line}");
    }
}

#[test]
fn history_goes_on_with_another_limit_and_not_with_another_window() {
    let mut office = Office::new();
    (0..2).for_each(|week| office.hour(week, "acme", 16, 0.9));
    let with = |limit: &str, window: &str| {
        let rule = OF_ORGS.replace("= 100", limit).replace("1s\"\nlimit", &format!("{window}\"\nlimit"));
        set(&(rule + "dynamic = { min = 5, max = 300 }\n"))
    };
    assert_eq!(office.limit("acme", 2).0, 50);
    office.guard.replace(&with("= 200", "1s"));
    assert_eq!((office.send("acme", 300), office.send("other", 300)), (100, 200), "at once");
    let changed = office.guard.changed_profiles();
    assert_eq!(changed.len(), 1, "still to be stored");
    assert_eq!(changed[0].value[1..5], 1_000_u32.to_le_bytes());
    assert_eq!(office.limit("acme", 2).0, 100);
    office.guard.replace(&with("= 200", "2s"));
    assert!(office.guard.changed_profiles().is_empty(), "its windows are not in force");
    assert_eq!(office.limit("acme", 2).0, 200);
}
