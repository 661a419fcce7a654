//! A small client for the command line: WebSocket with JSON, logged in as a user of this data directory.

use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::{SinkExt, StreamExt};
use tidegate_protocol::{
    codec::{self, Decoded, Framing},
    pb::{self, client_frame::Body as Ask, server_frame::Body as Say},
};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};

use super::{
    assign::{Assigned, host_port},
    find,
};
use crate::auth;

/// How long the broker may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Who talks to which node.
#[derive(clap::Args, Clone, Debug)]
pub struct LoginArgs {
    /// The user to log in as
    #[arg(long)]
    pub user: String,
    /// Where the node is, if not on this data directory
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) server: Option<String>,
    /// Ask there which node to log in at, as http://host:port of any client port; may be repeated: the first that answers is
    /// asked
    #[arg(long, value_name = "URL", conflicts_with = "server")]
    pub(super) assign: Vec<String>,
    #[command(flatten)]
    data: super::DataArg,
}

impl LoginArgs {
    /// The user, where the node is if not on the data directory, who may be asked for one, and that directory.
    pub(super) fn new(
        user: String,
        server: Option<String>,
        assign: Vec<String>,
        data: super::DataArg,
    ) -> Self {
        Self { user, server, assign, data }
    }

    /// Signed with the key of the data directory.
    fn token(&self) -> anyhow::Result<String> {
        let data = &self.data.data;
        let key = find::key(data).with_context(|| {
            format!("no token key in {}: name the node's data directory with --data", data.display())
        })?;
        Ok(auth::sign(&key, &self.user, None, Duration::from_secs(3_600)))
    }
}

/// A logged-in connection.
pub struct Client {
    socket: WebSocketStream<TcpStream>,
    /// What the broker said at login.
    pub welcome: pb::Welcome,
}

impl Client {
    /// Logs in at the node that runs on the data directory, or at the server if one is given.
    ///
    /// # Errors
    /// Says what to do when no node is there, and what the broker refused.
    pub async fn login(args: &LoginArgs, device: &str) -> anyhow::Result<Self> {
        if args.assign.is_empty() {
            let server = match &args.server {
                Some(server) => server.clone(),
                None => find::node(&args.data.data, "name it with --server")?.client.to_string(),
            };
            return Self::login_at(&server, args, device).await;
        }
        let assigned = Assigned::ask(&args.assign, &args.token()?, "?transport=ws").await?;
        if assigned.stale {
            eprintln!("Redis is away: the nodes are those that were seen last");
        }
        let named = assigned.addresses.iter().map(|place| place.address.as_str());
        // Nodes behind one address name none: the one that is known is meant. Where no node takes anybody, it says so.
        let known = args.assign.iter().map(String::as_str).filter(|_| assigned.addresses.is_empty());
        Self::login_first(named.chain(known), args, device).await
    }

    /// Logs in at the first of these, each host:port or a URL of it, that takes the user.
    ///
    /// # Errors
    /// Why the last of them did not.
    pub async fn login_first<'a>(
        addresses: impl Iterator<Item = &'a str>,
        args: &LoginArgs,
        device: &str,
    ) -> anyhow::Result<Self> {
        let mut why = anyhow::anyhow!("no node takes newcomers now");
        for address in addresses {
            match Self::login_at(address, args, device).await {
                Ok(client) => return Ok(client),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    async fn login_at(address: &str, args: &LoginArgs, device: &str) -> anyhow::Result<Self> {
        let (server, token) = (host_port(address)?, args.token()?);
        let stream =
            TcpStream::connect(server).await.with_context(|| format!("no node answers at {server}"))?;
        stream.set_nodelay(true)?;
        let mut request = format!("ws://{server}/").into_client_request()?;
        let headers = request.headers_mut();
        headers.insert("Sec-WebSocket-Protocol", HeaderValue::from_static("tidegate.v1.json"));
        let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await?;
        let hello = pb::Hello { version: 1, token, device: device.to_owned(), ..Default::default() };
        ask(&mut socket, 1, Ask::Hello(hello)).await?;
        match listen(&mut socket).await?.body {
            Some(Say::Welcome(welcome)) => Ok(Self { socket, welcome }),
            other => bail!("the login was refused: {}", explain(other)),
        }
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Fails when the connection is lost.
    pub async fn ask(&mut self, id: u64, body: Ask) -> anyhow::Result<()> {
        ask(&mut self.socket, id, body).await
    }

    /// The next frame; waits as long as it takes.
    ///
    /// # Errors
    /// Fails when the connection ends.
    pub async fn next(&mut self) -> anyhow::Result<pb::ServerFrame> {
        next(&mut self.socket).await
    }

    /// The next frame within the deadline.
    ///
    /// # Errors
    /// Fails when the connection ends or nothing comes.
    pub async fn answer(&mut self) -> anyhow::Result<pb::ServerFrame> {
        listen(&mut self.socket).await
    }
}

async fn ask(socket: &mut WebSocketStream<TcpStream>, id: u64, body: Ask) -> anyhow::Result<()> {
    let mut out = Vec::new();
    codec::encode_client(&pb::ClientFrame { id, body: Some(body) }, Framing::Json, &mut out);
    Ok(socket.send(Message::text(String::from_utf8(out)?)).await?)
}

async fn listen(socket: &mut WebSocketStream<TcpStream>) -> anyhow::Result<pb::ServerFrame> {
    tokio::time::timeout(DEADLINE, next(socket)).await.context("the broker did not answer in time")?
}

async fn next(socket: &mut WebSocketStream<TcpStream>) -> anyhow::Result<pb::ServerFrame> {
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

/// A refusal in words, with its cure.
pub fn explain(body: Option<Say>) -> String {
    let (code, name, text) = match body {
        Some(Say::Error(error)) => (error.code, error.name, error.message),
        Some(Say::Close(close)) => (close.code, close.name, close.reason),
        other => return format!("an unexpected answer: {other:?}"),
    };
    let known = u16::try_from(code).ok().and_then(tidegate_protocol::Code::from_number);
    let cure = known.map_or("", tidegate_protocol::Code::cure);
    format!("{code} {name}: {text} {cure}")
}
