//! Back ends over two nodes: streams of events of all partitions, and the program of `docs/backend.md`, whose node is
//! killed.

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Stdio},
    time::UNIX_EPOCH,
};

use serde_json::json;

use super::call;
use crate::support::{Cluster, SseStream};

/// Checks that a stream of either node has what was accepted by the owners on both.
fn streams_have_the_messages_of_all_partitions(cluster: &Cluster) {
    let mut streams: Vec<SseStream> = (0..2)
        .map(|nth| {
            let path = "/v1/events/stream?conversations=d:reader*";
            let mut stream = SseStream::open(cluster.node(nth).admin(), path, "");
            assert_eq!(stream.status(), 200);
            assert!(stream.next().expect("a first block").id.is_some());
            stream
        })
        .collect();
    // Each node owns two of four partitions, and none of them is likely to have none of 32 conversations.
    let mut sent = BTreeMap::new();
    for nth in 0..64 {
        let message = json!({"to": format!("reader{:02}", nth % 32), "content": {"text": "m"}, "requestId": format!("m{nth}")});
        let (status, answer) = call(cluster, nth % 2, "POST", "/v1/messages", &message);
        assert_eq!(status, 201, "{answer}");
        *sent.entry(answer["conversation"].as_str().expect("a key").to_owned()).or_insert(0) += 1;
    }
    for stream in &mut streams {
        let mut seen = BTreeMap::<String, u64>::new();
        while seen != sent {
            let block = stream.next().expect("the stream goes on");
            if block.event.is_empty() {
                continue;
            }
            let (key, seq) = (&block.data["data"]["conversation"], &block.data["data"]["seq"]);
            let last = seen.entry(key.as_str().expect("a key").to_owned()).or_insert(0);
            assert_eq!(seq.as_u64(), Some(*last + 1), "in order: {}", block.data);
            *last += 1;
        }
    }
}

/// Sends the receiver an event that another secret signs, or an old one; its own events are all that it may take.
fn receiver_refuses_what_is_not_signed(port: u16) {
    let body =
        r#"{"id":"g:order/1","type":"tidegate.group.created","data":{"conversation":"g:order","seq":1}}"#;
    for at in ["1700000000", &unix_seconds().to_string()] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        write!(
            stream,
            "POST / HTTP/1.1\r\nhost: back-end\r\nwebhook-id: e1\r\nwebhook-timestamp: {at}\r\n\
             webhook-signature: v1,AAAA\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    }
}

fn unix_seconds() -> u64 {
    UNIX_EPOCH.elapsed().expect("the clock is right").as_secs()
}

#[test]
fn back_end_goes_on_when_its_node_is_killed() {
    // Edits need rules that a new cluster only switches to when its nodes have agreed for a while.
    let mut cluster = Cluster::start(2, &["log.rules_settle_ms=5000", "webhooks.allow_plain=true"]);
    streams_have_the_messages_of_all_partitions(&cluster);
    let nodes: Vec<String> = (0..2).map(|nth| format!("http://{}", cluster.node(nth).admin())).collect();
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the folder of the crate");
    let mut back_end = Command::new("python3")
        .arg(Path::new(&root).join("tests/third_party/backend/backend.py"))
        .arg(nodes.join(","))
        .arg(cluster.node(1).address().to_string())
        .arg(cluster.token_key())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TIDEGATE_WEBHOOK_PORT", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut go_on = back_end.stdin.take().expect("a pipe");
    let mut lines = Vec::new();
    for line in BufReader::new(back_end.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        if let Some(port) = line.strip_prefix("webhooks come to port ") {
            receiver_refuses_what_is_not_signed(port.parse().expect("a port"));
        }
        if line == "half" {
            cluster.kill(0);
            writeln!(go_on).expect("it reads");
        }
        lines.push(line);
    }
    let end = back_end.wait().expect("it ends");
    assert!(end.success(), "{lines:?}");
    let [_, opened, connected, half, stored, read, closed, received, by_webhook] = &lines[..] else {
        panic!("{lines:?}")
    };
    assert!(opened.starts_with("opened g:order-") && half == "half", "{lines:?}");
    assert_eq!(connected, "ann was connected: KICKED");
    assert_eq!(stored, "all 20 are stored, once each and in order");
    assert_eq!((read.as_str(), closed.as_str()), ("ann has read everything", "closed: NOT_FOUND"));
    // One of the group, 20 messages, an edit, a recall and the end of the group; four messages to ann.
    assert!(received.starts_with("all 28 events were received in order, "), "{received}");
    assert!(by_webhook.starts_with("and by webhook, "), "{by_webhook}");
}
