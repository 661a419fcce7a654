//! Profiles of what subjects of rules usually use: read from the store when a subject is busy, and stored after each hour.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use crate::{
    cluster::Cluster,
    limits::{RuleGuard, StoredProfile},
    log_limit::log_limited,
    metrics::Metrics,
    store::{GUARD_BATCH_MAX, GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut},
};

/// Time between two steps.
const STEP_INTERVAL: Duration = Duration::from_secs(1);

/// Steps between two attempts to store, and after a failed read.
const STORE_STEPS: u32 = 60;

/// Profiles that are read, and removed, in a step.
const STEP_PROFILES_MAX: usize = 16;

/// Time after which the store forgets a profile that was not learnt from.
const KEPT_MS: u64 = 42 * DAY_MS;

/// Time after which it forgets one without a known hour: an hour that is not learnt in two weeks begins again.
const YOUNG_KEPT_MS: u64 = 15 * DAY_MS;

const DAY_MS: u64 = 24 * 3_600 * 1_000;

/// Reads and stores profiles for as long as the runtime lives.
pub async fn keep_profiles(rules: Arc<RuleGuard>, cluster: Arc<Cluster>, metrics: Metrics) {
    let (mut reads_after, mut stores_after) = (0_u32, STORE_STEPS);
    loop {
        sleep(STEP_INTERVAL).await;
        (reads_after, stores_after) = (reads_after.saturating_sub(1), stores_after.saturating_sub(1));
        // Removed first, so that no row is removed that was read for a subject that is back.
        if reads_after == 0 && !(remove_evicted(&rules, &cluster).await && read(&rules, &cluster).await) {
            metrics.limit_history_errors.increment(1);
            reads_after = STORE_STEPS;
        }
        if stores_after == 0 {
            stores_after = STORE_STEPS;
            if !store(&rules, &cluster).await {
                metrics.limit_history_errors.increment(1);
            }
        }
    }
}

/// Stores the profiles that have changed, before the node ends. Takes at most `most`.
pub async fn store_last(rules: &RuleGuard, cluster: &Cluster, most: Duration) {
    if !timeout(most, store(rules, cluster)).await.is_ok_and(|is_stored| is_stored) {
        tracing::warn!("what limits have learnt in the last minute was not stored");
    }
}

/// Returns the name of a profile of a node in the store.
fn key(cluster: &Cluster, name: &str) -> Option<GuardKey> {
    GuardKey::new(GuardKind::Profile, format!("{}/{name}", cluster.me.node.as_str())).ok()
}

/// Reads the profiles of subjects that became busy; returns whether the store answered.
async fn read(rules: &RuleGuard, cluster: &Cluster) -> bool {
    for unread in rules.unread_profiles(STEP_PROFILES_MAX) {
        let Some(key) = key(cluster, &unread.name) else {
            rules.handle_profile(&unread, None);
            continue;
        };
        match cluster.ports.store.guard_get(&key).await {
            Ok(row) => rules.handle_profile(&unread, row.and_then(|row| row.value).as_deref()),
            Err(error) => {
                log_limited!(warn, %error, "histories of limits can't be read; these limits follow the load alone");
                return false;
            }
        }
    }
    true
}

/// Removes profiles of subjects that others replaced before an hour was known; returns whether the store answered.
async fn remove_evicted(rules: &RuleGuard, cluster: &Cluster) -> bool {
    for name in rules.take_evicted_profiles(STEP_PROFILES_MAX) {
        let Some(key) = key(cluster, &name) else { continue };
        if let Err(error) = cluster.ports.store.remove_guard(&key, None).await {
            log_limited!(warn, %error, "histories of limits can't be removed; they end by themselves");
            return false;
        }
    }
    true
}

/// Stores the profiles that have changed; returns whether all were stored. If the store is full, those that it has already
/// are stored alone.
async fn store(rules: &RuleGuard, cluster: &Cluster) -> bool {
    let changed = rules.changed_profiles();
    let mut is_stored = true;
    for part in changed.chunks(GUARD_BATCH_MAX) {
        let all: Vec<&StoredProfile> = part.iter().collect();
        match put(rules, cluster, &all).await {
            Some(true) => {}
            Some(false) => {
                is_stored = false;
                log_limited!(
                    warn,
                    "the store has the maximum number of histories of limits; new ones are lost with a restart"
                );
                let (known, new): (Vec<_>, Vec<_>) = all.into_iter().partition(|profile| profile.is_stored);
                rules.handle_profiles_refused(new);
                match put(rules, cluster, &known).await {
                    Some(true) => {}
                    Some(false) => rules.handle_profiles_refused(known),
                    None => return false,
                }
            }
            None => return false,
        }
    }
    is_stored
}

/// Stores these profiles; returns whether they fitted, `None` if the store failed.
async fn put(rules: &RuleGuard, cluster: &Cluster, profiles: &[&StoredProfile]) -> Option<bool> {
    let now_ms = cluster.guard.now_ms();
    let put = |profile: &&StoredProfile| {
        let key = key(cluster, &profile.key.name)?;
        let until_ms = now_ms.saturating_add(if profile.is_known { KEPT_MS } else { YOUNG_KEPT_MS });
        let entry = GuardEntry::new(key, profile.value.clone().into(), Some(until_ms)).ok()?;
        Some(GuardPut { entry, expected: None })
    };
    let batch = GuardBatch::new(profiles.iter().filter_map(put).collect()).ok()?;
    match cluster.ports.store.put_guard(&batch).await {
        Ok(GuardOutcome::Full(_)) => Some(false),
        Ok(_) => {
            rules.handle_profiles_stored(profiles.iter().copied());
            Some(true)
        }
        Err(error) => {
            log_limited!(warn, %error, "histories of limits can't be stored; trying again in a minute");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tidegate_protocol::{
        Time,
        id::NodeId,
        machine::threshold::{LoadPressure, PressureSignal},
    };
    use tokio::time::timeout;

    use super::*;
    use crate::{
        fault::{Fault, FaultPlan, Faulty, Gate},
        limits::{LimitCall, LimitLevel, LimitRefusal, LimitSubjects, RuleSet},
        link::LocalLink,
        metrics,
        ports::Ports,
        routes::NodeBoot,
        store::Store,
    };

    const RULE: &str = "[[rule]]\nid = \"r\"\nlevel = \"org\"\ncalls = [\"send\"]\nwindow = \"1s\"\nlimit = 100\n\
                        dynamic = { min = 5, max = 150 }\n";

    const WEEK_MS: u64 = 168 * 3_600_000;

    fn rules() -> Arc<RuleGuard> {
        let rules = RuleSet::parse(RULE, Duration::ZERO).unwrap();
        Arc::new(RuleGuard::new(&rules, metrics::install().0, Instant::now()))
    }

    /// Sends for some seconds from then on.
    fn send(rules: &RuleGuard, org: &str, hour_ms: u64, seconds: u64) {
        let subjects = LimitSubjects { organisation: Some(org), ..LimitSubjects::default() };
        let quiet = LoadPressure { signal: PressureSignal::Memory, shard: None, value: 0.9, target: 1.0 };
        for second in 0..seconds {
            let now = Time::from_millis(hour_ms + second * 1_000);
            for _ in 0..16 {
                let sent = rules.admit(LimitCall::Send, &subjects, now, false, || Ok::<_, LimitRefusal>(()));
                assert!(sent.is_ok());
            }
            rules.follow_load(&[quiet], now, hour_ms + second * 1_000, |_| false);
        }
    }

    fn weeks(rules: &RuleGuard) -> String {
        let states = rules.states(LimitLevel::Organisation, "acme", Time::ZERO).unwrap();
        states[0].threshold.unwrap().to_string()
    }

    fn cluster() -> (Arc<FaultPlan>, Arc<Cluster>) {
        let (plan, ports) = (FaultPlan::none(), Ports::in_memory(Arc::new(LocalLink)));
        let store = Arc::new(Faulty::<dyn Store>::new(Arc::clone(&ports.store), Arc::clone(&plan)));
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        (plan, Arc::new(Cluster::new(me, Ports { store, ..ports })))
    }

    /// Keeps the profiles for some seconds.
    async fn keep(rules: &Arc<RuleGuard>, cluster: &Arc<Cluster>, seconds: u64) {
        let keeping = keep_profiles(Arc::clone(rules), Arc::clone(cluster), metrics::install().0);
        assert!(timeout(Duration::from_secs(seconds), keeping).await.is_err(), "it never ends");
    }

    /// Lets organisations learn an hour of a week.
    async fn learn(rules: &Arc<RuleGuard>, cluster: &Arc<Cluster>, orgs: &[&str], week: u64) {
        orgs.iter().for_each(|org| send(rules, org, week * WEEK_MS, 2));
        keep(rules, cluster, 70).await;
        orgs.iter().for_each(|org| send(rules, org, week * WEEK_MS + 3_000, 3_300));
        send(rules, orgs[0], week * WEEK_MS + 3_600_000, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn histories_are_stored_each_hour_and_read_when_a_subject_is_busy() {
        let (plan, cluster) = cluster();
        let first = rules();
        for week in 0..2 {
            learn(&first, &cluster, &["acme"], week).await;
            assert_eq!(first.changed_profiles().len(), 1);
        }
        assert_eq!(plan.calls("put_guard"), 1, "of the first week");
        keep(&first, &cluster, 70).await;
        assert_eq!((plan.calls("put_guard"), first.changed_profiles().len()), (2, 0));

        let restarted = rules();
        send(&restarted, "acme", 2 * WEEK_MS, 1);
        assert!(!weeks(&restarted).contains("weeks"));
        keep(&restarted, &cluster, 3).await;
        assert!(weeks(&restarted).contains("history 0.5") && weeks(&restarted).ends_with("2 weeks"));
        assert_eq!(plan.calls("guard_get"), 2, "once for each run");
    }

    #[tokio::test(start_paused = true)]
    async fn histories_are_stored_before_the_node_ends_without_a_wait_for_a_silent_store() {
        let (plan, cluster) = cluster();
        let rules = rules();
        learn(&rules, &cluster, &["acme"], 0).await;
        plan.plan("put_guard", Fault::Hold(Gate::new()));
        let began = tokio::time::Instant::now();
        store_last(&rules, &cluster, Duration::from_secs(2)).await;
        assert_eq!((began.elapsed(), rules.changed_profiles().len()), (Duration::from_secs(2), 1));
        store_last(&rules, &cluster, Duration::from_secs(2)).await;
        assert_eq!(rules.changed_profiles().len(), 0);
        let stored = cluster.ports.store.guard_since(0, 9).await.unwrap();
        assert_eq!(stored.rows.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn full_store_goes_on_to_take_the_histories_that_it_has() {
        let (_, cluster) = cluster();
        let rules = rules();
        learn(&rules, &cluster, &["acme"], 0).await;
        keep(&rules, &cluster, 70).await;
        let others: Vec<GuardPut> = (1..GuardKind::Profile.entries_max())
            .map(|n| {
                let key = GuardKey::new(GuardKind::Profile, format!("n2/{n}")).unwrap();
                GuardPut { entry: GuardEntry::new(key, Vec::new().into(), None).unwrap(), expected: None }
            })
            .collect();
        for part in others.chunks(GUARD_BATCH_MAX) {
            let batch = GuardBatch::new(part.to_vec()).unwrap();
            assert!(matches!(cluster.ports.store.put_guard(&batch).await, Ok(GuardOutcome::Stored(_))));
        }
        send(&rules, "other", WEEK_MS, 60);
        learn(&rules, &cluster, &["acme", "other"], 1).await;
        assert_eq!(rules.changed_profiles().len(), 2);
        keep(&rules, &cluster, 70).await;
        let left = rules.changed_profiles();
        assert!(left.len() == 1 && !left[0].is_stored, "the new one");
        let restarted = self::rules();
        send(&restarted, "acme", 2 * WEEK_MS, 1);
        keep(&restarted, &cluster, 3).await;
        assert!(weeks(&restarted).ends_with("2 weeks"), "{}", weeks(&restarted));
    }

    #[tokio::test(start_paused = true)]
    async fn history_of_a_replaced_subject_is_removed() {
        let (_, cluster) = cluster();
        let rules = rules();
        learn(&rules, &cluster, &["acme"], 0).await;
        let key = key(&cluster, &rules.changed_profiles()[0].key.name).unwrap();
        keep(&rules, &cluster, 70).await;
        assert!(cluster.ports.store.guard_get(&key).await.unwrap().is_some());
        // Its requests of that hour count less and less, and then there are more busy subjects than entries.
        for hour in 2..24 {
            send(&rules, "other", hour * 3_600_000, 1);
        }
        for n in 0..600 {
            send(&rules, &format!("org-{n}"), 24 * 3_600_000, 4);
        }
        keep(&rules, &cluster, 3).await;
        assert!(cluster.ports.store.guard_get(&key).await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn history_without_a_known_hour_ends_sooner() {
        let (_, cluster) = cluster();
        let rules = rules();
        for (week, days) in [(0, 15), (1, 42)] {
            learn(&rules, &cluster, &["acme"], week).await;
            let key = key(&cluster, &rules.changed_profiles()[0].key.name).unwrap();
            keep(&rules, &cluster, 70).await;
            let row = cluster.ports.store.guard_get(&key).await.unwrap().unwrap();
            let left_ms = row.until_ms.unwrap() - cluster.guard.now_ms();
            assert!((left_ms / 3_600_000).abs_diff(days * 24) <= 1, "{left_ms} ms after week {week}");
        }
    }
}
