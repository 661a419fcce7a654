//! The one other request of the client port: `GET /v1/assign`, by which a client asks where to connect.

use httparse::Request;

use super::{Policy, Why};

/// The path.
pub const ASSIGN: &str = "/v1/assign";

/// Addresses that are told at most.
const COUNT_MAX: usize = 16;

/// What a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Protobuf frames or JSON lines.
    Tcp,
    /// WebSocket.
    Ws,
}

/// A client asks where to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct AssignAsked {
    /// The token of `Authorization: Bearer`, not checked yet; empty = there is none.
    pub token: String,
    /// None = addresses are told as the nodes name them.
    pub transport: Option<Transport>,
    /// The client's zone; empty = it names none.
    pub zone: String,
    /// Addresses at most.
    pub count: usize,
    /// The page that asks, when a browser does; it may.
    pub origin: Option<String>,
    /// Only whether that page may ask (a browser's preflight).
    pub preflight: bool,
}

/// The token stays out of logs.
impl std::fmt::Debug for AssignAsked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { transport, zone, count, origin, preflight, .. } = self;
        write!(f, "AssignAsked {{ {transport:?}, {zone:?}, {count}, {origin:?}, {preflight} }}")
    }
}

/// The request, if it is this one.
pub(super) fn read(request: &Request<'_, '_>, policy: &Policy) -> Result<Option<AssignAsked>, Why> {
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if path != ASSIGN {
        return Ok(None);
    }
    if super::names_token(query) {
        return Err(Why::TokenInUrl);
    }
    let preflight = request.method == Some("OPTIONS");
    if request.method != Some("GET") && !preflight {
        return Err(Why::AssignMethod);
    }
    let mut asked = AssignAsked {
        token: String::new(),
        transport: None,
        zone: String::new(),
        count: 3,
        origin: None,
        preflight,
    };
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("authorization") {
            asked.token = bearer(value).ok_or(Why::Bearer)?.to_owned();
        } else if header.name.eq_ignore_ascii_case("origin") {
            if !policy.admits(Some(value)) {
                return Err(Why::Origin);
            }
            // Admitted, so it is a text of the list, or anything at all.
            asked.origin = std::str::from_utf8(value).ok().map(str::to_owned);
        }
    }
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        match (name, value) {
            ("transport", "ws") => asked.transport = Some(Transport::Ws),
            ("transport", "tcp") => asked.transport = Some(Transport::Tcp),
            ("transport", _) => return Err(Why::AssignQuery),
            ("count", count) => {
                let count = count.parse::<usize>().ok().filter(|count| (1..=COUNT_MAX).contains(count));
                asked.count = count.ok_or(Why::AssignQuery)?;
            }
            ("zone", zone) if is_word(zone) => asked.zone = zone.to_owned(),
            ("zone", _) => return Err(Why::AssignQuery),
            _ => {}
        }
    }
    Ok(Some(asked))
}

fn bearer(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn is_word(text: &str) -> bool {
    text.len() <= 64 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}
