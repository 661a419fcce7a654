//! Keys in Redis: today's adapters read the keys of an earlier version, and write what it can read.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU64,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::{
    config,
    routes::{Lapses, Leases, NodeBoot, RedisRoutes, Registration, Retire, Route, Routes as _, RoutesError},
    scratch::{Block, FloorError, Floors, Numbers as _, RedisNumbers, RedisScratch, Scratch as _},
};
use tidegate_protocol::id::{ConversationId, DeviceId, NodeId, UserId};

use crate::{
    convert::{blur_text, lacks},
    folder::{Folder, versions},
    support::{service_text, unique_name},
};

#[path = "redis_chains.rs"]
mod redis_chains;

/// Keys that the nodes left.
pub(crate) const FILE: &str = "redis.json";

/// Values that the adapters read from them.
const VIEW: &str = "redis-view.json";

const USERS: [&str; 4] = ["ann", "bob", "fay", "nobody"];
const CONVERSATIONS: [&str; 2] = ["g:town", "r:hall"];

/// Keys that a node writes only if its settings request it.
const CLAIMED: &str = "leased-1";
const CLAIMANT: u64 = 0xabc;

/// Kinds of keys of a version that only its golden files have: no node wrote windows of hits, and none reads them.
const UNUSED: [&str; 2] = ["hits:", "count:"];

/// Reply to PTTL for a key that does not exist. PTTL is queried last, so the key may have expired during any query.
const EXPIRED: i64 = -2;

/// A key, without the prefix of its cluster.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Row {
    pub(crate) key: String,
    kind: String,
    /// The time to live in ms; `None` for a key that does not expire.
    ttl_ms: Option<u64>,
    value: Value,
}

fn connect() -> ::redis::Connection {
    try_connect().expect("Redis is up")
}

fn try_connect() -> ::redis::RedisResult<::redis::Connection> {
    ::redis::Client::open(service_text("redis7", "url"))?.get_connection()
}

fn ask<T: ::redis::FromRedisValue>(to: &mut ::redis::Connection, words: &[&str]) -> T {
    let mut command = ::redis::cmd(words[0]);
    for word in &words[1..] {
        command.arg(word);
    }
    command.query(to).unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Returns the names of all keys that begin with a prefix and a colon.
fn keys(to: &mut ::redis::Connection, prefix: &str) -> ::redis::RedisResult<BTreeSet<String>> {
    let (mut cursor, mut keys) = (0_u64, BTreeSet::new());
    loop {
        let mut scan = ::redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{prefix}:*")).arg("COUNT").arg(1_000);
        let (next, some): (u64, Vec<String>) = scan.query(to)?;
        keys.extend(some);
        if next == 0 {
            return Ok(keys);
        }
        cursor = next;
    }
}

/// Reads every key that begins with a prefix and a colon, except those that expire meanwhile.
pub(crate) fn dump(prefix: &str) -> Vec<Row> {
    let mut to = connect();
    let mut rows = Vec::new();
    for key in keys(&mut to, prefix).expect("Redis answers") {
        let kind: String = ask(&mut to, &["TYPE", &key]);
        let value = match kind.as_str() {
            "none" => continue,
            "string" => json!(ask::<Option<String>>(&mut to, &["GET", &key])),
            "hash" => json!(ask::<BTreeMap<String, String>>(&mut to, &["HGETALL", &key])),
            "set" => {
                let mut members: Vec<String> = ask(&mut to, &["SMEMBERS", &key]);
                members.sort();
                json!(members)
            }
            "zset" => {
                json!(ask::<Vec<(String, String)>>(&mut to, &["ZRANGE", &key, "0", "-1", "WITHSCORES"]))
            }
            other => panic!("a key of an unexpected kind: {other}"),
        };
        let ttl_ms: i64 = ask(&mut to, &["PTTL", &key]);
        if ttl_ms == EXPIRED {
            continue;
        }
        let key = key.strip_prefix(&format!("{prefix}:")).expect("the key has the prefix").to_owned();
        rows.push(Row { key, kind, ttl_ms: u64::try_from(ttl_ms).ok(), value });
    }
    rows
}

/// Writes keys as they were; with `live`, those that expire by the clock are not expired yet.
pub(crate) fn load(prefix: &str, rows: &[Row], live: bool) {
    let mut to = connect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    let soon = (now + 60_000_000).to_string();
    for Row { key, kind, ttl_ms, value } in rows {
        let full = format!("{prefix}:{key}");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        match kind.as_str() {
            "string" => ask::<()>(&mut to, &["SET", &full, &text(value)]),
            "hash" => {
                for (field, value) in value.as_object().expect("fields") {
                    let value = match (key.split(':').next(), field.as_str()) {
                        (Some("run"), "until") if live => soon.clone(),
                        (Some("interest"), field) if live && field.ends_with('!') => soon.clone(),
                        _ => text(value),
                    };
                    ask::<()>(&mut to, &["HSET", &full, field, &value]);
                }
            }
            "set" => {
                for member in value.as_array().expect("members") {
                    ask::<()>(&mut to, &["SADD", &full, &text(member)]);
                }
            }
            _ => {
                for pair in value.as_array().expect("members") {
                    ask::<()>(&mut to, &["ZADD", &full, &text(&pair[1]), &text(&pair[0])]);
                }
            }
        }
        if let Some(ttl) = ttl_ms {
            ask::<()>(&mut to, &["PEXPIRE", &full, &(*ttl).max(60_000).to_string()]);
        }
    }
}

/// Prefix that no other test uses; its keys are deleted with it.
struct Prefix(String);

impl Prefix {
    fn fresh() -> Self {
        Self(format!("golden_{}", unique_name()))
    }

    fn config(&self) -> config::RedisConfig {
        let url = service_text("redis7", "url");
        // Nothing here is about the duration of a call.
        config::RedisConfig {
            urls: vec![url],
            prefix: self.0.clone(),
            timeout_ms: 10_000,
            ..config::RedisConfig::default()
        }
    }

    fn routes(&self) -> RedisRoutes {
        RedisRoutes::connect(&self.config(), Leases::default()).expect("a valid configuration")
    }

    fn scratch(&self) -> RedisScratch {
        RedisScratch::connect(&self.config()).expect("a valid configuration")
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        // The test may have failed: a second panic would abort it.
        if let Err(error) = delete(&self.0) {
            eprintln!("the keys of {} are left: {error}", self.0);
        }
    }
}

/// Deletes every key that begins with a prefix and a colon.
fn delete(prefix: &str) -> ::redis::RedisResult<()> {
    let mut to = try_connect()?;
    for key in keys(&mut to, prefix)? {
        ::redis::cmd("DEL").arg(key).query::<()>(&mut to)?;
    }
    Ok(())
}

fn user(name: &str) -> UserId {
    UserId::new(name).expect("an id")
}

fn device(name: &str) -> DeviceId {
    DeviceId::new(name).expect("an id")
}

/// Writes keys that need settings which the cluster of golden files does not have.
pub(crate) async fn more(prefix: &str) {
    let prefix = std::mem::ManuallyDrop::new(Prefix(prefix.to_owned()));
    let id = NodeId::new(CLAIMED).expect("an id");
    let claimed = prefix.routes().claim_id(std::slice::from_ref(&id), CLAIMANT, &mut Lapses::default()).await;
    assert_eq!(claimed, Ok(Some(id)));
}

/// Reads everything that the adapters can read.
async fn view(prefix: &Prefix) -> Value {
    let (routes, users) = (prefix.routes(), USERS.map(user));
    let found = routes.lookup(&users).await.expect("Redis answers");
    let devices = |rows: &Vec<(DeviceId, tidegate::routes::Token)>| -> BTreeMap<String, String> {
        rows.iter().map(|(device, token)| (device.to_string(), token.to_string())).collect()
    };
    let looked_up: BTreeMap<&str, _> = USERS.into_iter().zip(found.iter().map(devices)).collect();
    let nodes = routes.nodes().await.expect("Redis answers");
    let mut rows = BTreeMap::new();
    for node in &nodes {
        let all = routes.rows_of(&node.info.boot, None, 100).await.expect("Redis answers");
        let row = |it: &Route| format!("{} {} {}", it.user, it.device, it.token);
        rows.insert(node.info.boot.to_string(), all.iter().map(row).collect::<Vec<_>>());
    }
    let said: Vec<Value> = nodes.iter().map(node_row).collect();
    let keys = CONVERSATIONS.map(|key| ConversationId::parse(key).expect("a key"));
    let interested = routes.interested(&keys).await.expect("Redis answers");
    let pairs = |all: &Vec<tidegate::routes::Interest>| -> BTreeMap<String, u64> {
        all.iter().map(|it| (it.node.to_string(), it.generation)).collect()
    };
    let interests: BTreeMap<&str, _> = CONVERSATIONS.into_iter().zip(interested.iter().map(pairs)).collect();
    let chain = prefix.scratch().load_chain(&user("ann"), &device("tablet")).await.expect("Redis answers");
    let chain = chain.expect("the chain was saved");
    let ids = |ids: &[tidegate_protocol::id::MsgId]| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
    json!({
        "lookup": looked_up,
        "nodes": said,
        "rows": rows,
        "interests": interests,
        "chain": {
            "epoch": chain.epoch,
            "expected": chain.expected.as_str(),
            "done": ids(&chain.done),
            "skipped": ids(&chain.skipped),
        },
    })
}

fn node_row(it: &tidegate::routes::NodeRow) -> Value {
    let info = &it.info;
    let stands: Vec<_> = info
        .partition_lags
        .iter()
        .map(|it| [it.partition.into(), it.position, it.end, it.behind_ms, it.behind_bytes])
        .collect();
    json!({
        "boot": info.boot.to_string(),
        "peer": info.peer_address,
        "clients": info.client_addresses,
        "state": format!("{:?}", info.state),
        "conns": info.conns,
        "capacity": info.capacity,
        "owns": info.owns,
        "stands": stands,
        "asserting": info.asserting,
        "about": info.description,
        "rules": info.rules,
        "beat": it.renewals,
        "lease": format!("{:?}", it.lease),
    })
}

/// Records the keys of a cluster, and what the adapters read from them.
pub(crate) fn write(folder: &Folder, rows: &[Row]) {
    folder.write_list(FILE, rows);
    let prefix = Prefix::fresh();
    load(&prefix.0, rows, true);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let view = runtime.block_on(view(&prefix));
    folder.write(VIEW, format!("{view:#}\n").as_bytes());
}

/// Floors whose blocks all belong to others here.
struct Given;

#[async_trait]
impl Floors for Given {
    async fn reserve(&self, key: &str, _: NonZeroU64, _: u64) -> Result<Block, FloorError> {
        Err(FloorError::Unavailable(format!("the block of {key} is not used up")))
    }

    async fn epoch(&self) -> Result<u64, FloorError> {
        Ok(0)
    }

    async fn raise(&self, _: u64) -> Result<u64, FloorError> {
        Err(FloorError::Unavailable("nothing was lost".to_owned()))
    }
}

#[tokio::test]
async fn redis_rows_of_every_version_keep_their_meaning() {
    for folder in versions() {
        let prefix = Prefix::fresh();
        load(&prefix.0, &folder.json::<Vec<Row>>(FILE), true);
        let (golden, present): (Value, Value) = (folder.json(VIEW), view(&prefix).await);
        assert_eq!(lacks(&golden, &present), None, "{}: {present:#}", folder.version);
    }
}

/// Returns the fields of the golden row of that key.
fn fields(rows: &[Row], key: &str) -> BTreeMap<String, String> {
    let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no {key}"));
    serde_json::from_value(row.value.clone()).expect("a hash")
}

fn token(text: &str) -> tidegate::routes::Token {
    let mut parts = text.split('/');
    let mut next = || parts.next().expect("node/boot/epoch");
    let (node, boot, epoch) = (next(), next(), next());
    let boot = u64::from_str_radix(boot, 16).expect("hex");
    let at = NodeBoot { node: NodeId::new(node).expect("an id"), boot };
    tidegate::routes::Token { at, epoch: epoch.parse().expect("a number") }
}

#[tokio::test]
async fn redis_rows_of_every_version_change_as_before() {
    for folder in versions() {
        let (rows, prefix) = (folder.json::<Vec<Row>>(FILE), Prefix::fresh());
        load(&prefix.0, &rows, true);
        let routes = prefix.routes();
        // A login elsewhere replaces the route, above its epoch.
        let [anns, bobs] =
            ["ann", "bob"].map(|name| token(&fields(&rows, &format!("route:{{{name}}}"))["phone"]));
        let wish = Registration {
            user: user("ann"),
            device: device("phone"),
            at: bobs.at.clone(),
            above: 0,
            only_if: None,
            policy: tidegate::routes::DevicePolicy::default(),
        };
        let registered = routes.register(wish).await.expect("Redis answers");
        assert_eq!(registered.replaced.as_ref(), Some(&anns), "{}", folder.version);
        assert!(registered.token.epoch > anns.epoch);
        // Only the end of a connection removes its route.
        let of_bob = |token| Route { user: user("bob"), device: device("phone"), token };
        let other = tidegate::routes::Token { epoch: bobs.epoch + 1, ..bobs.clone() };
        assert_eq!(routes.remove(&[of_bob(other), of_bob(bobs.clone())]).await, Ok(vec![false, true]));
        // A retired run can't write.
        let info = routes.nodes().await.expect("Redis answers").swap_remove(0).info;
        assert_eq!(routes.renew(&info).await.map(|renewals| renewals > 1), Ok(true));
        assert_eq!(routes.retire(&info.boot, Retire::Leaving).await, Ok(true));
        assert_eq!(routes.renew(&info).await, Err(RoutesError::LeaseLost));
        // Claims and numbers continue where they were.
        let ids = [NodeId::new(CLAIMED).expect("an id")];
        assert_eq!(routes.claim_id(&ids, CLAIMANT + 1, &mut Lapses::default()).await, Ok(None));
        assert_eq!(routes.claim_id(&ids, CLAIMANT, &mut Lapses::default()).await, Ok(Some(ids[0].clone())));
        let curr: u64 = fields(&rows, "seq:{r:hall}")["CURR"].parse().expect("a number");
        let (floors, block) = (Arc::new(Given), NonZeroU64::new(100).expect("more than 0"));
        let numbers = RedisNumbers::connect(&prefix.config(), floors, block).expect("a valid configuration");
        assert_eq!(numbers.take("r:hall", NonZeroU64::MIN).await, Ok(curr + 1..=curr + 1));
    }
}

/// Returns a row without what differs between runs: its kind and form.
fn shape(row: &Row) -> (String, Value) {
    // The part in braces names a user, a conversation or a run.
    let key = row.key.split('{').next().unwrap_or_default().to_owned();
    (key, json!({"kind": row.kind, "ends": row.ttl_ms.is_some(), "value": blur(&row.value)}))
}

fn blur(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| match name.as_str() {
                "version" => (name.clone(), json!("#")),
                _ => (blur_text(name), blur(value)),
            };
            fields.iter().map(field).collect::<serde_json::Map<_, _>>().into()
        }
        // One item represents all.
        Value::Array(items) => items.iter().take(1).map(blur).collect::<Vec<_>>().into(),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(inner @ Value::Object(_)) => blur(&inner),
            Ok(Value::Number(_)) => json!("#"),
            _ => blur_text(text).into(),
        },
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

/// Asserts that today's nodes write every form that a version wrote, with possible additions.
pub(crate) fn compare(folder: &Folder, present: &[Row]) {
    let present: Vec<(String, Value)> = present.iter().map(shape).collect();
    for golden in folder.json::<Vec<Row>>(FILE) {
        if UNUSED.iter().any(|kind| golden.key.starts_with(kind)) {
            continue;
        }
        // Nodes write the whole state only while a node is live that can't read steps; `x10_chains_of_every_version_go_on` checks it.
        if golden.key.starts_with("chain:") && golden.value["state"].is_string() {
            continue;
        }
        let (key, form) = shape(&golden);
        let same: Vec<&Value> =
            present.iter().filter(|(name, _)| *name == key).map(|(_, form)| form).collect();
        // `None`, nothing lacking, is the least.
        let least = same.iter().map(|present| lacks(&form, present)).min();
        assert_eq!(
            least,
            Some(None),
            "{}: nodes of {} read {form}, none such is written",
            golden.key,
            folder.version
        );
    }
}
