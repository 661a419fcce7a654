//! Keys of a stream of events: the scopes that it needs, its record, and its end with the key.

use serde_json::{Value, json};

use super::{Keys, RELOAD_MAX, ask, audit, refusal};
use crate::support::{SseBlock, SseStream, Stopwatch};

const PATH: &str = "/v1/events/stream";

fn next_event(stream: &mut SseStream) -> Value {
    loop {
        let SseBlock { event, data, .. } = stream.next().expect("the stream goes on");
        if !event.is_empty() {
            return data;
        }
    }
}

#[test]
fn stream_has_content_only_with_its_scope_and_ends_with_its_key() {
    let keys = Keys::new();
    let (reader, bot) = (keys.add("reader", "read", &[]), keys.add("bot", "content,messages", &[]));
    let node = keys.start(&[]);
    let open = |query: &str, key: &str| {
        let key = format!("Authorization: Bearer {key}\r\n");
        let mut stream = SseStream::open(node.admin(), &format!("{PATH}?{query}"), &key);
        assert_eq!(stream.status(), 200);
        stream.next().expect("an id");
        stream
    };
    let refused = ask(node.admin(), "GET", &format!("{PATH}?content=true"), Some(&reader), "");
    let (name, message) = refusal(&refused);
    assert_eq!((refused.status, name.as_str()), (403, "SCOPE_MISSING"));
    assert!(message.contains("`content`"), "{message}");
    let (mut plain, mut full) =
        (open("", &reader), open("content=true&conversations=d:bob:system,g:*&users=bob", &bot));
    let body = json!({"to": "bob", "content": {"text": "secret"}}).to_string();
    assert_eq!(ask(node.admin(), "POST", "/v1/messages", Some(&bot), &body).status, 201);
    let (without, with) = (next_event(&mut plain), next_event(&mut full));
    assert_eq!((&without["data"]["seq"], &without["data"]["content"]), (&json!(1), &Value::Null));
    assert_eq!(with["data"]["content"], json!({"text": "secret"}));
    assert_eq!(node.metric("event_stream_events_total"), 2.0);
    node.metric_becomes("event_stream_lag", 0.0);
    assert_eq!(node.metric("event_streams"), 2.0);
    keys.revoke("reader");
    let revoked = Stopwatch::start();
    while plain.next().is_some() {}
    assert!(revoked.elapsed() < RELOAD_MAX * 3 / 2, "{:?}", revoked.elapsed());
    node.metric_becomes("event_streams", 1.0);
    let lines = audit(&keys.data);
    let of_streams: Vec<&Value> = lines.iter().filter(|line| line["route"] == PATH).collect();
    let [line] = of_streams[..] else { panic!("{of_streams:?}") };
    assert_eq!((&line["name"], &line["status"]), (&json!("bot"), &json!(200)), "{line}");
    assert_eq!(
        line["targets"],
        json!({"conversations": ["d:bob:system", "g:*"], "users": ["bob"]}),
        "{line}"
    );
}
