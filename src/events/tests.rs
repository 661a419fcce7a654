//! Events in isolation: encoding, followers, and the losses of a full queue.

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_protocol::{
    Time,
    id::{DeviceId, NodeId},
    machine::storm::{StormEvent, StormId, StormMessage, StormReport, StormRule, StormWatch},
};

use super::*;
use crate::{
    evidence::{EvidenceKind, EvidenceRow, EvidenceSource, ScoreScope},
    routes::NodeBoot,
};

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
fn storm_is_an_event_of_its_conversation() {
    let events = Events::new("/tidegate/t", 1, 1 << 20);
    let (tea, rule) = (ConversationId::parse("g:tea").unwrap(), StormRule::new(1, Duration::from_secs(60)));
    let mut watch = StormWatch::default();
    let message = |seq| StormMessage { seq, received_ms: 1_763_712_000_000, decided_at: Time::ZERO };
    let started = (8..10).find_map(|seq| watch.handle_message(&rule, message(seq)));
    let Some(StormEvent::Started(report)) = started else { panic!("{started:?}") };
    let notice = |report, profile| {
        let id = StormId { conversation: tea.clone(), seq: 9 };
        events.storm(StormNotice { id, rule, report, profile });
    };
    notice(report, None);
    notice(StormReport { count: 0, ..report }, watch.profile().cloned());
    assert_eq!(queued(&events), ["storm/g:tea/9/storm", "storm/g:tea/9/over"]);
    let encoded = |event: &Arc<Event>| -> Value { serde_json::from_slice(&events.encode(event)).unwrap() };
    let [start, over]: [Value; 2] =
        events.oldest(2).iter().map(encoded).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(
        [&start["type"], &start["subject"], &start["partitionkey"]],
        ["tidegate.storm", "g:tea", "g:tea"]
    );
    let mut data = json!({
        "conversation": "g:tea", "id": "g:tea/9", "state": "storm", "count": 2, "peak": 2, "threshold": 1,
        "windowMs": 60_000, "sinceMs": 1_763_712_000_000_u64,
    });
    assert_eq!(start["data"], data);
    (data["state"], data["count"]) = ("over".into(), 0.into());
    let mut counts = vec![0; 60];
    counts.push(2);
    data["profile"] = json!({"startMs": 1_763_711_940_000_u64, "partMs": 1_000, "counts": counts});
    assert_eq!(over["data"], data);
}

#[test]
fn security_events_of_a_second_are_one_event_of_their_node() {
    let events = Events::new("/tidegate/t", 1, 1 << 20);
    let source = EvidenceSource { address: Some([192, 0, 2, 7].into()), ..EvidenceSource::default() };
    let row = EvidenceRow {
        at_ms: 1_763_712_000_000,
        kind: EvidenceKind::TokenForged,
        source,
        count: 3,
        scope: ScoreScope::All,
    };
    events.security(SecurityNotice { node: "n1".into(), number: (31, 2), rows: vec![row], dropped: 4 });
    assert_eq!(queued(&events), ["security/n1/1f/2"]);
    let encoded: Value = serde_json::from_slice(&events.encode(&events.oldest(1)[0])).unwrap();
    assert_eq!([&encoded["type"], &encoded["subject"]], ["tidegate.security", "n1"]);
    let row = json!({"time": "2025-11-21T08:00:00.000Z", "kind": "token_forged", "count": 3, "address": "192.0.2.7"});
    assert_eq!(encoded["data"], json!({"node": "n1", "events": [row], "dropped": 4}));
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

#[test]
fn node_publishes_the_return_of_a_run_that_it_reported_as_lapsed() {
    let run = |name: &str| NodeBoot { node: NodeId::new(name).unwrap(), boot: 1 };
    let (me, other) = (run("n1"), run("n2"));
    let events = Events::new("", 1, 1 << 20);
    let published = |change: NodeChange| {
        events.node(&me, change);
        let kinds = events.oldest(9).iter().filter_map(|event| event.node_kind()).collect::<Vec<_>>();
        events.confirm(9);
        kinds
    };
    assert_eq!(published(NodeChange::Joined(other.clone())), [""; 0], "it reports that itself");
    assert_eq!(published(NodeChange::Lapsed(other.clone())), ["tidegate.node.lapsed"]);
    assert_eq!(published(NodeChange::Returned(other)), ["tidegate.node.joined"]);
    assert_eq!(published(NodeChange::Joined(me.clone())), ["tidegate.node.joined"]);
}

#[test]
fn ring_and_queue_are_bounded_in_bytes() {
    let notice = |number| {
        let source = EvidenceSource::of_address([192, 0, 2, 7].into());
        let row =
            EvidenceRow { at_ms: 0, kind: EvidenceKind::Probe, source, count: 1, scope: ScoreScope::All };
        SecurityNotice { node: "n1".into(), number: (1, number), rows: vec![row; 256], dropped: 0 }
    };
    let bytes = Event { at_ms: 0, what: What::Security(Arc::new(notice(0))) }.bytes();
    let events = Events::new("", 1, 3 * bytes);
    (0..(2 * RING_BYTES / bytes) as u64).for_each(|number| events.security(notice(number)));
    let kept = events.ring().page(None, usize::MAX).events.len();
    assert_eq!((kept, events.oldest(9).len()), (RING_BYTES / bytes, 3));
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
