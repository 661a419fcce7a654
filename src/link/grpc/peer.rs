//! Connection to one peer, with three streams. Reconnects with growing delays.

use std::{sync::Arc, time::Duration};

use tidegate_protocol::pb::{
    self, exchange_request::Step as RequestStep, exchange_response::Step as ResponseStep,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

use super::{
    Settings,
    call_queue::CallQueue,
    handshake::{self, StreamEnd},
    service,
};
use crate::{backoff::Backoff, metrics::Metrics, routes::NodeBoot, supervised};

/// Delay before the first attempt to reconnect; it doubles up to [`RECONNECT_DELAY_MAX`]. Each delay is shortened by up
/// to a half at random.
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(2);

/// Interval and timeout of keep-alive pings, by which a dead connection is detected.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// HTTP/2 flow-control window of a stream.
pub(super) const STREAM_WINDOW_BYTES: u32 = 2 * 1024 * 1024;

/// HTTP/2 flow-control window of a connection. Two streams that are not read can't use it up.
pub(super) const CONNECTION_WINDOW_BYTES: u32 = 4 * STREAM_WINDOW_BYTES;

/// One run of a peer; dropping it ends the connection.
pub(super) struct Peer {
    pub(super) address: String,
    /// Queue of answers and deliveries, which keep their order.
    pub(super) ordered: Arc<CallQueue>,
    /// Queue of queries, which have no order and never wait for deliveries.
    pub(super) queries: Arc<CallQueue>,
    /// Queue of best-effort messages, which keep their own order and delay no other call.
    pub(super) best_effort: Arc<CallQueue>,
    task: JoinHandle<()>,
}

/// State of the task that keeps the connection.
struct Connector {
    me: NodeBoot,
    to: NodeBoot,
    address: String,
    settings: Arc<Settings>,
    metrics: Metrics,
    /// Queues of the peer, in this order: ordered, queries, best effort.
    queues: [Arc<CallQueue>; 3],
}

type ResponseStream = Streaming<pb::ExchangeResponse>;

/// Stream after its handshake.
type OpenStream = (mpsc::Sender<pb::ExchangeRequest>, ResponseStream);

impl Peer {
    /// Starts the task that connects to the peer.
    pub(super) fn start(
        me: NodeBoot,
        to: NodeBoot,
        address: String,
        settings: &Arc<Settings>,
        seed: u64,
        metrics: &Metrics,
    ) -> Self {
        let queue = || Arc::new(CallQueue::new(settings.queue_bytes, metrics.clone()));
        let queues = [queue(), queue(), queue()];
        let [ordered, queries, best_effort] = queues.clone();
        let connector = Connector {
            me,
            to,
            address: address.clone(),
            settings: Arc::clone(settings),
            metrics: metrics.clone(),
            queues,
        };
        Self {
            address,
            ordered,
            queries,
            best_effort,
            task: supervised::spawn("a link to a peer", connector.run(seed)),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.task.abort();
        let end = StreamEnd::Failed("the node is no longer among the peers".to_owned());
        [&self.ordered, &self.queries, &self.best_effort].into_iter().for_each(|queue| queue.set_down(&end));
    }
}

impl Connector {
    async fn run(self, seed: u64) {
        // With jitter, so that a returning node does not get all connections at once.
        let mut backoff = Backoff::new(RECONNECT_DELAY_MIN, RECONNECT_DELAY_MAX).with_jitter(seed);
        let mut last_failure = None;
        loop {
            let end = match self.connect().await {
                Ok(streams) => {
                    backoff.reset();
                    last_failure = None;
                    Box::pin(self.serve(streams)).await
                }
                Err(end) => end,
            };
            self.queues.iter().for_each(|queue| queue.set_down(&end));
            self.metrics.link_failures.increment(1);
            let StreamEnd::Failed(why) = end else {
                let (peer, boot) = (&self.to.node, self.to.boot);
                tracing::info!(%peer, boot, "run of the peer has ended; not reconnecting");
                return;
            };
            // A repeated failure is logged once.
            if last_failure.as_ref() != Some(&why) {
                let (peer, address) = (&self.to.node, &self.address);
                tracing::warn!(%peer, address, why, "no link to peer; retrying");
                last_failure = Some(why);
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn connect(&self) -> Result<[OpenStream; 3], StreamEnd> {
        let connecting = async {
            let failed = |error: tonic::transport::Error| StreamEnd::Failed(with_causes(&error));
            let endpoint = self.endpoint()?;
            let channel = match self.settings.tls.as_ref().filter(|tls| tls.is_for_calls()) {
                Some(tls) => endpoint.connect_with_connector(tls.connector(&self.address)).await,
                None => endpoint.connect().await,
            };
            let channel = channel.map_err(failed)?;
            Ok([self.open(&channel).await?, self.open(&channel).await?, self.open(&channel).await?])
        };
        let late = |_| Err(StreamEnd::Failed("the handshake with the peer timed out".to_owned()));
        tokio::time::timeout(self.settings.handshake, connecting).await.unwrap_or_else(late)
    }

    fn endpoint(&self) -> Result<Endpoint, StreamEnd> {
        let why = |error: tonic::transport::Error| StreamEnd::Failed(with_causes(&error));
        // The connector adds TLS.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).map_err(why)?;
        Ok(endpoint
            .connect_timeout(self.settings.handshake)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_INTERVAL)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES))
    }

    async fn open(&self, channel: &Channel) -> Result<OpenStream, StreamEnd> {
        let (sender, requests) = mpsc::channel(1);
        let mut responses = service::open(channel.clone(), requests).await?;
        let secret = self.settings.secret.as_ref();
        handshake::initiate(&self.me, &self.to, secret, &sender, &mut responses).await?;
        Ok((sender, responses))
    }

    async fn serve(&self, streams: [OpenStream; 3]) -> StreamEnd {
        tracing::info!(peer = %self.to.node, boot = self.to.boot, address = self.address, "linked to peer");
        let counted = LinkedPeerGuard::new(&self.metrics);
        self.queues.iter().for_each(|queue| queue.set_up());
        let [ordered, queries, best_effort] = &self.queues;
        let [ordered_stream, query_stream, best_effort_stream] = streams;
        let end = tokio::select! {
            end = run_stream(ordered, ordered_stream) => end,
            end = run_stream(queries, query_stream) => end,
            end = run_stream(best_effort, best_effort_stream) => end,
        };
        drop(counted);
        end
    }
}

/// Sends the queued calls as fast as the peer accepts them, and passes on replies, until the stream ends.
async fn run_stream(queue: &CallQueue, stream: OpenStream) -> StreamEnd {
    let (requests, responses) = stream;
    tokio::select! {
        end = send(queue, requests) => end,
        end = receive(queue, responses) => end,
    }
}

async fn send(queue: &CallQueue, requests: mpsc::Sender<pb::ExchangeRequest>) -> StreamEnd {
    // Frames are built only once they can be sent, so that a slow peer gets fewer, larger frames.
    while let Ok(permit) = requests.reserve().await {
        permit.send(pb::ExchangeRequest { step: Some(RequestStep::Calls(queue.next_frame().await)) });
    }
    // The receiving half is about to return the reason.
    std::future::pending().await
}

async fn receive(queue: &CallQueue, mut responses: ResponseStream) -> StreamEnd {
    loop {
        match responses.message().await {
            Ok(Some(pb::ExchangeResponse { step: Some(ResponseStep::Replies(replies)) })) => {
                replies.replies.into_iter().for_each(|reply| queue.complete(reply));
            }
            // An unrequested message, of a newer version.
            Ok(Some(_)) => {}
            Ok(None) => return StreamEnd::Failed("the peer closed the stream".to_owned()),
            Err(status) => return status.into(),
        }
    }
}

/// Returns the error's text with those of its causes; the outermost error alone is just "transport error".
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Guard that counts a linked peer in the metrics, even if its task is aborted.
struct LinkedPeerGuard(Metrics);

impl LinkedPeerGuard {
    fn new(metrics: &Metrics) -> Self {
        metrics.link_peers.increment(1.0);
        Self(metrics.clone())
    }
}

impl Drop for LinkedPeerGuard {
    fn drop(&mut self) {
        self.0.link_peers.decrement(1.0);
    }
}
