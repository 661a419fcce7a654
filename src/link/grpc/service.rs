//! gRPC service of the link: one bidirectional streaming method, as generated tonic code would define it.
//!
//! It is written by hand, because the protocol crate, which compiles the schema, depends on neither async nor gRPC.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, stream};
use tidegate_protocol::pb;
use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client::Grpc as Client,
    codegen::{Service, http},
    server::{Grpc as Server, StreamingService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use super::{connection_limit::Authenticated, first_messages::FirstMessages};

/// Limit on a message sent or received. It bounds a single large call; frames of several calls are far smaller.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

const METHOD_PATH: &str = "/tidegate.v1.LinkService/Exchange";

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Responses on a stream, as the server sends them.
pub(super) type ResponseStream = Pin<Box<dyn Stream<Item = Result<pb::ExchangeResponse, Status>> + Send>>;

/// Opens a stream, which sends the items of `requests` to the peer, and returns the peer's responses.
pub(super) async fn open(
    channel: Channel,
    requests: mpsc::Receiver<pb::ExchangeRequest>,
) -> Result<Streaming<pb::ExchangeResponse>, Status> {
    let mut client = Client::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<pb::ExchangeRequest, pb::ExchangeResponse>::default();
    let method = http::uri::PathAndQuery::from_static(METHOD_PATH);
    Ok(client.streaming(Request::new(receive(requests)), method, codec).await?.into_inner())
}

/// Converts a channel's receiver to a stream.
pub(super) fn receive<T: Send + 'static>(from: mpsc::Receiver<T>) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(from, async |mut from| from.recv().await.map(|item| (item, from)))
}

/// Handler of the streams that peers open.
pub(super) trait StreamHandler: Send + Sync + 'static {
    /// Serves the stream in its own task and returns its responses. `authenticated` is the flag of its connection.
    fn open(&self, requests: Streaming<pb::ExchangeRequest>, authenticated: Authenticated) -> ResponseStream;
}

/// `LinkService` for tonic's server, on top of a [`StreamHandler`].
pub(super) struct LinkServer<L>(pub(super) Arc<L>);

impl<L> Clone for LinkServer<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: StreamHandler> Service<http::Request<Body>> for LinkServer<L> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD_PATH {
                return Ok(Status::unimplemented("no such method; call LinkService/Exchange").into_http());
            }
            // Before tonic reads a byte of the body.
            let authenticated = request.extensions().get::<Authenticated>().cloned().unwrap_or_default();
            let request = request.map(|body| Body::new(FirstMessages::new(body, authenticated)));
            let mut server = Server::new(ProstCodec::<pb::ExchangeResponse, pb::ExchangeRequest>::default())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            Ok(server.streaming(method, request).await)
        })
    }
}

impl<L: StreamHandler> StreamingService<pb::ExchangeRequest> for LinkServer<L> {
    type Response = pb::ExchangeResponse;
    type ResponseStream = ResponseStream;
    type Future = BoxFuture<Result<Response<ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<pb::ExchangeRequest>>) -> Self::Future {
        let authenticated = request.extensions().get::<Authenticated>().cloned().unwrap_or_default();
        let responses = self.0.open(request.into_inner(), authenticated);
        Box::pin(async move { Ok(Response::new(responses)) })
    }
}
