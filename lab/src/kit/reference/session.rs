//! Connections of a client: their login, and the move from one to the next.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tidegate_protocol::{codec::Wire, pb};
use tokio::{io::AsyncReadExt as _, task::JoinHandle};

use super::refresh::TokenRefresh;
use crate::link::ClientSocket;

/// A connection that is logged in.
pub(super) struct Session {
    pub(super) socket: ClientSocket,
    pub(super) heartbeat: Duration,
    pub(super) received: Instant,
    pub(super) sent: Instant,
    pub(super) refresh: TokenRefresh,
}

/// Move to another connection that `goAway` asked for.
pub(super) enum Move {
    None,
    Planned(Instant, String),
    Opening(JoinHandle<Result<(ClientSocket, Value)>>),
}

/// Connections of a client that is live.
pub(super) struct Link {
    pub(super) session: Session,
    /// Connection that it moved from, and its last request.
    pub(super) old: Option<(Session, u64)>,
    pub(super) plan: Move,
    /// Final command, and how long it waits for the node.
    pub(super) bye: Option<(Value, Instant)>,
}

pub(super) async fn write(session: &mut Session, frames: Vec<Value>) -> Result<()> {
    if frames.is_empty() {
        return Ok(());
    }
    session.sent = Instant::now();
    let frames = frames.into_iter().map(serde_json::from_value).collect::<Result<Vec<_>, _>>()?;
    session.socket.send(&frames).await
}

/// Connects and sends `hello`. Returns the first frame of the node.
pub(super) async fn log_in(address: &str, wire: Wire, hello: &Value) -> Result<(ClientSocket, Value)> {
    let (_, rest) = address.split_once("://").context("no scheme")?;
    let address: SocketAddr = rest.trim_end_matches('/').parse()?;
    let mut socket = ClientSocket::connect(address, wire).await?;
    if let Err(error) = socket.send(&[serde_json::from_value(hello.clone())?]).await {
        return refusal(socket, wire).await.ok_or(error);
    }
    loop {
        if wire == Wire::Tcp
            && let ClientSocket::Stream { stream, .. } = &socket
        {
            // A node that does not know the framing yet answers with a JSON line. A `welcome` is longer than its length
            // byte says then, and no frame begins with the tag that a quote is.
            let mut first = [0; 2];
            if stream.peek(&mut first).await? > 1 && first == *b"{\"" {
                return refusal(socket, wire).await.context("no line");
            }
        }
        let frame = serde_json::to_value(&socket.next().await?)?;
        if !frame["error"].is_object() {
            return Ok((socket, frame));
        }
    }
}

/// Reads the `close` that a node sends as a JSON line before it knows the framing.
pub(super) async fn refusal(socket: ClientSocket, wire: Wire) -> Option<(ClientSocket, Value)> {
    let ClientSocket::Stream { mut stream, buffer, framing } = socket else { return None };
    let mut line = Vec::new();
    if wire == Wire::Tcp {
        stream.read_to_end(&mut line).await.ok()?;
    }
    let frame = serde_json::from_slice(&line).ok()?;
    Some((ClientSocket::Stream { stream, buffer, framing }, frame))
}

pub(super) async fn next_of(old: &mut Option<(Session, u64)>) -> Result<pb::ServerFrame> {
    match old {
        Some((session, _)) => session.socket.next().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn opened(plan: &mut Move) -> Result<(ClientSocket, Value)> {
    match plan {
        Move::Opening(task) => match task.await {
            Ok(result) => result,
            Err(_) => bail!("the task ended"),
        },
        Move::None | Move::Planned(..) => std::future::pending().await,
    }
}
