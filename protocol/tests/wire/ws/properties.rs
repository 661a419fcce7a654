//! Property tests of WebSocket framing with arbitrary bytes, splits and characters.

use proptest::{collection::vec, prelude::*};
use tidegate_protocol::ws::{Decoder, Kind, Opcode, WsLimits, WsViolation, encode_fragment};

use crate::corpus::targets::ws::{OwnedEvent, feed};

/// Generates mostly valid frames, so that sequences get far, and some invalid ones.
fn frame(masked: bool) -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => Just(Opcode::Continuation),
        2 => Just(Opcode::Text),
        2 => Just(Opcode::Binary),
        1 => Just(Opcode::Ping),
        1 => Just(Opcode::Pong),
        1 => Just(Opcode::Close),
    ];
    let payload = prop_oneof![
        4 => "\\PC{0,40}".prop_map(String::into_bytes),
        1 => vec(any::<u8>(), 0..130),
        1 => Just(b"\x03\xe8bye".to_vec()),
    ];
    (opcode, payload, any::<bool>(), any::<[u8; 4]>()).prop_map(move |(opcode, payload, last, key)| {
        let control = matches!(opcode, Opcode::Ping | Opcode::Pong | Opcode::Close);
        let mut out = Vec::new();
        encode_fragment(last || control, opcode, &payload, masked.then_some(key), &mut out);
        out
    })
}

fn cuts_agree(bytes: &[u8], size: usize, decoder: fn() -> Decoder) {
    let whole = feed([bytes], decoder());
    assert_eq!(feed(bytes.chunks(1), decoder()), whole);
    assert_eq!(feed(bytes.chunks(size), decoder()), whole);
    let (front, back) = bytes.split_at(size.min(bytes.len()));
    assert_eq!(feed([front, back], decoder()), whole);
}

proptest! {
    #[test]
    fn any_split_of_client_frames_gives_the_same_events(frames in vec(frame(true), 0..8), size in 1_usize..400) {
        cuts_agree(&frames.concat(), size, Decoder::server);
    }

    #[test]
    fn any_split_of_server_frames_gives_the_same_events(frames in vec(frame(false), 0..8), size in 1_usize..400) {
        cuts_agree(&frames.concat(), size, Decoder::client);
    }

    #[test]
    fn random_bytes_never_panic_and_any_split_agrees(bytes in vec(any::<u8>(), 0..600), size in 1_usize..64) {
        cuts_agree(&bytes, size, Decoder::server);
        cuts_agree(&bytes, size, Decoder::client);
    }

    #[test]
    fn a_flipped_bit_never_panics(
        frames in vec(frame(true), 1..5),
        at in any::<prop::sample::Index>(),
        bit in 0..8,
        size in 1_usize..64,
    ) {
        let mut bytes = frames.concat();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        cuts_agree(&bytes, size, Decoder::server);
    }

    #[test]
    fn fragments_assemble_to_the_message(
        text in "\\PC{0,60}",
        mut cuts in vec(any::<prop::sample::Index>(), 0..5),
        key in any::<[u8; 4]>(),
    ) {
        let bytes = text.as_bytes();
        cuts.sort_by_key(|cut| cut.index(bytes.len() + 1));
        let (mut wire, mut start) = (Vec::new(), 0);
        for (n, cut) in cuts.iter().map(|cut| cut.index(bytes.len() + 1)).enumerate() {
            let opcode = if n == 0 { Opcode::Text } else { Opcode::Continuation };
            encode_fragment(false, opcode, &bytes[start..cut], Some(key), &mut wire);
            start = cut;
        }
        let opcode = if cuts.is_empty() { Opcode::Text } else { Opcode::Continuation };
        encode_fragment(true, opcode, &bytes[start..], Some(key), &mut wire);
        let mut expected = vec![OwnedEvent::Part; cuts.len()];
        expected.extend([OwnedEvent::Message(Kind::Text, bytes.to_vec()), OwnedEvent::Rest(0)]);
        prop_assert_eq!(feed([&wire[..]], Decoder::server()), expected);
    }

    #[test]
    fn text_is_refused_at_the_first_invalid_byte(
        good in "\\PC{0,3}",
        bad in vec(prop_oneof![0x80_u8..=0xFF, any::<u8>()], 1..4),
    ) {
        let limits = WsLimits { message_bytes_max: 300, fragments_max: 100 };
        let bytes = [good.as_bytes(), &bad].concat();
        let mut decoder = Decoder::server();
        for (n, byte) in bytes.iter().enumerate() {
            let opcode = if n == 0 { Opcode::Text } else { Opcode::Continuation };
            let mut wire = Vec::new();
            encode_fragment(false, opcode, &[*byte], Some([1, 2, 3, 4]), &mut wire);
            let spoiled = std::str::from_utf8(&bytes[..=n]).is_err_and(|error| error.error_len().is_some());
            match decoder.next(&mut wire, &limits) {
                Ok(_) => prop_assert!(!spoiled, "{:x?}", &bytes[..=n]),
                Err(violation) => {
                    prop_assert_eq!(violation, WsViolation::NotUtf8);
                    prop_assert!(spoiled, "{:x?}", &bytes[..=n]);
                    return Ok(());
                }
            }
        }
        let mut wire = Vec::new();
        encode_fragment(true, Opcode::Continuation, &[], Some([0; 4]), &mut wire);
        let ended = decoder.next(&mut wire, &limits).map(|_| ());
        let expected = if std::str::from_utf8(&bytes).is_ok() { Ok(()) } else { Err(WsViolation::NotUtf8) };
        prop_assert_eq!(ended, expected);
    }
}
