//! The suite of `Store`, driven by the real ledger: flaws S8-S11 (stale writers), S20-S22 (dedup keys).

mod blocks;
pub(super) mod feed;
mod groups;
mod guard;
mod lists;
pub(super) mod owner;
mod pages;
mod personal;
mod profiles;
mod revocations;
mod scattered;

use std::{collections::BTreeMap, sync::Arc};

use tidegate::{
    bus::TopicId,
    embedded::EmbeddedStore,
    fault::{FaultPlan, Faulty},
    store::{Direction, Fence, MemoryStore, Page, PageQuery, Scan, Store, StoreError},
};
use tidegate_protocol::{
    Code,
    id::ConversationId,
    machine::ledger::{Delta, Loaded, Need, Outcome},
    record::{Body, MemberAction, MemberChange, Position, RuleChange, Rules, SenderOrder},
    settings::UserSettings,
};

use self::{
    blocks::{
        block_list_of_a_user_is_bounded, block_lists_change_one_by_one_and_raise_the_version,
        concurrent_changes_of_blocks_become_visible_in_order,
    },
    feed::{
        consumers_with_cursors_are_bounded, cursor_is_saved_by_the_owner_of_its_partition_only,
        feed_does_not_depend_on_the_size_of_batches, feed_is_read_in_pages,
        feed_is_trimmed_from_its_oldest_end, feed_numbers_follow_the_log_over_batches_owners_and_repeats,
    },
    groups::{
        group_pages_are_bounded, groups_are_listed_by_prefix_without_deleted_ones,
        groups_of_a_user_are_those_where_the_user_is_now, members_are_listed_by_role_in_pages,
    },
    guard::{
        ended_guard_entries_are_not_returned_and_removed_by_later_puts,
        guard_batch_is_stored_only_if_all_versions_are_as_expected,
        guard_entries_are_versioned_in_the_order_of_their_storage, guard_kinds_are_bounded_and_pages_too,
        reader_misses_no_guard_entry_of_concurrent_writers, removed_guard_entries_stay_as_tombstones,
    },
    lists::{
        heads_are_listed_by_prefix_in_pages, heads_of_conversations_are_in_order,
        members_are_paged_and_counted, memberships_of_many_users_are_those_of_single_calls,
        settings_of_many_users_are_in_order, user_ranges_of_many_conversations_take_one_call,
    },
    owner::{Owner, change, message},
    pages::{
        edited_row_has_the_newest_content_until_it_is_recalled, page_is_bounded_but_returns_at_least_one_row,
        row_heads_say_what_can_be_edited, s13_s14_rows_sort_by_their_whole_seq,
        s17_cursor_pages_skip_and_repeat_nothing_under_load, s18_reading_old_pages_moves_no_mark,
        s19_recalled_and_pruned_rows_are_reported_as_removed,
    },
    personal::{
        bound_is_kept_with_marks_and_cuts_what_the_user_reads,
        bound_that_is_set_again_comes_after_one_that_was_in_between,
        forgotten_marks_and_settings_start_from_nothing, member_view_has_cleared_and_hidden_entries,
        push_preferences_are_kept_with_marks_and_settings, rejoined_member_keeps_every_stay,
        s23_s24_marks_only_move_forward_in_the_member_view, stays_with_equal_start_are_all_kept,
        user_settings_are_kept_one_by_one, what_is_above_the_bound_can_be_hidden_and_cleared,
    },
    profiles::history_of_a_subject_survives_a_restart_of_its_node,
    revocations::{
        cleared_revocations_are_removed_and_followed, revocations_are_numbered_in_the_order_of_their_storage,
        revocations_of_a_user_are_bounded_and_replaced,
    },
    scattered::{
        group_members_are_listed_up_to_a_size, message_times_are_those_of_the_newest_messages,
        newest_rows_of_many_conversations_are_read_at_once, rows_at_scattered_seqs_are_read_at_once,
        summaries_are_those_of_single_calls, times_are_those_of_the_rows,
    },
};
use super::{at_once, device, group, user};

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

fn faultless() -> Arc<dyn Store> {
    Arc::new(Faulty::new(memory(), FaultPlan::none()))
}

fn embedded() -> Arc<dyn Store> {
    Arc::new(EmbeddedStore::new(super::embedded::engine(2)))
}

suite! {
    {
        memory => super::memory();
        faultless => super::faultless();
        embedded => super::embedded();
        postgres => crate::postgres::store().await;
    }
    {
        takeover_continues_at_the_archived_position
        s7_takeover_does_not_wait_for_a_dead_owner
        s8_archive_moves_rows_and_position_atomically
        s10_s11_former_owner_can_not_archive_or_load
        lost_archive_reply_is_resolved_by_a_repeat
        s9_conflicting_row_fails_the_archive_atomically
        takeover_with_another_log_is_refused_and_keeps_the_fence
        k2_archived_offset_is_known_without_the_conversation
        load_returns_each_need_in_order_with_the_position
        s20_s21_s22_retry_at_a_new_owner_finds_its_key
        keys_and_heads_are_scanned_in_pages
        scan_needs_the_current_fence
        refusal_of_a_chained_message_is_stored_like_an_ack
        keys_are_removed_by_rules_only
        s17_cursor_pages_skip_and_repeat_nothing_under_load
        s13_s14_rows_sort_by_their_whole_seq
        s18_reading_old_pages_moves_no_mark
        page_is_bounded_but_returns_at_least_one_row
        s19_recalled_and_pruned_rows_are_reported_as_removed
        edited_row_has_the_newest_content_until_it_is_recalled
        row_heads_say_what_can_be_edited
        members_are_paged_and_counted
        memberships_are_listed_for_both_sides_and_after_a_leave
        rejoined_member_keeps_every_stay
        s23_s24_marks_only_move_forward_in_the_member_view
        member_view_has_cleared_and_hidden_entries
        stays_with_equal_start_are_all_kept
        user_settings_are_kept_one_by_one
        push_preferences_are_kept_with_marks_and_settings
        bound_is_kept_with_marks_and_cuts_what_the_user_reads
        bound_that_is_set_again_comes_after_one_that_was_in_between
        what_is_above_the_bound_can_be_hidden_and_cleared
        forgotten_marks_and_settings_start_from_nothing
        revocations_are_numbered_in_the_order_of_their_storage
        revocations_of_a_user_are_bounded_and_replaced
        cleared_revocations_are_removed_and_followed
        rows_at_scattered_seqs_are_read_at_once
        newest_rows_of_many_conversations_are_read_at_once
        times_are_those_of_the_rows
        message_times_are_those_of_the_newest_messages
        summaries_are_those_of_single_calls
        group_members_are_listed_up_to_a_size
        memberships_of_many_users_are_those_of_single_calls
        settings_of_many_users_are_in_order
        heads_of_conversations_are_in_order
        user_ranges_of_many_conversations_take_one_call
        heads_are_listed_by_prefix_in_pages
        groups_are_listed_by_prefix_without_deleted_ones
        group_pages_are_bounded
        members_are_listed_by_role_in_pages
        groups_of_a_user_are_those_where_the_user_is_now
        partitions_advance_independently
        block_lists_change_one_by_one_and_raise_the_version
        block_list_of_a_user_is_bounded
        concurrent_changes_of_blocks_become_visible_in_order
        feed_numbers_follow_the_log_over_batches_owners_and_repeats
        feed_does_not_depend_on_the_size_of_batches
        feed_is_read_in_pages
        feed_is_trimmed_from_its_oldest_end
        cursor_is_saved_by_the_owner_of_its_partition_only
        consumers_with_cursors_are_bounded
        guard_entries_are_versioned_in_the_order_of_their_storage
        guard_batch_is_stored_only_if_all_versions_are_as_expected
        removed_guard_entries_stay_as_tombstones
        ended_guard_entries_are_not_returned_and_removed_by_later_puts
        guard_kinds_are_bounded_and_pages_too
        reader_misses_no_guard_entry_of_concurrent_writers
        history_of_a_subject_survives_a_restart_of_its_node
    }
}

const TOPIC: TopicId = TopicId(1);

fn direct() -> ConversationId {
    ConversationId::direct(&user("ann"), &user("bob"))
}

fn say(id: &str) -> Body {
    message(&direct(), "ann", id, 0, "text")
}

fn back(limit: usize) -> PageQuery {
    PageQuery { cursor: u64::MAX, direction: Direction::Backward, limit, max_bytes: 1 << 20 }
}

fn forth(cursor: u64, limit: usize) -> PageQuery {
    PageQuery { cursor, direction: Direction::Forward, limit, max_bytes: 1 << 20 }
}

fn seqs(page: &Page) -> Vec<u64> {
    page.rows.iter().map(|stored| stored.row.seq).collect()
}

async fn history(store: &Arc<dyn Store>, conversation: &ConversationId) -> Vec<u64> {
    seqs(&store.page(conversation, forth(0, 1_000)).await.unwrap())
}

fn seq_of(outcome: Outcome) -> u64 {
    match outcome {
        Outcome::Accepted { seq, .. } | Outcome::Duplicate { seq, .. } => seq,
        other => panic!("{other:?}"),
    }
}

async fn takeover_continues_at_the_archived_position(store: &Arc<dyn Store>) {
    let mut first = Owner::take_over(store, 0, 1).await;
    assert_eq!(first.ledger.archived_position(), Position::START);
    assert_eq!(first.ledger.rules(), Rules::default());
    first.run(&[say("m1"), say("m2")]).await;
    let left_at = first.position;
    let mut second = Owner::take_over(store, 0, 2).await;
    assert_eq!(second.ledger.archived_position(), left_at);
    assert_eq!(second.run(&[say("m3")]).await.map(seq_of), [3], "the seqs go on");
    assert_eq!(history(store, &direct()).await, [1, 2, 3]);
}

async fn s7_takeover_does_not_wait_for_a_dead_owner(store: &Arc<dyn Store>) {
    let mut first = Owner::take_over(store, 0, 1).await;
    first.run(&[say("m1")]).await;
    // The owner dies with an undecided batch, and releases nothing.
    first.apply(&[say("m2")]).await;
    drop(first);
    let mut second = Owner::take_over(store, 0, 2).await;
    assert_eq!(second.run(&[say("m2")]).await.map(seq_of), [2]);
}

async fn s8_archive_moves_rows_and_position_atomically(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let (_, skipped) = owner.apply(&[say("m2")]).await;
    let (_, delta) = owner.apply(&[say("m3")]).await;
    let refused = store.archive(0, owner.fence, &delta).await;
    assert_eq!(refused, Err(StoreError::PositionMismatch(skipped.from)), "a delta was left out");
    let moved = Delta { from: Position { offset: skipped.from.offset, hash: [7; 16] }, ..skipped.clone() };
    let refused = store.archive(0, owner.fence, &moved).await;
    assert_eq!(refused, Err(StoreError::PositionMismatch(skipped.from)), "another record at that offset");
    assert_eq!(history(store, &direct()).await, [1]);
    store.archive(0, owner.fence, &skipped).await.unwrap();
    assert_eq!(history(store, &direct()).await, [1, 2]);
    store.archive(0, owner.fence, &delta).await.unwrap();
    let page = store.page(&direct(), back(9)).await.unwrap();
    assert_eq!((seqs(&page), page.head.unwrap().last_seq), (vec![3, 2, 1], 3));
}

async fn s10_s11_former_owner_can_not_archive_or_load(store: &Arc<dyn Store>) {
    let mut zombie = Owner::take_over(store, 0, 1).await;
    zombie.run(&[say("m1")]).await;
    let (_, delta) = zombie.apply(&[say("m2")]).await;
    let mut owner = Owner::take_over(store, 0, 2).await;
    assert_eq!(
        store.archive(0, zombie.fence, &delta).await,
        Err(StoreError::Fenced),
        "the position is still that of the new owner"
    );
    owner.run(&[say("m2")]).await;
    assert_eq!(store.archive(0, zombie.fence, &delta).await, Err(StoreError::Fenced));
    let needs = [Need::Head(direct())];
    assert_eq!(store.load(0, zombie.fence, &needs).await, Err(StoreError::Fenced));
    assert_eq!(store.load(9, zombie.fence, &needs).await, Err(StoreError::Fenced), "never taken over");
    assert_eq!(history(store, &direct()).await, [1, 2]);
}

async fn lost_archive_reply_is_resolved_by_a_repeat(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let (_, delta) = owner.apply(&[say("m1")]).await;
    let (_, next) = owner.apply(&[say("m2")]).await;
    for _ in 0..2 {
        assert_eq!(store.archive(0, owner.fence, &delta).await, Ok(()));
    }
    for _ in 0..2 {
        assert_eq!(store.archive(0, owner.fence, &next).await, Ok(()));
    }
    let late = store.archive(0, owner.fence, &delta).await;
    assert_eq!(late, Err(StoreError::PositionMismatch(next.to)), "an earlier delta is not a repeat");
    assert_eq!(history(store, &direct()).await, [1, 2]);
    let again = store.take_over(0, owner.fence, TOPIC).await.unwrap();
    assert_eq!(again.position, next.to);
}

async fn s9_conflicting_row_fails_the_archive_atomically(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2")]).await;
    let (_, delta) = owner.apply(&[message(&group("g"), "ann", "x", 0, "t"), say("m3")]).await;
    let mut stale = delta.clone();
    stale.rows.last_mut().unwrap().seq = 2;
    let mut created = owner.apply(&[change("g", MemberAction::Create, &["ann", "cid"], "r1")]).await.1;
    created.from = stale.from;
    created.rows.append(&mut stale.rows);
    let refused = store.archive(0, owner.fence, &created).await;
    assert_eq!(refused, Err(StoreError::Conflict(direct(), 2)));
    assert_eq!(history(store, &group("g")).await, Vec::<u64>::new(), "the rows before the conflict, too");
    assert_eq!(store.summary(&group("g"), None).await, Ok(None));
    assert_eq!(store.load(0, owner.fence, &[]).await.unwrap().position, delta.from);
    store.archive(0, owner.fence, &delta).await.unwrap();
    assert_eq!(history(store, &direct()).await, [1, 2, 3]);
}

/// K2: whether the store lags is known although it lacks the conversation.
async fn k2_archived_offset_is_known_without_the_conversation(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2")]).await;
    let archived = store.load(0, owner.fence, &[]).await.unwrap().position.offset;
    assert!(archived > 0);
    assert_eq!(store.archived_without(0, &group("g")).await, Ok(Some(archived)));
    assert_eq!(store.archived_without(0, &direct()).await, Ok(None), "the store has it");
    assert_eq!(store.archived_without(7, &group("g")).await, Ok(Some(0)), "nothing is archived");
}

async fn takeover_with_another_log_is_refused_and_keeps_the_fence(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let other = store.take_over(0, Fence(2), TopicId(99)).await;
    assert_eq!(other, Err(StoreError::LogReplaced(TOPIC)));
    owner.run(&[say("m2")]).await;
    assert_eq!(history(store, &direct()).await, [1, 2]);
}

async fn load_returns_each_need_in_order_with_the_position(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let (ann, d) = (user("ann"), direct());
    let needs = [
        Need::Row(d.clone(), 1),
        Need::Member(d.clone(), user("eve")),
        Need::Key([9; 16]),
        Need::Device(d.clone(), ann.clone(), device("phone")),
        Need::Head(group("g")),
        Need::Member(d.clone(), ann.clone()),
        Need::Head(d.clone()),
    ];
    let snapshot = store.load(0, owner.fence, &needs).await.unwrap();
    assert_eq!(snapshot.position, owner.position);
    let [row, eve, key, phone, none, member, head] = snapshot.rows.try_into().unwrap();
    let Loaded::Row(_, 1, Some(row)) = row else { panic!("{row:?}") };
    assert_eq!((row.sender, row.recalled), (Some(ann.clone()), None));
    assert_eq!(eve, Loaded::Member(d.clone(), user("eve"), None));
    assert_eq!(key, Loaded::Key([9; 16], None));
    assert!(matches!(phone, Loaded::Device(_, user, _, Some(_)) if user == ann));
    assert_eq!(none, Loaded::Head(group("g"), None));
    assert!(matches!(member, Loaded::Member(_, _, Some(member)) if member.sent == 1));
    assert!(matches!(head, Loaded::Head(_, Some(head)) if head.last_seq == 1));
}

async fn s20_s21_s22_retry_at_a_new_owner_finds_its_key(store: &Arc<dyn Store>) {
    let mut first = Owner::take_over(store, 0, 1).await;
    let acked = first.run(&[say("m1"), say("m2")]).await.map(seq_of);
    // Applied, but lost with its owner before the archive.
    first.apply(&[say("m3")]).await;
    let mut second = Owner::take_over(store, 0, 2).await;
    let retry = |id| message(&direct(), "ann", id, 1, "text");
    let outcomes = second.run(&[retry("m3"), retry("m2"), retry("m1")]).await;
    assert!(matches!(outcomes[0], Outcome::Accepted { seq: 3, .. }), "an unarchived record has no key");
    assert!(matches!(outcomes[1], Outcome::Duplicate { seq: 2, .. }));
    assert!(matches!(outcomes[2], Outcome::Duplicate { seq: 1, .. }));
    assert_eq!(acked, [1, 2]);
    assert_eq!(history(store, &direct()).await, [1, 2, 3]);
}

/// Returns the offsets of the keys at or above `from`, read in pages of one, in the order of their hashes.
async fn offsets_of_keys(store: &Arc<dyn Store>, fence: Fence, from: u64) -> Vec<u64> {
    let (mut offsets, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(0, fence, &Scan::Keys { from, after, limit: 1 }).await.unwrap();
        let [Loaded::Key(hash, Some(key))] = page.rows[..] else {
            assert!(page.rows.is_empty(), "{page:?}");
            offsets.sort_unstable();
            return offsets;
        };
        assert!(after < Some(hash), "in order");
        after = Some(hash);
        offsets.push(key.offset);
    }
}

async fn keys_and_heads_are_scanned_in_pages(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), change("x", MemberAction::Create, &["ann"], "r1"), say("m3")]).await;
    assert_eq!(offsets_of_keys(store, owner.fence, 1).await, [1, 2, 3]);
    let all = Scan::Keys { from: 0, after: None, limit: usize::MAX };
    let all = store.scan(0, owner.fence, &all).await.unwrap();
    assert_eq!((all.position, all.rows.len()), (owner.position, 4));
    let (mut heads, mut after) = (Vec::new(), None);
    loop {
        let scan = Scan::Heads { after, limit: 1, with_settings: false };
        let page = store.scan(0, owner.fence, &scan).await.unwrap();
        let [Loaded::Head(id, Some(head))] = &page.rows[..] else {
            assert!(page.rows.is_empty(), "{page:?}");
            break;
        };
        after = Some(id.clone());
        heads.push((id.clone(), head.last_seq));
    }
    assert_eq!(heads, [(direct(), 3), (group("x"), 1)]);
    let set = Scan::Heads { after: None, limit: 9, with_settings: true };
    assert_eq!(store.scan(0, owner.fence, &set).await.unwrap().rows, []);
    let settings = BTreeMap::from([("retention".to_owned(), "1d".to_owned())]);
    let Body::Member(create) = change("y", MemberAction::Create, &["ann"], "r2") else {
        panic!("a membership change")
    };
    owner.run(&[Body::Member(MemberChange { settings, ..create })]).await;
    let rows = store.scan(0, owner.fence, &set).await.unwrap().rows;
    assert!(matches!(&rows[..], [Loaded::Head(id, Some(_))] if *id == group("y")), "{rows:?}");
}

async fn scan_needs_the_current_fence(store: &Arc<dyn Store>) {
    let zombie = Owner::take_over(store, 0, 1).await;
    Owner::take_over(store, 0, 2).await;
    let scan = Scan::Heads { after: None, limit: 1, with_settings: false };
    assert_eq!(store.scan(0, zombie.fence, &scan).await, Err(StoreError::Fenced));
}

/// Returns the offset and the code of a key, if it belongs to a refusal.
fn refusal(row: &Loaded) -> Option<(u64, Code)> {
    match row {
        Loaded::Key(_, Some(key)) => Some((key.offset, key.refused?)),
        _ => None,
    }
}

async fn refusal_of_a_chained_message_is_stored_like_an_ack(store: &Arc<dyn Store>) {
    let chained = |n| {
        let mut body = message(&group("team"), "bob", &format!("m{n}"), 1, "text");
        if let Body::Message(message) = &mut body {
            message.order = SenderOrder { epoch: 1, n, chained: true };
        }
        body
    };
    let mut owner = Owner::take_over(store, 0, 1).await;
    let create = change("team", MemberAction::Create, &["ann"], "q1");
    let join = change("team", MemberAction::Join, &["bob"], "q2");
    let outcomes = owner.run(&[create, chained(0), join, chained(1)]).await;
    assert_eq!(outcomes[1], Outcome::Refused { code: Code::NotAMember });
    assert_eq!(seq_of(outcomes[3]), 3);
    let all = Scan::Keys { from: 0, after: None, limit: usize::MAX };
    let keys = store.scan(0, owner.fence, &all).await.unwrap().rows;
    let refused: Vec<_> = keys.iter().filter_map(refusal).collect();
    assert_eq!(refused, [(1, Code::NotAMember)]);
    let mut next = Owner::take_over(store, 0, 2).await;
    let again = next.run(&[chained(0)]).await;
    assert_eq!(again, [Outcome::RefusedBefore { code: Code::NotAMember }]);
}

async fn keys_are_removed_by_rules_only(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2")]).await;
    let offsets = async |owner: &Owner| offsets_of_keys(store, owner.fence, 0).await;
    assert_eq!(offsets(&owner).await, [0, 1]);
    owner.run(&[Body::Rules(RuleChange { keys_from: 1, ..RuleChange::default() })]).await;
    assert!(offsets(&owner).await.contains(&1), "keys within the rules are kept");
    let next = Owner::take_over(store, 0, 2).await;
    assert_eq!(next.ledger.rules().keys_from, 1);
}

async fn memberships_are_listed_for_both_sides_and_after_a_leave(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), change("g", MemberAction::Create, &["ann", "cid"], "r1")]).await;
    owner.run(&[change("h", MemberAction::Create, &["ann"], "r2"), say("m2")]).await;
    owner.run(&[change("g", MemberAction::Kick, &["ann"], "r3")]).await;
    let all = store.memberships(&user("ann"), None, 9).await.unwrap();
    let listed: Vec<_> = all
        .iter()
        .map(|it| (it.conversation.clone(), it.head.last_seq, it.member_view.member.is_in()))
        .collect();
    assert_eq!(listed, [(direct(), 2, true), (group("g"), 2, false), (group("h"), 1, true)]);
    let rest = store.memberships(&user("ann"), Some(&direct()), 1).await.unwrap();
    assert_eq!(rest, all[1..2]);
    assert_eq!(store.memberships(&user("ann"), Some(&group("h")), 9).await.unwrap(), []);
    let bob = store.memberships(&user("bob"), None, 9).await.unwrap();
    assert_eq!(bob.iter().map(|it| it.conversation.clone()).collect::<Vec<_>>(), [direct()]);
    assert_eq!(store.memberships(&user("eve"), None, 9).await.unwrap(), []);
}

async fn partitions_advance_independently(store: &Arc<dyn Store>) {
    let mut one = Owner::take_over(store, 0, 1).await;
    let mut two = Owner::take_over(store, 1, 2).await;
    one.run(&[say("m1"), say("m2")]).await;
    two.run(&[change("g", MemberAction::Create, &["ann"], "r1")]).await;
    assert_eq!(store.load(0, one.fence, &[]).await.unwrap().position.offset, 2);
    assert_eq!(store.load(1, two.fence, &[]).await.unwrap().position.offset, 1);
    assert_eq!(store.load(1, one.fence, &[]).await, Err(StoreError::Fenced));
}

#[test]
fn memory_answers_at_the_first_poll() {
    let store = memory();
    at_once(store.take_over(0, Fence(1), TOPIC)).unwrap();
    at_once(store.load(0, Fence(1), &[])).unwrap();
    at_once(store.scan(0, Fence(1), &Scan::Heads { after: None, limit: 1, with_settings: false })).unwrap();
    at_once(store.memberships(&user("ann"), None, 1)).unwrap();
    at_once(store.members(&direct(), None, 1)).unwrap();
    at_once(store.summary(&direct(), None)).unwrap();
    at_once(store.page(&direct(), back(1))).unwrap();
    at_once(store.save_marks(&[])).unwrap();
    at_once(store.is_blocked(&user("ann"), &user("bob"))).unwrap();
    at_once(store.guard_since(0, 1)).unwrap();
    at_once(store.merge_settings(&user("ann"), UserSettings::default())).unwrap();
}
