//! Windows of rooms, which the script that numbers their messages counts.

use std::{num::NonZeroU64, time::Duration};

use tidegate::scratch::{Numbers, RedisNumbers, SharedWindow, WindowChange};
use tidegate_protocol::machine::storm::StormRule;

use super::{KEY, Version, WAIT_MAX, World, eventually_async, on};

const MINUTE: Duration = Duration::from_secs(60);

suite! {
    {
        redis_7 => super::on(super::Version::V7);
        redis_62 => super::on(super::Version::V62);
    }
    {
        storm_of_a_room_is_reported_by_the_node_with_the_message_above_the_threshold
        s31_messages_of_one_millisecond_are_all_counted
        messages_of_a_new_block_are_counted
        storm_of_a_room_ends_once
        change_that_no_node_has_acknowledged_is_returned_again
        window_is_found_where_the_numbers_are_not_used
        rollback_of_numbers_is_no_storm
    }
}

/// Sends messages without knowledge of a storm.
async fn send(node: &RedisNumbers, count: u64, rule: StormRule) -> (u64, SharedWindow) {
    let (numbers, window) = node.take_counted(KEY, NonZeroU64::new(count).unwrap(), rule, 0).await.unwrap();
    (*numbers.end(), window.expect("Redis counts"))
}

async fn storm_of_a_room_is_reported_by_the_node_with_the_message_above_the_threshold(world: &World) {
    let (one, two) = (world.node(), world.node());
    let rule = StormRule::new(100, MINUTE);
    for n in 1..=50 {
        let (_, first) = send(&one, 1, rule).await;
        let (_, second) = send(&two, 1, rule).await;
        assert_eq!((first.count, second.count), (2 * n - 1, 2 * n));
        assert_eq!((first.storm, second.storm), (None, None), "{n}");
    }
    let (last, window) = send(&one, 3, rule).await;
    assert_eq!((window.count, window.change), (103, Some(WindowChange::Started)));
    let storm = window.storm.unwrap();
    assert_eq!((storm.seq, storm.peak, storm.is_cooling), (last - 2, 103, false), "the 101st message");
    let (_, window) = send(&two, 1, rule).await;
    assert_eq!((window.count, window.change, window.storm.unwrap().seq), (104, None, storm.seq));
    assert_eq!(world.node().window(KEY, rule, 0).await.unwrap().unwrap().count, 104, "of any node");
}

async fn s31_messages_of_one_millisecond_are_all_counted(world: &World) {
    let node = world.node();
    let (last, window) = send(&node, 10_000, StormRule::new(9_999, MINUTE)).await;
    assert_eq!((window.count, window.change), (10_000, Some(WindowChange::Started)));
    assert_eq!(window.storm.unwrap().seq, last);
}

async fn messages_of_a_new_block_are_counted(world: &World) {
    let node = world.node();
    let rule = StormRule::new(1_000, MINUTE);
    // Blocks have 100 numbers, so that most of these reserve one.
    for n in 1..=10 {
        assert_eq!(send(&node, 70, rule).await.1.count, 70 * n);
    }
}

async fn storm_of_a_room_ends_once(world: &World) {
    let (one, two) = (world.node(), world.node());
    let rule = StormRule::new(4, Duration::from_millis(320));
    let (_, window) = send(&one, 5, rule).await;
    assert_eq!(window.change, Some(WindowChange::Started));
    let seq = window.storm.unwrap().seq;
    let over = async || {
        let window = one.window(KEY, rule, seq).await.unwrap().unwrap();
        (window.change == Some(WindowChange::Ended)).then_some(window)
    };
    let window = eventually_async(WAIT_MAX, "the storm is over", over).await;
    assert_eq!(window.storm.unwrap().seq, seq);
    let other = two.window(KEY, rule, 0).await.unwrap().unwrap();
    assert_eq!((other.storm, other.change), (None, None), "the other node reports nothing");
    assert_eq!(one.window(KEY, rule, seq).await.unwrap().unwrap().storm, None, "acknowledged");
    assert_eq!(send(&two, 5, rule).await.1.change, Some(WindowChange::Started), "another storm");
}

/// A reply that was lost is given again two seconds later, to any node, until one has it.
async fn change_that_no_node_has_acknowledged_is_returned_again(world: &World) {
    let (one, two) = (world.node(), world.node());
    let rule = StormRule::new(4, MINUTE);
    let (_, window) = send(&one, 5, rule).await;
    let seq = window.storm.unwrap().seq;
    assert_eq!(send(&one, 1, rule).await.1.change, None, "not at once");
    let again = async || two.window(KEY, rule, 0).await.unwrap().unwrap().change;
    let change = eventually_async(WAIT_MAX, "it is returned again", again).await;
    assert_eq!(change, WindowChange::Started);
    two.window(KEY, rule, seq).await.unwrap();
    tokio::time::timeout(Duration::from_millis(2_100), std::future::pending::<()>()).await.ok();
    assert_eq!(one.window(KEY, rule, 0).await.unwrap().unwrap().change, None, "it is acknowledged");
}

/// A node whose epoch or numbers are newer than those in Redis issues none of them, and still sees the storm.
async fn window_is_found_where_the_numbers_are_not_used(world: &World) {
    let (one, two) = (world.node(), world.node());
    let rule = StormRule::new(4, MINUTE);
    send(&one, 5, rule).await;
    two.changed().await.unwrap();
    let window = two.window(KEY, rule, 0).await.unwrap().expect("a window");
    assert_eq!((window.count, window.storm.is_some()), (5, true));
}

/// The window is lost with the numbers, and counts from then on.
async fn rollback_of_numbers_is_no_storm(world: &World) {
    let node = world.node();
    let rule = StormRule::new(20, MINUTE);
    assert_eq!(send(&node, 20, rule).await.1.count, 20);
    let _: String = world.server.ask(&["FLUSHALL"]);
    assert_eq!(node.window(KEY, rule, 0).await.unwrap(), None);
    let (_, window) = send(&node, 20, rule).await;
    assert_eq!((window.count, window.change), (20, None));
}
