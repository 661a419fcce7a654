//! The little that a generated tonic service would be: one method, streaming both ways.
//!
//! By hand because the protocol crate, which compiles the schema, knows nothing of async or gRPC.

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

use super::connection_limit::Known;

/// Largest message taken or sent, of many calls or of one; a lane gathers far less into one.
pub(super) const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

const METHOD: &str = "/tidegate.v1.LinkService/Exchange";

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// What the peer says on a lane.
pub(super) type Said = Pin<Box<dyn Stream<Item = Result<pb::ExchangeResponse, Status>> + Send>>;

/// Opens a lane: what is sent to `asked` goes to the peer.
pub(super) async fn open(
    channel: Channel,
    asked: mpsc::Receiver<pb::ExchangeRequest>,
) -> Result<Streaming<pb::ExchangeResponse>, Status> {
    let mut client = Client::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<pb::ExchangeRequest, pb::ExchangeResponse>::default();
    let method = http::uri::PathAndQuery::from_static(METHOD);
    Ok(client.streaming(Request::new(receive(asked)), method, codec).await?.into_inner())
}

/// A channel as a stream.
pub(super) fn receive<T: Send + 'static>(from: mpsc::Receiver<T>) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(from, async |mut from| from.recv().await.map(|item| (item, from)))
}

/// Called for each lane that a peer opens.
pub(super) trait Lanes: Send + Sync + 'static {
    /// Takes the lane, of a connection whose caller is known or not, and serves it elsewhere.
    fn open(&self, asked: Streaming<pb::ExchangeRequest>, known: Known) -> Said;
}

/// `LinkService` over [`Lanes`], for tonic's server.
pub(super) struct LinkServer<L>(pub(super) Arc<L>);

impl<L> Clone for LinkServer<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<L: Lanes> Service<http::Request<Body>> for LinkServer<L> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Boxed<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented("only Exchange of LinkService is here").into_http());
            }
            let mut server = Server::new(ProstCodec::<pb::ExchangeResponse, pb::ExchangeRequest>::default())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            Ok(server.streaming(method, request).await)
        })
    }
}

impl<L: Lanes> StreamingService<pb::ExchangeRequest> for LinkServer<L> {
    type Response = pb::ExchangeResponse;
    type ResponseStream = Said;
    type Future = Boxed<Result<Response<Said>, Status>>;

    fn call(&mut self, request: Request<Streaming<pb::ExchangeRequest>>) -> Self::Future {
        let known = request.extensions().get::<Known>().cloned().unwrap_or_default();
        let said = self.0.open(request.into_inner(), known);
        Box::pin(async move { Ok(Response::new(said)) })
    }
}
