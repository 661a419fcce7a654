//! Clients and admin requests of the attacks: JSON lines over TCP, blocking.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use tidegate::cli::http::Connection;
use tokio::runtime::Runtime;

/// Longest wait for a frame or a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Interval of the questions whether something has happened.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Node that is attacked, with its admin port.
pub(super) struct Node {
    pub(super) client: String,
    pub(super) admin: String,
    pub(super) runtime: Runtime,
    /// Time for the node to act.
    pub(super) within: Duration,
}

impl Node {
    /// Sends a request to the admin port.
    pub(super) fn request(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let asked =
            async { Connection::open(&self.admin, TIMEOUT).await?.request(method, path, &body).await };
        let (status, answer) = self.runtime.block_on(asked).with_context(|| format!("{method} {path}"))?;
        Ok((status, serde_json::from_str(&answer).unwrap_or(Value::Null)))
    }

    /// Makes a change that has to succeed.
    pub(super) fn change(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let (status, answer) = self.request(method, path, body)?;
        ensure!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        Ok(answer)
    }

    /// Reads something.
    pub(super) fn read(&self, path: &str) -> Result<Value> {
        self.change("GET", path, &Value::Null)
    }

    /// Asks until `found` returns something.
    pub(super) fn until<T>(&self, what: &str, mut found: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + self.within;
        loop {
            if let Some(it) = found()? {
                return Ok(it);
            }
            ensure!(Instant::now() < deadline, "not within {:?}: {what}", self.within);
            self.runtime.block_on(async { tokio::time::sleep(POLL_INTERVAL).await });
        }
    }

    /// Logs a user in.
    pub(super) fn login(&self, user: &str, device: &str, next_id: &str) -> Result<AttackClient> {
        let token = self.change("POST", "/v1/dev/token", &json!({"user": user, "device": device}))?;
        let token = token["token"].as_str().context("no token; is the node for development?")?.to_owned();
        let hello = json!({"version": 1, "token": token, "device": device, "nextId": next_id});
        let mut client = AttackClient::connect(&self.client)?;
        let id = client.write("hello", &hello)?;
        let answer = client.answer(id)?;
        ensure!(answer["welcome"].is_object(), "login of {user}: {answer}");
        Ok(client)
    }
}

/// Connection of a client.
pub(super) struct AttackClient {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
    last_id: u64,
}

impl AttackClient {
    /// Connects without a login.
    pub(super) fn connect(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).with_context(|| address.to_owned())?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let lines = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, lines, last_id: 0 })
    }

    /// Writes a frame, and returns its id.
    pub(super) fn write(&mut self, kind: &str, body: &Value) -> Result<u64> {
        self.last_id += 1;
        let line = format!("{}\n", json!({"id": self.last_id, kind: body}));
        self.stream.write_all(line.as_bytes())?;
        Ok(self.last_id)
    }

    /// Returns the next frame; `None` at the end of the connection.
    pub(super) fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line) {
            Ok(length) if length > 0 => serde_json::from_str(&line).ok(),
            _ => None,
        }
    }

    /// Returns the answer to a frame; what comes before it is dropped.
    pub(super) fn answer(&mut self, id: u64) -> Result<Value> {
        while let Some(frame) = self.next() {
            if frame["id"] == id {
                return Ok(frame);
            }
            if frame["close"].is_object() {
                bail!("closed: {frame}");
            }
        }
        bail!("the connection has ended")
    }

    /// Sends a message, and returns the name of its refusal; `None` if it is accepted.
    pub(super) fn send(&mut self, place: &str, msg_id: &str, text: &str) -> Result<Option<String>> {
        let to = if place.contains(':') { "conversation" } else { "toUser" };
        let id = self.write("send", &json!({to: place, "msgId": msg_id, "content": {"text": text}}))?;
        let answer = self.answer(id)?;
        Ok(answer["error"]["name"].as_str().map(str::to_owned))
    }
}
