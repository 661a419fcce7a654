//! The HTTP upgrade under any bytes: told once, told for good, and always as a whole HTTP response.
//!
//! Not among `targets`, because it needs more than the protocol crate; replayed by `tests/upgrade_corpus.rs`.

use crate::net::upgrade::{HEAD_MAX, Policy, Progress, upgrade as judge};

/// The first byte is the size of the pieces in which the others come.
pub fn upgrade(data: &[u8]) {
    let Some((size, request)) = data.split_first() else { return };
    let policy = Policy { origins: vec!["https://chat.example.org".to_owned()] };
    let at_once = judge(request, &policy);
    let mut end = 0;
    while end < request.len() {
        end = request.len().min(end + usize::from(*size).max(1));
        match judge(&request[..end], &policy) {
            Ok(Progress::NeedMore) => assert!(end < HEAD_MAX, "whoever sends more is not heard"),
            Ok(done @ (Progress::Done { .. } | Progress::Assign(_))) => return assert_eq!(Ok(done), at_once),
            Err(refusal) => {
                assert!(at_once.is_err(), "more bytes make nothing good: {refusal:?}");
                break;
            }
        }
    }
    match at_once {
        Ok(Progress::NeedMore | Progress::Assign(_)) => {}
        Ok(Progress::Done { consumed, response, .. }) => {
            assert!(consumed <= request.len().min(HEAD_MAX));
            whole(&response, "HTTP/1.1 101 ");
        }
        Err(refusal) => whole(&refusal.response, &format!("HTTP/1.1 {} ", refusal.status)),
    }
}

/// One response: a status line, headers, and as much body as they say.
fn whole(response: &[u8], begin: &str) {
    let text = std::str::from_utf8(response).expect("a response is text");
    assert!(text.starts_with(begin), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").expect("the head ends");
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    assert_eq!(body.len(), length.unwrap_or(0_usize), "{text}");
}
