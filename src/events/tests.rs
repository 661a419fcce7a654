//! Events in isolation: encoding, followers, and the losses of a full queue.

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_protocol::id::{DeviceId, NodeId};

use super::*;
use crate::routes::NodeBoot;

fn token(node: &str, epoch: u64) -> Token {
    Token { at: NodeBoot { node: NodeId::new(node).unwrap(), boot: 0x1f }, epoch }
}

fn row(user: &str, token: Token) -> Route {
    Route { user: UserId::new(user).unwrap(), device: DeviceId::new("phone").unwrap(), token }
}

fn queued(events: &Events) -> Vec<String> {
    let id = |event: &Arc<Event>| {
        let encoded: Value = serde_json::from_slice(&events.encode(event)).unwrap();
        encoded["id"].as_str().unwrap().to_owned()
    };
    events.oldest(100).iter().map(id).collect()
}

#[test]
fn each_kind_encodes_as_a_cloudevent_with_its_token_as_id() {
    let events = Events::new("/tidegate/t", 1, 0);
    let encoded = |what| -> Value {
        serde_json::from_slice(&events.encode(&Event { at_ms: 1_763_712_000_123, what })).unwrap()
    };
    let attributes = |id: &str, kind: &str, data: Value| {
        json!({
            "specversion": "1.0", "id": id, "source": "/tidegate/t", "type": kind, "subject": "ann",
            "time": "2025-11-21T08:00:00.123Z", "datacontenttype": "application/json", "partitionkey": "ann", "data": data,
        })
    };
    let ann = row("ann", token("n1", 7));
    let mut data = json!({"user": "ann", "device": "phone", "node": "n1", "boot": "1f", "epoch": 7});
    assert_eq!(
        encoded(What::Offline(ann.clone())),
        attributes("offline/n1/1f/7", "tidegate.offline", data.clone())
    );
    assert_eq!(
        encoded(What::Online(ann.clone(), None)),
        attributes("online/n1/1f/7", "tidegate.online", data.clone())
    );
    data["replaced"] = json!({"node": "n2", "boot": "1f", "epoch": 6});
    assert_eq!(
        encoded(What::Online(ann.clone(), Some(token("n2", 6)))),
        attributes("online/n1/1f/7", "tidegate.online", data)
    );
    let place = ConversationId::parse("d:ann:bob").unwrap();
    let data = json!({"user": "ann", "conversation": "d:ann:bob", "seq": 9});
    assert_eq!(
        encoded(What::Read(ann.user.clone(), place, 9)),
        attributes("read/d:ann:bob/ann/9", "tidegate.read", data)
    );
    let data =
        json!({"user": "ann", "device": "phone", "node": "n1", "boot": "1f", "epoch": 7, "expected": "m2"});
    assert_eq!(
        encoded(What::OrderBlocked(ann, MsgId::new("m2").unwrap())),
        attributes("order-blocked/n1/1f/7/m2", "tidegate.order-blocked", data)
    );
}

#[test]
fn full_queue_counts_lost_events_and_an_offline_can_be_retried() {
    let events = Events::new("", 1, 3 * EVENT_BYTES);
    for n in 1..=5 {
        events.offline(&row("ann", token("n1", n)));
        events.offline(&row("ann", token("n1", n)));
    }
    assert_eq!(queued(&events), ["offline/n1/1f/1", "offline/n1/1f/2", "offline/n1/1f/3"]);
    let (_, lost, waiting) = events.counts();
    assert_eq!((lost, waiting), (4, 3 * EVENT_BYTES), "4 and 5, recorded twice each");
    events.confirm(2);
    events.offline(&row("ann", token("n1", 5)));
    events.offline(&row("ann", token("n1", 3)));
    assert_eq!(
        queued(&events),
        ["offline/n1/1f/3", "offline/n1/1f/5"],
        "5 is queued on the retry, 3 was queued already"
    );
}

#[test]
fn read_marks_are_coalesced_to_the_highest() {
    let events = Events::new("", 1, 1 << 20);
    let (ann, place) = (UserId::new("ann").unwrap(), ConversationId::parse("g:tea").unwrap());
    for seq in [1, 5, 3] {
        events.read(&ann, &place, seq);
    }
    assert_eq!(queued(&events), [""; 0]);
    events.tell_reads();
    events.tell_reads();
    assert_eq!(queued(&events), ["read/g:tea/ann/5"]);
}

#[tokio::test(start_paused = true)]
async fn follower_wakes_on_an_event_and_detects_another_run() {
    let events = Arc::new(Events::new("", 1, 0));
    let end = events.ring().end();
    let (waiting, patience) = (Arc::clone(&events), Duration::from_secs(10));
    let follower = tokio::spawn(async move { waiting.ring().wait(Some(end), 10, patience).await });
    tokio::task::yield_now().await;
    events.offline(&row("ann", token("n1", 1)));
    let page = follower.await.unwrap();
    assert_eq!((page.events.len(), page.missed), (1, false));
    let nothing = events.ring().wait(Some(page.cursor), 10, patience).await;
    assert_eq!((nothing.events.len(), nothing.missed, nothing.cursor), (0, false, page.cursor));
    let restarted = Events::new("", 2, 0);
    let page = restarted.ring().wait(Some(page.cursor), 10, patience).await;
    assert!(page.missed && page.events.is_empty());
    assert_eq!(page.cursor.to_string().parse(), Ok(page.cursor));
    assert_eq!("x".parse::<Cursor>(), Err(()));
}

proptest! {
    /// A follower that reads at intervals gets every event once and in order, except those reported as missed.
    #[test]
    fn follower_misses_nothing_unnoticed(steps in prop::collection::vec((0_u64..6, 1_usize..5), 1..40)) {
        let ring = Ring::new(7, 8 * EVENT_BYTES);
        let mut next = 0_u64;
        let mut cursor = ring.end();
        let mut expected = 0;
        for (count, max) in steps {
            for _ in 0..count {
                let what = What::Offline(row("ann", token("n1", next)));
                ring.push(Arc::new(Event { at_ms: 0, what }));
                next += 1;
            }
            let page = ring.page(Some(cursor), max);
            prop_assert!(page.events.len() <= max);
            prop_assert_eq!(page.missed, next - expected > 8, "the ring keeps eight");
            if page.missed {
                expected = next - 8;
            }
            for event in &page.events {
                let What::Offline(row) = &event.what else { panic!("nothing else was recorded") };
                prop_assert_eq!(row.token.epoch, expected);
                expected += 1;
            }
            cursor = page.cursor;
        }
    }
}
