//! Content of the stores of golden files: users who exchange messages, and all queries about it afterwards.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, pb};

use crate::{
    meaning,
    support::{Client, Process, ServerBody, ask, hello, send},
};

/// Small-group limit, low enough for a large group of few members.
pub(crate) const SMALL_GROUP_MAX: usize = 4;

/// Users who are, or were, in a conversation.
const PEOPLE: [&str; 7] = ["ann", "bob", "cid", "dee", "eve", "fay", "gus"];

const DIRECT: &str = "d:ann:bob";
const TEAM: &str = "g:team";
const TOWN: &str = "g:town";

/// Sends that may be repeated: sender, recipient, id, text. Each was accepted, and keeps its seq.
const RETRIES: [(&str, &str, &str, &str); 5] = [
    ("ann", "bob", "a1", "hello 1"),
    ("ann", "bob", "a5", "hello 5"),
    ("bob", "ann", "b1", "hey, é漢😀"),
    ("bob", TEAM, "b2", "to the team"),
    ("ann", TOWN, "t1", "to the town"),
];

fn post(node: &Process, path: &str, body: Value) {
    let answer: Value = serde_json::from_str(&node.http("POST", path, &body.to_string())).expect("JSON");
    assert!(answer["seq"].is_number(), "{path} {body}: {answer}");
}

/// Exchanges messages: ann and cid are on one node, the others on the other, which may be the same.
pub(crate) fn live(here: &Process, there: &Process) {
    groups(here);
    let (mut ann, mut bob) =
        (here.login(Wire::Tcp, "ann", "phone"), there.login(Wire::WsText, "bob", "phone"));
    let mut cid = here.login(Wire::JsonLine, "cid", "phone");
    let mut eve = there.login(Wire::WsBinary, "eve", "phone");
    for n in 1..=5 {
        assert_eq!(ann.text("bob", &format!("a{n}"), &format!("hello {n}")), n);
        bob.ack(DIRECT, n);
    }
    assert_eq!(bob.text("ann", "b1", "hey, é漢😀"), 6);
    ann.ack(DIRECT, 6);
    assert!(matches!(ann.ask(ask::recall(DIRECT, 3)), ServerBody::SendAck(_)));
    bob.ack(DIRECT, 7);
    bob.text(TEAM, "b2", "to the team");
    cid.text(TEAM, "c1", "and from the team");
    // Removed and added again: two stays.
    post(here, "/v1/groups/team/members", json!({"remove": ["cid"], "by": "ann", "requestId": "r3"}));
    assert_eq!(cid.refused(ask::send(send(TEAM, "c2", "too late"))), Code::NotAMember);
    ann.text(TEAM, "a6", "without cid");
    post(here, "/v1/groups/team/members", json!({"add": ["cid"], "requestId": "r4"}));
    post(here, "/v1/groups/team/members", json!({"mute": ["dee"], "by": "ann", "requestId": "r5"}));
    ann.text(TEAM, "a7", "with cid");
    ann.text(TOWN, "t1", "to the town");
    eve.text(TOWN, "t2", "from the town");
    chain(here);
    keeps(&mut ann, &mut bob);
    eve.expect_done(ask::read(TOWN, 2));
    user_settings(there);
}

/// Creates a group with roles and settings, and a large one.
fn groups(node: &Process) {
    let settings = json!({"history": "all", "retention": "forever"});
    let team = json!({"id": "team", "members": ["bob", "cid", "dee"], "owner": "ann", "settings": settings, "requestId": "r1"});
    post(node, "/v1/groups", team);
    post(
        node,
        "/v1/groups/team/roles",
        json!({"users": ["bob"], "role": "admin", "by": "ann", "requestId": "r2"}),
    );
    post(node, "/v1/groups", json!({"id": "town", "members": PEOPLE, "requestId": "r1"}));
    assert!(PEOPLE.len() > SMALL_GROUP_MAX);
}

/// Leaves a device that chains its messages: the next one is `k3`.
fn chain(node: &Process) {
    let mut ann = node.login_chained(Wire::Tcp, "ann", "tablet", "k1");
    for (id, next) in [("k1", "k2"), ("k2", "k3")] {
        ann.send(pb::Send { next_id: next.into(), ..send(TEAM, id, "in order") });
    }
    ann.say(ask::bye());
    ann.expect_close();
}

/// Writes users' marks, clears and hides.
fn keeps(ann: &mut Client, bob: &mut Client) {
    bob.expect_done(ask::clear(DIRECT, 1));
    bob.expect_done(ask::read(DIRECT, 4));
    bob.expect_done(ask::hide(DIRECT, &[2, 5]));
    ann.expect_done(ask::read(TEAM, 3));
    ann.expect_done(ask::read(DIRECT, 6));
}

/// Writes user settings.
fn user_settings(node: &Process) {
    let wished = pb::Settings {
        ack_timeout_ms: 7_000,
        ack_tries: 5,
        heartbeat_ms: 45_000,
        unread: "direct".into(),
        retention: "30d".into(),
        search: "off".into(),
        ..pb::Settings::default()
    };
    let mut eve = Client::connect(node.address(), Wire::Tcp);
    eve.login(pb::Hello { settings: Some(wished), ..hello(&node.token("eve"), "tablet") });
}

fn frame(body: ServerBody) -> Value {
    meaning::frame(&pb::ServerFrame { id: 0, body: Some(body) })
}

/// Queries everything that a node's store has of these users, without changes.
pub(crate) fn view(node: &Process) -> Value {
    let mut users = serde_json::Map::new();
    for name in PEOPLE {
        let mut client = node.login(Wire::Tcp, name, "phone");
        let (states, unread) = client.sync_all(&[]);
        let mut conversations = serde_json::Map::new();
        for state in states {
            let key = state.conversation.clone();
            let page = client.page(ask::after(&key, 0, 100));
            let state = frame(ServerBody::ConversationState(state));
            let both = json!({"state": state, "page": frame(ServerBody::Page(page))});
            conversations.insert(key, both);
        }
        let settings = client.welcome.settings.clone().map(|settings| {
            let welcome = pb::Welcome { settings: Some(settings), ..pb::Welcome::default() };
            frame(ServerBody::Welcome(welcome))["welcome"]["settings"].take()
        });
        let user = json!({"conversations": conversations, "unread": unread, "settings": settings});
        users.insert(name.to_owned(), user);
    }
    let groups = ["team", "town"].map(|id| -> Value {
        serde_json::from_str(&node.http("GET", &format!("/v1/groups/{id}"), "")).expect("JSON")
    });
    json!({"users": users, "groups": groups, "retries": retries(node)})
}

/// Returns the replies to repeats of earlier sends, and of a request of the admin port.
fn retries(node: &Process) -> Vec<Value> {
    let mut answers = Vec::new();
    for (user, to, id, text) in RETRIES {
        let mut client = node.login(Wire::Tcp, user, "phone");
        answers.push(frame(client.ask(ask::send(pb::Send { attempt: 1, ..send(to, id, text) }))));
        let other = client.refused(ask::send(pb::Send { attempt: 1, ..send(to, id, "something else") }));
        answers.push(json!(other.name()));
    }
    let again = json!({"remove": ["cid"], "by": "ann", "requestId": "r3"}).to_string();
    answers.push(serde_json::from_str(&node.http("POST", "/v1/groups/team/members", &again)).expect("JSON"));
    answers
}
