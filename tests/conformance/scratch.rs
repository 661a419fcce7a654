//! The suite of `Scratch`.

use std::{sync::Arc, time::Duration};

use tidegate::{
    fault::{FaultPlan, Faulty},
    scratch::{ChainSave, ChainState, DONE_IDS_MAX, Hit, MemoryScratch, Scratch, WindowRule},
};
use tidegate_protocol::id::MsgId;

use super::{HandClock, at_once, device, user};

struct World {
    scratch: Arc<dyn Scratch>,
    clock: HandClock,
}

fn memory() -> World {
    let clock = HandClock::default();
    let seen = clock.clone();
    World { scratch: Arc::new(MemoryScratch::new(1 << 20, move || seen.now())), clock }
}

fn faultless() -> World {
    let World { scratch, clock } = memory();
    World { scratch: Arc::new(Faulty::new(scratch, FaultPlan::none())), clock }
}

suite! {
    { memory => super::memory(); faultless => super::faultless(); }
    {
        s37_a_chain_is_loaded_as_it_was_saved
        s37_the_word_of_an_older_conn_changes_nothing
        s37_only_the_newest_done_ids_are_kept
        s37_devices_have_chains_of_their_own
        a_window_slides_and_says_when_to_come_back
        a_hit_that_one_rule_refuses_is_counted_by_none
        a_refused_hit_does_not_push_its_retry_away
        a_limit_of_zero_refuses
        s31_s34_hits_of_one_instant_are_all_counted
        s35_a_window_may_be_half_a_second
        keys_and_windows_count_apart
    }
}

fn id(n: usize) -> MsgId {
    MsgId::new(&format!("m{n}")).unwrap()
}

fn state(epoch: u64, expected: usize) -> ChainState {
    ChainState {
        epoch,
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
}

fn refused(rule: usize, seconds: u64) -> Hit {
    Hit::Refused { rule, retry_after: Duration::from_secs(seconds) }
}

async fn s37_a_chain_is_loaded_as_it_was_saved(world: &World) {
    assert_eq!(loaded(world, "phone").await, None);
    world.scratch.save_chains(save("phone", state(1, 3))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(1, 3)));
    world.scratch.save_chains(save("phone", state(1, 4))).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(1, 4)), "the last one wins");
}

async fn s37_the_word_of_an_older_conn_changes_nothing(world: &World) {
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

async fn s37_devices_have_chains_of_their_own(world: &World) {
    let mut saves = save("phone", state(5, 1));
    saves.extend(save("web", state(1, 2)));
    world.scratch.save_chains(saves).await.unwrap();
    assert_eq!(loaded(world, "phone").await, Some(state(5, 1)));
    assert_eq!(loaded(world, "web").await, Some(state(1, 2)));
}

async fn a_window_slides_and_says_when_to_come_back(world: &World) {
    let rules = [rule("user:ann", 10, 2)];
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    world.clock.pass(Duration::from_secs(4));
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    assert_eq!(world.hit(&rules).await, refused(0, 6));
    world.clock.pass(Duration::from_secs(6));
    assert_eq!(world.hit(&rules).await, Hit::Allowed, "the first hit has left");
    assert_eq!(world.hit(&rules).await, refused(0, 4), "the second has not");
}

async fn a_hit_that_one_rule_refuses_is_counted_by_none(world: &World) {
    let both = [rule("user:ann", 10, 2), rule("org:x", 20, 1)];
    assert_eq!(world.hit(&both[1..]).await, Hit::Allowed);
    for _ in 0..5 {
        assert_eq!(world.hit(&both).await, refused(1, 20));
    }
    assert_eq!(world.hit(&both[..1]).await, Hit::Allowed);
    assert_eq!(world.hit(&both[..1]).await, Hit::Allowed);
    assert_eq!(world.hit(&both).await, refused(1, 20), "the longest wait is told");
}

async fn a_refused_hit_does_not_push_its_retry_away(world: &World) {
    let rules = [rule("user:ann", 10, 1)];
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
    for waited in 0..10 {
        assert_eq!(world.hit(&rules).await, refused(0, 10 - waited));
        world.clock.pass(Duration::from_secs(1));
    }
    assert_eq!(world.hit(&rules).await, Hit::Allowed);
}

async fn a_limit_of_zero_refuses(world: &World) {
    assert_eq!(world.hit(&[rule("user:ann", 10, 0)]).await, refused(0, 10));
}

async fn s31_s34_hits_of_one_instant_are_all_counted(world: &World) {
    let rules = [rule("group:team", 60, 100)];
    for hit in 0..100 {
        assert_eq!(world.hit(&rules).await, Hit::Allowed, "hit {hit}");
    }
    assert_eq!(world.hit(&rules).await, refused(0, 60));
}

async fn s35_a_window_may_be_half_a_second(world: &World) {
    let half = Duration::from_millis(500);
    let rules = [WindowRule { window: half, ..rule("user:ann", 0, 1) }];
    for _ in 0..3 {
        assert_eq!(world.hit(&rules).await, Hit::Allowed);
        assert_eq!(world.hit(&rules).await, Hit::Refused { rule: 0, retry_after: half });
        world.clock.pass(half);
    }
}

async fn keys_and_windows_count_apart(world: &World) {
    assert_eq!(world.hit(&[rule("user:ann", 10, 1), rule("user:ann", 60, 5)]).await, Hit::Allowed);
    assert_eq!(world.hit(&[rule("user:bob", 10, 1), rule("user:ann", 60, 5)]).await, Hit::Allowed);
    assert_eq!(world.hit(&[rule("user:ann", 10, 1)]).await, refused(0, 10));
}

#[test]
fn memory_answers_at_the_first_poll() {
    let World { scratch, .. } = memory();
    at_once(scratch.save_chains(save("phone", state(1, 1)))).unwrap();
    at_once(scratch.load_chain(&user("ann"), &device("phone"))).unwrap();
    at_once(scratch.hit(&[rule("user:ann", 1, 1)])).unwrap();
}

#[test]
fn memory_is_bounded_and_forgets_what_was_not_used_for_longest() {
    let scratch = MemoryScratch::new(64 << 10, Default::default);
    for n in 0..10_000 {
        at_once(scratch.save_chains(save(&format!("d{n}"), state(1, 1)))).unwrap();
        at_once(scratch.save_chains(save("busy", state(1, n % 4)))).unwrap();
    }
    let kept = |name: &str| at_once(scratch.load_chain(&user("ann"), &device(name))).unwrap().is_some();
    assert!(kept("busy") && kept("d9999") && !kept("d0"));
    let count = (0..10_000).filter(|n| kept(&format!("d{n}"))).count();
    assert!(count <= 512, "{count} chains of 128 bytes and more in 64 KiB");
}
