//! Rows that a store keeps for each user: stays, marks, cleared and hidden entries, user settings (flaws S23, S24).

use std::sync::Arc;

use tidegate::store::{Hidden, Mark, Personal, Store, UserState};
use tidegate_protocol::{
    machine::ledger::Stay,
    record::{Body, MemberAction},
    settings::{Retention, Unread, UserSettings},
};

use super::{
    direct, group,
    owner::{Owner, change, message},
    say, user,
};

pub(super) async fn rejoined_member_keeps_every_stay(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let g = group("g");
    let said = |id: &str| message(&g, "ann", id, 0, "text");
    owner.run(&[change("g", MemberAction::Create, &["ann", "cid"], "r1"), said("m1")]).await;
    // One batch: changes between two archives must not get lost.
    owner
        .run(&[
            change("g", MemberAction::Kick, &["cid"], "r2"),
            said("m2"),
            change("g", MemberAction::Join, &["cid"], "r3"),
            said("m3"),
            change("g", MemberAction::Kick, &["cid"], "r4"),
        ])
        .await;
    owner.run(&[said("m4"), change("g", MemberAction::Join, &["cid"], "r5")]).await;
    let member_view = store.summary(&g, Some(&user("cid"))).await.unwrap().unwrap().member_view.unwrap();
    let stay = |joined_seq, left_seq, joined_messages, left_messages| Stay {
        joined_seq,
        left_seq,
        joined_messages,
        left_messages,
    };
    assert_eq!(member_view.stays, [stay(1, 3, 0, 1), stay(5, 7, 2, 3)]);
    let member = member_view.member;
    assert_eq!((member.joined_seq, member.left_seq, member.joined_messages, member.stays), (9, 0, 4, 2));
    let rows = store.memberships(&user("cid"), None, 9).await.unwrap();
    assert_eq!(rows[0].member_view, member_view);
    let ann = store.summary(&g, Some(&user("ann"))).await.unwrap().unwrap().member_view.unwrap();
    assert_eq!((ann.stays, ann.member.joined_seq, ann.member.sent), (vec![], 1, 4));
}

pub(super) async fn s23_s24_marks_only_move_forward_in_the_member_view(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), change("g", MemberAction::Create, &["bob"], "r1")]).await;
    let mark = |seq| Personal::Read(Mark { seq, messages: seq, own: 0 });
    let (bob, d) = (user("bob"), direct());
    let stored = async || {
        let rows = store.memberships(&bob, None, 9).await.unwrap();
        let summary = store.summary(&d, Some(&bob)).await.unwrap().unwrap();
        assert_eq!(summary.member_view.unwrap(), rows[0].member_view);
        rows.iter().map(|it| it.member_view.level.mark.seq).collect::<Vec<_>>()
    };
    assert_eq!(stored().await, [0, 0]);
    store.save_marks(&[(bob.clone(), d.clone(), mark(2)), (bob.clone(), d.clone(), mark(1))]).await.unwrap();
    assert_eq!(stored().await, [2, 0]);
    store.save_marks(&[(bob.clone(), d.clone(), mark(1)), (bob.clone(), group("g"), mark(1))]).await.unwrap();
    assert_eq!(stored().await, [2, 1], "a late mark changes nothing");
    let ann = store.summary(&d, Some(&user("ann"))).await.unwrap().unwrap().member_view.unwrap();
    assert_eq!(ann.level, UserState::default(), "marks are per user");
    owner.run(&[say("m3")]).await;
    assert_eq!(stored().await, [2, 1], "an archive changes no marks");
}

pub(super) async fn member_view_has_cleared_and_hidden_entries(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), say("m3")]).await;
    let (bob, d) = (user("bob"), direct());
    let save = async |change: Personal| store.save_marks(&[(bob.clone(), d.clone(), change)]).await.unwrap();
    let kept = async || store.summary(&d, Some(&bob)).await.unwrap().unwrap().member_view.unwrap().level;
    let at = |seq| Mark { seq, messages: seq, own: 0 };
    let hidden = |seq| Hidden { seq, counts: seq % 2 == 1 };
    let hide =
        |seqs: &[u64]| Personal::Hidden { seqs: seqs.iter().map(|seq| hidden(*seq)).collect(), forget: 0 };
    save(hide(&[2, 3])).await;
    save(hide(&[1, 3])).await;
    assert_eq!(kept().await, UserState { hidden: [1, 2, 3].map(hidden).into(), ..UserState::default() });
    save(Personal::Read(at(1))).await;
    save(Personal::Cleared(at(2))).await;
    save(Personal::Cleared(at(1))).await;
    let level = UserState { mark: at(1), cleared: at(2), hidden: vec![hidden(3)] };
    assert_eq!(kept().await, level, "marks only move forward, and cleared entries need no hide");
    let rows = store.memberships(&bob, None, 9).await.unwrap();
    assert_eq!(rows[0].member_view.level, level);
    assert_eq!(
        store.summary(&d, Some(&user("ann"))).await.unwrap().unwrap().member_view.unwrap().level,
        UserState::default()
    );
}

pub(super) async fn stays_with_equal_start_are_all_kept(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let Body::Member(mut open) = change("g", MemberAction::Create, &["ann"], "r0") else { unreachable!() };
    open.settings.insert("history".into(), "all".into());
    owner.run(&[Body::Member(open)]).await;
    for n in 1..=3 {
        let kick = change("g", MemberAction::Kick, &["ann"], &format!("k{n}"));
        owner.run(&[kick, change("g", MemberAction::Join, &["ann"], &format!("j{n}"))]).await;
    }
    let rows = store.memberships(&user("ann"), None, 9).await.unwrap();
    let stays: Vec<_> =
        rows[0].member_view.stays.iter().map(|stay| (stay.joined_seq, stay.left_seq)).collect();
    assert_eq!(stays, [(1, 2), (1, 4), (1, 6)]);
}

pub(super) async fn user_settings_are_kept_one_by_one(store: &Arc<dyn Store>) {
    let (ann, nothing) = (user("ann"), UserSettings::default());
    assert_eq!(store.merge_settings(&ann, nothing).await.unwrap(), nothing);
    let first = UserSettings { ack_tries: 2, retention: Some(Retention::OneDay), ..nothing };
    assert_eq!(store.merge_settings(&ann, first).await.unwrap(), first);
    let then = UserSettings { unread: Some(Unread::None), retention: Some(Retention::None), ..nothing };
    let both = UserSettings { ack_tries: 2, ..then };
    assert_eq!(store.merge_settings(&ann, then).await.unwrap(), both);
    assert_eq!(store.merge_settings(&ann, nothing).await.unwrap(), both);
    assert_eq!(store.merge_settings(&user("an"), nothing).await.unwrap(), nothing, "another user");
}

pub(super) async fn forgotten_marks_and_settings_start_from_nothing(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), change("g", MemberAction::Create, &["bob"], "r1")]).await;
    let (ann, bob, d, g) = (user("ann"), user("bob"), direct(), group("g"));
    let mark = |seq| Personal::Read(Mark { seq, messages: seq, own: 0 });
    let hide = Personal::Hidden { seqs: vec![Hidden { seq: 2, counts: true }], forget: 0 };
    let first = UserSettings { ack_tries: 2, ..UserSettings::default() };
    let save = async || {
        let changes = [
            (bob.clone(), d.clone(), mark(2)),
            (bob.clone(), d.clone(), hide.clone()),
            (bob.clone(), g.clone(), mark(1)),
            (ann.clone(), d.clone(), mark(1)),
        ];
        store.save_marks(&changes).await.unwrap();
        store.merge_settings(&bob, first).await.unwrap();
        store.merge_settings(&ann, first).await.unwrap();
    };
    let level =
        async |of: &_, id: &_| store.summary(id, Some(of)).await.unwrap().unwrap().member_view.unwrap().level;
    save().await;
    store.forget_marks(&bob, std::slice::from_ref(&d)).await.unwrap();
    assert_eq!(level(&bob, &d).await, UserState::default());
    assert_eq!((level(&bob, &g).await.mark.seq, level(&ann, &d).await.mark.seq), (1, 1), "the others stay");
    store.save_marks(&[(bob.clone(), d.clone(), mark(1))]).await.unwrap();
    assert_eq!(level(&bob, &d).await.mark.seq, 1, "a lower mark than before");
    // Twice, and one that never was.
    for _ in 0..2 {
        store.forget_marks(&bob, &[g.clone(), group("none"), d.clone()]).await.unwrap();
        store.forget_settings(&bob).await.unwrap();
    }
    store.forget_marks(&bob, &[]).await.unwrap();
    store.forget_settings(&user("nobody")).await.unwrap();
    assert_eq!((level(&bob, &d).await, level(&bob, &g).await), Default::default());
    let settings = store.settings_of(&[bob.clone(), ann.clone()]).await.unwrap();
    assert_eq!(settings, [UserSettings::default(), first]);
    save().await;
    assert_eq!(level(&bob, &d).await.mark.seq, 2, "a user who comes back");
}
