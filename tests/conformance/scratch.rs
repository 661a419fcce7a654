//! The suite of `Scratch`.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tidegate::{
    fault::{FaultPlan, Faulty},
    scratch::{
        CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainSaver, ChainState, ChainStep, DONE_IDS_MAX,
        MemoryScratch, RedisScratch, Scratch,
    },
};
use tidegate_protocol::id::MsgId;

use super::{
    at_once, device, mirror,
    redis::{self, Server, Version},
    user,
};

/// Store of what may be lost, for this suite and for those of its parts.
pub(crate) struct World {
    pub(crate) scratch: Arc<dyn Scratch>,
    /// Servers of the store, which end with the world.
    _servers: Vec<Server>,
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

pub(crate) fn memory() -> World {
    World { scratch: Arc::new(MemoryScratch::new(1 << 20, now_ms)), _servers: Vec::new() }
}

pub(crate) fn faultless() -> World {
    let world = memory();
    World { scratch: Arc::new(Faulty::new(world.scratch, FaultPlan::none())), ..world }
}

pub(crate) fn on_redis(version: Version) -> World {
    let server = Server::start(version);
    let scratch = Arc::new(RedisScratch::connect(&server.patient()).unwrap());
    World { scratch, _servers: vec![server] }
}

pub(crate) fn on_a_cluster(version: Version) -> World {
    let servers = redis::cluster(version);
    let scratch = Arc::new(RedisScratch::connect(&redis::cluster_config(&servers)).unwrap());
    World { scratch, _servers: servers }
}

suite! {
    {
        memory => super::memory();
        faultless => super::faultless();
        redis_7 => super::on_redis(super::Version::V7);
        redis_62 => super::on_redis(super::Version::V62);
    }
    {
        s37_chain_is_loaded_as_saved
        s37_save_of_an_older_conn_changes_nothing
        s37_only_the_newest_done_ids_are_kept
        s37_each_device_has_its_own_chain
        s74_user_keeps_the_chains_that_were_saved_last
        x10_change_is_added_to_the_saved_state
        x10_change_may_be_saved_twice
        x10_change_without_the_state_before_it_is_refused
        s78_first_change_of_a_conn_is_saved_with_the_whole_state
        x10_change_of_an_older_conn_changes_nothing
        x10_changes_keep_only_the_newest_ids
        x10_whole_state_and_changes_replace_each_other
        forgotten_chain_is_saved_as_a_new_one
    }
}

fn id(n: usize) -> MsgId {
    MsgId::new(&format!("m{n}")).unwrap()
}

fn state(epoch: u64, expected: usize) -> ChainState {
    ChainState {
        epoch,
        changes: expected as u64,
        expected: id(expected),
        done: (0..expected).map(id).collect(),
        skipped: (7..7 + expected).map(id).collect(),
    }
}

fn save(name: &str, state: ChainState) -> Vec<ChainSave> {
    vec![ChainSave { user: user("ann"), device: device(name), state }]
}

async fn loaded(world: &World, name: &str) -> Option<ChainState> {
    world.scratch.load_chain(&user("ann"), &device(name)).await.unwrap()
}

async fn s37_chain_is_loaded_as_saved(world: &World) {
    assert_eq!(loaded(world, "phone").await, None);
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(1, 3)));
    world.scratch.save_chains(save("phone", state(1, 4))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(1, 4)), "the last save wins");
}

async fn s37_save_of_an_older_conn_changes_nothing(world: &World) {
    world.scratch.save_chains(save("phone", state(2, 1))).await.unwrap();
    world.scratch.save_chains(save("phone", state(1, 9))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(2, 1)));
    world.scratch.save_chains(save("phone", state(3, 5))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(3, 5)));
}

async fn s37_only_the_newest_done_ids_are_kept(world: &World) {
    world.scratch.save_chains(save("phone", state(1, DONE_IDS_MAX + 10))).await.unwrap();
    let done = loaded(world, "phone").await.unwrap().done;
    assert_eq!(done, (10..DONE_IDS_MAX + 10).map(id).collect::<Vec<_>>());
}

async fn s37_each_device_has_its_own_chain(world: &World) {
    let mut saves = save("phone", state(5, 1));
    saves.extend(save("web", state(1, 2)));
    world.scratch.save_chains(saves).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(5, 1)));
    assert_eq!(loaded(world, "web").await, Some(state(1, 2)));
}

async fn s74_user_keeps_the_chains_that_were_saved_last(world: &World) {
    let kept = async |name: &str| loaded(world, name).await.is_some();
    let bob = |state| vec![ChainSave { user: user("bob"), device: device("phone"), state }];
    world.scratch.save_chains(bob(state(1, 1))).await.unwrap();
    world.scratch.save_chains(save("phone", state(1, 1))).await.unwrap();
    world.scratch.save_chains(save("tablet", state(1, 1))).await.unwrap();
    for n in 0..CHAINS_PER_USER_MAX - 2 {
        world.scratch.save_chains(save(&format!("new-{n}"), state(1, 1))).await.unwrap();
    }
    assert!(kept("phone").await && kept("tablet").await && kept("new-0").await);
    // A change counts as a save.
    assert!(world.advance(1, 2, ChainChange::ExpectedDone, 2).await);
    for n in 0..CHAINS_PER_USER_MAX - 1 {
        world.scratch.save_chains(save(&format!("newer-{n}"), state(1, 1))).await.unwrap();
        assert!(!kept("tablet").await, "the chain that was saved longest ago is removed");
    }
    assert!(kept("phone").await && kept("newer-0").await && !kept("new-61").await);
    world.scratch.save_chains(save("last", state(1, 1))).await.unwrap();
    assert!(!kept("phone").await && kept("newer-0").await);
    // Its connection saves the whole state then.
    assert!(!world.advance(1, 3, ChainChange::ExpectedDone, 3).await);
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    assert!(world.advance(1, 4, ChainChange::ExpectedDone, 4).await);
    assert!(kept("phone").await && !kept("newer-0").await);
    assert!(world.scratch.load_chain(&user("bob"), &device("phone")).await.unwrap().is_some());
}

/// Change of the phone's chain.
fn step(epoch: u64, number: u64, change: ChainChange, expected: usize) -> ChainStep {
    ChainStep { user: user("ann"), device: device("phone"), epoch, number, change, expected: id(expected) }
}

impl World {
    async fn advance(&self, epoch: u64, number: u64, change: ChainChange, expected: usize) -> bool {
        self.scratch.advance_chain(step(epoch, number, change, expected)).await.unwrap()
    }
}

async fn forgotten_chain_is_saved_as_a_new_one(world: &World) {
    let (ann, scratch) = (user("ann"), &world.scratch);
    let devices = async || {
        let mut devices = scratch.chain_devices(&ann).await.unwrap();
        devices.sort();
        devices
    };
    assert!(devices().await.is_empty());
    assert!(!scratch.forget_chain(&ann, &device("phone")).await.unwrap());
    for (name, epoch) in [("phone", 7), ("web", 1)] {
        scratch.save_chains(save(name, state(epoch, 3))).await.unwrap();
    }
    assert_eq!(devices().await, [device("phone"), device("web")]);
    assert!(scratch.forget_chain(&ann, &device("phone")).await.unwrap());
    assert!(!scratch.forget_chain(&ann, &device("phone")).await.unwrap(), "it is gone");
    assert_eq!((loaded(world, "phone").await, loaded(world, "web").await), (None, Some(state(1, 3))));
    assert_eq!(devices().await, [device("web")]);
    // An epoch below that of the forgotten state is that of a new chain.
    scratch.save_chains(save("phone", state(2, 1))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(2, 1)));
    assert_eq!(devices().await, [device("phone"), device("web")]);
    assert!(scratch.forget_chain(&ann, &device("web")).await.unwrap());
    assert!(scratch.forget_chain(&ann, &device("phone")).await.unwrap());
    assert!(devices().await.is_empty());
}

async fn x10_change_is_added_to_the_saved_state(world: &World) {
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    let mut expected = state(1, 3);
    assert!(world.advance(1, 4, ChainChange::ExpectedDone, 4).await);
    expected.done.push(id(3));
    assert!(world.advance(1, 5, ChainChange::Skipped(id(4)), 5).await);
    expected.skipped.push(id(4));
    assert!(world.advance(1, 6, ChainChange::Done(id(70)), 71).await);
    expected.done.push(id(70));
    let expected = ChainState { epoch: 1, changes: 6, expected: id(71), ..expected };
    assert_eq!(loaded(world, "phone").await, Some(expected));
}

async fn x10_change_may_be_saved_twice(world: &World) {
    world.scratch.save_chains(save("phone", state(1, 0))).await.unwrap();
    for (number, expected) in [(1, 1), (1, 1), (2, 2), (1, 1), (2, 2), (3, 3)] {
        assert!(world.advance(1, number, ChainChange::ExpectedDone, expected).await);
    }
    assert_eq!(loaded(world, "phone").await, Some(ChainState { skipped: Vec::new(), ..state(1, 3) }));
}

async fn x10_change_without_the_state_before_it_is_refused(world: &World) {
    assert!(!world.advance(1, 1, ChainChange::ExpectedDone, 1).await, "nothing is saved");
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    assert!(!world.advance(1, 5, ChainChange::ExpectedDone, 5).await, "the change before it was lost");
    assert_eq!(loaded(world, "phone").await, Some(state(1, 3)));
    assert!(world.advance(1, 4, ChainChange::ExpectedDone, 4).await);
    assert!(!world.advance(1, 6, ChainChange::ExpectedDone, 6).await);
}

/// An older connection may have saved changes that the newer one, which loaded the state before, does not know.
async fn s78_first_change_of_a_conn_is_saved_with_the_whole_state(world: &World) {
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    for number in [3, 4, 5] {
        assert!(!world.advance(2, number, ChainChange::ExpectedDone, 4).await, "change {number}");
    }
    assert_eq!(loaded(world, "phone").await, Some(state(1, 3)));
    world.scratch.save_chains(save("phone", state(2, 4))).await.unwrap();
    assert!(world.advance(2, 5, ChainChange::ExpectedDone, 5).await);
}

async fn x10_change_of_an_older_conn_changes_nothing(world: &World) {
    world.scratch.save_chains(save("phone", state(2, 3))).await.unwrap();
    assert!(world.advance(1, 4, ChainChange::ExpectedDone, 9).await);
    assert_eq!(loaded(world, "phone").await, Some(state(2, 3)));
    assert!(world.advance(2, 4, ChainChange::ExpectedDone, 4).await);
    let after = loaded(world, "phone").await;
    assert!(world.advance(1, 5, ChainChange::ExpectedDone, 9).await);
    assert_eq!(loaded(world, "phone").await, after);
}

async fn x10_changes_keep_only_the_newest_ids(world: &World) {
    world.scratch.save_chains(save("phone", state(1, 200))).await.unwrap();
    let last = 200 + DONE_IDS_MAX + 20;
    for n in 200..last {
        let number = 2 * n as u64 - 200;
        assert!(world.advance(1, number + 1, ChainChange::ExpectedDone, n + 1).await);
        assert!(world.advance(1, number + 2, ChainChange::Skipped(id(10_000 + n)), n + 1).await);
    }
    let chain = loaded(world, "phone").await.unwrap();
    let newest = last - DONE_IDS_MAX..last;
    assert_eq!(chain.done, newest.clone().map(id).collect::<Vec<_>>());
    assert_eq!(chain.skipped, newest.map(|n| id(10_000 + n)).collect::<Vec<_>>());
    assert_eq!((chain.expected, chain.changes), (id(last), 2 * last as u64 - 200));
}

async fn x10_whole_state_and_changes_replace_each_other(world: &World) {
    world.scratch.save_chains(save("phone", state(1, 30))).await.unwrap();
    assert!(world.advance(1, 31, ChainChange::ExpectedDone, 31).await);
    let after = loaded(world, "phone").await;
    world.scratch.save_chains(save("phone", state(1, 30))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, after, "a whole state that is late changes nothing");
    world.scratch.save_chains(save("phone", state(1, 32))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(1, 32)));
    world.scratch.save_chains(save("phone", state(2, 2))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(2, 2)), "no id of the former state is left");
    assert!(world.advance(2, 3, ChainChange::ExpectedDone, 3).await);
    let expected = ChainState { skipped: state(2, 2).skipped, ..state(2, 3) };
    assert_eq!(loaded(world, "phone").await, Some(expected));
}

/// Chains and mirrored windows whose keys are in different slots.
#[tokio::test]
async fn over_a_cluster() {
    for version in [Version::V7, Version::V62] {
        over_a_cluster_of(version).await;
    }
}

async fn over_a_cluster_of(version: Version) {
    let world = on_a_cluster(version);
    s37_save_of_an_older_conn_changes_nothing(&world).await;
    s37_each_device_has_its_own_chain(&world).await;
    assert!(world.advance(5, 2, ChainChange::ExpectedDone, 2).await);
    mirror::windows_of_groups_are_separate(&world).await;
    mirror::s31_ten_thousand_messages_of_one_ms_are_counted(&world).await;
}

/// Measures at the server what 1,000 messages of a chain cost that remembers as many and as long ids as it can.
#[tokio::test]
async fn x10_message_costs_at_most_300_bytes_of_redis() {
    let long = |prefix: &str, n: usize| MsgId::new(&format!("{prefix}{n:060}")).unwrap();
    for version in [Version::V7, Version::V62] {
        let server = Server::start(version);
        let scratch = RedisScratch::connect(&server.patient()).unwrap();
        let received = || {
            let stats: String = server.ask(&["INFO", "stats"]);
            let line = stats.lines().find_map(|line| line.strip_prefix("total_net_input_bytes:"));
            line.unwrap().parse::<usize>().unwrap()
        };
        let (user, device) = (user(&"u".repeat(36)), device(&"d".repeat(36)));
        let full = ChainState {
            epoch: 1_795_522_376_375_432,
            changes: 1_000_000,
            expected: long("done", DONE_IDS_MAX),
            done: (0..DONE_IDS_MAX).map(|n| long("done", n)).collect(),
            skipped: (0..DONE_IDS_MAX).map(|n| long("skip", n)).collect(),
        };
        let loaded = ChainSave { user: user.clone(), device: device.clone(), state: full.clone() };
        scratch.save_chains(vec![loaded]).await.unwrap();
        let saver = ChainSaver::new(user.clone(), device.clone(), full.epoch + 1, Some(full));
        let save = async |n: usize| {
            let done = ChainChange::Done(long("done", DONE_IDS_MAX + n));
            let step = saver.advance(done, long("done", DONE_IDS_MAX + n + 1)).unwrap();
            saver.save(&scratch, step).await.unwrap();
        };
        // The first call loads the script.
        save(0).await;
        let before = received();
        for n in 1..=1_000 {
            save(n).await;
        }
        let cost = received() - before;
        assert!(cost <= 300 * 1_000, "{cost} bytes, {version:?}");
        assert_eq!(scratch.load_chain(&user, &device).await.unwrap(), saver.state());
    }
}

#[test]
fn memory_answers_at_the_first_poll() {
    let World { scratch, .. } = memory();
    at_once(scratch.save_chains(save("phone", state(1, 1)))).unwrap();
    at_once(scratch.advance_chain(step(1, 2, ChainChange::ExpectedDone, 2))).unwrap();
    at_once(scratch.load_chain(&user("ann"), &device("phone"))).unwrap();
    at_once(scratch.mirror_windows(Duration::from_secs(1), &[])).unwrap();
}

#[test]
fn memory_is_bounded_and_drops_the_least_recently_used() {
    let scratch = MemoryScratch::new(64 << 10, || 0);
    let save = |name: &str, state| {
        at_once(scratch.save_chains(vec![ChainSave { user: user(name), device: device("phone"), state }]))
            .unwrap();
    };
    for n in 0..10_000 {
        save(&format!("u{n}"), state(1, 1));
        save("busy", state(n as u64 + 1, n % 4));
    }
    let kept = |name: &str| at_once(scratch.load_chain(&user(name), &device("phone"))).unwrap().is_some();
    assert!(kept("busy") && kept("u9999") && !kept("u0"));
    let count = (0..10_000).filter(|n| kept(&format!("u{n}"))).count();
    assert!(count <= 512, "{count} chains of 128 bytes and more in 64 KiB");
}

#[test]
fn s74_devices_of_one_user_leave_the_chains_of_others_in_memory() {
    // A chain counts about 18 KiB here, so 64 are 1.2 MiB, and 1,000 would be 18 MiB.
    let scratch = MemoryScratch::new(4 << 20, || 0);
    let of_bob = vec![ChainSave { user: user("bob"), device: device("phone"), state: state(1, 1) }];
    at_once(scratch.save_chains(of_bob)).unwrap();
    for n in 0..1_000 {
        at_once(scratch.save_chains(save(&format!("d{n}"), state(1, DONE_IDS_MAX)))).unwrap();
    }
    assert!(at_once(scratch.load_chain(&user("bob"), &device("phone"))).unwrap().is_some());
}
