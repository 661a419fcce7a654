//! Client of a request that a proxy forwards, by its header `X-Forwarded-For` or `Forwarded` (RFC 7239).

use std::net::{IpAddr, SocketAddr};

use httparse::{EMPTY_HEADER, Request, Status};

use super::{HEAD_BYTES_MAX, HEADERS_MAX};
use crate::networks::Networks;

/// Header in which the proxies name their client. Only one is read: what a proxy does not set, it passes on from a
/// stranger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded`.
    Forwarded,
}

impl ForwardedHeader {
    /// Returns the header with this name in a configuration.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "x-forwarded-for" => Some(Self::XForwardedFor),
            "forwarded" => Some(Self::Forwarded),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }
}

/// Returns whether the request at the start of `input` has a header of either kind.
pub fn is_forwarded(input: &[u8]) -> bool {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let head = &input[..input.len().min(HEAD_BYTES_MAX)];
    let kinds = [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded];
    let is_kind = |name: &str| kinds.iter().any(|kind| name.eq_ignore_ascii_case(kind.name()));
    matches!(request.parse(head), Ok(Status::Complete(_)))
        && request.headers.iter().any(|it| is_kind(it.name))
}

/// Returns the client for which the last of the `forwarders` forwards the request at the start of `input`: the address
/// nearest to this node that is none of theirs. What stands before it is the claim of a stranger. `None` if the header
/// names no such address.
pub fn forwarded_client(input: &[u8], forwarders: &Networks, header: ForwardedHeader) -> Option<IpAddr> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let head = &input[..input.len().min(HEAD_BYTES_MAX)];
    let Ok(Status::Complete(_)) = request.parse(head) else { return None };
    let named = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(header.name()));
    let elements: Vec<&[u8]> = named.flat_map(|it| split(it.value, b',')).collect();
    let read = |element: &[u8]| match header {
        ForwardedHeader::XForwardedFor => address(element),
        ForwardedHeader::Forwarded => address_of_element(element),
    };
    for element in elements.into_iter().rev() {
        // An element that is no address, such as `unknown`, hides those before it.
        let address = read(element)?;
        if !forwarders.contains(address) {
            return Some(address);
        }
    }
    None
}

/// Splits a list at the separators that stand outside of quotes.
fn split(list: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    list.split(move |byte| {
        let is_separator = *byte == separator && !is_quoted;
        is_quoted ^= *byte == b'"' && !is_escaped;
        is_escaped = is_quoted && *byte == b'\\' && !is_escaped;
        is_separator
    })
}

/// Reads the parameter `for` of an element of `Forwarded`.
fn address_of_element(element: &[u8]) -> Option<IpAddr> {
    let mut values = split(element, b';').filter_map(|pair| {
        let (name, value) = pair.trim_ascii().split_at_checked(4)?;
        name.eq_ignore_ascii_case(b"for=").then_some(value)
    });
    address(values.next()?)
}

/// Reads an address, with or without a port, brackets and quotes.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim().trim_matches('"');
    let plain = || text.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let read = plain().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    read.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(headers: &str, header: ForwardedHeader) -> Option<String> {
        let forwarders = Networks::parse(&["10.0.0.0/8".into(), "2001:db8:ffff::/48".into()]).unwrap();
        let request = format!("GET /v1/ws HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        forwarded_client(request.as_bytes(), &forwarders, header).map(|address| address.to_string())
    }

    #[test]
    fn the_nearest_address_that_no_proxy_has_is_the_client() {
        let by_x = [
            ("X-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 198.51.100.9, 192.0.2.1, 10.1.1.1\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 198.51.100.9\r\nX-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
            ("X-Forwarded-For: 192.0.2.1:4711\r\n", "192.0.2.1"),
            ("X-Forwarded-For: ::ffff:192.0.2.1\r\n", "192.0.2.1"),
            ("x-forwarded-for: 2001:db8::7\r\n", "2001:db8::7"),
            ("Forwarded: for=198.51.100.9\r\nX-Forwarded-For: 192.0.2.1\r\n", "192.0.2.1"),
        ];
        for (headers, expected) in by_x {
            assert_eq!(
                client(headers, ForwardedHeader::XForwardedFor).as_deref(),
                Some(expected),
                "{headers}"
            );
        }
        let by_standard = [
            ("Forwarded: for=192.0.2.60;proto=http;by=203.0.113.43\r\n", "192.0.2.60"),
            ("Forwarded: For=\"[2001:db8:cafe::17]:4711\"\r\n", "2001:db8:cafe::17"),
            ("Forwarded: for=198.51.100.1, for=192.0.2.43;proto=https, for=10.0.0.2\r\n", "192.0.2.43"),
            ("Forwarded: for=192.0.2.1;host=\"x,for=5.6.7.8\"\r\n", "192.0.2.1"),
            ("Forwarded: for=192.0.2.1;host=\"x\\\",for=5.6.7.8\"\r\n", "192.0.2.1"),
            ("Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 198.51.100.9\r\n", "192.0.2.1"),
        ];
        for (headers, expected) in by_standard {
            assert_eq!(client(headers, ForwardedHeader::Forwarded).as_deref(), Some(expected), "{headers}");
        }
    }

    #[test]
    fn headers_without_an_address_name_nobody() {
        for headers in [
            "",
            "X-Forwarded-For: \r\n",
            "X-Forwarded-For: 192.0.2.1, unknown\r\n",
            "X-Forwarded-For: 10.0.0.1\r\n",
            "X-Forwarded-For: 999.1.1.1\r\n",
            "Forwarded: for=192.0.2.1\r\n",
        ] {
            assert_eq!(client(headers, ForwardedHeader::XForwardedFor), None, "{headers}");
        }
        for headers in [
            "Forwarded: for=_hidden\r\n",
            "Forwarded: proto=https\r\n",
            "Forwarded: for=\r\n",
            "X-Forwarded-For: 192.0.2.1\r\n",
        ] {
            assert_eq!(client(headers, ForwardedHeader::Forwarded), None, "{headers}");
        }
    }
}
