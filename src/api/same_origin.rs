//! Same-origin check of the admin port: refuses requests that a web page of another origin made a browser send.
//!
//! The admin port trusts loopback, and a browser on the same machine connects to loopback for any page that it shows.
//! A page can't set `Host`, `Origin` or `Sec-Fetch-Site`, and can't send JSON to another origin without a preflight,
//! which no route answers. The check of `Host` also stops DNS rebinding, where a name of the page's own server
//! resolves to 127.0.0.1 and makes this port same-origin with the page.
//!
//! A port on another address than loopback has keys, which no foreign page knows. It accepts any `Host`, because only its
//! operator knows the names by which it is reached, and pages by HTTPS, which a proxy in front of it may speak. A port
//! with TLS accepts pages by HTTPS alone, because it has sent no others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, Method, StatusCode, Version,
        header::{CONTENT_TYPE, HOST, ORIGIN},
    },
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use tidegate_protocol::Code;
use tokio::net::TcpListener;

use super::refusal;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Reason for a refused request, in the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// The request names no host, several hosts, or a malformed one.
    BadHost,
    /// The request names another host than this port.
    ForeignHost,
    /// A page of another origin sent the request.
    ForeignPage,
    /// The request may change something, and its content type is not JSON.
    NotJson,
}

/// Facts of a port on which the check depends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    /// Address on which the port listens.
    pub(super) address: IpAddr,
    /// Whether the port speaks TLS.
    pub(super) is_encrypted: bool,
}

impl Port {
    /// Returns the facts of a listening socket.
    pub(super) fn of(listener: &TcpListener, is_encrypted: bool) -> Self {
        // A socket that listens has an address; without one, no host is accepted.
        let address = listener.local_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |it| it.ip());
        Self { address, is_encrypted }
    }
}

/// Passes on the requests of programs and of pages that this port served itself, and refuses all others.
pub(super) async fn check(State(listen): State<Port>, request: Request, next: Next) -> Response {
    match judge(listen, &request) {
        Ok(()) => next.run(request).await,
        Err(why) => {
            tracing::debug!(?why, "request to the admin port refused");
            why.answer()
        }
    }
}

fn judge<B>(listen: Port, request: &axum::http::Request<B>) -> Result<(), Refusal> {
    let (headers, method) = (request.headers(), request.method());
    let host = only(headers, &HOST).map_err(|()| Refusal::BadHost)?;
    // The request target may name a host too, which then has precedence over the header (RFC 9112, 3.2.2).
    let target = request.uri().authority().map(|authority| authority.as_str());
    for named in [host, target].into_iter().flatten() {
        let named = name(named).ok_or(Refusal::BadHost)?;
        if listen.address.is_loopback() && !is_this_port(&named, listen.address) {
            return Err(Refusal::ForeignHost);
        }
    }
    // HTTP/1.0 needs no Host. Browsers do not speak it; health checks of load balancers do.
    let is_old_probe = request.version() == Version::HTTP_10 && matches!(*method, Method::GET | Method::HEAD);
    if host.is_none() && !is_old_probe {
        return Err(Refusal::BadHost);
    }
    let origin = only(headers, &ORIGIN).map_err(|()| Refusal::ForeignPage)?;
    if origin.is_some_and(|origin| !is_origin_of(origin, host, listen)) {
        return Err(Refusal::ForeignPage);
    }
    let mut sites = headers.get_all(SEC_FETCH_SITE).iter();
    if !sites.all(|site| site == "same-origin" || site == "none") {
        return Err(Refusal::ForeignPage);
    }
    if !method.is_safe() && !is_json(headers) {
        return Err(Refusal::NotJson);
    }
    Ok(())
}

/// Returns the value of a header that may occur once; an error if it occurs more often or is not ASCII.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(Some).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

/// Host that a request names.
enum Named<'a> {
    Address(IpAddr),
    Name(&'a str),
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`. Any port is accepted, because a tunnel listens on
/// another one.
fn name(authority: &str) -> Option<Named<'_>> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            (Named::Address(IpAddr::V6(address.parse().ok()?)), port)
        }
        None => {
            let end = authority.find(':').unwrap_or(authority.len());
            let (host, port) = authority.split_at(end);
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
            if host.is_empty() || !host.bytes().all(is_plain) {
                return None;
            }
            let address = host.parse::<Ipv4Addr>().map(|address| Named::Address(IpAddr::V4(address)));
            (address.unwrap_or(Named::Name(host)), port)
        }
    };
    let digits = port.strip_prefix(':').unwrap_or("0");
    let is_port = (port.is_empty() || port.starts_with(':'))
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && digits.parse::<u16>().is_ok();
    is_port.then_some(host)
}

/// Returns whether the host is loopback or the address of the port. `localhost.` and `x.localhost` are neither,
/// because some resolvers look them up in DNS.
fn is_this_port(named: &Named<'_>, listen: IpAddr) -> bool {
    match named {
        Named::Address(address) => {
            [listen, Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()].contains(address)
        }
        Named::Name(name) => name.eq_ignore_ascii_case("localhost"),
    }
}

/// Returns whether pages loaded from this host and port have that origin.
fn is_origin_of(origin: &str, host: Option<&str>, listen: Port) -> bool {
    let Some((scheme, rest)) = origin.split_once("://") else { return false };
    let is_secure = scheme.eq_ignore_ascii_case("https");
    let may_be_secure = listen.is_encrypted || !listen.address.is_loopback();
    ((is_secure && may_be_secure) || (scheme.eq_ignore_ascii_case("http") && !listen.is_encrypted))
        && host.is_some_and(|host| rest.eq_ignore_ascii_case(host))
}

/// Returns whether the content type is JSON. A page can send another type, or none, without a preflight.
fn is_json(headers: &HeaderMap) -> bool {
    only(headers, &CONTENT_TYPE).ok().flatten().is_some_and(|value| {
        let kind = value.split_once(';').map_or(value, |(kind, _)| kind);
        kind.trim_ascii().eq_ignore_ascii_case("application/json")
    })
}

impl Refusal {
    fn answer(self) -> Response {
        let (status, code, message, cure) = match self {
            Self::BadHost => (
                StatusCode::BAD_REQUEST,
                Code::Malformed,
                "the request does not have exactly one well-formed Host header",
                "Send `Host: localhost` or the address of the admin port.",
            ),
            Self::ForeignHost => (
                StatusCode::MISDIRECTED_REQUEST,
                Code::OriginRefused,
                "Host names another host than the admin port",
                "Use 127.0.0.1, [::1], localhost or the address of listen.admin; have a proxy send one of them as Host.",
            ),
            Self::ForeignPage => (
                StatusCode::FORBIDDEN,
                Code::OriginRefused,
                "a web page of another origin sent the request (Origin, Sec-Fetch-Site)",
                "Send the request from a program, such as curl or `tidegate`, and not from a page of another site.",
            ),
            Self::NotJson => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::BadContent,
                "a request that may change something needs the content type of JSON, even without a body",
                "Send `Content-Type: application/json`.",
            ),
        };
        refusal(status, code, message, cure).into_response()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    const JSON: (&str, &str) = ("content-type", "application/json");

    fn plain(address: impl Into<IpAddr>) -> Port {
        Port { address: address.into(), is_encrypted: false }
    }

    /// Judges a request to a port at 127.0.0.5, a loopback address other than the usual one.
    fn judged(method: &str, target: &str, headers: &[(&str, &str)]) -> Result<(), Refusal> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        judge(plain([127, 0, 0, 5]), &request.body(()).unwrap())
    }

    fn get(headers: &[(&str, &str)]) -> Result<(), Refusal> {
        judged("GET", "/v1/nodes", headers)
    }

    #[test]
    fn host_must_be_loopback_or_the_address_of_the_port() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:7801",
            "localhost",
            "LocalHost:9000",
            "[::1]",
            "[::1]:7801",
            "[0:0:0:0:0:0:0:1]:1",
            "127.0.0.5:7801",
        ] {
            assert_eq!(get(&[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7801",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x.localhost",
            "localhost.",
            "127.0.0.1.",
            "127.0.0.2:7801",
            "0.0.0.0:7801",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "127.0.0.01",
            "[::]:7801",
            "[::ffff:127.0.0.1]:7801",
            "10.0.0.1",
        ] {
            assert_eq!(get(&[("host", host)]), Err(Refusal::ForeignHost), "{host}");
        }
        for host in [
            "",
            ":7801",
            "localhost:",
            "localhost:x",
            "localhost:65536",
            "localhost:1:2",
            "localhost:+1",
            "user@localhost",
            "localhost/evil.example",
            "localhost, evil.example",
            "evil.example localhost",
            "[::1",
            "[::1]7801",
            "[::1%lo]:7801",
            "[localhost]",
            "::1",
        ] {
            assert_eq!(get(&[("host", host)]), Err(Refusal::BadHost), "{host}");
        }
    }

    #[test]
    fn request_must_name_one_host() {
        let (ours, foreign) = (("host", "127.0.0.1:7801"), ("host", "evil.example"));
        assert_eq!(get(&[]), Err(Refusal::BadHost));
        for twice in [[ours, ours], [ours, foreign], [foreign, ours]] {
            assert_eq!(get(&twice), Err(Refusal::BadHost), "{twice:?}");
        }
        let target = |target: &str| judged("GET", target, &[ours]);
        assert_eq!(target("http://localhost:7801/v1/nodes"), Ok(()));
        assert_eq!(target("http://evil.example/v1/nodes"), Err(Refusal::ForeignHost));
        assert_eq!(target("http://localhost@evil.example/v1/nodes"), Err(Refusal::BadHost));
        assert_eq!(judged("GET", "http://localhost/", &[foreign]), Err(Refusal::ForeignHost));
        assert_eq!(judged("GET", "http://localhost/", &[]), Err(Refusal::BadHost));
    }

    #[test]
    fn http_1_0_needs_a_host_for_changes_but_not_for_probes() {
        let of = |method: &str, headers: &[(&str, &str)]| {
            let mut request = Request::builder().method(method).uri("/readyz").version(Version::HTTP_10);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            judge(plain(Ipv4Addr::LOCALHOST), &request.body(()).unwrap())
        };
        assert_eq!([of("GET", &[]), of("HEAD", &[])], [Ok(()); 2]);
        assert_eq!(of("GET", &[("host", "evil.example")]), Err(Refusal::ForeignHost));
        assert_eq!(of("GET", &[("origin", "http://localhost")]), Err(Refusal::ForeignPage));
        assert_eq!(of("POST", &[JSON]), Err(Refusal::BadHost));
    }

    #[test]
    fn pages_of_other_origins_are_refused_own_pages_pass() {
        let page = |host: &str, origin: &str| {
            judged("POST", "/v1/drain", &[("host", host), ("origin", origin), JSON])
        };
        assert_eq!(page("127.0.0.1:7801", "http://127.0.0.1:7801"), Ok(()));
        assert_eq!(page("localhost:9000", "http://localhost:9000"), Ok(()));
        assert_eq!(page("[::1]:7801", "http://[::1]:7801"), Ok(()));
        for origin in [
            "https://evil.example",
            "http://localhost:3000",
            "http://localhost",
            "http://localhost:7801",
            "https://127.0.0.1:7801",
            "http://127.0.0.1:7801/",
            "http://127.0.0.1:7801@evil.example",
            "127.0.0.1:7801",
            "null",
            "",
        ] {
            assert_eq!(page("127.0.0.1:7801", origin), Err(Refusal::ForeignPage), "{origin}");
        }
        let ours = [("host", "localhost"), ("origin", "http://localhost")];
        assert_eq!(get(&ours), Ok(()));
        assert_eq!(get(&[ours[0], ours[1], ours[1]]), Err(Refusal::ForeignPage));
    }

    #[test]
    fn cross_site_requests_of_browsers_are_refused() {
        let from = |sites: &[&str]| {
            let sites = sites.iter().map(|site| ("sec-fetch-site", *site));
            get(&[("host", "localhost")].into_iter().chain(sites).collect::<Vec<_>>())
        };
        assert_eq!([from(&[]), from(&["none"]), from(&["same-origin"])], [Ok(()); 3]);
        for sites in [&["cross-site"][..], &["same-site"], &["Same-Origin"], &[""], &["none", "cross-site"]] {
            assert_eq!(from(sites), Err(Refusal::ForeignPage), "{sites:?}");
        }
    }

    #[test]
    fn port_on_another_address_accepts_any_host_and_its_own_pages_only() {
        let judged = |headers: &[(&str, &str)]| {
            let mut request = Request::builder().uri("/v1/nodes");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            judge(plain(Ipv4Addr::UNSPECIFIED), &request.body(()).unwrap())
        };
        let host = ("host", "tidegate-admin:7801");
        assert_eq!(judged(&[host]), Ok(()));
        for own in ["http://tidegate-admin:7801", "https://tidegate-admin:7801"] {
            assert_eq!(judged(&[host, ("origin", own)]), Ok(()), "{own}");
        }
        assert_eq!(judged(&[host, ("origin", "https://evil.example")]), Err(Refusal::ForeignPage));
        assert_eq!(judged(&[host, ("sec-fetch-site", "cross-site")]), Err(Refusal::ForeignPage));
        assert_eq!(judged(&[host, host]), Err(Refusal::BadHost));
        assert_eq!(judged(&[]), Err(Refusal::BadHost));
    }

    #[test]
    fn port_with_tls_accepts_its_own_pages_by_https_alone() {
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let judged = |origin: &str| {
                let request = Request::builder().uri("/v1/nodes").header("host", "localhost:7801");
                let request = request.header("origin", origin).body(()).unwrap();
                judge(Port { address: address.into(), is_encrypted: true }, &request)
            };
            assert_eq!(judged("https://localhost:7801"), Ok(()), "{address}");
            for foreign in ["http://localhost:7801", "https://localhost:7800", "https://evil.example"] {
                assert_eq!(judged(foreign), Err(Refusal::ForeignPage), "{foreign}");
            }
        }
    }

    #[test]
    fn changes_must_have_the_content_type_json() {
        let ours = ("host", "localhost");
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x"] {
            assert_eq!(judged("POST", "/v1/drain", &[ours, ("content-type", kind)]), Ok(()), "{kind}");
        }
        for method in ["POST", "PUT", "PATCH", "DELETE", "PURGE"] {
            assert_eq!(judged(method, "/v1/drain", &[ours]), Err(Refusal::NotJson), "{method}");
            assert_eq!(judged(method, "/v1/drain", &[ours, JSON]), Ok(()), "{method}");
        }
        for kind in [
            "text/plain",
            "text/plain; application/json",
            "text/plain;charset=application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "application/json, text/plain",
            "application/jsonp",
            "",
        ] {
            let sent = [ours, ("content-type", kind)];
            assert_eq!(judged("POST", "/v1/drain", &sent), Err(Refusal::NotJson), "{kind}");
        }
        assert_eq!(judged("POST", "/v1/drain", &[ours, JSON, JSON]), Err(Refusal::NotJson));
        assert_eq!(get(&[ours, ("content-type", "text/plain")]), Ok(()));
    }
}
