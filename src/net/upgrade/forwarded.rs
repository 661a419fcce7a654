//! Client of a request that a proxy forwards, by its headers `Forwarded` (RFC 7239) or `X-Forwarded-For`.

use std::net::{IpAddr, SocketAddr};

use httparse::{EMPTY_HEADER, Request, Status};

use super::{HEAD_BYTES_MAX, HEADERS_MAX};
use crate::networks::Networks;

/// Returns the client for which the last of the `forwarders` forwards the request at the start of `input`: the address
/// nearest to this node that is none of theirs. What stands before it is the claim of a stranger. `None` if the headers
/// name no such address.
pub fn forwarded_client(input: &[u8], forwarders: &Networks) -> Option<IpAddr> {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let head = &input[..input.len().min(HEAD_BYTES_MAX)];
    let Ok(Status::Complete(_)) = request.parse(head) else { return None };
    let values = |wanted: &'static str| {
        let named =
            request.headers.iter().rev().filter(move |header| header.name.eq_ignore_ascii_case(wanted));
        named.flat_map(|header| header.value.rsplit(|byte| *byte == b','))
    };
    // A proxy that knows the standard header may pass on what a client claims in the other one.
    let mut forwarded = values("forwarded").peekable();
    if forwarded.peek().is_some() {
        return nearest(forwarded.map(address_of_element), forwarders);
    }
    nearest(values("x-forwarded-for").map(address), forwarders)
}

/// Returns the first address that is not of `forwarders`; `None` from the first element that is no address.
fn nearest(addresses: impl Iterator<Item = Option<IpAddr>>, forwarders: &Networks) -> Option<IpAddr> {
    for one in addresses {
        let one = one?;
        if !forwarders.contains(one) {
            return Some(one);
        }
    }
    None
}

/// Reads the parameter `for` of an element of `Forwarded`.
fn address_of_element(element: &[u8]) -> Option<IpAddr> {
    let pairs = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let mut values = pairs.filter_map(|pair| {
        let (name, value) = pair.split_at_checked(4)?;
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

    fn client(headers: &str) -> Option<String> {
        let forwarders = Networks::parse(&["10.0.0.0/8".into(), "2001:db8:ffff::/48".into()]).unwrap();
        let request = format!("GET /v1/ws HTTP/1.1\r\nHost: a\r\n{headers}\r\n");
        forwarded_client(request.as_bytes(), &forwarders).map(|address| address.to_string())
    }

    #[test]
    fn the_nearest_address_that_no_proxy_has_is_the_client() {
        let cases = [
            ("X-Forwarded-For: 192.0.2.1\r\n", Some("192.0.2.1")),
            ("X-Forwarded-For: 198.51.100.9, 192.0.2.1, 10.1.1.1\r\n", Some("192.0.2.1")),
            ("X-Forwarded-For: 198.51.100.9\r\nX-Forwarded-For: 192.0.2.1\r\n", Some("192.0.2.1")),
            ("X-Forwarded-For: 192.0.2.1:4711\r\n", Some("192.0.2.1")),
            ("X-Forwarded-For: ::ffff:192.0.2.1\r\n", Some("192.0.2.1")),
            ("x-forwarded-for: 2001:db8::7\r\n", Some("2001:db8::7")),
            ("Forwarded: for=192.0.2.60;proto=http;by=203.0.113.43\r\n", Some("192.0.2.60")),
            ("Forwarded: For=\"[2001:db8:cafe::17]:4711\"\r\n", Some("2001:db8:cafe::17")),
            ("Forwarded: for=198.51.100.1, for=192.0.2.43;proto=https, for=10.0.0.2\r\n", Some("192.0.2.43")),
            ("Forwarded: for=192.0.2.1\r\nX-Forwarded-For: 198.51.100.9\r\n", Some("192.0.2.1")),
        ];
        for (headers, expected) in cases {
            assert_eq!(client(headers).as_deref(), expected, "{headers}");
        }
    }

    #[test]
    fn headers_without_an_address_name_nobody() {
        for headers in [
            "",
            "X-Forwarded-For: \r\n",
            "X-Forwarded-For: 192.0.2.1, unknown\r\n",
            "X-Forwarded-For: 10.0.0.1\r\n",
            "Forwarded: for=_hidden\r\n",
            "Forwarded: proto=https\r\n",
            "Forwarded: for=\r\n",
            "X-Forwarded-For: 999.1.1.1\r\n",
        ] {
            assert_eq!(client(headers), None, "{headers}");
        }
    }
}
