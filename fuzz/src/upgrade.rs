//! Fuzz target for the HTTP upgrade: the decision is final, and each response is complete HTTP.
//!
//! It is not among `targets`, because it needs more than the protocol crate; `tests/upgrade_corpus.rs` replays it.

use crate::net::upgrade::{HEAD_BYTES_MAX, Policy, UpgradeProgress, upgrade as parse};

/// Parses a request in pieces and as a whole. The first byte is the size of the pieces, the others are the request.
pub fn upgrade(data: &[u8]) {
    let Some((size, request)) = data.split_first() else { return };
    let policy = Policy { origins: vec!["https://chat.example.org".to_owned()], ..Policy::default() };
    let whole = parse(request, &policy);
    let mut end = 0;
    while end < request.len() {
        end = request.len().min(end + usize::from(*size).max(1));
        match parse(&request[..end], &policy) {
            Ok(UpgradeProgress::NeedMore) => {
                assert!(end < HEAD_BYTES_MAX, "a head over the limit must be refused")
            }
            Ok(done @ (UpgradeProgress::Done { .. } | UpgradeProgress::Assign(_))) => {
                return assert_eq!(Ok(done), whole);
            }
            Err(refusal) => {
                assert!(whole.is_err(), "more bytes must not lift a refusal: {refusal:?}");
                break;
            }
        }
    }
    match whole {
        Ok(UpgradeProgress::NeedMore | UpgradeProgress::Assign(_)) => {}
        Ok(UpgradeProgress::Done { consumed, response, .. }) => {
            assert!(consumed <= request.len().min(HEAD_BYTES_MAX));
            check_response(&response, "HTTP/1.1 101 ");
        }
        Err(refusal) => check_response(&refusal.response, &format!("HTTP/1.1 {} ", refusal.status)),
    }
}

/// Checks that the bytes are one response: a status line, headers, and a body of the length that they declare.
fn check_response(response: &[u8], begin: &str) {
    let text = std::str::from_utf8(response).expect("a response is text");
    assert!(text.starts_with(begin), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").expect("the head ends");
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    assert_eq!(body.len(), length.unwrap_or(0_usize), "{text}");
}
