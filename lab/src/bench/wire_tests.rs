//! Tests of the hand-written wire against the generated one.

use super::*;
use prost::Message as _;
use tidegate_protocol::{
    content::{Content, ContentBody},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

fn client(bytes: &[u8]) -> (u64, ClientBody) {
    let frame = pb::ClientFrame::decode(bytes).expect("decodes");
    (frame.id, frame.body.expect("has a body"))
}

#[test]
fn requests_are_what_the_schema_says() {
    let (id, ClientBody::Hello(hello)) = client(&hello(1, "tok", "dev")) else { panic!("no hello") };
    assert_eq!((id, hello.version, &*hello.token, &*hello.device), (1, 1, "tok", "dev"));
    let data = vec![7u8; 300];
    let (id, ClientBody::Send(send)) = client(&send(300, "g:x", "m-1", &data)) else { panic!("no send") };
    assert_eq!((id, &*send.conversation, &*send.msg_id), (300, "g:x", "m-1"));
    assert_eq!(send.content.and_then(|c| c.body), Some(ContentBody::Data(data.into())));
    let (_, ClientBody::Join(join)) = client(&join(2, "hot")) else { panic!("no join") };
    assert_eq!(&*join.room, "hot");
    let wanted = pb::Pull {
        conversation: "d:a:b".into(),
        cursor: 70_000,
        limit: 200,
        direction: pb::Direction::Forward.into(),
        ..pb::Pull::default()
    };
    assert_eq!(client(&pull(1 << 40, "d:a:b", 70_000, 200)), (1 << 40, ClientBody::Pull(wanted)));
    assert!(matches!(client(&ping(200)), (200, ClientBody::Ping(_))));
    assert!(matches!(client(&pong()), (0, ClientBody::Pong(_))));
}

#[test]
fn a_generated_push_is_read_and_a_built_one_is_the_same() {
    let data = vec![5u8; 128];
    let frame = pb::ServerFrame {
        id: 0,
        body: Some(ServerBody::Push(pb::Push {
            conversation: "g:bench".into(),
            seq: 70_000,
            sender: "p0".into(),
            msg_id: "m-1".into(),
            time: 1_763_712_000_000,
            content: Some(Content::data(data.clone())),
            ..Default::default()
        })),
    };
    let bytes = frame.encode_to_vec();
    let seen = view(&bytes).expect("a frame");
    assert_eq!((seen.id, seen.kind), (0, kind::PUSH));
    assert_eq!(push_view(seen.body), Some(PushView { seq: 70_000, data: &data }));
    let built = push(&PushParts {
        conversation: "g:bench",
        seq: 70_000,
        sender: "p0",
        msg_id: "m-1",
        time: 1_763_712_000_000,
        data: &data,
    });
    assert_eq!(built, bytes);
}

#[test]
fn a_page_is_read_with_what_it_can_not_give() {
    let entry = |seq| pb::Push {
        conversation: "d:a:b".into(),
        seq,
        content: Some(Content::data(vec![seq as u8; 20])),
        ..pb::Push::default()
    };
    let page = pb::Page {
        conversation: "d:a:b".into(),
        messages: vec![entry(5), entry(6)],
        complete_to: 9,
        ..pb::Page::default()
    };
    let bytes = page.encode_to_vec();
    let entries = vec![PushView { seq: 5, data: &[5; 20] }, PushView { seq: 6, data: &[6; 20] }];
    assert_eq!(page_view(&bytes), Some(PageView { entries, has_losses: false }));
    assert_eq!(conversation_of(&bytes), Some("d:a:b"));
    let recalled = pb::Page { recalled: vec![7], ..page.clone() }.encode_to_vec();
    let expired = pb::Page { expired: vec![pb::SeqRange { first: 7, last: 8 }], ..page }.encode_to_vec();
    for bytes in [recalled, expired] {
        assert!(page_view(&bytes).is_some_and(|page| page.has_losses && page.entries.len() == 2));
    }
    let behind = pb::Behind { conversation: "d:a:b".into(), max_seq: 70_000 }.encode_to_vec();
    assert_eq!((conversation_of(&behind), number_of(&behind, 2)), (Some("d:a:b"), 70_000));
}

#[test]
fn kinds_are_the_field_numbers() {
    let bodies = [
        (ServerBody::SendAck(pb::SendAck::default()), kind::SEND_ACK),
        (ServerBody::Error(pb::Error::default()), kind::ERROR),
        (ServerBody::Pong(pb::Pong::default()), kind::PONG),
        (ServerBody::Welcome(pb::Welcome::default()), kind::WELCOME),
        (ServerBody::Done(pb::Done::default()), kind::DONE),
        (ServerBody::Behind(pb::Behind::default()), kind::BEHIND),
        (ServerBody::Shed(pb::Shed::default()), kind::SHED),
        (ServerBody::GoAway(pb::GoAway::default()), kind::GO_AWAY),
        (ServerBody::Close(pb::Close::default()), kind::CLOSE),
        (ServerBody::Page(pb::Page::default()), kind::PAGE),
        (ServerBody::ConversationState(pb::ConversationState::default()), kind::CONVERSATION_STATE),
        (ServerBody::SyncEnd(pb::SyncEnd::default()), kind::SYNC_END),
        (ServerBody::Ping(pb::Ping::default()), kind::PING),
    ];
    for (body, wanted) in bodies {
        let bytes = pb::ServerFrame { id: 9, body: Some(body) }.encode_to_vec();
        let seen = view(&bytes).expect("a frame");
        assert_eq!((seen.id, seen.kind), (9, wanted));
    }
    let shed = pb::Shed { room: "r".into(), count: 77 }.encode_to_vec();
    assert_eq!(number_of(&shed, 2), 77);
    let error = pb::Error { code: 2001, name: "BAD".into(), message: "no".into(), ..Default::default() };
    assert_eq!(reason(&error.encode_to_vec()), "2001 BAD no");
}

#[test]
fn units_come_out_of_any_split() {
    for transport in [BenchTransport::Tcp, BenchTransport::Ws] {
        for size in [0, 1, 125, 126, 127, 128, 300, 70_000] {
            let payload = vec![3u8; size];
            let mut bytes = Vec::new();
            put_server(transport, &payload, &mut bytes);
            for cut in [0, 1, 2, 3, bytes.len() - 1] {
                if cut < bytes.len() {
                    assert_eq!(next(transport, &bytes[..cut]), Ok(None), "{transport:?} {size} {cut}");
                }
            }
            let total = bytes.len();
            bytes.extend_from_slice(b"more");
            assert_eq!(next(transport, &bytes), Ok(Some((Unit::Frame(&payload), total))));
        }
    }
}

#[test]
fn a_client_frame_unmasks_to_itself() {
    let mut bytes = Vec::new();
    put_client(BenchTransport::Ws, b"hello", &mut bytes);
    assert_eq!(bytes[..2], [0x82, 0x85]);
    let key = &bytes[2..6];
    let plain: Vec<u8> = bytes[6..].iter().zip(key.iter().cycle()).map(|(b, m)| b ^ m).collect();
    assert_eq!(plain, b"hello");
}

#[test]
fn nonsense_is_malformed_not_awaited() {
    assert!(next(BenchTransport::Tcp, &[0xff; 12]).is_err());
    assert!(next(BenchTransport::Tcp, &[0xff, 0xff, 0xff, 0x7f]).is_err());
    assert!(next(BenchTransport::Ws, &[0x82, 0x85, 0, 0]).is_err());
    assert!(next(BenchTransport::Ws, &[0x02, 0x01, 0]).is_err());
    assert_eq!(next(BenchTransport::Ws, &[0x89, 0x01, 7]), Ok(Some((Unit::WsPing(&[7]), 3))));
    assert_eq!(view(&[0x12, 0x05, 0]), None);
}
