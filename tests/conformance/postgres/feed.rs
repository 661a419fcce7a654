//! The feed in Postgres: while it was off, next to a version that has none, and in tables of that version.

use std::sync::Arc;

use tidegate::store::{PostgresStore, Store};

use super::Database;
use crate::store::feed::{archive_two, check_beginning, check_former_version, check_hole};

#[tokio::test]
async fn feed_has_a_hole_where_it_was_off_on_another_node() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    archive_two(&store, 1).await;
    let off = PostgresStore::open(&database.config()).await.unwrap().without_feed();
    let off: Arc<dyn Store> = Arc::new(off);
    assert!(!off.has_feed());
    archive_two(&off, 2).await;
    archive_two(&store, 3).await;
    check_hole(&store).await;
}

#[tokio::test]
async fn node_of_the_former_version_leaves_one_number_without_an_entry() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    archive_two(&store, 1).await;
    // A node without a feed moves the position only.
    database
        .execute("CREATE TABLE before AS SELECT feed_newest, feed_bytes, feed_offset FROM partitions")
        .await;
    archive_two(&store, 2).await;
    database
        .execute(
            "UPDATE partitions SET feed_newest = b.feed_newest, feed_bytes = b.feed_bytes, feed_offset = b.feed_offset
             FROM before b; DELETE FROM feed WHERE last > 2",
        )
        .await;
    archive_two(&store, 3).await;
    check_former_version(&store).await;
}

#[tokio::test]
async fn tables_of_the_former_version_get_a_feed_that_begins_at_one() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    archive_two(&store, 1).await;
    drop(store);
    database
        .execute(
            "DROP TABLE feed, feed_cursors; DELETE FROM refinery_schema_history WHERE version >= 7;
             ALTER TABLE messages DROP COLUMN edited_seq, DROP COLUMN edited_time;
             ALTER TABLE marks DROP COLUMN push, DROP COLUMN bound_seq, DROP COLUMN bound_messages, DROP COLUMN bound_own;
             ALTER TABLE wishes DROP COLUMN push, DROP COLUMN presence;
             ALTER TABLE partitions DROP COLUMN feed_newest, DROP COLUMN feed_oldest, DROP COLUMN feed_bytes,
             DROP COLUMN feed_removed_bytes, DROP COLUMN feed_offset",
        )
        .await;
    let store: Arc<dyn Store> = database.store().await;
    check_beginning(&store).await;
    assert_eq!(database.number("SELECT count(*) FROM feed").await, 1);
}
