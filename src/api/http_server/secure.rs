//! TLS handshake of an API connection, and the answer to a caller that begins without TLS.

use std::{io, sync::Arc};

use serde_json::json;
use tidegate_protocol::Code;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::stall_guard::StallGuard;
use crate::net::tls::{Certificates, TLS_FIRST};

/// Stream whose content is encrypted.
pub(super) type SecureStream = TlsStream<StallGuard<TcpStream>>;

/// Completes the handshake of a caller. One that speaks plain HTTP gets a response with its cure.
///
/// # Errors
/// The caller has no TLS, the handshake fails, or the connection ends.
pub(super) async fn accept(stream: StallGuard<TcpStream>, tls: &Certificates) -> io::Result<SecureStream> {
    let mut first = [0];
    match stream.get_ref().peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if first[0] != TLS_FIRST => {
            Box::pin(refuse(stream)).await?;
            Err(io::Error::new(io::ErrorKind::InvalidData, "the caller speaks no TLS"))
        }
        _ => TlsAcceptor::from(Arc::clone(&tls.config())).accept(stream).await,
    }
}

async fn refuse(mut stream: StallGuard<TcpStream>) -> io::Result<()> {
    let code = Code::TlsRequired;
    let body = json!({
        "code": code.number(),
        "name": code.name(),
        "message": code.what(),
        "temporary": code.temporary(),
        "cure": "Use https:// with this address.",
    });
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // A close with unread input would send a reset, which destroys the response. A longer request gets that.
    let mut input = [0; 4_096];
    stream.get_ref().try_read(&mut input).ok();
    stream.write_all([head, body].concat().as_bytes()).await?;
    stream.shutdown().await
}
