//! Refusals of upgrade requests: each reason with its HTTP status, message and cure.

use std::{fmt, time::Duration};

use serde::Serialize;
use tidegate_protocol::Code;

/// Refusal of a request: send the response, then close the connection.
#[derive(Clone, PartialEq, Eq)]
pub struct UpgradeRefusal {
    /// HTTP status.
    pub status: u16,
    /// Code in the body, for logs and metrics.
    pub code: Code,
    /// Whether the request is well-formed HTTP, as that of any web page is.
    pub is_http: bool,
    /// Description of the problem, in one sentence.
    pub message: &'static str,
    /// Complete HTTP response, including `Connection: close`.
    pub response: Vec<u8>,
}

impl UpgradeRefusal {
    /// Creates the refusal of a client from whose address there are too many connections.
    pub fn too_many_from_address() -> Self {
        RefusalReason::TooManyFromAddress.into()
    }

    /// Creates the refusal of a client whose address is banned, with the time until the ban ends.
    pub fn banned(left: Option<Duration>) -> Self {
        let wait = left.map(|left| format!("Retry-After: {}\r\n", left.as_millis().div_ceil(1_000)));
        RefusalReason::Banned.response(&wait.unwrap_or_default())
    }
}

impl fmt::Debug for UpgradeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status, self.code.name(), self.message)
    }
}

/// Reason for refusing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusalReason {
    NotHttp,
    HttpVersion,
    TooLarge,
    TooManyHeaders,
    Method,
    TokenInUrl,
    NotAnUpgrade,
    WebSocketVersion,
    Path,
    Host,
    Repeated,
    Body,
    Key,
    Origin,
    TooManyFromAddress,
    Banned,
    SubProtocol,
    Cookies,
    AssignMethod,
    AssignQuery,
    Bearer,
}

/// Cure for requests that are no upgrade.
const UPGRADE_CURE: &str =
    "Send a WebSocket upgrade to / or /v1/ws with sub-protocol tidegate.v1.json or tidegate.v1.proto.";

/// Returns the reason phrase that RFC 9110 gives a status.
const fn phrase(status: u16) -> &'static str {
    match status {
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        505 => "HTTP Version Not Supported",
        _ => "Bad Request",
    }
}

impl RefusalReason {
    /// Returns the status, its reason phrase, the message and the cure.
    const fn response_texts(self) -> (u16, &'static str, &'static str, &'static str) {
        let (status, what, cure) = self.texts();
        (status, phrase(status), what, cure)
    }

    /// Returns the status, the message and the cure.
    const fn texts(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::NotHttp => (400, "This is not an HTTP request.", UPGRADE_CURE),
            Self::HttpVersion => {
                (505, "Only HTTP/1.1 is supported.", "Upgrade to a WebSocket over HTTP/1.1.")
            }
            Self::TooLarge => (
                431,
                "The request head is longer than 8 KiB.",
                "Send fewer and shorter headers; only cookies of hooks.login_cookies are used.",
            ),
            Self::TooManyHeaders => (431, "The request has more than 64 headers.", "Send fewer headers."),
            Self::Cookies => (
                431,
                "The cookies for the login are longer than 4 KiB.",
                "Set shorter values for the cookies of hooks.login_cookies.",
            ),
            Self::Method => (405, "A WebSocket upgrade is a GET request.", UPGRADE_CURE),
            Self::AssignMethod => (405, "This path accepts only GET.", "Send a GET request."),
            Self::AssignQuery => (
                400,
                "A query parameter is invalid.",
                "Use tcp or ws for transport, 1 to 16 for count, [A-Za-z0-9_.-]{1,64} for zone.",
            ),
            Self::Bearer => (
                400,
                "The Authorization header is not a bearer token.",
                "Send `Authorization: Bearer TOKEN` with the token of Hello.",
            ),
            Self::TokenInUrl => (
                400,
                "A token must not be in the URL, because proxies and logs store it.",
                "Connect without it and send the token in Hello; treat this one as leaked.",
            ),
            Self::NotAnUpgrade => {
                (426, "This port speaks WebSocket; the request does not ask for an upgrade.", UPGRADE_CURE)
            }
            Self::WebSocketVersion => {
                (426, "Only WebSocket version 13 is supported.", "Send Sec-WebSocket-Version: 13.")
            }
            Self::Path => (404, "No WebSocket is served at this path.", "Connect to / or /v1/ws."),
            Self::Host => (400, "The request needs exactly one Host header.", "Send one Host header."),
            Self::Repeated => (
                400,
                "Sec-WebSocket-Key, Sec-WebSocket-Version or Origin is sent more than once.",
                "Send each of them once.",
            ),
            Self::Body => {
                (400, "An upgrade request has no body.", "Send no Content-Length and no Transfer-Encoding.")
            }
            Self::Key => (
                400,
                "Sec-WebSocket-Key is missing or is not 16 bytes in base64.",
                "Send 16 random bytes in base64 (24 characters).",
            ),
            Self::Origin => (403, Code::OriginRefused.what(), Code::OriginRefused.cure()),
            Self::TooManyFromAddress => {
                (429, Code::TooManyFromAddress.what(), Code::TooManyFromAddress.cure())
            }
            Self::Banned => (403, Code::Banned.what(), Code::Banned.cure()),
            Self::SubProtocol => (
                400,
                "None of the offered sub-protocols is supported.",
                "Offer tidegate.v1.json or tidegate.v1.proto, or none for JSON.",
            ),
        }
    }

    /// Returns the headers of the response that depend on the reason.
    const fn headers(self) -> &'static str {
        match self {
            Self::NotAnUpgrade | Self::WebSocketVersion => {
                "Connection: upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            }
            Self::Method | Self::AssignMethod => "Connection: close\r\nAllow: GET\r\n",
            _ => "Connection: close\r\n",
        }
    }
}

/// JSON body of a refusal.
#[derive(Serialize)]
struct Body {
    code: u16,
    name: &'static str,
    message: &'static str,
    cure: &'static str,
}

impl From<RefusalReason> for UpgradeRefusal {
    fn from(reason: RefusalReason) -> Self {
        reason.response("")
    }
}

impl RefusalReason {
    /// Builds the response, with further headers.
    fn response(self, headers: &str) -> UpgradeRefusal {
        let (status, phrase, message, cure) = self.response_texts();
        let code = match self {
            Self::Origin => Code::OriginRefused,
            Self::TooManyFromAddress => Code::TooManyFromAddress,
            Self::Banned => Code::Banned,
            _ => Code::BadUpgrade,
        };
        let body = Body { code: code.number(), name: code.name(), message, cure };
        let body = serde_json::to_string(&body).expect("plain strings are JSON");
        let response = format!(
            "HTTP/1.1 {status} {phrase}\r\n{}{headers}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}\n",
            self.headers(),
            body.len() + 1,
        );
        let is_http = self != Self::NotHttp;
        UpgradeRefusal { status, code, is_http, message, response: response.into_bytes() }
    }
}
