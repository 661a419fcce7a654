//! Databases on a real Postgres for the suites: one for each test, gone with it.

mod faults;
mod together;

use std::{ops::Deref, sync::Arc, thread};

use tidegate::{
    config,
    store::{PostgresStore, Store},
};
use tokio_postgres::{Client, NoTls};

use super::{services::service_text, unique_name};

/// An empty database of a server that others use, too.
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

    pub(crate) fn config(&self) -> config::Postgres {
        let url = format!("postgres://{}@{}/{}", self.user, self.address, self.name);
        config::Postgres { url, pool_max: 8, ..config::Postgres::default() }
    }

    pub(crate) async fn store(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(&self.config()).await.unwrap_or_else(|error| panic!("{error}")))
    }

    /// A connection that knows nothing of the store.
    pub(crate) async fn client(&self) -> Client {
        self.client_of(&self.name).await
    }

    async fn client_of(&self, name: &str) -> Client {
        let url = format!("postgres://{}@{}/{name}", self.user, self.address);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("Postgres is up");
        tokio::spawn(connection);
        client
    }

    /// One number.
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
        // The runtime of the test is no more than a guest here: it can't be waited on.
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

/// A store with its database.
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
