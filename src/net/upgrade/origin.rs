//! Origins of web pages that the same machine serves.

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
