//! Link listener: accepts the peers' streams and passes their calls to this node's handler.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tidegate_protocol::pb::{
    self, exchange_request::Step as RequestStep, exchange_response::Step as ResponseStep,
    link_call::Body as Call, link_reply::Body as Reply,
};
use tokio::sync::{mpsc, watch};
use tonic::{
    Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::{
    Settings, acks,
    connection_limit::{Authenticated, ConnectionLimit, PermittedConnection},
    connections,
    convert::{self, Malformed},
    figures, handshake,
    link_stream::LinkStream,
    peer::{CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES},
    rooms,
    service::{self, LinkServer, MESSAGE_BYTES_MAX, ResponseStream, StreamHandler},
    storms,
    strangers::STRANGERS_MAX,
    tls::Tls,
    traces,
};
use crate::{
    link::{LeaseStatus, Link, LinkError},
    log_limit::log_limited,
    metrics::Metrics,
    routes::NodeBoot,
    supervised,
};

/// Limit on concurrent queries of one stream; further ones wait unread.
const CONCURRENT_QUERIES_MAX: usize = 64;

/// Limit on reply frames queued for one stream. A peer that does not read its replies is not read from either.
const QUEUED_REPLY_FRAMES_MAX: usize = 2;

/// Limit on the streams of one connection; a peer opens three.
const STREAMS_MAX: u32 = 8;

/// Limit on the headers of a stream; a peer sends a few hundred bytes.
const HEADER_BYTES_MAX: u32 = 8 * 1024;

/// Server end of the link. Dropping it disconnects the peers.
pub struct Listener {
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

/// Dependencies shared by all streams of the listener.
#[derive(Clone)]
struct StreamServer {
    me: NodeBoot,
    handler: Arc<dyn Link>,
    settings: Arc<Settings>,
    metrics: Metrics,
    stop: watch::Receiver<bool>,
}

type RequestStream = Streaming<pb::ExchangeRequest>;
type ResponseSender = mpsc::Sender<Result<pb::ExchangeResponse, Status>>;

impl Listener {
    /// Listens, and serves each peer that proves the secret or has a certificate, as configured. `handler` executes the
    /// peers' calls. To be called in a runtime.
    ///
    /// # Errors
    /// The address is unavailable.
    pub fn bind(
        address: SocketAddr,
        me: NodeBoot,
        handler: Arc<dyn Link>,
        settings: Settings,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let server = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .http2_keepalive_interval(Some(settings.handshake))
            .http2_keepalive_timeout(Some(settings.handshake));
        let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
        let address = incoming.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let (settings, stop_streams) = (Arc::new(settings), stopped.clone());
        let streams = StreamServer { me, handler, settings, metrics, stop: stop_streams };
        supervised::spawn("the link listener", async move {
            let metrics = streams.metrics.clone();
            let limit = ConnectionLimit::new(streams.settings.handshake, metrics.clone());
            let incoming = incoming.filter_map(move |accepted| {
                let permitted = accepted.map(|stream| limit.admit(stream)).transpose();
                if permitted.is_none() {
                    metrics.link_refused.increment(1);
                }
                std::future::ready(permitted)
            });
            let (tls, metrics) = (streams.settings.tls.clone(), streams.metrics.clone());
            let incoming = incoming
                .map(move |accepted| secured(accepted, tls.clone(), metrics.clone()))
                .buffer_unordered(2 * STRANGERS_MAX)
                .filter_map(std::future::ready);
            let service = LinkServer(Arc::new(streams));
            let served = server.serve_with_incoming_shutdown(service, incoming, wait_stopped(stopped)).await;
            if let Err(error) = served {
                tracing::error!(?error, "link listener failed; no further peers can connect");
            }
        });
        Ok(Self { address, stop })
    }

    /// Returns the address that it listens on, with the port that was bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Completes the TLS handshake of an accepted connection; `None` if it is refused or has ended.
async fn secured(
    accepted: io::Result<PermittedConnection>,
    tls: Option<Tls>,
    metrics: Metrics,
) -> Option<io::Result<LinkStream>> {
    let connection = match accepted {
        Ok(connection) => connection,
        Err(error) => return Some(Err(error)),
    };
    let caller = connection.caller();
    match LinkStream::accept(connection, tls.as_ref()).await {
        Ok(stream) => Some(Ok(stream)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            metrics.link_refused.increment(1);
            log_limited!(warn, ?caller, why = %error, "link caller refused by its TLS");
            None
        }
        Err(error) => {
            tracing::debug!(?caller, %error, "link caller left before the end of its TLS handshake");
            None
        }
    }
}

/// Waits until the listener is dropped.
async fn wait_stopped(mut stopped: watch::Receiver<bool>) {
    // An error means that the listener has been dropped as well.
    stopped.wait_for(|stop| *stop).await.ok();
}

impl StreamHandler for StreamServer {
    fn open(&self, requests: RequestStream, authenticated: Authenticated) -> ResponseStream {
        let (sender, responses) = mpsc::channel(QUEUED_REPLY_FRAMES_MAX);
        let server = self.clone();
        supervised::spawn("a stream of the link", async move {
            let stopped = wait_stopped(server.stop.clone());
            let status = tokio::select! {
                status = server.serve(requests, &sender, &authenticated) => status,
                () = stopped => Status::unavailable("the peer is shutting down"),
            };
            // A caller that reads no replies misses the status, too.
            sender.try_send(Err(status)).ok();
        });
        Box::pin(service::receive(responses))
    }
}

impl StreamServer {
    /// Serves a stream until it ends, and returns its final status.
    async fn serve(
        &self,
        mut requests: RequestStream,
        responses: &ResponseSender,
        authenticated: &Authenticated,
    ) -> Status {
        let peer = match self.handshake(&mut requests, responses, authenticated).await {
            Ok(peer) => peer,
            Err(status) => {
                self.metrics.link_refused.increment(1);
                log_limited!(warn, why = status.message(), "link caller refused");
                return status;
            }
        };
        tracing::debug!(peer = %peer.node, boot = peer.boot, "link stream opened by a peer");
        match self.serve_calls(&peer, &mut requests, responses).await {
            Ok(()) => Status::ok("the caller closed the stream"),
            Err(status) => status,
        }
    }

    async fn handshake(
        &self,
        requests: &mut RequestStream,
        responses: &ResponseSender,
        authenticated: &Authenticated,
    ) -> Result<NodeBoot, Status> {
        let too_many = || Status::resource_exhausted("too many concurrent handshakes");
        let _permit = authenticated.begin_handshake().ok_or_else(too_many)?;
        let secret = self.settings.secret.as_ref();
        let accepted = handshake::accept(&self.me, secret, requests, responses, authenticated);
        let late = |_| Err(Status::deadline_exceeded("the handshake timed out"));
        tokio::time::timeout(self.settings.handshake, accepted).await.unwrap_or_else(late)
    }

    async fn serve_calls(
        &self,
        peer: &NodeBoot,
        requests: &mut RequestStream,
        responses: &ResponseSender,
    ) -> Result<(), Status> {
        let mut queries: FuturesUnordered<BoxFuture<'_, pb::LinkReply>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = requests.message(), if queries.len() < CONCURRENT_QUERIES_MAX => {
                    let Some(message) = message? else { return Ok(()) };
                    let Some(RequestStep::Calls(calls)) = message.step else {
                        return Err(Status::invalid_argument("only calls may follow the handshake"));
                    };
                    let mut replies = Vec::new();
                    for call in calls.calls {
                        let ordered = matches!(
                            call.body,
                            Some(Call::Answers(_) | Call::Deliveries(_) | Call::Strays(_))
                        );
                        let reply = Box::pin(self.handle(peer, call));
                        if ordered {
                            // Awaiting each call in turn keeps their order.
                            replies.push(reply.await);
                        } else {
                            queries.push(reply);
                        }
                    }
                    send_replies(responses, replies).await?;
                }
                Some(reply) = queries.next() => send_replies(responses, vec![reply]).await?,
            }
        }
    }

    /// Executes one call, within the timeout that the caller waits for its reply.
    async fn handle(&self, peer: &NodeBoot, call: pb::LinkCall) -> pb::LinkReply {
        let id = call.id;
        let result = tokio::time::timeout(self.settings.timeout, self.dispatch(peer, call.body));
        let late = || LinkError::Unknown("the call timed out on the peer".to_owned());
        let result = result.await.unwrap_or_else(|_| Err(late()));
        let mut reply = pb::LinkReply { id, body: Some(result.unwrap_or_else(failure)) };
        if prost::Message::encoded_len(&reply) + 64 > MESSAGE_BYTES_MAX {
            let why = "the reply is too large for one message; request less at once";
            reply.body = Some(failure(LinkError::Unknown(why.to_owned())));
        }
        reply
    }

    async fn dispatch(&self, peer: &NodeBoot, call: Option<Call>) -> Result<Reply, LinkError> {
        let (handler, me) = (&self.handler, &self.me);
        Ok(match call.ok_or(Malformed("call, perhaps of a newer version"))? {
            Call::Answers(sent) => {
                handler.answers(me, readable_answers(sent)).await?;
                Reply::Taken(pb::LinkReady {})
            }
            Call::Deliveries(sent) => {
                let landings = handler.deliver(me, convert::all(sent.deliveries, convert::delivery)?).await?;
                let landings = landings.into_iter().map(convert::put_landings).collect();
                Reply::Landings(pb::LinkLandings { landings })
            }
            Call::Stops(sent) => {
                let sessions = convert::all(sent.sessions, convert::session)?;
                Reply::Stopped(pb::LinkStopped { now: handler.stop_sessions(me, sessions).await? })
            }
            Call::Settle(sent) => {
                let marks = sent.told.into_iter().map(convert::published_mark).collect();
                let within = Duration::from_millis(sent.patience_ms.into());
                Reply::Settled(convert::put_archive_status(handler.archive_status(me, marks, within).await?))
            }
            Call::Asks(sent) => {
                let asks = convert::all(sent.asks, convert::ask)?;
                let statuses = handler.answers_again(peer, me, asks).await?;
                let words = statuses.into_iter().map(convert::put_answer_status).collect();
                Reply::Told(pb::LinkTold { words })
            }
            Call::Lease(pb::LinkLeaseQuery {}) => {
                let LeaseStatus { renews, lists_caller } = handler.lease_status(peer, me).await?;
                Reply::Lease(pb::LinkLeaseStatus { renews, lists_caller })
            }
            Call::Strays(sent) => {
                handler.send_best_effort(me, readable_messages(sent)).await?;
                Reply::Taken(pb::LinkReady {})
            }
            Call::Traces(sent) => {
                Reply::Steps(traces::put_steps(handler.traces(me, traces::query(sent)?).await?))
            }
            Call::Figures(sent) => {
                Reply::Figures(figures::put_page(handler.figures(me, figures::query(sent)).await?))
            }
            Call::Storms(sent) => {
                Reply::Storms(storms::put_page(handler.storms(me, storms::query(sent)?).await?))
            }
            Call::Connections(sent) => {
                let page = handler.connections(me, connections::query(sent)?).await?;
                Reply::Connections(connections::put_page(page))
            }
            Call::Acks(sent) => Reply::Acks(acks::put_devices(handler.acks(me, acks::queries(sent)?).await?)),
            Call::Rooms(sent) => Reply::Rooms(rooms::put_page(handler.rooms(me, rooms::query(sent)?).await?)),
            Call::Close(sent) => {
                let count = handler.close_connections(me, connections::order(sent)?).await?;
                Reply::Closed(pb::LinkClosed { count })
            }
            Call::RoomRemoval(sent) => {
                let count = handler.remove_from_room(me, rooms::removal(sent)?).await?;
                Reply::Closed(pb::LinkClosed { count })
            }
            Call::Revoke(sent) => {
                let count = handler.revoke(me, connections::revocation(sent)?).await?;
                Reply::Closed(pb::LinkClosed { count })
            }
        })
    }
}

/// Returns the answers that this version can decode. The client of any other gets *unknown* after its timeout.
fn readable_answers(sent: pb::LinkAnswers) -> Vec<crate::link::Answer> {
    let warn = |error: &Malformed| log_limited!(warn, %error, "undecodable answer dropped");
    sent.answers.into_iter().filter_map(|answer| convert::answer(answer).inspect_err(warn).ok()).collect()
}

/// Returns the best-effort messages that this version can decode, and drops the others.
fn readable_messages(sent: pb::LinkStrays) -> Vec<crate::link::BestEffortMessage> {
    let log = |error: &Malformed| tracing::debug!(%error, "undecodable best-effort message dropped");
    sent.strays.into_iter().filter_map(|stray| convert::best_effort(stray).inspect_err(log).ok()).collect()
}

impl From<Malformed> for LinkError {
    fn from(error: Malformed) -> Self {
        Self::Unavailable(error.to_string())
    }
}

fn failure(error: LinkError) -> Reply {
    let in_doubt = matches!(error, LinkError::Unknown(_));
    let why = match error {
        LinkError::NotHere => "the peer does not handle this call".to_owned(),
        LinkError::Unavailable(why) | LinkError::Unknown(why) => why,
    };
    Reply::Failure(pb::LinkFailure { in_doubt, why })
}

/// Sends replies in one frame. Those of several calls are small, and large ones come alone, so it fits one message.
async fn send_replies(responses: &ResponseSender, replies: Vec<pb::LinkReply>) -> Result<(), Status> {
    if replies.is_empty() {
        return Ok(());
    }
    let step = Some(ResponseStep::Replies(pb::LinkReplies { replies }));
    let closed = |_| Status::cancelled("the caller closed the stream");
    responses.send(Ok(pb::ExchangeResponse { step })).await.map_err(closed)
}
