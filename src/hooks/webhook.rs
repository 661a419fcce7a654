//! Requests of webhooks: CloudEvents in signed requests, and what the answers mean.

use std::{fmt, io, sync::Arc, time::Duration};

use aws_lc_rs::digest::{Context, SHA256};
use hyper::{
    HeaderMap, StatusCode, Uri,
    header::{HeaderName, HeaderValue},
};
use tidegate_protocol::machine::webhook::{WebhookFailure, WebhookOutcome};
use tokio::time::timeout;

use super::{
    failure::HookFailure,
    signing::Signer,
    transport::{HookAnswer, HookTransport, SignedPost},
};
use crate::net::endpoint::{AddressRule, HttpEndpoint, ServerTrust};

const BATCH: &str = "application/cloudevents-batch+json";
const SINGLE: &str = "application/cloudevents+json";

/// Most headers that an endpoint adds to its requests.
const HEADERS_MAX: usize = 16;

/// Longest value of such a header, in bytes.
const HEADER_BYTES_MAX: usize = 1_024;

/// Longest URL, in bytes.
const URL_BYTES_MAX: usize = 2_048;

/// Headers that the requests have anyway, or that would change how they are read.
const RESERVED_HEADERS: [&str; 12] = [
    "host",
    "connection",
    "content-length",
    "content-type",
    "content-encoding",
    "expect",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "accept",
    "user-agent",
];

/// Prefixes of names of reserved headers.
const RESERVED_PREFIXES: [&str; 3] = ["webhook-", "tidegate-", "proxy-"];

/// Receiver of webhooks: its URL, and the headers that it wants.
#[derive(Clone)]
pub struct WebhookTarget {
    url: String,
    host: String,
    rule: AddressRule,
    headers: HeaderMap,
}

/// Reason why a URL or a header can't be used for a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    /// The URL has another form.
    #[error("use a URL that begins with https://, of at most 2048 bytes, without a password and a fragment")]
    Url,
    /// The URL is not encrypted.
    #[error("use https, or set webhooks.allow_plain=true to accept http to private addresses")]
    Plain,
    /// The host is an address that is never called.
    #[error(
        "use a host that is no address of the link (169.254.0.0/16, fe80::/10), of a metadata server or of none, and for http \
         none that is public"
    )]
    Address,
    /// The headers are too many, too long or reserved.
    #[error(
        "use at most 16 headers of at most 1024 printable characters, and none of those that the request has anyway"
    )]
    Header,
}

impl WebhookTarget {
    /// Creates a target. `allows_plain` allows `http` to private addresses.
    ///
    /// # Errors
    /// The URL or a header can't be used, for the reason given.
    pub fn new(url: &str, headers: &[(String, String)], allows_plain: bool) -> Result<Self, InvalidTarget> {
        let uri: Uri = url.parse().map_err(|_| InvalidTarget::Url)?;
        let host = uri.host().filter(|host| !host.is_empty()).ok_or(InvalidTarget::Url)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if url.len() > URL_BYTES_MAX || url.contains(['@', '#']) {
            return Err(InvalidTarget::Url);
        }
        let rule = match uri.scheme_str() {
            Some("https") => AddressRule::Routed,
            Some("http") if allows_plain => AddressRule::Private,
            Some("http") => return Err(InvalidTarget::Plain),
            _ => return Err(InvalidTarget::Url),
        };
        if host.parse().is_ok_and(|address| !rule.allows(address)) {
            return Err(InvalidTarget::Address);
        }
        let headers = parse_headers(headers).ok_or(InvalidTarget::Header)?;
        Ok(Self { url: url.to_owned(), host, rule, headers })
    }

    /// Returns the URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns whether the host is one of those that may get content, each a name or an address.
    pub fn may_get_content(&self, hosts: &[String]) -> bool {
        hosts.iter().any(|host| host.eq_ignore_ascii_case(&self.host))
    }
}

/// Shows neither the path of the URL, which may be a secret, nor the values of headers.
impl fmt::Debug for WebhookTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(HeaderName::as_str).collect();
        let shown = &mut f.debug_struct("WebhookTarget");
        shown.field("host", &self.host).field("rule", &self.rule).field("headers", &headers).finish()
    }
}

fn parse_headers(headers: &[(String, String)]) -> Option<HeaderMap> {
    let mut parsed = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        let is_reserved = RESERVED_HEADERS.contains(&name.as_str())
            || RESERVED_PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix));
        let mut value = HeaderValue::from_str(value).ok().filter(|it| it.len() <= HEADER_BYTES_MAX)?;
        value.set_sensitive(true);
        if is_reserved || parsed.len() >= HEADERS_MAX || parsed.insert(name, value).is_some() {
            return None;
        }
    }
    Some(parsed)
}

/// Answer to a request of a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookReply {
    /// What it means for the events.
    pub outcome: WebhookOutcome,
    /// Status; `None` without an answer.
    pub status: Option<u16>,
    /// Reason of a failure.
    pub error: Option<String>,
}

/// Encoded event.
#[derive(Clone, PartialEq, Eq)]
pub struct EncodedEvent {
    /// Id, stable over all deliveries.
    pub id: String,
    /// Key by which a receiver may partition events: the conversation.
    pub key: String,
    /// CloudEvent as JSON.
    pub json: Vec<u8>,
    /// Time of the entry of the feed that it is about, in ms since 1970; `None` without one.
    pub entry_ms: Option<u64>,
}

/// Shows no content.
impl fmt::Debug for EncodedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncodedEvent").field("id", &self.id).field("bytes", &self.json.len()).finish()
    }
}

/// Events of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookBody {
    /// One event, in CloudEvents' mode for single events.
    Single(EncodedEvent),
    /// List of events.
    List(Vec<EncodedEvent>),
}

impl WebhookBody {
    /// Returns the events.
    pub fn events(&self) -> &[EncodedEvent] {
        match self {
            Self::Single(event) => std::slice::from_ref(event),
            Self::List(events) => events,
        }
    }
}

/// Request with events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookRequest {
    /// Events.
    pub body: WebhookBody,
    /// Number of the try, from 1.
    pub attempt: u32,
    /// Whether an operator had the events sent once more, out of their order.
    pub is_resent: bool,
}

/// Sender of the requests of one endpoint.
pub struct WebhookSender {
    transport: HookTransport,
    name: HeaderValue,
    headers: HeaderMap,
    timeout: Duration,
}

/// Settings of a sender.
#[derive(Clone, Copy)]
pub struct SenderSettings<'a> {
    /// Id of the endpoint.
    pub name: &'a str,
    /// Secrets, each `whsec_…`; one or two.
    pub secrets: &'a [String],
    /// Returns the authorities of its certificate.
    pub(crate) trust: &'a (dyn Fn() -> io::Result<ServerTrust> + Sync),
    /// Longest time of a request.
    pub timeout: Duration,
}

/// Shows no secret.
impl fmt::Debug for SenderSettings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secrets = self.secrets.len();
        let shown = &mut f.debug_struct("SenderSettings");
        shown.field("name", &self.name).field("secrets", &secrets).field("timeout", &self.timeout).finish()
    }
}

impl WebhookSender {
    /// Creates a sender without connections.
    ///
    /// # Errors
    /// A secret or the authorities can't be used.
    pub fn new(target: &WebhookTarget, settings: SenderSettings<'_>) -> io::Result<Self> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidInput, what.to_owned());
        let signer = Signer::parse(&settings.secrets.join("\n"));
        let signer = signer.ok_or_else(|| wrong("needs one or two secrets `whsec_…` of 24 to 64 bytes"))?;
        let endpoint = HttpEndpoint::trusting(&target.url, settings.trust)?.restricted(target.rule);
        Ok(Self {
            transport: HookTransport::new(endpoint, Arc::new(signer)),
            name: HeaderValue::from_str(settings.name).map_err(|_| wrong("invalid name"))?,
            headers: target.headers.clone(),
            timeout: settings.timeout,
        })
    }

    /// Sends a request, and returns what the answer means.
    pub async fn send(&self, request: &WebhookRequest) -> WebhookReply {
        let (content_type, body) = match &request.body {
            WebhookBody::Single(event) => (SINGLE, event.json.clone()),
            WebhookBody::List(events) => (BATCH, list(events)),
        };
        let mut headers = self.headers.clone();
        headers.insert("tidegate-attempt", request.attempt.into());
        headers.insert("tidegate-webhook", self.name.clone());
        if request.is_resent {
            headers.insert("tidegate-resent", HeaderValue::from_static("1"));
        }
        let id = request_id(request.body.events());
        let post = SignedPost { id, content_type, headers: &headers, body: body.into() };
        let answer = timeout(self.timeout, self.transport.post(&post)).await;
        reply(answer.unwrap_or(Err(HookFailure::Timeout)))
    }
}

fn list(events: &[EncodedEvent]) -> Vec<u8> {
    let bytes = events.iter().map(|event| event.json.len() + 1).sum::<usize>();
    let mut body = Vec::with_capacity(bytes + 2);
    body.push(b'[');
    for (nth, event) in events.iter().enumerate() {
        if nth > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&event.json);
    }
    body.push(b']');
    body
}

/// Returns the id of a request: a hash of the ids of its events, which may have characters that Standard Webhooks forbids.
fn request_id(events: &[EncodedEvent]) -> String {
    let mut hash = Context::new(&SHA256);
    for event in events {
        hash.update(event.id.as_bytes());
        hash.update(b"\n");
    }
    let hash = hash.finish();
    let half = hash.as_ref().first_chunk::<16>().map_or(0, |half| u128::from_be_bytes(*half));
    format!("evt_{half:032x}")
}

/// Returns what an answer means. A wait that is a date counts as none.
fn reply(answer: Result<HookAnswer, HookFailure>) -> WebhookReply {
    let answer = match answer {
        Ok(answer) => answer,
        // The status was a success, and the body has no meaning.
        Err(HookFailure::TooLarge) => {
            return WebhookReply { outcome: WebhookOutcome::Taken, status: None, error: None };
        }
        Err(failure) => {
            let reason = match failure {
                HookFailure::Timeout => WebhookFailure::Timeout,
                _ => WebhookFailure::Unreachable,
            };
            let outcome = WebhookOutcome::Failed(reason);
            return WebhookReply { outcome, status: None, error: Some(failure.text()) };
        }
    };
    let status = answer.status.as_u16();
    let seconds = answer.retry_after.as_ref().and_then(|it| it.to_str().ok()?.trim().parse().ok());
    let wait = seconds.map(Duration::from_secs);
    let outcome = match (answer.status, wait) {
        (other, _) if other.is_success() => WebhookOutcome::Taken,
        (StatusCode::GONE, _) => WebhookOutcome::Gone,
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(wait)) => {
            WebhookOutcome::Busy(wait)
        }
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => {
            WebhookOutcome::Failed(WebhookFailure::Status(status))
        }
        (other, _) if other.is_client_error() => WebhookOutcome::Refused(status),
        _ => WebhookOutcome::Failed(WebhookFailure::Status(status)),
    };
    let error = (outcome != WebhookOutcome::Taken).then(|| format!("status {status}"));
    WebhookReply { outcome, status: Some(status), error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn event(id: &str) -> EncodedEvent {
        EncodedEvent {
            id: id.to_owned(),
            key: "g:a".to_owned(),
            json: format!("{{\"id\":\"{id}\"}}").into_bytes(),
            entry_ms: None,
        }
    }

    fn target(url: &str) -> WebhookTarget {
        WebhookTarget::new(url, &[("authorization".to_owned(), "Bearer x".to_owned())], true).unwrap()
    }

    fn sender(url: &str) -> WebhookSender {
        let secrets = [SECRET.to_owned(), format!("whsec_{}", "QUJD".repeat(8))];
        let settings = SenderSettings {
            name: "crm",
            secrets: &secrets,
            trust: &|| ServerTrust::read(std::path::Path::new("")),
            timeout: Duration::from_secs(5),
        };
        WebhookSender::new(&target(url), settings).unwrap()
    }

    /// Answers one request, and returns it.
    async fn serve(listener: &TcpListener, answer: &str) -> String {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        let mut buffer = [0; 4_096];
        while !request.ends_with(b"]") && !request.ends_with(b"}") {
            let read = stream.read(&mut buffer).await.unwrap();
            request.extend_from_slice(&buffer[..read]);
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        String::from_utf8(request).unwrap()
    }

    fn header<'a>(request: &'a str, name: &str) -> &'a str {
        let line = request.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {request}"))
    }

    #[tokio::test]
    async fn request_is_signed_with_each_secret_and_keeps_its_id() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sender = sender(&format!("http://{}/tg", listener.local_addr().unwrap()));
        let events = [event("g:a.b/1"), event("g:a.b/2")];
        let body = WebhookBody::List(events.to_vec());
        let request = WebhookRequest { body, attempt: 3, is_resent: false };
        let ok = "HTTP/1.1 204 No Content\r\n\r\n";
        let (reply, request) = tokio::join!(sender.send(&request), serve(&listener, ok));
        assert_eq!((reply.outcome, reply.status), (WebhookOutcome::Taken, Some(204)));
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /tg HTTP/1.1\r\n"), "{head}");
        assert_eq!(body, r#"[{"id":"g:a.b/1"},{"id":"g:a.b/2"}]"#);
        assert_eq!(header(head, "content-type"), BATCH);
        assert_eq!((header(head, "tidegate-attempt"), header(head, "tidegate-webhook")), ("3", "crm"));
        assert_eq!(header(head, "authorization"), "Bearer x");
        let (id, time) = (header(head, "webhook-id"), header(head, "webhook-timestamp"));
        assert_eq!(id, request_id(&events));
        assert!(!id.contains('.') && id != request_id(&events[..1]), "{id}");
        let secrets = format!("{SECRET}\nwhsec_{}", "QUJD".repeat(8));
        let expected = Signer::parse(&secrets).unwrap().sign(id, time.parse().unwrap(), body.as_bytes());
        assert_eq!(header(head, "webhook-signature"), expected);
        assert_eq!(expected.matches("v1,").count(), 2);
    }

    #[tokio::test]
    async fn single_events_are_no_list_and_redirects_are_not_followed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sender = sender(&format!("http://{}/", listener.local_addr().unwrap()));
        let moved = "HTTP/1.1 307 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        let body = WebhookBody::Single(event("g:a/1"));
        let request = WebhookRequest { body, attempt: 1, is_resent: true };
        let (reply, request) = tokio::join!(sender.send(&request), serve(&listener, moved));
        let failed = WebhookOutcome::Failed(WebhookFailure::Status(307));
        assert_eq!((reply.outcome, reply.status), (failed, Some(307)));
        assert_eq!(header(&request, "tidegate-resent"), "1");
        assert!(request.ends_with(r#"{"id":"g:a/1"}"#) && header(&request, "content-type") == SINGLE);
    }

    #[test]
    fn answers_have_their_meaning() {
        let of = |status: u16, retry_after: Option<&'static str>| {
            let status = StatusCode::from_u16(status).unwrap();
            let retry_after = retry_after.map(HeaderValue::from_static);
            reply(Ok(HookAnswer { status, retry_after, body: Bytes::new() })).outcome
        };
        let failed = |status: u16| WebhookOutcome::Failed(WebhookFailure::Status(status));
        for (status, outcome) in [
            (200, WebhookOutcome::Taken),
            (204, WebhookOutcome::Taken),
            (302, failed(302)),
            (400, WebhookOutcome::Refused(400)),
            (408, failed(408)),
            (410, WebhookOutcome::Gone),
            (429, failed(429)),
            (500, failed(500)),
            (503, failed(503)),
        ] {
            assert_eq!(of(status, None), outcome, "{status}");
        }
        let minute = WebhookOutcome::Busy(Duration::from_secs(60));
        assert_eq!((of(429, Some("60")), of(503, Some(" 60 "))), (minute, minute));
        assert_eq!(of(429, Some("Wed, 21 Oct 2026 07:28:00 GMT")), failed(429));
        assert_eq!(of(500, Some("60")), failed(500));
        let late = WebhookOutcome::Failed(WebhookFailure::Timeout);
        assert_eq!(reply(Err(HookFailure::Timeout)).outcome, late);
    }

    #[test]
    fn targets_are_encrypted_routed_and_plain_only_where_private() {
        let target = |url: &str, allows_plain| WebhookTarget::new(url, &[], allows_plain).map(|_| ());
        assert_eq!(target("https://crm.example/tg?a=b", false), Ok(()));
        assert_eq!(target("http://crm.internal/tg", true), Ok(()));
        assert_eq!(target("http://crm.internal/tg", false), Err(InvalidTarget::Plain));
        for address in ["https://169.254.169.254/", "https://[fe80::1]/", "https://[::ffff:169.254.0.1]/"] {
            assert_eq!(target(address, true), Err(InvalidTarget::Address), "{address}");
        }
        assert_eq!(target("http://203.0.113.1/", true), Err(InvalidTarget::Address));
        let long = format!("https://a/{}", "a".repeat(URL_BYTES_MAX));
        for wrong in ["", "/tg", "ftp://a/", "https://", "https://u:p@a/", "https://a/#x", &long] {
            assert_eq!(target(wrong, true), Err(InvalidTarget::Url), "{wrong}");
        }
        let crm = WebhookTarget::new("https://CRM.example:8443/", &[], false).unwrap();
        assert!(crm.may_get_content(&["crm.EXAMPLE".to_owned()]));
        assert!(!crm.may_get_content(&["example".to_owned(), "x.crm.example".to_owned()]));
    }

    #[test]
    fn reserved_headers_are_refused() {
        let with = |name: &str, value: &str| {
            WebhookTarget::new("https://a/", &[(name.to_owned(), value.to_owned())], false).is_ok()
        };
        assert!(with("Authorization", "Bearer x") && with("x-team", "a"));
        for name in ["Host", "Webhook-Signature", "tidegate-attempt", "Content-Length", "a b", ""] {
            assert!(!with(name, "x"), "{name}");
        }
        assert!(!with("x-a", "a\r\nb: c") && !with("x-a", &"a".repeat(HEADER_BYTES_MAX + 1)));
        let twice = [("x-a".to_owned(), "1".to_owned()), ("X-A".to_owned(), "2".to_owned())];
        assert!(WebhookTarget::new("https://a/", &twice, false).is_err());
    }
}
