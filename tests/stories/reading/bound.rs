//! Bounds of what a user can read of a conversation, as back ends set them, and what clients then get.

use serde_json::{Value, json};
use tidegate_protocol::{Code, codec::Wire};

use super::{get, refused, seqs};
use crate::support::{Client, TestNode, ask, seqs_of};

const PATH: &str = "/v1/users/bob/conversations/d:alice:bob";
const PLACE: &str = "d:alice:bob";

fn bound(node: &TestNode, seq: &Value) -> Value {
    let (status, state) = node.admin("PATCH", PATH, &json!({ "maxSeq": seq }));
    assert_eq!(status, 200, "{state}");
    state
}

/// Sends texts of alice to bob, with seqs from `first` to `last`.
fn talk(alice: &mut Client, first: u64, last: u64) {
    for seq in first..=last {
        assert_eq!(alice.text("bob", &format!("m{seq}"), &format!("text {seq}")), seq);
    }
}

#[test]
fn bound_cuts_everything_that_back_ends_read_as_the_user() {
    let node = TestNode::start(|_| {});
    talk(&mut node.login(Wire::Tcp, "alice", "phone"), 1, 9);
    let state = bound(&node, &json!(4));
    assert_eq!((&state["maxSeq"], &state["boundSeq"], &state["unread"]), (&json!(4), &json!(4), &json!(4)));
    assert_eq!(state["last"]["seq"], json!(4));
    assert_eq!(get(&node, PATH), state);
    let page = |query: &str| get(&node, &format!("/v1/conversations/d:alice:bob/messages?as=bob{query}"));
    let whole = page("");
    assert_eq!((seqs(&whole["messages"]), &whole["completeTo"]), (vec![4, 3, 2, 1], &json!(4)));
    assert_eq!(whole.get("newer"), None, "nothing follows the bound");
    assert_eq!(seqs(&page("&direction=forward")["messages"]), [1, 2, 3, 4]);
    assert_eq!(seqs(&page("&seqs=2,4,5,9")["messages"]), [2, 4]);
    assert_eq!(seqs(&page("&around=3")["messages"]), [1, 2, 3, 4]);
    assert_eq!(seqs(&page("&since=1")["messages"]), [1, 2, 3, 4]);
    let one = |seq: u64| format!("/v1/conversations/d:alice:bob/messages/{seq}?as=bob");
    assert_eq!(get(&node, &one(4))["seq"], json!(4));
    assert_eq!(refused(&node, "GET", &one(5), &Value::Null).0, 404);
    assert_eq!(seqs(&get(&node, "/v1/users/bob/messages")["messages"]), [4, 3, 2, 1]);
    assert_eq!(get(&node, "/v1/users/bob/unread")["unread"], json!(4));
    let named = json!({"conversations": [PLACE]});
    let (_, heads) = node.admin("POST", "/v1/users/bob/conversations/heads", &named);
    assert_eq!((&heads["heads"][0]["maxSeq"], &heads["heads"][0]["unread"]), (&json!(4), &json!(4)));
    assert_eq!(seqs(&get(&node, "/v1/users/alice/messages")["messages"]).len(), 9, "only bob's view");
    // The bound is changed first, and what is read is cut to it.
    let (_, state) = node.admin("PATCH", PATH, &json!({"readSeq": 8, "maxSeq": 6}));
    assert_eq!((&state["readSeq"], &state["maxSeq"], &state["unread"]), (&json!(6), &json!(6), &json!(0)));
    let state = bound(&node, &json!(2));
    assert_eq!((&state["readSeq"], &state["maxSeq"]), (&json!(2), &json!(2)));
    let state = bound(&node, &json!(999));
    assert_eq!((&state["maxSeq"], &state["boundSeq"], &state["readSeq"]), (&json!(9), &json!(9), &json!(6)));
    let state = bound(&node, &Value::Null);
    assert_eq!((&state["maxSeq"], state.get("boundSeq"), &state["unread"]), (&json!(9), None, &json!(3)));
    for wrong in [json!(0), json!(-1), json!("4"), json!(1.5), json!(1_u64 << 53)] {
        assert_eq!(refused(&node, "PATCH", PATH, &json!({ "maxSeq": wrong })).0, 400, "{wrong}");
    }
    assert_eq!(refused(&node, "PATCH", "/v1/users/eve/conversations/g:team", &json!({"maxSeq": 1})).0, 404);
}

#[test]
fn bounded_client_reads_up_to_the_bound_and_pulls_past_a_hole() {
    let node = TestNode::start(|_| {});
    let mut alice = node.login(Wire::Tcp, "alice", "phone");
    talk(&mut alice, 1, 6);
    bound(&node, &json!(3));
    let mut bob = node.login(Wire::WsText, "bob", "phone");
    let state = bob.state(PLACE);
    assert_eq!((state.max_seq, state.unread, state.last.map(|push| push.seq)), (3, 3, Some(3)));
    let page = bob.page(ask::after(PLACE, 0, 9));
    assert_eq!((seqs_of(&page), page.complete_to), (vec![1, 2, 3], 3));
    talk(&mut alice, 7, 7);
    assert_eq!(bob.expect_push().seq, 7, "pushes go on");
    let page = bob.page(ask::after(PLACE, 3, 9));
    let ranges: Vec<(u64, u64)> = page.expired.iter().map(|range| (range.first, range.last)).collect();
    assert_eq!((page.messages.len(), ranges, page.complete_to), (0, vec![(4, 7)], 7));
    assert_eq!(bob.refused(ask::after(PLACE, 7, 9)), Code::NotYet);
    let page = bob.page(ask::seqs(PLACE, &[5, 6, 8]));
    assert_eq!(page.expired.iter().map(|range| range.first).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(seqs_of(&bob.page(ask::before(PLACE, 0, 9))), [3, 2, 1]);
    bob.expect_done(ask::read(PLACE, 7));
    let state = bob.state(PLACE);
    assert_eq!((state.read_seq, state.unread), (3, 0), "not beyond the bound");
    // Only reading is bounded.
    assert_eq!(bob.text("alice", "b1", "from bob"), 8);
    let recall = bob.say(ask::recall(PLACE, 8));
    assert_eq!(bob.expect_ack(recall).seq, 9);
    bound(&node, &Value::Null);
    let page = bob.page(ask::after(PLACE, 3, 9));
    assert_eq!((seqs_of(&page), page.recalled, page.complete_to), (vec![4, 5, 6, 7, 9], vec![8], 9));
    assert_eq!(bob.state(PLACE).unread, 4);
}
