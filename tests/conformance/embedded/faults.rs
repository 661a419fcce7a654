//! A disk that fails or is full: what is confirmed, what is refused, and what still works.

use tidegate::conversation::{
    mark_read,
    read_position::{BeyondHead, OwnConversation},
};

use super::*;

#[tokio::test]
async fn failed_sync_confirms_nothing_and_is_fatal() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1"], 0).await;
    let mut fatal = small.engine.fatal();
    assert_eq!(*fatal.borrow(), None);
    disk.set(u64::MAX, EIO);
    let bus = Arc::clone(&small.bus);
    let append = tokio::spawn(async move { bus.append(0, vec![said("m2", 0)]).await });
    assert!(matches!(small.own().await, Err(StoreError::Broken(_))));
    assert!(matches!(append.await.unwrap(), Err(AppendError::Unknown(_))));
    fatal.changed().await.unwrap();
    assert!(fatal.borrow().as_ref().unwrap().contains("Check the disk"));
    disk.set(u64::MAX, 0);
    let late = small.bus.append(0, vec![said("m3", 0)]).await;
    assert!(matches!(late, Err(AppendError::Rejected(_))), "a later sync proves nothing: {late:?}");
    assert_eq!(small.seqs().await, [1]);
}

/// The batch is written, but its sync fails: a retry after the restart finds it and counts once. (S3)
#[tokio::test]
async fn failed_sync_after_a_written_batch_keeps_a_retry_single() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1"], 0).await;
    disk.sync_errno.store(EIO, Ordering::SeqCst);
    let bus = Arc::clone(&small.bus);
    let append = tokio::spawn(async move { bus.append(0, vec![said("m2", 0)]).await });
    assert!(matches!(small.own().await, Err(StoreError::Broken(_))));
    assert!(matches!(append.await.unwrap(), Err(AppendError::Unknown(_))));
    assert!(small.engine.fatal().borrow().is_some());
    disk.sync_errno.store(0, Ordering::SeqCst);
    drop(small);
    let mut small = Small::start(&disk).await;
    assert_eq!(small.seqs().await, [1, 2], "the batch was written");
    small.say(&["m2"], 1).await;
    assert_eq!(small.seqs().await, [1, 2], "the retry is the same message");
}

#[tokio::test]
async fn nearly_full_disk_accepts_writes_that_free_space() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1", "m2", "m3"], 0).await;
    disk.set(FLOOR - 1, 0);
    let refused = eventually(async || small.bus.append(0, vec![said("probe", 0)]).await.err());
    assert!(matches!(refused.await, AppendError::Unavailable(_)));
    // Some probes may have been accepted.
    let end = small.bus.bounds(0).await.unwrap().next;
    let bus = Arc::clone(&small.bus);
    let prune = tokio::spawn(async move { bus.append(0, vec![pruned(2)]).await });
    eventually(async || (small.bus.bounds(0).await.unwrap().next > end).then_some(())).await;
    small.own().await.unwrap();
    prune.await.unwrap().unwrap();
    assert_eq!(small.seqs().await.first(), Some(&3));
    assert_eq!(small.page(Direction::Backward, u64::MAX).await.last(), Some(&3));
    // Below half of the limit nothing is accepted.
    disk.set(FLOOR / 2 - 1, 0);
    let bus = Arc::clone(&small.bus);
    let refused = eventually(async || bus.append(0, vec![pruned(0)]).await.err()).await;
    assert!(matches!(refused, AppendError::Unavailable(_)), "{refused:?}");
}

/// A record that a retry finds in memory may not be on disk.
#[tokio::test]
async fn refused_mark_is_confirmed_to_a_retry_only_after_its_sync() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1", "m2"], 0).await;
    let (bob, place) = (user("bob"), direct());
    let read = async |seq| {
        let own = OwnConversation::new(&*small.store, &bob, &place, BeyondHead::Nothing);
        mark_read::read(own, seq).await
    };
    assert!(read(1).await.unwrap().is_some());
    disk.sync_errno.store(ENOSPC, Ordering::SeqCst);
    disk.set(0, 0);
    assert!(read(2).await.is_err());
    assert!(read(2).await.is_err(), "a retry was confirmed before the sync");
    disk.sync_errno.store(0, Ordering::SeqCst);
    disk.set(u64::MAX, 0);
    eventually(async || read(2).await.ok()).await;
    let summary = small.store.summary(&direct(), Some(&user("bob"))).await.unwrap().unwrap();
    assert_eq!(summary.member_view.unwrap().level.mark.seq, 2);
}

#[tokio::test]
async fn marks_and_user_settings_are_confirmed_by_a_sync() {
    let disk = TestDisk::new();
    let small = Small::start(&disk).await;
    let before = disk.syncs.load(Ordering::SeqCst);
    small.mark(1).await.unwrap();
    assert!(disk.syncs.load(Ordering::SeqCst) > before, "a mark was confirmed without a sync");
    let before = disk.syncs.load(Ordering::SeqCst);
    small
        .store
        .merge_settings(&user("bob"), UserSettings { ack_tries: 2, ..UserSettings::default() })
        .await
        .unwrap();
    assert!(disk.syncs.load(Ordering::SeqCst) > before, "a user setting was confirmed without a sync");
    disk.sync_errno.store(EIO, Ordering::SeqCst);
    assert!(matches!(small.mark(2).await, Err(StoreError::Broken(_))));
    disk.sync_errno.store(0, Ordering::SeqCst);
    assert!(matches!(small.mark(3).await, Err(StoreError::Broken(_))), "a later sync proves nothing");
}

#[tokio::test]
async fn nearly_full_disk_refuses_appends_until_space_is_free() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1"], 0).await;
    disk.set(FLOOR - 1, 0);
    let refused = eventually(async || small.bus.append(0, vec![said("probe", 0)]).await.err());
    assert!(matches!(refused.await, AppendError::Unavailable(_)));
    assert_eq!(small.seqs().await, [1]);
    disk.set(u64::MAX, 0);
    let bus = Arc::clone(&small.bus);
    eventually(async || bus.append(0, vec![said("m2", 0)]).await.ok()).await;
    small.own().await.unwrap();
    assert!(small.seqs().await.len() >= 2);
}

#[tokio::test]
async fn disk_full_during_a_commit_renumbers_nothing() {
    let disk = TestDisk::new();
    let mut small = Small::start(&disk).await;
    small.say(&["m1"], 0).await;
    disk.set(0, ENOSPC);
    let bus = Arc::clone(&small.bus);
    let append = tokio::spawn(async move { bus.append(0, vec![said("m2", 0)]).await });
    assert!(append.await.unwrap().is_err());
    assert_eq!(small.seqs().await, [1], "reads go on");
    disk.set(u64::MAX, 0);
    let bus = Arc::clone(&small.bus);
    eventually(async || bus.append(0, vec![said("m2", 1)]).await.ok()).await;
    small.own().await.unwrap();
    assert_eq!(small.seqs().await, [1, 2]);
    drop((small, bus));
    assert_eq!(Small::start(&disk).await.seqs().await, [1, 2]);
}

/// The sync of an archive, and a sync of records without an archive.
#[tokio::test]
async fn disk_full_during_a_sync_leaves_no_hole_in_the_log() {
    for archives in [true, false] {
        let disk = TestDisk::new();
        let mut small = Small::start(&disk).await;
        small.say(&["m1"], 0).await;
        disk.free.store(0, Ordering::SeqCst);
        disk.sync_errno.store(ENOSPC, Ordering::SeqCst);
        let bus = Arc::clone(&small.bus);
        let append = tokio::spawn(async move { bus.append(0, vec![said("m2", 0), said("m3", 0)]).await });
        if archives {
            // The append is retried until the disk has space; the owner finds by the position that it succeeded.
            eventually(async || (small.bus.bounds(0).await.unwrap().next == 3).then_some(())).await;
            let healed = Arc::clone(&disk);
            let heal = tokio::spawn(async move {
                assert!(append.await.unwrap().is_err());
                healed.sync_errno.store(0, Ordering::SeqCst);
                healed.free.store(u64::MAX, Ordering::SeqCst);
            });
            assert_eq!(accepted(&small.own().await.unwrap()), [2, 3]);
            heal.await.unwrap();
        } else {
            assert!(append.await.unwrap().is_err());
            disk.sync_errno.store(0, Ordering::SeqCst);
            disk.free.store(u64::MAX, Ordering::SeqCst);
        }
        let bus = Arc::clone(&small.bus);
        let append = eventually(async || bus.append(0, vec![said("m4", 0)]).await.ok());
        let own = async {
            eventually(async || (bus.bounds(0).await.unwrap().next == 4).then_some(())).await;
            small.own().await.unwrap();
        };
        tokio::join!(append, own);
        drop(bus);
        assert_eq!(accepted(&small.say(&["m5"], 0).await), [5], "archives: {archives}");
        drop(small);
        let small = Small::start(&disk).await;
        assert_eq!(small.seqs().await, [1, 2, 3, 4, 5], "archives: {archives}");
        let bounds = small.bus.bounds(0).await.unwrap();
        assert_eq!((bounds.first, bounds.next), (4, 5), "the log keeps the last archived record only");
    }
}
