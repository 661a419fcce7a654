//! Suspensions: by the admin API, on all nodes, and of devices that block their chains again and again.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};
use tidegate::{
    bans::BanRecord,
    scratch::{ClockNumbers, Numbers},
    store::GuardKind,
};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    mesh::Mesh,
    support::{Client, ServerBody, TestNode, ask, eventually, send, text_of},
};

/// Sends a message, and returns its refusal; `None` if it is accepted.
fn refused(client: &mut Client, msg_id: &str) -> Option<pb::Error> {
    let id = client.say(ask::send(send("bob", msg_id, msg_id)));
    match client.reply(id) {
        ServerBody::SendAck(_) => None,
        ServerBody::Error(error) => Some(error),
        other => panic!("{other:?}"),
    }
}

#[test]
fn suspended_device_stays_connected_and_sends_again_once_it_is_lifted() {
    let node = TestNode::start(|_| {});
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    let (mut phone, mut desk) =
        (node.login(Wire::Tcp, "ann", "phone"), node.login(Wire::WsText, "ann", "desk"));
    let post = |subject: &str, ttl_ms: u64| {
        let body = json!({"subject": subject, "reason": "spam", "ttlMs": ttl_ms});
        node.admin("POST", "/v1/suspensions", &body)
    };
    let (status, answer) = post("device:ann/phone", 40_000);
    assert_eq!((status, &answer["inForce"]), (200, &json!(true)), "{answer}");
    let error = refused(&mut phone, "m1").expect("it is suspended");
    assert_eq!((error.name.as_str(), error.temporary), ("SUSPENDED", true));
    assert!((30_000..=40_000).contains(&error.retry_after_ms), "{error:?}");
    let id = phone.say(ask::signal("bob", "typing", ""));
    assert_eq!(phone.expect_error(id), Code::Suspended, "its signals stay out, too");
    assert_eq!(refused(&mut desk, "m2"), None, "another device");
    bob.text("ann", "b1", "hi");
    assert_eq!(text_of(&phone.expect_push()), "m2", "it receives");
    post("user:ann", 3_000_000);
    let error = refused(&mut desk, "m3").expect("the user is suspended");
    assert_eq!(error.retry_after_ms, 60_000, "it may be lifted before");
    assert!(node.metric("tidegate_suspended_sends_total").is_some_and(|count| count >= 2.0));

    let (_, list) = node.admin("GET", "/v1/suspensions?limit=1", &Value::Null);
    assert_eq!((&list["suspensions"][0]["subject"], &list["next"]), (&json!("user:ann"), &json!("user:ann")));
    let (_, view) = node.admin("GET", "/v1/subjects/device:ann%2Fphone", &Value::Null);
    assert_eq!(view["suspensions"].as_array().map(Vec::len), Some(2), "{view}");
    let lift = |path: &str| node.admin("DELETE", path, &Value::Null).1["removed"].clone();
    assert_eq!(lift("/v1/suspensions/user:ann"), true);
    assert_eq!(lift("/v1/suspensions/device:ann%2Fphone"), true);
    assert_eq!((refused(&mut phone, "m1"), refused(&mut desk, "m3")), (None, None));
    assert_eq!(post("network:192.0.2.1", 1_000).1["name"], "BAD_ID");
    assert_eq!(post("user:ann", 999).0, 400);
}

#[test]
fn suspension_is_in_force_on_all_nodes_and_ends_by_itself() {
    let numbers: Arc<dyn Numbers> = Arc::new(ClockNumbers::new(|| 1));
    let mesh = Mesh::start(2, &numbers);
    let mut clients = [0, 1].map(|nth| mesh.login(nth, Wire::Tcp, "ann", &format!("d{nth}")));
    let put = |until_ms| {
        let value = Bytes::from(BanRecord::default().encoded());
        mesh.put_entry(0, (GuardKind::Suspend, "user:ann"), value, Some(until_ms));
    };
    let (begun, mut n) = (Instant::now(), 0);
    put(mesh.node(0).cluster().guard.now_ms() + 3_000);
    for client in &mut clients {
        eventually("it is refused", || {
            n += 1;
            refused(client, &format!("m{n}"))
                .filter(|error| error.code == u32::from(Code::Suspended.number()))
        });
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    put(mesh.node(0).cluster().guard.now_ms() + 100);
    eventually("it may send again", || refused(&mut clients[0], "last").is_none().then_some(()));
}

#[test]
fn device_that_blocks_its_chain_three_times_is_suspended_for_a_minute() {
    let node = TestNode::start(|config| {
        config.timing.order_timeout_ms = 100;
        config.evidence.loopback = true;
    });
    let mut ann = node.login_chained(Wire::Tcp, "ann", "phone", "a");
    for (msg_id, next_id) in [("b", "c"), ("d", "e"), ("f", "g")] {
        let link = pb::Send { next_id: next_id.into(), ..send("bob", msg_id, msg_id) };
        let id = ann.say(ask::send(link));
        assert_eq!(ann.expect_notice().kind(), pb::NoticeKind::OrderBlocked);
        assert_eq!(ann.expect_notice().kind(), pb::NoticeKind::OrderSkipped);
        // The suspension may be in force before the third one is sent on.
        match ann.reply(id) {
            ServerBody::SendAck(_) => {}
            ServerBody::Error(error) if msg_id == "f" && error.name == "SUSPENDED" => {}
            other => panic!("{other:?}"),
        }
    }
    let mut n = 0;
    eventually("it is suspended", || {
        n += 1;
        refused(&mut ann, &format!("m{n}")).filter(|error| error.name == "SUSPENDED")
    });
    let (_, list) = node.admin("GET", "/v1/suspensions", &Value::Null);
    let row = &list["suspensions"][0];
    assert_eq!((&row["subject"], &row["by"]), (&json!("device:ann/phone"), &json!("automatic")), "{list}");
    let length = row["untilMs"].as_u64().zip(row["sinceMs"].as_u64()).map(|(until, since)| until - since);
    assert_eq!(length, Some(60_000));
    let mut desk = node.login(Wire::Tcp, "ann", "desk");
    assert_eq!(refused(&mut desk, "m1000"), None, "another device");
}
