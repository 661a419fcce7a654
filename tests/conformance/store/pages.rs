//! Pages of history: flaws S13 and S14 (sort keys), S17 and S18 (paging), S19 (removed rows).

use std::sync::Arc;

use tidegate::store::{Page, PageQuery, Store};
use tidegate_protocol::{
    machine::ledger::{Loaded, Need},
    record::{Body, Edit, MessageMode, Prune, Recall, body_hash, mode::TRANSIENT},
};

use super::{
    back, device, direct, forth, group, history,
    owner::{Owner, message, newest_rules},
    say, seq_of, seqs, user,
};

pub(super) async fn s17_cursor_pages_skip_and_repeat_nothing_under_load(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for n in 0..50 {
        owner.run(&[say(&format!("m{n}"))]).await;
    }
    let (mut cursor, mut seen) = (u64::MAX, Vec::new());
    loop {
        assert!(seen.len() <= 50, "a page that repeats never ends: {seen:?}");
        let page = store.page(&direct(), PageQuery { cursor, ..back(7) }).await.unwrap();
        let Some(last) = page.rows.last() else { break };
        cursor = last.row.seq;
        seen.extend(seqs(&page));
        owner.run(&[say(&format!("late{cursor}"))]).await;
    }
    assert_eq!(seen, (1..=50).rev().collect::<Vec<_>>());
    assert_eq!(seqs(&store.page(&direct(), forth(10, 3)).await.unwrap()), [11, 12, 13]);
    let end = store.page(&direct(), forth(u64::MAX, 3)).await.unwrap();
    assert_eq!((seqs(&end), end.head.unwrap().last_seq), (vec![], 58));
}

pub(super) async fn s13_s14_rows_sort_by_their_whole_seq(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let (_, mut delta) = owner.apply(&[say("m1"), say("m2"), say("m3"), say("m4")]).await;
    let far = [9, 10, (1 << 53) + 1, (1 << 53) + 2];
    for (row, seq) in delta.rows.iter_mut().zip(far) {
        row.seq = seq;
    }
    delta.heads[0].1.last_seq = far[3];
    store.archive(0, owner.fence, &delta).await.unwrap();
    assert_eq!(history(store, &direct()).await, far);
    assert_eq!(seqs(&store.page(&direct(), forth(far[2], 9)).await.unwrap()), [far[3]]);
}

pub(super) async fn s18_reading_old_pages_moves_no_mark(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    for n in 0..20 {
        owner.run(&[say(&format!("m{n}"))]).await;
    }
    let newest = seqs(&store.page(&direct(), back(5)).await.unwrap());
    for _ in 0..10 {
        assert_eq!(seqs(&store.page(&direct(), forth(0, 5)).await.unwrap()), [1, 2, 3, 4, 5]);
    }
    assert_eq!(newest, [20, 19, 18, 17, 16]);
    assert_eq!(seqs(&store.page(&direct(), back(5)).await.unwrap()), newest);
}

pub(super) async fn page_is_bounded_but_returns_at_least_one_row(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let large = |id| message(&direct(), "ann", id, 0, &"x".repeat(1_000));
    owner.run(&[large("m1"), large("m2"), large("m3")]).await;
    for (limit, max_bytes, count) in [(9, 1 << 20, 3), (2, 1 << 20, 2), (9, 2_500, 2), (9, 1, 1), (0, 1, 0)] {
        let query = PageQuery { max_bytes, ..forth(0, limit) };
        assert_eq!(store.page(&direct(), query).await.unwrap().rows.len(), count, "{limit}, {max_bytes}");
    }
    let nothing = store.page(&group("none"), back(9)).await.unwrap();
    assert_eq!(nothing, Page { head: None, rows: Vec::new() });
}

pub(super) async fn s19_recalled_and_pruned_rows_are_reported_as_removed(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    owner.run(&[say("m1"), say("m2"), say("m3")]).await;
    let recall = Recall { conversation: direct(), seq: 2, by: Some(user("ann")) };
    let at = seq_of(owner.run(&[Body::Recall(recall)]).await[0]);
    let page = store.page(&direct(), forth(1, 1)).await.unwrap();
    assert_eq!(page.rows[0].recalled.map(|(seq, _)| seq), Some(at));
    let Body::Message(recalled) = &page.rows[0].row.body else { panic!("a message") };
    assert!(recalled.content.is_empty() && recalled.msg_id.as_str() == "m2");
    owner.run(&[Body::Prune(Prune { conversation: direct(), up_to: 2 })]).await;
    assert_eq!(history(store, &direct()).await, [3, 4]);
    let page = store.page(&direct(), back(9)).await.unwrap();
    assert_eq!((seqs(&page), page.head.unwrap().pruned_to), (vec![4, 3], 2));
}

fn edit(seq: u64, text: &'static str) -> Body {
    Body::Edit(Edit {
        conversation: direct(),
        seq,
        by: Some(user("ann")),
        device: device("phone"),
        msg_id: tidegate_protocol::id::MsgId::new(&format!("{seq}-{text}")).unwrap(),
        content: text.into(),
        body_hash: body_hash(text.as_bytes()),
        denied: None,
    })
}

/// Returns the contents and the newest edits of the conversation's messages, read in each way that returns rows.
async fn edits(store: &Arc<dyn Store>) -> Vec<(u64, String, Option<u64>)> {
    let page = store.page(&direct(), forth(0, 20)).await.unwrap().rows;
    let seqs: Vec<u64> = page.iter().map(|row| row.row.seq).collect();
    assert_eq!(store.rows_at(&direct(), &seqs, 1 << 20).await.unwrap().rows, page);
    let mut newest = store.newest(&[at(u64::MAX)], 20, 1 << 20).await.unwrap().remove(0);
    newest.reverse();
    assert_eq!(newest, page);
    let shown = page.into_iter().filter_map(|row| match &row.row.body {
        Body::Message(message) => {
            let text = String::from_utf8(message.content.to_vec()).unwrap();
            Some((row.row.seq, text, row.edited.map(|(seq, _)| seq)))
        }
        Body::Edit(edit) => {
            assert!(edit.content.is_empty() && row.edited.is_none(), "{edit:?}");
            None
        }
        _ => None,
    });
    shown.collect()
}

fn at(seq: u64) -> tidegate::store::ConversationSeq {
    tidegate::store::ConversationSeq { conversation: direct(), seq }
}

pub(super) async fn edited_row_has_the_newest_content_until_it_is_recalled(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let text = |id: &str| message(&direct(), "ann", id, 0, "first");
    owner.run(&[newest_rules(), text("m1"), text("m2")]).await;
    let of = |seq: u64, text: &str, edited| (seq, text.to_owned(), edited);
    assert_eq!(edits(store).await, [of(1, "first", None), of(2, "first", None)]);
    // Edits of a stored row, of a new one, and two of one row in one archive.
    owner.run(&[edit(1, "second"), text("m3"), edit(4, "third"), edit(1, "fourth")]).await;
    let after = [of(1, "fourth", Some(6)), of(2, "first", None), of(4, "third", Some(5))];
    assert_eq!(edits(store).await, after);
    let recall = |seq| Body::Recall(Recall { conversation: direct(), seq, by: None });
    owner.run(&[recall(1)]).await;
    // An edit and the recall of the same message in one archive, stored and new.
    owner.run(&[edit(2, "fifth"), recall(2), text("m4"), edit(10, "sixth"), recall(10)]).await;
    let page = store.page(&direct(), forth(0, 20)).await.unwrap();
    for row in page.rows.iter().filter(|row| row.recalled.is_some()) {
        let Body::Message(message) = &row.row.body else { panic!("a message") };
        assert!(message.content.is_empty(), "{message:?}");
    }
    assert_eq!(page.rows.iter().filter(|row| row.recalled.is_some()).count(), 3);
    owner.run(&[edit(4, "late"), Body::Prune(Prune { conversation: direct(), up_to: 4 })]).await;
    let left = store.page(&direct(), forth(0, 20)).await.unwrap();
    assert_eq!(seqs(&left).first(), Some(&5), "an edit brings no pruned row back");
}

pub(super) async fn row_heads_say_what_can_be_edited(store: &Arc<dyn Store>) {
    let mut owner = Owner::take_over(store, 0, 1).await;
    let Body::Message(mut transient) = say("m1") else { panic!("a message") };
    (transient.mode, transient.flags) = (MessageMode::of_flags(TRANSIENT), TRANSIENT);
    owner.run(&[newest_rules(), Body::Message(transient), say("m2"), edit(2, "better")]).await;
    let needs = [1, 2, 3].map(|seq| Need::Row(direct(), seq));
    let rows = store.load(0, owner.fence, &needs).await.unwrap().rows;
    let heads: Vec<_> = rows
        .iter()
        .map(|row| match row {
            Loaded::Row(_, _, Some(head)) => (head.sender.is_some(), head.is_transient),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(heads, [(true, true), (true, false), (false, false)]);
    let page = store.page(&direct(), forth(0, 1)).await.unwrap();
    let Body::Message(stored) = &page.rows[0].row.body else { panic!("a message") };
    assert_eq!((stored.content.len(), stored.mode.is_transient), (0, true));
}
