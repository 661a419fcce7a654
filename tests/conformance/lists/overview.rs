//! Conversations of a user: pages by key and by time, with a filter, have each conversation once.

use std::{cmp::Reverse, sync::Arc};

use tidegate::{
    conversation::{
        overview::{self, KeyPage, OverviewRequest, TimePage},
        reader::Reader,
    },
    store::{MemoryStore, Store},
};
use tidegate_protocol::id::ConversationId;

use super::super::{
    store::owner::{Owner, message},
    user,
};

fn friend(n: u64) -> ConversationId {
    ConversationId::direct(&user("ann"), &user(&format!("u{n:02}")))
}

/// Returns a store in which every third of 30 users has written to ann, and ann to the others. Two have each time.
async fn talked() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    for n in 0..30 {
        owner.time = 100 + (n * 7 % 30) / 2;
        let sender = if n % 3 == 0 { format!("u{n:02}") } else { "ann".to_owned() };
        owner.run(&[message(&friend(n), &sender, "m", 0, "text")]).await;
    }
    store
}

fn request(limit: usize, only_unread: bool) -> OverviewRequest {
    OverviewRequest { limit, only_unread, with_last: true }
}

#[tokio::test]
async fn pages_by_key_have_each_conversation_once() {
    let (store, reader) = (talked().await, Reader::new(user("ann")));
    for only_unread in [false, true] {
        let expected: Vec<ConversationId> =
            (0..30).filter(|n| !only_unread || n % 3 == 0).map(friend).collect();
        for limit in [1, 3, 7, 10, 30, 200] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = overview::by_key(&*store, &reader, after.as_ref(), request(limit, only_unread));
                let KeyPage { listed, next } = page.await.unwrap();
                assert!(listed.len() <= limit && listed.iter().all(|it| it.last.is_some()));
                found.extend(listed.into_iter().map(|it| it.membership.conversation));
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{limit}");
        }
    }
}

#[tokio::test]
async fn pages_by_time_have_the_newest_first_and_each_once() {
    let (store, reader) = (talked().await, Reader::new(user("ann")));
    for only_unread in [false, true] {
        let mut expected: Vec<u64> = (0..30).filter(|n| !only_unread || n % 3 == 0).collect();
        expected.sort_by_key(|n| (Reverse((n * 7 % 30) / 2), *n));
        let expected: Vec<ConversationId> = expected.into_iter().map(friend).collect();
        for limit in [1, 4, 10, 200] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = overview::by_time(&*store, &reader, after.as_ref(), request(limit, only_unread));
                let TimePage { listed, next, is_cut } = page.await.unwrap();
                assert!(listed.len() <= limit && !is_cut);
                found.extend(listed.into_iter().map(|it| it.membership.conversation));
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{limit}");
        }
    }
}

#[tokio::test]
async fn conversation_that_becomes_active_is_not_on_later_pages() {
    let (store, reader) = (talked().await, Reader::new(user("ann")));
    let page = overview::by_time(&*store, &reader, None, request(5, false)).await.unwrap();
    let mut owner = Owner::take_over(&store, 0, 2).await;
    owner.time = 10_000;
    let last = page.listed.last().unwrap().membership.conversation.clone();
    let oldest = (0..30).map(friend).min_by_key(|it| usize::from(*it != last)).unwrap();
    owner.run(&[message(&oldest, "ann", "m2", 0, "text")]).await;
    let rest = overview::by_time(&*store, &reader, page.next.as_ref(), request(200, false)).await.unwrap();
    assert_eq!(rest.listed.len(), 25);
    assert!(rest.listed.iter().all(|it| it.membership.conversation != oldest));
    let front = overview::by_time(&*store, &reader, None, request(1, false)).await.unwrap();
    assert_eq!(front.listed[0].membership.conversation, oldest);
}
