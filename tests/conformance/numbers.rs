//! Numbers with many writers over real servers that are emptied, rolled back, failed over and stopped: S6-S12.

mod failover;
mod windows;

use std::{
    collections::BTreeSet,
    num::NonZeroU64,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tidegate::scratch::{Block, FloorError, Floors, MemoryFloors, Numbers, RedisNumbers};
use tokio::sync::Semaphore;

use super::{
    postgres::Database,
    redis::{Server, Version},
    time::{Stopwatch, WAIT_MAX, eventually_async},
};

const KEY: &str = "r:hall";

/// Floors that count reservations, and hold them back on request.
struct Counting {
    floors: Arc<dyn Floors>,
    reserved: AtomicU64,
    /// Number of the next reservations that wait for `open`.
    hold: AtomicU64,
    open: Semaphore,
    /// Whether the floors can't be raised.
    stuck: AtomicBool,
    /// Time a reservation takes, in ms.
    slow_ms: AtomicU64,
}

#[async_trait]
impl Floors for Counting {
    async fn reserve(&self, key: &str, size: NonZeroU64, above: u64) -> Result<Block, FloorError> {
        let takes = Duration::from_millis(self.slow_ms.load(Ordering::SeqCst));
        tokio::time::timeout(takes, std::future::pending::<()>()).await.ok();
        let block = self.floors.reserve(key, size, above).await;
        let held = self.hold.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        self.reserved.fetch_add(1, Ordering::SeqCst);
        if held.is_ok() {
            self.open.acquire().await.expect("never closed").forget();
        }
        block
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        self.floors.epoch().await
    }

    async fn raise(&self, above: u64) -> Result<u64, FloorError> {
        if self.stuck.load(Ordering::SeqCst) {
            return Err(FloorError::Unavailable("a fault".to_owned()));
        }
        self.floors.raise(above).await
    }
}

/// Server, floors, and every number that was assigned.
struct World {
    server: Server,
    floors: Arc<Counting>,
    given: Mutex<BTreeSet<u64>>,
    _database: Option<Database>,
}

fn on(version: Version) -> World {
    World::new(version, Arc::new(MemoryFloors::default()), None)
}

async fn on_postgres() -> World {
    let database = Database::new().await;
    World::new(Version::V7, database.store().await, Some(database))
}

impl World {
    fn new(version: Version, floors: Arc<dyn Floors>, database: Option<Database>) -> Self {
        let (reserved, hold, open) = (AtomicU64::new(0), AtomicU64::new(0), Semaphore::new(0));
        let (stuck, slow_ms) = (AtomicBool::new(false), AtomicU64::new(0));
        let floors = Arc::new(Counting { floors, reserved, hold, open, stuck, slow_ms });
        Self { server: Server::start(version), floors, given: Mutex::default(), _database: database }
    }

    fn node(&self) -> Arc<RedisNumbers> {
        self.node_at(&self.server)
    }

    fn node_at(&self, server: &Server) -> Arc<RedisNumbers> {
        let floors = Arc::clone(&self.floors) as Arc<dyn Floors>;
        let block = NonZeroU64::new(100).unwrap();
        Arc::new(RedisNumbers::connect(&server.patient(), floors, block).unwrap())
    }

    /// Takes numbers, asserts that each is new, and returns the last.
    async fn take(&self, node: &RedisNumbers, count: u64) -> u64 {
        let range = node.take(KEY, NonZeroU64::new(count).unwrap()).await.unwrap();
        assert_eq!(range.end() - range.start() + 1, count, "one range without holes");
        let mut given = self.given.lock().unwrap();
        for number in range.clone() {
            assert!(given.insert(number), "{number} was assigned before");
        }
        *range.end()
    }

    /// Gives numbers to the node, and restarts the server from a dump that lacks the last of them.
    async fn roll_back(&self, node: &RedisNumbers) {
        for _ in 0..15 {
            self.take(node, 10).await;
        }
        let _: String = self.server.ask(&["SAVE"]);
        for _ in 0..60 {
            self.take(node, 3).await;
        }
        self.server.kill();
        assert!(self.server.run());
    }

    /// Returns how many numbers repeat before a node notices that the server was rolled back.
    async fn repeated(&self, node: &RedisNumbers, takes: u64) -> u64 {
        let mut repeated = 0;
        for _ in 0..takes {
            let range = node.take(KEY, NonZeroU64::MIN).await.unwrap();
            repeated += u64::from(!self.given.lock().unwrap().insert(*range.start()));
        }
        repeated
    }
}

suite! {
    {
        redis_7 => super::on(super::Version::V7);
        redis_62 => super::on(super::Version::V62);
        redis_7_on_postgres => super::on_postgres().await;
    }
    {
        s6_many_writers_get_each_number_once_with_few_reservations
        s6_range_larger_than_a_block_has_no_holes
        s7_dead_lock_holder_delays_the_next_call_under_a_second
        s11_stalled_lock_holder_assigns_nothing_of_its_block
        s9_emptied_server_leaves_a_hole
        s9_restart_from_an_old_dump_repeats_nothing_once_noticed
        s9_noticed_rollback_repeats_nothing_with_stuck_floors
        s9_restored_key_repeats_nothing_once_noticed
        s9_promoted_lagging_copy_repeats_nothing_once_noticed
        s11_blocks_from_before_a_change_are_discarded
        s12_numbers_rise_while_locks_are_held
        unavailable_server_leaves_holes_and_numbers_continue
        s7_floors_slower_than_the_lock_are_asked_once
    }
}

/// A Postgres that was restored gives the same blocks again, in an epoch of before.
#[tokio::test]
async fn k10_floors_that_fell_back_repeat_nothing() {
    let floors = Arc::new(MemoryFloors::default());
    let world = World::new(Version::V7, Arc::clone(&floors) as Arc<dyn Floors>, None);
    let (node, other) = (world.node(), world.node());
    world.take(&other, 1).await;
    let saved = floors.save();
    node.changed().await.unwrap();
    for _ in 0..100 {
        world.take(&node, 7).await;
    }
    floors.restore(saved);
    let begun = std::time::Instant::now();
    for _ in 0..100 {
        world.take(&node, 7).await;
        world.take(&other, 7).await;
    }
    // Without Redis a node takes blocks of its own, and knows those that it had.
    world.server.kill();
    let saved = floors.save();
    for _ in 0..30 {
        world.take(&node, 7).await;
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "every take waited for its time to be up");
    floors.restore(saved);
    for _ in 0..30 {
        world.take(&node, 7).await;
    }
}

async fn s6_many_writers_get_each_number_once_with_few_reservations(world: &World) {
    let nodes = [world.node(), world.node(), world.node()];
    let work = (0..9_u64).map(|writer| {
        let node = Arc::clone(&nodes[writer as usize % 3]);
        async move {
            let mut last = 0;
            for n in 0..60 {
                let now = world.take(&node, 1 + (n + writer) % 4).await;
                assert!(now > last, "the numbers of one writer rise");
                last = now;
            }
        }
    });
    futures_util::future::join_all(work).await;
    let given = world.given.lock().unwrap().len() as u64;
    let reserved = world.floors.reserved.load(Ordering::SeqCst);
    assert!(reserved * 1_000 <= given * 10 + 1_000, "{reserved} reservations for {given} numbers");
}

async fn s6_range_larger_than_a_block_has_no_holes(world: &World) {
    let node = world.node();
    assert_eq!(world.take(&node, 30).await, 30);
    assert_eq!(world.take(&node, 250).await, 280, "the rest of a block and the adjacent block");
    assert_eq!(world.take(&node, 1).await, 281);
}

/// Lets a call reserve a block and stop there.
async fn stopped_with_the_lock(world: &World, count: u64) -> tokio::task::JoinHandle<Option<Vec<u64>>> {
    let node = world.node();
    let before = world.floors.reserved.load(Ordering::SeqCst);
    world.floors.hold.store(1, Ordering::SeqCst);
    let count = NonZeroU64::new(count).unwrap();
    let stopped = tokio::spawn(async move { node.take(KEY, count).await.ok().map(Iterator::collect) });
    eventually("a block is reserved", || world.floors.reserved.load(Ordering::SeqCst) > before).await;
    stopped
}

async fn s7_dead_lock_holder_delays_the_next_call_under_a_second(world: &World) {
    let lives = world.node();
    // First without a block, then with one that is too small.
    for count in [5, 96] {
        let held = stopped_with_the_lock(world, count).await;
        held.abort();
        let begun = Stopwatch::start();
        world.take(&lives, count).await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}

async fn s11_stalled_lock_holder_assigns_nothing_of_its_block(world: &World) {
    let lives = world.node();
    for count in [5, 96] {
        let held = stopped_with_the_lock(world, count).await;
        let last = world.take(&lives, count).await;
        world.floors.open.add_permits(1);
        // It may also have failed, being late.
        if let Some(late) = held.await.unwrap() {
            assert!(late[0] > last, "the late call took new numbers: {late:?} after {last}");
            world.given.lock().unwrap().extend(&late);
        }
        world.take(&lives, 7).await;
    }
}

async fn s9_emptied_server_leaves_a_hole(world: &World) {
    let node = world.node();
    for _ in 0..3 {
        world.take(&node, 42).await;
        let _: String = world.server.ask(&["FLUSHALL"]);
    }
    world.take(&world.node(), 1).await;
}

async fn s9_restart_from_an_old_dump_repeats_nothing_once_noticed(world: &World) {
    let (node, other) = (world.node(), world.node());
    world.roll_back(&node).await;
    // A node that has no numbers of this key repeats earlier ones: a store finds them by its unique key.
    assert!(world.repeated(&other, 5).await > 0, "precondition: numbers repeat before the loss is noticed");
    // A node that has given numbers does not take older ones, even before the counter check.
    world.take(&node, 3).await;
    // Each node notices that the counter is not the expected one.
    for seen in [&other, &node] {
        seen.changed().await.unwrap();
        for _ in 0..100 {
            world.take(seen, 3).await;
        }
    }
}

async fn s9_noticed_rollback_repeats_nothing_with_stuck_floors(world: &World) {
    let (node, other) = (world.node(), world.node());
    world.roll_back(&node).await;
    assert!(world.repeated(&other, 1).await > 0, "precondition: numbers repeat before the loss is noticed");
    world.floors.stuck.store(true, Ordering::SeqCst);
    other.changed().await.unwrap_err();
    for _ in 0..50 {
        world.take(&other, 3).await;
    }
    world.floors.stuck.store(false, Ordering::SeqCst);
    other.changed().await.unwrap();
    for _ in 0..50 {
        world.take(&other, 3).await;
        world.take(&node, 3).await;
    }
}

async fn s9_restored_key_repeats_nothing_once_noticed(world: &World) {
    let node = world.node();
    world.take(&node, 10).await;
    let key = format!("tg:seq:{{{KEY}}}");
    let old: Vec<u8> = world.server.ask(&["DUMP", &key]);
    for _ in 0..100 {
        world.take(&node, 3).await;
    }
    let restore = || {
        let mut cmd = redis::cmd("RESTORE");
        cmd.arg(&key).arg(0).arg(&old).arg("REPLACE");
        world.server.run_command::<String>(&cmd);
    };
    restore();
    world.take(&node, 3).await;
    restore();
    let fresh = world.node();
    assert!(world.repeated(&fresh, 1).await == 1, "a writer meets a number that is stored");
    fresh.changed().await.unwrap();
    for _ in 0..100 {
        world.take(&fresh, 3).await;
        world.take(&node, 3).await;
    }
    restore();
    let knows = world.node();
    world.take(&knows, 1).await;
}

async fn s9_promoted_lagging_copy_repeats_nothing_once_noticed(world: &World) {
    let (node, port) = (world.node(), world.server.port.to_string());
    for _ in 0..11 {
        world.take(&node, 10).await;
    }
    let copy = Server::start(Version::V7);
    let _: String = copy.ask(&["REPLICAOF", "127.0.0.1", &port]);
    let key = format!("tg:seq:{{{KEY}}}");
    eventually("the copy has the key", || copy.try_ask::<i64>(&["EXISTS", &key]).is_ok_and(|n| n == 1)).await;
    // The copy is cut off here, and is promoted later with what it has.
    let _: String = copy.ask(&["REPLICAOF", "NO", "ONE"]);
    for _ in 0..100 {
        world.take(&node, 4).await;
    }
    world.server.kill();
    let after = world.node_at(&copy);
    assert!(world.repeated(&after, 5).await > 0, "precondition: numbers repeat before the loss is noticed");
    after.changed().await.unwrap();
    for _ in 0..100 {
        world.take(&after, 4).await;
    }
}

async fn s11_blocks_from_before_a_change_are_discarded(world: &World) {
    let node = world.node();
    let before = world.floors.reserved.load(Ordering::SeqCst);
    world.floors.hold.store(1, Ordering::SeqCst);
    let held = {
        let node = Arc::clone(&node);
        tokio::spawn(async move { node.take(KEY, NonZeroU64::new(5).unwrap()).await.unwrap() })
    };
    eventually("a block is reserved", || world.floors.reserved.load(Ordering::SeqCst) > before).await;
    node.changed().await.unwrap();
    world.floors.open.add_permits(1);
    let range = held.await.unwrap();
    assert!(*range.start() > 100, "{range:?} is of a block from before the change");
}

async fn s12_numbers_rise_while_locks_are_held(world: &World) {
    let (node, reader) = (world.node(), world.node());
    let mut last = world.take(&node, 98).await;
    for _ in 0..3 {
        let held = stopped_with_the_lock(world, 10_000).await;
        // The rest of the block is used meanwhile, and no number comes from outside of it.
        let now = world.take(&reader, 1).await;
        assert!(now > last);
        held.abort();
        last = world.take(&node, 50).await;
        assert!(last > now);
    }
}

async fn unavailable_server_leaves_holes_and_numbers_continue(world: &World) {
    let (node, other) = (world.node(), world.node());
    world.take(&node, 10).await;
    world.take(&other, 10).await;
    world.server.kill();
    let reserved = world.floors.reserved.load(Ordering::SeqCst);
    let mut last = [0; 2];
    for n in 0..8 {
        for (of, node) in [&node, &other].into_iter().enumerate() {
            let now = world.take(node, 1 + n).await;
            assert!(now > last[of], "the numbers of one writer rise");
            last[of] = now;
        }
    }
    assert_eq!(
        world.floors.reserved.load(Ordering::SeqCst) - reserved,
        2,
        "a block for each, not a call for each"
    );
    assert!(world.server.run());
    eventually("the server answers", || world.server.try_ask::<String>(&["PING"]).is_ok()).await;
    for _ in 0..80 {
        for (of, node) in [&node, &other].into_iter().enumerate() {
            let now = world.take(node, 3).await;
            assert!(now > last[of], "the numbers of one writer rise after the outage");
            last[of] = now;
        }
    }
}

async fn s7_floors_slower_than_the_lock_are_asked_once(world: &World) {
    let nodes = [world.node(), world.node(), world.node()];
    // Longer than the initial lifetime of a lock.
    world.floors.slow_ms.store(400, Ordering::SeqCst);
    // The first time that lifetime is not yet adapted.
    futures_util::future::join_all(nodes.iter().map(|node| world.take(node, 1))).await;
    let reserved = || world.floors.reserved.load(Ordering::SeqCst);
    let before = reserved();
    for _ in 0..2 {
        // Each range takes a whole block.
        let all = (0..12).map(|nth| world.take(&nodes[nth % 3], 100));
        futures_util::future::join_all(all).await;
    }
    let asked = reserved() - before;
    assert!(asked <= 30, "{asked} reservations for 24 ranges as large as a block");
}

async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    eventually_async(WAIT_MAX, what, async || look().then_some(())).await;
}
