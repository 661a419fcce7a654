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

use super::{
    failure::{ANSWER_BYTES_MAX, HookFailure},
    signing::Signer,
};
use crate::{clock::wall_ms, net::endpoint::HttpEndpoint, supervised};

/// Time for which an unused connection is kept. Many servers close one after 5 s, and a request that meets such a close
/// fails.
const IDLE_MAX: Duration = Duration::from_secs(4);

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
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
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
            match kept.send_request(request.clone()).await {
                Ok(response) => return self.read(response, kept).await,
                Err(error) if error.is_parse() => return Err(unreachable(error)),
                // A server may close a connection at any time, also while a request is under way to it. The receiver
                // recognises a repetition by its id.
                Err(_) => {}
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(unreachable)?;
        self.read(response, sender).await
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

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, HookFailure> {
        let stream = self.endpoint.connect().await.map_err(HookFailure::Unreachable)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| HookFailure::Unreachable(error.to_string()))?;
        supervised::spawn("a connection to a hook", async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection to a hook ended");
            }
        });
        Ok(sender)
    }

    /// Returns an open connection, the one used last; forgets those that are closed or old.
    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|it| !it.sender.is_closed() && it.since.elapsed() < IDLE_MAX);
        let last = idle.iter().rposition(|it| it.sender.is_ready())?;
        Some(idle.swap_remove(last).sender)
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        sender: SendRequest<Full<Bytes>>,
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
        if !sender.is_closed() {
            self.idle.lock().push(IdleConnection { sender, since: Instant::now() });
        }
        Ok(HookAnswer { status, retry_after, body: body.to_bytes() })
    }
}
