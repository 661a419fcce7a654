//! Tests of the bytes of a cursor.

use proptest::prelude::*;
use std::time::Duration;
use tidegate_protocol::{
    id::ConversationId,
    machine::webhook::{
        ASIDE_MAX, CURSOR_BYTES_MAX, LANES_MAX, PARKED_MAX, ParkedConversation, WebhookAside, WebhookCursor,
        WebhookCursorError, WebhookEvent, WebhookEventKind, WebhookFailure,
    },
};

fn parked(key: &str) -> ParkedConversation {
    ParkedConversation {
        conversation: ConversationId::parse(key).unwrap(),
        next: 3,
        up_to: 300,
        pruned: 2,
        awaits_replay: true,
        tries: 5,
        failing: Duration::from_millis(1_000),
        refused: Some(Duration::ZERO),
    }
}

fn aside(key: &str, kind: WebhookEventKind) -> WebhookAside {
    let conversation = ConversationId::parse(key).unwrap();
    let event = WebhookEvent { conversation, seq: 4, kind };
    WebhookAside { event, tries: 9, at_ms: 1_795_269_992_559, failure: WebhookFailure::Status(500) }
}

#[test]
fn cursor_has_its_golden_bytes() {
    let cursor = WebhookCursor {
        lanes: vec![1, 300],
        last_order: 7,
        is_disabled: true,
        parked: vec![parked("g:a")],
        aside: vec![aside("g:b", WebhookEventKind::Edit), aside("g:b", WebhookEventKind::Pruned)],
    };
    let golden = b"\x01\x02\x01\xac\x02\x07\x01\
        \x01\x03g:a\x03\xac\x02\x02\x01\x05\xe8\x07\x01\
        \x02\x03g:b\x05\x04\x09\xef\xc0\xb8\xf3\x9f\x34\xf4\x03\x03g:b\x01\x04\x09\xef\xc0\xb8\xf3\x9f\x34\xf4\x03";
    assert_eq!(cursor.encode(), golden);
    assert_eq!(WebhookCursor::decode(golden), Ok(cursor));
    assert_eq!(WebhookCursor::at(5, 2).encode(), b"\x01\x02\x05\x05\0\0\0\0");
}

#[test]
fn newer_version_is_named_and_damage_is_refused() {
    assert_eq!(WebhookCursor::decode(b"\x02\x01\x05\0\0\0\0"), Err(WebhookCursorError::Version(2)));
    let bytes = WebhookCursor { parked: vec![parked("g:a")], ..WebhookCursor::at(1, 2) }.encode();
    for len in 0..bytes.len() {
        assert_eq!(WebhookCursor::decode(&bytes[..len]), Err(WebhookCursorError::Damaged), "{len}");
    }
    for damaged in [
        &b"\x01\0\0\0\0\0"[..],
        b"\x01\x01\x05\0\0\0\0\0",
        b"\x01\x01\x05\0\x02\0\0",
        b"\x01\x21\0\0",
        b"\x01\x01\x05\0\0\x01\x01x\0",
    ] {
        assert_eq!(WebhookCursor::decode(damaged), Err(WebhookCursorError::Damaged), "{damaged:?}");
    }
}

#[test]
fn lists_have_bounds() {
    let many = |parked_count: usize, aside_count: usize| WebhookCursor {
        parked: (0..parked_count).map(|nth| parked(&format!("g:{nth}"))).collect(),
        aside: vec![aside("g:a", WebhookEventKind::Entry); aside_count],
        ..WebhookCursor::at(u64::MAX, LANES_MAX)
    };
    let full = many(PARKED_MAX, ASIDE_MAX);
    assert!(full.encode().len() <= CURSOR_BYTES_MAX);
    assert_eq!(WebhookCursor::decode(&full.encode()), Ok(full));
    for beyond in [many(PARKED_MAX + 1, 0), many(0, ASIDE_MAX + 1)] {
        assert_eq!(WebhookCursor::decode(&beyond.encode()), Err(WebhookCursorError::Damaged));
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_to_what_encodes_again_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let versioned = [&[1][..], &bytes].concat();
        if let Ok(cursor) = WebhookCursor::decode(&versioned) {
            prop_assert_eq!(WebhookCursor::decode(&cursor.encode()), Ok(cursor));
        }
    }
}
