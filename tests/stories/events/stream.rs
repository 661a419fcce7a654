//! Stream of the feed: what it contains, where it begins, how it continues, and when it ends.

use serde_json::{Value, json};
use tidegate_protocol::codec::Wire;

use crate::support::{SseBlock, SseStream, TestNode, eventually, http, unique_name};

const PATH: &str = "/v1/events/stream";

/// Open stream of a node, at its first `id:` line.
struct Follower {
    stream: SseStream,
    last_id: String,
}

impl Follower {
    fn open(node: &TestNode, query: &str, last_id: Option<&str>) -> Self {
        let fields = last_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let mut stream = SseStream::open(node.admin_address(), &format!("{PATH}?{query}"), &fields);
        assert_eq!(stream.status(), 200, "{query}");
        let SseBlock { event, data, id } = stream.next().expect("a first block");
        assert_eq!((event.as_str(), data), ("", Value::Null), "the first block is where to continue");
        Self { stream, last_id: id.expect("an id") }
    }

    /// Returns the next event; `None` at the end of the stream.
    fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let SseBlock { event, data, id } = self.stream.next()?;
            if let Some(id) = id {
                self.last_id = id;
            }
            if !event.is_empty() {
                return Some((event, data));
            }
        }
    }

    /// Returns the ids of the next events.
    fn ids(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| self.next().expect("the stream goes on").1["id"].to_string().replace('"', ""))
            .collect()
    }

    /// Waits for the next `id:` line, before which there has to be no event.
    fn confirmed(&mut self) {
        let block = self.stream.next().expect("the stream goes on");
        assert_eq!(block.event, "", "{block:?}");
        self.last_id = block.id.expect("an id");
    }
}

fn send(node: &TestNode, to: &str, text: &str) {
    let (status, answer) =
        node.admin("POST", "/v1/messages", &json!({"to": to, "from": "ann", "content": {"text": text}}));
    assert_eq!(status, 201, "{answer}");
}

fn refused(node: &TestNode, query: &str, fields: &str) -> (u16, Value) {
    let head = format!("GET {PATH}?{query} HTTP/1.1\r\nHost: localhost\r\n{fields}");
    let (status, body) = http::ask_by(node.admin_address(), &head, "");
    (status, serde_json::from_str(&body).expect("JSON"))
}

fn of(conversation: &str, seqs: std::ops::RangeInclusive<u64>) -> Vec<String> {
    seqs.map(|seq| format!("{conversation}/{seq}")).collect()
}

#[test]
fn stream_has_each_accepted_change_in_order_with_content_only_on_request() {
    let node = TestNode::start(|_| {});
    let mut plain = Follower::open(&node, "", None);
    let mut full = Follower::open(&node, "content=true&types=tidegate.message.*", None);
    let group = node.group("team", &["ann", "bob"]);
    send(&node, &group, "one");
    send(&node, &group, "two\nlines");
    node.add(&group, &["cid"]);
    let json_type = &json!({"content": {"text": "won"}});
    assert_eq!(node.admin("PATCH", "/v1/conversations/g:team/messages/2", json_type).0, 200);
    assert_eq!(node.admin("DELETE", "/v1/conversations/g:team/messages/3", &json!({})).0, 200);
    let events: Vec<(String, Value)> = (0..6).map(|_| plain.next().expect("an event")).collect();
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    let expected = [
        "group.created",
        "message.accepted",
        "message.accepted",
        "member.joined",
        "message.edited",
        "message.recalled",
    ];
    assert_eq!(kinds, expected.map(|kind| format!("tidegate.{kind}")));
    for (nth, (kind, event)) in events.iter().enumerate() {
        assert_eq!((&event["id"], &event["type"]), (&json!(format!("g:team/{}", nth + 1)), &json!(kind)));
        assert_eq!((&event["source"], &event["data"]["content"]), (&json!("/tidegate/n1"), &Value::Null));
    }
    assert_eq!((&events[1].1["data"]["sender"], &events[4].1["data"]["of"]), (&json!("ann"), &json!(2)));
    let messages: Vec<Value> = (0..4).map(|_| full.next().expect("an event").1).collect();
    assert_eq!(messages[0]["subject"], "g:team");
    // Content is read when it is sent: both may be edited or recalled by then.
    let text = messages[0]["data"]["content"]["text"].as_str().expect("text");
    assert!(["one", "won"].contains(&text), "{messages:?}");
    assert_eq!(messages[3]["type"], "tidegate.message.recalled");
}

#[test]
fn cut_stream_goes_on_after_its_last_id_and_repeats_only_what_came_later() {
    let node = TestNode::start(|_| {});
    let mut follower = Follower::open(&node, "types=tidegate.message.*", None);
    let at_start = follower.last_id.clone();
    let group = node.group("team", &["ann", "bob"]);
    (0..5).for_each(|nth| send(&node, &group, &format!("m{nth}")));
    assert_eq!(follower.ids(5), of("g:team", 2..=6));
    follower.confirmed();
    let confirmed = follower.last_id.clone();
    (0..2).for_each(|nth| send(&node, &group, &format!("later {nth}")));
    assert_eq!(follower.ids(2), of("g:team", 7..=8));
    drop(follower);
    send(&node, &group, "while nobody reads");
    let mut again = Follower::open(&node, "types=tidegate.message.*", Some(&confirmed));
    assert_eq!(again.last_id, confirmed);
    assert_eq!(again.ids(3), of("g:team", 7..=9));
    // The cursor of the query is that of the first connection; the header is newer. More types miss nothing.
    let query = format!("after={at_start}");
    let mut header = Follower::open(&node, &query, Some(&confirmed));
    assert_eq!(header.ids(3), of("g:team", 7..=9));
    let mut all = Follower::open(&node, &query, None);
    assert_eq!(all.ids(9), of("g:team", 1..=9));
    assert_eq!(Follower::open(&node, "from=oldest", None).ids(9), of("g:team", 1..=9));
}

#[test]
fn hundred_events_are_confirmed_at_once() {
    let node = TestNode::start(|_| {});
    let group = node.group("team", &["ann", "bob"]);
    let message = |nth: usize| json!({"to": group, "from": "ann", "content": {"text": "m"}, "requestId": format!("m{nth}")});
    let messages: Vec<Value> = (0..250).map(message).collect();
    assert_eq!(node.admin("POST", "/v1/messages/batch", &json!({"messages": messages})).0, 200);
    let mut follower = Follower::open(&node, "from=oldest&types=tidegate.message.accepted", None);
    for batch in [2..=101, 102..=201] {
        assert_eq!(follower.ids(100), of("g:team", batch));
        follower.confirmed();
    }
    assert_eq!(follower.ids(50), of("g:team", 202..=251));
    let id = follower.last_id;
    assert_eq!(Follower::open(&node, "types=tidegate.message.*", Some(&id)).ids(50), of("g:team", 202..=251));
}

#[test]
fn filters_leave_out_other_types_conversations_and_users() {
    let node = TestNode::start(|_| {});
    let (tea, team) = (node.group("tea", &["ann", "bob"]), node.group("team", &["ann", "bob"]));
    send(&node, &tea, "a");
    send(&node, &team, "b");
    send(&node, "dan", "c");
    node.add("team", &["cid"]);
    let seen = |query: &str, count: usize| {
        let mut ids = Follower::open(&node, &format!("from=oldest&{query}"), None).ids(count);
        ids.sort();
        ids
    };
    assert_eq!(seen("types=tidegate.message.accepted&conversations=g:tea", 1), ["g:tea/2"]);
    assert_eq!(
        seen("conversations=g:tea*,d:dan:*", 4),
        ["g:tea/1", "g:tea/2", "g:team/1", "g:team/2"].map(String::from)
    );
    assert_eq!(seen("conversations=d:dan:ann", 1), ["d:ann:dan/1"]);
    assert_eq!(seen("users=dan", 1), ["d:ann:dan/1"]);
    assert_eq!(seen("users=cid", 1), ["g:team/3"]);
    assert_eq!(seen("users=ann&types=tidegate.message.*", 3), ["d:ann:dan/1", "g:tea/2", "g:team/2"]);
}

#[test]
fn bad_parameters_are_refused_with_their_cure() {
    let node = TestNode::start(|_| {});
    let long = "a,".repeat(64) + "a";
    for (query, fields, code, word) in [
        ("kinds=a", "", "BAD_CONTENT", "kinds"),
        ("types=", "", "BAD_CONTENT", "types"),
        ("types=tidegate.message.acepted", "", "BAD_CONTENT", "acepted"),
        ("types=tidegate.online", "", "BAD_CONTENT", "tidegate.online"),
        ("types=tidegate.*.x", "", "BAD_CONTENT", "pattern"),
        ("conversations=team", "", "BAD_ID", "team"),
        ("conversations=r:hall", "", "BAD_ID", "live rooms"),
        ("conversations=team*", "", "BAD_ID", "begins"),
        ("users=a:b", "", "BAD_ID", "a:b"),
        (&*format!("users={long}"), "", "BAD_CONTENT", "64"),
        ("content=yes", "", "BAD_CONTENT", "content"),
        ("from=yesterday", "", "BAD_CONTENT", "from"),
        ("after=x", "", "CURSOR_INVALID", "from=oldest"),
        ("after=", "", "CURSOR_INVALID", "from=oldest"),
        ("", "Last-Event-ID: x\r\n", "CURSOR_INVALID", "from=oldest"),
        ("after=x&from=now", "", "BAD_CONTENT", "only one"),
    ] {
        let (status, problem) = refused(&node, query, fields);
        assert_eq!((status, problem["title"].as_str()), (400, Some(code)), "{query}: {problem}");
        assert!(problem.to_string().contains(word), "{query}: {problem}");
    }
}

#[test]
fn what_the_feed_lacks_is_a_gap_and_no_feed_is_an_error() {
    let data = std::env::temp_dir().join(format!("tidegate-test-{}", unique_name()));
    let node = TestNode::start_on(&data, |_| {});
    send(&node, "bob", "one");
    node.stop();
    let node = TestNode::start_on(&data, |config| config.events.feed = false);
    let (status, problem) = refused(&node, "", "");
    assert_eq!((status, &problem["title"]), (409, &json!("UNSUPPORTED")), "{problem}");
    assert!(problem["cure"].as_str().is_some_and(|cure| cure.contains("events.feed = true")), "{problem}");
    ["two", "three"].iter().for_each(|text| send(&node, "bob", text));
    node.stop();
    let node = TestNode::start_on(&data, |_| {});
    send(&node, "bob", "four");
    let mut follower = Follower::open(&node, "from=oldest", None);
    assert_eq!(follower.ids(1), ["d:ann:bob/1"]);
    let (event, gap) = follower.next().expect("the stream goes on");
    assert_eq!((event.as_str(), &gap["first"], &gap["last"]), ("gap", &json!(2), &json!(3)), "{gap}");
    assert!(gap["partition"].is_u64(), "{gap}");
    assert_eq!(follower.ids(1), ["d:ann:bob/4"]);
}

#[test]
fn stream_goes_on_when_the_store_is_behind_its_cursor() {
    let (longer, shorter) = (TestNode::start(|_| {}), TestNode::start(|_| {}));
    (0..3).for_each(|_| send(&longer, "bob", "m"));
    let cursor = Follower::open(&longer, "", None).last_id;
    send(&shorter, "bob", "m");
    let mut follower = Follower::open(&shorter, &format!("after={cursor}"), None);
    // The number of the fourth message is above the cursor's, if it were taken as it is.
    follower.confirmed();
    send(&shorter, "bob", "m");
    assert_eq!(follower.ids(1), ["d:ann:bob/2"]);
}

#[test]
fn drain_confirms_and_ends_streams_and_refuses_others() {
    let node = TestNode::start(|_| {});
    // A drain of a node without clients would be over at once.
    let _client = node.login(Wire::Tcp, "ann", "phone");
    let mut follower = Follower::open(&node, "", None);
    send(&node, "bob", "m");
    assert_eq!(follower.ids(1), ["d:ann:bob/1"]);
    let before = follower.last_id.clone();
    node.drainer().begin(false);
    assert_eq!(follower.next(), None, "the stream ends");
    assert_ne!(follower.last_id, before, "what was sent is confirmed");
    let (status, problem) = refused(&node, "", "");
    assert_eq!((status, &problem["title"]), (503, &json!("DRAINING")), "{problem}");
}

#[test]
fn stream_beyond_the_most_of_a_node_is_refused_until_another_ends() {
    let node = TestNode::start(|_| {});
    let mut open: Vec<Follower> = (0..32).map(|_| Follower::open(&node, "", None)).collect();
    let head = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n");
    let reply = http::exchange(node.admin_address(), &head, "");
    assert_eq!((reply.status, reply.field("retry-after")), (503, Some("1")));
    assert!(String::from_utf8_lossy(&reply.body).contains("OVERLOADED"));
    open.pop();
    eventually("a place is free", || {
        SseStream::open(node.admin_address(), PATH, "").status().eq(&200).then_some(())
    });
    send(&node, "bob", "to all");
    for follower in &mut open {
        assert_eq!(follower.ids(1), ["d:ann:bob/1"]);
    }
}
