//! Scores: decay, escalation, networks that are spared, and the bound on subjects.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tidegate_protocol::{
    Time,
    machine::score::{
        BAN_MS_MAX, HALF_LIFE_MS, HISTORY_MS, Judgement, OFFENDERS_MAX, Population, SAMPLED, ScoredEvidence,
        Scores,
    },
};

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn weight(weight: u32) -> ScoredEvidence {
    ScoredEvidence { weight, offender: None }
}

fn by(user: u64, weight: u32) -> ScoredEvidence {
    ScoredEvidence { weight, offender: Some(user) }
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

fn is_banned(judgement: Judgement) -> bool {
    matches!(judgement, Judgement::Banned { .. })
}

#[test]
fn subject_is_banned_at_the_maximum_and_not_below_it() {
    let mut scores = Scores::new(10);
    for n in 1..=9 {
        assert_eq!(scores.handle_evidence(&"ann", weight(10), Population::Single, at(0)), Judgement::Watched);
        assert_eq!(scores.score(&"ann", at(0)), 10 * n);
    }
    let banned = scores.handle_evidence(&"ann", weight(10), Population::Single, at(0));
    assert_eq!(banned, Judgement::Banned { length: minutes(10), former: 0 });
    assert_eq!(scores.score(&"ann", at(0)), 0);
}

#[test]
fn score_halves_in_its_half_life() {
    let mut scores = Scores::new(10);
    scores.handle_evidence(&"ann", weight(80), Population::Single, at(5));
    assert_eq!(scores.score(&"ann", at(5 + HALF_LIFE_MS)), 40);
    assert_eq!(scores.score(&"ann", at(5 + 2 * HALF_LIFE_MS)), 20);
    let later = at(5 + HALF_LIFE_MS);
    assert_eq!(scores.handle_evidence(&"ann", weight(59), Population::Single, later), Judgement::Watched);
    assert!(is_banned(scores.handle_evidence(&"ann", weight(1), Population::Single, later)));
}

#[test]
fn each_further_ban_is_four_times_as_long_until_a_month_without() {
    let mut scores = Scores::new(10);
    let mut now = 0;
    let mut ban = |now| scores.handle_evidence(&"ann", weight(100), Population::Single, at(now));
    for (former, length) in [10, 40, 160, 640, 2_560, 10_240, 40_960].into_iter().enumerate() {
        let length = minutes(length);
        assert_eq!(ban(now), Judgement::Banned { length, former: former as u32 });
        now += length.as_millis() as u64;
    }
    assert_eq!(ban(now), Judgement::Banned { length: Duration::from_millis(BAN_MS_MAX), former: 7 });
    assert_eq!(ban(now + HISTORY_MS), Judgement::Banned { length: minutes(10), former: 0 });
}

#[test]
fn cafe_of_50_users_with_5_attackers_is_not_shut() {
    let mut scores = Scores::new(1_000);
    let mut attackers_banned = 0;
    for second in 0..600 {
        for user in 0..5 {
            let evidence = by(user, 20);
            let of_user =
                scores.handle_evidence(&format!("u{user}"), evidence, Population::Single, at(second * 1_000));
            attackers_banned += u32::from(is_banned(of_user));
            let of_cafe =
                scores.handle_evidence(&"cafe".into(), evidence, Population::Shared(45), at(second * 1_000));
            assert!(!is_banned(of_cafe), "{of_cafe:?}");
            // Strangers at the next table have no token at all.
            let failed = scores.handle_evidence(
                &"cafe".into(),
                weight(10),
                Population::Shared(45),
                at(second * 1_000),
            );
            assert!(!is_banned(failed), "{failed:?}");
        }
    }
    assert!(attackers_banned >= 5, "each of them is judged alone");
}

#[test]
fn network_is_banned_if_nobody_healthy_is_there_or_offenders_are_the_majority() {
    let judge = |offenders: u64, healthy: usize| {
        let mut scores = Scores::new(10);
        let all = (0..offenders)
            .map(|user| scores.handle_evidence(&"net", by(user, 100), Population::Shared(healthy), at(0)));
        all.filter(|it| is_banned(*it)).count() > 0
    };
    assert!(judge(1, 0));
    assert!(!judge(1, 1) && !judge(4, 1), "fewer than five");
    assert!(judge(5, 1) && judge(5, 5));
    assert!(!judge(5, 6), "more healthy ones");
    let mut scores = Scores::new(10);
    let mut strangers =
        |healthy| scores.handle_evidence(&"net", weight(100), Population::Shared(healthy), at(0));
    assert_eq!(strangers(3), Judgement::Spared { offenders: 0, healthy: 3 });
    assert!(is_banned(strangers(0)));
    // Offenders are the majority, but what made the score is no evidence of theirs.
    let mut scores = Scores::new(10);
    for user in 0..5 {
        scores.handle_evidence(&"net", by(user, 1), Population::Shared(4), at(0));
    }
    assert!(!is_banned(scores.handle_evidence(&"net", weight(1_000), Population::Shared(4), at(0))));
}

#[test]
fn flood_of_subjects_replaces_neither_high_scores_nor_former_bans() {
    let mut scores = Scores::new(256);
    scores.handle_evidence(&0, weight(90), Population::Single, at(0));
    scores.handle_evidence(&1, weight(100), Population::Single, at(0));
    for subject in 2..100_000 {
        scores.handle_evidence(&subject, weight(1), Population::Single, at(0));
    }
    assert_eq!(scores.len(), 256);
    assert_eq!(scores.score(&0, at(0)), 90);
    let again = scores.handle_evidence(&1, weight(100), Population::Single, at(0));
    assert_eq!(again, Judgement::Banned { length: minutes(40), former: 1 });
    const { assert!(SAMPLED < 256) };
}

#[test]
fn forgotten_subject_starts_afresh_and_the_others_stay() {
    let mut scores = Scores::new(8);
    for subject in 0..8 {
        scores.handle_evidence(&subject, weight(10 + subject), Population::Single, at(0));
    }
    scores.forget(&2);
    scores.forget(&2);
    assert_eq!((scores.len(), scores.score(&2, at(0))), (7, 0));
    for subject in [0, 1, 3, 4, 5, 6, 7] {
        assert_eq!(scores.score(&subject, at(0)), 10 + subject);
    }
}

proptest! {
    /// Compares with a list of all evidence, for subjects without healthy users.
    #[test]
    fn score_is_the_sum_of_all_evidence_since_the_last_ban_by_age(
        evidence in prop::collection::vec((0_u8..4, 1_u32..60, 0_u64..400_000, prop::option::of(0_u64..90)), 1..120),
    ) {
        let mut scores = Scores::new(4);
        let mut all: HashMap<u8, Vec<(u64, u32)>> = HashMap::new();
        let mut now = 0;
        for (subject, weight, step, offender) in evidence {
            now += step;
            let list = all.entry(subject).or_default();
            list.push((now, weight));
            let decayed = |(then, weight): &(u64, u32)| {
                f64::from(*weight) * 0.5_f64.powf((now - then) as f64 / HALF_LIFE_MS as f64)
            };
            let sum: f64 = list.iter().map(decayed).sum();
            prop_assume!((sum - 100.0).abs() > 1e-6);
            let judged = scores.handle_evidence(
                &subject, ScoredEvidence { weight, offender }, Population::Shared(0), at(now),
            );
            prop_assert_eq!(is_banned(judged), sum >= 100.0);
            if sum >= 100.0 {
                list.clear();
            } else {
                let score = f64::from(scores.score(&subject, at(now)));
                prop_assert!((score - sum).abs() <= 1.0, "{} {}", score, sum);
            }
        }
    }

    /// Bounds hold, and no network with a healthy majority is banned, whatever comes.
    #[test]
    fn healthy_majority_is_never_banned(
        evidence in prop::collection::vec((1_u32..200, 0_u64..60_000, prop::option::of(0_u64..200)), 1..200),
        healthy in OFFENDERS_MAX + 1..200,
    ) {
        let mut scores = Scores::new(1);
        let mut now = 0;
        for (weight, step, offender) in evidence {
            now += step;
            let judged = scores.handle_evidence(
                &"net", ScoredEvidence { weight, offender }, Population::Shared(healthy), at(now),
            );
            prop_assert!(!is_banned(judged), "{:?}", judged);
            prop_assert_eq!(scores.len(), 1);
        }
    }
}

#[test]
fn highest_scores_offenders_and_former_bans_are_found() {
    let mut scores = Scores::new(10);
    for (subject, points) in [("a", 5), ("b", 60), ("c", 30), ("d", 0)] {
        scores.handle_evidence(&subject, by(7, points), Population::Shared(9), at(0));
    }
    assert_eq!(scores.top(2, at(0)), [("b", 60), ("c", 30)]);
    assert_eq!(scores.top(9, at(HALF_LIFE_MS)), [("b", 30), ("c", 15), ("a", 2)]);
    assert!(scores.is_offender(&"a", 7, at(0)) && !scores.is_offender(&"a", 8, at(0)));
    assert!(!scores.is_offender(&"a", 7, at(HALF_LIFE_MS)), "ten minutes later");
    scores.handle_evidence(&"b", weight(40), Population::Single, at(0));
    assert_eq!((scores.former_bans(&"b"), scores.former_bans(&"a")), (1, 0));
}
