//! The suite of `Scratch`.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate::{
    fault::{FaultPlan, Faulty},
    scratch::{
        CHAINS_PER_USER_MAX, ChainChange, ChainSave, ChainSaver, ChainState, ChainStep, DONE_IDS_MAX, Hit,
        MemoryScratch, RedisScratch, Scratch, WindowRule,
    },
};
use tidegate_protocol::id::MsgId;

use super::{
    HandClock, at_once, device,
    redis::{self, Server, Version},
    user,
};

struct World {
    scratch: Arc<dyn Scratch>,
    begun: Instant,
    engine: Engine,
}

enum Engine {
    Memory(HandClock),
    Redis(Vec<Server>),
}

fn memory() -> World {
    let clock = HandClock::default();
    let seen = clock.clone();
    let scratch = Arc::new(MemoryScratch::new(1 << 20, move || seen.now()));
    World { scratch, begun: Instant::now(), engine: Engine::Memory(clock) }
}

fn faultless() -> World {
    let world = memory();
    World { scratch: Arc::new(Faulty::new(world.scratch, FaultPlan::none())), ..world }
}

fn on_redis(version: Version) -> World {
    let server = Server::start(version);
    let scratch = Arc::new(RedisScratch::connect(&server.patient()).unwrap());
    World { scratch, begun: Instant::now(), engine: Engine::Redis(vec![server]) }
}

fn on_a_cluster(version: Version) -> World {
    let servers = redis::cluster(version);
    let scratch = Arc::new(RedisScratch::connect(&redis::cluster_config(&servers)).unwrap());
    World { scratch, begun: Instant::now(), engine: Engine::Redis(servers) }
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
        s36_window_slides_and_returns_the_time_to_retry
        hit_that_one_rule_refuses_is_counted_by_none
        refused_hit_does_not_delay_its_retry
        limit_of_zero_refuses
        s31_s34_hits_of_one_instant_are_all_counted
        s35_window_of_half_a_second_is_accepted
        keys_and_windows_are_counted_separately
        large_limit_is_enforced_with_two_buckets
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

fn rule(key: &str, seconds: u64, limit: u32) -> WindowRule {
    WindowRule { key: key.to_owned(), window: Duration::from_secs(seconds), limit }
}

impl World {
    async fn hit(&self, rules: &[WindowRule]) -> Hit {
        self.scratch.hit(rules).await.unwrap()
    }

    /// Asserts that the hit is refused for `wait`, less what a server's clock has advanced since the case began.
    async fn assert_refused(&self, rules: &[WindowRule], by: usize, wait: Duration) {
        let Hit::Refused { rule, retry_after } = self.hit(rules).await else {
            panic!("{rules:?} allowed it")
        };
        let since = match &self.engine {
            Engine::Memory(_) => Duration::ZERO,
            Engine::Redis(_) => self.begun.elapsed(),
        };
        assert_eq!(rule, by);
        assert!(retry_after <= wait && retry_after + since >= wait, "{retry_after:?} where {wait:?} is due");
    }

    fn pass(&self, time: Duration) {
        match &self.engine {
            Engine::Memory(clock) => clock.pass(time),
            Engine::Redis(servers) => servers.iter().for_each(|server| server.age(time)),
        }
    }
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

async fn s36_window_slides_and_returns_the_time_to_retry(world: &World) {
    let rules = [rule("user:ann", 10, 2)];
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    world.pass(Duration::from_secs(4));
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    world.assert_refused(&rules, 0, Duration::from_secs(6)).await;
    world.pass(Duration::from_secs(6));
    assert_eq!(world.hit(&rules).await, Hit::Allowed, "the first hit has left the window");
    world.assert_refused(&rules, 0, Duration::from_secs(4)).await;
}

async fn hit_that_one_rule_refuses_is_counted_by_none(world: &World) {
    let both = [rule("user:ann", 10, 2), rule("org:x", 20, 1)];
    assert_eq!(world.hit(&both[1..]).await, Hit::Allowed);
    for _ in 0..5 {
        world.assert_refused(&both, 1, Duration::from_secs(20)).await;
    }
    assert_eq!(world.hit(&both[..1]).await, Hit::Allowed);
    assert_eq!(world.hit(&both[..1]).await, Hit::Allowed);
    world.assert_refused(&both, 1, Duration::from_secs(20)).await;
}

async fn refused_hit_does_not_delay_its_retry(world: &World) {
    let rules = [rule("user:ann", 10, 1)];
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    for waited in 0..10 {
        world.assert_refused(&rules, 0, Duration::from_secs(10 - waited)).await;
        world.pass(Duration::from_secs(1));
    }
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
}

async fn limit_of_zero_refuses(world: &World) {
    world.assert_refused(&[rule("user:ann", 10, 0)], 0, Duration::from_secs(10)).await;
}

async fn s31_s34_hits_of_one_instant_are_all_counted(world: &World) {
    let rules = [rule("group:team", 60, 100)];
    for hit in 0..100 {
        assert_eq!(world.hit(&rules).await, Hit::Allowed, "hit {hit}");
    }
    world.assert_refused(&rules, 0, Duration::from_secs(60)).await;
}

async fn s35_window_of_half_a_second_is_accepted(world: &World) {
    let half = Duration::from_millis(500);
    let rules = [WindowRule { window: half, ..rule("user:ann", 0, 1) }];
    for _ in 0..3 {
        assert_eq!(world.hit(&rules).await, Hit::Allowed);
        world.assert_refused(&rules, 0, half).await;
        world.pass(half);
    }
}

async fn keys_and_windows_are_counted_separately(world: &World) {
    assert_eq!(world.hit(&[rule("user:ann", 10, 1), rule("user:ann", 60, 5)]).await, Hit::Allowed);
    assert_eq!(world.hit(&[rule("user:bob", 10, 1), rule("user:ann", 60, 5)]).await, Hit::Allowed);
    world.assert_refused(&[rule("user:ann", 10, 1)], 0, Duration::from_secs(10)).await;
}

/// Chains and windows whose keys are in different slots.
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
    keys_and_windows_are_counted_separately(&world).await;
    for n in 0..20 {
        let both = [rule(&format!("user:u{n}"), 10, 2), rule(&format!("org:o{n}"), 20, 1)];
        assert_eq!(world.hit(&both).await, Hit::Allowed);
        assert!(matches!(world.hit(&both).await, Hit::Refused { rule: 1, .. }));
        assert_eq!(world.hit(&both[..1]).await, Hit::Allowed, "the hit was rolled back");
    }
}

/// Above 256 hits, two buckets are counted: exact while the load is even, and never more than a limit in one bucket.
async fn large_limit_is_enforced_with_two_buckets(world: &World) {
    let rules = [rule("user:ann", 10, 300)];
    for hit in 0..300 {
        assert_eq!(world.hit(&rules).await, Hit::Allowed, "hit {hit}");
    }
    assert!(matches!(world.hit(&rules).await, Hit::Refused { rule: 0, .. }));
    let both = [rule("user:ann", 10, 300), rule("user:bob", 10, 300)];
    for _ in 0..3 {
        assert!(matches!(world.hit(&both).await, Hit::Refused { rule: 0, .. }));
    }
    world.pass(Duration::from_secs(15));
    let mut allowed = 0;
    while world.hit(&rules).await == Hit::Allowed {
        allowed += 1;
        assert!(allowed <= 300);
    }
    assert!(allowed >= 150, "{allowed}: half of the previous bucket has left");
    world.pass(Duration::from_secs(25));
    for _ in 0..300 {
        assert_eq!(world.hit(&both).await, Hit::Allowed, "refused hits are not counted");
    }
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
    at_once(scratch.hit(&[rule("user:ann", 1, 1)])).unwrap();
}

#[test]
fn memory_is_bounded_and_drops_the_least_recently_used() {
    let scratch = MemoryScratch::new(64 << 10, Default::default);
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
    let scratch = MemoryScratch::new(4 << 20, Default::default);
    let of_bob = vec![ChainSave { user: user("bob"), device: device("phone"), state: state(1, 1) }];
    at_once(scratch.save_chains(of_bob)).unwrap();
    for n in 0..1_000 {
        at_once(scratch.save_chains(save(&format!("d{n}"), state(1, DONE_IDS_MAX)))).unwrap();
    }
    assert!(at_once(scratch.load_chain(&user("bob"), &device("phone"))).unwrap().is_some());
}
