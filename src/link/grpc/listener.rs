//! Where peers connect: takes lanes, and hands what comes on them to this node's own end of the link.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tidegate_protocol::pb::{
    self, exchange_request::Step as Ask, exchange_response::Step as Say, link_call::Body as Call,
    link_reply::Body as Reply,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tonic::{
    Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use super::{
    Settings,
    connection_limit::{CONNECTIONS_MAX, Known, Seated},
    convert::{self, Malformed},
    handshake,
    peer::{CONNECTION_WINDOW, LANE_WINDOW},
    service::{self, Lanes, LinkServer, MESSAGE_BYTES_MAX, Said},
    traces,
};
use crate::{
    link::{Link, LinkError},
    metrics::Metrics,
    routes::NodeBoot,
};

/// Questions of one lane that are worked on at once; further ones wait unread.
const QUESTIONS_MAX: usize = 64;

/// Frames of replies that wait to be written to one lane; a peer that reads none is not read from either.
const REPLIES_WAITING: usize = 2;

/// Lanes of one connection: a peer opens three.
const LANES_MAX: u32 = 8;

/// The listening end; peers are cut when it is dropped.
pub struct Listener {
    address: SocketAddr,
    stop: watch::Sender<bool>,
}

/// Callers of whom nobody knows yet who they are, at once; further ones are told to come again.
const STRANGERS_MAX: usize = 32;

/// What each lane works with.
#[derive(Clone)]
struct Host {
    me: NodeBoot,
    end: Arc<dyn Link>,
    settings: Arc<Settings>,
    metrics: Metrics,
    stop: watch::Receiver<bool>,
    strangers: Arc<Semaphore>,
}

type Asked = Streaming<pb::ExchangeRequest>;
type Answers = mpsc::Sender<Result<pb::ExchangeResponse, Status>>;

impl Listener {
    /// Listens, and serves each peer that knows the secret or has a certificate, as the settings say; `end` is what
    /// this node does for its peers. To be called in a runtime.
    ///
    /// # Errors
    /// The address can't be listened on, or the certificate, its key or the authority can't be used.
    pub fn bind(
        address: SocketAddr,
        me: NodeBoot,
        end: Arc<dyn Link>,
        settings: Settings,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let mut server = Server::builder()
            .initial_stream_window_size(LANE_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(LANES_MAX)
            .http2_keepalive_interval(Some(settings.handshake))
            .http2_keepalive_timeout(Some(settings.handshake));
        if let Some(tls) = &settings.tls {
            let config = tls.server().timeout(settings.handshake);
            server = server.tls_config(config).map_err(|error| {
                io::Error::new(io::ErrorKind::InvalidInput, format!("the certificate of the link: {error:?}"))
            })?;
        }
        let incoming = TcpIncoming::bind(address)?.with_nodelay(Some(true));
        let address = incoming.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
        let host = Host { me, end, settings: Arc::new(settings), metrics, stop: stopped.clone(), strangers };
        tokio::spawn(async move {
            let (seats, metrics) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), host.metrics.clone());
            let handshake = host.settings.handshake;
            let incoming = incoming.filter_map(move |came| {
                let seat = |stream| Seated::take(stream, &seats, handshake, &metrics);
                let seated = came.map(seat).transpose();
                if seated.is_none() {
                    metrics.link_refused.increment(1);
                }
                std::future::ready(seated)
            });
            let service = LinkServer(Arc::new(host));
            let served = server.serve_with_incoming_shutdown(service, incoming, until(stopped)).await;
            if let Err(error) = served {
                tracing::error!(?error, "the link takes no more peers");
            }
        });
        Ok(Self { address, stop })
    }

    /// Where it listens: what was asked for, with the port that it got.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Until the listener was dropped.
async fn until(mut stopped: watch::Receiver<bool>) {
    // An error says that it is gone, too.
    stopped.wait_for(|stop| *stop).await.ok();
}

impl Lanes for Host {
    fn open(&self, asked: Asked, known: Known) -> Said {
        let (answers, said) = mpsc::channel(REPLIES_WAITING);
        let host = self.clone();
        tokio::spawn(async move {
            let stopped = until(host.stop.clone());
            let status = tokio::select! {
                status = host.serve(asked, &answers, &known) => status,
                () = stopped => Status::unavailable("the peer is leaving"),
            };
            // Whoever reads no replies hears no reason.
            answers.try_send(Err(status)).ok();
        });
        Box::pin(service::receive(said))
    }
}

impl Host {
    /// Serves a lane to its end.
    async fn serve(&self, mut asked: Asked, answers: &Answers, known: &Known) -> Status {
        let peer = match self.greet(&mut asked, answers).await {
            Ok(peer) => peer,
            Err(status) => {
                self.metrics.link_refused.increment(1);
                tracing::warn!(why = status.message(), "a caller of the link was refused");
                return status;
            }
        };
        known.set();
        tracing::debug!(peer = %peer.node, boot = peer.boot, "a peer opened a lane");
        match self.answer(&peer, &mut asked, answers).await {
            Ok(()) => Status::ok("the caller has closed the lane"),
            Err(status) => status,
        }
    }

    async fn greet(&self, asked: &mut Asked, answers: &Answers) -> Result<NodeBoot, Status> {
        let many = |_| Status::resource_exhausted("too many callers in the handshake at once");
        let _stranger = self.strangers.try_acquire().map_err(many)?;
        let greeted = handshake::welcome(&self.me, self.settings.secret.as_ref(), asked, answers);
        let late = |_| Err(Status::deadline_exceeded("the handshake took too long"));
        tokio::time::timeout(self.settings.handshake, greeted).await.unwrap_or_else(late)
    }

    async fn answer(&self, peer: &NodeBoot, asked: &mut Asked, answers: &Answers) -> Result<(), Status> {
        let mut questions: FuturesUnordered<BoxFuture<'_, pb::LinkReply>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                message = asked.message(), if questions.len() < QUESTIONS_MAX => {
                    let Some(message) = message? else { return Ok(()) };
                    let Some(Ask::Calls(calls)) = message.step else {
                        return Err(Status::invalid_argument("calls come after the handshake"));
                    };
                    let mut replies = Vec::new();
                    for call in calls.calls {
                        let ordered = matches!(
                            call.body,
                            Some(Call::Answers(_) | Call::Deliveries(_) | Call::Strays(_))
                        );
                        let work = Box::pin(self.work(peer, call));
                        if ordered {
                            // One after the other: this is what keeps their order.
                            replies.push(work.await);
                        } else {
                            questions.push(work);
                        }
                    }
                    say(answers, replies).await?;
                }
                Some(reply) = questions.next() => say(answers, vec![reply]).await?,
            }
        }
    }

    /// One call; its end has as long as a caller waits.
    async fn work(&self, peer: &NodeBoot, call: pb::LinkCall) -> pb::LinkReply {
        let id = call.id;
        let done = tokio::time::timeout(self.settings.timeout, self.hand_over(peer, call.body));
        let late = || LinkError::Unknown("the peer's work took too long".to_owned());
        let done = done.await.unwrap_or_else(|_| Err(late()));
        let mut reply = pb::LinkReply { id, body: Some(done.unwrap_or_else(failure)) };
        if prost::Message::encoded_len(&reply) + 64 > MESSAGE_BYTES_MAX {
            let why = "the reply is too large for one message: ask for less at once";
            reply.body = Some(failure(LinkError::Unknown(why.to_owned())));
        }
        reply
    }

    async fn hand_over(&self, peer: &NodeBoot, call: Option<Call>) -> Result<Reply, LinkError> {
        let (end, me) = (&self.end, &self.me);
        Ok(match call.ok_or(Malformed("call, perhaps of a newer version"))? {
            Call::Answers(sent) => {
                end.answers(me, self.answers_of(sent)).await?;
                Reply::Taken(pb::LinkReady {})
            }
            Call::Deliveries(sent) => {
                let landings = end.deliver(me, convert::all(sent.deliveries, convert::delivery)?).await?;
                let landings = landings.into_iter().map(convert::put_landings).collect();
                Reply::Landings(pb::LinkLandings { landings })
            }
            Call::Stops(sent) => {
                let sessions = convert::all(sent.sessions, convert::session)?;
                Reply::Stopped(pb::LinkStopped { now: end.stop_sessions(me, sessions).await? })
            }
            Call::Settle(sent) => {
                let told = sent.told.into_iter().map(convert::told).collect();
                let patience = Duration::from_millis(sent.patience_ms.into());
                Reply::Settled(convert::put_settled(end.settled(me, told, patience).await?))
            }
            Call::Asks(sent) => {
                let words = end.answers_again(peer, me, convert::all(sent.asks, convert::ask)?).await?;
                Reply::Told(pb::LinkTold { words: words.into_iter().map(convert::put_word).collect() })
            }
            Call::Strays(sent) => {
                end.strays(me, strays_of(sent)).await?;
                Reply::Taken(pb::LinkReady {})
            }
            Call::Traces(sent) => {
                Reply::Steps(traces::put_steps(end.traces(me, traces::query(sent)?).await?))
            }
        })
    }

    /// An answer that can't be read, of a newer version, say, does not take the others with it: its client is told
    /// *unknown* in time.
    fn answers_of(&self, sent: pb::LinkAnswers) -> Vec<crate::link::Answer> {
        let read = |answer| convert::answer(answer).inspect_err(|error| tracing::warn!(%error, "an answer"));
        sent.answers.into_iter().filter_map(|answer| read(answer).ok()).collect()
    }
}

/// One that can't be read, of a newer version, say, costs nothing but itself.
fn strays_of(sent: pb::LinkStrays) -> Vec<crate::link::Stray> {
    let read = |stray| convert::stray(stray).inspect_err(|error| tracing::debug!(%error, "a stray"));
    sent.strays.into_iter().filter_map(|stray| read(stray).ok()).collect()
}

impl From<Malformed> for LinkError {
    fn from(error: Malformed) -> Self {
        Self::Unavailable(error.to_string())
    }
}

fn failure(error: LinkError) -> Reply {
    let in_doubt = matches!(error, LinkError::Unknown(_));
    let why = match error {
        LinkError::NotHere => "the node has no such end".to_owned(),
        LinkError::Unavailable(why) | LinkError::Unknown(why) => why,
    };
    Reply::Failure(pb::LinkFailure { in_doubt, why })
}

/// Replies are small or, like steps, come one by one; a frame never grows past what is taken.
async fn say(answers: &Answers, replies: Vec<pb::LinkReply>) -> Result<(), Status> {
    if replies.is_empty() {
        return Ok(());
    }
    let step = Some(Say::Replies(pb::LinkReplies { replies }));
    let gone = |_| Status::cancelled("the caller has gone");
    answers.send(Ok(pb::ExchangeResponse { step })).await.map_err(gone)
}
