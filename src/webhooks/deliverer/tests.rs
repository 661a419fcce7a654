//! Tests of a deliverer over the store in memory, with a scripted receiver and a paused clock.

mod changes;
mod events;
mod topic;
pub(crate) mod world;

use std::time::Duration;

use tidegate_protocol::{
    id::ConversationId,
    machine::{
        ledger::{Head, Pruned, Recalled},
        webhook::{WebhookCursor, WebhookFailure},
    },
    record::{Body, Recall},
};

use self::world::{World, pass};
use super::*;
use crate::{
    cluster::OwnedFeed,
    log_limit::written,
    store::FeedStore as _,
    webhooks::{REQUEST_BYTES_MAX, WebhookStart},
};

#[tokio::test(start_paused = true)]
async fn events_of_a_conversation_arrive_in_order_with_what_the_store_has_then() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:b", "g:a", "g:a"]).await;
    let recall = world.row("g:a", |conversation| Body::Recall(Recall { conversation, seq: 3, by: None }));
    let recalled = Recalled { conversation: recall.0.clone(), seq: 3, by: (recall.1.seq, recall.1.time) };
    world.archive(vec![recall], |delta| delta.recalled.push(recalled)).await;
    world.start(&["tidegate.message.*"]);
    pass(1).await;
    let of_a: Vec<String> = world.script.ids().into_iter().filter(|id| id.starts_with("g:a/")).collect();
    assert_eq!(of_a, ["g:a/1", "g:a/2", "g:a/3", "g:a/4"]);
    let first = world.script.data("g:a/1");
    assert_eq!((first["seq"].as_u64(), first["sender"].as_str()), (Some(1), Some("ann")));
    assert_eq!((first["content"]["text"].as_str(), first["bytes"].as_u64()), (Some("hi"), Some(4)));
    let taken_back = world.script.data("g:a/3");
    assert_eq!((taken_back["gone"].as_str(), taken_back.get("content")), (Some("recalled"), None));
    assert_eq!(world.script.data("g:a/4")["of"].as_u64(), Some(3));
    assert_eq!(world.shown().behind, 0);
}

#[tokio::test(start_paused = true)]
async fn pruned_events_are_named_as_gone_and_the_pruning_follows() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    let conversation = ConversationId::parse("g:a").unwrap();
    let (offset, time) = (world.position.offset, world::BEGIN_MS);
    let head = Head { last_seq: 2, pruned_to: 2, ..Head::default() };
    world
        .archive(Vec::new(), |delta| {
            delta.heads = vec![(conversation.clone(), head)];
            delta.pruned.push(Pruned { conversation, up_to: 2, offset, time });
        })
        .await;
    world.start(&["tidegate.*"]);
    pass(1).await;
    assert_eq!(world.script.ids(), ["g:a/1", "g:a/2", "pruned/g:a/2"]);
    assert_eq!(world.script.data("g:a/2")["gone"].as_str(), Some("pruned"));
    assert_eq!(world.script.data("pruned/g:a/2")["upTo"].as_u64(), Some(2));
}

#[tokio::test(start_paused = true)]
async fn events_that_do_not_fit_into_a_request_come_with_the_next() {
    let mut world = World::new().await;
    let mut rows: Vec<_> = (0..4).map(|_| world.message("g:a")).collect();
    for (_, row) in &mut rows {
        let Body::Message(message) = &mut row.body else { panic!("a message") };
        message.content = vec![0; REQUEST_BYTES_MAX * 2 / 5].into();
    }
    world.archive(rows, |_| {}).await;
    world.start(&["tidegate.*"]);
    pass(1).await;
    let requests = world.script.requests.lock().clone();
    let ids: Vec<Vec<String>> = requests.into_iter().map(|(ids, _)| ids).collect();
    assert_eq!(ids, [["g:a/1", "g:a/2"], ["g:a/3", "g:a/4"]]);
}

#[tokio::test(start_paused = true)]
async fn unwanted_types_are_passed_without_a_request() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    world.start(&["tidegate.member.*"]);
    pass(20).await;
    assert!(world.script.requests.lock().is_empty());
    let cursors = world.store.cursors(&ConsumerName::new("crm").unwrap()).await.unwrap();
    assert_eq!(WebhookCursor::decode(cursors[0].bytes()).unwrap().lowest(), 2);
}

#[tokio::test(start_paused = true)]
async fn new_endpoint_gets_what_is_archived_after_its_start_also_if_it_crashes_before() {
    let mut world = World::new().await;
    world.messages(&["g:a"]).await;
    let plan = |world: &World| WebhookPlan { start: WebhookStart::Now, ..world.plan(&["tidegate.*"]) };
    world.start_with(plan(&world));
    pass(1).await;
    world.kill();
    world.messages(&["g:a"]).await;
    world.start_with(plan(&world));
    pass(1).await;
    assert_eq!(world.script.ids(), ["g:a/2"]);
}

#[tokio::test(start_paused = true)]
async fn killed_deliverer_repeats_at_most_what_it_had_not_saved() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    world.start(&["tidegate.*"]);
    pass(5).await;
    world.messages(&["g:a"]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    world.kill();
    world.take_over().await;
    world.believed = world.fence;
    world.start(&["tidegate.*"]);
    pass(5).await;
    assert_eq!(world.script.ids(), ["g:a/1", "g:a/2", "g:a/3", "g:a/3"]);
}

#[tokio::test(start_paused = true)]
async fn planned_hand_over_repeats_nothing() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    world.start(&["tidegate.*"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.own(true);
    tokio::time::sleep(Duration::from_millis(50)).await;
    world.kill();
    world.take_over().await;
    world.believed = world.fence;
    world.start(&["tidegate.*"]);
    pass(5).await;
    assert_eq!(world.script.ids(), ["g:a/1", "g:a/2"]);
}

#[tokio::test(start_paused = true)]
async fn former_owner_stops_when_its_cursor_is_refused() {
    let mut world = World::new().await;
    world.start(&["tidegate.*"]);
    pass(1).await;
    world.take_over().await;
    world.messages(&["g:a"]).await;
    pass(5).await;
    world.messages(&["g:b"]).await;
    pass(5).await;
    assert_eq!(world.script.ids(), ["g:a/1"], "only until its cursor was refused");
    world.believed = world.fence;
    world.own(false);
    pass(5).await;
    let mut ids = world.script.ids();
    ids.sort();
    assert_eq!(ids, ["g:a/1", "g:a/1", "g:b/1"], "the new owner begins at the saved cursor");
}

#[tokio::test(start_paused = true)]
async fn refused_event_delays_only_its_conversation() {
    let mut world = World::new().await;
    world.script.refuse("g:bad/1", WebhookOutcome::Refused(400));
    world.start(&["tidegate.*"]);
    world.messages(&["g:bad", "g:a", "g:bad", "g:b"]).await;
    for _ in 0..30 {
        world.messages(&["g:a", "g:b", "g:c"]).await;
        pass(2).await;
    }
    let ids = world.script.ids();
    assert!(ids.contains(&"g:a/31".to_owned()) && ids.contains(&"g:c/30".to_owned()));
    assert!(!ids.contains(&"g:bad/2".to_owned()) || ids.iter().any(|id| id == "g:bad/1"), "{ids:?}");
    assert_eq!((world.shown().parked, world.shown().aside), (1, 0));
    world.script.outcomes.lock().clear();
    pass(300).await;
    assert_eq!((world.shown().parked, world.shown().behind), (0, 0));
    assert_eq!(world.script.ids().last().map(String::as_str), Some("g:bad/2"));
}

/// Returns a world whose first events of three conversations all fail.
async fn failing_world() -> World {
    let mut world = World::new().await;
    for id in ["g:a/1", "g:b/1", "g:c/1"] {
        world.script.refuse(id, WebhookOutcome::Failed(WebhookFailure::Timeout));
    }
    world.start(&["tidegate.*"]);
    world.messages(&["g:a", "g:b", "g:c"]).await;
    world
}

#[tokio::test(start_paused = true)]
async fn receiver_that_is_down_is_probed_and_gets_everything_later() {
    let world = failing_world().await;
    pass(600).await;
    assert_eq!(world.shown().state, WebhookState::Failing);
    assert_eq!(world.shown().last_error.as_deref(), Some("refused"));
    let tries = world.script.requests.lock().len();
    assert!((5..60).contains(&tries), "{tries} requests in ten minutes");
    world.script.outcomes.lock().clear();
    pass(310).await;
    assert_eq!((world.shown().state, world.shown().behind), (WebhookState::Active, 0));
    assert_eq!(world.shown().last_error, None);
}

#[test]
fn log_line_of_an_endpoint_that_fails_says_why() {
    let log = written(tracing_subscriber::fmt::format(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let _world = failing_world().await;
            pass(60).await;
        });
    });
    let line = log.lines().find(|line| line.contains("webhook fails")).unwrap_or_default();
    assert!(line.contains("\"refused\"") && line.contains("\"crm\""), "{log}");
}
