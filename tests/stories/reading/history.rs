//! History of a conversation for an administrator, and as users see it.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire, content::Content, pb::Send};

use super::{expired, get, refused, seqs};
use crate::support::{Client, TestNode, ask, send};

const BAD_ID: u64 = Code::BadId.number() as u64;
const BAD_CONTENT: u64 = Code::BadContent.number() as u64;
const BAD_CURSOR: u64 = Code::CursorInvalid.number() as u64;
const NOT_FOUND: u64 = Code::NotFound.number() as u64;

fn talk(client: &mut Client, place: &str, name: &str, count: u64) {
    let ids: Vec<u64> =
        (0..count).map(|n| client.say(ask::send(send(place, &format!("{name}{n}"), "text")))).collect();
    ids.into_iter().for_each(|id| drop(client.expect_ack(id)));
}

#[test]
fn history_is_paged_both_ways_with_all_kinds_of_entries() {
    let node = TestNode::start(|_| {});
    let group = node.group("team", &["alice", "bob"]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let (text, secret) = (alice.text(&group, "m2", "hello"), alice.text(&group, "m3", "secret"));
    let data = Send { content: Some(Content::data(vec![0xff, 0])), ..send(&group, "m4", "") };
    assert_eq!((text, secret, alice.send(data).seq), (2, 3, 4));
    assert!(matches!(alice.ask(ask::recall(&group, 3)), crate::support::ServerBody::SendAck(_)));
    node.kick("team", &["bob"]);
    let page = get(&node, "/v1/conversations/g:team/messages");
    assert_eq!(seqs(&page["messages"]), [6, 5, 4, 2, 1]);
    assert_eq!(
        (&page["recalled"], &page["expired"], &page["completeTo"]),
        (&json!([3]), &json!([]), &json!(6))
    );
    let entries = page["messages"].as_array().expect("a list");
    let kinds: Vec<&str> = entries.iter().filter_map(|it| it["kind"].as_str()).collect();
    assert_eq!(kinds, ["kicked", "recall", "message", "message", "created"]);
    assert_eq!((&entries[0]["users"], &entries[0]["sender"]), (&json!(["bob"]), &Value::Null));
    assert_eq!((&entries[1]["of"], &entries[1]["sender"]), (&json!(3), &json!("alice")));
    assert_eq!(entries[2]["content"], json!({"data": "/wA="}));
    let hello = &entries[3];
    assert_eq!((&hello["content"], &hello["device"]), (&json!({"text": "hello"}), &json!("phone")));
    assert_eq!((&hello["sender"], &hello["msgId"]), (&json!("alice"), &json!("m2")));
    assert!(hello["time"].as_u64().is_some_and(|time| time > 0) && page.get("older").is_none());

    // Forward, page by page, and again from the end when there is more.
    let (mut found, mut path) =
        (Vec::new(), "/v1/conversations/g:team/messages?direction=forward&limit=2".to_owned());
    let end = loop {
        let page = get(&node, &path);
        let named = seqs(&page["messages"]);
        let next = page["newer"].as_str().expect("a cursor").to_owned();
        if named.is_empty() && page["recalled"] == json!([]) {
            break next;
        }
        found.extend(named);
        path = format!("/v1/conversations/g:team/messages?limit=2&cursor={next}");
    };
    assert_eq!(found, [1, 2, 4, 5, 6]);
    assert_eq!(alice.text(&group, "m7", "more"), 7);
    let page = get(&node, &format!("/v1/conversations/g:team/messages?cursor={end}"));
    assert_eq!(seqs(&page["messages"]), [7], "a cursor of the end finds what follows");

    // Backward, and the neighbours of a page.
    let first = get(&node, "/v1/conversations/g:team/messages?limit=2");
    assert_eq!(seqs(&first["messages"]), [7, 6]);
    let older = first["older"].as_str().expect("a cursor");
    let second = get(&node, &format!("/v1/conversations/g:team/messages?limit=2&cursor={older}"));
    assert_eq!(seqs(&second["messages"]), [5, 4]);
    let newer = second["newer"].as_str().expect("a cursor");
    let back = get(&node, &format!("/v1/conversations/g:team/messages?cursor={newer}"));
    assert_eq!(seqs(&back["messages"]), [6, 7]);

    node.admin("DELETE", "/v1/groups/team", &Value::Null);
    let page = get(&node, "/v1/conversations/g:team/messages?limit=1");
    assert_eq!((seqs(&page["messages"]), page.get("newer")), (vec![8], None), "nothing can follow");
}

#[test]
fn entries_are_found_by_seq_by_neighbours_and_by_time() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::WsText, "alice", "phone");
    talk(&mut alice, "bob", "m", 9);
    alice.ask(ask::recall("d:alice:bob", 4));
    let of = |query: &str| get(&node, &format!("/v1/conversations/d:bob:alice/messages?{query}"));
    let page = of("seqs=7,3,4,3,99");
    assert_eq!((seqs(&page["messages"]), &page["recalled"]), (vec![3, 7], &json!([4])));
    assert_eq!((&page["conversation"], &page["completeTo"]), (&json!("d:alice:bob"), &json!(10)));
    assert_eq!(seqs(&of("seqs=99")["messages"]), Vec::<u64>::new());
    let page = of("around=6&limit=4");
    assert_eq!((seqs(&page["messages"]), &page["recalled"]), (vec![5, 6, 7, 8], &json!([4])));
    let time = of("seqs=1")["messages"][0]["time"].as_u64().expect("a time");
    let page = of(&format!("since={time}&limit=2"));
    assert_eq!(seqs(&page["messages"]), [1, 2]);
    assert_eq!(seqs(&of("since=9007199254740991")["messages"]), Vec::<u64>::new());

    let one = get(&node, "/v1/conversations/d:alice:bob/messages/3");
    assert_eq!(
        (&one["seq"], &one["conversation"], &one["kind"]),
        (&json!(3), &json!("d:alice:bob"), &json!("message"))
    );
    let missing = |path: &str| refused(&node, "GET", &format!("/v1/conversations/{path}"), &Value::Null);
    for path in [
        "d:alice:bob/messages/4",
        "d:alice:bob/messages/11",
        "d:alice:eve/messages/1",
        "g:none/messages",
        "d:alice:eve/messages",
        "d:alice:bob/messages?around=99",
    ] {
        assert_eq!(missing(path), (404, NOT_FOUND), "{path}");
    }
    for path in [
        "r:hall/messages",
        "alice/messages",
        "d:alice:bob/messages/0",
        "d:alice:bob/messages/x",
        "d:alice:bob/messages?as=a%20b",
    ] {
        assert_eq!(missing(path), (400, BAD_ID), "{path}");
    }
    for query in [
        "limit=0",
        "limit=201",
        "seqs=",
        "seqs=0",
        "seqs=1,x",
        "direction=up",
        "around=1&since=1",
        "cursor=AAAA&direction=forward",
        "x=1",
        "since=-1",
    ] {
        assert_eq!(missing(&format!("d:alice:bob/messages?{query}")), (400, BAD_CONTENT), "{query}");
    }
}

#[test]
fn cursor_of_another_list_or_filter_is_refused() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    talk(&mut alice, "bob", "m", 3);
    talk(&mut alice, "carol", "n", 3);
    let page = get(&node, "/v1/conversations/d:alice:bob/messages?limit=1");
    let cursor = page["older"].as_str().expect("a cursor");
    for path in [
        format!("/v1/conversations/d:alice:carol/messages?cursor={cursor}"),
        format!("/v1/conversations/d:alice:bob/messages?cursor={cursor}&as=bob"),
        format!("/v1/conversations/d:alice:bob/messages?cursor={}", &cursor[1..]),
        "/v1/conversations/d:alice:bob/messages?cursor=".to_owned(),
        "/v1/conversations/d:alice:bob/messages?cursor=x%20y".to_owned(),
        format!("/v1/users/alice/conversations?cursor={cursor}"),
        format!("/v1/users/alice/messages?cursor={cursor}"),
        format!("/v1/conversations?cursor={cursor}"),
    ] {
        assert_eq!(refused(&node, "GET", &path, &Value::Null), (400, BAD_CURSOR), "{path}");
    }
    let same = format!("/v1/conversations/d:bob:alice/messages?cursor={cursor}&limit=9");
    assert_eq!(seqs(&get(&node, &same)["messages"]), [2, 1], "the users may be in any order");
}

#[test]
fn view_of_a_removed_member_ends_where_the_membership_did() {
    let node = TestNode::start(|_| {});
    let group = node.group("team", &["alice", "bob"]);
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    let mut bob = node.login(Wire::Tcp, "bob", "phone");
    talk(&mut alice, &group, "m", 4);
    bob.expect_done(ask::clear(&group, 2));
    bob.expect_done(ask::hide(&group, &[4]));
    assert_eq!(node.kick("team", &["bob"]), 6);
    talk(&mut alice, &group, "n", 3);
    let page = get(&node, "/v1/conversations/g:team/messages?as=bob");
    assert_eq!((seqs(&page["messages"]), expired(&page)), (vec![6, 5, 3], json!([[4, 4], [1, 2]])));
    assert_eq!((&page["completeTo"], page.get("newer")), (&json!(6), None));
    let path = "/v1/conversations/g:team/messages?as=bob&direction=forward&limit=200";
    assert_eq!(seqs(&get(&node, path)["messages"]), [3, 5, 6]);
    assert_eq!(get(&node, "/v1/conversations/g:team/messages/5?as=bob")["seq"], 5);
    for seq in [1, 4, 7] {
        let path = format!("/v1/conversations/g:team/messages/{seq}?as=bob");
        assert_eq!(refused(&node, "GET", &path, &Value::Null), (404, NOT_FOUND), "{seq}");
    }
    let path = "/v1/conversations/g:team/messages?as=eve";
    let never = u64::from(Code::NotAMember.number());
    assert_eq!(refused(&node, "GET", path, &Value::Null), (403, never));
    assert_eq!(seqs(&get(&node, "/v1/conversations/g:team/messages")["messages"]).len(), 9, "all");
}

#[test]
fn pages_are_limited_in_bytes_and_end_nowhere_else() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    for n in 0..70 {
        alice.text("bob", &format!("m{n}"), &"x".repeat(16_000));
    }
    // 65 messages with their fields fit into 1 MiB.
    let list = "/v1/conversations/d:alice:bob/messages?limit=200";
    let (mut sizes, mut found, mut path) = (Vec::new(), Vec::new(), list.to_owned());
    loop {
        let page = get(&node, &path);
        let named = seqs(&page["messages"]);
        sizes.push(named.len());
        found.extend(named);
        let Some(older) = page["older"].as_str() else { break };
        path = format!("{list}&cursor={older}");
    }
    assert_eq!((found, sizes), ((1..=70).rev().collect(), vec![65, 5]));
    let newest = get(&node, "/v1/users/bob/messages?limit=200");
    assert_eq!(seqs(&newest["messages"]).len(), 66);
    let next = newest["next"].as_str().expect("a cursor");
    let rest = get(&node, &format!("/v1/users/bob/messages?limit=200&cursor={next}"));
    assert_eq!(seqs(&rest["messages"])[0], 4);
}

#[test]
fn changes_with_many_users_count_in_bytes_and_are_no_last_entry() {
    let node = TestNode::start(|_| {});
    node.group("team", &["alice"]);
    let users: Vec<String> = (0..1_000).map(|n| format!("{:060}-{n}", 0)).collect();
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    for _ in 0..12 {
        node.add("team", &users);
        node.kick("team", &users);
    }
    let list = "/v1/conversations/g:team/messages?limit=200";
    let (mut found, mut path, mut pages) = (Vec::new(), list.to_owned(), 0);
    loop {
        let page = get(&node, &path);
        assert!(page.to_string().len() <= 1 << 20, "{}", page.to_string().len());
        found.extend(seqs(&page["messages"]));
        pages += 1;
        let Some(older) = page["older"].as_str() else { break };
        path = format!("{list}&cursor={older}");
    }
    assert_eq!((found, pages), ((1..=25).rev().collect(), 2));
    let state = get(&node, "/v1/users/alice/conversations/g:team");
    assert_eq!(state["last"], Value::Null, "{}", state.to_string().len());
    let all: Vec<String> = (1..=25).map(|seq| seq.to_string()).collect();
    let page = get(&node, &format!("/v1/conversations/g:team/messages?seqs={}", all.join(",")));
    let (named, left) = (seqs(&page["messages"]), page["left"].as_array().expect("a list").len());
    assert!(left > 0 && named.len() + left == 25, "{left}");
}
