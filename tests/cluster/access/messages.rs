//! Messages of the admin API over two nodes: whichever node is asked, and however the other one ended. The erasure of a user
//! goes on over the same end.

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use super::{call, privacy};
use crate::support::{Cluster, text_of};

#[test]
fn messages_and_an_erasure_are_repeated_through_another_node_with_the_same_result() {
    let mut cluster = Cluster::start(2, &[]);
    let say = |cluster: &Cluster, nth: usize, id: &str, text: &str| {
        let body = json!({"to": "bob", "content": {"text": text}, "requestId": id});
        call(cluster, nth, "POST", "/v1/messages", &body)
    };
    let mut bob = cluster.login(1, Wire::WsText, "bob");
    let (status, sent) = say(&cluster, 0, "m-1", "hi");
    assert_eq!((status, &sent["seq"]), (201, &json!(1)), "{sent}");
    assert_eq!(text_of(&bob.expect_push()), "hi");
    let (status, again) = say(&cluster, 1, "m-1", "hi");
    let of = |body: &Value| ["conversation", "msgId", "seq", "time"].map(|name| body[name].clone());
    assert_eq!((status, &again["duplicate"], of(&again)), (200, &json!(true), of(&sent)));
    assert_eq!(say(&cluster, 1, "m-1", "another").0, 409);
    // Room messages reach members of other nodes.
    bob.ack("d:bob:system", 1);
    bob.expect_done(crate::support::ask::join("hall"));
    let body = json!({"to": "r:hall", "content": {"text": "goal"}});
    assert_eq!(call(&cluster, 0, "POST", "/v1/messages", &body).0, 202);
    assert_eq!(text_of(&bob.expect_push()), "goal");
    let batch = json!({"messages": (0..50).map(|n| {
        json!({"to": format!("u{}", n % 10), "content": {"text": "x"}, "requestId": format!("b{n}")})
    }).collect::<Vec<_>>()});
    let (status, first) = call(&cluster, 0, "POST", "/v1/messages/batch", &batch);
    assert_eq!((status, &first["failed"]), (200, &json!(0)), "{first}");
    let cursor = privacy::erase_a_part(&cluster);
    // A node that is killed takes nothing with it that it has answered.
    cluster.kill(0);
    cluster.all_owned();
    let (status, again) = call(&cluster, 1, "POST", "/v1/messages/batch", &batch);
    let results = |body: &Value| body["results"].as_array().cloned().expect("a list");
    assert_eq!((status, &again["failed"]), (200, &json!(0)), "{again}");
    for (again, first) in results(&again).iter().zip(results(&first)) {
        assert_eq!((&again["duplicate"], of(again)), (&json!(true), of(&first)));
    }
    privacy::erase_the_rest(&cluster, cursor);
}
