//! The HTTP request that turns a socket into a WebSocket: read it, judge it, answer it. One other request is known, by
//! which a client asks where to connect.
//!
//! Every refusal is a whole HTTP response with a one-line JSON body that names its cure. Nothing of the request is ever
//! repeated in it.

use httparse::{EMPTY_HEADER, Header, Request, Status};
use tokio_tungstenite::tungstenite::{handshake::server, http};

mod assign;
mod refusal;
#[cfg(test)]
mod tests;

use refusal::Why;

pub use assign::{ASSIGN, AssignAsked, Transport};
pub use refusal::Refusal;

/// The longest request head that is read, in bytes.
pub const HEAD_MAX: usize = 8 * 1024;

/// The most header lines that are read.
pub const HEADERS_MAX: usize = 64;

/// The paths at which a WebSocket is served.
pub const PATHS: [&str; 2] = ["/", "/v1/ws"];

/// What the messages inside a WebSocket are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// JSON, sub-protocol `tidegate.v1.json`; also when the client names none.
    Json,
    /// Protobuf, sub-protocol `tidegate.v1.proto`.
    Proto,
}

impl Framing {
    /// Both, as the sub-protocols that clients offer.
    pub const ALL: [Self; 2] = [Self::Json, Self::Proto];

    /// The name in `Sec-WebSocket-Protocol`.
    pub const fn sub_protocol(self) -> &'static str {
        match self {
            Self::Json => "tidegate.v1.json",
            Self::Proto => "tidegate.v1.proto",
        }
    }
}

/// Who may upgrade.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The web origins that browsers may connect from, such as `https://chat.example.org`; `*` lets all in.
    pub origins: Vec<String>,
}

impl Policy {
    /// Only browsers send an Origin; without one there is no page whose visitor could be abused.
    fn admits(&self, origin: Option<&[u8]>) -> bool {
        let Some(origin) = origin else { return true };
        self.origins.iter().any(|listed| listed == "*" || listed.as_bytes().eq_ignore_ascii_case(origin))
    }
}

/// How far an upgrade has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request head is not complete; ask again with more input, from its same start.
    NeedMore,
    /// The connection is a WebSocket once the response is sent.
    Done {
        /// Bytes of input that were the request; frames may follow.
        consumed: usize,
        /// The whole HTTP response.
        response: Vec<u8>,
        /// What the messages will be.
        framing: Framing,
    },
    /// The client does not upgrade, it asks where to connect; it gets an answer and the connection ends.
    Assign(AssignAsked),
}

/// Reads an upgrade request from the start of `input`; keeps no state, so it may be called after every read.
pub fn upgrade(input: &[u8], policy: &Policy) -> Result<Progress, Refusal> {
    let head = &input[..input.len().min(HEAD_MAX)];
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let why = match request.parse(head) {
        Ok(Status::Complete(consumed)) => {
            if let Some(asked) = assign::read(&request, policy)? {
                return Ok(Progress::Assign(asked));
            }
            let (response, framing) = answer(&request, policy)?;
            return Ok(Progress::Done { consumed, response, framing });
        }
        Ok(Status::Partial) if head.len() < HEAD_MAX => return Ok(Progress::NeedMore),
        Ok(Status::Partial) => Why::TooLarge,
        Err(httparse::Error::TooManyHeaders) => Why::TooManyHeaders,
        Err(httparse::Error::Version) => Why::HttpVersion,
        Err(_) => Why::NotHttp,
    };
    Err(why.into())
}

fn answer(request: &Request<'_, '_>, policy: &Policy) -> Result<(Vec<u8>, Framing), Why> {
    let wanted = Wanted::read(request.headers)?;
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    if request.method != Some("GET") {
        return Err(Why::Method);
    }
    if names_token(query) {
        return Err(Why::TokenInUrl);
    }
    if request.version != Some(1) || !wanted.connection_upgrade || !wanted.websocket {
        return Err(Why::NotAnUpgrade);
    }
    if wanted.version != Some(b"13") {
        return Err(Why::WebSocketVersion);
    }
    if !PATHS.contains(&path) {
        return Err(Why::Path);
    }
    if wanted.hosts != 1 {
        return Err(Why::Host);
    }
    if wanted.body {
        return Err(Why::Body);
    }
    if !policy.admits(wanted.origin) {
        return Err(Why::Origin);
    }
    if wanted.offered && wanted.framing.is_none() {
        return Err(Why::SubProtocol);
    }
    let response = accept(wanted.key.ok_or(Why::Key)?, wanted.framing).ok_or(Why::Key)?;
    Ok((response, wanted.framing.unwrap_or(Framing::Json)))
}

/// The response of tungstenite, which derives the accept key; `None` for a key that is not 16 bytes in base64.
fn accept(key: &[u8], chosen: Option<Framing>) -> Option<Vec<u8>> {
    let request = http::Request::builder()
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", key)
        .body(())
        .ok()?;
    let mut response = server::create_response(&request).ok()?;
    if let Some(framing) = chosen {
        let name = http::HeaderValue::from_static(framing.sub_protocol());
        response.headers_mut().insert("Sec-WebSocket-Protocol", name);
    }
    let mut bytes = Vec::with_capacity(192);
    server::write_response(&mut bytes, &response).ok()?;
    Some(bytes)
}

/// What the headers ask for.
#[derive(Default)]
struct Wanted<'a> {
    connection_upgrade: bool,
    websocket: bool,
    version: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    origin: Option<&'a [u8]>,
    hosts: u32,
    body: bool,
    offered: bool,
    /// The first of the client's offers that is spoken here.
    framing: Option<Framing>,
}

impl<'a> Wanted<'a> {
    fn read(headers: &[Header<'a>]) -> Result<Self, Why> {
        let mut wanted = Self::default();
        for Header { name, value } in headers {
            let value = value.trim_ascii();
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            if is("connection") {
                wanted.connection_upgrade |=
                    tokens(value).any(|token| token.eq_ignore_ascii_case(b"upgrade"));
            } else if is("upgrade") {
                wanted.websocket |= tokens(value).any(|token| token.eq_ignore_ascii_case(b"websocket"));
            } else if is("sec-websocket-version") {
                once(&mut wanted.version, value)?;
            } else if is("sec-websocket-key") {
                once(&mut wanted.key, value)?;
            } else if is("origin") {
                once(&mut wanted.origin, value)?;
            } else if is("sec-websocket-protocol") {
                for token in tokens(value) {
                    let known =
                        Framing::ALL.into_iter().find(|known| known.sub_protocol().as_bytes() == token);
                    wanted.offered = true;
                    wanted.framing = wanted.framing.or(known);
                }
            } else if is("host") {
                wanted.hosts += 1;
            } else if is("transfer-encoding") || (is("content-length") && value != b"0") {
                wanted.body = true;
            }
        }
        Ok(wanted)
    }
}

fn once<'a>(slot: &mut Option<&'a [u8]>, value: &'a [u8]) -> Result<(), Why> {
    slot.replace(value).map_or(Ok(()), |_| Err(Why::Repeated))
}

fn tokens(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

fn names_token(query: &str) -> bool {
    let mut names = query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    names.any(|name| ["token", "access_token", "jwt"].iter().any(|known| name.eq_ignore_ascii_case(known)))
}
