//! Ids that no URL can name: what refuses them.

use serde_json::json;
use tidegate_protocol::{Code, codec::Wire};

use crate::support::{ServerBody, TestNode, ask, hello};

#[test]
fn dot_segments_can_not_log_in_and_are_no_targets_of_the_api() {
    let node = TestNode::start(|_| {});
    for user in [".", ".."] {
        let mut client = node.connect(Wire::JsonLine);
        let ServerBody::Error(error) = client.ask(ask::hello(hello(&node.token(user), "phone"))) else {
            panic!("{user} is not refused");
        };
        assert_eq!(error.name, Code::BadId.name());
        assert!(error.message.contains("log in with a token for another id"), "{}", error.message);
    }
    node.group("team", &["alice"]);
    let text = json!({"text": "hi"});
    let requests = [
        ("POST", "/v1/groups", json!({"id": "..", "members": ["alice"]})),
        ("POST", "/v1/groups", json!({"id": "tea", "members": ["."]})),
        ("POST", "/v1/groups/team/members", json!({"add": [".."]})),
        ("POST", "/v1/messages", json!({"to": "..", "content": text})),
        ("POST", "/v1/messages", json!({"to": "r:.", "content": text})),
        ("POST", "/v1/messages", json!({"to": "alice", "from": "..", "content": text})),
        ("GET", "/v1/conversations/g:../messages", json!(null)),
        ("GET", "/v1/users/%2E%2E/conversations", json!(null)),
        ("GET", "/v1/rooms/%2E/members", json!(null)),
        ("POST", "/v1/dev/token", json!({"user": "."})),
    ];
    for (method, path, body) in requests {
        let (status, answer) = node.admin(method, path, &body);
        assert_eq!((status, &answer["title"]), (400, &json!("BAD_ID")), "{method} {path} {body}: {answer}");
        assert!(answer.to_string().contains("choose one other than"), "the cure: {answer}");
    }
    // A member of a former version can be removed; here there is none.
    let answer = node.admin("POST", "/v1/groups/team/members", &json!({"remove": [".."]})).1;
    assert_eq!(answer["title"], "NOT_A_MEMBER");
}
