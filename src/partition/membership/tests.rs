//! Recipients of changes and pushes, against a naive model.

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

fn named(recipients: Recipients) -> BTreeSet<UserId> {
    match recipients {
        Recipients::Named(users) => users.iter().cloned().collect(),
        Recipients::LargeGroup(_) => panic!("the group is large"),
    }
}

proptest! {
    #[test]
    fn change_goes_to_members_after_it_and_removed_users(
        changes in prop::collection::vec((0..4_usize, prop::collection::vec(0..8_u8, 1..4)), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut members, mut naive) = (Members::new(100), BTreeSet::new());
        runtime.block_on(members.read(&MemoryStore::default(), &BTreeSet::from([&group()]))).unwrap();
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
            prop_assert_eq!(named(members.recipients(&group())), naive.clone());
        }
    }
}

#[test]
fn unread_group_has_no_recipients() {
    let mut members = Members::new(500);
    assert!(named(members.recipients(&group())).is_empty());
}

#[tokio::test(start_paused = true)]
async fn large_group_keeps_no_users_and_reaches_all_nodes_at_first() {
    let (store, mut members) = (MemoryStore::default(), Members::new(3));
    members.read(&store, &BTreeSet::from([&group()])).await.unwrap();
    assert_eq!(named(members.change(&change(MemberAction::Create, &[1, 2, 3]), 1)).len(), 3);
    let large = |member_seq, to_all| Recipients::LargeGroup(GroupPushMeta { member_seq, from: 2, to_all });
    assert_eq!(
        members.change(&change(MemberAction::Join, &[4, 5]), 2),
        large(1, true),
        "the group crosses the limit"
    );
    assert_eq!(members.recipients(&group()), large(2, true));
    assert_eq!(members.weight, GROUP_WEIGHT, "no user is cached");
    tokio::time::advance(INTEREST_SETTLE_TIME).await;
    assert_eq!(members.recipients(&group()), large(2, false));
    assert_eq!(
        members.change(&change(MemberAction::Role, &[1]), 4),
        large(2, false),
        "the members stay the same"
    );
    assert_eq!(members.change(&change(MemberAction::Kick, &[1]), 6), large(2, true));
    assert_eq!(members.recipients(&group()), large(6, false));
    // The group may be small now, but it stays large until it is read between two batches.
    assert_eq!(members.change(&change(MemberAction::Leave, &[2]), 7), large(6, true));
    assert_eq!(members.recipients(&group()), large(7, false));
    members.read(&store, &BTreeSet::from([&group()])).await.unwrap();
    assert!(named(members.recipients(&group())).is_empty(), "the group is empty in the store");
}

#[test]
fn trim_keeps_the_groups_named_last() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (store, mut members) = (MemoryStore::default(), Members::new(100));
    let id = |n: u32| ConversationId::parse(&format!("g:x{n}")).unwrap();
    let name = |members: &mut Members, n: u32| {
        let is_new = !members.groups.contains_key(&id(n));
        runtime.block_on(members.read(&store, &BTreeSet::from([&id(n)]))).unwrap();
        if is_new {
            let joined = change(MemberAction::Join, &[1, 2, 3]);
            members.change(&MemberChange { conversation: id(n), ..joined }, 1);
        }
        members.trim_to(10 * (3 + GROUP_WEIGHT));
    };
    // Ten groups; then the first is named again, and another one is added.
    (0..10).for_each(|n| name(&mut members, n));
    assert_eq!(members.groups.len(), 10);
    name(&mut members, 0);
    name(&mut members, 10);
    let kept: BTreeSet<u32> = (0..11).filter(|n| members.groups.contains_key(&id(*n))).collect();
    assert_eq!(kept, BTreeSet::from([0, 5, 6, 7, 8, 9, 10]), "the newest three quarters");
    assert_eq!(members.weight, 7 * (3 + GROUP_WEIGHT));
    assert_eq!(named(members.recipients(&id(0))).len(), 3);
}
