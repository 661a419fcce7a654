//! Client of one hook: signed requests over connections that stay open, bounded in number, time and size.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    sync::Semaphore,
    time::{Instant as Deadline, timeout_at},
};

use super::signing::Signer;
use crate::{
    breaker::{GuardedService, ServiceBreaker},
    clock::wall_ms,
    net::endpoint::HttpEndpoint,
    supervised,
};

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Time for which an unused connection is kept. Many servers close one after 5 s, and a request that meets such a close
/// fails.
const IDLE_MAX: Duration = Duration::from_secs(4);

/// Reason for which a hook gave no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HookFailure {
    /// Too many requests wait, or one has waited too long for others.
    Full,
    /// Too many requests are for one user.
    UserFull,
    /// Calls have failed lately, so none is made for a while.
    Open,
    /// No answer in time.
    Timeout,
    /// The server can't be reached, or ended the connection.
    Unreachable(String),
    /// Another status than 200; redirects are not followed.
    Status(u16),
    /// Larger than [`ANSWER_BYTES_MAX`].
    TooLarge,
    /// Not the JSON that is expected.
    BadAnswer,
}

impl HookFailure {
    /// Returns the reason in words.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Full => "too many requests wait (hooks.in_flight_max, hooks.waiting_max)".into(),
            Self::UserFull => "too many requests for one user".into(),
            Self::Open => "calls have failed lately".into(),
            Self::Timeout => "no answer in time".into(),
            Self::Unreachable(why) => why.clone(),
            Self::Status(status) => format!("status {status}"),
            Self::TooLarge => format!("answer larger than {ANSWER_BYTES_MAX} bytes"),
            Self::BadAnswer => "answer is not the expected JSON".into(),
        }
    }

    /// Returns whether the server answered, though not as expected: the request may be the cause, so that such answers
    /// don't open the breaker.
    pub(crate) const fn is_answered(&self) -> bool {
        match self {
            Self::Status(status) => *status < 500,
            Self::TooLarge | Self::BadAnswer => true,
            Self::Full | Self::UserFull | Self::Open | Self::Timeout | Self::Unreachable(_) => false,
        }
    }

    /// Returns whether the server refused the request by its status.
    pub(crate) const fn is_refusal(&self) -> bool {
        matches!(self, Self::Status(400..=499)) && !self.is_busy()
    }

    /// Returns whether the server asked to wait, which says nothing about the request.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self, Self::Status(408 | 429))
    }

    /// Returns whether requests of users are the cause, which must not open what a hook protects.
    pub(crate) const fn is_full(&self) -> bool {
        matches!(self, Self::Full | Self::UserFull)
    }
}

/// Settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// Longest time of a request, the wait for others included.
    pub(crate) timeout: Duration,
    /// Most requests at a time.
    pub(crate) in_flight_max: usize,
    /// Most requests that wait for others.
    pub(crate) waiting_max: usize,
}

/// Client of one URL.
pub(crate) struct HookClient {
    endpoint: HttpEndpoint,
    signer: Arc<Signer>,
    settings: ClientSettings,
    permits: Semaphore,
    /// Requests in flight and waiting.
    taken: AtomicUsize,
    /// Unused connections, at most one for each permit.
    idle: Mutex<Vec<IdleConnection>>,
    breaker: Arc<ServiceBreaker>,
}

/// Connection that waits for a request.
struct IdleConnection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
}

/// Place among the requests; free again on drop.
struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HookClient {
    /// Creates a client without connections.
    ///
    /// # Errors
    /// The URL or the file of the authorities can't be used.
    pub(crate) fn new(
        url: &str,
        ca_file: &Path,
        signer: Arc<Signer>,
        settings: ClientSettings,
        service: GuardedService,
    ) -> io::Result<Self> {
        let breaker = ServiceBreaker::new(service, settings.timeout);
        Ok(Self {
            endpoint: HttpEndpoint::new(url, ca_file)?,
            signer,
            permits: Semaphore::new(settings.in_flight_max),
            settings,
            taken: AtomicUsize::new(0),
            idle: Mutex::default(),
            breaker,
        })
    }

    /// Sends a JSON body, and returns what `parse` makes of the answer. Repeats a request once, under its id, when a
    /// connection that was kept from a former request ended without an answer. Must run in a runtime.
    ///
    /// # Errors
    /// There is no valid answer, for the reason given.
    pub(crate) async fn call<T>(
        &self,
        body: Vec<u8>,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, HookFailure> {
        let place = Place(&self.taken);
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        if taken >= self.settings.in_flight_max + self.settings.waiting_max {
            return Err(HookFailure::Full);
        }
        let admitted = self.breaker.acquire().ok_or(HookFailure::Open)?;
        let deadline = Deadline::now() + self.settings.timeout;
        // The wait for others says nothing about the server, whose breaker it must not open. The semaphore is never closed.
        let permit = timeout_at(deadline, self.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else { return Err(HookFailure::Full) };
        let answer = timeout_at(deadline, self.exchange(body.into())).await;
        drop(permit);
        let answer = answer.unwrap_or(Err(HookFailure::Timeout));
        let parsed = answer.and_then(|answer| parse(&answer).ok_or(HookFailure::BadAnswer));
        drop(place);
        let opened = match parsed.as_ref().err().filter(|failure| !failure.is_answered()) {
            None => {
                admitted.succeeded();
                None
            }
            Some(failure @ HookFailure::Timeout) => admitted.late().then_some(failure),
            Some(failure) => admitted.failed().then_some(failure),
        };
        if let Some(failure) = opened {
            let (server, why) = (self.endpoint.authority(), failure.text());
            tracing::error!(server, why, "hook keeps failing; it is called once in 5 s until it answers");
        }
        parsed
    }

    async fn exchange(&self, body: Bytes) -> Result<Bytes, HookFailure> {
        let unreachable = |error: hyper::Error| HookFailure::Unreachable(error.to_string());
        let request = self.request(body)?;
        if let Some(mut kept) = self.take_idle() {
            match kept.send_request(request.clone()).await {
                Ok(response) => return self.read(response, kept).await,
                Err(error) if error.is_parse() => return Err(unreachable(error)),
                // A server may close a connection at any time, also while a request is under way to it. The hook only
                // asks, so that a repetition changes nothing.
                Err(_) => {}
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(unreachable)?;
        self.read(response, sender).await
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, HookFailure> {
        let id = format!("hook_{}", uuid::Uuid::new_v4().simple());
        let time_s = wall_ms() / 1_000;
        let signature = self.signer.sign(&id, time_s, &body);
        Request::post(self.endpoint.path())
            .header(header::HOST, self.endpoint.authority())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .header("webhook-id", id)
            .header("webhook-timestamp", time_s)
            .header("webhook-signature", signature)
            .body(Full::new(body))
            .map_err(|error| HookFailure::Unreachable(error.to_string()))
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
    ) -> Result<Bytes, HookFailure> {
        if response.status() != StatusCode::OK {
            return Err(HookFailure::Status(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => HookFailure::Unreachable(error.to_string()),
            Err(_) => HookFailure::TooLarge,
        })?;
        if !sender.is_closed() {
            self.idle.lock().push(IdleConnection { sender, since: Instant::now() });
        }
        Ok(body.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_server_count_for_the_breaker() {
        for (status, is_refusal) in
            [(204, false), (302, false), (400, true), (401, true), (408, false), (429, false), (499, true)]
        {
            assert!(HookFailure::Status(status).is_answered(), "{status}");
            assert_eq!(HookFailure::Status(status).is_refusal(), is_refusal, "{status}");
        }
        assert!(HookFailure::BadAnswer.is_answered() && HookFailure::TooLarge.is_answered());
        let (status, unreachable) = (HookFailure::Status, HookFailure::Unreachable(String::new()));
        for failure in [status(500), status(503), HookFailure::Timeout, unreachable] {
            assert!(!failure.is_answered() && !failure.is_refusal(), "{failure:?}");
        }
    }

    #[tokio::test]
    async fn wait_for_other_requests_is_no_failure_of_the_server() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let settings =
            ClientSettings { timeout: Duration::from_millis(20), in_flight_max: 1, waiting_max: 9 };
        let signer = Arc::new(Signer::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap());
        let client =
            HookClient::new(&url, Path::new(""), signer, settings, GuardedService::HookAllow).unwrap();
        let permit = client.permits.acquire().await.unwrap();
        for _ in 0..6 {
            assert_eq!(client.call(Vec::new(), |_| Some(())).await, Err(HookFailure::Full));
        }
        drop(permit);
        for _ in 0..5 {
            assert_eq!(client.call(Vec::new(), |_| Some(())).await, Err(HookFailure::Timeout), "not open");
        }
        assert_eq!(client.call(Vec::new(), |_| Some(())).await, Err(HookFailure::Open));
    }
}
