//! HTTP server of the admin and monitor ports: few connections, deadlines for silent ones, and a thread of its own.
//!
//! Nothing that a caller of these ports does takes time or descriptors from clients.

use std::{
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use axum::{
    Router,
    body::{self, Body},
    extract::Request,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::IntoResponse as _,
};
use futures_util::StreamExt as _;
use hyper::{
    body::{Body as _, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

pub mod monitor;
mod secure;
mod stall_guard;
pub mod waiting;

use self::stall_guard::StallGuard;
use super::{Problem, caller::Ends};
use crate::{net::tls::Certificates, supervised};
use tidegate_protocol::Code;

/// Most connections of one port. With a further one the oldest that serves no request is closed, or else the new one.
const CONNECTIONS_MAX: usize = 64;

/// Most connections of one port that are being closed for others; the next one is accepted when one of them is gone.
const ENDING_MAX: usize = 64;

/// Time for the head of a request, from the previous response or the connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for the body of a request, and the most bytes of it.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Paths whose requests have lists of messages, and the most bytes of their bodies.
const LARGE_BODY_PATHS: [&str; 2] = ["/v1/messages/batch", "/v1/messages/broadcast"];
const LARGE_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Most requests with bodies above [`BODY_BYTES_MAX`] of one port at a time, from the begin of the body to the end of the work;
/// a further one is refused `BUSY`. Bodies have to announce such a size, and their callers need the right to send messages.
const LARGE_BODIES_MAX: usize = 4;

/// Place of a request with a large body, which whatever holds the body or does its work holds, too.
#[derive(Clone)]
pub(super) struct LargeBodyPlace(#[expect(dead_code, reason = "held")] Arc<OwnedSemaphorePermit>);

/// Tells whether the caller of a request may send a large body.
pub(super) type LargeBodyCheck = Arc<dyn Fn(&HeaderMap, Option<Ends>) -> bool + Send + Sync>;

/// Time for a handler to begin its response. Handlers have shorter limits of their own.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for which a caller may read nothing of a response.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay after a failed accept, which is repeated: the process is out of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Longest wait for a connection that is to end: its caller may not take the response that is being written.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);

/// Connection as the acceptor sees it.
#[derive(Clone, Default)]
struct Connection {
    /// Whether a request is being served.
    is_busy: Arc<AtomicBool>,
    /// Ends the connection after the request that is being served, if there is one.
    ending: CancellationToken,
}

/// What serves the requests of a port.
#[derive(Clone)]
struct PortApp {
    router: Router,
    large_bodies: Arc<Semaphore>,
    /// `None` if the port takes no large bodies.
    may_send_large: Option<LargeBodyCheck>,
}

/// Open connections, oldest first, and those that are being closed.
#[derive(Default)]
struct Connections {
    open: Vec<Connection>,
    ending: Vec<Connection>,
}

impl Connections {
    /// Returns whether a connection may be accepted.
    fn has_room(&mut self) -> bool {
        for list in [&mut self.open, &mut self.ending] {
            list.retain(|it| Arc::strong_count(&it.is_busy) > 1);
        }
        self.ending.len() < ENDING_MAX
    }

    /// Adds a connection, if need be in place of the oldest silent one. Returns `None` if all serve requests.
    fn add(&mut self) -> Option<Connection> {
        if self.open.len() >= CONNECTIONS_MAX {
            let silent = self.open.iter().position(|it| !it.is_busy.load(Ordering::Acquire))?;
            let closed = self.open.remove(silent);
            closed.ending.cancel();
            self.ending.push(closed);
        }
        let connection = Connection::default();
        self.open.push(connection.clone());
        Some(connection)
    }
}

/// Serves HTTP/1 until `stop` is done, then ends the connections that are between two requests. With `tls`, all
/// connections have to be encrypted. Large bodies are read of callers that `may_send_large` allows.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<Certificates>>,
    router: Router,
    may_send_large: Option<LargeBodyCheck>,
    stop: impl Future<Output = ()>,
) {
    let (mut known, mut connections) = (Connections::default(), JoinSet::new());
    let app = PortApp { router, large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_MAX)), may_send_large };
    let mut stop = std::pin::pin!(stop);
    loop {
        let has_room = known.has_room();
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept(), if has_room => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                if let Some(connection) = known.add() {
                    let serving = serve_connection(stream, peer, tls.clone(), app.clone(), connection);
                    supervised::spawn_in(&mut connections, "a connection of an API port", serving);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "failed to accept a connection of an API port; retrying");
                time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
    known.open.iter().for_each(|it| it.ending.cancel());
    time::timeout(STOP_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await.ok();
}

async fn serve_connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<Arc<Certificates>>,
    app: PortApp,
    connection: Connection,
) {
    let ends = stream.local_addr().ok().map(|node| Ends { caller: peer, node });
    let stream = StallGuard::new(stream, STALL_TIMEOUT);
    let Some(tls) = tls else { return serve_stream(stream, peer, ends, app, connection).await };
    let handshake = time::timeout(HEADER_TIMEOUT, secure::accept(stream, &tls));
    let secured = tokio::select! {
        secured = handshake => secured.unwrap_or_else(|late| Err(late.into())),
        () = connection.ending.cancelled() => return,
    };
    match secured {
        Ok(stream) => Box::pin(serve_stream(stream, peer, ends, app, connection)).await,
        Err(error) => tracing::debug!(%error, %peer, "TLS handshake of an API port failed"),
    }
}

async fn serve_stream<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    peer: SocketAddr,
    ends: Option<Ends>,
    app: PortApp,
    connection: Connection,
) {
    let Connection { is_busy, ending } = connection;
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let (app, is_busy) = (app.clone(), Arc::clone(&is_busy));
        async move {
            // A caller that sends no body is as silent as one that sends no head.
            let mut request = match read_request(request, &app, ends).await {
                Ok(request) => request,
                Err(refusal) => return Ok::<_, Infallible>(refusal),
            };
            if let Some(ends) = ends {
                request.extensions_mut().insert(ends);
            }
            let busy = BusyConnection::begin(is_busy);
            let response = respond(app.router, request).await;
            Ok(busy_while_streamed(busy, response))
        }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let mut connection = std::pin::pin!(server.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            time::timeout(STOP_TIMEOUT, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "connection of an API port ended");
    }
}

/// Reads a request; returns the response to one whose body is not read.
async fn read_request(
    request: hyper::Request<Incoming>,
    app: &PortApp,
    ends: Option<Ends>,
) -> Result<Request, axum::response::Response> {
    let size = request.body().size_hint().exact().unwrap_or(0);
    let is_large = LARGE_BODY_PATHS.contains(&request.uri().path()) && size > BODY_BYTES_MAX as u64;
    let Some(may_send_large) = app.may_send_large.as_ref().filter(|_| is_large) else {
        return with_body(request, BODY_BYTES_MAX).await;
    };
    if !may_send_large(request.headers(), ends) {
        // The gate refuses it, by its head alone. Strangers take no place and no memory.
        let (head, body) = request.into_parts();
        discard(body).await;
        return Ok(Request::from_parts(head, Body::empty()));
    }
    let Ok(place) = Arc::clone(&app.large_bodies).try_acquire_owned() else {
        discard(request.into_body()).await;
        return Err(
            Problem(Code::Busy, "too many large requests at a time; repeat this one".into()).into_response()
        );
    };
    let mut request = with_body(request, LARGE_BODY_BYTES_MAX).await?;
    request.extensions_mut().insert(LargeBodyPlace(Arc::new(place)));
    Ok(request)
}

/// Reads a body and keeps nothing of it, so that a caller that is still sending gets the response.
async fn discard(body: Incoming) {
    let reading = async {
        let (mut body, mut size) = (Body::new(body).into_data_stream(), 0);
        while let Some(Ok(part)) = body.next().await {
            size += part.len();
            if size > LARGE_BODY_BYTES_MAX {
                break;
            }
        }
    };
    time::timeout(BODY_TIMEOUT, reading).await.ok();
}

/// Reads the body of a request; returns the response to one that is late or too large.
async fn with_body(
    request: hyper::Request<Incoming>,
    bytes_max: usize,
) -> Result<Request, axum::response::Response> {
    let (head, body) = request.into_parts();
    let read = body::to_bytes(Body::new(body), bytes_max);
    match time::timeout(BODY_TIMEOUT, read).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
        Ok(Err(_)) => {
            let problem = Problem(
                Code::ContentTooLarge,
                format!("the body was cut off, or has more than {bytes_max} bytes; send it in parts"),
            );
            Err(problem.with_status(StatusCode::PAYLOAD_TOO_LARGE).into_response())
        }
        Err(_) => {
            let problem = Problem(Code::FrameTimeout, "the body did not arrive within 5 s; repeat it".into());
            Err(problem.with_status(StatusCode::REQUEST_TIMEOUT).into_response())
        }
    }
}

/// Mark of a connection that serves a request, and so is not closed for a new one.
struct BusyConnection(Arc<AtomicBool>);

impl BusyConnection {
    fn begin(is_busy: Arc<AtomicBool>) -> Self {
        is_busy.store(true, Ordering::Release);
        Self(is_busy)
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Keeps the connection of a stream busy to the end of the stream; others are read at once or end soon.
fn busy_while_streamed(busy: BusyConnection, response: axum::response::Response) -> axum::response::Response {
    if response.headers().get(CONTENT_TYPE).is_none_or(|media| media != "text/event-stream") {
        return response;
    }
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |part| {
            let _busy = &busy;
            part
        }))
    })
}

async fn respond(mut router: Router, request: Request) -> axum::response::Response {
    use tower_service::Service as _;
    match time::timeout(RESPONSE_TIMEOUT, supervised::contained(router.call(request))).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_panicked)) => {
            let problem = Problem(Code::Internal, "the request failed by an error of the broker".into());
            problem.with_status(StatusCode::INTERNAL_SERVER_ERROR).into_response()
        }
        Err(_) => {
            let problem = Problem(Code::StoreUnavailable, "no answer in time; repeat the request".into());
            problem.with_status(StatusCode::GATEWAY_TIMEOUT).into_response()
        }
    }
}

/// Thread that serves the API ports, with a runtime of its own; dropping it ends the thread.
pub struct ApiThread {
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl ApiThread {
    /// Starts the thread, which runs `serving` until it is dropped. The future gets a token that is cancelled then.
    ///
    /// # Errors
    /// The thread can't be started.
    pub fn start<F: Future<Output = ()>>(
        serving: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = supervised::spawn_thread("tidegate-api", move || {
            runtime.block_on(serving(stopped));
            runtime.shutdown_background();
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Returns whether the thread has ended, which it does only by a panic.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }
}

impl Drop for ApiThread {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic was printed when it happened.
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests;
