//! What the stores of golden files hold: people who talk, and everything that can be asked about it afterwards.

use serde_json::{Value, json};
use tidegate_protocol::{
    Code,
    codec::Wire,
    pb::{self, client_frame::Body as Asked},
};

use crate::{
    meaning,
    support::{Client, Process, Said, ask, hello, send},
};

/// From how many members on a group is large, so that few are enough for one.
pub(crate) const SMALL_GROUP_MAX: usize = 4;

/// Everybody who is, or was, in a conversation.
const PEOPLE: [&str; 7] = ["ann", "bob", "cid", "dee", "eve", "fay", "gus"];

const DIRECT: &str = "d:ann:bob";
const TEAM: &str = "g:team";
const TOWN: &str = "g:town";

/// Sends that may be repeated: who, where to, the id, the text. Each was accepted, and keeps its seq.
const RETRIES: [(&str, &str, &str, &str); 5] = [
    ("ann", "bob", "a1", "hello 1"),
    ("ann", "bob", "a5", "hello 5"),
    ("bob", "ann", "b1", "hey, é漢😀"),
    ("bob", TEAM, "b2", "to the team"),
    ("ann", TOWN, "t1", "to the town"),
];

fn done(client: &mut Client, body: Asked) {
    let said = client.ask(body);
    assert!(matches!(said, Said::Done(_)), "{said:?}");
}

fn post(node: &Process, path: &str, body: Value) {
    let answer: Value = serde_json::from_str(&node.http("POST", path, &body.to_string())).expect("JSON");
    assert!(answer["seq"].is_number(), "{path} {body}: {answer}");
}

/// Has the people talk: ann and cid are on one node, the others on the other, which may be the same.
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
    assert!(matches!(ann.ask(ask::recall(DIRECT, 3)), Said::SendAck(_)));
    bob.ack(DIRECT, 7);
    bob.text(TEAM, "b2", "to the team");
    cid.text(TEAM, "c1", "and from the team");
    // Out and in again: two stays.
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
    done(&mut eve, ask::read(TOWN, 2));
    wishes(there);
}

/// A group with roles and settings, and one that is large.
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

/// A device that chains its messages: the next one is to be `k3`.
fn chain(node: &Process) {
    let mut ann = node.login_chained(Wire::Tcp, "ann", "tablet", "k1");
    for (id, next) in [("k1", "k2"), ("k2", "k3")] {
        ann.send(pb::Send { next_id: next.into(), ..send(TEAM, id, "in order") });
    }
    ann.say(ask::bye());
    ann.expect_close();
}

/// What users keep of a conversation.
fn keeps(ann: &mut Client, bob: &mut Client) {
    done(bob, ask::clear(DIRECT, 1));
    done(bob, ask::read(DIRECT, 4));
    done(bob, ask::hide(DIRECT, &[2, 5]));
    done(ann, ask::read(TEAM, 3));
    done(ann, ask::read(DIRECT, 6));
}

/// Settings of a user on all devices.
fn wishes(node: &Process) {
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

fn frame(body: Said) -> Value {
    meaning::frame(&pb::ServerFrame { id: 0, body: Some(body) })
}

/// Asks a node for everything that its store knows of these people; changes nothing.
pub(crate) fn view(node: &Process) -> Value {
    let mut users = serde_json::Map::new();
    for name in PEOPLE {
        let mut client = node.login(Wire::Tcp, name, "phone");
        let (states, unread) = client.sync_all(&[]);
        let mut conversations = serde_json::Map::new();
        for state in states {
            let key = state.conversation.clone();
            let page = client.page(ask::after(&key, 0, 100));
            let both =
                json!({"state": frame(Said::ConversationState(state)), "page": frame(Said::Page(page))});
            conversations.insert(key, both);
        }
        let settings = client.welcome.settings.clone().map(|settings| {
            let welcome = pb::Welcome { settings: Some(settings), ..pb::Welcome::default() };
            frame(Said::Welcome(welcome))["welcome"]["settings"].take()
        });
        let user = json!({"conversations": conversations, "unread": unread, "settings": settings});
        users.insert(name.to_owned(), user);
    }
    let groups = ["team", "town"].map(|id| -> Value {
        serde_json::from_str(&node.http("GET", &format!("/v1/groups/{id}"), "")).expect("JSON")
    });
    json!({"users": users, "groups": groups, "retries": retries(node)})
}

/// The answers to sends that came before; and to a request of the admin port.
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
