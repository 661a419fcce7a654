//! Tests of the engine's threads.

use super::*;
use crate::{
    revocation::{Revocation, RevokedTokens},
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
