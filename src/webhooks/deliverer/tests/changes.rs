//! Tests of what may change while a deliverer runs: its plan, its orders and its partitions; and of what it shares.

use std::sync::atomic::Ordering::SeqCst;

use tidegate_protocol::machine::webhook::WebhookEventKind;

use super::{
    world::{BEGIN_MS, PARTITION, TOPIC, pass_time},
    *,
};
use crate::{
    fault::{Fault, Rates},
    store::FeedCursor,
    webhooks::{WebhookAction, WebhookFilter, WebhookOrder, send_once, send_test},
};

fn replay(number: u64, start: WebhookStart) -> WebhookOrder {
    WebhookOrder { number, action: WebhookAction::Replay(start) }
}

#[tokio::test(start_paused = true)]
async fn new_plan_is_in_force_without_a_restart() {
    let mut world = World::new().await;
    world.start(&["tidegate.*"]);
    world.messages(&["g:a"]).await;
    pass(1).await;
    let other = Arc::new(world::Script::default());
    world.change(|plan| {
        plan.filter = WebhookFilter::new(&["*".to_owned()], &["g:b".to_owned()], &[]).unwrap();
        plan.with_content = false;
        plan.receiver = Arc::clone(&other) as _;
    });
    world.messages(&["g:a", "g:b"]).await;
    pass(1).await;
    assert_eq!((world.script.ids(), other.ids()), (vec!["g:a/1".to_owned()], vec!["g:b/1".to_owned()]));
    assert_eq!(other.data("g:b/1").get("content"), None);
    world.change(|plan| plan.is_paused = true);
    world.messages(&["g:c"]).await;
    pass(60).await;
    assert_eq!((world.shown().state, world.shown().behind), (WebhookState::Paused, 1));
    world.change(|_| {});
    pass(1).await;
    assert_eq!(world.script.ids(), ["g:a/1", "g:c/1"]);
}

#[tokio::test(start_paused = true)]
async fn replay_repeats_once_whatever_crashes() {
    let mut world = World::new().await;
    let orders = vec![replay(4, WebhookStart::Oldest)];
    world.start_with(WebhookPlan { orders: orders.clone(), ..world.plan(&["tidegate.*"]) });
    world.messages(&["g:a", "g:a"]).await;
    pass(5).await;
    assert_eq!(world.cursor().await.last_order, 4, "a new cursor begins with the newest order");
    assert_eq!(world.script.ids(), ["g:a/1", "g:a/2"]);
    let orders = [orders, vec![replay(9, WebhookStart::At(BEGIN_MS))]].concat();
    world.change(|plan| plan.orders = orders.clone());
    pass(5).await;
    assert_eq!(world.script.ids().len(), 4);
    for _ in 0..2 {
        world.kill();
        world.start_with(WebhookPlan { orders: orders.clone(), ..world.plan(&["tidegate.*"]) });
        pass(5).await;
    }
    assert_eq!((world.script.ids().len(), world.cursor().await.last_order), (4, 9));
}

#[tokio::test(start_paused = true)]
async fn order_whose_start_is_not_read_is_given_again() {
    let mut world = World::new().await;
    world.start(&["tidegate.*"]);
    world.messages(&["g:a"]).await;
    pass(5).await;
    world.faults.plan("feed_positions", Fault::Fail);
    world.change(|plan| plan.orders = vec![replay(1, WebhookStart::Oldest)]);
    pass(5).await;
    assert_eq!(world.script.ids(), ["g:a/1", "g:a/1"]);
}

#[tokio::test(start_paused = true)]
async fn start_at_a_time_finds_the_first_entry_of_it() {
    let mut world = World::new().await;
    for _ in 0..20 {
        world.messages(&["g:a"]).await;
    }
    // Each archive takes two offsets.
    for (second, first) in [(0, 1), (1, 2), (2, 2), (24, 13), (39, 21), (1_000, 21)] {
        let start = WebhookStart::At(BEGIN_MS + second * 1_000);
        let found = crate::webhooks::start::number_before(&*world.store, PARTITION, &start).await.unwrap();
        assert_eq!(found + 1, first, "after {second} s");
    }
    let (oldest, now) = (WebhookStart::Oldest, WebhookStart::Now);
    let number = async |start| crate::webhooks::start::number_before(&*world.store, PARTITION, &start).await;
    assert_eq!((number(oldest.clone()).await, number(now).await), (Ok(0), Ok(20)));
    let after = |partition: u32| WebhookStart::After(std::sync::Arc::new([(partition, 7)].into()));
    assert_eq!((number(after(PARTITION)).await, number(after(PARTITION + 1)).await), (Ok(7), Ok(0)));
    // With retention, the search begins at what is left.
    world.trim_before(BEGIN_MS + 10_000).await;
    assert_eq!((number(oldest).await, number(WebhookStart::At(0)).await), (Ok(5), Ok(5)));
}

#[tokio::test(start_paused = true)]
async fn events_that_the_feed_has_dropped_are_shown() {
    let mut world = World::new().await;
    for _ in 0..20 {
        world.messages(&["g:a"]).await;
    }
    let plan = WebhookPlan {
        start: WebhookStart::After(Arc::new([(PARTITION, 2)].into())),
        ..world.plan(&["tidegate.*"])
    };
    world.trim_before(BEGIN_MS + 10_000).await;
    world.start_with(plan);
    pass(5).await;
    let missing = world.shown().missing;
    let last = missing.last.map(|gap| (gap.partition, gap.first, gap.last));
    assert_eq!((missing.count, last), (3, Some((PARTITION, 3, 5))));
    assert_eq!(world.script.ids().first().map(String::as_str), Some("g:a/6"));
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_answered_410_is_disabled_after_a_restart_until_it_is_resumed() {
    let mut world = World::new().await;
    world.script.refuse("g:a/1", WebhookOutcome::Gone);
    world.start(&["tidegate.*"]);
    world.messages(&["g:a"]).await;
    pass(5).await;
    world.script.outcomes.lock().clear();
    assert!(world.cursor().await.is_disabled);
    world.kill();
    world.start(&["tidegate.*"]);
    pass(60).await;
    assert_eq!((world.shown().state, world.script.ids().len()), (WebhookState::Disabled, 1));
    world.change(|plan| plan.orders = vec![WebhookOrder { number: 1, action: WebhookAction::Resume }]);
    pass(5).await;
    assert_eq!((world.shown().state, world.script.ids().len()), (WebhookState::Active, 2));
}

#[tokio::test(start_paused = true)]
async fn partition_that_can_not_begin_keeps_no_other_from_it() {
    let mut world = World::new().await;
    world.messages(&["g:a"]).await;
    let others = [PARTITION + 1, PARTITION + 2];
    for partition in others {
        world.store.take_over(partition, world.fence, TOPIC).await.unwrap();
    }
    let damaged = FeedCursor::new(world.plan(&["*"]).consumer, others[1], "x".into()).unwrap();
    world.store.save_cursor(world.fence, &damaged).await.unwrap();
    // The lowest partition is another node's.
    let feed = |partition: u32| OwnedFeed {
        fence: if partition == PARTITION { world.believed } else { world.fence },
        archives: 0,
        is_leaving: false,
    };
    let feeds: OwnedFeeds = [PARTITION, others[0], others[1]].map(|it| (it, feed(it))).into();
    world.take_over().await;
    world.feeds.send_replace(feeds);
    world.start(&["tidegate.*"]);
    pass(5).await;
    let begun = world.store.cursors(&world.plan(&["*"]).consumer).await.unwrap();
    assert_eq!(begun.iter().map(FeedCursor::partition).collect::<Vec<_>>(), others);
    assert_eq!((world.shown().unreadable, world.script.ids().len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn first_cursor_is_durable() {
    let mut world = World::new().await;
    world.faults.plan("save_cursor_durably", Fault::Fail);
    world.start_with(WebhookPlan { start: WebhookStart::Now, ..world.plan(&["tidegate.*"]) });
    pass_time(Duration::from_millis(500)).await;
    assert!(world.store.cursors(&world.plan(&["*"]).consumer).await.unwrap().is_empty(), "tried again");
    pass(5).await;
    assert_eq!((world.faults.calls("save_cursor_durably"), world.faults.calls("save_cursor")), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn newest_numbers_are_read_for_all_endpoints_at_once_and_not_more_often_than_they_change() {
    let mut world = World::new().await;
    world.start(&["tidegate.*"]);
    world.start_other("second");
    world.start_other("third");
    pass(5).await;
    let before = world.faults.calls("feed_positions");
    pass(60).await;
    assert_eq!(world.faults.calls("feed_positions"), before, "nothing was archived");
    for _ in 0..200 {
        world.messages(&["g:a"]).await;
        pass_time(Duration::from_millis(1)).await;
    }
    pass(1).await;
    let reads = world.faults.calls("feed_positions") - before;
    assert!((5..=14).contains(&reads), "{reads} reads in 200 ms");
    assert_eq!(world.shown().behind, 0);
}

#[tokio::test]
async fn outcomes_are_handled_while_a_long_feed_is_read_and_archives_change_all_the_time() {
    let mut world = World::new().await;
    world.script.is_instant.store(true, SeqCst);
    world.messages(&["g:a", "g:a"]).await;
    for _ in 0..60 {
        world.messages(&["g:b"; 512]).await;
    }
    // Each call lets other tasks run.
    world.faults.set_rates(Rates { delay: 1_000, ..Rates::default() });
    let mut plan = world.plan(&["tidegate.*"]);
    plan.filter = WebhookFilter::new(&["*".to_owned()], &["g:a".to_owned()], &[]).unwrap();
    plan.delivery.batch_max = 1;
    world.start_with(plan);
    let (faults, script, feeds) = (world.faults.clone(), world.script.clone(), world.feeds.clone());
    let archiver = tokio::spawn(async move {
        while script.ids().len() < 2 && faults.calls("read_feed") < 60 {
            feeds.send_modify(|feeds| feeds.values_mut().for_each(|feed| feed.archives += 1));
            tokio::task::yield_now().await;
        }
    });
    archiver.await.unwrap();
    let reads = world.faults.calls("read_feed");
    // Otherwise all pages are read first.
    assert!(world.script.ids().len() >= 2, "{reads} reads before the second event");
}

#[tokio::test(start_paused = true)]
async fn without_batches_each_event_has_a_request() {
    let mut world = World::new().await;
    let mut plan = world.plan(&["tidegate.*"]);
    plan.delivery.batch_max = 1;
    world.start_with(plan);
    world.messages(&["g:a", "g:a", "g:a", "g:b"]).await;
    pass(5).await;
    let mut ids = world.script.ids();
    ids.sort();
    assert_eq!(ids, ["g:a/1", "g:a/2", "g:a/3", "g:b/1"]);
    assert_eq!(world.script.singles.load(SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn events_that_are_dropped_after_the_store_fell_back_count_again() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    let former = [world.store.save(), world.store.save()];
    let (position, seqs) = (world.position, world.seqs.clone());
    let start = WebhookStart::After(Arc::new([(PARTITION, 2)].into()));
    let mut plan = Some(WebhookPlan { start, ..world.plan(&["tidegate.*"]) });
    for (count, former) in [4, 8].into_iter().zip(former) {
        for _ in 0..20 {
            world.messages(&["g:a"]).await;
        }
        world.trim_before(BEGIN_MS + 10_000).await;
        if let Some(plan) = plan.take() {
            world.start_with(plan);
        }
        pass(5).await;
        assert_eq!(world.shown().missing.count, count);
        world.store.restore(former);
        (world.position, world.seqs) = (position, seqs.clone());
        world.own(false);
        pass(5).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deliverer_ahead_of_its_store_goes_on_with_what_comes_again() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a"]).await;
    let cursor = WebhookCursor::at(9, 2).encode();
    let cursor = FeedCursor::new(world.plan(&["*"]).consumer, PARTITION, cursor.into()).unwrap();
    world.store.save_cursor(world.fence, &cursor).await.unwrap();
    world.start(&["tidegate.*"]);
    pass(5).await;
    let reads = world.faults.calls("read_feed");
    assert!(reads <= 3, "{reads} reads");
    world.messages(&["g:a"]).await;
    pass(5).await;
    assert_eq!((world.script.ids(), world.shown().behind), (vec!["g:a/3".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn operator_sends_events_once_more_and_tests_the_receiver() {
    let mut world = World::new().await;
    world.messages(&["g:a", "g:a", "g:a"]).await;
    let conversation = ConversationId::parse("g:a").unwrap();
    let event = |seq| {
        let (conversation, kind) = (conversation.clone(), WebhookEventKind::Entry);
        tidegate_protocol::machine::webhook::WebhookEvent { conversation, seq, kind }
    };
    let mut plan = world.plan(&["tidegate.none"]);
    plan.delivery.batch_max = 1;
    let reply = send_once(&plan, &*world.store, &[event(3), event(1)], true).await;
    assert_eq!(reply.outcome, WebhookOutcome::Taken);
    assert_eq!(
        (world.script.ids(), world.script.resent.load(SeqCst)),
        (vec!["g:a/3".into(), "g:a/1".into()], 2)
    );
    world.script.refuse("g:a/2", WebhookOutcome::Refused(400));
    let refused = send_once(&plan, &*world.store, &[event(2), event(3)], true).await;
    assert_eq!((refused.outcome, world.script.ids().len()), (WebhookOutcome::Refused(400), 3));
    let none = send_once(&plan, &*world.store, &[event(9)], true).await;
    assert_eq!((none.outcome, none.status), (WebhookOutcome::Unsent, None));
    assert_eq!(send_test(&plan).await.outcome, WebhookOutcome::Taken);
    let id = world.script.ids().pop().unwrap();
    assert!(id.starts_with("test/crm/"), "{id}");
    assert_eq!(world.script.data(&id)["webhook"], "crm");
    assert_eq!(world.script.resent.load(SeqCst), 3);
}
