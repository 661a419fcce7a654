//! Lists of groups, of their members, and of the groups of a user, in bounded pages.

use std::{collections::BTreeMap, sync::Arc};

use tidegate::store::{GROUP_PAGE_BYTES_MAX, GroupMember, ListPage, MembersRequest, Store, rows_visited_max};
use tidegate_protocol::{
    id::ConversationId,
    record::{Body, MemberAction, MemberChange, Role},
};

use super::{
    direct, group,
    owner::{Owner, change},
    say, user,
};

fn changed(body: Body, edit: impl FnOnce(&mut MemberChange)) -> Body {
    let Body::Member(mut change) = body else { panic!("a change of a group") };
    edit(&mut change);
    Body::Member(change)
}

async fn groups(store: &Arc<dyn Store>, prefix: &str, limit: usize) -> Vec<Vec<String>> {
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let ListPage { rows, next } = store.group_page(prefix, after.as_ref(), limit).await.unwrap();
        all.push(rows.iter().map(|it| it.conversation.to_string()).collect());
        let Some(next) = next else { return all };
        after = Some(next);
    }
}

async fn groups_of(store: &Arc<dyn Store>, name: &str, limit: usize) -> Vec<Vec<String>> {
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let page = store.groups_of(&user(name), after.as_ref(), limit).await.unwrap();
        all.push(page.rows.iter().map(|it| it.group.conversation.to_string()).collect());
        let Some(next) = page.next else { return all };
        after = Some(next);
    }
}

fn request(name: &str, role: Option<Role>, limit: usize) -> MembersRequest {
    MembersRequest { group: group(name), role, after: None, limit }
}

async fn members(store: &Arc<dyn Store>, mut request: MembersRequest) -> Vec<Vec<GroupMember>> {
    let mut all = Vec::new();
    loop {
        let page = store.member_page(&request).await.unwrap().unwrap();
        all.push(page.rows);
        request.after = page.next;
        if request.after.is_none() {
            return all;
        }
    }
}

fn names(members: &[Vec<GroupMember>]) -> Vec<Vec<&str>> {
    members.iter().map(|page| page.iter().map(|it| it.user.as_str()).collect()).collect()
}

pub(super) async fn groups_are_listed_by_prefix_without_deleted_ones(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for name in ["a", "te", "te-a", "teA", "tea", "team", "tf"] {
        owner.run(&[change(name, MemberAction::Create, &["ann", "bob"], &format!("r-{name}"))]).await;
    }
    owner.run(&[say("m1"), change("teA", MemberAction::Delete, &[], "d1")]).await;
    assert_eq!(groups(store, "g:te", 2).await, [vec!["g:te", "g:te-a"], vec!["g:tea", "g:team"]]);
    assert_eq!(groups(store, "g:te", 9).await.concat(), ["g:te", "g:te-a", "g:tea", "g:team"]);
    assert_eq!(groups(store, "g:", 9).await.concat().len(), 6, "no direct conversation is a group");
    assert_eq!(groups(store, "g:x", 9).await, [Vec::<String>::new()]);
    let before: ConversationId = group("a");
    let page = store.group_page("g:te", Some(&before), 1).await.unwrap();
    assert_eq!((page.rows[0].members, page.rows[0].head.last_seq, page.next), (2, 1, Some(group("te"))));
}

pub(super) async fn group_pages_are_bounded(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    page_of_groups_is_bounded_in_bytes(store, &mut owner).await;
    page_of_members_visits_few_rows(store, &mut owner).await;
}

async fn page_of_groups_is_bounded_in_bytes(store: &Arc<dyn Store>, owner: &mut Owner) {
    let settings: BTreeMap<String, String> =
        (0..64).map(|n| (format!("x.{n:02}"), "v".repeat(4_096))).collect();
    for name in ["a", "b", "c", "d", "e"] {
        let create = change(name, MemberAction::Create, &["ann"], &format!("b-{name}"));
        owner.run(&[changed(create, |it| it.settings = settings.clone())]).await;
    }
    for pages in [groups(store, "g:", 9).await, groups_of(store, "ann", 9).await] {
        let most = GROUP_PAGE_BYTES_MAX / (64 * 4_096);
        assert!(pages.len() > 1 && pages.iter().all(|page| page.len() <= most), "{pages:?}");
        assert_eq!(pages.concat(), ["g:a", "g:b", "g:c", "g:d", "g:e"]);
    }
}

pub(super) async fn members_are_listed_by_role_in_pages(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let all: Vec<String> = (0..30).map(|n| format!("u{n:02}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let admins =
        changed(change("g", MemberAction::Role, &["u03", "u29"], "r2"), |it| it.role = Some(Role::Admin));
    owner.run(&[change("g", MemberAction::Create, &all, "r1"), admins]).await;
    owner
        .run(&[
            change("g", MemberAction::Kick, &all[5..25], "r3"),
            change("g", MemberAction::Mute, &["u04"], "r4"),
        ])
        .await;
    owner.run(&[change("h", MemberAction::Create, &["zoe"], "r5")]).await;
    let found = members(store, request("g", None, 4)).await;
    let expected = [vec!["u00", "u01", "u02", "u03"], vec!["u04", "u25", "u26", "u27"], vec!["u28", "u29"]];
    assert_eq!(names(&found), expected);
    let facts = |it: &GroupMember| (it.member.role, it.member.muted, it.member.joined_seq);
    assert_eq!(facts(&found[0][3]), (Role::Admin, false, 1));
    assert_eq!(facts(&found[1][0]), (Role::Member, true, 1));
    assert_eq!(names(&members(store, request("g", Some(Role::Admin), 1)).await), [["u03"], ["u29"]]);
    assert_eq!(names(&members(store, request("g", Some(Role::Admin), 2)).await), [["u03", "u29"]]);
    assert_eq!(names(&members(store, request("g", Some(Role::Owner), 2)).await), [Vec::<&str>::new()]);
    assert_eq!(store.member_page(&request("none", None, 2)).await.unwrap(), None);
    owner.run(&[change("g", MemberAction::Delete, &[], "r6")]).await;
    assert_eq!(store.member_page(&request("g", None, 2)).await.unwrap(), None);
}

async fn page_of_members_visits_few_rows(store: &Arc<dyn Store>, owner: &mut Owner) {
    let all: Vec<String> = (0..600).map(|n| format!("u{n:03}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    owner
        .run(&[
            change("g", MemberAction::Create, &all, "r1"),
            change("g", MemberAction::Kick, &all[..599], "r2"),
        ])
        .await;
    let found = members(store, request("g", None, 1)).await;
    let visited = rows_visited_max(1);
    assert_eq!(found.len(), 600_usize.div_ceil(visited), "each page visits {visited} rows");
    assert_eq!(names(&found).concat(), ["u599"]);
}

pub(super) async fn groups_of_a_user_are_those_where_the_user_is_now(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for name in ["a", "b", "c", "d"] {
        owner.run(&[change(name, MemberAction::Create, &["ann", "bob"], &format!("r-{name}"))]).await;
    }
    owner
        .run(&[
            say("m1"),
            change("b", MemberAction::Kick, &["ann"], "k1"),
            change("c", MemberAction::Delete, &[], "d1"),
        ])
        .await;
    assert_eq!(groups_of(store, "ann", 9).await, [["g:a", "g:d"]]);
    assert_eq!(groups_of(store, "bob", 1).await, [["g:a"], ["g:b"], ["g:d"]]);
    assert_eq!(groups_of(store, "eve", 9).await, [Vec::<String>::new()]);
    let found = store.groups_of(&user("bob"), Some(&direct()), 1).await.unwrap();
    assert_eq!((found.rows[0].member.joined_seq, found.rows[0].group.members), (1, 2));
    assert_eq!(found.next, Some(group("a")));
}
