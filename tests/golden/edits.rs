//! Edits, messages with a mode, the feed and endpoints of webhooks, in a data directory and in Postgres.

use std::{fs, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::{Map, Value, json};
use tidegate::store::{
    Direction, FeedKind, FeedLimits, FeedRead, FeedStore as _, GuardKind, GuardStore as _, PageQuery,
    PostgresStore, Store as _, StoredRow,
};
use tidegate_protocol::{
    id::{ConversationId, NodeId},
    machine::ledger::LEDGER_NEWEST,
    record::{Origin, Record},
};

use crate::{
    access::{Tables, in_runtime},
    convert::{hex, lacks},
    endpoints,
    folder::{Folder, folders_with},
    meaning,
    store::{self, data_of, imported, record},
    support::{Cluster, Process, SseStream, eventually, eventually_within, fresh_data},
};

/// Data directory with its key, and its export.
const DATA: [&str; 2] = ["edits-data.tar.gz", "edits-export.jsonl"];

/// Replies of the node about them.
const VIEW: &str = "edits-view.json";

/// Rows of tables, and their meaning.
const ROWS: &str = "edits-postgres.json";

/// Tables with these rows, each with the order of its rows.
const TABLES: [(&str, &str); 8] = [
    ("partitions", "partition"),
    ("heads", "conversation"),
    ("messages", "conversation, seq"),
    ("feed", "partition, last"),
    ("feed_cursors", "consumer, partition"),
    ("guard", "version"),
    ("guard_counts", "kind"),
    ("guard_version", "version"),
];

/// Group of all messages.
const TEA: &str = "g:tea";

/// Events of [`live`].
const EVENTS: usize = 8;

/// No feed is trimmed while a test runs, whatever the age of the files.
const SETS: [&str; 2] = ["retention.sweep_ms=3600000", "webhooks.content_hosts=[crm.internal]"];

fn serve(data: &Path) -> Process {
    Process::start_on(data, &SETS)
}

/// Sends a request that succeeds, and returns the answer.
pub(crate) fn call(node: &Process, method: &str, path: &str, body: &Value) -> Value {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let answer: Value = serde_json::from_str(&node.http(method, path, &body)).expect("JSON");
    assert!(answer["code"].is_null(), "{method} {path}: {answer}");
    answer
}

/// Returns two endpoints at this URL: one of the whole feed, and one of what follows, with notices.
pub(crate) fn forms(url: &str) -> [(&'static str, Value); 2] {
    let endpoint = json!({
        "url": url, "types": ["tidegate.message.*", "tidegate.member.joined"], "conversations": ["g:*"], "from": "oldest",
        "batch": {"max": 7, "waitMs": 5}, "parallel": 2, "headers": {"x-app": "crm"}, "users": ["ann"],
    });
    let notices = json!({
        "url": url, "types": ["tidegate.webhook.test"], "content": true,
        "waiting": {"preview": "content", "badge": true, "delayMs": 1500},
    });
    [("crm", endpoint), ("push", notices)]
}

/// Leaves each kind of message and edit, and the two endpoints, which are paused.
fn live(node: &Process) {
    let messages = "/v1/messages";
    let group = json!({"id": "tea", "members": ["ann", "bob"], "requestId": "r1"});
    call(node, "POST", "/v1/groups", &group);
    let card = json!({"text": "at five?", "type": "invitation", "json": {"at": 17}, "mentions": ["bob"]});
    for mut body in [
        json!({"from": "ann", "content": card}),
        json!({"from": "bob", "content": {"text": "yes", "replyTo": 2}, "flags": ["silent"]}),
        json!({"from": "ann", "content": {"text": "typing"}, "flags": ["transient", "noPush"]}),
        json!({"content": {"text": "by the operator"}}),
    ] {
        body["to"] = json!(TEA);
        call(node, "POST", messages, &body);
    }
    let entry = |seq: u64| format!("/v1/conversations/{TEA}/messages/{seq}");
    let first = json!({"content": {"text": "at six?"}, "by": "ann", "requestId": "e1"});
    let second = json!({"content": {"text": "at seven?", "json": [7]}, "requestId": "e2"});
    for body in [first, second] {
        call(node, "PATCH", &entry(2), &body);
    }
    call(node, "DELETE", &entry(3), &json!({}));
    for (id, body) in forms("https://crm.internal/tg") {
        call(node, "PUT", &format!("/v1/webhooks/{id}"), &body);
        call(node, "POST", &format!("/v1/webhooks/{id}/pause"), &json!({}));
    }
}

/// Returns the fields of an object that a run does not decide.
fn fields(of: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), of[*name].clone())).collect::<Map<_, _>>().into()
}

/// Reads the history, as the operator and as bob.
fn history(node: &Process) -> Value {
    let page = |query: &str| {
        let path = format!("/v1/conversations/{TEA}/messages?direction=forward{query}");
        let page = call(node, "GET", &path, &Value::Null);
        fields(&page, &["messages", "recalled", "expired", "completeTo"])
    };
    let unread = call(node, "GET", "/v1/users/bob/unread", &Value::Null);
    json!({"all": page(""), "bob": page("&as=bob"), "unread": unread})
}

/// Reads the endpoints, without what their deliveries do now.
fn endpoints(node: &Process) -> Value {
    let names = [
        "url",
        "types",
        "conversations",
        "users",
        "content",
        "batch",
        "parallel",
        "timeoutMs",
        "asideAfterMs",
        "headers",
        "from",
        "waiting",
        "state",
        "createdMs",
        "secrets",
    ];
    let all = ["crm", "push"].map(|id| {
        let shown = call(node, "GET", &format!("/v1/webhooks/{id}"), &Value::Null);
        (id.to_owned(), fields(&shown, &names))
    });
    Map::from_iter(all).into()
}

/// Reads the feed from its beginning.
fn feed(node: &Process) -> Vec<Value> {
    let mut stream = SseStream::open(node.admin(), "/v1/events/stream?from=oldest&content=true", "");
    assert_eq!(stream.status(), 200);
    let mut events = Vec::new();
    while events.len() < EVENTS {
        let block = stream.next().expect("the stream goes on");
        if !block.event.is_empty() {
            events.push(block.data);
        }
    }
    events
}

fn view(node: &Process) -> Value {
    json!({"history": history(node), "endpoints": endpoints(node), "feed": feed(node)})
}

/// Records a data directory, and rows in Postgres.
pub(crate) fn write(folder: &Folder) {
    let data = fresh_data();
    let mut node = serve(&data);
    live(&node);
    folder.write(VIEW, format!("{:#}\n", view(&node)).as_bytes());
    node.signal(Signal::TERM);
    assert!(node.exit().success(), "{}", node.stderr());
    fs::remove_file(data.join("stderr")).expect("the file exists");
    record(folder, DATA, &data);

    let settle = ["log.rules_settle_ms=5000"];
    let mut cluster = Cluster::start(1, &[&SETS[..], &settle].concat());
    eventually_within(Duration::from_secs(30), "the newest rules are in force", || {
        let oldest = cluster.number("SELECT coalesce(min(ledger_version), 0)::bigint FROM partitions");
        (oldest == i64::from(LEDGER_NEWEST)).then_some(())
    });
    live(cluster.node(0));
    eventually("both endpoints and the notices have a cursor of each partition", || {
        let cursors = "SELECT count(*) FROM feed_cursors WHERE consumer LIKE 'w.%' OR consumer LIKE 'n.%'";
        (cluster.number(cursors) >= 12).then_some(())
    });
    assert_eq!(cluster.stop(0), Some(0));
    let golden = in_runtime(async {
        let tables = Tables::open(&cluster).await;
        let rows = tables.rows(&TABLES).await;
        json!({"rows": rows, "means": means(tables.store()).await})
    });
    folder.write(ROWS, format!("{golden:#}\n").as_bytes());
}

/// Describes what the store reads: the history, the feed, its cursors and the endpoints.
async fn means(store: &PostgresStore) -> Value {
    let tea = ConversationId::parse(TEA).expect("a key");
    let all = PageQuery { cursor: 0, direction: Direction::Forward, limit: 100, max_bytes: 1 << 20 };
    let page = store.page(&tea, all).await.expect("a page");
    let mut entries = Vec::new();
    for at in store.feed_positions().await.expect("positions") {
        let limits = FeedLimits { entries: 100, bytes: 1 << 20 };
        let read = store.read_feed(at.partition, 0, limits).await.expect("a page");
        let FeedRead::Page(page) = read else { panic!("{read:?}") };
        for it in page.entries {
            assert!(!matches!(it.kind, FeedKind::Unknown(_)), "{it:?}");
            let kind = format!("{:?}", it.kind);
            entries.push(json!([at.partition, it.number, it.conversation.as_str(), it.seq, kind, it.time]));
        }
    }
    let guard = store.guard_since(0, 100).await.expect("rows").rows.into_iter();
    let endpoints: Vec<Value> = guard
        .filter(|it| it.key.kind() == GuardKind::Webhook)
        .map(|it| json!([it.key.name(), it.value.map(|bytes| hex(&bytes))]))
        .collect();
    let rows: Vec<Value> = page.rows.iter().map(row).collect();
    let cursors = endpoints::cursors(&endpoints::read(store).await);
    json!({"rows": rows, "feed": entries, "cursors": cursors, "endpoints": endpoints})
}

fn row(it: &StoredRow) -> Value {
    let origin = Origin { node: NodeId::new("n1").expect("an id"), boot: 0, conn: 0, request: 0 };
    let (received_at, body) = (it.row.time, it.row.body.clone());
    let means = meaning::record(&Record { origin, received_at, body, trace: None });
    let at = |at: Option<(u64, u64)>| at.map(|(seq, time)| json!([seq, time]));
    json!({
        "seq": it.row.seq, "ordinal": it.row.ordinal, "own": it.row.own, "recalled": at(it.recalled),
        "edited": at(it.edited), "record": means,
    })
}

#[test]
fn node_serves_edits_modes_feed_and_endpoints_of_every_version() {
    for folder in folders_with(VIEW) {
        let data = data_of(&folder, DATA[0]);
        store::store(&["check"], &data);
        let golden: Value = folder.json(VIEW);
        let node = serve(&data);
        assert_eq!(lacks(&golden, &view(&node)), None, "{}", folder.version);
        endpoints::go_on(&node);
        drop(node);
        // An export leaves out the feed, and endpoints with their secrets.
        let present = history(&serve(&imported(&folder, DATA)));
        assert_eq!(lacks(&golden["history"], &present), None, "{}, imported", folder.version);
    }
}

#[test]
fn edits_modes_feed_and_endpoints_of_every_version_are_read_in_postgres() {
    let cluster = Cluster::prepare(1, &[]);
    in_runtime(async {
        let tables = Tables::open(&cluster).await;
        for folder in folders_with(ROWS) {
            let golden: Value = folder.json(ROWS);
            tables.load(&TABLES, &golden["rows"]).await;
            let present = means(tables.store()).await;
            assert_eq!(lacks(&golden["means"], &present), None, "{}", folder.version);
            let partition = present["feed"][0][0].as_u64().and_then(|it| u32::try_from(it).ok());
            endpoints::check(tables.store(), partition.expect("a partition"), EVENTS as u64).await;
            for (name, least) in [("rows", 8), ("feed", 8), ("endpoints", 2)] {
                assert!(present[name].as_array().is_some_and(|it| it.len() >= least), "{name}: {present}");
            }
        }
    });
}
