//! Client of the command line: a WebSocket with JSON, logged in with a token that the data directory's key signs.

use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::{SinkExt, StreamExt};
use socket2::SockRef;
use tidegate_protocol::{
    codec::{self, Decoded, Framing},
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};
use tokio_util::either::Either;

use super::{
    admin::find,
    assign::Assigned,
    http::{TlsArgs, TlsClient, connect_client, host_port, is_tls},
};
use crate::auth;

/// Time for the broker to send the next frame.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Options that select the user and the node.
#[derive(clap::Args, Clone, Debug)]
pub struct LoginArgs {
    /// User to log in as
    #[arg(long)]
    pub user: String,
    /// Address of the node, if it does not run on the data directory; with wss:// before it for TLS
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Client port, as http://host:port or https://host:port, that is asked which node to log in to; may be repeated, the
    /// first that answers is used
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    pub(super) assign: Vec<String>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    data: super::DataArg,
}

impl LoginArgs {
    /// Builds the options of a command that has more of its own.
    pub(super) fn new(
        user: String,
        server: Option<String>,
        assign: Vec<String>,
        tls: TlsArgs,
        data: super::DataArg,
    ) -> Self {
        Self { user, server, assign, tls, data }
    }

    /// Returns how TLS is spoken; `None` if it is not.
    fn tls(&self) -> anyhow::Result<Option<TlsClient>> {
        let addresses: Vec<String> = self.server.iter().chain(&self.assign).cloned().collect();
        self.tls.client(&addresses)
    }

    /// Signs a token with the key of the data directory.
    fn token(&self) -> anyhow::Result<String> {
        let data = &self.data.data;
        let key = find::key(data).with_context(|| {
            format!("no token key in {}: name the node's data directory with --data", data.display())
        })?;
        Ok(auth::sign(&key, &self.user, None, Duration::from_secs(3_600)))
    }
}

/// WebSocket with or without TLS.
type Socket = WebSocketStream<Either<TcpStream, Box<TlsStream<TcpStream>>>>;

/// Connection that is logged in.
pub struct Client {
    socket: Socket,
    /// Reply of the broker to the login.
    pub welcome: pb::Welcome,
}

impl Client {
    /// Logs in to the node on the data directory, to the server if one is given, or to an assigned node.
    ///
    /// # Errors
    /// No node is reachable, or the broker refuses the login; the text names the cure.
    pub async fn login(args: &LoginArgs, device: &str) -> anyhow::Result<Self> {
        if args.assign.is_empty() {
            let server = match &args.server {
                Some(server) => server.clone(),
                None => find::node(&args.data.data, "name it with --server")?.client.to_string(),
            };
            return Self::login_at(&server, args, device).await;
        }
        let assigned =
            Assigned::ask_over(&args.assign, args.tls()?.as_ref(), &args.token()?, "?transport=ws").await?;
        if assigned.stale {
            eprintln!("Redis unavailable; the nodes are those that were last seen");
        }
        let named = assigned.addresses.iter().map(|endpoint| endpoint.address.as_str());
        // Nodes behind one shared address announce none, so use the known one. If no node accepts clients, the login
        // fails.
        let known = args.assign.iter().map(String::as_str).filter(|_| assigned.addresses.is_empty());
        Self::login_first(named.chain(known), args, device).await
    }

    /// Logs in to the first of `addresses`, each a host:port or URL, that accepts the user.
    ///
    /// # Errors
    /// No address accepts the user; the error is that of the last one.
    pub async fn login_first<'a>(
        addresses: impl Iterator<Item = &'a str>,
        args: &LoginArgs,
        device: &str,
    ) -> anyhow::Result<Self> {
        let mut why = anyhow::anyhow!("no node accepts new clients; try again later");
        for address in addresses {
            match Self::login_at(address, args, device).await {
                Ok(client) => return Ok(client),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn login_at(address: &str, args: &LoginArgs, device: &str) -> anyhow::Result<Self> {
        // A node may name one with TLS, although it was asked without.
        let tls = args.tls()?.or_else(|| is_tls(address).then(TlsClient::default));
        let hello =
            pb::Hello { version: 1, token: args.token()?, device: device.to_owned(), ..Default::default() };
        // Boxed, because the futures of all callers contain it.
        Box::pin(Self::connect(&host_port(address)?, tls.as_ref(), hello)).await
    }

    /// Logs in at a host:port with this first frame, over TLS if it is given.
    ///
    /// # Errors
    /// Nothing answers, or the broker refuses the login; the text names the cure.
    pub(super) async fn connect(
        server: &str,
        tls: Option<&TlsClient>,
        hello: pb::Hello,
    ) -> anyhow::Result<Self> {
        let stream =
            TcpStream::connect(server).await.with_context(|| format!("no node answers at {server}"))?;
        stream.set_nodelay(true)?;
        let stream = match tls {
            None => Either::Left(stream),
            Some(tls) => {
                let secure = timeout(REPLY_TIMEOUT, connect_client(stream, server, tls)).await;
                let late = || format!("{server} did not complete the TLS handshake in time");
                Either::Right(Box::new(secure.with_context(late)??))
            }
        };
        // The scheme is not sent.
        let mut request = format!("ws://{server}/").into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", HeaderValue::from_static("tidegate.v1.json"));
        let opened = tokio_tungstenite::client_async(request, stream).await;
        let (mut socket, _) = opened.with_context(|| match tls {
            Some(_) => format!("{server} accepts no WebSocket"),
            None => format!("{server} accepts no WebSocket; if it speaks TLS alone, add --tls"),
        })?;
        send(&mut socket, 1, ClientBody::Hello(hello)).await?;
        match next_in_time(&mut socket).await?.body {
            Some(ServerBody::Welcome(welcome)) => Ok(Self { socket, welcome }),
            other => bail!("login refused: {}", explain(other)),
        }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn send(&mut self, id: u64, body: ClientBody) -> anyhow::Result<()> {
        send(&mut self.socket, id, body).await
    }

    /// Resets the connection, as a network that fails does: what has arrived and was not read is gone.
    pub(super) fn reset(self) {
        // Best effort: without the option, the rest in the buffer alone makes the kernel send a reset.
        let stream = match self.socket.get_ref() {
            Either::Left(stream) => stream,
            Either::Right(secure) => secure.get_ref().0,
        };
        SockRef::from(stream).set_linger(Some(Duration::ZERO)).ok();
    }

    /// Waits without a time limit for the next frame, and returns it.
    ///
    /// # Errors
    /// The connection ends.
    pub async fn next(&mut self) -> anyhow::Result<pb::ServerFrame> {
        next(&mut self.socket).await
    }

    /// Returns the next frame, if it arrives in time.
    ///
    /// # Errors
    /// The connection ends, or no frame arrives in time.
    pub async fn next_in_time(&mut self) -> anyhow::Result<pb::ServerFrame> {
        next_in_time(&mut self.socket).await
    }
}

async fn send(socket: &mut Socket, id: u64, body: ClientBody) -> anyhow::Result<()> {
    let mut out = Vec::new();
    codec::encode_client(&pb::ClientFrame { id, body: Some(body) }, Framing::Json, &mut out);
    Ok(socket.send(Message::text(String::from_utf8(out)?)).await?)
}

async fn next_in_time(socket: &mut Socket) -> anyhow::Result<pb::ServerFrame> {
    timeout(REPLY_TIMEOUT, next(socket)).await.context("the broker did not answer in time")?
}

async fn next(socket: &mut Socket) -> anyhow::Result<pb::ServerFrame> {
    loop {
        let message = socket.next().await.context("the broker closed the connection")??;
        let payload = match &message {
            Message::Text(text) => text.as_bytes(),
            Message::Binary(bytes) => bytes,
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => continue,
        };
        if let Decoded::Frame(frame) = codec::decode_server(payload, Framing::Json)? {
            return Ok(frame);
        }
    }
}

/// Renders a refusal with its code and its cure.
pub fn explain(body: Option<ServerBody>) -> String {
    let (code, name, text) = match body {
        Some(ServerBody::Error(error)) => (error.code, error.name, error.message),
        Some(ServerBody::Close(close)) => (close.code, close.name, close.reason),
        other => return format!("an unexpected answer: {other:?}"),
    };
    let known = u16::try_from(code).ok().and_then(tidegate_protocol::Code::from_number);
    let cure = known.map_or("", tidegate_protocol::Code::cure);
    format!("{code} {name}: {text} {cure}")
}
