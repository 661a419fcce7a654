//! Numbers over a Redis that fails over, by sentinels or in a cluster, to a copy that lags: S6, S9, S11.

use std::{
    collections::BTreeSet,
    num::NonZeroU64,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::Signal;
use tidegate::{
    config,
    scratch::{Floors, MemoryFloors, Numbers, RedisNumbers},
};

use crate::{
    postgres::Database,
    redis::{Server, Version, add_copy, cluster, cluster_config},
    time::{Stopwatch, eventually},
};

const KEY: &str = "r:hall";

/// Limit of a call without a master and after the failover: a second of attempts, and the last of them.
const CALL_TIME_MAX: Duration = Duration::from_secs(2);

/// A master, the copy that is promoted, and the other servers.
struct Place {
    master: Server,
    copy: Server,
    /// The sentinel, or the other masters of the cluster.
    others: Vec<Server>,
    config: config::RedisConfig,
}

fn number_in(info: &str, field: &str) -> Option<u64> {
    info.lines().find_map(|line| line.strip_prefix(field)?.trim_start_matches(':').trim().parse().ok())
}

fn replication(server: &Server) -> String {
    server.try_ask(&["INFO", "replication"]).unwrap_or_default()
}

impl Place {
    fn with_sentinel(version: Version) -> Self {
        let (master, copy) = (Server::start(version), Server::start(version));
        let _: String = copy.ask(&["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
        let sentinel = Server::sentinel(&master);
        let config = config::RedisConfig { mode: "sentinel".to_owned(), ..sentinel.config() };
        eventually("the sentinel knows the copy", || {
            let seen: Vec<redis::Value> = sentinel.ask(&["SENTINEL", "REPLICAS", "tidegate"]);
            (!seen.is_empty()).then_some(())
        });
        Self { master, copy, others: vec![sentinel], config }
    }

    fn in_a_cluster(version: Version) -> Self {
        let mut others = cluster(version);
        let timeout_ms = config::RedisConfig::default().timeout_ms;
        let config = config::RedisConfig { timeout_ms, ..cluster_config(&others) };
        let slot: usize = others[0].ask(&["CLUSTER", "KEYSLOT", &format!("tg:seq:{{{KEY}}}")]);
        let owner = (0..others.len()).find(|at| slot < (at + 1) * 16_384 / 3).expect("each slot is one's");
        let master = others.remove(owner);
        let copy = add_copy(&master, &others);
        Self { master, copy, others, config }
    }

    /// Cuts the copy off from its master, as a network failure does.
    fn cut_the_copy_off(&self) {
        eventually("the copy is in step", || {
            let (ours, copy) = (replication(&self.master), replication(&self.copy));
            let there = number_in(&copy, "slave_repl_offset").filter(|_| copy.contains("link_status:up"));
            (there.is_some() && there == number_in(&ours, "master_repl_offset")).then_some(())
        });
        self.copy.signal(Signal::STOP);
        let _: i64 = self.master.ask(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    fn is_led_by_the_copy(&self) -> bool {
        let port = self.copy.port.to_string();
        let knows = |other: &Server| match self.config.mode.as_str() {
            "sentinel" => {
                let said = other.try_ask::<Vec<String>>(&["SENTINEL", "MASTER", "tidegate"]);
                said.is_ok_and(|said| said.windows(2).any(|two| two[0] == "port" && two[1] == port))
            }
            _ => {
                let nodes = other.try_ask::<String>(&["CLUSTER", "NODES"]).unwrap_or_default();
                let leads =
                    |line: &str| line.contains(&format!(":{port}@")) && line.ends_with(char::is_numeric);
                nodes
                    .lines()
                    .any(|line| leads(line) && line.contains("master") && line.contains(" connected "))
            }
        };
        replication(&self.copy).contains("role:master") && self.others.iter().all(knows)
    }

    fn promote(&self) {
        self.copy.signal(Signal::CONT);
        eventually("the copy takes over", || {
            let asked = match self.config.mode.as_str() {
                "sentinel" => self.others[0].try_ask::<String>(&["SENTINEL", "FAILOVER", "tidegate"]),
                _ => self.copy.try_ask(&["CLUSTER", "FAILOVER", "TAKEOVER"]),
            };
            (asked.is_ok() || asked.is_err_and(|why| why.to_string().contains("INPROG"))).then_some(())
        });
        eventually("all servers know the new master", || self.is_led_by_the_copy().then_some(()));
    }
}

/// Every number that was stored under its unique key, and shown.
struct World {
    place: Place,
    floors: Arc<dyn Floors>,
    stored: Mutex<BTreeSet<u64>>,
}

impl World {
    fn node(&self, timeout_ms: u64) -> RedisNumbers {
        let config = config::RedisConfig { timeout_ms, ..self.place.config.clone() };
        RedisNumbers::connect(&config, Arc::clone(&self.floors), NonZeroU64::new(100).unwrap()).unwrap()
    }

    /// Returns a node with the default deadline.
    fn quick(&self) -> RedisNumbers {
        self.node(self.place.config.timeout_ms)
    }

    /// Returns a node with a deadline that a busy machine does not exceed.
    fn patient(&self) -> RedisNumbers {
        self.node(5_000)
    }

    /// Takes and stores numbers; asserts that each is new and above the writer's last.
    async fn store(&self, node: &RedisNumbers, count: u64, last: &mut u64) {
        let begun = Stopwatch::start();
        let range = node.take(KEY, NonZeroU64::new(count).unwrap()).await.unwrap();
        assert!(begun.elapsed() < CALL_TIME_MAX, "{range:?} took {:?}", begun.elapsed());
        assert!(range.start() > last, "{range:?} after {last}: a writer's numbers rise");
        assert_eq!(range.end() - range.start() + 1, count, "one range without holes");
        *last = *range.end();
        let mut stored = self.stored.lock().unwrap();
        for number in range {
            assert!(stored.insert(number), "{number} was stored before");
        }
    }

    /// Returns a node that starts after the failover, without numbers of this key, and takes a stored number, which is
    /// never shown.
    async fn meets_an_old_number(&self) -> RedisNumbers {
        for _ in 0..20 {
            let late = self.patient();
            let number = *late.take(KEY, NonZeroU64::MIN).await.unwrap().start();
            if !self.stored.lock().unwrap().insert(number) {
                return late;
            }
        }
        panic!("precondition: the copy has an old number");
    }
}

/// Asserts what a promoted lagging copy may do to numbers.
async fn assert_nothing_repeats_once_noticed(place: Place, floors: Arc<dyn Floors>) {
    let world = World { place, floors, stored: Mutex::default() };
    let (before, knows) = (world.patient(), world.quick());
    let mut last = [0; 3];
    for _ in 0..11 {
        world.store(&before, 10, &mut last[0]).await;
    }
    world.place.cut_the_copy_off();
    for _ in 0..100 {
        world.store(&before, 4, &mut last[0]).await;
    }
    world.store(&knows, 1, &mut last[1]).await;
    world.place.master.kill();
    // No server is the master.
    let alone = world.quick();
    for _ in 0..5 {
        world.store(&knows, 3, &mut last[1]).await;
        world.store(&alone, 3, &mut last[2]).await;
    }
    world.place.promote();
    let late = world.meets_an_old_number().await;
    late.changed().await.unwrap();
    let mut lasts = [0; 4];
    lasts[..3].copy_from_slice(&last);
    for round in 0..100 {
        for (node, last) in [&before, &knows, &alone, &late].into_iter().zip(&mut lasts) {
            // Each node notices in its own time; until then it assigns nothing below its earlier numbers.
            if round == 50 {
                node.changed().await.unwrap();
            }
            world.store(node, 1 + round % 4, last).await;
        }
    }
    // From the shared block, not from one of its own.
    world.store(&before, 1, &mut lasts[0]).await;
    let shared: u64 = world.place.copy.ask(&["HGET", &format!("tg:seq:{{{KEY}}}"), "CURR"]);
    assert_eq!(shared, lasts[0]);
}

#[tokio::test]
async fn s9_lagging_copy_promoted_by_sentinels_repeats_nothing() {
    let database = Database::new().await;
    let place = Place::with_sentinel(Version::V7);
    assert_nothing_repeats_once_noticed(place, database.store().await).await;
    let place = Place::with_sentinel(Version::V62);
    assert_nothing_repeats_once_noticed(place, Arc::new(MemoryFloors::default())).await;
}

#[tokio::test]
async fn s9_lagging_copy_promoted_in_a_cluster_repeats_nothing() {
    let database = Database::new().await;
    let place = Place::in_a_cluster(Version::V7);
    assert_nothing_repeats_once_noticed(place, database.store().await).await;
    let place = Place::in_a_cluster(Version::V62);
    assert_nothing_repeats_once_noticed(place, Arc::new(MemoryFloors::default())).await;
}

#[tokio::test]
async fn s6_many_writers_on_a_cluster_get_each_number_once() {
    for version in [Version::V7, Version::V62] {
        let servers = cluster(version);
        let floors: Arc<dyn Floors> = Arc::new(MemoryFloors::default());
        let nodes = [(); 3].map(|()| {
            let block = NonZeroU64::new(100).unwrap();
            RedisNumbers::connect(&cluster_config(&servers), Arc::clone(&floors), block).unwrap()
        });
        // Keys of all three masters.
        let keys: Vec<String> = (0..12).map(|nth| format!("r:{nth}")).collect();
        let given = Mutex::new(BTreeSet::new());
        let work = (0..9_u64).map(|writer| {
            let (nodes, keys, given) = (&nodes, &keys, &given);
            async move {
                for n in 0..60 {
                    let key = &keys[(n + writer) as usize % keys.len()];
                    let count = NonZeroU64::new(1 + (n + writer) % 4).unwrap();
                    let range = nodes[writer as usize % 3].take(key, count).await.unwrap();
                    let mut given = given.lock().unwrap();
                    assert!(range.into_iter().all(|number| given.insert((key, number))), "{key}");
                }
            }
        });
        futures_util::future::join_all(work).await;
        for server in &servers {
            assert!(server.ask::<u64>(&["DBSIZE"]) > 0, "{version:?}: each master has some");
        }
    }
}
