//! Whom a change and a push are told to, against a naive model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_protocol::id::MsgId;

use super::*;
use crate::store::MemoryStore;

fn group() -> ConversationId {
    ConversationId::parse("g:x").unwrap()
}

fn change(action: MemberAction, users: &[u8]) -> MemberChange {
    MemberChange {
        conversation: group(),
        action,
        users: users.iter().map(|n| UserId::new(&format!("u{n}")).unwrap()).collect(),
        role: None,
        by: None,
        settings: BTreeMap::new(),
        request_id: MsgId::new("r").unwrap(),
    }
}

fn named(told: Told) -> BTreeSet<UserId> {
    match told {
        Told::Named(users) => users.iter().cloned().collect(),
        Told::Everybody(_) => panic!("it is large"),
    }
}

proptest! {
    #[test]
    fn told_are_the_members_after_a_change_and_those_whom_it_removed(
        changes in prop::collection::vec((0..4_usize, prop::collection::vec(0..8_u8, 1..4)), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut members, mut naive) = (Members::new(100), BTreeSet::new());
        runtime.block_on(members.read(&MemoryStore::default(), &group())).unwrap();
        for (kind, users) in changes {
            let actions = [MemberAction::Join, MemberAction::Leave, MemberAction::Kick, MemberAction::Role];
            let change = change(actions[kind], &users);
            let before = naive.clone();
            match actions[kind] {
                MemberAction::Join => naive.extend(change.users.iter().cloned()),
                MemberAction::Leave | MemberAction::Kick => naive.retain(|user| !change.users.contains(user)),
                _ => {}
            }
            prop_assert_eq!(named(members.change(&change, 9)), &before | &naive);
            prop_assert_eq!(named(members.told(&group())), naive.clone());
        }
    }
}

#[test]
fn a_group_that_was_not_read_is_nobody() {
    let mut members = Members::new(500);
    assert!(named(members.told(&group())).is_empty());
}

#[tokio::test(start_paused = true)]
async fn above_the_limit_only_its_size_is_known_and_all_nodes_are_told_at_first_and_of_each_change() {
    let (store, mut members) = (MemoryStore::default(), Members::new(3));
    members.read(&store, &group()).await.unwrap();
    assert_eq!(named(members.change(&change(MemberAction::Create, &[1, 2, 3]), 1)).len(), 3);
    let crowd = |member_seq, to_all| Told::Everybody(Crowd { member_seq, from: 2, to_all });
    assert_eq!(members.change(&change(MemberAction::Join, &[4, 5]), 2), crowd(1, true), "it crosses here");
    assert_eq!(members.told(&group()), crowd(2, true));
    assert_eq!(members.weight, 1, "no user is kept");
    tokio::time::advance(SETTLE).await;
    assert_eq!(members.told(&group()), crowd(2, false));
    assert_eq!(members.change(&change(MemberAction::Role, &[1]), 4), crowd(2, false), "nobody came or went");
    assert_eq!(members.change(&change(MemberAction::Kick, &[1]), 6), crowd(2, true));
    assert_eq!(members.told(&group()), crowd(6, false));
    // It may be small now, and stays what it was until it is read between two batches.
    assert_eq!(members.change(&change(MemberAction::Leave, &[2]), 7), crowd(6, true));
    assert_eq!(members.told(&group()), crowd(7, false));
    members.read(&store, &group()).await.unwrap();
    assert!(named(members.told(&group())).is_empty(), "as the store has it, which has nobody here");
}

#[test]
fn over_the_bound_the_groups_that_were_named_last_stay() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (store, mut members) = (MemoryStore::default(), Members::new(100));
    let id = |n: u32| ConversationId::parse(&format!("g:x{n}")).unwrap();
    let name = |members: &mut Members, n: u32| {
        let is_new = !members.groups.contains_key(&id(n));
        runtime.block_on(members.read(&store, &id(n))).unwrap();
        if is_new {
            let joined = change(MemberAction::Join, &[1, 2, 3]);
            members.change(&MemberChange { conversation: id(n), ..joined }, 1);
        }
        members.trim_to(40);
    };
    // Ten groups of four; then the first is named again, and one more comes.
    (0..10).for_each(|n| name(&mut members, n));
    assert_eq!(members.groups.len(), 10);
    name(&mut members, 0);
    name(&mut members, 10);
    let kept: BTreeSet<u32> = (0..11).filter(|n| members.groups.contains_key(&id(*n))).collect();
    assert_eq!(kept, BTreeSet::from([0, 5, 6, 7, 8, 9, 10]), "three quarters, the newest");
    assert_eq!(members.weight, 28);
    assert_eq!(named(members.told(&id(0))).len(), 3);
}
