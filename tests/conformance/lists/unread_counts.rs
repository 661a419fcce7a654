//! Unread counts of many users: equal to those of single users, whatever their settings and numbers of conversations.

use std::{sync::Arc, time::Duration};

use tidegate::{
    conversation::{
        mark_read,
        read_position::{BeyondHead, OwnConversation},
        unread_counts::{UnreadCount, count},
    },
    fault::{Fault, FaultPlan, Faulty, Gate},
    store::{MemoryStore, Store},
};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::MemberAction,
    settings::{Retention, Unread, UserSettings},
};

use super::super::{
    group,
    store::owner::{Owner, change, message},
    user,
};

fn pair(one: &str, other: &str) -> ConversationId {
    ConversationId::direct(&user(one), &user(other))
}

/// Returns a store in which many users have written to `busy`, two to `calm`, and one in a group to all.
async fn talked() -> Arc<dyn Store> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    for n in 0..300 {
        let sender = format!("u{n}");
        owner.run(&[message(&pair(&sender, "busy"), &sender, "m", 0, "text")]).await;
    }
    for id in ["m1", "m2"] {
        owner.run(&[message(&pair("calm", "ann"), "ann", id, 0, "text")]).await;
    }
    owner.run(&[change("g", MemberAction::Create, &["busy", "calm", "loud"], "r1")]).await;
    owner.run(&[message(&group("g"), "loud", "m3", 0, "text")]).await;
    store
}

const TIME: Duration = Duration::from_secs(2);

fn counted(unread: u64, conversations: u64) -> Option<UnreadCount> {
    Some(UnreadCount { unread, conversations, is_capped: false, is_partial: false })
}

#[tokio::test]
async fn counts_are_in_order_and_follow_marks_and_settings() {
    let store = talked().await;
    let only_direct = UserSettings { unread: Some(Unread::Direct), ..UserSettings::default() };
    store.merge_settings(&user("calm"), only_direct).await.unwrap();
    let users: Vec<UserId> = ["calm", "eve", "busy", "loud", "calm"].map(user).into();
    let counts = count(&*store, &users, None, 0, TIME).await.unwrap();
    assert_eq!(counts, [counted(2, 1), counted(0, 0), counted(301, 301), counted(0, 0), counted(2, 1)]);
    let (calm, direct) = (user("calm"), pair("calm", "ann"));
    let own = OwnConversation::new(&*store, &calm, &direct, BeyondHead::Nothing);
    mark_read::read(own, 1).await.unwrap();
    assert_eq!(count(&*store, &users[..1], None, 0, TIME).await.unwrap(), [counted(1, 1)]);
    let capped = count(&*store, &users, Some(2), 0, TIME).await.unwrap();
    assert_eq!(capped[0], counted(1, 1), "not above the cap");
    assert!(capped[2].is_some_and(|it| it.is_capped && it.unread == 2));
}

#[tokio::test]
async fn thousand_users_are_counted_in_few_calls() {
    let (store, plan) = (talked().await, FaultPlan::none());
    let store: Arc<dyn Store> = Arc::new(Faulty::new(store, Arc::clone(&plan)));
    let users: Vec<UserId> = (0..1_000).map(|n| user(&format!("u{n}"))).collect();
    let aged = UserSettings { retention: Some(Retention::SevenDays), ..UserSettings::default() };
    assert!(aged.retention.is_some());
    for user in &users[..500] {
        store.merge_settings(user, aged).await.unwrap();
    }
    let counts = count(&*store, &users, None, 0, TIME).await.unwrap();
    assert!(counts.iter().all(|it| *it == counted(0, 0)));
    assert_eq!((plan.calls("memberships_of"), plan.calls("settings_of")), (18, 1));
    assert_eq!(plan.calls("times"), 0, "no age is searched for a count");
}

#[tokio::test(start_paused = true)]
async fn users_counted_before_the_time_ends_keep_their_counts() {
    let (store, plan) = (talked().await, FaultPlan::none());
    let store: Arc<dyn Store> = Arc::new(Faulty::new(store, Arc::clone(&plan)));
    plan.plan("memberships_of", Fault::None);
    plan.plan("memberships_of", Fault::Hold(Gate::new()));
    let users: Vec<UserId> = (0..300).map(|n| user(&format!("u{n}"))).collect();
    let counts = count(&*store, &users, None, 0, TIME).await.unwrap();
    let (first, rest) = counts.split_at(8);
    assert!(first.iter().all(|it| it.is_some_and(|it| !it.is_partial)));
    assert!(rest.iter().all(Option::is_none), "those in the held call are left");
}

#[tokio::test(start_paused = true)]
async fn count_of_one_user_is_partial_when_the_time_ends() {
    let (store, plan) = (talked().await, FaultPlan::none());
    let mut owner = Owner::take_over(&store, 0, 2).await;
    for n in 300..1_200 {
        let sender = format!("u{n}");
        owner.run(&[message(&pair(&sender, "busy"), &sender, "m", 0, "text")]).await;
    }
    let store: Arc<dyn Store> = Arc::new(Faulty::new(store, Arc::clone(&plan)));
    plan.plan("memberships_of", Fault::None);
    plan.plan("memberships_of", Fault::Hold(Gate::new()));
    let counts = count(&*store, &[user("busy")], None, 0, TIME).await.unwrap();
    let partial = UnreadCount { unread: 1_000, conversations: 1_000, is_capped: false, is_partial: true };
    assert_eq!(counts, [Some(partial)]);
}
