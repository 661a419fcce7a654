//! Edits, flags and structured content of a live client.

use tidegate_protocol::{
    Code,
    content::Content,
    machine::session::{Action, Query},
    pb::{self, client_frame::Body as ClientBody},
};

use super::support::{Conn, id, key, send};

fn edit(conversation: &str, seq: u64, msg_id: &str, content: Option<Content>) -> ClientBody {
    ClientBody::Edit(pb::Edit {
        conversation: conversation.to_owned(),
        seq,
        content,
        msg_id: msg_id.to_owned(),
    })
}

fn card(json: &'static str) -> Content {
    Content { json: json.as_bytes().into(), ..Content::text("see") }
}

#[test]
fn edit_becomes_a_query_that_appends() {
    let mut conn = Conn::plain();
    conn.frame(4, edit("g:a", 7, "e1", Some(card("{ \"a\" : 1 }"))));
    let Some(Action::Query { query, .. }) = conn.actions.first() else { panic!("no query") };
    let content = prost::Message::encode_to_vec(&card("{\"a\":1}")).into();
    let expected = Query::Edit { conversation: key("g:a"), seq: 7, content, msg_id: id("e1") };
    assert_eq!((&**query, query.appends()), (&expected, true));
}

#[test]
fn wrong_edit_is_refused_with_a_code() {
    let text = || Some(Content::text("x"));
    let bad = [
        (edit("g:a", 0, "e1", text()), Code::Malformed),
        (edit("g:a", 1, "", text()), Code::BadId),
        (edit("g:a", 1, "e1", None), Code::BadContent),
        (edit("g:a", 1, "e1", Some(card("{"))), Code::BadContent),
        (edit("g:a", 1, "e1", Some(Content::text("a".repeat(99)))), Code::ContentTooLarge),
        (edit("r:a", 1, "e1", text()), Code::NotFound),
        (edit("d:bob:cem", 1, "e1", text()), Code::Forbidden),
    ];
    for (body, code) in bad {
        let mut conn = Conn::plain();
        conn.frame(4, body.clone());
        assert_eq!(conn.output(), [format!("4 {}", code.name())], "{body:?}");
    }
}

#[test]
fn flags_without_a_meaning_are_refused() {
    for (conversation, flags, is_sent) in
        [("g:a", 7, true), ("g:a", 8, false), ("g:a", 1 << 16, false), ("r:a", 2, false), ("r:a", 0, true)]
    {
        let mut conn = Conn::plain();
        conn.frame(4, ClientBody::Send(pb::Send { flags, ..send(conversation, "x") }));
        assert_eq!(conn.submits.len() == 1, is_sent, "{conversation} {flags}");
        if !is_sent {
            assert_eq!(conn.output(), ["4 BAD_CONTENT"]);
        }
    }
}

#[test]
fn content_is_the_same_message_in_both_spellings_of_its_json() {
    let sent = |content: Content| {
        let mut conn = Conn::plain();
        conn.frame(4, ClientBody::Send(pb::Send { content: Some(content), ..send("g:a", "x") }));
        conn.submits.pop_front().map(|submit| submit.content)
    };
    assert!(sent(card("{ \"a\" :1}")).is_some());
    assert_eq!(sent(card("{ \"a\" :1}")), sent(card("{\"a\":1}")));
    assert_eq!(sent(card("{\"a\":1,\"a\":2}")), None);
}
