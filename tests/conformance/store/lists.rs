//! Lists of conversations: of many users, by name, and of none in particular.

use std::sync::Arc;

use tidegate::{
    conversation::{overview, reader::Reader},
    fault::{FaultPlan, Faulty},
    store::{Mark, MembershipsRequest, Personal, Store},
};
use tidegate_protocol::{
    id::{ConversationId, UserId},
    record::{Body, MemberAction, Prune},
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

/// The range of a user begins after the join, what was pruned and what the user cleared, and ends with the membership.
pub(super) async fn user_ranges_of_many_conversations_take_one_call(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let said = |name: &str, id: &str| message(&group(name), "ann", id, 0, "text");
    for name in ["all", "cleared", "joined", "kicked", "pruned"] {
        let others: &[&str] = if name == "joined" { &["ann"] } else { &["ann", "bob"] };
        owner.run(&[change(name, MemberAction::Create, others, "r1"), said(name, "m1")]).await;
    }
    owner
        .run(&[
            change("joined", MemberAction::Join, &["bob"], "r2"),
            said("joined", "m2"),
            said("kicked", "m2"),
        ])
        .await;
    owner.run(&[change("kicked", MemberAction::Kick, &["bob"], "r2"), said("kicked", "m3")]).await;
    owner.run(&[said("pruned", "m2"), Body::Prune(Prune { conversation: group("pruned"), up_to: 2 })]).await;
    owner.run(&[said("cleared", "m2"), say("d1")]).await;
    let clear = Personal::Cleared(Mark { seq: 2, messages: 1, own: 0 });
    store.save_marks(&[(user("bob"), group("cleared"), clear)]).await.unwrap();
    let plan = FaultPlan::none();
    let counted: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(store), Arc::clone(&plan)));
    let named = ["pruned", "none", "kicked", "joined", "cleared", "all", "pruned"].map(group);
    let named = [&named[..], &[direct()]].concat();
    let bob = Reader::new(user("bob"));
    let found = overview::of_conversations(&*counted, &bob, &named, false).await.unwrap();
    let ranges: Vec<Option<(u64, u64)>> =
        found.iter().map(|it| it.as_ref().map(|it| (it.view.min(), it.view.max()))).collect();
    let pruned = Some((3, 3));
    assert_eq!(
        ranges,
        [pruned, None, Some((1, 4)), Some((3, 4)), Some((3, 3)), Some((1, 2)), pruned, Some((1, 1))]
    );
    assert_eq!((plan.calls("summaries"), plan.calls("summary")), (1, 0));
    let eve = Reader::new(user("eve"));
    let found = overview::of_conversations(&*counted, &eve, &named, false).await.unwrap();
    assert!(found.iter().all(Option::is_none), "another user never was in them");
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

pub(super) async fn members_are_paged_and_counted(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let names: Vec<_> = (0..20).map(|n| format!("u{n:02}")).collect();
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    owner.run(&[change("g", MemberAction::Create, &all, "r1")]).await;
    owner.run(&[change("g", MemberAction::Kick, &["u03", "u07"], "r2")]).await;
    owner.run(&[change("g", MemberAction::Join, &["u07"], "r3")]).await;
    let count = async || store.summary(&group("g"), None).await.unwrap().unwrap().members;
    assert_eq!(count().await, 19);
    let (mut found, mut after): (Vec<UserId>, _) = (Vec::new(), None);
    loop {
        let page = store.members(&group("g"), after.as_ref(), 6).await.unwrap();
        assert!(page.len() <= 6 && page.iter().all(|(_, member)| member.is_in()));
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        found.extend(page.into_iter().map(|(user, _)| user));
    }
    let expected: Vec<_> = names.iter().filter(|name| *name != "u03").map(|name| user(name)).collect();
    assert_eq!(found, expected);
    let kicked = store.summary(&group("g"), Some(&user("u03"))).await.unwrap().unwrap();
    assert_eq!(kicked.member_view.map(|it| it.member.left_seq), Some(2), "a former member still has a row");
    let stranger = store.summary(&group("g"), Some(&user("eve"))).await.unwrap().unwrap();
    assert_eq!(stranger.member_view, None);
}
