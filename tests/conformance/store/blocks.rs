//! Block lists.

use std::sync::Arc;

use tidegate::store::{AddedBlock, BlockEntry, BlockOutcome, Store};

use super::user;

/// Most entries of a list in these cases.
const LIST_MAX: u64 = 20;

fn entries(all: &[(&str, u64)]) -> Vec<BlockEntry> {
    all.iter().map(|(name, time)| BlockEntry { other: user(name), time: *time }).collect()
}

fn version(outcome: BlockOutcome) -> u64 {
    let BlockOutcome::Changed(version) = outcome else { panic!("{outcome:?}") };
    version
}

pub(super) async fn block_lists_change_one_by_one_and_raise_the_version(store: &Arc<dyn Store>) {
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(user);
    let first = store.blocks_since(0, 9).await.unwrap();
    assert_eq!(first.added, []);
    let eves = version(store.block(&bob, &eve, 7, LIST_MAX).await.unwrap());
    let anns = version(store.block(&bob, &ann, 8, LIST_MAX).await.unwrap());
    assert!(first.version < eves && eves < anns);
    assert_eq!(store.block(&bob, &eve, 9, LIST_MAX).await, Ok(BlockOutcome::Unchanged));
    assert_eq!(store.unblock(&ann, &eve).await, Ok(BlockOutcome::Unchanged));
    assert_eq!(
        store.blocks(&bob, None, 9).await.unwrap(),
        entries(&[("ann", 8), ("eve", 7)]),
        "the first time"
    );
    assert_eq!(store.blocks(&bob, None, 1).await.unwrap(), entries(&[("ann", 8)]));
    assert_eq!(store.blocks(&bob, Some(&ann), 1).await.unwrap(), entries(&[("eve", 7)]));
    assert_eq!(store.blocks(&bob, Some(&eve), 1).await.unwrap(), []);
    assert_eq!(store.blocks(&user("bo"), None, 9).await.unwrap(), [], "another user");
    assert_eq!(store.is_blocked(&bob, &eve).await, Ok(true));
    assert_eq!(store.is_blocked(&eve, &bob).await, Ok(false), "one direction");
    let page = store.blocks_since(0, 1).await.unwrap();
    assert_eq!(page.version, anns);
    assert_eq!(page.added, [AddedBlock { version: eves, user: bob.clone(), other: eve.clone() }]);
    let rest = store.blocks_since(eves, 9).await.unwrap();
    assert_eq!(rest.added, [AddedBlock { version: anns, user: bob.clone(), other: ann.clone() }]);
    let removed = version(store.unblock(&bob, &eve).await.unwrap());
    assert!(removed > anns);
    assert_eq!(store.is_blocked(&bob, &eve).await, Ok(false));
    assert_eq!(store.blocks(&bob, None, 9).await.unwrap(), entries(&[("ann", 8)]));
    let last = store.blocks_since(anns, 9).await.unwrap();
    assert_eq!((last.version, last.added), (removed, vec![]), "only the version tells of an end");
    assert!(version(store.block(&bob, &eve, 10, LIST_MAX).await.unwrap()) > removed);
}

pub(super) async fn block_list_of_a_user_is_bounded(store: &Arc<dyn Store>) {
    let (bob, name) = (user("bob"), |n: u64| user(&format!("u{n}")));
    let calls = (0..30).map(|n| {
        let (store, bob) = (Arc::clone(store), bob.clone());
        tokio::spawn(async move { store.block(&bob, &name(n), 1, LIST_MAX).await.unwrap() })
    });
    let mut outcomes = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        outcomes.push(call.await.unwrap());
    }
    let full = outcomes.iter().filter(|outcome| **outcome == BlockOutcome::Full).count();
    assert_eq!(full as u64, 30 - LIST_MAX, "{outcomes:?}");
    let list = store.blocks(&bob, None, 99).await.unwrap();
    assert_eq!(list.len() as u64, LIST_MAX);
    let first = &list[0].other;
    assert_eq!(store.block(&bob, first, 1, LIST_MAX).await, Ok(BlockOutcome::Unchanged), "it is there");
    version(store.block(&user("ann"), &user("eve"), 1, LIST_MAX).await.unwrap());
    version(store.unblock(&bob, first).await.unwrap());
    version(store.block(&bob, &user("eve"), 1, LIST_MAX).await.unwrap());
    assert_eq!(store.block(&bob, first, 1, LIST_MAX).await, Ok(BlockOutcome::Full));
}

pub(super) async fn concurrent_changes_of_blocks_become_visible_in_order(store: &Arc<dyn Store>) {
    let calls = (0..40).map(|n| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            store.block(&user(&format!("u{}", n % 4)), &user(&format!("o{n}")), 1, LIST_MAX).await
        })
    });
    let (calls, mut seen, mut from) = (calls.collect::<Vec<_>>(), Vec::new(), 0);
    // A reader that continues at the version it has seen misses nothing.
    while seen.len() < 40 {
        let page = store.blocks_since(from, 3).await.unwrap();
        from = page.added.last().map_or(from, |it| it.version);
        seen.extend(page.added.into_iter().map(|it| (it.user, it.other)));
        tokio::task::yield_now().await;
    }
    for call in calls {
        version(call.await.unwrap().unwrap());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 40);
}
