//! Tests of the delivery to webhooks: by example, and in a model with crashes, two deliverers, poison, orders and a store that
//! falls back.

mod cursor;
mod failures;
mod feed;
mod orders;
mod receiver;
mod world;

use std::time::Duration;
use tidegate_protocol::{
    Time,
    id::ConversationId,
    machine::webhook::{
        WebhookBatch, WebhookCursor, WebhookDelivery, WebhookEvent, WebhookEventKind, WebhookItem,
        WebhookPage, WebhookSettings,
    },
};

use self::world::World;

/// Runs of the model.
const RUNS: u64 = 250;

const SETTINGS: WebhookSettings = WebhookSettings {
    parallel: 4,
    batch_max: 8,
    batch_wait: Duration::ZERO,
    aside_after: Duration::from_secs(24 * 3_600),
};

const fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn entry(conversation: &str, seq: u64) -> WebhookEvent {
    let conversation = ConversationId::parse(conversation).unwrap();
    WebhookEvent { conversation, seq, kind: WebhookEventKind::Message }
}

/// Returns a page with these events from the first number on.
fn page(events: &[WebhookEvent]) -> WebhookPage {
    let number = |(nth, event): (usize, &WebhookEvent)| WebhookItem {
        number: nth as u64 + 1,
        event: event.clone(),
        is_wanted: true,
    };
    let end = events.len() as u64;
    WebhookPage { after: 0, end, newest: end, items: events.iter().enumerate().map(number).collect() }
}

/// Returns a delivery of partition 0 that has read these events.
fn delivery(settings: WebhookSettings, events: &[WebhookEvent]) -> WebhookDelivery {
    let mut delivery = WebhookDelivery::new(settings, 7, 0);
    delivery.handle_owned(0, WebhookCursor::at(0, settings.parallel), at(0));
    delivery.handle_page(0, &page(events), at(0));
    delivery
}

fn sends(delivery: &mut WebhookDelivery, now: u64) -> Vec<WebhookBatch> {
    std::iter::from_fn(|| delivery.poll_send(at(now))).collect()
}

#[test]
fn s85_s86_events_arrive_in_order_and_none_is_lost_under_crashes_and_poison() {
    let first = crate::seed::seed().wrapping_mul(1_000_003);
    let mut aside = 0;
    for run in first..first + RUNS {
        let mut world = World::new(run);
        for _ in 0..600 {
            world.step();
        }
        world.heal();
        aside += world.aside();
    }
    assert!(aside > 0, "no run set an event aside");
}
