//! Scattered rows: of many conversations, or seqs without neighbours, in one call each.

use std::{array, sync::Arc};

use tidegate::store::{ConversationSeq, GroupMembers, Page, ReadClass, Store, message_rows_max};
use tidegate_protocol::{
    id::ConversationId,
    record::{Body, MemberAction, Prune},
};

use super::{
    direct, group,
    owner::{Owner, change, message},
    say, seqs, user,
};

fn at(conversation: ConversationId, seq: u64) -> ConversationSeq {
    ConversationSeq { conversation, seq }
}

pub(super) async fn rows_at_scattered_seqs_are_read_at_once(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for n in 0..9 {
        owner.run(&[message(&direct(), "ann", &format!("m{n}"), 0, &"x".repeat(1_000))]).await;
    }
    owner.run(&[Body::Prune(Prune { conversation: direct(), up_to: 2 })]).await;
    let rows = async |seqs: &[u64], max_bytes| store.rows_at(&direct(), seqs, max_bytes).await.unwrap();
    let page = rows(&[1, 3, 5, 6, 9, 12, u64::MAX], 1 << 20).await;
    assert_eq!(seqs(&page), [3, 5, 6, 9], "1 is removed, 12 does not exist");
    assert_eq!(page.head.as_ref().map(|head| (head.pruned_to, head.last_seq)), Some((2, 9)));
    assert_eq!(page.rows[..1], store.page(&direct(), super::forth(2, 1)).await.unwrap().rows);
    for (max_bytes, count) in [(4_000, 4), (2_500, 2), (1_000, 1), (1, 1)] {
        assert_eq!(rows(&[3, 5, 7, 9], max_bytes).await.rows.len(), count, "{max_bytes}");
    }
    assert_eq!(seqs(&rows(&[], 1).await), Vec::<u64>::new());
    let nothing = store.rows_at(&group("none"), &[1], 1).await.unwrap();
    assert_eq!(nothing, Page { head: None, rows: Vec::new() });
}

pub(super) async fn newest_rows_of_many_conversations_are_read_at_once(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), change("g", MemberAction::Create, &["ann"], "r1")]).await;
    for (id, bytes) in [("g1", 1_000), ("g2", 3_000), ("g3", 500), ("g4", 500)] {
        owner.run(&[message(&group("g"), "ann", id, 0, &"x".repeat(bytes))]).await;
    }
    let ends = [at(group("g"), 6), at(group("none"), 9), at(direct(), 2), at(group("g"), 4), at(direct(), 1)];
    let newest = async |limit, max_bytes| -> Vec<Vec<u64>> {
        let found = store.newest(&ends, limit, max_bytes).await.unwrap();
        found.iter().map(|rows| rows.iter().map(|row| row.row.seq).collect()).collect()
    };
    assert_eq!(newest(9, 1 << 20).await, [vec![5, 4, 3, 2, 1], vec![], vec![1], vec![3, 2, 1], vec![]]);
    assert_eq!(newest(2, 1 << 20).await, [vec![5, 4], vec![], vec![1], vec![3, 2], vec![]]);
    assert_eq!(newest(9, 2_000).await, [vec![5, 4], vec![], vec![1], vec![], vec![]], "rows up to the limit");
    assert_eq!(newest(0, 2_000).await, vec![Vec::<u64>::new(); 5]);
    assert_eq!(store.newest(&[], 1, 1).await.unwrap(), Vec::<Vec<_>>::new());
}

pub(super) async fn times_are_those_of_the_rows(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for (id, time) in [("m1", 5_000), ("m2", 7_000), ("m3", 6_000)] {
        owner.time = time;
        owner.run(&[say(id)]).await;
    }
    owner.run(&[Body::Prune(Prune { conversation: direct(), up_to: 1 })]).await;
    let rows =
        [at(direct(), 3), at(direct(), 1), at(group("none"), 1), at(direct(), 2), at(direct(), u64::MAX)];
    let times = store.times(&rows).await.unwrap();
    assert_eq!(times, [Some(6_000), None, None, Some(7_000), None]);
    assert_eq!(store.times(&[]).await.unwrap(), []);
}

pub(super) async fn message_times_are_those_of_the_newest_messages(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[change("g", MemberAction::Create, &["ann"], "r1")]).await;
    for (id, time) in [("m2", 5_000), ("m3", 7_000), ("m4", 6_000)] {
        owner.time = time;
        owner.run(&[message(&group("g"), "ann", id, 0, "text")]).await;
    }
    owner.run(&[change("g", MemberAction::Join, &["bob"], "r2")]).await;
    owner.time = 9_000;
    owner.run(&[message(&group("g"), "ann", "m6", 0, ""), say("other")]).await;
    let ends = [at(group("g"), u64::MAX), at(group("none"), 9), at(direct(), 2), at(group("g"), 4)];
    let times = async |limit| -> Vec<Vec<(u64, u64)>> {
        let found = store.message_times(&ends, limit).await.unwrap();
        found.iter().map(|all| all.iter().map(|it| (it.seq, it.received_ms)).collect()).collect()
    };
    let all = [(6, 9_000), (4, 6_000), (3, 7_000), (2, 5_000)];
    assert_eq!(times(9).await, [all.to_vec(), vec![], vec![(1, 9_000)], all[2..].to_vec()]);
    assert_eq!(times(2).await, [all[..2].to_vec(), vec![], vec![(1, 9_000)], all[2..].to_vec()]);
    assert_eq!(times(0).await, vec![Vec::<(u64, u64)>::new(); 4]);
    owner.run(&[Body::Prune(Prune { conversation: group("g"), up_to: 3 })]).await;
    assert_eq!(times(9).await[0], all[..2], "removed messages are not returned");
    assert_eq!(store.message_times(&[], 1).await.unwrap(), Vec::<Vec<_>>::new());
    const ROWS: usize = message_rows_max(1);
    let join = |n: usize| change("g", MemberAction::Join, &[&format!("u{n}")], &format!("j{n}"));
    owner.run(&array::from_fn::<_, ROWS, _>(join)).await;
    let ends = [at(group("g"), 6 + ROWS as u64), at(group("g"), u64::MAX)];
    let found = store.message_times(&ends, 1).await.unwrap();
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [1, 0], "more rows are not read");
}

pub(super) async fn summaries_are_those_of_single_calls(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), change("g", MemberAction::Create, &["ann", "cid"], "r1")]).await;
    owner.run(&[change("h", MemberAction::Create, &["cid"], "r2")]).await;
    let ids = [group("h"), group("none"), direct(), group("g"), direct()];
    let all = store.summaries(&ids, &user("ann")).await.unwrap();
    let mut single = Vec::new();
    for id in &ids {
        single.push(store.summary(id, Some(&user("ann"))).await.unwrap());
    }
    assert_eq!(all, single);
    let is_member = |it: &Option<tidegate::store::Summary>| it.as_ref().map(|it| it.member_view.is_some());
    let known: Vec<Option<bool>> = all.iter().map(is_member).collect();
    assert_eq!(known, [Some(false), None, Some(true), Some(true), Some(true)]);
    assert_eq!(store.summaries(&[], &user("ann")).await.unwrap(), []);
}

pub(super) async fn group_members_are_listed_up_to_a_size(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[change("g", MemberAction::Create, &["dan", "ann", "cid"], "r1")]).await;
    owner.run(&[change("h", MemberAction::Create, &["ann", "bob"], "r2")]).await;
    owner.run(&[change("g", MemberAction::Kick, &["cid"], "r3")]).await;
    owner.run(&[change("h", MemberAction::Join, &["cid"], "r4")]).await;
    let found =
        store.group_members(&[group("h"), group("none"), group("g")], 2, ReadClass::Owner).await.unwrap();
    let small = GroupMembers { members: 2, last_seq: 2, users: vec![user("ann"), user("dan")] };
    let large = GroupMembers { members: 3, last_seq: 2, users: Vec::new() };
    assert_eq!(found, [Some(large), None, Some(small)]);
    let many: Vec<ConversationId> = (0..1_200).map(|n| group(&format!("x{n}"))).chain([group("g")]).collect();
    let found = store.group_members(&many, 2, ReadClass::Client).await.unwrap();
    assert_eq!((found.len(), found.iter().flatten().count()), (1_201, 1));
    assert_eq!(found[1_200].as_ref().map(|it| it.members), Some(2));
    assert_eq!(store.group_members(&[], 2, ReadClass::Client).await.unwrap(), []);
}
