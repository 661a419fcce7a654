//! What a back end expects of a server, called from another host's view: by `curl`, with a key, over TLS and at the machine's own
//! address.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, UdpSocket},
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use super::{Keys, text};
use crate::{
    hook_server::App,
    hooks::secret_file,
    support::{Client, Process, ServerBody, WebhookReceiver, ask, eventually, hello, send},
};

/// Node whose admin port other hosts can reach, with hooks and without a development mode.
struct Reached {
    node: Process,
    folder: PathBuf,
    key: String,
}

/// Returns the address by which other hosts reach this machine: that of a packet to one of them, and none is sent. A machine
/// without a network has the loopback address only.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
    let address = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let address = address.map(|address| address.ip()).ok().filter(|address| !address.is_unspecified());
    address.unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn tidegate(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(words).output().expect("the binary runs");
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    output
}

impl Reached {
    fn start(app: &App) -> Self {
        let (keys, address) = (Keys::new(), own_address());
        let folder = keys.data.with_extension("files");
        fs::create_dir_all(&folder).expect("a folder");
        let files = folder.to_str().expect("text");
        tidegate(&["cert", "--out", files, &address.to_string()]);
        let key = keys.add("back-end", "content,messages,groups,users,operate", &[]);
        let sets = [
            format!("listen.admin={address}:0"),
            format!("admin.tls_cert={files}/node.pem"),
            format!("admin.tls_key={files}/node.key"),
            format!("hooks.login_url=http://{}/login", app.address),
            format!("hooks.before_url=http://{}/before", app.address),
            "hooks.before_fail=closed".to_owned(),
            format!("hooks.secret_file={}", secret_file(&folder).display()),
            "webhooks.allow_plain=true".to_owned(),
        ];
        let node = keys.start(&sets.each_ref().map(String::as_str));
        Self { node, folder, key }
    }

    /// Sends a request to a URL; returns the status and the answer.
    fn curl(&self, method: &str, url: &str, token: &str, body: &Value) -> (u16, Value) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}"]);
        curl.arg("--cacert").arg(self.folder.join("ca.pem")).args(["--request", method]);
        if !token.is_empty() {
            curl.arg("--header").arg(format!("authorization: Bearer {token}"));
        }
        curl.args(["--header", "content-type: application/json"]);
        if !body.is_null() {
            curl.arg("--data").arg(body.to_string());
        }
        let output = curl.arg(url).output().expect("curl is installed");
        assert!(output.status.success(), "{method} {url}: {}", text(&output.stderr));
        let output = text(&output.stdout);
        let (answer, status) = output.rsplit_once('\n').expect("a status");
        (status.parse().expect("a number"), serde_json::from_str(answer).unwrap_or_default())
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.node.admin())
    }

    /// Sends a request to the admin port that succeeds; returns the answer.
    #[track_caller]
    fn call(&self, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.curl(method, &self.url(path), &self.key, &body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        self.call("GET", path, Value::Null)
    }

    /// Returns what the node answers to a client that presents a token: the status of `GET /v1/assign` on the client port.
    fn checked(&self, token: &str) -> u16 {
        self.curl("GET", &format!("http://{}/v1/assign", self.node.address()), token, &Value::Null).0
    }

    /// Signs a token with the key that the back end shares with the nodes, as its JWT library does. No route does this.
    fn mint(&self, user: &str) -> String {
        let key = self.node.data().join("token.key");
        let output = tidegate(&["token", "mint", "--key", key.to_str().expect("text"), user]);
        text(&output.stdout).trim().to_owned()
    }

    fn login(&self, credential: &str) -> Client {
        let mut client = Client::connect(self.node.address(), Wire::Tcp);
        assert!(matches!(client.ask(ask::hello(hello(credential, "phone"))), ServerBody::Welcome(_)));
        client
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Sends as the system, as a user, and to many; reads and takes back; looks at what waits for a user.
fn messages(it: &Reached) {
    let sent = it.call(
        "POST",
        "/v1/messages",
        json!({"to": "bob", "content": {"text": "shipped"}, "requestId": "order-81"}),
    );
    assert_eq!((&sent["conversation"], &sent["seq"]), (&json!("d:bob:system"), &json!(1)));
    let as_user = json!({"from": "ann", "to": "bob", "content": {"text": "hi"}});
    assert_eq!(it.call("POST", "/v1/messages", as_user.clone())["conversation"], "d:ann:bob");
    let batch = json!({"messages": [as_user, {"to": "cid", "content": {"text": "hi"}, "requestId": "b1"}]});
    let many = json!({"to": ["bob", "cid"], "content": {"text": "sale"}, "requestId": "promo-7"});
    for (path, body) in [("/v1/messages/batch", batch), ("/v1/messages/broadcast", many)] {
        let answer = it.call("POST", path, body);
        let count = answer["results"].as_array().map(Vec::len);
        assert_eq!((&answer["failed"], count), (&json!(0), Some(2)), "{answer}");
    }
    let history = it.get("/v1/conversations/d:ann:bob/messages");
    assert_eq!(history["messages"].as_array().map(Vec::len), Some(2), "{history}");
    let one = "/v1/conversations/d:ann:bob/messages/1";
    assert_eq!(it.get(one)["content"]["text"], "hi");
    assert_eq!(it.call("DELETE", one, Value::Null)["of"], 1);
    assert_eq!(it.curl("GET", &it.url(one), &it.key, &Value::Null).0, 404, "it was taken back");
    let all = it.get("/v1/users/bob/conversations");
    assert_eq!(all["conversations"].as_array().map(Vec::len), Some(2), "{all}");
    assert!(it.get("/v1/users/bob/unread")["unread"].as_u64() >= Some(3));
    // At the rate of trace.per_second, so all of so few.
    let steps = it.get("/v1/trace?msg=order-81");
    assert!(steps["steps"].as_array().is_some_and(|it| !it.is_empty()), "{steps}");
}

/// Lists groups, their members in pages, and the groups of a user.
fn groups(it: &Reached) {
    it.call("POST", "/v1/groups", json!({"id": "tea", "members": ["ann", "bob"]}));
    assert_eq!(it.get("/v1/groups")["groups"][0]["id"], "tea");
    let members = "/v1/groups/tea/members?limit=1";
    let first = it.get(members);
    let next = first["next"].as_str().expect("another page");
    let second = it.get(&format!("{members}&cursor={next}"));
    assert_eq!([&first, &second].map(|it| it["members"][0]["user"].clone()), [json!("ann"), json!("bob")]);
    assert_eq!(it.get("/v1/users/bob/groups")["groups"][0]["id"], "tea");
}

/// Delegates the login to the application, asks it before each message, and says who may write to whom.
fn decisions(it: &Reached) {
    let mut eve = it.login("ticket-of-eve");
    let mut refused = Client::connect(it.node.address(), Wire::Tcp);
    assert!(matches!(refused.ask(ask::hello(hello("no-ticket", "phone"))), ServerBody::Error(_)));
    let ServerBody::Error(veto) = eve.ask(ask::send(send("bob", "m1", "deny: no links"))) else {
        panic!("the application forbids it")
    };
    assert_eq!((veto.code, veto.message.as_str()), (5001, "no links"));
    eve.send(send("bob", "m2", "replace: polite"));
    assert_eq!(it.get("/v1/conversations/d:bob:eve/messages/1")["content"]["text"], "polite");
    it.call("PUT", "/v1/users/bob/blocks/ann", json!({}));
    let body = json!({"from": "ann", "to": "bob", "content": {"text": "hi"}});
    let (status, answer) = it.curl("POST", &it.url("/v1/messages"), &it.key, &body);
    assert_eq!((status, &answer["title"]), (403, &json!("FORBIDDEN")), "{answer}");
    it.call("DELETE", "/v1/users/bob/blocks/ann", json!({}));
}

/// Sees who is connected and where, and ends it: a kick, a revocation, and bans.
fn people(it: &Reached) {
    let token = it.mint("bob");
    assert_eq!((it.checked(&token), it.checked("no-token")), (200, 401));
    let mut bob = it.login(&token);
    bob.expect_done(ask::join("hall"));
    let listed = it.get("/v1/connections");
    let mut connections = listed["connections"].as_array().expect("a list").iter();
    assert!(connections.any(|it| it["user"] == "bob" && it["device"] == "phone"), "{listed}");
    let hall = it.get("/v1/rooms/hall/members");
    assert_eq!(hall["members"][0]["user"], "bob", "{hall}");
    let presence = it.call("POST", "/v1/presence", json!({"users": ["ann", "bob"]}));
    let online = presence["users"].as_array().expect("a list").iter().map(|it| &it["online"]);
    assert_eq!(online.collect::<Vec<_>>(), [false, true]);
    assert_eq!(it.call("DELETE", "/v1/users/bob/connections?device=phone", Value::Null)["closed"], 1);
    assert_eq!(bob.expect_close(), Code::Kicked);
    it.call("POST", "/v1/users/bob/revoke", json!({"before": "now"}));
    assert_eq!(it.checked(&token), 401, "the token was revoked");
    for subject in ["user:mallory", "network:192.0.2.0/24"] {
        let ban = it.call("POST", "/v1/bans", json!({"subject": subject, "reason": "spam", "ttlMs": 60_000}));
        assert_eq!(ban["inForce"], true, "{ban}");
    }
}

#[test]
fn back_end_elsewhere_does_all_that_it_expects_by_curl_and_signs_tokens_itself() {
    let (app, receiver) = (App::start(), WebhookReceiver::start());
    let mut it = Reached::start(&app);
    let (status, _) = it.curl("GET", &it.url("/v1/groups"), "", &Value::Null);
    assert_eq!(status, 401, "the port asks for a key");
    let webhook = json!({
        "url": receiver.url(), "types": ["tidegate.message.accepted"], "batch": {"max": 10, "waitMs": 0},
        "waiting": {"delayMs": 300},
    });
    it.call("PUT", "/v1/webhooks/crm", webhook);
    messages(&it);
    groups(&it);
    decisions(&it);
    eventually("accepted messages come by webhook, and a notice for an offline user", || {
        let ids = receiver.ids();
        let has = |start: &str| ids.iter().any(|id| id.starts_with(start));
        (has("d:bob:system/1") && has("waiting/bob/")).then_some(())
    });
    people(&it);
    assert_eq!(it.get("/v1/nodes")["nodes"].as_array().map(Vec::len), Some(1));
    assert_eq!(it.call("POST", "/v1/weight", json!({"weight": 50}))["weight"], 50);
    assert_eq!(it.call("POST", "/v1/drain", json!({}))["state"].as_str().map(str::is_empty), Some(false));
    assert!(it.node.exit().success(), "the drain ends the node");
}
