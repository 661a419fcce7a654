//! Live rooms, users, their devices and chains, as a back end reads and ends them.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{get, refused};
use crate::support::{ServerBody, TestNode, ask, eventually, send, text_of};

const NOT_FOUND: (u16, u64) = (404, Code::NotFound.number() as u64);
const BAD_CONTENT: (u16, u64) = (400, Code::BadContent.number() as u64);
const BAD_SETTING: (u16, u64) = (400, Code::BadSetting.number() as u64);

#[test]
fn rooms_and_their_members_are_listed() {
    let node = TestNode::start(|config| {
        config.node.store = "memory".into();
        config.node.shards = 3;
    });
    let mut clients: Vec<_> = (0..5).map(|n| node.login(Wire::Tcp, &format!("u{n}"), "phone")).collect();
    clients.iter_mut().for_each(|client| client.expect_done(ask::join("hall")));
    clients[0].expect_done(ask::join("attic"));
    let first = get(&node, "/v1/rooms?limit=1");
    assert_eq!(first["rooms"], json!([{"room": "attic", "count": 1, "nodes": 1, "closed": false}]));
    let next = first["next"].as_str().expect("a cursor");
    let rest = get(&node, &format!("/v1/rooms?limit=1&cursor={next}"));
    assert_eq!(
        rest,
        json!({"rooms": [{"room": "hall", "count": 5, "nodes": 1, "closed": false}], "silent": []})
    );
    assert_eq!(
        get(&node, "/v1/rooms/none"),
        json!({"room": "none", "count": 0, "nodes": 0, "closed": false, "silent": []})
    );
    assert_eq!(get(&node, "/v1/rooms/hall")["count"], json!(5));

    let (mut users, mut path) = (Vec::new(), "/v1/rooms/hall/members?limit=2".to_owned());
    loop {
        let page = get(&node, &path);
        let members = page["members"].as_array().expect("a list");
        users.extend(members.iter().map(|it| it["user"].as_str().expect("a user").to_owned()));
        assert!(members.iter().all(|it| it["device"] == "phone" && it["node"].is_string()), "{page}");
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/rooms/hall/members?limit=2&cursor={next}");
    }
    assert_eq!(users, ["u0", "u1", "u2", "u3", "u4"]);
    let of_other = format!("/v1/rooms/attic/members?cursor={next}");
    assert_eq!(refused(&node, "GET", &of_other, &Value::Null), (400, Code::CursorInvalid.number().into()));
    assert_eq!(refused(&node, "GET", "/v1/rooms/a%20b", &Value::Null).0, 400);
}

#[test]
fn user_who_is_removed_from_a_room_gets_nothing_of_it_until_it_joins_again() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let mut ann = node.login(Wire::Tcp, "ann", "phone");
    let mut bobs = [Wire::Tcp, Wire::WsText]
        .map(|wire| node.login(wire, "bob", if wire == Wire::Tcp { "phone" } else { "web" }));
    ["hall", "attic"].iter().for_each(|room| ann.expect_done(ask::join(room)));
    for bob in &mut bobs {
        bob.expect_done(ask::join("hall"));
        bob.expect_done(ask::join("attic"));
    }
    let path = "/v1/rooms/hall/members/bob";
    let (status, answer) = node.admin("DELETE", &format!("{path}?device=web&reason=spam"), &Value::Null);
    assert_eq!((status, answer), (200, json!({"removed": 1, "silent": []})));
    let (status, answer) = node.admin("DELETE", path, &Value::Null);
    assert_eq!((status, answer), (200, json!({"removed": 1, "silent": []})));
    let (status, answer) = node.admin("DELETE", path, &Value::Null);
    assert_eq!((status, answer), (200, json!({"removed": 0, "silent": []})), "bob is not in it");
    ann.text("r:hall", "m1", "to the hall");
    ann.text("r:attic", "m1", "to the attic");
    for (bob, reason) in bobs.iter_mut().zip(["", "spam"]) {
        let notice = pb::Notice {
            kind: pb::NoticeKind::RoomRemoved as i32,
            conversation: "r:hall".into(),
            message: reason.into(),
            ..Default::default()
        };
        bob.take("the notice", |frame| frame.body == Some(ServerBody::Notice(notice.clone())));
        assert_eq!(bob.refused(ask::send(send("r:hall", "m2", "?"))), Code::NotAMember);
        assert_eq!(text_of(&bob.expect_push()), "to the attic", "another room goes on");
        bob.no_push();
    }
    assert_eq!(get(&node, "/v1/rooms/hall")["count"], json!(1));
    bobs[0].expect_done(ask::join("hall"));
    ann.text("r:hall", "m3", "again");
    assert_eq!(text_of(&bobs[0].expect_push()), "again");
    for wrong in
        ["/v1/rooms/a%20b/members/bob", "/v1/rooms/hall/members/a:b", "/v1/rooms/hall/members/bob?x=1"]
    {
        assert_eq!(refused(&node, "DELETE", wrong, &Value::Null).0, 400, "{wrong}");
    }
    let long = format!("{path}?reason={}", "x".repeat(121));
    assert_eq!(refused(&node, "DELETE", &long, &Value::Null).0, 400);
}

#[test]
fn user_is_shown_with_devices_prio_and_revocations() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    let nobody = json!({
        "user": "ann", "online": false, "devices": [], "banned": false, "bans": [], "suspensions": [],
        "notBefore": null, "prio": null, "settings": {},
    });
    assert_eq!(get(&node, "/v1/users/ann"), nobody);
    assert_eq!(node.admin("PUT", "/v1/users/ann/prio", &json!({"prio": 2})).0, 200);
    assert_eq!(node.admin("POST", "/v1/users/ann/revoke", &json!({"before": 7})).0, 200);
    let ban = json!({"subject": "device:ann/old", "reason": "lost"});
    assert_eq!(node.admin("POST", "/v1/bans", &ban).0, 200);
    let _ann = node.login(Wire::Tcp, "ann", "phone");
    eventually("the route is registered", || {
        let shown = get(&node, "/v1/users/ann");
        (shown["online"] == true && shown["devices"][0]["device"] == "phone").then_some(())
    });
    let shown = get(&node, "/v1/users/ann");
    assert_eq!((&shown["prio"]["prio"], &shown["notBefore"]), (&json!(2), &json!(7)), "{shown}");
    assert_eq!(refused(&node, "GET", "/v1/users/a%20b", &Value::Null).0, 400);
    let preferred = json!({"user": "ann", "settings": {"push": "mentions"}});
    assert_eq!(node.admin("PATCH", "/v1/users/ann", &json!({"push": "mentions"})), (200, preferred));
    assert_eq!(get(&node, "/v1/users/ann")["settings"], json!({"push": "mentions"}));
    let hidden = json!({"user": "ann", "settings": {"push": "mentions", "presence": "off"}});
    assert_eq!(node.admin("PATCH", "/v1/users/ann", &json!({"presence": "off"})), (200, hidden));
    for (wrong, refusal) in [
        (json!({}), BAD_CONTENT),
        (json!({"push": null}), BAD_CONTENT),
        (json!({"push": "loud"}), BAD_SETTING),
        (json!({"presence": "away"}), BAD_SETTING),
        (json!({"push": "", "presence": "off"}), BAD_SETTING),
        (json!({"prio": 1}), BAD_CONTENT),
    ] {
        assert_eq!(refused(&node, "PATCH", "/v1/users/ann", &wrong), refusal, "{wrong}");
    }
}

#[test]
fn device_starts_a_new_chain_after_its_chain_is_removed() {
    let node = TestNode::start(|config| config.node.store = "memory".into());
    assert_eq!(get(&node, "/v1/users/ann/devices"), json!({"user": "ann", "devices": []}));
    let chain = "/v1/users/ann/devices/phone/chain";
    assert_eq!(refused(&node, "GET", chain, &Value::Null), NOT_FOUND);
    assert_eq!(refused(&node, "DELETE", chain, &Value::Null), NOT_FOUND);
    let link = |id: &str, next: &str| pb::Send { next_id: next.into(), ..send("bob", id, id) };
    let mut ann = node.login_chained(Wire::Tcp, "ann", "phone", "a");
    ann.send(link("a", "b"));
    ann.say(ask::send(link("x", "y")));
    ann.settle();
    let shown = eventually("the chain is saved", || {
        let shown = get(&node, chain);
        (shown["done"] == 1).then_some(shown)
    });
    assert_eq!(
        (&shown["expected"], &shown["held"], &shown["node"]),
        (&json!("b"), &json!(1), &json!("n1")),
        "{shown}"
    );
    eventually("x waits for b", || (get(&node, chain)["blockedMs"].as_u64()? > 0).then_some(()));
    ann.send(link("b", "x"));
    eventually("nothing waits", || {
        let shown = get(&node, chain);
        (shown["held"] == 0).then(|| assert_eq!(shown["blockedMs"], 0, "{shown}"))
    });
    let device = get(&node, "/v1/users/ann/devices/phone");
    assert_eq!((&device["online"], &device["chain"]), (&json!(true), &json!(true)));
    assert_eq!(get(&node, "/v1/users/ann/devices")["devices"], json!([device]));

    let (status, removed) = node.admin("DELETE", chain, &Value::Null);
    assert_eq!((status, removed), (200, json!({"closed": 1, "chain": true, "silent": []})));
    let closes = ann.until_end().into_iter().filter_map(|frame| match frame.body {
        Some(ServerBody::Close(close)) => Some(close),
        _ => None,
    });
    let closes: Vec<pb::Close> = closes.collect();
    let after = pb::Reconnect::After as i32;
    assert!(
        matches!(&closes[..], [close] if close.name == "KICKED" && close.reconnect == after),
        "{closes:?}"
    );
    eventually("nothing of the device is left", || {
        (refused(&node, "GET", "/v1/users/ann/devices/phone", &Value::Null) == NOT_FOUND).then_some(())
    });
    let mut again = node.login_chained(Wire::Tcp, "ann", "phone", "n1");
    assert_eq!(again.welcome.next_id, "n1", "another chain");
    again.send(link("n1", "n2"));
    let (status, _) = node.admin("DELETE", "/v1/users/ann/devices/phone", &Value::Null);
    assert_eq!((status, again.expect_close()), (200, Code::Kicked));
}
