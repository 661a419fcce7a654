//! HTTP client for the ports of a node: admin, probes, and `GET /v1/assign` on a client port.
//!
//! HTTP/1.1 on hyper's low-level connection: the client needs no pool, proxy or redirects, and adds no crates to those
//! of the server side.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::JoinHandle,
    time::timeout,
};

mod client_port;
mod secure;

pub(in crate::cli) use self::secure::connect_client;
pub use self::{
    client_port::{TlsArgs, TlsClient, host_port, is_tls},
    secure::Trust,
};

/// Default time for a node to accept, and to answer; longer than a node waits for an event (`tail --events`).
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest body of a response; a larger one is an error.
const BODY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Status and body of a response.
pub type Response = (u16, String);

/// Connection to a port of a node, reused for several requests.
pub struct Connection {
    host: String,
    timeout: Duration,
    sender: SendRequest<Full<Bytes>>,
    /// Task that reads and writes while a request waits.
    driver: JoinHandle<()>,
}

impl Connection {
    /// Connects to `host`, a host and port. `timeout` limits the connect, and each response.
    ///
    /// # Errors
    /// The node does not accept in time.
    pub async fn open(host: &str, timeout: Duration) -> Result<Self> {
        let connect = async {
            let stream = TcpStream::connect(host).await?;
            stream.set_nodelay(true)?;
            anyhow::Ok(stream)
        };
        let stream = within(timeout, connect).await?;
        Self::over(stream, host, timeout).await
    }

    /// Connects to a client port at `host`, a host and port, over TLS if it is given.
    ///
    /// # Errors
    /// The node does not accept in time, or its certificate is not trusted.
    pub(super) async fn open_client(host: &str, tls: Option<&TlsClient>, timeout: Duration) -> Result<Self> {
        let Some(tls) = tls else { return Self::open(host, timeout).await };
        let connect = async {
            let stream = TcpStream::connect(host).await?;
            stream.set_nodelay(true)?;
            connect_client(stream, host, tls).await
        };
        let stream = within(timeout, connect).await?;
        Self::over(stream, host, timeout).await
    }

    /// Connects to an admin port, with TLS if it has any; `authority` is the file of `--ca`.
    ///
    /// # Errors
    /// The node does not accept in time, or its certificate is not trusted.
    pub(super) async fn open_to(
        address: SocketAddr,
        trust: Option<&Trust>,
        authority: Option<&Path>,
        timeout: Duration,
    ) -> Result<Self> {
        let Some(trust) = trust else { return Self::open(&address.to_string(), timeout).await };
        let connect = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            secure::connect(stream, address, trust, authority).await
        };
        let stream = within(timeout, connect).await?;
        Self::over(stream, &address.to_string(), timeout).await
    }

    async fn over<S>(stream: S, host: &str, timeout: Duration) -> Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // The request that waits for a response gets the error.
        let driver = tokio::spawn(async move { connection.await.unwrap_or_default() });
        Ok(Self { host: host.to_owned(), timeout, sender, driver })
    }

    /// Sends a request and returns its response, whatever its status. The content type is JSON even without a body,
    /// because a node refuses other changes.
    ///
    /// # Errors
    /// The connection ends, or there is no response in time.
    pub async fn request(&mut self, method: &str, path: &str, body: &str) -> Result<Response> {
        self.request_as(method, path, None, body).await
    }

    /// Sends a GET with a bearer token and returns its response, whatever its status.
    ///
    /// # Errors
    /// The connection ends, or there is no response in time.
    pub async fn get_as(&mut self, path: &str, token: &str) -> Result<Response> {
        self.request_as("GET", path, Some(token), "").await
    }

    /// Sends a request with a bearer token, if there is one, and returns its response, whatever its status.
    ///
    /// # Errors
    /// The connection ends, or there is no response in time.
    pub async fn request_as(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> Result<Response> {
        let (what, limit) = (|| format!("{method} {path}"), self.timeout);
        let exchange = async {
            let response = self.send(method, path, token, None, body).await?;
            collected(response).await
        };
        within(limit, exchange).await.with_context(what)
    }

    /// Sends a GET and passes the lines of its response to `take` as they come, until that returns false. Returns the body
    /// of a response that is no stream. `last_id` is where a stream continues.
    ///
    /// # Errors
    /// The connection ends before the response does, or nothing comes for longer than `silence`.
    pub(super) async fn lines(
        &mut self,
        path: &str,
        token: Option<&str>,
        last_id: Option<&str>,
        silence: Duration,
        mut take: impl FnMut(&str) -> bool,
    ) -> Result<Option<String>> {
        let (limit, header) = (self.timeout, last_id.map(|id| ("last-event-id", id)));
        let mut response = within(limit, self.send("GET", path, token, header, "")).await?;
        if response.status() != StatusCode::OK {
            return Ok(Some(within(limit, collected(response)).await?.1));
        }
        let mut line = Vec::new();
        while let Some(frame) = within(silence, async { Ok(response.frame().await.transpose()?) }).await? {
            let Ok(data) = frame.into_data() else { continue };
            for part in data.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                ensure!(line.len() <= BODY_BYTES_MAX, "a line of the response is too long");
                if let Some(text) = line.strip_suffix(b"\n") {
                    if !take(&String::from_utf8_lossy(text)) {
                        return Ok(None);
                    }
                    line.clear();
                }
            }
        }
        Ok(None)
    }

    async fn send(
        &mut self,
        method: &str,
        path: &str,
        token: Option<&str>,
        header: Option<(&str, &str)>,
        body: &str,
    ) -> Result<hyper::Response<Incoming>> {
        let method: Method = method.parse()?;
        let mut request = Request::builder().uri(path).header(HOST, &self.host);
        if !body.is_empty() || !method.is_safe() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = token {
            let mut value = HeaderValue::try_from(format!("Bearer {token}"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.method(&method).body(Full::from(body.to_owned()))?;
        self.sender.ready().await.context("the node closed the connection")?;
        Ok(self.sender.send_request(request).await?)
    }
}

/// Reads a response to its end.
async fn collected(response: hyper::Response<Incoming>) -> Result<Response> {
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(limit, work).await.unwrap_or_else(|_| anyhow::bail!("no answer within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

    /// Accepts one connection, sends one response per request, and returns the requests in lower case.
    async fn server(responses: &'static [&'static str]) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut requests = Vec::new();
            let mut buffer = [0; 4_096];
            for response in responses {
                let count = stream.read(&mut buffer).await.unwrap();
                requests.push(String::from_utf8_lossy(&buffer[..count]).to_lowercase());
                stream.write_all(response.as_bytes()).await.unwrap();
            }
            requests
        });
        (host, task)
    }

    #[tokio::test]
    async fn connection_is_reused_for_several_requests() {
        let (host, task) = server(&[
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "HTTP/1.1 409 C\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 503 Gone\r\nconnection: close\r\n\r\nto the end",
        ])
        .await;
        let mut connection = Connection::open(&host, REPLY_TIMEOUT).await.unwrap();
        assert_eq!(connection.request("GET", "/a?b=c", "").await.unwrap(), (200, "hello".to_owned()));
        assert_eq!(connection.request("POST", "/a", "{}").await.unwrap(), (409, "abcde".to_owned()));
        assert_eq!(connection.request("DELETE", "/a", "").await.unwrap(), (200, String::new()));
        assert_eq!(connection.get_as("/a", "secret").await.unwrap(), (503, "to the end".to_owned()));
        let requests = task.await.unwrap();
        for (request, first) in requests.iter().zip(["get /a?b=c ", "post /a ", "delete /a ", "get /a "]) {
            assert!(request.starts_with(first), "{request}");
            assert!(request.contains(&format!("\r\nhost: {host}\r\n")), "{request}");
            assert_eq!(
                request.contains("content-type: application/json"),
                !first.starts_with("get"),
                "{request}"
            );
        }
        assert!(requests[3].contains("authorization: bearer secret"), "{}", requests[3]);
        let error = connection.request("GET", "/b", "").await.unwrap_err();
        assert!(format!("{error:#}").starts_with("GET /b: the node closed the connection"), "{error:#}");
    }

    #[tokio::test]
    async fn silent_node_is_an_error_after_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let limit = Duration::from_millis(100);
        let mut connection = Connection::open(&host, limit).await.unwrap();
        let error = connection.request("GET", "/readyz", "").await.unwrap_err();
        assert_eq!(format!("{error:#}"), "GET /readyz: no answer within 100ms");
        drop(listener);
        assert!(Connection::open(&host, limit).await.is_err());
    }
}
