//! Lines that people read: one for each frame or event, without characters that would act on a terminal.

use serde_json::Value;
use tidegate_protocol::{
    codec::{self, Framing},
    content::ContentBody,
    pb::{self, server_frame::Body as ServerBody},
};

use crate::{
    cli::admin::{cell, printable},
    clock::rfc3339,
};

/// Renders a frame: time, conversation, seq, sender and text of a message; the name and the fields of anything else.
pub(super) fn of_frame(frame: &pb::ServerFrame) -> String {
    if let Some(ServerBody::Push(push)) = &frame.body
        && let Some(text) = text(push)
    {
        let (conversation, sender) = (printable(&push.conversation), printable(&push.sender));
        return format!("{}  {conversation}  {}  {sender}  {text}", time(push.time), push.seq);
    }
    let json = of_json(frame);
    let fields: Value = serde_json::from_str(&json).unwrap_or_default();
    let named = fields.as_object().and_then(|fields| fields.iter().find(|(key, _)| *key != "id"));
    match named {
        Some((name, fields)) => format!("* {name}  {}", printable(&fields.to_string())),
        None => printable(&json),
    }
}

/// Renders a frame as the JSON that a client gets.
pub(super) fn of_json(frame: &pb::ServerFrame) -> String {
    let mut line = Vec::new();
    codec::encode_server(frame, Framing::Json, &mut line);
    String::from_utf8_lossy(&line).into_owned()
}

/// Renders an event: its time, type, subject and data.
pub(in crate::cli) fn of_event(json: &str) -> String {
    let event: Value = serde_json::from_str(json).unwrap_or_default();
    let time = event["time"].as_str().and_then(|time| time.get(11..19)).unwrap_or("--:--:--");
    let [kind, subject] = ["type", "subject"].map(|key| cell(&event[key]));
    printable(&format!("{time}  {kind}  {subject}  {}", event["data"]))
}

/// Returns the text of a message, or the size of its bytes; `None` for other pushes.
fn text(push: &pb::Push) -> Option<String> {
    match push.content.as_ref()?.body.as_ref()? {
        ContentBody::Text(text) => Some(printable(text)),
        ContentBody::Data(data) => Some(format!("({} bytes)", data.len())),
    }
}

/// Returns the time of day, in UTC.
fn time(ms: u64) -> String {
    rfc3339(ms).get(11..19).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::content::Content;

    use super::*;

    fn push(content: Option<Content>) -> pb::ServerFrame {
        let push = pb::Push {
            conversation: "d:alice:bob".to_owned(),
            seq: 4,
            sender: "alice".to_owned(),
            time: 1_795_973_344_596,
            content,
            recall: None,
            ..Default::default()
        };
        pb::ServerFrame { id: 0, body: Some(ServerBody::Push(push)) }
    }

    #[test]
    fn message_is_one_line_that_does_not_act_on_the_terminal() {
        let line = of_frame(&push(Some(Content::text("hello\n\u{1b}[2J"))));
        assert_eq!(line, "17:29:04  d:alice:bob  4  alice  hello\\n\\u{1b}[2J");
        let other = of_frame(&push(None));
        assert!(other.starts_with("* push  {") && other.contains("\"seq\":4"), "{other}");
    }

    #[test]
    fn event_is_one_line() {
        let event = r#"{"type":"tidegate.online","subject":"bob","time":"2025-11-21T08:00:00.124Z","data":{"node":"n1"}}"#;
        assert_eq!(of_event(event), "08:00:00  tidegate.online  bob  {\"node\":\"n1\"}");
        assert_eq!(of_event("nothing"), "--:--:--      null");
    }
}
