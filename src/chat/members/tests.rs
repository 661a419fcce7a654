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

proptest! {
    #[test]
    fn told_are_the_members_after_a_change_and_those_whom_it_removed(
        changes in prop::collection::vec((0..4_usize, prop::collection::vec(0..8_u8, 1..4)), 0..40)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut members, mut naive) = (Members::default(), BTreeSet::new());
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
            let told: BTreeSet<UserId> = members.change(&change).iter().cloned().collect();
            prop_assert_eq!(told, &before | &naive);
            let now: BTreeSet<UserId> = members.of(&group()).iter().cloned().collect();
            prop_assert_eq!(now, naive.clone());
            prop_assert!(members.is_small(&group(), naive.len()));
            prop_assert!(naive.is_empty() || !members.is_small(&group(), naive.len() - 1));
        }
    }
}

#[test]
fn a_group_that_was_not_read_is_nobody_and_not_small() {
    let mut members = Members::default();
    assert!(members.of(&group()).is_empty());
    assert!(!members.is_small(&group(), 500));
}

#[test]
fn over_the_bound_the_groups_that_were_named_last_stay() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (store, mut members) = (MemoryStore::default(), Members::default());
    let id = |n: u32| ConversationId::parse(&format!("g:x{n}")).unwrap();
    let name = |members: &mut Members, n: u32| {
        let is_new = !members.groups.contains_key(&id(n));
        runtime.block_on(members.read(&store, &id(n))).unwrap();
        if is_new {
            members.change(&MemberChange { conversation: id(n), ..change(MemberAction::Join, &[1, 2, 3]) });
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
    assert_eq!(members.of(&id(0)).len(), 3);
}
