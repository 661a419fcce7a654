//! Stories of failures: of the receiver, a node, the routes, the store and the owner. None costs a notice.

use std::{collections::BTreeSet, time::Duration};

use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{WebhookEvent, WebhookEventKind, WebhookFailure, WebhookOutcome},
};

use super::*;
use crate::{
    cluster::OwnedFeeds,
    fault::{Fault, Rates},
    store::{ConsumerName, FeedCursor, FeedStore as _},
    waiting::read_each,
    webhooks::{
        REQUEST_BYTES_MAX,
        delivery_world::{PARTITION, pass_time},
    },
};

#[tokio::test(start_paused = true)]
async fn receiver_that_was_down_for_an_hour_gets_one_notice_for_each_conversation_that_is_unread() {
    let mut world = Notices::start(form()).await;
    for key in ["d:ann:bob", "d:ann:cat", "d:ann:dan"] {
        for seq in 1..=20 {
            let id = format!("waiting/{}/{key}/{seq}", &key[6..]);
            world.world.script.refuse(&id, WebhookOutcome::Failed(WebhookFailure::Timeout));
        }
    }
    for minute in 0..60 {
        if minute % 3 == 0 {
            for key in ["d:ann:bob", "d:ann:cat", "d:ann:dan"] {
                world.text(key).await;
            }
        }
        pass(60).await;
    }
    let tries = world.world.script.requests.lock().len();
    assert!((10..80).contains(&tries), "{tries} requests in an hour");
    world.read("cat", "d:ann:cat", 20).await;
    world.world.script.requests.lock().clear();
    world.world.script.outcomes.lock().clear();
    pass(900).await;
    assert_eq!(world.sent_sorted(), ["bob d:ann:bob/20 20", "dan d:ann:dan/20 20"]);
}

#[tokio::test(start_paused = true)]
async fn owner_that_crashes_while_the_receiver_is_down_loses_no_notice_and_floods_nobody() {
    let mut world = Notices::start(form()).await;
    for seq in 1..=40 {
        let id = format!("waiting/bob/d:ann:bob/{seq}");
        world.world.script.refuse(&id, WebhookOutcome::Refused(400));
    }
    for _ in 0..40 {
        world.text("d:ann:bob").await;
        pass(10).await;
    }
    world.kill();
    world.world.script.requests.lock().clear();
    world.world.script.outcomes.lock().clear();
    world.run();
    pass(60).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/40 40"]);
    world.kill();
    world.run();
    pass(60).await;
    assert_eq!(world.sent().len(), 1, "what was taken is saved");
}

#[tokio::test(start_paused = true)]
async fn former_owner_stops_and_the_next_one_goes_on() {
    let mut world = Notices::start(form()).await;
    world.text("d:ann:bob").await;
    pass(10).await;
    world.world.take_over().await;
    world.text("d:ann:cat").await;
    pass(10).await;
    world.text("d:ann:dan").await;
    pass(10).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1", "cat d:ann:cat/1 1"], "until its cursor is refused");
    world.world.believed = world.world.fence;
    world.world.own(false);
    pass(10).await;
    assert_eq!(
        world.sent_sorted(),
        ["bob d:ann:bob/1 1", "cat d:ann:cat/1 1", "cat d:ann:cat/1 1", "dan d:ann:dan/1 1"]
    );
}

#[tokio::test(start_paused = true)]
async fn node_that_does_not_answer_costs_a_notice_too_many() {
    let mut world = Notices::start(form()).await;
    world.text("d:ann:bob").await;
    world.connect("bob", None).await;
    pass(7).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1"]);
    assert_eq!(world.last()["devices"], json!([{"device": "phone", "seen": "unknown"}]));
}

#[tokio::test(start_paused = true)]
async fn store_that_fails_delays_notices_and_loses_none() {
    let mut world = Notices::start(form()).await;
    world.world.faults.set_rates(Rates { fail: 300, lose_answer: 100, ..Rates::default() });
    for _ in 0..20 {
        world.text("d:ann:bob").await;
        world.text("d:ann:cat").await;
        pass(5).await;
    }
    world.world.faults.set_rates(Rates::default());
    pass(60).await;
    let sent = world.sent();
    let newest = |user: &str| sent.iter().rfind(|it| it.starts_with(user)).cloned().unwrap_or_default();
    assert!(newest("bob").starts_with("bob d:ann:bob/20") && newest("cat").starts_with("cat d:ann:cat/20"));
    assert!(sent.len() <= 12, "{sent:?}");
    world.world.faults.plan("save_cursor", Fault::Fail);
    world.text("d:ann:dan").await;
    pass(10).await;
    assert_eq!(world.last()["user"], json!("dan"));
}

#[tokio::test(start_paused = true)]
async fn store_that_lacks_the_newest_message_of_a_conversation_costs_no_notice() {
    let mut world = Notices::start(form()).await;
    world.text("d:ann:bob").await;
    world.read("bob", "d:ann:bob", 1).await;
    world.text("d:ann:bob").await;
    world.fall_back("d:ann:bob", 1).await;
    pass(20).await;
    assert_eq!(world.sent(), [""; 0]);
    world.fall_back("d:ann:bob", 2).await;
    pass(5).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/2 2"]);
}

#[tokio::test(start_paused = true)]
async fn partition_that_is_lost_after_it_could_not_begin_leaves_the_task_asleep() {
    let mut world = Notices::start(form()).await;
    world.kill();
    world.world.faults.plan("cursors", Fault::Fail);
    world.run();
    pass_time(Duration::from_millis(100)).await;
    world.world.feeds.send_replace(OwnedFeeds::new());
    // On the paused clock, a task that never sleeps stops the time.
    pass(5).await;
    world.world.own(false);
    world.text("d:ann:bob").await;
    pass(10).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1"]);
}

#[tokio::test(start_paused = true)]
async fn notices_that_failed_together_are_tried_few_at_a_time() {
    let mut world = Notices::start(form()).await;
    for n in 0..20 {
        let key = format!("d:ann:u{n}");
        let failure = WebhookOutcome::Failed(WebhookFailure::Timeout);
        world.world.script.refuse(&format!("waiting/u{n}/{key}/1"), failure);
        world.text(&key).await;
    }
    world.text("d:ann:bob").await;
    pass(5).await;
    let alone = |world: &Notices| {
        let requests = world.world.script.requests.lock();
        requests.iter().filter(|(ids, _)| ids.len() == 1).count()
    };
    for _ in 0..60 {
        let before = alone(&world);
        pass(1).await;
        assert!(alone(&world) - before <= 4, "{} and {before}", alone(&world));
    }
    world.world.script.requests.lock().clear();
    world.world.script.outcomes.lock().clear();
    pass(900).await;
    let sent: BTreeSet<String> = world.sent().into_iter().filter(|it| it.starts_with('u')).collect();
    assert_eq!(sent.len(), 20, "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn receiver_that_asks_to_wait_is_left_alone_and_gets_all_together_afterwards() {
    let mut world = Notices::start(form()).await;
    let busy = WebhookOutcome::Busy(Duration::from_secs(120));
    for user in ["bob", "cat", "dan"] {
        world.world.script.refuse(&format!("waiting/{user}/d:ann:{user}/1"), busy);
        world.text(&format!("d:ann:{user}")).await;
    }
    pass(10).await;
    assert_eq!(world.world.script.requests.lock().len(), 1);
    world.world.script.requests.lock().clear();
    world.world.script.outcomes.lock().clear();
    pass(100).await;
    assert_eq!(world.sent(), [""; 0], "it asked for 120 s");
    pass(20).await;
    let requests = world.world.script.requests.lock().clone();
    assert_eq!(requests.iter().map(|(ids, attempt)| (ids.len(), *attempt)).collect::<Vec<_>>(), [(3, 1)]);
}

#[tokio::test(start_paused = true)]
async fn notice_that_is_refused_delays_no_other_and_is_set_aside_in_the_end() {
    let mut world = Notices::start(form()).await;
    world.world.script.refuse("waiting/bob/d:ann:bob/1", WebhookOutcome::Refused(400));
    world.text("d:ann:bob").await;
    // Nothing else is sent meanwhile, so that nothing succeeds.
    pass(300).await;
    assert_eq!((world.status.borrow().waiting, world.status.borrow().apart), (1, 1));
    assert_eq!(world.status.borrow().last_error.as_deref(), Some("refused"));
    for n in 0..10 {
        let key = format!("d:ann:u{n}");
        world.text(&key).await;
        pass(12).await;
        assert!(world.sent().contains(&format!("u{n} {key}/1 1")), "{n}");
        pass(78).await;
    }
    let status = world.status.borrow().clone();
    assert_eq!((status.waiting, status.apart, status.aside_count), (0, 0, 1), "{status:?}");
    let aside: Vec<_> = status.aside.iter().map(|it| (it.user.as_str(), it.seq)).collect();
    assert_eq!(aside, [("bob", 1)]);
}

#[tokio::test(start_paused = true)]
async fn partition_whose_cursor_is_unreadable_is_shown() {
    let mut world = Notices::start(form()).await;
    pass(1).await;
    assert_eq!(world.status.borrow().unreadable, 0);
    world.kill();
    let damaged = FeedCursor::new(ConsumerName::new("n.crm").unwrap(), PARTITION, b"x"[..].into()).unwrap();
    world.world.store.save_cursor(world.world.fence, &damaged).await.unwrap();
    world.run();
    world.text("d:ann:bob").await;
    pass(10).await;
    assert_eq!((world.status.borrow().unreadable, world.sent()), (1, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn contents_are_held_for_a_part_of_the_messages_at_a_time() {
    let mut world = Notices::start(form()).await;
    for _ in 0..4 {
        world.say("g:a", "ann", |it| it.content = vec![0; REQUEST_BYTES_MAX * 2 / 5].into()).await;
    }
    let conversation = ConversationId::parse("g:a").unwrap();
    let event =
        |seq| WebhookEvent { conversation: conversation.clone(), seq, kind: WebhookEventKind::Message };
    let events: Vec<_> = (1..=4).map(event).collect();
    let (store, faults, mut places) = (world.world.faulty(), &world.world.faults, Vec::new());
    let read = read_each(&*store, &events, |n, _| {
        // The next read fails: what was taken came before it.
        faults.plan("rows_at", Fault::Fail);
        places.push(n);
    });
    assert!(read.await.is_err());
    assert_eq!(places, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn answer_410_stops_notices_until_the_endpoint_is_resumed() {
    let mut world = Notices::start(form()).await;
    world.world.script.refuse("waiting/bob/d:ann:bob/1", WebhookOutcome::Gone);
    world.text("d:ann:bob").await;
    pass(10).await;
    world.world.script.outcomes.lock().clear();
    pass(600).await;
    assert_eq!(world.sent().len(), 1);
    world.change(|plan| plan.waiting.as_mut().unwrap().resumed = 1);
    pass(5).await;
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1"; 2]);
}

#[tokio::test(start_paused = true)]
async fn badge_that_takes_too_long_is_left_out() {
    let mut world = Notices::start(WaitingForm { badge: true, ..form() }).await;
    world.text("d:ann:bob").await;
    let gate = crate::fault::Gate::new();
    world.world.faults.plan("memberships_of", Fault::Hold(gate));
    pass(10).await;
    assert_eq!(world.last().get("badge"), None);
    assert_eq!(world.sent(), ["bob d:ann:bob/1 1"]);
}
