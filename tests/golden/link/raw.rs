//! `LinkService` with messages as plain bytes, at either end: the test decides the content.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::{Stream, stream};
use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client::Grpc as Client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{Service, http},
    server::{Grpc as Server, StreamingService},
    transport::{Channel, server::TcpIncoming},
};

const METHOD: &str = "/tidegate.v1.LinkService/Exchange";

/// Limit of messages that wait on a stream.
const WAITING: usize = 16;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type AnswerStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// Codec that passes messages unchanged.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// One end of a stream.
pub(crate) struct Lane {
    to: mpsc::Sender<Bytes>,
    from: Streaming<Bytes>,
}

impl Lane {
    /// Sends a message; a closed stream discards it.
    pub(crate) async fn send(&self, message: Bytes) {
        self.to.send(message).await.ok();
    }

    /// Waits for the next message; `None` when the stream has ended.
    pub(crate) async fn receive(&mut self) -> Option<Bytes> {
        self.from.message().await.ok().flatten()
    }
}

fn stream_of(from: mpsc::Receiver<Bytes>) -> impl Stream<Item = Bytes> + Send + 'static {
    stream::unfold(from, async |mut from| from.recv().await.map(|message| (message, from)))
}

/// Connects to a listener.
pub(crate) async fn connect(address: SocketAddr) -> Channel {
    let channel = Channel::from_shared(format!("http://{address}")).expect("a valid address");
    channel.connect().await.expect("somebody listens")
}

/// Opens a stream on a connection of its own.
pub(crate) async fn open(address: SocketAddr) -> Lane {
    open_on(connect(address).await, "").await.expect("a lane")
}

/// Opens a stream on a connection, with that text in a header.
pub(crate) async fn open_on(channel: Channel, header: &str) -> Result<Lane, Status> {
    let mut client = Client::new(channel);
    client.ready().await.expect("the channel is connected");
    let (to, sent) = mpsc::channel(WAITING);
    let method = http::uri::PathAndQuery::from_static(METHOD);
    let mut request = Request::new(stream_of(sent));
    if !header.is_empty() {
        request.metadata_mut().insert("x-text", header.parse().expect("the text of a header"));
    }
    let lane = client.streaming(request, method, Plain).await?;
    Ok(Lane { to, from: lane.into_inner() })
}

/// Listener that passes each stream, with its number from 0, to a task of its own.
pub(crate) struct RawListener(SocketAddr);

impl RawListener {
    pub(crate) async fn bind<F>(serve: impl Fn(usize, Lane) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let incoming = TcpIncoming::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let address = incoming.local_addr().expect("the socket is bound");
        let serve: Serve = Arc::new(move |number, lane| Box::pin(serve(number, lane)));
        let service = Lanes { serve, count: Arc::default() };
        tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(service, incoming));
        Self(address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0
    }
}

type Serve = Arc<dyn Fn(usize, Lane) -> Boxed<()> + Send + Sync>;

#[derive(Clone)]
struct Lanes {
    serve: Serve,
    count: Arc<AtomicUsize>,
}

impl Service<http::Request<Body>> for Lanes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        assert_eq!(request.uri().path(), METHOD, "the one method that versions have called so far");
        Box::pin(async move { Ok(Server::new(Plain).streaming(method, request).await) })
    }
}

impl StreamingService<Bytes> for Lanes {
    type Response = Bytes;
    type ResponseStream = AnswerStream;
    type Future = Boxed<Result<Response<AnswerStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let (to, said) = mpsc::channel(WAITING);
        let lane = Lane { to, from: request.into_inner() };
        tokio::spawn((self.serve)(self.count.fetch_add(1, Ordering::SeqCst), lane));
        let said: AnswerStream = Box::pin(futures_util::StreamExt::map(stream_of(said), Ok));
        Box::pin(async move { Ok(Response::new(said)) })
    }
}
