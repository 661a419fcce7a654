//! Security headers of the console: the page runs only scripts of this port, connects only to this node and to client
//! ports, and no other page can embed it or read it.

use std::fmt::Write as _;

use axum::http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
};

/// Most client addresses in a policy, which bounds the header.
const ADDRESSES_MAX: usize = 64;

const FIXED: [(HeaderName, &str); 5] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), display-capture=(), geolocation=(), hid=(), microphone=(), payment=(), serial=(), usb=()",
    ),
];

/// Returns the content security policy of a page that may connect to this port and these WebSocket addresses.
pub(super) fn policy(addresses: &[String]) -> HeaderValue {
    let mut text =
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
                    connect-src 'self'"
            .to_owned();
    for address in addresses.iter().filter(|address| is_source(address)).take(ADDRESSES_MAX) {
        write!(text, " {address}").ok();
    }
    text += "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
             trusted-types 'none'";
    // All parts are visible ASCII.
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

/// Adds the headers to a response.
pub(super) fn add(headers: &mut HeaderMap, policy: &HeaderValue) {
    headers.insert(CONTENT_SECURITY_POLICY, policy.clone());
    for (name, value) in FIXED {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// Returns whether the address is a WebSocket URL that can't end its directive. Other nodes announce these addresses.
fn is_source(address: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]/".contains(&byte);
    let rest = ["ws://", "wss://"].iter().find_map(|scheme| address.strip_prefix(scheme));
    rest.is_some_and(|rest| !rest.is_empty() && rest.len() <= 256 && rest.bytes().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_names_client_addresses_and_nothing_else() {
        let of = |addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(|it| (*it).to_owned()).collect();
            let policy = policy(&addresses).to_str().unwrap().to_owned();
            let rest = policy.split_once("connect-src 'self'").unwrap().1;
            rest.split_once("; base-uri").unwrap().0.trim().to_owned()
        };
        assert_eq!(of(&[]), "");
        assert_eq!(
            of(&["ws://127.0.0.1:7800", "wss://n2.example:443/v1/ws"]),
            "ws://127.0.0.1:7800 wss://n2.example:443/v1/ws"
        );
        for planted in [
            "ws://x; script-src *",
            "ws://x 'unsafe-inline'",
            "ws://x, default-src *",
            "http://evil.example",
            "ws://*",
            "ws://",
            "*",
            "ws://x\r\nSet-Cookie: a",
            "ws://\u{fc}",
        ] {
            assert_eq!(of(&[planted]), "", "{planted}");
        }
        let many: Vec<String> = (0..1_000).map(|n| format!("ws://127.0.0.1:{n}")).collect();
        assert!(policy(&many).len() < 4_096);
    }
}
