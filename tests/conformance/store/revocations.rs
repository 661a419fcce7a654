//! Revocations of tokens.

use std::{collections::BTreeSet, sync::Arc};

use futures_util::future::join_all;
use tidegate::{
    revocation::{Revocation, RevokedTokens, USER_REVOCATIONS_MAX},
    store::Store,
};

use super::super::{device, user};

fn revocation(who: &str, tokens: RevokedTokens, at_ms: u64) -> Revocation {
    Revocation { user: user(who), tokens, at_ms, until_ms: None }
}

fn of_id(who: &str, id: &str) -> Revocation {
    revocation(who, RevokedTokens::Id(id.into()), 1_000)
}

async fn all(store: &Arc<dyn Store>) -> Vec<Revocation> {
    store.revocations(0, 10_000).await.unwrap().rows.into_iter().map(|(_, it)| it).collect()
}

pub(super) async fn revocations_are_numbered_in_the_order_of_their_storage(store: &Arc<dyn Store>) {
    let none = store.revocations(0, 10).await.unwrap();
    assert_eq!((none.newest, none.rows.len()), (0, 0));
    let kinds = [
        of_id("ann", "a b:c"),
        Revocation { until_ms: Some(9), ..revocation("ann", RevokedTokens::Before(7), 3) },
        revocation("bob", RevokedTokens::Device(device("phone"), 5), 4),
    ];
    for it in &kinds {
        assert_eq!(store.revoke(it, 0).await, Ok(true));
    }
    let page = store.revocations(0, 10).await.unwrap();
    let numbers: Vec<u64> = page.rows.iter().map(|(number, _)| *number).collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&page.newest), "{numbers:?}");
    assert_eq!(all(store).await, kinds);
    let next = store.revocations(numbers[0], 1).await.unwrap();
    assert_eq!((next.newest, next.rows), (page.newest, vec![(numbers[1], kinds[1].clone())]));
    assert!(store.revocations(page.newest, 10).await.unwrap().rows.is_empty());
    // Concurrent ones get numbers of their own, and a reader that has seen a number has seen all below it.
    let many: Vec<Revocation> = (0..20).map(|n| of_id(&format!("u{n}"), "t")).collect();
    let mut above = page.newest;
    let mut seen = BTreeSet::new();
    let writing = join_all(many.iter().map(|it| store.revoke(it, 0)));
    let reading = async {
        for _ in 0..20 {
            let page = store.revocations(above, 100).await.unwrap();
            above = page.rows.last().map_or(above, |(number, _)| *number);
            seen.extend(page.rows.into_iter().map(|(_, it)| it.user));
        }
    };
    let (written, ()) = futures_util::future::join(writing, reading).await;
    assert!(written.iter().all(|it| *it == Ok(true)));
    seen.extend(store.revocations(above, 100).await.unwrap().rows.into_iter().map(|(_, it)| it.user));
    assert_eq!(seen.len(), 20);
}

pub(super) async fn revocations_of_a_user_are_bounded_and_replaced(store: &Arc<dyn Store>) {
    for n in 0..USER_REVOCATIONS_MAX {
        assert_eq!(store.revoke(&of_id("ann", &n.to_string()), 0).await, Ok(true));
    }
    let newest = store.revocations(0, 1).await.unwrap().newest;
    assert_eq!(store.revoke(&of_id("ann", "one more"), 0).await, Ok(false));
    assert_eq!(store.revocations(0, 1).await.unwrap().newest, newest, "nothing was stored");
    assert_eq!(store.revoke(&of_id("bob", "one more"), 0).await, Ok(true), "another user");
    assert_eq!(store.revoke(&of_id("ann", "7"), 0).await, Ok(true), "it is there already");
    let later = revocation("ann", RevokedTokens::Before(200_000), 200_000);
    assert_eq!(store.revoke(&later, 0).await, Ok(true));
    assert_eq!(all(store).await, [of_id("bob", "one more"), later.clone()]);
    let earlier = revocation("ann", RevokedTokens::Before(100), 300_000);
    assert_eq!(store.revoke(&earlier, 0).await, Ok(true));
    assert_eq!(
        all(store).await,
        [of_id("bob", "one more"), later.clone()],
        "an earlier time changes nothing"
    );
    let over = Revocation { until_ms: Some(10), ..of_id("bob", "over") };
    assert_eq!(store.revoke(&over, 0).await, Ok(true));
    assert_eq!(store.revoke(&of_id("bob", "new"), 10).await, Ok(true));
    assert_eq!(all(store).await, [of_id("bob", "one more"), later, of_id("bob", "new")]);
}

pub(super) async fn cleared_revocations_are_removed_and_followed(store: &Arc<dyn Store>) {
    let cleared = |who: &str, at_ms| revocation(who, RevokedTokens::Cleared, at_ms);
    assert_eq!(store.revoke(&cleared("ann", 1), 0).await, Ok(true));
    assert!(all(store).await.is_empty(), "there is none to take back");
    for it in [of_id("ann", "t"), revocation("ann", RevokedTokens::Before(7), 900), of_id("bob", "t")] {
        assert_eq!(store.revoke(&it, 0).await, Ok(true));
    }
    let read_to = store.revocations(0, 10).await.unwrap().newest;
    assert_eq!(store.revoke(&cleared("ann", 1_000), 0).await, Ok(true));
    // A reader that has seen the revocations learns that they were taken back, and then of later ones.
    let again = of_id("ann", "t");
    assert_eq!(store.revoke(&again, 0).await, Ok(true));
    let page = store.revocations(read_to, 10).await.unwrap();
    let rows: Vec<Revocation> = page.rows.into_iter().map(|(_, it)| it).collect();
    assert_eq!(rows, [cleared("ann", 1_000), again.clone()]);
    assert_eq!(all(store).await, [of_id("bob", "t"), cleared("ann", 1_000), again]);
    let second = cleared("ann", 2_000);
    assert_eq!(store.revoke(&second, 0).await, Ok(true));
    assert_eq!(all(store).await, [of_id("bob", "t"), second]);
}
