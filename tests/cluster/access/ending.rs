//! Kicks, revocations and block lists reach the other node: over the link, without Redis, and through the store alone.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate::auth::{self, SigningKey};
use tidegate_protocol::{Code, codec::Wire, pb};

use super::{IN_FORCE_MAX, Severable, call, end_of};
use crate::support::{Client, Cluster, ServerBody, Stopwatch, ask, code, eventually_within, hello, send};

/// Fields of a revocation, of which each request has one.
const NAMED: [&str; 3] = ["before", "tokenId", "device"];

/// Returns a token that was issued ten seconds ago, with its user as its id.
fn token(cluster: &Cluster, user: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
    let key = SigningKey::Secret(auth::read_key(&cluster.token_key()).expect("a key"));
    let claims = json!({"sub": user, "iat": now - 10, "exp": now + 600, "jti": user});
    key.sign(None, &claims).expect("a sound key")
}

/// Returns the code of a refused login.
fn refusal(cluster: &Cluster, nth: usize, token: &str) -> Option<Code> {
    let mut client = Client::connect(cluster.node(nth).address(), Wire::Tcp);
    let id = client.say(ask::hello(hello(token, "phone")));
    match client.reply(id) {
        ServerBody::Welcome(_) => None,
        ServerBody::Error(error) => Some(code(error.code)),
        other => panic!("{other:?}"),
    }
}

/// User whose token is revoked.
struct Revoked {
    named: &'static str,
    user: String,
    token: String,
    client: Client,
}

/// Users on the second node, logged in before a way is cut.
struct Affected {
    state: &'static str,
    /// One for each kind of revocation.
    revoked: Vec<Revoked>,
    kicked: Client,
    /// User who writes to another one who blocks them.
    blocked: Client,
}

impl Affected {
    fn login(cluster: &Cluster, state: &'static str) -> Self {
        let revoked = NAMED.into_iter().zip(Wire::ALL).map(|(named, wire)| {
            let user = format!("{state}-{named}");
            let mut client = Client::connect(cluster.node(1).address(), wire);
            let token = token(cluster, &user);
            client.login(hello(&token, "phone"));
            Revoked { named, user, token, client }
        });
        Self {
            state,
            revoked: revoked.collect(),
            kicked: cluster.login(1, Wire::WsText, &format!("{state}-kicked")),
            blocked: cluster.login(1, Wire::Tcp, &format!("{state}-blocked")),
        }
    }

    /// Revokes by the first node; `pending` are the nodes that can't confirm it.
    fn revoke(&mut self, cluster: &Cluster, pending: &[&str]) {
        for Revoked { named, user, token, client } in &mut self.revoked {
            let value = match *named {
                "before" => json!("now"),
                "device" => json!("phone"),
                _ => json!(user),
            };
            let began = Stopwatch::start();
            let path = format!("/v1/users/{user}/revoke");
            let (status, answer) = call(cluster, 0, "POST", &path, &json!({*named: value}));
            assert_eq!((status, &answer["pending"]), (200, &json!(pending)), "{user}");
            // The other node may read the store, as it does once a second, before it is called.
            assert!(answer["closed"].as_u64() <= Some(u64::from(pending.is_empty())), "{user}: {answer}");
            assert_eq!(code(end_of(client, IN_FORCE_MAX).code), Code::TokenRevoked, "{user}");
            assert!(began.elapsed() < IN_FORCE_MAX, "{user}: {:?}", began.elapsed());
            for nth in 0..2 {
                assert_eq!(refusal(cluster, nth, token), Some(Code::TokenRevoked), "{user}");
            }
        }
    }

    /// Kicks by the first node.
    fn kick(&mut self, cluster: &Cluster) {
        let path = format!("/v1/users/{}-kicked/connections?reason=spam", self.state);
        assert_eq!(
            call(cluster, 0, "DELETE", &path, &Value::Null),
            (200, json!({"closed": 1, "silent": []}))
        );
        is_kicked(&mut self.kicked, "spam");
    }

    fn is_refused(&mut self, id: &str) -> bool {
        match self.blocked.ask(ask::send(send("bob", id, id))) {
            ServerBody::SendAck(_) => false,
            ServerBody::Error(error) => {
                assert!(error.temporary || code(error.code) == Code::Forbidden, "{error:?}");
                !error.temporary
            }
            other => panic!("{other:?}"),
        }
    }

    /// Blocks by the first node, with an end of the block and another one.
    fn block(&mut self, cluster: &Cluster, pending: &[&str]) {
        let path = format!("/v1/users/bob/blocks/{}-blocked", self.state);
        for (turn, method) in ["PUT", "DELETE", "PUT"].into_iter().enumerate() {
            let is_blocked = method == "PUT";
            let (status, answer) = call(cluster, 0, method, &path, &json!({}));
            assert_eq!((status, &answer["pending"]), (200, &json!(pending)), "{path}: {answer}");
            let mut n = 0;
            eventually_within(IN_FORCE_MAX, "the change is in force on the other node", || {
                n += 1;
                (self.is_refused(&format!("{turn}-{n}")) == is_blocked).then_some(())
            });
        }
    }
}

fn is_kicked(client: &mut Client, reason: &str) {
    let close = end_of(client, IN_FORCE_MAX);
    assert_eq!((code(close.code), close.reason.as_str()), (Code::Kicked, reason));
    assert_eq!(close.reconnect, pb::Reconnect::Never as i32);
}

/// Kicks a device, then one connection by its id, then all of the user, each by the first node.
fn kick_by_all_names(cluster: &Cluster) {
    let devices = ["phone", "desk", "tab"];
    let [mut phone, mut desk, mut tab] =
        devices.map(|device| cluster.node(1).login(Wire::WsBinary, "ann", device));
    let mut here = cluster.node(0).login(Wire::Tcp, "ann", "here");
    let mut other = cluster.login(1, Wire::Tcp, "other");
    let closed = |count: u64| (200, json!({"closed": count, "silent": []}));
    let none = Value::Null;
    let path = "/v1/users/ann/connections";
    assert_eq!(call(cluster, 0, "DELETE", &format!("{path}?device=phone&reason=spam"), &none), closed(1));
    is_kicked(&mut phone, "spam");
    let (_, list) = call(cluster, 0, "GET", path, &none);
    let rows = list["connections"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["device"] == "desk").expect("it is listed");
    assert_eq!(row["node"], "n2");
    let one = format!("/v1/connections/{}?reason=bye", row["id"].as_str().expect("an id"));
    assert_eq!(call(cluster, 0, "DELETE", &one, &none), closed(1));
    is_kicked(&mut desk, "bye");
    assert_eq!(call(cluster, 0, "DELETE", &format!("{path}?reason=all"), &none), closed(2));
    is_kicked(&mut tab, "all");
    is_kicked(&mut here, "all");
    other.settle();
}

#[test]
fn access_ends_on_all_nodes_without_redis_and_without_the_link() {
    let mut it = Severable::start(&[]);
    let states = ["whole", "no-redis", "no-link"];
    let [mut whole, mut without_redis, mut without_link] =
        states.map(|state| Affected::login(&it.cluster, state));
    let cluster = &it.cluster;
    kick_by_all_names(cluster);
    whole.revoke(cluster, &[]);
    whole.block(cluster, &[]);
    whole.kick(cluster);

    it.redis.hang();
    without_redis.revoke(cluster, &[]);
    without_redis.block(cluster, &[]);
    without_redis.kick(cluster);
    it.redis.open();

    it.links[1].hang();
    without_link.revoke(cluster, &["n2"]);
    without_link.block(cluster, &["n2"]);
    let kick = "/v1/users/no-link-kicked/connections";
    let silent = json!({"closed": 0, "silent": ["n2"]});
    assert_eq!(call(cluster, 0, "DELETE", kick, &Value::Null), (200, silent), "no store has a kick");
    without_link.kicked.settle();
    it.links[1].open();

    it.restart(&[]);
    for Revoked { user, token, .. } in [whole, without_redis, without_link].iter().flat_map(|it| &it.revoked)
    {
        for nth in 0..2 {
            assert_eq!(refusal(&it.cluster, nth, token), Some(Code::TokenRevoked), "{user} at {nth}");
        }
    }
    for (nth, state) in states.iter().enumerate() {
        let mut blocked = it.cluster.login(nth % 2, Wire::Tcp, &format!("{state}-blocked"));
        let refused = blocked.refused(ask::send(send("bob", "again", "again")));
        assert_eq!(refused, Code::Forbidden, "{state}");
    }
}
