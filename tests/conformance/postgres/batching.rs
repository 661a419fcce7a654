//! Concurrent requests of many clients or owners to Postgres: they are batched, wait for no connection, and each gets
//! its own result.

use std::{fmt::Debug, future::poll_fn, sync::Arc, task::Poll, time::Duration};

use futures_util::future::{join, join_all};
use tidegate::{
    bus::TopicId,
    config,
    store::{Fence, Mark, Personal, PostgresStore, Store, StoreError},
};
use tidegate_protocol::{
    id::ConversationId,
    machine::ledger::{Delta, Loaded, Need, message_key},
    record::Body,
    settings::{Push, UserSettings, Visibility},
};
use tokio::time::timeout;

use crate::{
    postgres::Database,
    store::owner::{Owner, message},
    time::{WAIT_MAX, eventually_async},
    user,
};

const WAITS: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

fn direct() -> ConversationId {
    ConversationId::direct(&user("ann"), &user("bob"))
}

/// Returns the conversation of the nth partition.
fn to(n: u32) -> ConversationId {
    ConversationId::direct(&user("ann"), &user(&format!("b{n:02}")))
}

/// Returns the owners of `n` partitions, and what each has to archive.
async fn applied(
    store: &Arc<dyn Store>,
    count: u32,
    messages: impl Fn(u32) -> u32,
) -> (Vec<Owner>, Vec<Delta>) {
    let (mut owners, mut deltas) = (Vec::new(), Vec::new());
    for n in 0..count {
        let mut owner = Owner::take_over(store, n, 1).await;
        let say = |id| message(&to(n), "ann", &format!("m{id}"), 0, "text");
        let said: Vec<_> = (0..messages(n)).map(say).collect();
        deltas.push(owner.apply(&said).await.1);
        owners.push(owner);
    }
    (owners, deltas)
}

/// Waits until `count` sessions wait for a lock.
async fn waiting(database: &Database, count: i64) {
    let what = format!("{count} wait");
    eventually_async(WAIT_MAX, &what, async || (database.number(WAITS).await >= count).then_some(())).await;
}

/// Shows that calls which wait for locked tables neither return nor fail for longer than they may wait for a
/// connection.
async fn assert_held<T: Debug>(calls: impl Future<Output = T>, database: &Database) {
    let answered = timeout(Duration::from_millis(1_500), calls).await;
    assert!(answered.is_err(), "{answered:?}");
    waiting(database, 1).await;
}

/// After an outage or a restart all clients of a node return at once, to the few connections that they share.
#[tokio::test]
async fn hundreds_of_queries_share_few_connections() {
    let database = Database::new().await;
    let config = config::PostgresConfig { pool_max: 8, connect_ms: 1_000, ..database.config() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let mut owner = Owner::take_over(&store, 0, 1).await;
    let names: Vec<_> = (0..300).map(|n| user(&format!("u{n}"))).collect();
    let to = |n: usize| ConversationId::direct(&names[n], &user("all"));
    // Every third user has no conversation and no settings.
    let has = |n: usize| !n.is_multiple_of(3);
    let said: Vec<_> =
        (0..300).filter(|n| has(*n)).map(|n| message(&to(n), "all", &format!("m{n}"), 0, "text")).collect();
    let (_, delta) = owner.apply(&said).await;
    store.archive(0, owner.fence, &delta).await.unwrap();
    let wish = |n: usize| UserSettings { ack_timeout_ms: 1_000 + n as u32, ..UserSettings::default() };
    for n in (0..300).filter(|n| has(*n)) {
        assert_eq!(store.merge_settings(&names[n], wish(n)).await, Ok(wish(n)));
    }
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE wishes, memberships IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let ask = async |n: usize| {
        join(store.merge_settings(&names[n], UserSettings::default()), store.memberships(&names[n], None, 10))
            .await
    };
    let mut all = Box::pin(join_all((0..300).map(ask)));
    assert_held(&mut all, &database).await;
    held.commit().await.unwrap();
    for (n, (wished, page)) in all.await.into_iter().enumerate() {
        assert_eq!(wished, Ok(if has(n) { wish(n) } else { UserSettings::default() }), "{n}");
        let found: Vec<_> = page.unwrap().into_iter().map(|it| it.conversation).collect();
        assert_eq!(found, if has(n) { vec![to(n)] } else { Vec::new() }, "{n}");
    }
    // Each has a page of its own, from its own cursor.
    let pages = [(None, 2), (Some(to(1)), 1), (Some(to(299)), 5)];
    let everybody = user("all");
    let found =
        join_all(pages.iter().map(|(after, limit)| store.memberships(&everybody, after.as_ref(), *limit)))
            .await;
    let mut sorted: Vec<_> = (0..300).filter(|n| has(*n)).map(to).collect();
    sorted.sort();
    for ((after, limit), page) in pages.iter().zip(found) {
        let wanted: Vec<_> = sorted
            .iter()
            .filter(|it| after.as_ref().is_none_or(|after| *it > after))
            .take(*limit)
            .cloned()
            .collect();
        let page: Vec<_> = page.unwrap().into_iter().map(|it| it.conversation).collect();
        assert_eq!(page, wanted);
    }
}

/// Changes of marks share a batch.
#[tokio::test]
async fn marks_of_many_readers_share_few_transactions() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let save = async |name: String, seq| {
        let mark = Personal::Read(Mark { seq, messages: seq, own: 0 });
        store.save_marks(&[(user(&name), direct(), mark)]).await
    };
    save("first".to_owned(), 1).await.unwrap();
    // Further calls wait for that row, and are batched behind it.
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.execute("SELECT FROM marks WHERE user_id = 'first' FOR UPDATE", &[]).await.unwrap();
    let mut first = Box::pin(save("first".to_owned(), 2));
    assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    // Several marks of some pairs, some of which go back.
    let many = (0..300).map(|n| save(format!("user-{}", n % 250), 1 + n % 7));
    let mut many = Box::pin(join_all(many));
    assert!(poll_fn(|context| Poll::Ready(many.as_mut().poll(context))).await.is_pending());
    held.commit().await.unwrap();
    let (first, many) = tokio::join!(first, many);
    assert!(first.is_ok() && many.iter().all(Result::is_ok), "{first:?} {many:?}");
    assert_eq!(database.number("SELECT count(*) FROM marks").await, 251);
    assert_eq!(database.number("SELECT count(DISTINCT xmin::text) FROM marks").await, 2, "transactions");
    for n in 0..50 {
        let newest = (1 + n % 7).max(1 + (n + 250) % 7);
        let is = format!("SELECT seq FROM marks WHERE user_id = 'user-{n}'");
        assert_eq!(database.number(&is).await, newest, "user-{n}");
    }
    // An unreadable row fails only the call that asked for it.
    database.execute("UPDATE marks SET hidden = '\\xff' WHERE user_id = 'user-7'").await;
    let three = ["user-6", "user-7", "user-8"].map(|name| save(name.to_owned(), 100));
    let [six, seven, eight] = <[_; 3]>::try_from(join_all(three).await).unwrap();
    assert!(matches!(seven, Err(StoreError::Damaged(_))), "{seven:?}");
    assert_eq!((six, eight), (Ok(()), Ok(())));
}

/// A batch that is in flight waits for a lock, while the caller of a change in it leaves, and another node makes a later one.
#[tokio::test]
async fn change_whose_caller_has_left_undoes_no_later_one() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let prefer = async |push| store.save_marks(&[(user("ann"), direct(), Personal::Push(Some(push)))]).await;
    prefer(Push::All).await.unwrap();
    let mut client = database.client().await;
    let other = client.transaction().await.unwrap();
    other.execute("SELECT FROM marks WHERE user_id = 'ann' FOR UPDATE", &[]).await.unwrap();
    let mut late = Box::pin(prefer(Push::None));
    assert!(poll_fn(|context| Poll::Ready(late.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    drop(late);
    other.execute("UPDATE marks SET push = 'mentions' WHERE user_id = 'ann'", &[]).await.unwrap();
    other.commit().await.unwrap();
    // Its batch comes after that of the change.
    store.save_marks(&[(user("bob"), direct(), Personal::Push(None))]).await.unwrap();
    let kept = "SELECT count(*) FROM marks WHERE user_id = 'ann' AND push = 'mentions'";
    assert_eq!(database.number(kept).await, 1);
}

/// A caller gets an error for a change whose COMMIT hangs, and sends what is to hold instead: a read does not see the change yet.
#[tokio::test]
async fn stored_setting_waits_for_a_change_being_committed() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let (ann, unset) = (user("ann"), UserSettings::default());
    let hidden = UserSettings { presence: Some(Visibility::Off), ..unset };
    let silent = UserSettings { push: Some(Push::None), ..unset };
    let both = silent.over(hidden);
    store.merge_settings(&ann, both).await.unwrap();
    for (later, in_commit) in [(hidden, "presence = 'on'"), (silent, "push = 'all'")] {
        let mut client = database.client().await;
        let other = client.transaction().await.unwrap();
        other.batch_execute(&format!("UPDATE wishes SET {in_commit} WHERE user_id = 'ann'")).await.unwrap();
        let mut later = Box::pin(store.merge_settings(&ann, later));
        assert!(poll_fn(|context| Poll::Ready(later.as_mut().poll(context))).await.is_pending());
        waiting(&database, 1).await;
        other.commit().await.unwrap();
        assert_eq!(later.await, Ok(both), "{in_commit}");
        assert_eq!(store.settings_of(std::slice::from_ref(&ann)).await, Ok(vec![both]), "{in_commit}");
    }
}

/// Callers of changes leave one after the other, while a row is locked that their sessions on the server go on waiting for.
#[tokio::test]
async fn settings_of_callers_that_left_keep_few_sessions() {
    let database = Database::new().await;
    // No wait for the lock times out before the test has counted the sessions.
    let config = config::PostgresConfig { statement_ms: 60_000, stalled_ms: 30_000, ..database.config() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let (ann, unset) = (user("ann"), UserSettings::default());
    let silent = UserSettings { push: Some(Push::None), ..unset };
    store.merge_settings(&ann, silent).await.unwrap();
    let mut client = database.client().await;
    let other = client.transaction().await.unwrap();
    other.batch_execute("UPDATE wishes SET presence = 'on' WHERE user_id = 'ann'").await.unwrap();
    let hidden = UserSettings { presence: Some(Visibility::Off), ..unset };
    for _ in 0..6 {
        let late = timeout(Duration::from_millis(300), store.merge_settings(&ann, hidden)).await;
        assert!(late.is_err(), "{late:?}");
    }
    waiting(&database, 1).await;
    let sessions = database.number(WAITS).await;
    assert!(sessions <= 2, "{sessions} sessions for one caller at a time");
    other.commit().await.unwrap();
    let ended = async || (database.number(WAITS).await == 0).then_some(());
    eventually_async(WAIT_MAX, "no session waits", ended).await;
    let visible = UserSettings { presence: Some(Visibility::On), ..silent };
    assert_eq!(store.merge_settings(&ann, silent).await, Ok(visible));
    assert_eq!(store.settings_of(&[ann]).await, Ok(vec![visible]));
}

/// Clients name their settings with each login, and return at once.
#[tokio::test]
async fn settings_of_many_logins_share_few_transactions() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let of = |n: u32| UserSettings {
        ack_tries: n % 3,
        heartbeat_ms: 10_000 + n,
        presence: Some(if n.is_multiple_of(2) { Visibility::Off } else { Visibility::On }),
        push: n.is_multiple_of(5).then_some(Push::Mentions),
        ..UserSettings::default()
    };
    let names: Vec<_> = (0..300).map(|n| user(&format!("u{n}"))).collect();
    store.merge_settings(&user("first"), of(1)).await.unwrap();
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE wishes IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let log_in = |n: u32| store.merge_settings(&names[n as usize], of(n));
    let mut all = Box::pin(join_all((0..300).map(log_in)));
    assert!(poll_fn(|context| Poll::Ready(all.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    held.commit().await.unwrap();
    for (n, merged) in (0..300).zip(all.await) {
        assert_eq!(merged, Ok(of(n)), "{n}");
    }
    let transactions = database.number("SELECT count(DISTINCT xmin::text) FROM wishes").await;
    assert!(transactions <= 6, "{transactions} transactions for 301 logins");
    let stored: Vec<_> = (0..300).map(of).collect();
    assert_eq!(store.settings_of(&names).await, Ok(stored));
}

/// Each message has the key of its id looked up: many partitions share one round trip.
#[tokio::test]
async fn loads_of_many_partitions_share_a_query() {
    let database = Database::new().await;
    let config = config::PostgresConfig { pool_max: 8, connect_ms: 1_000, ..database.config() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let say = |n: u32| message(&to(n), "ann", "m", 0, "text");
    let key = |n: u32| match say(n) {
        Body::Message(message) => message_key(&message),
        other => panic!("{other:?}"),
    };
    let mut ends = Vec::new();
    for n in 0..12 {
        let mut owner = Owner::take_over(&store, n, 1).await;
        // Repeats of one message are one row, and another position.
        let said: Vec<_> = (0..=n).map(|_| say(n)).collect();
        let (_, delta) = owner.apply(&said).await;
        store.archive(n, owner.fence, &delta).await.unwrap();
        ends.push(delta.to);
    }
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE keys IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // Another node has taken over the sixth partition, with a newer fence.
    let fence = |n: u32| Fence(if n == 5 { 9 } else { 1 });
    let load = async |n: u32| {
        let needs = [Need::Key(key((n + 1) % 12)), Need::Head(to(n)), Need::Key(key(n))];
        store.load(n, fence(n), &needs).await
    };
    let mut all = Box::pin(join_all((0..12).map(load)));
    assert_held(&mut all, &database).await;
    held.commit().await.unwrap();
    for (n, loaded) in (0..12).zip(all.await) {
        if n == 5 {
            assert_eq!(loaded.unwrap_err(), StoreError::Fenced);
            continue;
        }
        let loaded = loaded.unwrap();
        assert_eq!(loaded.position, ends[n as usize], "{n}");
        let [other, head, mine] = &loaded.rows[..] else { panic!("{loaded:?}") };
        assert_eq!(*other, Loaded::Key(key((n + 1) % 12), None), "a key of another partition");
        assert!(
            matches!(head, Loaded::Head(id, Some(head)) if *id == to(n) && head.last_seq == 1),
            "{head:?}"
        );
        assert!(matches!(mine, Loaded::Key(name, Some(it)) if *name == key(n) && it.seq == 1), "{mine:?}");
    }
}

/// Most messages need no more than the lookup of their key.
#[tokio::test]
async fn key_lookups_of_many_partitions_share_a_query() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let (owners, deltas) = applied(&store, 12, |n| n + 1).await;
    for (n, (owner, delta)) in owners.iter().zip(&deltas).enumerate() {
        store.archive(n as u32, owner.fence, delta).await.unwrap();
    }
    let key = |n: u32, id: u32| match message(&to(n), "ann", &format!("m{id}"), 0, "text") {
        Body::Message(message) => message_key(&message),
        other => panic!("{other:?}"),
    };
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE keys IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // Another node has taken over the sixth partition; the one after the last was never owned.
    let fence = |n: usize| if n == 5 { Fence(9) } else { owners.get(n).map_or(Fence(1), |it| it.fence) };
    let load = async |n: usize| {
        let own = n as u32;
        // Its last message, a message that it never had, one of its neighbour's, and its first.
        let needs = [key(own, own), key(own, own + 1), key((own + 1) % 12, 0), key(own, 0)].map(Need::Key);
        store.load(own, fence(n), &needs).await
    };
    let mut all = Box::pin(join_all((0..13).map(load)));
    assert!(poll_fn(|context| Poll::Ready(all.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    held.commit().await.unwrap();
    for (n, loaded) in all.await.into_iter().enumerate() {
        if [5, 12].contains(&n) {
            assert_eq!(loaded.unwrap_err(), StoreError::Fenced, "{n}");
            continue;
        }
        let loaded = loaded.unwrap();
        assert_eq!(loaded.position, deltas[n].to, "{n}");
        let [last, none, other, first] = &loaded.rows[..] else { panic!("{loaded:?}") };
        let own = n as u32;
        let seq = |row: &Loaded, name| match row {
            Loaded::Key(is, Some(it)) if *is == name => it.seq,
            other => panic!("{other:?}"),
        };
        assert_eq!(seq(last, key(own, own)), u64::from(own) + 1);
        assert_eq!(seq(first, key(own, 0)), 1);
        assert_eq!(*none, Loaded::Key(key(own, own + 1), None));
        assert_eq!(*other, Loaded::Key(key((own + 1) % 12, 0), None), "a key of another partition");
    }
}

/// Clients that reconnect pull, and a pull first reads the member view.
#[tokio::test]
async fn member_views_of_many_clients_share_a_query() {
    let database = Database::new().await;
    let config = config::PostgresConfig { pool_max: 8, connect_ms: 1_000, ..database.config() };
    let store: Arc<dyn Store> = Arc::new(PostgresStore::open(&config).await.unwrap());
    let (owners, deltas) = applied(&store, 40, |n| n + 1).await;
    for (n, (owner, delta)) in owners.iter().zip(&deltas).enumerate() {
        store.archive(n as u32, owner.fence, delta).await.unwrap();
    }
    let mark = |n: u64| Mark { seq: 1 + n, messages: 1 + n, own: 0 };
    for n in (0..40).step_by(2) {
        let change = (user("ann"), to(n), Personal::Read(mark(u64::from(n))));
        store.save_marks(&[change]).await.unwrap();
    }
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE heads IN ACCESS EXCLUSIVE MODE").await.unwrap();
    // A member, no user, and a non-member; the last ten conversations do not exist.
    let who = |n: u32| [Some(user("ann")), None, Some(user("eve"))][n as usize % 3].clone();
    let ask = async |n: u32| store.summary(&to(n), who(n).as_ref()).await;
    let mut all = Box::pin(join_all((0..50).map(ask)));
    assert_held(&mut all, &database).await;
    held.commit().await.unwrap();
    for (n, found) in (0..).zip(all.await) {
        // A single query uses another statement.
        assert_eq!(found, ask(n).await, "{n}");
        let found = found.unwrap();
        assert_eq!(found.is_some(), n < 40, "{n}");
        let Some(summary) = found else { continue };
        assert_eq!((summary.head.last_seq, summary.members), (u64::from(n) + 1, 2), "{n}");
        assert_eq!(summary.member_view.is_some(), n % 3 == 0, "{n}");
        if let Some(member_view) = summary.member_view {
            let marked = n.is_multiple_of(2).then(|| mark(u64::from(n)).seq);
            assert_eq!(member_view.level.mark.seq, marked.unwrap_or_default(), "{n}");
            assert_eq!(member_view.member.sent, u64::from(n) + 1, "{n}");
        }
    }
}

/// Many partitions have a few messages at a time: their archives share a transaction while another is in flight, and
/// one that conflicts is refused alone.
#[tokio::test]
async fn archives_share_transactions_and_a_conflict_fails_alone() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let (owners, deltas) = applied(&store, 20, |n| n + 1).await;
    // The table of the week exists.
    store.archive(0, owners[0].fence, &deltas[0]).await.unwrap();
    // Another node has taken over the sixth partition, and the eighth has an unexpected row.
    store.take_over(5, Fence(9), TopicId(1)).await.unwrap();
    let stranger =
        format!("INSERT INTO messages VALUES ('{}', 3, 1, 1, 1, NULL, NULL, 'ann', '', '')", to(7));
    database.execute(&stranger).await;
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let archive = async |n: usize| store.archive(n as u32, owners[n].fence, &deltas[n]).await;
    let mut first = Box::pin(join_all((1..4).map(archive)));
    assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    let mut rest = Box::pin(join_all((4..20).map(archive)));
    assert!(poll_fn(|context| Poll::Ready(rest.as_mut().poll(context))).await.is_pending());
    held.commit().await.unwrap();
    let (first, rest) = tokio::join!(first, rest);
    for (n, done) in (1..20).zip(first.into_iter().chain(rest)) {
        match n {
            5 => assert_eq!(done, Err(StoreError::Fenced)),
            7 => assert_eq!(done, Err(StoreError::Conflict(to(7), 3))),
            _ => assert_eq!(done, Ok(()), "{n}"),
        }
    }
    for n in (0..20).filter(|n| ![5, 7].contains(n)) {
        let of =
            |table: &str, is: &str| format!("SELECT count(*) FROM {table} WHERE partition = {n} AND {is}");
        let rows = i64::from(n) + 1;
        assert_eq!(database.number(&of("keys", "true")).await, rows);
        assert_eq!(
            database.number(&of("heads", &format!("conversation = '{}' AND last_seq = {rows}", to(n)))).await,
            1
        );
        assert_eq!(database.number(&of("key_weeks", &format!("below = {rows}"))).await, 1);
        assert_eq!(database.number(&of("partitions", &format!("log_offset = {rows}"))).await, 1);
        let messages = format!("SELECT count(*) FROM messages WHERE conversation = '{}'", to(n));
        assert_eq!(database.number(&messages).await, rows);
        // The store agrees: a repeat finds itself archived.
        assert_eq!(store.archive(n, owners[n as usize].fence, &deltas[n as usize]).await, Ok(()));
    }
    assert_eq!(
        database.number("SELECT count(*) FROM keys WHERE partition IN (5, 7)").await,
        0,
        "all or nothing"
    );
}

#[tokio::test]
async fn waiting_archives_share_one_transaction() {
    let database = Database::new().await;
    let store: Arc<dyn Store> = database.store().await;
    let (owners, deltas) = applied(&store, 40, |_| 1).await;
    store.archive(0, owners[0].fence, &deltas[0]).await.unwrap();
    let mut client = database.client().await;
    let held = client.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let archive = async |n: usize| store.archive(n as u32, owners[n].fence, &deltas[n]).await;
    let mut first = Box::pin(archive(1));
    assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context))).await.is_pending());
    waiting(&database, 1).await;
    let mut rest = Box::pin(join_all((2..40).map(archive)));
    assert!(poll_fn(|context| Poll::Ready(rest.as_mut().poll(context))).await.is_pending());
    held.commit().await.unwrap();
    let (first, rest) = tokio::join!(first, rest);
    assert!(first.is_ok() && rest.iter().all(Result::is_ok), "{first:?} {rest:?}");
    let transactions = database.number("SELECT count(DISTINCT xmin::text) FROM messages").await;
    assert!(transactions <= 5, "{transactions} transactions for 40 archives");
}
