//! Watches of who of a conversation is online, as the session passes them on.

use tidegate_protocol::pb::{self, client_frame::Body as ClientBody};

use super::support::Conn;

#[test]
fn watch_is_a_query_of_a_conversation_with_members() {
    let watch = |conversation: &str, stop| {
        ClientBody::Watch(pb::Watch { conversation: conversation.to_owned(), stop })
    };
    let mut conn = Conn::plain();
    conn.frame(1, watch("nowhere", false));
    conn.frame(2, watch("r:hall", false));
    conn.frame(3, watch("d:bob:cid", false));
    assert_eq!(conn.output(), ["1 BAD_ID", "2 UNSUPPORTED", "3 FORBIDDEN"]);
    conn.frame(4, watch("g:a", true));
    assert_eq!(conn.output(), ["4 Watch { conversation: g:a, stop: true }"]);
    assert!(!conn.session.wants_read(&conn.limits), "until it is answered");
    conn.input(|s, _, _, out| s.query_done(4, out));
    assert_eq!(conn.output(), ["4 done"]);
}
