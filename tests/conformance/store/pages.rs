//! Pages of history: flaws S13 and S14 (sort keys), S17 and S18 (paging), S19 (removed rows).

use std::sync::Arc;

use tidegate::store::{Page, PageQuery, Store};
use tidegate_protocol::record::{Body, Prune, Recall};

use super::{
    back, direct, forth, group, history,
    owner::{Owner, message},
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
