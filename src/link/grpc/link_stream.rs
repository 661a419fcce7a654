//! Accepted connection of the link, with TLS or without.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use super::{
    connection_limit::{Authenticated, PermittedConnection},
    tls::Tls,
};
use crate::net::tls::TLS_FIRST;

/// Content of an accepted connection.
pub(super) enum LinkStream {
    Plain(PermittedConnection),
    Secure(Box<TlsStream<PermittedConnection>>),
}

impl LinkStream {
    /// Completes the TLS handshake of a caller, as configured.
    ///
    /// # Errors
    /// `InvalidData` if the caller has no TLS or no certificate that is accepted; any other error means that the
    /// connection has ended, or was closed by its limits.
    pub(super) async fn accept(mut connection: PermittedConnection, tls: Option<&Tls>) -> io::Result<Self> {
        let Some(tls) = tls else { return Ok(Self::Plain(connection)) };
        if connection.first_byte().await? != TLS_FIRST {
            if tls.is_plain_accepted() {
                return Ok(Self::Plain(connection));
            }
            let why =
                "the caller does not use TLS; give all nodes certificates (link.tls_cert, link.tls_mode)";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let stream = TlsAcceptor::from(tls.server()).accept(connection).await?;
        tls.check_caller(stream.get_ref().1.peer_certificates())?;
        Ok(Self::Secure(Box::new(stream)))
    }
}

impl Connected for LinkStream {
    type ConnectInfo = Authenticated;

    fn connect_info(&self) -> Authenticated {
        match self {
            Self::Plain(connection) => connection.connect_info(),
            Self::Secure(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for LinkStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_read(context, into),
            Self::Secure(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for LinkStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write(context, bytes),
            Self::Secure(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write_vectored(context, slices),
            Self::Secure(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(connection) => connection.is_write_vectored(),
            Self::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_flush(context),
            Self::Secure(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_shutdown(context),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
