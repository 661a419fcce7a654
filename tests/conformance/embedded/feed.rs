//! The feed of a directory: over restarts, while it was off, and after a version that has none.

use std::sync::Arc;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use tidegate::{
    embedded::{EmbeddedStore, Offline},
    store::{FeedStore as _, Store},
};

use super::TestDisk;
use crate::store::feed::{archive_two, check_beginning, check_former_version, check_hole};

fn open(disk: &Arc<TestDisk>) -> Arc<dyn Store> {
    Arc::new(EmbeddedStore::new(disk.open(1).unwrap()))
}

/// Changes the keyspace of the feed while no node has the directory open.
fn edit<T>(disk: &TestDisk, change: impl FnOnce(&Keyspace) -> T) -> T {
    let database = Database::builder(disk.path.join("db")).open().unwrap();
    let feed = database.keyspace("feed", KeyspaceCreateOptions::default).unwrap();
    let done = change(&feed);
    database.persist(PersistMode::SyncAll).unwrap();
    done
}

fn all(feed: &Keyspace) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |entry: fjall::Guard| entry.into_inner().map(|(key, value)| (key.to_vec(), value.to_vec()));
    feed.iter().map(pair).collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn feed_survives_restarts_and_has_a_hole_where_it_was_off() {
    let disk = TestDisk::new();
    archive_two(&open(&disk), 1).await;
    {
        let off = EmbeddedStore::new(disk.open(1).unwrap()).without_feed();
        assert!(!off.has_feed());
        let off: Arc<dyn Store> = Arc::new(off);
        archive_two(&off, 2).await;
    }
    let store = open(&disk);
    archive_two(&store, 3).await;
    check_hole(&store).await;
}

#[tokio::test]
async fn former_version_in_between_leaves_one_number_without_an_entry() {
    let disk = TestDisk::new();
    archive_two(&open(&disk), 1).await;
    let before = edit(&disk, all);
    archive_two(&open(&disk), 2).await;
    edit(&disk, |feed| {
        all(feed).into_iter().for_each(|(key, _)| feed.remove(key).unwrap());
        before.into_iter().for_each(|(key, value)| feed.insert(key, value).unwrap());
    });
    let store = open(&disk);
    archive_two(&store, 3).await;
    check_former_version(&store).await;
}

#[tokio::test]
async fn feed_of_a_directory_of_the_former_version_begins_at_one() {
    let disk = TestDisk::new();
    archive_two(&open(&disk), 1).await;
    edit(&disk, |feed| all(feed).into_iter().for_each(|(key, _)| feed.remove(key).unwrap()));
    check_beginning(&open(&disk)).await;
}

fn faults_of_the_feed(disk: &TestDisk) -> Vec<String> {
    let mut faults = Vec::new();
    Offline::open(&disk.path).unwrap().check(&mut |fault| faults.push(fault));
    faults.retain(|fault| fault.contains("feed"));
    faults
}

#[tokio::test]
async fn check_of_a_store_finds_damage_of_the_feed() {
    let disk = TestDisk::new();
    archive_two(&open(&disk), 1).await;
    archive_two(&open(&disk), 2).await;
    assert_eq!(faults_of_the_feed(&disk), [""; 0]);
    let [counters, first, second] = &edit(&disk, all)[..] else { panic!("two batches") };
    for (damaged, word) in [
        ((&first.0, b"".to_vec()), "can't be read"),
        ((&counters.0, vec![2, 1, 0, 0, 4]), "is not between"),
        ((&b"\xffa b\0\0\0\0\0".to_vec(), Vec::new()), "can't be read"),
    ] {
        edit(&disk, |feed| feed.insert(damaged.0, damaged.1).unwrap());
        let faults = faults_of_the_feed(&disk);
        assert!(faults.iter().any(|fault| fault.contains(word)), "{word}: {faults:?}");
        edit(&disk, |feed| {
            [counters, first, second].into_iter().for_each(|(key, value)| feed.insert(key, value).unwrap());
        });
    }
}
