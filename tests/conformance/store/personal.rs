//! Rows that a store keeps for each user: stays, marks, cleared and hidden entries, user settings (flaws S23, S24).

use std::{sync::Arc, time::Duration};

use tidegate::{
    conversation::{
        clear, hide, history, mark_read,
        read_position::{BeyondHead, OwnConversation},
        reader::Reader,
        sync, unread_counts,
    },
    fault::{Fault, FaultPlan, Faulty, Gate},
    store::{Hidden, Mark, Personal, Store, UserState},
};
use tidegate_protocol::{
    id::ConversationId,
    machine::{
        ledger::Stay,
        session::{Pull, Which},
    },
    pb,
    record::{Body, MemberAction},
    settings::{Push, Retention, Unread, UserSettings, Visibility},
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
    let level = UserState { mark: at(1), cleared: at(2), hidden: vec![hidden(3)], ..UserState::default() };
    assert_eq!(kept().await, level, "marks only move forward, and cleared entries need no hide");
    let rows = store.memberships(&bob, None, 9).await.unwrap();
    assert_eq!(rows[0].member_view.level, level);
    assert_eq!(
        store.summary(&d, Some(&user("ann"))).await.unwrap().unwrap().member_view.unwrap().level,
        UserState::default()
    );
}

pub(super) async fn push_preferences_are_kept_with_marks_and_settings(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), change("g", MemberAction::Create, &["bob"], "r1")]).await;
    let (bob, d, g) = (user("bob"), direct(), group("g"));
    let save = async |id: &ConversationId, change: Personal| {
        store.save_marks(&[(bob.clone(), id.clone(), change)]).await.unwrap();
    };
    let kept = async |id: &ConversationId| {
        let level = store.summary(id, Some(&bob)).await.unwrap().unwrap().member_view.unwrap().level;
        let rows = store.memberships(&bob, None, 9).await.unwrap();
        let row = rows.iter().find(|it| it.conversation == *id).unwrap();
        assert_eq!(row.member_view.level, level);
        level
    };
    save(&d, Personal::Push(Some(Push::Mentions))).await;
    assert_eq!(kept(&d).await, UserState { push: Some(Push::Mentions), ..UserState::default() });
    assert_eq!(kept(&g).await, UserState::default(), "of one conversation");
    let mark = Mark { seq: 2, messages: 2, own: 0 };
    save(&d, Personal::Read(mark)).await;
    save(&d, Personal::Push(Some(Push::None))).await;
    assert_eq!(kept(&d).await, UserState { mark, push: Some(Push::None), ..UserState::default() });
    save(&d, Personal::Push(None)).await;
    assert_eq!(kept(&d).await, UserState { mark, ..UserState::default() });
    let settings = UserSettings { push: Some(Push::Mentions), ..UserSettings::default() };
    assert_eq!(store.merge_settings(&bob, settings).await.unwrap(), settings);
    let both = UserSettings { ack_tries: 2, ..settings };
    let tries = UserSettings { ack_tries: 2, ..UserSettings::default() };
    assert_eq!(store.merge_settings(&bob, tries).await.unwrap(), both);
    assert_eq!(store.settings_of(std::slice::from_ref(&bob)).await.unwrap(), [both]);
}

pub(super) async fn bound_is_kept_with_marks_and_cuts_what_the_user_reads(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), message(&direct(), "bob", "b1", 0, "text"), say("m2"), say("m3")]).await;
    let (store, bob, d) = (&**store, user("bob"), direct());
    let reader = Reader::new(bob.clone());
    let kept = async || {
        let level = store.summary(&d, Some(&bob)).await.unwrap().unwrap().member_view.unwrap().level;
        let rows = store.memberships(&bob, None, 9).await.unwrap();
        assert_eq!(rows[0].member_view.level, level);
        level
    };
    let own = OwnConversation::new(store, &bob, &d, BeyondHead::Nothing);
    let set = async |seq| clear::bound(own, seq).await.unwrap();
    let state = async || {
        let found = sync::states(store, &reader, &sync::Positions::default(), None, 9).await.unwrap();
        let state: &pb::ConversationState = &found.states[0];
        (state.max_seq, state.read_seq, state.unread, state.last.as_ref().map(|push| push.seq))
    };
    set(Some(3)).await;
    assert_eq!(kept().await.bound, Some(Mark { seq: 3, messages: 3, own: 1 }));
    assert_eq!(state().await, (3, 0, 2, Some(3)));
    let users = [bob.clone(), user("ann")];
    let counts = unread_counts::count(store, &users, None, 0, Duration::from_secs(9)).await.unwrap();
    assert_eq!(counts.iter().flatten().map(|it| it.unread).collect::<Vec<_>>(), [2, 1], "only bob's");
    let pull = Pull { conversation: d.clone(), which: Which::Before(u64::MAX), limit: 9 };
    let page = history::pull(store, &reader, &pull).await.unwrap();
    let seqs: Vec<u64> = page.messages.iter().map(|push| push.seq).collect();
    assert_eq!((seqs, page.complete_to), (vec![3, 2, 1], 3));
    let read = mark_read::read(own, 9).await.unwrap();
    assert_eq!(read, Some(Mark { seq: 3, messages: 3, own: 1 }), "not beyond the bound");
    set(Some(99)).await;
    assert_eq!(kept().await.bound, Some(Mark { seq: 4, messages: 4, own: 1 }), "not beyond the end");
    assert_eq!(state().await, (4, 3, 1, Some(4)));
    set(Some(1)).await;
    assert_eq!((state().await, kept().await.mark.seq), ((1, 1, 0, Some(1)), 3), "the mark stays");
    owner.run(&[say("m4")]).await;
    set(None).await;
    assert_eq!((state().await, kept().await.bound), ((5, 3, 2, Some(5)), None));
    let ann = store.summary(&d, Some(&user("ann"))).await.unwrap().unwrap().member_view.unwrap();
    assert_eq!(ann.level, UserState::default());
}

pub(super) async fn what_is_above_the_bound_can_be_hidden_and_cleared(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&["m1", "m2", "m3", "m4", "m5"].map(say)).await;
    let (store, bob, d) = (&**store, user("bob"), direct());
    let reader = Reader::new(bob.clone());
    let page = async |which| {
        let pull = Pull { conversation: d.clone(), which, limit: 9 };
        let page = history::pull(store, &reader, &pull).await.unwrap();
        let ranges: Vec<(u64, u64)> = page.expired.iter().map(|range| (range.first, range.last)).collect();
        (page.messages.iter().map(|push| push.seq).collect::<Vec<_>>(), ranges, page.complete_to)
    };
    let own = OwnConversation::new(store, &bob, &d, BeyondHead::Nothing);
    clear::bound(own, Some(2)).await.unwrap();
    let hidden = hide::hide(own, &[3, 5, 9]).await;
    assert_eq!(hidden, Ok(vec![3, 5]), "nothing is stored above the fifth");
    assert_eq!(page(Which::Before(u64::MAX)).await, (vec![2, 1], vec![], 2), "from the bound");
    assert_eq!(page(Which::Before(5)).await, (vec![2, 1], vec![(3, 4)], 4), "from what was pushed");
    assert_eq!(page(Which::Before(9)).await, (vec![2, 1], vec![(3, 5)], 5));
    let cleared = clear::clear(own, 4).await.unwrap();
    assert_eq!(cleared, Some(Mark { seq: 4, messages: 4, own: 0 }));
    assert_eq!(page(Which::Before(u64::MAX)).await, (vec![], vec![(1, 2)], 2));
    clear::bound(own, None).await.unwrap();
    assert_eq!(page(Which::Before(u64::MAX)).await, (vec![], vec![(1, 5)], 5), "nothing comes back");
}

/// A late change of the bound is written between the read and the write of one that sets the bound that it has read.
pub(super) async fn bound_that_is_set_again_comes_after_one_that_was_in_between(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&["m1", "m2", "m3"].map(say)).await;
    let (bob, d) = (user("bob"), direct());
    let (plan, gate) = (FaultPlan::none(), Gate::new());
    plan.plan("save_marks", Fault::Hold(gate.clone()));
    let held = Faulty::<dyn Store>::new(Arc::clone(store), plan);
    let own = OwnConversation::new(&**store, &bob, &d, BeyondHead::Nothing);
    clear::bound(own, Some(2)).await.unwrap();
    let again = OwnConversation::new(&held, &bob, &d, BeyondHead::Nothing);
    let between = async {
        while gate.reached() == 0 {
            tokio::task::yield_now().await;
        }
        clear::bound(own, Some(1)).await.unwrap();
        gate.open();
    };
    let (set, ()) = tokio::join!(clear::bound(again, Some(2)), between);
    set.unwrap();
    let kept = store.summary(&d, Some(&bob)).await.unwrap().unwrap().member_view.unwrap().level;
    assert_eq!(kept.bound.map(|bound| bound.seq), Some(2));
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
    let hidden = UserSettings { presence: Some(Visibility::Off), ..both };
    let opt_out = UserSettings { presence: hidden.presence, ..nothing };
    assert_eq!(store.merge_settings(&ann, opt_out).await, Ok(hidden));
    assert_eq!(store.settings_of(&[user("an"), ann]).await, Ok(vec![nothing, hidden]));
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
            (bob.clone(), d.clone(), Personal::Bound(Some(Mark { seq: 1, messages: 1, own: 0 }))),
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
