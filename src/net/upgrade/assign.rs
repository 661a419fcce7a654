//! Assign request of the client port: `GET /v1/assign`, with which a client asks where to connect.

use httparse::Request;

use super::{Cookies, Policy, RefusalReason, cookies};

/// Path of the request.
pub const ASSIGN_PATH: &str = "/v1/assign";

/// Most addresses that a client may request.
const ADDRESSES_MAX: usize = 16;

/// Transport of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Protobuf frames or JSON lines.
    Tcp,
    /// WebSocket.
    Ws,
}

/// Parsed request of a client that asks where to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct AssignAsked {
    /// Unverified token of `Authorization: Bearer`; empty if there is none.
    pub token: String,
    /// Transport to return addresses for; `None` returns them as the nodes announce them.
    pub transport: Option<Transport>,
    /// Zone of the client; empty if it names none.
    pub zone: String,
    /// Most addresses to return.
    pub count: usize,
    /// Admitted web origin of a browser's request.
    pub origin: Option<String>,
    /// Cookies for the login.
    pub cookies: Cookies,
    /// Whether cookies of that origin are taken.
    pub takes_cookies: bool,
    /// Whether this is a browser's preflight, which only checks that the origin is admitted.
    pub preflight: bool,
}

/// Omits the token and the cookies, which must not be logged.
impl std::fmt::Debug for AssignAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { transport, zone, count, origin, preflight, .. } = self;
        write!(f, "AssignAsked {{ {transport:?}, {zone:?}, {count}, {origin:?}, {preflight} }}")
    }
}

/// Parses the request; returns `None` for any other path.
pub(super) fn read(request: &Request<'_, '_>, policy: &Policy) -> Result<Option<AssignAsked>, RefusalReason> {
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if path != ASSIGN_PATH {
        return Ok(None);
    }
    if super::names_token(query) {
        return Err(RefusalReason::TokenInUrl);
    }
    let preflight = request.method == Some("OPTIONS");
    if request.method != Some("GET") && !preflight {
        return Err(RefusalReason::AssignMethod);
    }
    let mut parsed = AssignAsked {
        token: String::new(),
        transport: None,
        zone: String::new(),
        count: 3,
        origin: None,
        cookies: Cookies::default(),
        takes_cookies: false,
        preflight,
    };
    let mut origin = None;
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("authorization") {
            parsed.token = bearer(value).ok_or(RefusalReason::Bearer)?.to_owned();
        } else if header.name.eq_ignore_ascii_case("origin") {
            if !policy.admits(Some(value)) {
                return Err(RefusalReason::Origin);
            }
            if origin.replace(value).is_some() {
                return Err(RefusalReason::Repeated);
            }
            // An admitted origin may still be no UTF-8, if the policy admits all.
            parsed.origin = std::str::from_utf8(value).ok().map(str::to_owned);
        }
    }
    parsed.takes_cookies = policy.takes_cookies_from(origin);
    parsed.cookies = cookies::read(request.headers, origin, policy)?;
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match (name, value) {
            ("transport", "ws") => parsed.transport = Some(Transport::Ws),
            ("transport", "tcp") => parsed.transport = Some(Transport::Tcp),
            ("transport", _) => return Err(RefusalReason::AssignQuery),
            ("count", count) => {
                let count = count.parse::<usize>().ok().filter(|count| (1..=ADDRESSES_MAX).contains(count));
                parsed.count = count.ok_or(RefusalReason::AssignQuery)?;
            }
            ("zone", zone) if is_word(zone) => parsed.zone = zone.to_owned(),
            ("zone", _) => return Err(RefusalReason::AssignQuery),
            _ => {}
        }
    }
    Ok(Some(parsed))
}

fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn is_word(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}
