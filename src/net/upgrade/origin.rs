//! Origins of web pages: that of a request, and those that the same machine serves.

use httparse::{EMPTY_HEADER, Request, Status};

use super::{HEAD_BYTES_MAX, HEADERS_MAX};

/// Longest origin that is kept, in bytes.
const ORIGIN_BYTES_MAX: usize = 512;

/// Returns the web origin of the complete request at the start of `input`; `None` if it has none, or a very long one.
pub fn origin(input: &[u8]) -> Option<String> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    if !matches!(request.parse(&input[..input.len().min(HEAD_BYTES_MAX)]), Ok(Status::Complete(_))) {
        return None;
    }
    let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("origin"))?;
    let origin = std::str::from_utf8(header.value).ok()?;
    (origin.len() <= ORIGIN_BYTES_MAX).then(|| origin.to_owned())
}

/// Returns whether the origin is a page on loopback: `http://` with 127.0.0.1, localhost or `[::1]`, and any port.
pub(super) fn is_loopback_origin(origin: &[u8]) -> bool {
    let Some(rest) = origin.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"http://"))
    else {
        return false;
    };
    let rest = rest.1.to_ascii_lowercase();
    let port = ["127.0.0.1", "localhost", "[::1]"].iter().find_map(|host| rest.strip_prefix(host.as_bytes()));
    match port {
        Some([]) => true,
        Some([b':', digits @ ..]) => (1..=5).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_on_loopback_have_one_of_three_hosts() {
        for origin in [
            "http://127.0.0.1:7801",
            "http://localhost",
            "http://localhost:5173",
            "HTTP://LocalHost:1",
            "http://[::1]:65535",
        ] {
            assert!(is_loopback_origin(origin.as_bytes()), "{origin}");
        }
        for origin in [
            "",
            "null",
            "http://",
            "https://localhost",
            "http://localhost:",
            "http://localhost:123456",
            "http://localhost:80/",
            "http://localhost.evil.example",
            "http://localhost.",
            "http://127.0.0.1.evil.example:80",
            "http://127.0.0.1:80@evil.example",
            "http://127.0.0.2",
            "http://evil.example",
            "http://[::1",
            "http://\u{fc}",
        ] {
            assert!(!is_loopback_origin(origin.as_bytes()), "{origin}");
        }
    }
}
