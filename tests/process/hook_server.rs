//! Server of an application that answers the hooks of a node.

use std::{
    io::{BufRead as _, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parking_lot::Mutex;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::eventually;

/// Secret of all tests.
pub(super) const SECRET: &[u8] = b"a secret of 32 bytes for a hook!";

/// Response of the server to its next requests.
#[derive(Clone)]
pub(super) enum Behaviour {
    /// Answers as the application of the test does.
    Usual,
    /// Answers with this body.
    Json(Value),
    /// Closes the connection without an answer, unless the request is its first.
    EndsKept,
    /// Sends these bytes, and closes the connection.
    Raw(String),
    /// Answers as usual once it behaves otherwise.
    Held,
    /// Answers as usual, except requests about messages of this sender, which it never answers.
    HangsFor(&'static str),
    /// Never answers.
    Hang,
}

/// Request that the server got.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) path: String,
    pub(super) id: String,
    pub(super) body: Value,
    pub(super) is_signed: bool,
    /// Number of its connection.
    pub(super) connection: usize,
}

/// Server of an application.
pub(super) struct App {
    pub(super) address: SocketAddr,
    pub(super) state: Arc<Mutex<State>>,
}

pub(super) struct State {
    pub(super) behaviour: Behaviour,
    pub(super) asked: Vec<Asked>,
    connections: usize,
}

pub(super) fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_millis()).expect("a time")
}

/// Returns the answer of the application.
fn usual(path: &str, body: &Value) -> Value {
    if path == "/allow" {
        return json!({"allow": body["target"] != "carl" && body["target"] != "r:cellar"});
    }
    if path == "/before" {
        let items = body["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        return json!({"items": items.iter().map(verdict).collect::<Vec<_>>()});
    }
    let credential = match &body["cookies"]["sid"] {
        Value::String(cookie) => cookie.as_str(),
        _ => body["credential"].as_str().unwrap_or_default(),
    };
    match credential.strip_prefix("ticket-of-") {
        Some(user) => {
            json!({"user": user, "expiresAt": now_ms() + 60_000, "claims": {"to": ["bob", "dora", "carl", "g:*", "r:*"]}})
        }
        None => json!({"deny": true}),
    }
}

/// Returns the verdict about a message, which its text asks for.
fn verdict(item: &Value) -> Value {
    let text = item["content"]["text"].as_str().unwrap_or_default();
    match text.split_once(": ") {
        Some(("deny", why)) => json!({"deny": {"code": 5001, "message": why}, "msgId": item["msgId"]}),
        Some(("replace", other)) => json!({"replace": {"content": {"text": other, "type": "checked"}}}),
        _ => json!({"allow": true}),
    }
}

fn response(body: &Value) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

impl App {
    pub(super) fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a server, with TLS if there is a configuration for it.
    pub(super) fn start_with(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = State { behaviour: Behaviour::Usual, asked: Vec::new(), connections: 0 };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (shared, tls) = (Arc::clone(&shared), tls.clone());
                thread::spawn(move || match tls {
                    None => serve(stream, &shared),
                    Some(tls) => {
                        let session = ServerConnection::new(tls).expect("a configuration");
                        serve(StreamOwned::new(session, stream), &shared)
                    }
                });
            }
        });
        Self { address, state }
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.state.lock().behaviour = behaviour;
    }

    /// Returns the requests since the last call.
    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.lock().asked)
    }
}

/// Serves one connection until its end.
fn serve(stream: impl Read + Write, state: &Mutex<State>) -> Option<()> {
    let connection = {
        let mut state = state.lock();
        state.connections += 1;
        state.connections
    };
    let mut reader = BufReader::new(stream);
    for n in 0.. {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if reader.read_until(b'\n', &mut head).ok()? == 0 {
                return None;
            }
        }
        let head = String::from_utf8(head).ok()?;
        let field = |name: &str| {
            head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let mut body = vec![0; field("content-length")?.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let path = head.split(' ').nth(1)?.to_owned();
        let (id, time) = (field("webhook-id")?, field("webhook-timestamp")?);
        let signed = [id.as_bytes(), b".", time.as_bytes(), b".", &body].concat();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), &signed);
        let is_signed = field("webhook-signature")? == format!("v1,{}", STANDARD.encode(tag));
        let body: Value = serde_json::from_slice(&body).ok()?;
        let behaviour = {
            let mut state = state.lock();
            state.asked.push(Asked { path: path.clone(), id, body: body.clone(), is_signed, connection });
            state.behaviour.clone()
        };
        let writer = reader.get_mut();
        match behaviour {
            Behaviour::Usual => writer.write_all(response(&usual(&path, &body)).as_bytes()).ok()?,
            Behaviour::EndsKept if n > 0 => return None,
            Behaviour::EndsKept => writer.write_all(response(&usual(&path, &body)).as_bytes()).ok()?,
            Behaviour::Held => {
                eventually("the answer is released", || {
                    (!matches!(state.lock().behaviour, Behaviour::Held)).then_some(())
                });
                writer.write_all(response(&usual(&path, &body)).as_bytes()).ok()?;
            }
            Behaviour::Json(answer) => writer.write_all(response(&answer).as_bytes()).ok()?,
            Behaviour::Raw(bytes) => {
                writer.write_all(bytes.as_bytes()).ok()?;
                return None;
            }
            Behaviour::HangsFor(sender) if body["items"][0]["sender"] != sender => {
                writer.write_all(response(&usual(&path, &body)).as_bytes()).ok()?;
            }
            Behaviour::HangsFor(_) | Behaviour::Hang => {
                // Until the node gives up.
                reader.read_until(0, &mut Vec::new()).ok()?;
                return None;
            }
        }
    }
    None
}
