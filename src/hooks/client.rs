//! Client of one hook: signed requests over connections that stay open, bounded in number, time and size.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hyper::{HeaderMap, StatusCode};
use tokio::{
    sync::Semaphore,
    time::{Instant as Deadline, timeout_at},
};

use super::{
    failure::HookFailure,
    signing::Signer,
    transport::{HookTransport, SignedPost},
};
use crate::{
    breaker::{GuardedService, ServiceBreaker},
    net::endpoint::HttpEndpoint,
};

/// Type of the body of a question.
const JSON: &str = "application/json";

/// Settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// Longest time of a request, the wait for others included.
    pub(crate) timeout: Duration,
    /// Most requests at a time.
    pub(crate) in_flight_max: usize,
    /// Most requests that wait for others.
    pub(crate) waiting_max: usize,
    /// Largest answer, in bytes.
    pub(crate) answer_bytes_max: usize,
}

/// End of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestEnd {
    /// Time until which an answer is taken.
    pub(crate) at: Deadline,
    /// Whether the server has less time than it may take, so that a missing answer is no failure of it.
    pub(crate) is_cut: bool,
}

/// Client of one URL.
pub(crate) struct HookClient {
    transport: HookTransport,
    settings: ClientSettings,
    permits: Semaphore,
    /// Requests in flight and waiting.
    taken: AtomicUsize,
    breaker: Arc<ServiceBreaker>,
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
            transport: HookTransport::new(HttpEndpoint::new(url, ca_file)?, signer)
                .with_answers_up_to(settings.answer_bytes_max),
            permits: Semaphore::new(settings.in_flight_max),
            settings,
            taken: AtomicUsize::new(0),
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
        self.call_until(self.deadline(), body, parse).await
    }

    /// Returns the longest time of a request.
    pub(crate) const fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Returns the end of a request that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        Deadline::now() + self.settings.timeout
    }

    /// Calls as [`Self::call`] does, until a deadline.
    ///
    /// # Errors
    /// There is no valid answer, for the reason given.
    pub(crate) async fn call_until<T>(
        &self,
        deadline: Deadline,
        body: Vec<u8>,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, HookFailure> {
        self.call_to(RequestEnd { at: deadline, is_cut: false }, body, parse).await
    }

    /// Calls as [`Self::call`] does, until the end of the request.
    ///
    /// # Errors
    /// There is no valid answer, for the reason given.
    pub(crate) async fn call_to<T>(
        &self,
        end: RequestEnd,
        body: Vec<u8>,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, HookFailure> {
        let place = Place(&self.taken);
        let taken = self.taken.fetch_add(1, Ordering::Relaxed);
        if taken >= self.settings.in_flight_max + self.settings.waiting_max {
            return Err(HookFailure::Full);
        }
        let admitted = self.breaker.acquire().ok_or(HookFailure::Open)?;
        // The wait for others says nothing about the server, whose breaker it must not open. The semaphore is never closed.
        let permit = timeout_at(end.at, self.permits.acquire()).await;
        let Ok(Ok(permit)) = permit else { return Err(HookFailure::Full) };
        let id = format!("hook_{}", uuid::Uuid::new_v4().simple());
        let post = SignedPost { id, content_type: JSON, headers: &HeaderMap::new(), body: body.into() };
        let answer = timeout_at(end.at, self.transport.post(&post)).await;
        drop(permit);
        let answer = answer.unwrap_or(Err(HookFailure::Timeout));
        let parsed = answer.and_then(|answer| match answer.status {
            StatusCode::OK => parse(&answer.body).ok_or(HookFailure::BadAnswer),
            other => Err(HookFailure::Status(other.as_u16())),
        });
        drop(place);
        let opened = match parsed.as_ref().err().filter(|failure| !failure.is_answered()) {
            None => {
                admitted.succeeded();
                None
            }
            Some(HookFailure::Timeout) if end.is_cut => {
                // Dropped, it does not count.
                drop(admitted);
                None
            }
            Some(failure @ HookFailure::Timeout) => admitted.late().then_some(failure),
            Some(failure) => admitted.failed().then_some(failure),
        };
        if let Some(failure) = opened {
            let (server, why) = (self.transport.authority(), failure.text());
            tracing::error!(server, why, "hook keeps failing; it is called once in 5 s until it answers");
        }
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::failure::ANSWER_BYTES_MAX;

    #[tokio::test]
    async fn wait_for_other_requests_is_no_failure_of_the_server() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let settings = ClientSettings {
            timeout: Duration::from_millis(20),
            in_flight_max: 1,
            waiting_max: 9,
            answer_bytes_max: ANSWER_BYTES_MAX,
        };
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
