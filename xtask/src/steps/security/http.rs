//! One request to an HTTP port of the node under test, and the memory of its process.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, ensure};

/// Longest wait for a response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Response of a port.
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    /// Status line, fields and body as text.
    pub(super) text: String,
}

impl HttpAnswer {
    /// Returns the body.
    pub(super) fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }
}

/// Sends a request whose head begins with this text, and has further lines for its end.
pub(super) fn ask(port: &str, head: &str, body: &str) -> anyhow::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(port).with_context(|| format!("connecting to {port}"))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let end = format!("Host: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}\r\n{end}{body}").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("{head}: no answer"))?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(HttpAnswer { status: status.with_context(|| format!("{head}: no HTTP response: {text}"))?, text })
}

/// Returns the resident memory of a process in bytes, while its port for probes answers.
pub(super) fn memory(pid: u32, probes: &str) -> anyhow::Result<u64> {
    let answer = ask(probes, "GET /livez HTTP/1.1", "")?;
    ensure!(answer.status == 200, "the node is not live: {}", answer.text);
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.context("the process has a resident size")? * 1_024)
}
