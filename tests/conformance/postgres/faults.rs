//! Faults of Postgres: owners that stop within a transaction, lost connections, conflicts, old tables.

use std::{
    future::poll_fn,
    num::NonZeroU64,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use tidegate::{
    bus::TopicId,
    config,
    scratch::Floors as _,
    store::{
        Direction, Fence, Mark, PageQuery, Personal, PostgresOpenError, PostgresStore, ReadClass, Scan,
        Store, StoreError,
    },
};
use tidegate_protocol::{
    id::ConversationId,
    machine::ledger::{Delta, Loaded, Need, Outcome, message_key},
    record::{Body, RuleChange},
    settings::UserSettings,
};

use crate::{
    postgres::Database,
    services::service_text,
    store::owner::{Owner, message},
    time::{Stopwatch, WAIT_MAX, eventually_async},
    user,
};

const TOPIC: TopicId = TopicId(1);
const BACK: PageQuery =
    PageQuery { cursor: u64::MAX, direction: Direction::Backward, limit: 9, max_bytes: 1 << 20 };

fn direct() -> ConversationId {
    ConversationId::direct(&user("ann"), &user("bob"))
}

fn say(id: &str) -> Body {
    message(&direct(), "ann", id, 0, "text")
}

async fn node(database: &Database) -> Arc<dyn Store> {
    database.store().await
}

async fn last_seq(store: &Arc<dyn Store>) -> u64 {
    store.page(&direct(), BACK).await.unwrap().head.unwrap().last_seq
}

async fn eventually(what: &str, mut look: impl AsyncFnMut() -> bool) {
    eventually_async(WAIT_MAX, what, async || look().await.then_some(())).await;
}

/// Archives until the outcome is known, as an owner does.
async fn archive(store: &Arc<dyn Store>, fence: Fence, delta: &Delta) -> Result<(), StoreError> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match store.archive(0, fence, delta).await {
            Err(StoreError::Unavailable(_) | StoreError::NoConnection(_) | StoreError::Unknown(_))
                if Instant::now() < deadline => {}
            known => return known,
        }
    }
}

/// Returns the number of sessions of this database that are idle in a transaction.
async fn idle_in_transaction(database: &Database) -> i64 {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle in transaction' AND query LIKE '%n.seq <= h.last_seq%'";
    database.number(sql).await
}

#[tokio::test]
async fn s10_s11_owner_stopped_in_its_archive_blocks_no_successor() {
    let database = Database::new().await;
    // The test has this long to find it stopped. A waiting archive times out after twice that, and is refused.
    let config = config::PostgresConfig { stalled_ms: 2_000, ..database.config() };
    let frozen: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let other: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let mut zombie = Owner::take_over(&frozen, 0, 1).await;
    zombie.run(&[say("m1")]).await;
    // More rows than share a batch, so that this call writes them alone. The cluster tests freeze a whole node.
    let many: Vec<_> = (0..200).map(|n| say(&format!("n{n}"))).collect();
    let (_, delta) = zombie.apply(&many).await;
    let mut archive = frozen.archive(0, zombie.fence, &delta);
    // It proceeds step by step until it has the row, and then stops.
    while idle_in_transaction(&database).await == 0 {
        let step = poll_fn(|context| Poll::Ready(archive.as_mut().poll(context))).await;
        assert!(step.is_pending(), "the archive did not stop: {step:?}");
    }
    // At most the time that the zombie may stay in its transaction, of which the search took the first part.
    let waited = Stopwatch::start();
    let taken = other.take_over(0, Fence(2), TOPIC).await.unwrap();
    assert!(waited.elapsed() < Duration::from_millis(config.stalled_ms + 1_500), "{:?}", waited.elapsed());
    assert_eq!(taken.position, delta.from);
    let mut owner = Owner::take_over(&other, 0, 3).await;
    owner.run(&[say("m3")]).await;
    let late = archive.await;
    assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
    assert_eq!(frozen.archive(0, zombie.fence, &delta).await, Err(StoreError::Fenced));
    assert_eq!(last_seq(&other).await, 2);
}

#[tokio::test]
async fn s8_s9_row_unknown_to_the_heads_stops_the_archive() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let row = "INSERT INTO messages SELECT conversation, 3, ordinal, own, log_offset, NULL, NULL, sender, record, content
        FROM messages";
    database.execute(row).await;
    let (_, delta) = owner.apply(&[say("m2"), say("m3")]).await;
    assert_eq!(store.archive(0, owner.fence, &delta).await, Err(StoreError::Conflict(direct(), 3)));
    assert_eq!(last_seq(&store).await, 1);
    assert_eq!(store.load(0, owner.fence, &[]).await.unwrap().position, delta.from);
    database.execute("DELETE FROM messages WHERE seq = 3").await;
    store.archive(0, owner.fence, &delta).await.unwrap();
    assert_eq!(last_seq(&store).await, 3);
}

/// Makes the next inserts into a table fail as in a conflict of two transactions.
async fn fail_next_inserts(database: &Database, code: &str, times: u64) {
    database
        .execute(&format!(
            "CREATE SEQUENCE IF NOT EXISTS tries;
             ALTER SEQUENCE tries RESTART;
             CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('tries') <= {times} THEN RAISE EXCEPTION USING ERRCODE = '{code}'; END IF;
                 RETURN NULL;
             END $$;
             CREATE OR REPLACE TRIGGER fails AFTER INSERT ON messages FOR EACH STATEMENT EXECUTE FUNCTION fail()"
        ))
        .await;
}

#[tokio::test]
async fn conflicting_archive_is_retried() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    for (code, id) in [("40001", "m2"), ("40P01", "m3")] {
        fail_next_inserts(&database, code, 2).await;
        owner.run(&[say(id)]).await;
        assert_eq!(database.number("SELECT last_value FROM tries").await, 3, "{code}");
    }
    fail_next_inserts(&database, "40001", 1_000).await;
    let (_, delta) = owner.apply(&[say("m4")]).await;
    let refused = store.archive(0, owner.fence, &delta).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "the retries end: {refused:?}");
    fail_next_inserts(&database, "53100", 1_000).await;
    let refused = store.archive(0, owner.fence, &delta).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "the disk is full: {refused:?}");
    assert_eq!(database.number("SELECT last_value FROM tries").await, 1, "a full disk is not retried");
    database.execute("DROP TRIGGER fails ON messages").await;
    store.archive(0, owner.fence, &delta).await.unwrap();
    assert_eq!(last_seq(&store).await, 4);
}

#[tokio::test]
async fn connection_lost_in_a_commit_is_resolved_by_a_retry() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    database
        .execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION die()",
        )
        .await;
    let (_, delta) = owner.apply(&[say("m2")]).await;
    let lost = store.archive(0, owner.fence, &delta).await;
    assert!(matches!(lost, Err(StoreError::Unknown(_))), "{lost:?}");
    database.execute("DROP TRIGGER dies ON messages").await;
    assert_eq!(archive(&store, owner.fence, &delta).await, Ok(()));
    assert_eq!(archive(&store, owner.fence, &delta).await, Ok(()));
    assert_eq!(last_seq(&store).await, 2);
}

#[tokio::test]
async fn connections_closed_by_the_server_are_reopened() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    for id in ["m2", "m3"] {
        let (_, delta) = owner.apply(&[say(id)]).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()";
        database.execute(end).await;
        archive(&store, owner.fence, &delta).await.unwrap();
        owner.ledger.archived(delta.to).unwrap();
    }
    assert_eq!(last_seq(&store).await, 3);
}

#[tokio::test]
async fn missing_server_is_unavailable_soon() {
    let gone = config::PostgresConfig {
        url: "postgres://tidegate@127.0.0.1:1/none".into(),
        connect_ms: 500,
        ..config::PostgresConfig::default()
    };
    let begun = Instant::now();
    let refused = PostgresStore::open(&gone).await.err().expect("no server listens");
    assert!(matches!(&refused, PostgresOpenError::Unavailable(_)), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn unknown_or_unprivileged_login_is_refused_at_once() {
    let database = Database::new().await;
    let config = database.config();
    let (_, rest) = config.url.split_once('@').expect("a login");
    let poor = format!("poor_{}", rest.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    database.execute(&format!("CREATE ROLE {poor} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC")).await;
    let none = format!("{}_not", config.url);
    for url in [format!("postgres://{poor}@{rest}"), format!("postgres://nobody_at_all@{rest}"), none] {
        let refused = PostgresStore::open(&config::PostgresConfig { url, ..config.clone() }).await.err();
        assert!(matches!(&refused, Some(PostgresOpenError::Refused(_))), "{refused:?}");
    }
    database.execute(&format!("DROP ROLE {poor}")).await;
}

#[tokio::test]
async fn ten_thousand_messages_fit_one_archive() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    let names: Vec<_> = (0..100).map(|n| user(&format!("u{n}"))).collect();
    let said = |n: usize| {
        let to = ConversationId::direct(&names[n % 100], &names[n / 100]);
        message(
            &to,
            names[n % 100].as_str(),
            &format!("m{n}"),
            0,
            "some text of a usual length, more or less",
        )
    };
    let bodies: Vec<_> = (0..10_000).map(said).collect();
    let (outcomes, delta) = owner.apply(&bodies).await;
    assert!(outcomes.iter().all(|it| matches!(it, Outcome::Accepted { .. })));
    store.archive(0, owner.fence, &delta).await.unwrap();
    owner.ledger.archived(delta.to).unwrap();
    for (table, count) in [("messages", 10_000), ("keys", 10_000), ("heads", 5_050)] {
        assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")).await, count, "{table}");
    }
    let listed = store.memberships(&names[7], None, 1_000).await.unwrap();
    assert_eq!(listed.len(), 100);
    // A retry at a new owner loads the keys it needs, and finds each.
    let mut next = Owner::take_over(&store, 0, 2).await;
    let (outcomes, _) = next.apply(&bodies).await;
    assert!(outcomes.iter().all(|it| matches!(it, Outcome::Duplicate { .. })));
}

/// Makes all keys as old as if they had been archived in the first week of 1970.
async fn age_keys(database: &Database) {
    database
        .execute(
            "CREATE TABLE keys_w0 (LIKE keys INCLUDING ALL);
             ALTER TABLE keys ATTACH PARTITION keys_w0 FOR VALUES IN (0);
             UPDATE keys SET week = 0; UPDATE key_weeks SET week = 0",
        )
        .await;
}

#[tokio::test]
async fn s20_moved_key_counts_and_old_weeks_are_dropped_by_rules() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1"), say("m2")]).await;
    age_keys(&database).await;
    let Body::Message(first) = say("m1") else { unreachable!() };
    let hash = message_key(&first);
    let (_, mut delta) = owner.apply(&[say("m3")]).await;
    // As a first attempt after the window does: the ledger moves the key.
    delta.keys.push((hash, delta.keys[0].1));
    store.archive(0, owner.fence, &delta).await.unwrap();
    owner.ledger.archived(delta.to).unwrap();
    let loaded = store.load(0, owner.fence, &[Need::Key(hash)]).await.unwrap().rows;
    assert!(matches!(loaded[..], [Loaded::Key(_, Some(key))] if key.offset == 2), "{loaded:?}");
    let all = Scan::Keys { from: 0, after: None, limit: 100 };
    let all = store.scan(0, owner.fence, &all).await.unwrap().rows;
    assert_eq!(all.len(), 3, "one key per id: {all:?}");
    assert!(all.contains(&loaded[0]), "the newer");
    let weeks = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'keys'::regclass";
    assert_eq!(database.number(weeks).await, 2);
    let rules = Body::Rules(RuleChange { keys_from: 2, ..RuleChange::default() });
    owner.run(&[rules]).await;
    eventually("the old week is dropped", async || database.number(weeks).await == 1).await;
    assert_eq!(database.number("SELECT count(*) FROM key_weeks").await, 1);
    let loaded = store.load(0, owner.fence, &[Need::Key(hash)]).await.unwrap().rows;
    assert!(matches!(loaded[..], [Loaded::Key(_, Some(_))]), "{loaded:?}");
    owner.run(&[say("m4")]).await;
}

#[tokio::test]
async fn week_that_another_partition_needs_is_kept() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut one = Owner::take_over(&store, 0, 1).await;
    let mut two = Owner::take_over(&store, 1, 2).await;
    one.run(&[say("m1")]).await;
    two.run(&[message(&ConversationId::direct(&user("cid"), &user("dan")), "cid", "m1", 0, "text")]).await;
    age_keys(&database).await;
    let forget = |keys_from| Body::Rules(RuleChange { keys_from, ..RuleChange::default() });
    one.run(&[forget(1)]).await;
    one.run(&[say("m2")]).await;
    let old = "SELECT count(*) FROM keys WHERE week = 0";
    assert_eq!(database.number(old).await, 2);
    two.run(&[forget(1)]).await;
    let there = "SELECT (to_regclass('keys_w0') IS NOT NULL)::integer::bigint";
    eventually("no partition needs the week", async || database.number(there).await == 0).await;
}

#[tokio::test]
async fn nodes_create_tables_concurrently_and_refuse_newer_ones() {
    let database = Database::new().await;
    let config = database.config();
    let opened = futures_util::future::join_all((0..4).map(|_| PostgresStore::open(&config))).await;
    assert!(opened.into_iter().all(|it| it.is_ok()));
    let history = "INSERT INTO refinery_schema_history SELECT 99, 'later', applied_on, checksum
        FROM refinery_schema_history WHERE version = 1";
    database.execute(history).await;
    let refused = PostgresStore::open(&config).await.err().expect("newer tables are refused");
    assert!(matches!(&refused, PostgresOpenError::Schema(_)), "{refused}");
    assert!(refused.to_string().contains("start the newer tidegate"), "{refused}");
    database.execute("DELETE FROM refinery_schema_history WHERE version = 99").await;
    database.execute("UPDATE refinery_schema_history SET checksum = '1'").await;
    let refused = PostgresStore::open(&config).await.err().expect("foreign tables are refused");
    assert!(matches!(&refused, PostgresOpenError::Schema(_)), "{refused}");
}

#[tokio::test]
async fn tls_is_used_and_the_authority_is_verified() {
    let database = Database::new().await;
    let authority = service_text("postgres", "authority");
    let tls = config::PostgresConfig { tls: true, tls_ca_file: authority.into(), ..database.config() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&tls).await.unwrap());
    Owner::take_over(&store, 0, 1).await.run(&[say("m1")]).await;
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a ON a.pid = s.pid
        WHERE a.datname = current_database() AND s.ssl AND a.application_name = 'tidegate'";
    assert!(database.number(encrypted).await > 0);
    let system = config::PostgresConfig { tls: true, ..database.config() };
    let refused = PostgresStore::open(&system).await.err().expect("the authority is unknown");
    assert!(
        matches!(&refused, PostgresOpenError::Unavailable(_)) && refused.to_string().contains("certificate"),
        "{refused}"
    );
}

#[tokio::test]
async fn unreadable_value_fails_only_its_reader() {
    let database = Database::new().await;
    let store = node(&database).await;
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let (_, delta) = owner.apply(&[say("m2")]).await;
    database.execute("UPDATE messages SET record = 'x'").await;
    assert!(matches!(store.page(&direct(), BACK).await, Err(StoreError::Damaged(_))));
    assert_eq!(store.archive(0, owner.fence, &delta).await, Ok(()), "a reader's error fails no archive");
    assert!(store.take_over(0, Fence(2), TOPIC).await.is_ok(), "and no take-over");
}

#[tokio::test]
async fn x6_reads_of_clients_leave_connections_to_logins_and_owners() {
    let database = Database::new().await;
    let config = config::PostgresConfig {
        connect_ms: 10_000,
        statement_ms: 60_000,
        stalled_ms: 30_000,
        ..database.config()
    };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let mut other = database.client().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let reads: Vec<_> = (0..20)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.page(&direct(), BACK).await })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND application_name = 'tidegate'";
    eventually("reads use all they may", async || database.number(waiting).await == 2).await;
    let begun = Stopwatch::start();
    assert_eq!(store.memberships(&user("ann"), None, 9).await.unwrap().len(), 1);
    store.merge_settings(&user("ann"), UserSettings::default()).await.unwrap();
    assert_eq!(store.group_members(&[direct()], 9, ReadClass::Owner).await.unwrap().len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(database.number(waiting).await, 2, "the reads still wait");
    lock.rollback().await.unwrap();
    for read in reads {
        assert_eq!(read.await.unwrap().unwrap().rows.len(), 1);
    }
}

#[tokio::test]
async fn readers_using_all_connections_delay_no_archive() {
    let database = Database::new().await;
    // No reader times out before the test has checked everything, however slow the machine is.
    let slow = config::PostgresConfig { connect_ms: 10_000, statement_ms: 60_000, ..database.config() };
    let config = config::PostgresConfig { pool_max: 2, stalled_ms: 30_000, ..slow };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    owner.run(&[say("m1")]).await;
    let (_, delta) = owner.apply(&[say("m2")]).await;
    let mut other = database.client().await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute("LOCK TABLE wishes IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let readers: Vec<_> = (0..3)
        .map(|nth| {
            let (store, user) = (Arc::clone(&store), user(&format!("u{nth}")));
            tokio::spawn(async move { store.merge_settings(&user, UserSettings::default()).await })
        })
        .collect();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND wait_event_type = 'Lock' AND application_name = 'tidegate'";
    eventually("a reader waits", async || database.number(waiting).await > 0).await;
    assert_eq!(store.archive(0, owner.fence, &delta).await, Ok(()));
    assert!(database.number(waiting).await > 0, "the readers still wait");
    drop(lock);
    for reader in readers {
        reader.await.unwrap().ok();
    }
}

#[tokio::test]
async fn s8_two_supposed_owners_write_each_seq_once() {
    let database = Database::new().await;
    let (one, two) = (node(&database).await, node(&database).await);
    let mut first = Owner::take_over(&one, 0, 1).await;
    first.run(&[say("m1")]).await;
    let (_, stale) = first.apply(&[say("m2")]).await;
    let mut second = Owner::take_over(&two, 0, 2).await;
    let (_, fresh) = second.apply(&[say("m2")]).await;
    let (late, good) =
        tokio::join!(one.archive(0, first.fence, &stale), two.archive(0, second.fence, &fresh));
    assert_eq!((late, good), (Err(StoreError::Fenced), Ok(())));
    assert_eq!(last_seq(&one).await, 2);
    // A store restored to an earlier time is not at its owner's position.
    second.ledger.archived(fresh.to).unwrap();
    let (_, next) = second.apply(&[say("m3")]).await;
    database.execute("UPDATE partitions SET log_offset = 1").await;
    let refused = two.archive(0, second.fence, &next).await;
    assert!(matches!(refused, Err(StoreError::PositionMismatch(it)) if it.offset == 1), "{refused:?}");
}

#[tokio::test]
async fn s6_concurrent_reservations_get_each_block_once() {
    let database = Database::new().await;
    let (one, two) = (database.store().await, database.store().await);
    let size = NonZeroU64::new(7).unwrap();
    let reserve = async |n: usize| {
        let node = if n.is_multiple_of(2) { &one } else { &two };
        let block = node.reserve(if n.is_multiple_of(3) { "r:a" } else { "r:b" }, size, 0).await.unwrap();
        assert_eq!(block.epoch, 0);
        (n.is_multiple_of(3), *block.numbers.start(), *block.numbers.end())
    };
    let mut blocks = futures_util::future::join_all((0..60).map(reserve)).await;
    blocks.sort_unstable();
    let expected = |of: bool, count: u64| (0..count).map(move |n| (of, n * 7 + 1, n * 7 + 7));
    assert_eq!(blocks, expected(false, 40).chain(expected(true, 20)).collect::<Vec<_>>());
    assert_eq!((one.epoch().await, one.raise(0).await, two.epoch().await), (Ok(0), Ok(1), Ok(1)));
    let next = two.reserve("r:a", size, 0).await.unwrap();
    assert_eq!((*next.numbers.start(), next.epoch), (141, 1));
    // What a caller knows to be issued is not reserved again, although the floors are lower.
    let above = two.reserve("r:a", size, 10_000).await.unwrap();
    assert_eq!((*above.numbers.start(), one.raise(7).await), (10_001, Ok(8)));
}

#[tokio::test]
async fn confirmed_mark_is_flushed_to_the_servers_log() {
    let database = Database::new().await;
    let store = node(&database).await;
    let at = async |what: &str| database.number(&format!("SELECT ({what}() - '0/0')::bigint")).await;
    for seq in 1..=20 {
        let before = at("pg_current_wal_insert_lsn").await;
        let mark = Personal::Read(Mark { seq, messages: seq, own: 0 });
        store.save_marks(&[(user("ann"), direct(), mark)]).await.unwrap();
        // Without a flush, a mark would be lost with the server.
        assert!(at("pg_current_wal_flush_lsn").await > before, "mark {seq}");
    }
}
