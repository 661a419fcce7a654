//! The suite of the mirrors of windows, a part of `Scratch`, and what other systems find in Redis.
//!
//! The server's clock is that of this machine, so messages get the age that a case needs when they are added.

use std::time::Duration;

use tidegate::scratch::{MIRROR_MEMBERS_MAX, RedisScratch, Scratch as _, WindowEntry, WindowUpdate};

use super::{
    group,
    redis::{Server, Version},
    scratch::{World, faultless, memory, now_ms, on_redis},
    time::{WAIT_MAX, eventually_async},
};

const WINDOW: Duration = Duration::from_secs(60);

/// Keys that Redis has by default, and with the prefix of another system.
const KEYS: [&str; 2] = ["tg:storm:{g:tea}", "tg:storm:{g:tea}:seconds"];
const OTHER_PREFIX: &str = "im:group_msg_events:";
const OTHER_KEYS: [&str; 2] = ["im:group_msg_events:tea", "{im:group_msg_events:tea}:seconds"];

suite! {
    {
        memory => super::memory();
        faultless => super::faultless();
        redis_7 => super::on_redis(super::Version::V7);
        redis_62 => super::on_redis(super::Version::V62);
    }
    {
        s31_ten_thousand_messages_of_one_ms_are_counted
        s31_counts_rise_beyond_the_members
        repeated_messages_are_counted_once
        s32_messages_of_other_times_are_left_out
        s35_s36_messages_leave_the_window
        count_that_falls_is_exact_again
        windows_of_groups_are_separate
    }
}

/// Returns an update with the messages of these seqs, the oldest of which are summed as a busy node does.
fn update(name: &str, seqs: std::ops::RangeInclusive<u64>, received_ms: u64) -> WindowUpdate {
    let (first, last) = seqs.into_inner();
    let newest = first.max((last + 1).saturating_sub(MIRROR_MEMBERS_MAX as u64));
    let summed = u32::try_from(newest - first).unwrap();
    let sum = WindowEntry { seq: newest - 1, messages: summed, received_ms };
    let one = |seq| WindowEntry { seq, messages: 1, received_ms };
    let entries = (summed > 0).then_some(sum).into_iter().chain((newest..=last).map(one)).collect();
    WindowUpdate { group: group(name), entries }
}

impl World {
    async fn add_within(&self, window: Duration, update: WindowUpdate) -> u64 {
        let counts = self.scratch.mirror_windows(window, &[update]).await.unwrap();
        assert_eq!(counts.len(), 1);
        counts[0]
    }

    async fn add(&self, seqs: std::ops::RangeInclusive<u64>, received_ms: u64) -> u64 {
        self.add_within(WINDOW, update("tea", seqs, received_ms)).await
    }

    /// Waits until the window has that many messages.
    async fn falls_to(&self, window: Duration, count: u64) {
        eventually_async(WAIT_MAX, "messages leave the window", async || {
            let none = WindowUpdate { group: group("tea"), entries: Vec::new() };
            (self.add_within(window, none).await == count).then_some(())
        })
        .await;
    }
}

/// Also if another owner repeats them in other parts, and continues.
pub(crate) async fn s31_ten_thousand_messages_of_one_ms_are_counted(world: &World) {
    let now = now_ms();
    assert_eq!(world.add(1..=10_000, now).await, 10_000);
    assert_eq!(world.add(4_001..=10_000, now).await, 10_000);
    assert_eq!(world.add(9_501..=12_000, now).await, 12_000);
    assert_eq!(world.add(12_001..=12_001, now).await, 12_001);
}

async fn s31_counts_rise_beyond_the_members(world: &World) {
    let now = now_ms();
    for part in 0..15 {
        assert_eq!(world.add(part * 100 + 1..=part * 100 + 100, now - part).await, part * 100 + 100);
    }
}

async fn repeated_messages_are_counted_once(world: &World) {
    let now = now_ms();
    assert_eq!(world.add(1..=150, now).await, 150);
    assert_eq!(world.add(1..=150, now).await, 150);
    assert_eq!(world.add(120..=160, now).await, 160);
    // A late write of a former owner.
    assert_eq!(world.add(201..=210, now).await, 170);
    assert_eq!(world.add(161..=200, now).await, 210);
}

async fn s32_messages_of_other_times_are_left_out(world: &World) {
    let now = now_ms();
    assert_eq!(world.add(1..=99, now).await, 99);
    assert_eq!(world.add(100..=100, now + 61_000).await, 99, "the clock of a node is a minute ahead");
    assert_eq!(world.add(101..=5_000, now - 61_000).await, 99, "a backlog");
    assert_eq!(world.add(5_001..=5_001, now + 4_000).await, 100);
}

async fn s35_s36_messages_leave_the_window(world: &World) {
    let half = Duration::from_millis(500);
    let now = now_ms();
    world.add_within(half, update("tea", 1..=20, now)).await;
    let ahead = now + 3_000;
    world.add_within(half, update("tea", 21..=25, ahead)).await;
    world.falls_to(half, 5).await;
    assert!(now_ms() >= now + 500, "messages left the window early");
}

async fn count_that_falls_is_exact_again(world: &World) {
    let now = now_ms();
    assert_eq!(world.add(1..=900, now - 59_000).await, 900);
    assert_eq!(world.add(901..=1_200, now).await, 1_200);
    world.falls_to(WINDOW, 300).await;
    assert!(now_ms() >= now + 1_000, "messages left the window early");
    assert_eq!(world.add(1_150..=1_210, now).await, 310);
}

pub(crate) async fn windows_of_groups_are_separate(world: &World) {
    let now = now_ms();
    let updates = [update("a", 1..=3, now), update("b", 1..=2_000, now), update("c", 7..=7, now)];
    assert_eq!(world.scratch.mirror_windows(WINDOW, &updates).await.unwrap(), [3, 2_000, 1]);
}

/// Server, and what another system reads from it.
struct Reader {
    server: Server,
    scratch: RedisScratch,
}

impl Reader {
    fn start(version: Version, prefix: &str) -> Self {
        let server = Server::start(version);
        let scratch = RedisScratch::connect(&server.patient()).unwrap();
        let scratch = scratch.with_mirror(&server.patient(), prefix).unwrap();
        Self { server, scratch }
    }

    async fn add(&self, seqs: std::ops::RangeInclusive<u64>, received_ms: u64) -> u64 {
        let update = update("tea", seqs, received_ms);
        self.scratch.mirror_windows(WINDOW, &[update]).await.unwrap()[0]
    }

    fn members(&self, key: &str) -> usize {
        self.server.ask(&["ZCARD", key])
    }

    fn sum(&self, key: &str) -> u64 {
        let seconds: Vec<(String, u64)> = self.server.ask(&["HGETALL", key]);
        seconds.iter().filter(|(second, _)| second != "last").map(|(_, messages)| messages).sum()
    }

    fn assert_expires(&self, key: &str) {
        let left: u64 = self.server.ask(&["PTTL", key]);
        assert!((240_000..=300_000).contains(&left), "{key} expires in {left} ms");
    }
}

#[tokio::test]
async fn other_systems_read_the_window_from_redis() {
    for (prefix, [key, seconds]) in [("", KEYS), (OTHER_PREFIX, OTHER_KEYS)] {
        for version in [Version::V7, Version::V62] {
            let reader = Reader::start(version, prefix);
            let now = now_ms();
            reader.add(11..=13, now - 500).await;
            let members: Vec<(String, u64)> = reader.server.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"]);
            let expected = ["11", "12", "13"].map(|seq| (seq.to_owned(), now - 500));
            assert_eq!(members, expected);
            reader.assert_expires(key);
            assert_eq!(reader.add(14..=8_000, now).await, 7_990);
            assert_eq!((reader.members(key), reader.sum(seconds)), (MIRROR_MEMBERS_MAX, 7_990));
            reader.assert_expires(seconds);
            // Only the two keys of the group.
            assert_eq!(reader.server.ask::<u64>(&["DBSIZE"]), 2);
        }
    }
}

#[tokio::test]
async fn s33_mirror_continues_after_a_flush_of_scripts_and_of_data() {
    let reader = Reader::start(Version::V7, "");
    let now = now_ms();
    assert_eq!(reader.add(1..=120, now).await, 120);
    let _: String = reader.server.ask(&["SCRIPT", "FLUSH"]);
    assert_eq!(reader.add(121..=130, now).await, 130);
    let _: String = reader.server.ask(&["FLUSHALL"]);
    assert_eq!(reader.add(131..=140, now).await, 10, "a lost window counts what comes");
}
