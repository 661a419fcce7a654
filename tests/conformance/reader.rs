//! A user's limit on the age of shown entries, compared with a naive model: on every path of that user, and for no
//! other.

use std::sync::Arc;

use proptest::prelude::*;
use tidegate::{
    conversation::{history, reader::Reader, sync},
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    Code,
    machine::session::{Pull, Which},
    record::{Body, MemberAction, Prune},
    settings::{Retention, Viewing},
};

use super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

async fn page_of(store: &dyn Store, reader: &Reader, which: Which) -> (Vec<u64>, Vec<u64>) {
    let pull = Pull { conversation: group("g"), which, limit: 200 };
    let page = match history::pull(store, reader, &pull).await {
        Ok(page) => page,
        Err((Code::NotYet, _)) => return (vec![], vec![]),
        Err(other) => panic!("{other:?}"),
    };
    let mut seen: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
    seen.sort_unstable();
    let mut gone: Vec<u64> = page.expired.iter().flat_map(|range| range.first..=range.last).collect();
    gone.sort_unstable();
    (seen, gone)
}

async fn check(steps: &[u64], retention: Retention, after: u64, pruned: u64) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[change("g", MemberAction::Create, &["ann", "bob"], "r0")]).await;
    let mut times = vec![owner.time];
    for (n, step) in steps.iter().enumerate() {
        owner.time += step;
        times.push(owner.time);
        owner.run(&[message(&group("g"), "ann", &format!("m{n}"), 0, "x")]).await;
    }
    let max = times.len() as u64;
    let pruned_to = pruned.min(max);
    owner.run(&[Body::Prune(Prune { conversation: group("g"), up_to: pruned_to })]).await;
    let now_ms = owner.time + after;
    let reader = Reader { user: user("bob"), viewing: Viewing { retention, ..Viewing::default() }, now_ms };
    let young = |seq: &u64| match retention.age() {
        Some(age) => times[*seq as usize - 1] + age.as_millis() as u64 >= now_ms,
        None => true,
    };
    let all = 1..=max;
    let (shown, hidden): (Vec<u64>, Vec<u64>) = all.clone().partition(|seq| *seq > pruned_to && young(seq));
    for which in [Which::Before(u64::MAX), Which::After(0), Which::Seqs(all.clone().collect())] {
        assert_eq!(page_of(&*store, &reader, which).await, (shown.clone(), hidden.clone()));
    }
    let positions = sync::Positions::default();
    let states = sync::states(&*store, &reader, &positions, None, sync::STATES_MAX).await.unwrap().states;
    assert_eq!((states[0].min_seq, states[0].max_seq), (shown.first().copied().unwrap_or(max + 1), max));
    assert_eq!(states[0].last.as_ref().map(|push| push.seq), shown.last().copied());
    let others = page_of(&*store, &Reader::new(user("ann")), Which::Before(u64::MAX)).await;
    assert_eq!(others.0, all.filter(|seq| *seq > pruned_to).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]
    #[test]
    fn too_old_entries_are_shown_to_others_only(
        steps in prop::collection::vec(prop_oneof![Just(0), 1..1_000u64, Just(DAY_MS), 0..9 * DAY_MS], 0..40),
        retention in prop::sample::select(Retention::ALL),
        after in prop_oneof![Just(0), Just(DAY_MS), 0..40 * DAY_MS],
        pruned in 0..50u64,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(&steps, retention, after, pruned));
    }
}
