//! Tests of the follower of the guard's entries, over a store in memory with faults.

use std::{collections::BTreeMap, sync::atomic::AtomicUsize, sync::atomic::Ordering};

use bytes::Bytes;
use tidegate_protocol::id::NodeId;

use super::*;
use crate::{
    fault::{Fault, FaultPlan, Faulty},
    link::LocalLink,
    ports::Ports,
    routes::NodeBoot,
    store::{GuardEntry, GuardPut, GuardStore as _, MemoryStore, Store},
};

/// Handler that keeps the entries of some kinds.
#[derive(Default)]
struct Kept {
    kinds: Vec<GuardKind>,
    entries: Mutex<BTreeMap<String, Option<u64>>>,
    restarts: AtomicUsize,
    times: Mutex<Vec<u64>>,
}

#[async_trait]
impl GuardHandler for Kept {
    fn handles(&self, kind: GuardKind) -> bool {
        self.kinds.contains(&kind)
    }

    async fn restarted(&self) {
        self.entries.lock().clear();
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    async fn changed(&self, rows: &[GuardRow], _: u64) {
        for row in rows {
            match row.value {
                Some(_) => self.entries.lock().insert(row.key.name().to_owned(), row.until_ms),
                None => self.entries.lock().remove(row.key.name()),
            };
        }
    }

    async fn time_passed(&self, now_ms: u64) {
        self.entries.lock().retain(|_, until| until.is_none_or(|until| until > now_ms));
        self.times.lock().push(now_ms);
    }
}

impl Kept {
    fn names(&self) -> Vec<String> {
        self.entries.lock().keys().cloned().collect()
    }
}

struct World {
    store: Arc<MemoryStore>,
    faults: Arc<FaultPlan>,
    cluster: Arc<Cluster>,
}

impl World {
    fn new() -> Self {
        let (store, faults) = (Arc::new(MemoryStore::default()), FaultPlan::none());
        store.set_now_ms(1_000);
        let faulty =
            Arc::new(Faulty::<dyn Store>::new(Arc::clone(&store) as Arc<dyn Store>, Arc::clone(&faults)));
        let ports = Ports { store: faulty, ..Ports::in_memory(Arc::new(LocalLink)) };
        let me = NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 };
        Self { store, faults, cluster: Arc::new(Cluster::new(me, ports)) }
    }

    fn keep(&self, kinds: &[GuardKind]) -> Arc<Kept> {
        let kept = Arc::new(Kept { kinds: kinds.to_vec(), ..Kept::default() });
        self.cluster.guard.add_handler(Arc::clone(&kept) as Arc<dyn GuardHandler>);
        kept
    }

    async fn read(&self) {
        self.cluster.guard.follower.catch_up(&StoredEntries(&self.cluster)).await.unwrap();
    }
}

fn key(kind: GuardKind, name: &str) -> GuardKey {
    GuardKey::new(kind, name).unwrap()
}

fn batch(kind: GuardKind, name: &str, until_ms: Option<u64>) -> GuardBatch {
    let entry = GuardEntry::new(key(kind, name), Bytes::new(), until_ms).unwrap();
    GuardBatch::new(vec![GuardPut { entry, expected: None }]).unwrap()
}

#[tokio::test]
async fn each_handler_gets_its_kinds_from_one_read() {
    let world = World::new();
    let (rules, bans) = (world.keep(&[GuardKind::Rule]), world.keep(&[GuardKind::Ban, GuardKind::Allow]));
    for (kind, name) in
        [(GuardKind::Rule, "r"), (GuardKind::Ban, "b"), (GuardKind::Allow, "a"), (GuardKind::Storm, "s")]
    {
        world.store.put_guard(&batch(kind, name, None)).await.unwrap();
    }
    let before = world.faults.calls("guard_since");
    world.read().await;
    assert_eq!(world.faults.calls("guard_since"), before + 1, "one page for all kinds");
    assert_eq!((rules.names(), bans.names()), (vec!["r".to_owned()], vec!["a".to_owned(), "b".to_owned()]));
    let late = world.keep(&[GuardKind::Storm]);
    world.read().await;
    assert_eq!(late.names(), ["s"], "a later handler gets all entries");
    assert_eq!(rules.names(), ["r"]);
    assert_eq!(rules.restarts.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn change_is_in_force_on_its_node_when_it_returns() {
    let world = World::new();
    let rules = world.keep(&[GuardKind::Rule]);
    let change = world.cluster.put_guard(&batch(GuardKind::Rule, "r", None)).await.unwrap();
    assert!(matches!(change.outcome, GuardOutcome::Stored(_)) && change.is_in_force, "{change:?}");
    assert_eq!(rules.names(), ["r"]);
    let change = world.cluster.remove_guard(&key(GuardKind::Rule, "r"), None).await.unwrap();
    assert!(change.is_in_force);
    assert_eq!(rules.names(), [""; 0]);
    let change = world.cluster.remove_guard(&key(GuardKind::Rule, "r"), None).await.unwrap();
    assert_eq!(change.outcome, GuardOutcome::Unchanged);
    world.faults.plan("put_guard", Fault::Fail);
    world.cluster.put_guard(&batch(GuardKind::Rule, "q", None)).await.unwrap_err();
    world.faults.plan("guard_since", Fault::Fail);
    let change = world.cluster.put_guard(&batch(GuardKind::Rule, "p", None)).await.unwrap();
    assert!(!change.is_in_force, "it was not read back");
    world.read().await;
    assert_eq!(rules.names(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn entries_end_by_the_clock_of_the_store_also_while_it_is_unavailable() {
    let world = World::new();
    let bans = world.keep(&[GuardKind::Ban]);
    world.store.put_guard(&batch(GuardKind::Ban, "b", Some(6_000))).await.unwrap();
    assert!(world.cluster.load_guard().await);
    (0..20).for_each(|_| world.faults.plan("guard_since", Fault::Fail));
    let following = tokio::spawn(follow_guard(Arc::clone(&world.cluster), crate::metrics::install().0));
    time::sleep(Duration::from_millis(4_500)).await;
    assert_eq!(bans.names(), ["b"]);
    time::sleep(Duration::from_secs(1)).await;
    assert_eq!(bans.names(), [""; 0]);
    assert!(bans.times.lock().is_sorted(), "{:?}", bans.times.lock());
    following.abort();
}

#[tokio::test(start_paused = true)]
async fn node_starts_without_the_entries_of_a_store_that_does_not_answer() {
    let world = World::new();
    let rules = world.keep(&[GuardKind::Rule]);
    world.store.put_guard(&batch(GuardKind::Rule, "r", None)).await.unwrap();
    (0..3).for_each(|_| world.faults.plan("guard_since", Fault::Fail));
    let begin = Instant::now();
    assert!(world.cluster.load_guard().await, "the fourth read succeeds");
    assert_eq!((begin.elapsed(), rules.names()), (3 * LOAD_RETRY_INTERVAL, vec!["r".to_owned()]));
    let other = world.keep(&[GuardKind::Rule]);
    (0..100).for_each(|_| world.faults.plan("guard_since", Fault::Fail));
    let begin = Instant::now();
    assert!(!world.cluster.load_guard().await);
    assert_eq!((begin.elapsed(), other.names()), (GUARD_LOAD_TIMEOUT, Vec::new()));
    world.faults.forget("guard_since");
    world.read().await;
    assert_eq!(other.names(), ["r"]);
}
