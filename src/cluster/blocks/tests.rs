//! Tests of the filter of blocks, and of its reads of the store.

use tidegate_protocol::id::NodeId;

use super::*;
use crate::{
    fault::{Fault, FaultPlan, Faulty, Gate},
    link::LocalLink,
    ports::Ports,
    routes::NodeBoot,
    store::{BlockLists as _, MemoryStore},
};

fn cluster_of_one() -> Arc<Cluster> {
    cluster_over(Arc::new(MemoryStore::default()))
}

fn cluster_over(store: Arc<dyn Store>) -> Arc<Cluster> {
    let ports = Ports { store, ..Ports::in_memory(Arc::new(LocalLink)) };
    Arc::new(Cluster::new(NodeBoot { node: NodeId::new("n1").unwrap(), boot: 1 }, ports))
}

fn user(name: &str) -> UserId {
    UserId::new(name).unwrap()
}

#[test]
fn filter_has_every_pair_and_few_others_and_grows_to_its_limit() {
    let mut filter = PairFilter::new(FILTER_WORDS_MIN);
    let bob = user("bob");
    let count = FILTER_WORDS_MIN * 64 / BITS_PER_BLOCK;
    let name = |n: usize| user(&format!("u{n}"));
    assert!(!filter.may_have("bob", "u0"), "an empty one has nothing");
    (0..count).for_each(|n| filter.add(&bob, &name(n)));
    assert!(!filter.is_full());
    assert!((0..count).all(|n| filter.may_have("bob", name(n).as_str())));
    let others = (0..10_000).filter(|n| filter.may_have(name(*n).as_str(), "bob")).count();
    assert!(others < 300, "{others} of 10,000");
    filter.add(&bob, &bob);
    assert!(filter.is_full());
    let largest =
        PairFilter { words: vec![0; FILTER_WORDS_MAX], pairs: usize::MAX / 64, keys: RandomState::new() };
    assert!(!largest.is_full(), "it does not grow beyond its limit");
}

#[tokio::test]
async fn node_learns_of_blocks_and_of_their_end_by_the_version() {
    let (store, blocks) = (MemoryStore::default(), Blocks::default());
    let (bob, eve) = (user("bob"), user("eve"));
    assert_eq!(blocks.verdict("bob", &eve), BlockVerdict::Unknown, "nothing is read yet");
    blocks.refresh(&store).await.unwrap();
    assert_eq!(blocks.verdict("bob", &eve), BlockVerdict::Allowed);
    store.block(&bob, &eve, 1, u64::MAX).await.unwrap();
    blocks.refresh(&store).await.unwrap();
    assert_eq!(blocks.verdict("bob", &eve), BlockVerdict::Unknown, "to be looked up");
    assert_eq!(blocks.verdict("eve", &bob), BlockVerdict::Allowed, "the other direction");
    blocks.state.write().decisions.insert((bob.clone(), eve.clone()), true);
    blocks.refresh(&store).await.unwrap();
    assert_eq!(blocks.verdict("bob", &eve), BlockVerdict::Blocked, "nothing has changed");
    store.unblock(&bob, &eve).await.unwrap();
    blocks.refresh(&store).await.unwrap();
    assert_eq!(blocks.verdict("bob", &eve), BlockVerdict::Unknown, "the decision is forgotten");
}

#[tokio::test]
async fn filter_is_read_again_when_it_is_full_and_after_a_fall_back() {
    let (store, blocks) = (MemoryStore::default(), Blocks::default());
    let saved = store.save();
    let count = 2 * FILTER_WORDS_MIN * 64 / BITS_PER_BLOCK;
    let name = |n: usize| user(&format!("u{n}"));
    for n in 0..count {
        // Lists of at most 10,000.
        store.block(&name(n / 1_000), &user(&format!("eve{n}")), 1, u64::MAX).await.unwrap();
    }
    blocks.refresh(&store).await.unwrap();
    let is_allowed = |n: usize| {
        blocks.verdict(name(n / 1_000).as_str(), &user(&format!("eve{n}"))) == BlockVerdict::Allowed
    };
    assert!(!(0..count).any(is_allowed));
    assert!(blocks.state.read().filter.as_ref().unwrap().words.len() > FILTER_WORDS_MIN);
    store.restore(saved);
    store.block(&user("bob"), &user("mallory"), 1, u64::MAX).await.unwrap();
    blocks.refresh(&store).await.unwrap();
    assert_eq!(blocks.verdict("bob", &user("mallory")), BlockVerdict::Unknown);
    assert_eq!(blocks.state.read().version, 1);
}

/// Waits until the filter of the node is loaded and not full.
async fn loaded(cluster: &Cluster) {
    let is_ready = || cluster.blocks.state.read().filter.as_ref().is_some_and(|filter| !filter.is_full());
    time::timeout(Duration::from_secs(10), async {
        while !is_ready() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn filter_of_a_single_node_grows_with_its_own_blocks() {
    let cluster = cluster_of_one();
    let following = tokio::spawn(follow_blocks(Arc::clone(&cluster), true));
    loaded(&cluster).await;
    let count = 3 * FILTER_WORDS_MIN * 64 / BITS_PER_BLOCK;
    let pair = |n: usize| (user(&format!("u{}", n / 1_000)), user(&format!("eve{n}")));
    for (user, other) in (0..count).map(pair) {
        cluster.ports.store.block(&user, &other, 1, u64::MAX).await.unwrap();
        cluster.blocks.note_changed(&user, &other, true);
    }
    loaded(&cluster).await;
    let verdict = |user: &UserId, other: &UserId| cluster.blocks.verdict(user.as_str(), other);
    assert!((0..count).map(pair).all(|(user, other)| verdict(&user, &other) == BlockVerdict::Unknown));
    let others =
        (0..10_000).map(pair).filter(|(user, other)| verdict(other, user) != BlockVerdict::Allowed).count();
    assert!(others < 300, "{others} of 10,000");
    following.abort();
}

#[tokio::test]
async fn node_without_blocks_allows_senders_until_the_first_block() {
    let (cluster, bob, eve) = (cluster_of_one(), user("bob"), user("eve"));
    let conversation = ConversationId::direct(&bob, &eve);
    assert_eq!(cluster.block_verdict(&eve, &conversation), BlockVerdict::Unknown, "nothing is read yet");
    cluster.blocks.refresh(&*cluster.ports.store).await.unwrap();
    assert!(cluster.blocks.is_empty.load(Ordering::Acquire));
    assert_eq!(cluster.block_verdict(&eve, &conversation), BlockVerdict::Allowed);
    cluster.blocks.note_changed(&bob, &eve, true);
    assert_eq!(cluster.block_verdict(&eve, &conversation), BlockVerdict::Unknown, "by a change of its own");
    let other = cluster_of_one();
    other.blocks.refresh(&*other.ports.store).await.unwrap();
    other.ports.store.block(&bob, &eve, 1, u64::MAX).await.unwrap();
    other.blocks.refresh(&*other.ports.store).await.unwrap();
    assert_eq!(other.block_verdict(&eve, &conversation), BlockVerdict::Unknown, "by the version");
}

#[tokio::test(start_paused = true)]
async fn lookup_ends_at_the_time_of_its_caller() {
    let (plan, gate) = (FaultPlan::none(), Gate::new());
    plan.plan("is_blocked", Fault::Hold(gate.clone()));
    let store = Arc::new(MemoryStore::default()) as Arc<dyn Store>;
    let cluster = cluster_over(Arc::new(Faulty::<dyn Store>::new(store, plan)));
    let (bob, eve, begun) = (user("bob"), user("eve"), time::Instant::now());
    let until = begun + Duration::from_millis(700);
    let verdict = cluster.look_up_block(&eve, &ConversationId::direct(&bob, &eve), until).await;
    assert!(matches!(verdict, Err(StoreError::Unavailable(_))), "{verdict:?}");
    assert_eq!((begun.elapsed(), gate.reached()), (Duration::from_millis(700), 1));
}
