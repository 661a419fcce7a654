//! Lists of conversations: of many users, by name, and of none in particular.

use std::sync::Arc;

use tidegate::store::{MembershipsRequest, Store};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::MemberAction,
    settings::{Unread, UserSettings},
};

use super::{
    direct, group,
    owner::{Owner, change, message},
    say, user,
};

pub(super) async fn memberships_of_many_users_are_those_of_single_calls(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), change("g", MemberAction::Create, &["ann", "cid"], "r1")]).await;
    owner.run(&[change("h", MemberAction::Create, &["ann"], "r2")]).await;
    owner.run(&[change("g", MemberAction::Kick, &["ann"], "r3")]).await;
    let request =
        |of: &str, after: Option<ConversationId>, limit| MembershipsRequest { user: user(of), after, limit };
    let requests = [
        request("cid", None, 9),
        request("eve", None, 9),
        request("ann", None, 2),
        request("ann", Some(group("g")), 9),
        request("bob", None, 1),
        request("ann", Some(group("h")), 9),
    ];
    let all = store.memberships_of(&requests).await.unwrap();
    let mut single = Vec::new();
    for it in &requests {
        single.push(store.memberships(&it.user, it.after.as_ref(), it.limit).await.unwrap());
    }
    assert_eq!(all, single);
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0, 2, 1, 1, 0]);
    assert_eq!(store.memberships_of(&[]).await.unwrap(), Vec::<Vec<_>>::new());
}

pub(super) async fn settings_of_many_users_are_in_order(store: &Arc<dyn Store>) {
    let direct = UserSettings { unread: Some(Unread::Direct), ..UserSettings::default() };
    store.merge_settings(&user("bob"), direct).await.unwrap();
    let users: Vec<UserId> = ["ann", "bob", "ann", "bob"].map(user).into();
    let none = UserSettings::default();
    assert_eq!(store.settings_of(&users).await.unwrap(), [none, direct, none, direct]);
    assert_eq!(store.settings_of(&[]).await.unwrap(), []);
}

pub(super) async fn heads_of_conversations_are_in_order(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), change("g", MemberAction::Create, &["ann", "cid"], "r1")]).await;
    let found = store.heads_of(&[group("g"), group("none"), direct(), group("g")]).await.unwrap();
    let known: Vec<Option<(&str, u64, u64, u64)>> = found
        .iter()
        .map(|it| it.as_ref())
        .map(|it| it.map(|it| (it.conversation.as_str(), it.head.last_seq, it.head.messages, it.members)))
        .collect();
    let team = Some(("g:g", 1, 0, 2));
    assert_eq!(known, [team, None, Some(("d:ann:bob", 2, 2, 2)), team]);
    assert_eq!(store.heads_of(&[]).await.unwrap(), []);
}

pub(super) async fn heads_are_listed_by_prefix_in_pages(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let names = ["a", "te", "te-a", "teA", "tea", "team", "tf", "t"];
    for name in names {
        owner.run(&[change(name, MemberAction::Create, &["ann"], &format!("r-{name}"))]).await;
    }
    owner.run(&[message(&direct(), "ann", "m1", 0, "text")]).await;
    let list = async |prefix: &str, after: Option<&str>, limit| -> Vec<String> {
        let after = after.map(|after| ConversationId::parse(after).unwrap());
        let found = store.heads(prefix, after.as_ref(), limit).await.unwrap();
        found.iter().map(|it| it.conversation.to_string()).collect()
    };
    assert_eq!(list("g:te", None, 99).await, ["g:te", "g:te-a", "g:teA", "g:tea", "g:team"]);
    assert_eq!(list("g:te", None, 2).await, ["g:te", "g:te-a"]);
    assert_eq!(list("g:te", Some("g:te-a"), 2).await, ["g:teA", "g:tea"]);
    assert_eq!(list("g:te", Some("g:team"), 9).await, Vec::<String>::new());
    assert_eq!(list("g:te", Some("g:a"), 1).await, ["g:te"], "a start before the range");
    assert_eq!(list("g:te", Some("g:x"), 9).await, Vec::<String>::new(), "a start after the range");
    assert_eq!(list("d:", None, 9).await, ["d:ann:bob"]);
    assert_eq!(list("d:ann:b", None, 9).await, ["d:ann:bob"]);
    assert_eq!(list("", None, 99).await.len(), names.len() + 1);
    assert_eq!(list("", Some("d:ann:bob"), 1).await, ["g:a"]);
    assert_eq!(list("r:", None, 9).await, Vec::<String>::new());
}
