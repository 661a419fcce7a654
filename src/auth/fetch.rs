//! Download of a small public document over HTTP/1.1, with TLS for `https`.
//!
//! hyper's low-level connection and the node's rustls are enough: there is one request per refresh, without redirects,
//! proxy or pool.

use std::{io, path::Path, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use crate::net::endpoint::HttpEndpoint;

/// Largest document, in bytes.
const BODY_BYTES_MAX: usize = 256 * 1024;

/// Address of a document, and how to reach it.
pub(super) struct Source {
    endpoint: HttpEndpoint,
    timeout: Duration,
}

impl Source {
    /// Prepares downloads from `url`. `ca_file` names the authorities of its certificate; empty for those of the system.
    ///
    /// # Errors
    /// The URL is invalid, or the file can't be read.
    pub(super) fn new(url: &str, ca_file: &Path, timeout: Duration) -> io::Result<Self> {
        Ok(Self { endpoint: HttpEndpoint::new(url, ca_file)?, timeout })
    }

    /// Returns the document.
    ///
    /// # Errors
    /// The server can't be reached in time, has no trusted certificate, answers with another status than 200, or with
    /// more than [`BODY_BYTES_MAX`]; the text says which.
    pub(super) async fn get(&self) -> Result<Bytes, String> {
        let answer = async { Box::pin(self.exchange(self.endpoint.connect().await?)).await };
        timeout(self.timeout, answer)
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout)))
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<Bytes, String> {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let request = Request::get(self.endpoint.path())
            .header(header::HOST, self.endpoint.authority())
            .header(header::ACCEPT, "application/json")
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            if response.status() != 200 {
                return Err(format!("status {}", response.status().as_u16()));
            }
            let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
            Ok(body.map_err(|error| format!("body: {error}"))?.to_bytes())
        };
        tokio::pin!(answer);
        // The connection may end first, with the answer read.
        tokio::select! {
            answer = &mut answer => answer,
            ended = connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(error.to_string()),
            },
        }
    }
}
