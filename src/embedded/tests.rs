//! Tests of the engine's threads.

use futures_util::FutureExt as _;
use parking_lot::Condvar;
use tidegate_protocol::settings::{Push, UserSettings, Visibility};

use super::*;
use crate::{
    revocation::{Revocation, RevokedTokens},
    store::{ConversationLists as _, Mark, Personal, Store as _, UserState},
    supervised::{self, contained},
};

/// Directory of a store, removed on drop.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Covers flaw S76.
#[tokio::test]
async fn s76_panic_of_a_read_goes_on_in_its_caller() {
    let name = format!("tidegate-engine-{}-{:x}", std::process::id(), rand::random::<u64>());
    let folder = Folder(std::env::temp_dir().join(name));
    let config =
        EngineConfig { path: folder.0.clone(), partitions: 1, free_bytes_min: 0, disk: Arc::new(RealDisk) };
    let engine = Arc::new(Engine::open(config).unwrap());
    let mut panics = supervised::panics();
    let read = async |engine: Arc<Engine>, what: &'static str| {
        let panicking =
            move |_: &Database| -> Result<(), StoreError> { panic!("planted in a read of {what}") };
        engine.read(panicking).await
    };
    // A query is contained, and is answered.
    assert!(contained(read(Arc::clone(&engine), "a query")).await.is_err());
    // An owner is a part of the node, which ends.
    assert!(supervised::spawn("an owner", read(Arc::clone(&engine), "an owner")).await.is_err());
    let panics = panics.wait_for(|all| all.iter().any(|it| it.contains("a read of an owner"))).await.unwrap();
    assert!(!panics.iter().any(|it| it.contains("a read of a query")), "{panics:?}");
    assert_eq!(engine.read(|_| Ok(7)).await, Ok(7));
}

#[tokio::test]
async fn revocations_that_are_over_are_removed_at_the_start() {
    let name = format!("tidegate-engine-{}-{:x}", std::process::id(), rand::random::<u64>());
    let folder = Folder(std::env::temp_dir().join(name));
    let open = || {
        let path = folder.0.clone();
        let disk = Arc::new(RealDisk);
        Arc::new(Engine::open(EngineConfig { path, partitions: 1, free_bytes_min: 0, disk }).unwrap())
    };
    let of = |user: &str, until_ms| Revocation {
        user: UserId::new(user).unwrap(),
        tokens: RevokedTokens::Id("t".into()),
        at_ms: 1,
        until_ms,
    };
    let engine = open();
    for it in [of("ann", Some(10)), of("bob", None), of("carol", Some(u64::MAX - 1))] {
        assert_eq!(engine.revoke(it, 0).await, Ok(true));
    }
    drop(engine);
    let engine = open();
    // A job is handled after the removal.
    assert_eq!(engine.revoke(of("dan", None), 0).await, Ok(true));
    let stored = engine.read(|database| {
        let found: Result<Vec<String>, DatabaseError> = database
            .state
            .prefix(b"x")
            .map(|entry| {
                let (key, value) = entry.into_inner()?;
                Ok(codec::revocation(&key, &value)?.1.user.to_string())
            })
            .collect();
        Ok(found?)
    });
    assert_eq!(stored.await.unwrap(), ["bob", "carol", "dan"]);
}

/// Later calls read what is stored without such a change, and may be answered by that.
#[tokio::test]
async fn change_whose_caller_has_left_is_not_made() {
    let name = format!("tidegate-engine-{}-{:x}", std::process::id(), rand::random::<u64>());
    let folder = Folder(std::env::temp_dir().join(name));
    let config =
        EngineConfig { path: folder.0.clone(), partitions: 1, free_bytes_min: 0, disk: Arc::new(RealDisk) };
    let engine = Engine::open(config).unwrap();
    let (ann, bob) = (UserId::new("ann").unwrap(), UserId::new("bob").unwrap());
    let conversation = ConversationId::direct(&ann, &bob);
    let prefer = |user: &UserId| vec![(user.clone(), conversation.clone(), Personal::Push(Some(Push::None)))];
    let asked = UserSettings { presence: Some(Visibility::Off), ..UserSettings::default() };
    let (reply, first) = oneshot::channel();
    {
        // The writer is at the first job until the database is free, and the others wait.
        let _held = engine.core.database.write();
        engine.send(Job::Marks { marks: prefer(&bob), reply }).unwrap();
        assert!(engine.save_marks(prefer(&ann)).now_or_never().is_none());
        assert!(engine.save_settings(ann.clone(), asked).now_or_never().is_none());
    }
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(engine.save_marks(Vec::new()).await, Ok(()), "a job after them");
    let keys = [mark_key(&conversation, &bob), mark_key(&conversation, &ann), user_settings_key(&ann)];
    let stored = engine.read(move |database| {
        let found: Result<Vec<bool>, DatabaseError> =
            keys.iter().map(|key| Ok(database.state.get(key)?.is_some())).collect();
        Ok(found?)
    });
    assert_eq!(stored.await, Ok(vec![true, false, false]));
}

/// Disk on which a commit hangs while `hangs` is set.
#[derive(Default)]
struct HangingDisk {
    hangs: Mutex<bool>,
    goes_on: Condvar,
    has_hung: AtomicBool,
}

impl HangingDisk {
    fn set_hangs(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.goes_on.notify_all();
    }
}

impl Disk for HangingDisk {
    fn free(&self, path: &Path) -> io::Result<u64> {
        RealDisk.free(path)
    }

    fn before_commit(&self) -> io::Result<()> {
        let mut hangs = self.hangs.lock();
        self.has_hung.store(*hangs, Ordering::SeqCst);
        self.goes_on.wait_while(&mut hangs, |hangs| *hangs);
        Ok(())
    }
}

/// A caller gets an error for a change whose commit hangs, and sends what is to hold instead: a read does not see the change
/// yet.
#[tokio::test]
async fn stored_setting_waits_for_a_change_being_committed() {
    let name = format!("tidegate-engine-{}-{:x}", std::process::id(), rand::random::<u64>());
    let folder = Folder(std::env::temp_dir().join(name));
    let disk = Arc::new(HangingDisk::default());
    let config = EngineConfig {
        path: folder.0.clone(),
        partitions: 1,
        free_bytes_min: 0,
        disk: Arc::clone(&disk) as Arc<dyn Disk>,
    };
    let engine = Arc::new(Engine::open(config).unwrap());
    let store = EmbeddedStore::new(Arc::clone(&engine));
    let ann = UserId::new("ann").unwrap();
    let [off, on] = [Visibility::Off, Visibility::On]
        .map(|presence| UserSettings { presence: Some(presence), ..UserSettings::default() });
    assert_eq!(store.merge_settings(&ann, off).await, Ok(off));
    disk.set_hangs(true);
    let mut late = Box::pin(engine.save_settings(ann.clone(), on));
    let first = late.as_mut().now_or_never();
    while !disk.has_hung.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    drop(late);
    let mut later = store.merge_settings(&ann, off);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut later).await;
    disk.set_hangs(false);
    assert!(first.is_none() && early.is_err(), "{first:?} {early:?}");
    assert_eq!(later.await, Ok(off));
    assert_eq!(store.settings_of(&[ann]).await, Ok(vec![off]));
}

/// The bytes without a preference and a bound are those of former versions, which read the others up to these.
#[test]
fn preference_and_bound_are_at_the_end_of_their_values_and_absent_in_older_ones() {
    let mark = Mark { seq: 5, messages: 4, own: 1 };
    let state = UserState { mark, ..UserState::default() };
    assert_eq!(codec::put_user_state(&state), [5, 4, 1]);
    assert_eq!(codec::user_state(&[5, 4, 1, 3, 3, 0, 0]).unwrap().push, None);
    let preferred = UserState { push: Some(Push::Mentions), ..state.clone() };
    assert_eq!(codec::put_user_state(&preferred), [5, 4, 1, 0, 0, 0, 0, 2]);
    assert_eq!(codec::user_state(&codec::put_user_state(&preferred)).unwrap(), preferred);
    assert!(codec::user_state(&[5, 4, 1, 0, 0, 0, 0, 4]).is_err(), "of a newer version");
    let bounded = UserState { bound: Some(Mark { seq: 9, messages: 7, own: 2 }), ..state };
    assert_eq!(codec::put_user_state(&bounded), [5, 4, 1, 0, 0, 0, 0, 0, 9, 7, 2]);
    let both = UserState { push: Some(Push::Mentions), ..bounded.clone() };
    assert_eq!(codec::put_user_state(&both), [5, 4, 1, 0, 0, 0, 0, 2, 9, 7, 2]);
    for it in [bounded, both] {
        assert_eq!(codec::user_state(&codec::put_user_state(&it)).unwrap(), it);
    }
    let settings = UserSettings { ack_tries: 2, ..UserSettings::default() };
    assert_eq!(codec::put_user_settings(&settings), [0, 2, 0, 0, 0, 0]);
    let preferred = UserSettings { push: Some(Push::All), ..settings };
    assert_eq!(codec::put_user_settings(&preferred), [0, 2, 0, 0, 0, 0, 1]);
    let hidden = UserSettings { presence: Some(Visibility::Off), ..settings };
    assert_eq!(codec::put_user_settings(&hidden), [0, 2, 0, 0, 0, 0, 0, 2]);
    for it in [settings, preferred, hidden, UserSettings { push: Some(Push::None), ..hidden }] {
        assert_eq!(codec::user_settings(&codec::put_user_settings(&it)).unwrap(), it);
    }
}
