//! Revocations and block lists in Postgres and in a data directory.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tidegate::{
    config,
    revocation::{Revocation, RevokedTokens},
    store::{BlockLists as _, PostgresStore, RevocationPage, RevocationStore as _},
};
use tidegate_protocol::id::{DeviceId, UserId};
use tokio_postgres::NoTls;

use crate::{
    convert::lacks,
    folder::{Folder, folders_with},
    link,
    store::{self, data_of, imported, record, serve},
    support::{Cluster, Process, fresh_data},
};

/// Rows of all tables, by the name of the table.
const ROWS: &str = "access-postgres.json";

/// Data directory with its key, and its export.
const DATA: [&str; 2] = ["access-data.tar.gz", "access-export.jsonl"];

/// Replies of the node about them.
const VIEW: &str = "access-view.json";

/// Tables, each with the order of its rows.
const TABLES: [(&str, &str); 4] = [
    ("revocations", "number"),
    ("revocation_number", "number"),
    ("blocks", "version"),
    ("block_version", "version"),
];

/// Time of all changes, in ms since 1970.
const NOW_MS: u64 = 1_763_712_000_000;

fn user(name: &str) -> UserId {
    UserId::new(name).expect("an id")
}

fn revocations() -> Vec<Revocation> {
    let revocation =
        |name, tokens, until_ms| Revocation { user: user(name), tokens, at_ms: NOW_MS, until_ms };
    vec![
        revocation("ann", RevokedTokens::Before(NOW_MS - 1), None),
        revocation("ann", RevokedTokens::Id("t1".into()), Some(NOW_MS + 1)),
        revocation("bob", RevokedTokens::Device(DeviceId::new("phone").expect("an id"), NOW_MS), None),
        revocation("cid", RevokedTokens::Before(NOW_MS), None),
        revocation("cid", RevokedTokens::Cleared, Some(NOW_MS + 86_400_000)),
    ]
}

/// Returns the numbers and revocations that the store keeps: the last one replaces the one before.
fn kept() -> RevocationPage {
    let mut rows: Vec<(u64, Revocation)> = (1..).zip(revocations()).collect();
    rows.remove(3);
    RevocationPage { newest: 5, rows }
}

/// Replaces the versions of blocks, which are times of a clock, by their ranks.
fn with_ranks(mut rows: Value) -> Value {
    const VERSIONED: [&str; 2] = ["blocks", "block_version"];
    let version = |row: &Value| row["version"].as_u64().expect("a version");
    let lists = VERSIONED.map(|table| rows[table].as_array().expect("a list").clone());
    let mut versions: Vec<u64> = lists.iter().flatten().map(version).collect();
    versions.sort_unstable();
    for table in VERSIONED {
        for row in rows[table].as_array_mut().expect("a list") {
            let rank = versions.iter().position(|it| *it == version(row));
            row["version"] = json!(rank);
        }
    }
    rows
}

async fn fill(store: &PostgresStore) {
    for revocation in revocations() {
        assert_eq!(store.revoke(&revocation, NOW_MS).await.map_err(|it| it.to_string()), Ok(true));
    }
    let eve = user("eve");
    for name in ["ann", "cid", "bob"] {
        store.block(&user(name), &eve, NOW_MS, 10).await.expect("a block");
    }
    store.unblock(&user("cid"), &eve).await.expect("its end");
}

/// Tables of the present version.
pub(crate) struct Tables {
    store: PostgresStore,
    client: tokio_postgres::Client,
}

impl Tables {
    pub(crate) async fn open(cluster: &Cluster) -> Self {
        let url = cluster.setting("postgres.url=").to_owned();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("Postgres is up");
        tokio::spawn(connection);
        let postgres = config::PostgresConfig { url, ..config::PostgresConfig::default() };
        Self { store: PostgresStore::open(&postgres).await.expect("the tables are migrated"), client }
    }

    pub(crate) fn store(&self) -> &PostgresStore {
        &self.store
    }

    /// Returns the rows of tables, each with the order of its rows.
    pub(crate) async fn rows(&self, tables: &[(&str, &str)]) -> Value {
        let mut all = serde_json::Map::new();
        for (table, order) in tables {
            let sql = format!("SELECT coalesce(json_agg(t ORDER BY {order}), '[]')::text FROM {table} t");
            let rows: String = self.client.query_one(&sql, &[]).await.expect("a table").get(0);
            all.insert((*table).to_owned(), serde_json::from_str(&rows).expect("JSON"));
        }
        all.into()
    }

    /// Replaces all rows of the tables.
    pub(crate) async fn load(&self, tables: &[(&str, &str)], rows: &Value) {
        for (table, _) in tables {
            let rows = rows[*table].to_string().replace('\'', "''");
            let sql = format!(
                "DELETE FROM {table}; INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, '{rows}')"
            );
            self.client.batch_execute(&sql).await.expect("the columns are as they were");
        }
    }

    async fn check(&self) {
        assert_eq!(self.store.revocations(0, 10).await.expect("revocations"), kept());
        let page = self.store.blocks_since(0, 10).await.expect("blocks");
        let added: Vec<_> = page.added.iter().map(|it| (it.user.as_str(), it.other.as_str())).collect();
        assert_eq!(added, [("ann", "eve"), ("bob", "eve")]);
        let versions: Vec<u64> = page.added.iter().map(|it| it.version).chain([page.version]).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "the end of a block is the newest change: {versions:?}");
        for (name, is_blocked) in [("ann", true), ("bob", true), ("cid", false)] {
            assert_eq!(
                self.store.is_blocked(&user(name), &user("eve")).await.expect("an answer"),
                is_blocked
            );
        }
        let list = self.store.blocks(&user("ann"), None, 10).await.expect("a list");
        assert!(list.len() == 1 && list[0].time == NOW_MS, "{list:?}");
    }
}

pub(crate) fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(work)
}

fn post(node: &Process, path: &str, body: Value) {
    let answer = node.http("POST", path, &body.to_string());
    assert!(answer.contains("closed"), "{path}: {answer}");
}

/// Revokes and blocks by the admin port. Nothing ends by itself, so that the files are valid at any time.
fn live(node: &Process) {
    post(node, "/v1/users/ann/revoke", json!({"before": 1_700_000_000_000_u64}));
    post(node, "/v1/users/ann/revoke", json!({"tokenId": "t1"}));
    post(node, "/v1/users/bob/revoke", json!({"device": "phone"}));
    for (name, method) in [("ann", "PUT"), ("cid", "PUT"), ("bob", "PUT"), ("cid", "DELETE")] {
        let answer = node.http(method, &format!("/v1/users/{name}/blocks/eve"), "{}");
        assert!(answer.contains("\"changed\":true"), "{answer}");
    }
}

fn view(node: &Process) -> Value {
    let get = |path: String| -> Value { serde_json::from_str(&node.http("GET", &path, "")).expect("JSON") };
    let of = |kind: &str| ["ann", "bob", "cid"].map(|name| get(format!("/v1/users/{name}/{kind}")));
    json!({"revocations": of("revocations"), "blocks": of("blocks")})
}

/// Records the calls of the link, rows in Postgres, and a data directory.
pub(crate) fn write(folder: &Folder) {
    link::write(folder, link::CallSet::Access);
    let cluster = Cluster::prepare(1, &[]);
    let rows = in_runtime(async {
        let tables = Tables::open(&cluster).await;
        fill(&tables.store).await;
        tables.rows(&TABLES).await
    });
    folder.write(ROWS, format!("{rows:#}\n").as_bytes());
    let data = fresh_data();
    let mut node = serve(&data);
    live(&node);
    folder.write(VIEW, format!("{:#}\n", view(&node)).as_bytes());
    node.signal(Signal::TERM);
    assert!(node.exit().success(), "{}", node.stderr());
    fs::remove_file(data.join("stderr")).expect("the file exists");
    record(folder, DATA, &data);
}

#[test]
fn revocations_and_blocks_of_every_version_are_read_and_written_in_postgres() {
    let cluster = Cluster::prepare(1, &[]);
    in_runtime(async {
        let tables = Tables::open(&cluster).await;
        fill(&tables.store).await;
        tables.check().await;
        let written = with_ranks(tables.rows(&TABLES).await);
        for folder in folders_with(ROWS) {
            let golden: Value = folder.json(ROWS);
            assert_eq!(lacks(&with_ranks(golden.clone()), &written), None, "{}", folder.version);
            tables.load(&TABLES, &golden).await;
            tables.check().await;
        }
    });
}

#[test]
fn node_enforces_the_revocations_and_blocks_of_every_version() {
    for folder in folders_with(VIEW) {
        let data = data_of(&folder, DATA[0]);
        store::store(&["check"], &data);
        for data in [data, imported(&folder, DATA)] {
            let node = serve(&data);
            assert_eq!(lacks(&folder.json(VIEW), &view(&node)), None, "{}", folder.version);
        }
    }
}
