//! The admin port's view of the nodes and of the users' routes.

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::support::{Stopwatch, TestNode, eventually};

#[test]
fn single_node_lists_itself() {
    let node = TestNode::start(|config| config.node.id = "harbour".into());
    let (status, said) = node.admin("GET", "/v1/nodes", &Value::Null);
    assert_eq!((status, &said["stale"], &said["partitions"]), (200, &json!(false), &json!(1)));
    let all = said["nodes"].as_array().expect("a list");
    assert_eq!(all.len(), 1);
    let one = &all[0];
    assert_eq!(
        (&one["node"], &one["state"], &one["lease"], &one["self"]),
        (&json!("harbour"), &json!("ready"), &json!("live"), &json!(true))
    );
    assert_eq!(one["clients"], json!([node.address().to_string()]));
    assert!(one["beat"].as_u64() >= Some(1) && one["capacity"].as_u64() > Some(0));
    assert_eq!(said["archiveBehind"], json!([]), "its log keeps unarchived records");
    assert_eq!(one.get("nodeTopic"), Some(&Value::Null), "a single node has no topic");
}

#[test]
fn owner_reports_its_position_in_the_log() {
    let node = TestNode::start(|_| {});
    let stand = || node.admin("GET", "/v1/nodes", &Value::Null).1["nodes"][0]["stands"][0].clone();
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let before = stand()["position"].as_u64().unwrap_or(0);
    for n in 1..=3 {
        ann.text("bob", &format!("m{n}"), "hi");
    }
    eventually("three records more are archived, and none waits", || {
        let now = stand();
        let done = now["position"].as_u64() >= Some(before + 3);
        (done && now["end"] == now["position"] && now["behindMs"] == 0).then_some(())
    });
}

#[test]
fn user_is_listed_where_its_devices_are() {
    let node = TestNode::start(|_| {});
    let routes = |user: &str| {
        let (status, said) = node.admin("GET", &format!("/v1/users/{user}/routes"), &Value::Null);
        assert_eq!(status, 200, "{said}");
        said["routes"].as_array().expect("a list").clone()
    };
    assert_eq!(routes("bob"), [] as [Value; 0]);
    let phone = node.login(Wire::Tcp, "bob", "phone");
    let _laptop = node.login(Wire::JsonLine, "bob", "laptop");
    let mut devices: Vec<String> = routes("bob")
        .iter()
        .map(|row| {
            assert_eq!((&row["node"], &row["lease"]), (&json!("n1"), &json!("live")));
            row["device"].as_str().expect("a name").to_owned()
        })
        .collect();
    devices.sort();
    assert_eq!(devices, ["laptop", "phone"]);
    drop(phone);
    eventually("the row of a closed device is removed", || (routes("bob").len() == 1).then_some(()));
    let (status, said) = node.admin("GET", "/v1/users/no%20id/routes", &Value::Null);
    assert_eq!((status, &said["name"]), (400, &json!("BAD_ID")));
}

#[test]
fn drain_is_announced_before_the_next_renewal() {
    let node = TestNode::start(|config| config.drain.lb_delay_ms = 60_000);
    let _stays = node.login(Wire::Tcp, "ann", "phone");
    let state = || node.admin("GET", "/v1/nodes", &Value::Null).1["nodes"][0]["state"].clone();
    assert_eq!(state(), "ready");
    let began = Stopwatch::start();
    node.admin("POST", "/v1/drain", &Value::Null);
    eventually("the node says that it is cordoned", || (state() == "cordoned").then_some(()));
    assert!(began.elapsed() < tidegate::lease::RENEW_INTERVAL, "announced before the next renewal");
    node.admin("DELETE", "/v1/drain", &Value::Null);
    eventually("the node is ready again", || (state() == "ready").then_some(()));
}

#[test]
fn presence_of_many_users_is_in_the_order_of_the_query() {
    let node = TestNode::start(|_| {});
    let phone = node.login(Wire::Tcp, "bob", "phone");
    let bobs = json!({"user": "bob", "online": true, "devices": [{"device": "phone", "node": "n1"}]});
    let nobody = |name: &str| json!({"user": name, "online": false, "devices": []});
    let of = |user: &str| node.admin("GET", &format!("/v1/users/{user}/presence"), &Value::Null);
    assert_eq!((of("bob"), of("ann")), ((200, bobs.clone()), (200, nobody("ann"))));
    let asked = json!({"users": ["zoe", "bob", "ann"]});
    let (status, said) = node.admin("POST", "/v1/presence", &asked);
    assert_eq!((status, said), (200, json!({"users": [nobody("zoe"), bobs, nobody("ann")]})));
    drop(phone);
    eventually("the user is offline", || (of("bob").1 == nobody("bob")).then_some(()));
    let too_many: Vec<String> = (0..=1_000).map(|n| format!("u{n}")).collect();
    let (status, said) = node.admin("POST", "/v1/presence", &json!({"users": too_many}));
    assert_eq!((status, &said["name"]), (400, &json!("BAD_CONTENT")));
    let (status, said) = node.admin("POST", "/v1/presence", &json!({"users": ["no id"]}));
    assert_eq!((status, &said["name"]), (400, &json!("BAD_ID")));
}
