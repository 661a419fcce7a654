//! Short constructors of frames.

use tidegate_protocol::{Code, content::Content, pb};

pub use tidegate_protocol::pb::{client_frame::Body as ClientBody, server_frame::Body as ServerBody};

/// Constructors of requests, one per kind.
pub mod ask {
    use super::{ClientBody, pb};

    pub fn hello(hello: pb::Hello) -> ClientBody {
        ClientBody::Hello(hello)
    }

    pub fn send(send: pb::Send) -> ClientBody {
        ClientBody::Send(send)
    }

    pub fn ack(conversation: &str, seq: u64) -> ClientBody {
        ClientBody::Ack(pb::Ack { conversation: conversation.into(), seq })
    }

    pub fn ping() -> ClientBody {
        ClientBody::Ping(pb::Ping::default())
    }

    pub fn ping_with(positions: &[(&str, u64)]) -> ClientBody {
        ClientBody::Ping(pb::Ping { positions: self::positions(positions) })
    }

    pub fn sync(positions: &[(&str, u64)]) -> ClientBody {
        ClientBody::Sync(pb::Sync { positions: self::positions(positions) })
    }

    pub fn read(conversation: &str, seq: u64) -> ClientBody {
        ClientBody::Read(pb::Read { conversation: conversation.into(), seq })
    }

    pub fn recall(conversation: &str, seq: u64) -> ClientBody {
        ClientBody::Recall(pb::Recall { conversation: conversation.into(), seq })
    }

    pub fn edit(conversation: &str, seq: u64, msg_id: &str, text: &str) -> ClientBody {
        let content = Some(tidegate_protocol::content::Content::text(text));
        ClientBody::Edit(pb::Edit { conversation: conversation.into(), seq, content, msg_id: msg_id.into() })
    }

    pub fn clear(conversation: &str, seq: u64) -> ClientBody {
        ClientBody::Clear(pb::Clear { conversation: conversation.into(), seq })
    }

    pub fn hide(conversation: &str, seqs: &[u64]) -> ClientBody {
        ClientBody::Hide(pb::Hide { conversation: conversation.into(), seqs: seqs.to_vec() })
    }

    /// Builds a signal for `place`: a conversation key (it has a colon), or a user.
    pub fn signal(place: &str, kind: &str, text: &str) -> ClientBody {
        let (conversation, to_user) = if place.contains(':') { (place, "") } else { ("", place) };
        ClientBody::Signal(pb::Signal {
            conversation: conversation.into(),
            to_user: to_user.into(),
            kind: kind.into(),
            content: (!text.is_empty()).then(|| tidegate_protocol::content::Content::text(text)),
            ..Default::default()
        })
    }

    pub fn after(conversation: &str, cursor: u64, limit: u32) -> ClientBody {
        let (conversation, direction) = (conversation.into(), pb::Direction::Forward as i32);
        ClientBody::Pull(pb::Pull { conversation, cursor, limit, direction, ..Default::default() })
    }

    pub fn before(conversation: &str, cursor: u64, limit: u32) -> ClientBody {
        let (conversation, direction) = (conversation.into(), pb::Direction::Backward as i32);
        ClientBody::Pull(pb::Pull { conversation, cursor, limit, direction, ..Default::default() })
    }

    pub fn seqs(conversation: &str, seqs: &[u64]) -> ClientBody {
        let (conversation, seqs) = (conversation.into(), seqs.to_vec());
        ClientBody::Pull(pb::Pull { conversation, seqs, ..Default::default() })
    }

    pub fn around(conversation: &str, cursor: u64, limit: u32) -> ClientBody {
        let (conversation, direction) = (conversation.into(), pb::Direction::Around as i32);
        ClientBody::Pull(pb::Pull { conversation, cursor, limit, direction, ..Default::default() })
    }

    pub fn since(conversation: &str, time: u64, limit: u32) -> ClientBody {
        ClientBody::Pull(pb::Pull { conversation: conversation.into(), time, limit, ..Default::default() })
    }

    fn positions(positions: &[(&str, u64)]) -> Vec<pb::Position> {
        let position = |(conversation, seq): &(&str, u64)| pb::Position {
            conversation: (*conversation).into(),
            seq: *seq,
        };
        positions.iter().map(position).collect()
    }

    pub fn next_id() -> ClientBody {
        ClientBody::NextId(pb::NextId {})
    }

    pub fn join(room: &str) -> ClientBody {
        ClientBody::Join(pb::Join { room: room.into() })
    }

    pub fn react(room: &str, kind: &str) -> ClientBody {
        ClientBody::React(pb::React { room: room.into(), kind: kind.into() })
    }

    pub fn watch(conversation: &str) -> ClientBody {
        ClientBody::Watch(pb::Watch { conversation: conversation.into(), stop: false })
    }

    pub fn unwatch(conversation: &str) -> ClientBody {
        ClientBody::Watch(pb::Watch { conversation: conversation.into(), stop: true })
    }

    pub fn leave(room: &str) -> ClientBody {
        ClientBody::Leave(pb::Leave { room: room.into(), ..Default::default() })
    }

    pub fn leave_group(conversation: &str) -> ClientBody {
        ClientBody::Leave(pb::Leave { conversation: conversation.into(), ..Default::default() })
    }

    pub fn bye() -> ClientBody {
        ClientBody::Bye(pb::Bye {})
    }
}

/// Builds a Hello without a chain.
pub fn hello(token: &str, device: &str) -> pb::Hello {
    pb::Hello { version: 1, token: token.into(), device: device.into(), ..Default::default() }
}

/// Builds a text for `place`: a conversation key (it has a colon), or a user.
pub fn send(place: &str, msg_id: &str, text: &str) -> pb::Send {
    let (conversation, to_user) = if place.contains(':') { (place, "") } else { ("", place) };
    pb::Send {
        conversation: conversation.into(),
        to_user: to_user.into(),
        msg_id: msg_id.into(),
        content: Some(Content::text(text)),
        ..Default::default()
    }
}

/// Returns the text of a push.
pub fn text_of(push: &pb::Push) -> &str {
    use tidegate_protocol::content::ContentBody;
    match push.content.as_ref().and_then(|content| content.body.as_ref()) {
        Some(ContentBody::Text(text)) => text,
        other => panic!("no text: {other:?}"),
    }
}

/// Returns the seqs of a page's messages.
pub fn seqs_of(page: &pb::Page) -> Vec<u64> {
    page.messages.iter().map(|push| push.seq).collect()
}

/// Returns the code with that number.
pub fn code(number: u32) -> Code {
    let known = u16::try_from(number).ok().and_then(Code::from_number);
    known.unwrap_or_else(|| panic!("{number} is no code"))
}
