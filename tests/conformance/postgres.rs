//! Databases on a real Postgres for the suites: one per test, dropped with it.

mod batching;
mod faults;
mod feed;

use std::{ops::Deref, sync::Arc, thread};

use bytes::Bytes;
use tidegate::{
    config,
    store::{
        GUARD_ENTRIES_MAX, GuardBatch, GuardEntry, GuardKey, GuardKind, GuardOutcome, GuardPut,
        GuardStore as _, Mark, Personal, PostgresStore, Store,
    },
};
use tidegate_protocol::id::ConversationId;
use tokio_postgres::{Client, NoTls};

use super::{
    services::service_text,
    store::owner::{Owner, message},
    unique_name, user,
};

/// Empty database on a server that other tests use too.
pub(crate) struct Database {
    address: String,
    user: String,
    name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let text = |field| service_text("postgres", field);
        let name = format!("test_{}", unique_name());
        let database = Self { address: text("address"), user: text("user"), name };
        let client = database.client_of("postgres").await;
        client.batch_execute(&format!("CREATE DATABASE {}", database.name)).await.expect("a database");
        database
    }

    pub(crate) fn config(&self) -> config::PostgresConfig {
        let url = format!("postgres://{}@{}/{}", self.user, self.address, self.name);
        config::PostgresConfig { url, pool_max: 8, ..config::PostgresConfig::default() }
    }

    pub(crate) async fn store(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.config()).await.unwrap_or_else(|error| panic!("{error}")))
    }

    /// Opens a connection that is independent of the store.
    pub(crate) async fn client(&self) -> Client {
        self.client_of(&self.name).await
    }

    async fn client_of(&self, name: &str) -> Client {
        let url = format!("postgres://{}@{}/{name}", self.user, self.address);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("Postgres is up");
        tokio::spawn(connection);
        client
    }

    /// Returns the number that a query selects.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        self.client().await.query_one(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error}")).get(0)
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, name) = (format!("postgres://{}@{}/postgres", self.user, self.address), self.name.clone());
        // The test's runtime can't be blocked on here.
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await.ok()?;
                tokio::spawn(connection);
                client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.ok()
            })
        });
        drop(dropped.join());
    }
}

/// Store together with its database.
pub(crate) struct World<T: ?Sized> {
    store: Arc<T>,
    _database: Database,
}

impl<T: ?Sized> Deref for World<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.store
    }
}

pub(crate) async fn store() -> World<dyn Store> {
    let database = Database::new().await;
    World { store: database.store().await, _database: database }
}

#[tokio::test]
async fn guard_rows_of_unknown_kinds_are_kept_and_skipped() {
    let database = Database::new().await;
    let store = database.store().await;
    database.execute("INSERT INTO guard VALUES (99, 'new', 'x', NULL, 1), (99, 'old', 'x', 5, 2)").await;
    database.execute("INSERT INTO guard_counts VALUES (99, 2); UPDATE guard_version SET version = 2").await;
    let page = store.guard_since(0, 1).await.unwrap();
    assert_eq!((page.newest, page.read_to, page.rows), (2, 1, Vec::new()));
    let key = GuardKey::new(GuardKind::Storm, "s").unwrap();
    let entry = GuardEntry::new(key.clone(), Bytes::from_static(b"v"), None).unwrap();
    let batch = GuardBatch::new(vec![GuardPut { entry, expected: None }]).unwrap();
    assert_eq!(store.put_guard(&batch).await, Ok(GuardOutcome::Stored(3)));
    assert_eq!(database.number("SELECT count(*) FROM guard WHERE kind = 99 AND name = 'new'").await, 1);
    assert_eq!(database.number("SELECT entries FROM guard_counts WHERE kind = 99").await, 1, "one has ended");
    // A state of before has a lower version.
    database.execute("DELETE FROM guard WHERE version > 1; UPDATE guard_version SET version = 1").await;
    let page = store.guard_since(3, 9).await.unwrap();
    assert_eq!((page.newest, page.rows), (1, Vec::new()));
    assert_eq!(store.guard_get(&key).await, Ok(None));
    // All kinds together have a bound, too.
    let full = format!("UPDATE guard_counts SET entries = {GUARD_ENTRIES_MAX} WHERE kind = 99");
    database.execute(&full).await;
    assert_eq!(store.put_guard(&batch).await, Ok(GuardOutcome::Full(GuardKind::Storm)));
}

/// Statement by which nodes of the former version store marks.
const FORMER_MARK: &str = "
INSERT INTO marks SELECT * FROM unnest(ARRAY['bob'], ARRAY['d:ann:bob'], ARRAY[2::bigint], ARRAY[2::bigint], ARRAY[0::bigint],
    ARRAY[0::bigint], ARRAY[0::bigint], ARRAY[0::bigint], ARRAY[''::bytea], ARRAY[NULL::text]
) ON CONFLICT (user_id, conversation) DO UPDATE SET seq = EXCLUDED.seq, messages = EXCLUDED.messages, own = EXCLUDED.own,
    cleared_seq = EXCLUDED.cleared_seq, cleared_messages = EXCLUDED.cleared_messages, cleared_own = EXCLUDED.cleared_own,
    hidden = EXCLUDED.hidden, push = EXCLUDED.push";

#[tokio::test]
async fn bound_outlasts_a_mark_that_a_node_of_the_former_version_stores() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    let direct = ConversationId::direct(&user("ann"), &user("bob"));
    owner.run(&[message(&direct, "ann", "m1", 0, "text"), message(&direct, "ann", "m2", 0, "text")]).await;
    let bound = Some(Mark { seq: 1, messages: 1, own: 0 });
    let level = async || {
        let summary = store.summary(&direct, Some(&user("bob"))).await.unwrap().unwrap();
        let level = summary.member_view.unwrap().level;
        (level.mark.seq, level.bound)
    };
    database.execute(FORMER_MARK).await;
    assert_eq!(level().await, (2, None), "a row of that version");
    store.save_marks(&[(user("bob"), direct.clone(), Personal::Bound(bound))]).await.unwrap();
    database.execute(FORMER_MARK).await;
    assert_eq!(level().await, (2, bound));
}
