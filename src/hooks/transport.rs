//! Signed requests to one URL, over connections that stay open. Redirects are not followed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::{
    failure::{ANSWER_BYTES_MAX, HookFailure},
    signing::Signer,
};
use crate::{clock::wall_ms, net::endpoint::HttpEndpoint, supervised};

/// Time for which an unused connection is kept. Many servers close one after 5 s, and a request that meets such a close
/// fails.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Age from which on a connection takes no further request.
const REUSE_MAX: Duration = Duration::from_secs(60);

/// Longest life of a connection. Its last request begins within [`REUSE_MAX`], and no caller waits for longer than a minute:
/// what lives on then belongs to a server that neither reads nor closes.
const LIFE_MAX: Duration = Duration::from_secs(150);

/// Connections to one server, and the keys that sign the requests.
pub(super) struct HookTransport {
    endpoint: HttpEndpoint,
    signer: Arc<Signer>,
    /// Unused connections, at most one for each request that was in flight at a time.
    idle: Mutex<Vec<IdleConnection>>,
    answer_bytes_max: usize,
}

/// Connection that waits for a request.
struct IdleConnection {
    open: OpenConnection,
    since: Instant,
}

/// Connection without a request.
struct OpenConnection {
    sender: SendRequest<Full<Bytes>>,
    began: Instant,
}

/// Request to be signed.
pub(super) struct SignedPost<'a> {
    /// Id by which the receiver recognises a repetition.
    pub(super) id: String,
    pub(super) content_type: &'static str,
    /// Further headers.
    pub(super) headers: &'a HeaderMap,
    pub(super) body: Bytes,
}

/// Answer to a request.
pub(super) struct HookAnswer {
    pub(super) status: StatusCode,
    /// Value of `Retry-After`.
    pub(super) retry_after: Option<header::HeaderValue>,
    /// Body of an answer with a status from 200 to 299, otherwise empty.
    pub(super) body: Bytes,
}

impl HookTransport {
    /// Creates a transport without connections.
    pub(super) fn new(endpoint: HttpEndpoint, signer: Arc<Signer>) -> Self {
        Self { endpoint, signer, idle: Mutex::default(), answer_bytes_max: ANSWER_BYTES_MAX }
    }

    /// Sets the bytes of the largest answer.
    pub(super) fn with_answers_up_to(self, answer_bytes_max: usize) -> Self {
        Self { answer_bytes_max, ..self }
    }

    /// Returns the server, with its port if the URL names one.
    pub(super) fn authority(&self) -> &str {
        self.endpoint.authority()
    }

    /// Sends a request and returns the answer, whatever its status. Repeats it once, under its id, when a connection that
    /// was kept from a former request ended without an answer. Must run in a runtime.
    ///
    /// # Errors
    /// There is no answer, for the reason given.
    pub(super) async fn post(&self, post: &SignedPost<'_>) -> Result<HookAnswer, HookFailure> {
        let unreachable = |error: hyper::Error| HookFailure::Unreachable(error.to_string());
        let request = self.request(post)?;
        if let Some(mut kept) = self.take_idle() {
            match kept.sender.send_request(request.clone()).await {
                Ok(response) => return self.read(response, kept).await,
                Err(error) if error.is_parse() => return Err(unreachable(error)),
                // A server may close a connection at any time, also while a request is under way to it. The receiver
                // recognises a repetition by its id.
                Err(_) => {}
            }
        }
        let mut open = self.connect().await?;
        let response = open.sender.send_request(request).await.map_err(unreachable)?;
        self.read(response, open).await
    }

    fn request(&self, post: &SignedPost<'_>) -> Result<Request<Full<Bytes>>, HookFailure> {
        let time_s = wall_ms() / 1_000;
        let signature = self.signer.sign(&post.id, time_s, &post.body);
        let mut request = Request::post(self.endpoint.path())
            .header(header::HOST, self.endpoint.authority())
            .header(header::CONTENT_TYPE, post.content_type)
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", &post.id)
            .header("webhook-timestamp", time_s)
            .header("webhook-signature", signature)
            .body(Full::new(post.body.clone()))
            .map_err(|error| HookFailure::Unreachable(error.to_string()))?;
        request.headers_mut().extend(post.headers.clone());
        Ok(request)
    }

    async fn connect(&self) -> Result<OpenConnection, HookFailure> {
        let stream = self.endpoint.connect().await.map_err(HookFailure::Unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| HookFailure::Unreachable(error.to_string()))?;
        supervised::spawn("a connection to a hook", async move {
            match timeout(LIFE_MAX, connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "connection to a hook ended"),
                Err(_) => tracing::debug!("connection to a hook closed, because it is too old"),
            }
        });
        Ok(OpenConnection { sender, began: Instant::now() })
    }

    /// Returns an open connection, the one used last; forgets those that are closed or old.
    fn take_idle(&self) -> Option<OpenConnection> {
        let mut idle = self.idle.lock();
        idle.retain(|it| {
            let is_young = it.since.elapsed() < IDLE_MAX && it.open.began.elapsed() < REUSE_MAX;
            !it.open.sender.is_closed() && is_young
        });
        let last = idle.iter().rposition(|it| it.open.sender.is_ready())?;
        Some(idle.swap_remove(last).open)
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        open: OpenConnection,
    ) -> Result<HookAnswer, HookFailure> {
        let status = response.status();
        let retry_after = response.headers().get(header::RETRY_AFTER).cloned();
        if !status.is_success() {
            return Ok(HookAnswer { status, retry_after, body: Bytes::new() });
        }
        let body = Limited::new(response.into_body(), self.answer_bytes_max).collect().await;
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => HookFailure::Unreachable(error.to_string()),
            Err(_) => HookFailure::TooLarge,
        })?;
        if !open.sender.is_closed() {
            self.idle.lock().push(IdleConnection { open, since: Instant::now() });
        }
        Ok(HookAnswer { status, retry_after, body: body.to_bytes() })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_to_a_server_that_neither_reads_nor_closes_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let transport = HookTransport::new(HttpEndpoint::new(&url, Path::new("")).unwrap(), signer);
        let bytes = 32 * 1024 * 1024;
        let posting = tokio::spawn(async move {
            let (id, headers, body) = ("hook_1".to_owned(), HeaderMap::new(), vec![0; bytes].into());
            let post = SignedPost { id, content_type: "application/json", headers: &headers, body };
            transport.post(&post).await.map(drop)
        });
        let (mut stream, _) = listener.accept().await.unwrap();
        timeout(Duration::from_secs(1), std::future::pending::<()>()).await.ok();
        posting.abort();
        timeout(2 * LIFE_MAX, std::future::pending::<()>()).await.ok();
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        while let Ok(more @ 1..) = stream.read(&mut buffer).await {
            read += more;
        }
        assert!(read < bytes, "it is closed, although {read} bytes were not read");
    }
}
