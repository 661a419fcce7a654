//! HTTP upgrade: reads, checks and answers the request that turns a connection into a WebSocket. The only other request
//! is `GET /v1/assign`, with which a client asks where to connect.
//!
//! Every refusal is a complete HTTP response with a one-line JSON body that names its cure. It
//! never repeats any part of the request.

use httparse::{EMPTY_HEADER, Header, Request, Status};
use tokio_tungstenite::tungstenite::{handshake::server, http};

mod assign;
mod cookies;
mod forwarded;
mod origin;
mod refusal;
#[cfg(test)]
mod tests;

use origin::is_loopback_origin;
use refusal::RefusalReason;

use crate::networks::Networks;

pub use assign::{ASSIGN_PATH, AssignAsked, Transport};
pub use cookies::{COOKIE_BYTES_MAX, Cookies};
pub use forwarded::{ForwardedHeader, forwarded_client, is_forwarded};
pub use origin::origin;
pub use refusal::UpgradeRefusal;

/// Longest request head that is read.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;

/// Most header lines that are read.
pub const HEADERS_MAX: usize = 64;

/// Paths that serve WebSockets.
pub const WEBSOCKET_PATHS: [&str; 2] = ["/", "/v1/ws"];

/// Encoding of the messages in a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubProtocol {
    /// JSON, sub-protocol `tidegate.v1.json`; also when the client names none.
    Json,
    /// Protobuf, sub-protocol `tidegate.v1.proto`.
    Proto,
}

impl SubProtocol {
    /// Both sub-protocols, in the order in which offers are compared.
    pub const ALL: [Self; 2] = [Self::Json, Self::Proto];

    /// Returns the name in `Sec-WebSocket-Protocol`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "tidegate.v1.json",
            Self::Proto => "tidegate.v1.proto",
        }
    }
}

/// Policy for the web origins that may upgrade.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Web origins that browsers may connect from, such as `https://chat.example.org`; `*` admits all.
    pub origins: Vec<String>,
    /// Whether pages on loopback, such as the console, may connect too; for nodes for development.
    pub admits_loopback: bool,
    /// Networks of proxies whose word about the client is taken.
    pub forwarders: Networks,
    /// Header in which they name the client.
    pub forwarded_header: ForwardedHeader,
    /// Names of the cookies that are taken for logins.
    pub cookies: Vec<String>,
}

impl Policy {
    /// Returns whether the origin is admitted. Only browsers send one; without it there is
    /// no page that could abuse its visitor.
    fn admits(&self, origin: Option<&[u8]>) -> bool {
        let Some(origin) = origin else { return true };
        if self.admits_loopback && is_loopback_origin(origin) {
            return true;
        }
        self.lists(origin) || self.origins.iter().any(|listed| listed == "*")
    }

    /// Returns whether the origin is listed by its name.
    fn lists(&self, origin: &[u8]) -> bool {
        self.origins.iter().any(|listed| listed != "*" && listed.as_bytes().eq_ignore_ascii_case(origin))
    }

    /// Returns whether cookies of a page of this origin are taken for logins.
    fn takes_cookies_from(&self, origin: Option<&[u8]>) -> bool {
        !self.cookies.is_empty() && origin.is_some_and(|origin| self.lists(origin))
    }
}

/// Progress of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeProgress {
    /// The request head is incomplete; call again with more input, from the same start.
    NeedMore,
    /// The request is accepted; the connection is a WebSocket once the response is sent.
    Done {
        /// Length of the request in the input; frames may follow it.
        consumed: usize,
        /// Complete HTTP response.
        response: Vec<u8>,
        /// Encoding of the messages that follow.
        framing: SubProtocol,
        /// Cookies for the login.
        cookies: Cookies,
    },
    /// The client asks where to connect; it gets an answer, and the connection closes.
    Assign(AssignAsked),
}

/// Parses an upgrade request at the start of `input`. It keeps no state, so it may be called after every read.
pub fn upgrade(input: &[u8], policy: &Policy) -> Result<UpgradeProgress, UpgradeRefusal> {
    let head = &input[..input.len().min(HEAD_BYTES_MAX)];
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let reason = match request.parse(head) {
        Ok(Status::Complete(consumed)) => {
            if let Some(request) = assign::read(&request, policy)? {
                return Ok(UpgradeProgress::Assign(request));
            }
            let (response, framing, cookies) = answer(&request, policy)?;
            return Ok(UpgradeProgress::Done { consumed, response, framing, cookies });
        }
        Ok(Status::Partial) if head.len() < HEAD_BYTES_MAX => return Ok(UpgradeProgress::NeedMore),
        Ok(Status::Partial) => RefusalReason::TooLarge,
        Err(httparse::Error::TooManyHeaders) => RefusalReason::TooManyHeaders,
        Err(httparse::Error::Version) => RefusalReason::HttpVersion,
        Err(_) => RefusalReason::NotHttp,
    };
    Err(reason.into())
}

fn answer(
    request: &Request<'_, '_>,
    policy: &Policy,
) -> Result<(Vec<u8>, SubProtocol, Cookies), RefusalReason> {
    let parsed = UpgradeHeaders::read(request.headers)?;
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if request.method != Some("GET") {
        return Err(RefusalReason::Method);
    }
    if names_token(query) {
        return Err(RefusalReason::TokenInUrl);
    }
    if request.version != Some(1) || !parsed.connection_upgrade || !parsed.websocket {
        return Err(RefusalReason::NotAnUpgrade);
    }
    if parsed.version != Some(b"13") {
        return Err(RefusalReason::WebSocketVersion);
    }
    if !WEBSOCKET_PATHS.contains(&path) {
        return Err(RefusalReason::Path);
    }
    if parsed.hosts != 1 {
        return Err(RefusalReason::Host);
    }
    if parsed.body {
        return Err(RefusalReason::Body);
    }
    if !policy.admits(parsed.origin) {
        return Err(RefusalReason::Origin);
    }
    if parsed.offered && parsed.framing.is_none() {
        return Err(RefusalReason::SubProtocol);
    }
    let cookies = cookies::read(request.headers, parsed.origin, policy)?;
    let response = accept(parsed.key.ok_or(RefusalReason::Key)?, parsed.framing).ok_or(RefusalReason::Key)?;
    Ok((response, parsed.framing.unwrap_or(SubProtocol::Json), cookies))
}

/// Returns tungstenite's response, which has the derived accept key; `None` if the key is not 16 bytes in base64.
fn accept(key: &[u8], chosen: Option<SubProtocol>) -> Option<Vec<u8>> {
    let request = http::Request::builder()
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", key)
        .body(())
        .ok()?;
    let mut response = server::create_response(&request).ok()?;
    if let Some(framing) = chosen {
        let name = http::HeaderValue::from_static(framing.name());
        response.headers_mut().insert("Sec-WebSocket-Protocol", name);
    }
    let mut bytes = Vec::with_capacity(192);
    server::write_response(&mut bytes, &response).ok()?;
    Some(bytes)
}

/// Parsed headers of an upgrade request.
#[derive(Default)]
struct UpgradeHeaders<'a> {
    connection_upgrade: bool,
    websocket: bool,
    version: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    origin: Option<&'a [u8]>,
    hosts: u32,
    body: bool,
    offered: bool,
    /// First supported sub-protocol among the client's offers.
    framing: Option<SubProtocol>,
}

impl<'a> UpgradeHeaders<'a> {
    fn read(headers: &[Header<'a>]) -> Result<Self, RefusalReason> {
        let mut parsed = Self::default();
        for Header { name, value } in headers {
            let value = value.trim_ascii();
            let is = |expected: &str| name.eq_ignore_ascii_case(expected);
            if is("connection") {
                parsed.connection_upgrade |=
                    tokens(value).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
            } else if is("upgrade") {
                parsed.websocket |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"websocket"));
            } else if is("sec-websocket-version") {
                once(&mut parsed.version, value)?;
            } else if is("sec-websocket-key") {
                once(&mut parsed.key, value)?;
            } else if is("origin") {
                once(&mut parsed.origin, value)?;
            } else if is("sec-websocket-protocol") {
                for token in tokens(value) {
                    let supported =
                        SubProtocol::ALL.into_iter().find(|framing| framing.name().as_bytes() == token);
                    parsed.offered = true;
                    parsed.framing = parsed.framing.or(supported);
                }
            } else if is("host") {
                parsed.hosts += 1;
            } else if is("transfer-encoding") || (is("content-length") && value != b"0") {
                parsed.body = true;
            }
        }
        Ok(parsed)
    }
}

fn once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), RefusalReason> {
    slot.replace(value).map_or(Ok(()), |_| Err(RefusalReason::Repeated))
}

fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn names_token(query: &str) -> bool {
    let mut names = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    names.any(|name| {
        ["token", "access_token", "jwt"].iter().any(|forbidden| name.eq_ignore_ascii_case(forbidden))
    })
}
