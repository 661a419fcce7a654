//! Reads of back ends over several nodes: any node accepts a cursor, and shows what another one has just acked.

use serde_json::Value;
use tidegate_protocol::codec::Wire;

use crate::support::Cluster;

fn get(cluster: &Cluster, nth: usize, path: &str) -> Value {
    let text = cluster.node(nth).http("GET", path, "");
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{path}: {text}"))
}

fn seqs(page: &Value) -> Vec<u64> {
    let messages = page["messages"].as_array().unwrap_or_else(|| panic!("a page: {page}"));
    messages.iter().map(|it| it["seq"].as_u64().expect("a seq")).collect()
}

#[test]
fn pages_are_read_by_cursor_through_two_nodes_and_show_what_was_acked() {
    for sets in [&[][..], &["log.answer=decided", "log.allow_one_copy=true"]] {
        let cluster = Cluster::start(2, sets);
        cluster.all_sure();
        let mut ann = cluster.login(0, Wire::Tcp, "ann");
        for n in 1..=20 {
            assert_eq!(ann.text("bob", &format!("m{n}"), "text"), n);
            let page = get(&cluster, 1, "/v1/conversations/d:bob:ann/messages?limit=1");
            assert_eq!(seqs(&page), [n], "{sets:?}: what was acked is there on another node");
            let newest = get(&cluster, 1, "/v1/users/bob/messages?limit=1");
            assert_eq!(seqs(&newest), [n], "{sets:?}");
            assert_eq!(get(&cluster, 1, "/v1/users/bob/unread")["unread"], n, "{sets:?}");
            let state = get(&cluster, 1, "/v1/users/bob/conversations/d:ann:bob");
            assert_eq!(state["maxSeq"], n, "{sets:?}");
        }
        let list = "/v1/conversations/d:ann:bob/messages?limit=3";
        let (mut found, mut path) = (Vec::new(), list.to_owned());
        for nth in (0..2).cycle() {
            let page = get(&cluster, nth, &path);
            found.extend(seqs(&page));
            let Some(older) = page["older"].as_str() else { break };
            path = format!("{list}&cursor={older}");
        }
        assert_eq!(found, (1..=20).rev().collect::<Vec<u64>>());
        let newest = get(&cluster, 0, "/v1/users/bob/messages?limit=5");
        let next = newest["next"].as_str().expect("a cursor");
        let rest = get(&cluster, 1, &format!("/v1/users/bob/messages?limit=5&cursor={next}"));
        assert_eq!((seqs(&newest), seqs(&rest)), ((16..=20).rev().collect(), (11..=15).rev().collect()));
        let body = r#"{"readSeq":18}"#;
        cluster.node(0).http("PATCH", "/v1/users/bob/conversations/d:ann:bob", body);
        assert_eq!(get(&cluster, 1, "/v1/users/bob/unread")["unread"], 2, "marks are there at once");
    }
}
