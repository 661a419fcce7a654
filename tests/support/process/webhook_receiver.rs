//! Receiver of webhooks: verifies the signatures, records the events, and answers as the test wants.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use serde_json::Value;

/// Returns the status of the answer to some events.
pub type Answer = Box<dyn Fn(&[Value]) -> u16 + Send>;

/// Receiver on a free port, until the test ends.
pub struct WebhookReceiver {
    pub address: SocketAddr,
    state: Arc<Mutex<Received>>,
}

/// Requests that a receiver has got.
struct Received {
    /// Events that it has taken, in their order.
    taken: Vec<Value>,
    /// Events of all requests, also of those that it has refused.
    seen: usize,
    /// Secrets that may sign; without any, signatures are not verified.
    secrets: Vec<Vec<u8>>,
    /// Numbers of signatures of the requests.
    signatures: Vec<usize>,
    /// Requests without a valid signature.
    unsigned: usize,
    /// Ids of the events that it has taken of requests with `tidegate-resent: 1`.
    resent: Vec<String>,
    /// Head of the last request.
    head: String,
    answer: Answer,
}

impl WebhookReceiver {
    /// Starts a receiver that takes all events.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(Received {
            taken: Vec::new(),
            seen: 0,
            secrets: Vec::new(),
            signatures: Vec::new(),
            unsigned: 0,
            resent: Vec::new(),
            head: String::new(),
            answer: Box::new(|_| 204),
        }));
        let shared = Arc::clone(&state);
        let address = serve_each(move |stream| serve(stream, &shared));
        Self { address, state }
    }

    /// Returns the URL of the receiver.
    pub fn url(&self) -> String {
        format!("http://{}/tg", self.address)
    }

    /// Adds a secret, `whsec_…`.
    pub fn trust(&self, secret: &str) {
        let bytes = secret.strip_prefix("whsec_").and_then(|text| STANDARD.decode(text).ok());
        self.state.lock().secrets.push(bytes.expect("a secret"));
    }

    /// Trusts no secret any more except these.
    pub fn trust_only(&self, secret: &str) {
        self.state.lock().secrets.clear();
        self.trust(secret);
    }

    /// Answers with what the function returns from now on.
    pub fn answer(&self, answer: impl Fn(&[Value]) -> u16 + Send + 'static) {
        self.state.lock().answer = Box::new(answer);
    }

    /// Returns the events that it has taken, and forgets them.
    pub fn take(&self) -> Vec<Value> {
        std::mem::take(&mut self.state.lock().taken)
    }

    /// Returns the ids of the taken events, in their order.
    pub fn ids(&self) -> Vec<String> {
        ids(&self.state.lock().taken)
    }

    /// Returns the ids of the events that an operator had sent again, and that were taken, in their order.
    pub fn resent(&self) -> Vec<String> {
        self.state.lock().resent.clone()
    }

    /// Returns the seqs of first deliveries by conversation, in their order.
    pub fn seqs(&self) -> BTreeMap<String, Vec<u64>> {
        let mut seqs = BTreeMap::<String, Vec<u64>>::new();
        for event in &self.state.lock().taken {
            let Some(seq) = event["data"]["seq"].as_u64() else { continue };
            let of = seqs.entry(event["subject"].as_str().unwrap_or_default().to_owned()).or_default();
            if !of.contains(&seq) {
                of.push(seq);
            }
        }
        seqs
    }

    /// Returns the number of events in all requests.
    pub fn seen(&self) -> usize {
        self.state.lock().seen
    }

    /// Returns the number of signatures of the last request.
    pub fn signatures(&self) -> usize {
        self.state.lock().signatures.last().copied().unwrap_or(0)
    }

    /// Returns the number of requests without a valid signature.
    pub fn unsigned(&self) -> usize {
        self.state.lock().unsigned
    }

    /// Returns the value of a header of the last request.
    pub fn header(&self, name: &str) -> Option<String> {
        field(&self.state.lock().head, name)
    }
}

fn ids(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| event["id"].as_str().unwrap_or_default().to_owned()).collect()
}

fn field(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
}

/// Serves each connection to a free port in a thread of its own, until the test ends. Returns the address.
pub(super) fn serve_each(serve: impl Fn(TcpStream) -> Option<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let serve = Arc::clone(&serve);
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Reads the head of a request, up to its empty line; `None` if the connection ends.
pub(super) fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if reader.read_until(b'\n', &mut head).ok()? == 0 {
            return None;
        }
    }
    String::from_utf8(head).ok()
}

/// Serves one connection until its end.
fn serve(stream: TcpStream, state: &Mutex<Received>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let head = read_head(&mut reader)?;
        let mut body = vec![0; field(&head, "content-length")?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let status = state.lock().note(head, &body)?;
        let answer = format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n\r\n");
        reader.get_mut().write_all(answer.as_bytes()).ok()?;
    }
}

impl Received {
    /// Records a request and returns the status of its answer.
    fn note(&mut self, head: String, body: &[u8]) -> Option<u16> {
        let (id, time) = (field(&head, "webhook-id")?, field(&head, "webhook-timestamp")?);
        let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body].concat();
        let given = field(&head, "webhook-signature")?;
        let given: Vec<&str> = given.split(' ').collect();
        let is_signed = self.secrets.iter().any(|secret| {
            let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &signed);
            given.contains(&format!("v1,{}", STANDARD.encode(tag)).as_str())
        });
        self.signatures.push(given.len());
        self.head = head;
        let events: Vec<Value> = match serde_json::from_slice(body).ok()? {
            Value::Array(events) => events,
            event => vec![event],
        };
        self.seen += events.len();
        if !self.secrets.is_empty() && !is_signed {
            self.unsigned += 1;
            return Some(401);
        }
        let status = (self.answer)(&events);
        if (200..300).contains(&status) {
            if field(&self.head, "tidegate-resent").as_deref() == Some("1") {
                self.resent.extend(ids(&events));
            }
            self.taken.extend(events);
        }
        Some(status)
    }
}
