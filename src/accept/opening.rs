//! First bytes of one connection: a PROXY header and a TLS handshake, if there are any.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
};

use mio::net::TcpStream;
use proxy_header::{ParseConfig, ProxyHeader};
use rustls::{ServerConfig, server::UnbufferedServerConnection};
use tidegate_protocol::{
    Code,
    codec::{Detect, Preface, detect},
};

use crate::net::{
    tcp::{Arrival, FOREIGN_PROXY_HEADER},
    tls::{CertificateName, TLS_FIRST, TlsSession, TlsState, is_whole_record, process},
    transfer,
};

/// Longest PROXY header: those with long lists of certificates are refused.
const HEADER_MAX: usize = 2_048;

/// Input of a handshake that is kept at most: one record, and what follows it.
const INPUT_MAX: usize = 20 * 1_024;

/// Output of a handshake that waits at most. Certificates may take some KiB.
const OUTPUT_MAX: usize = 64 * 1_024;

/// What the first bytes of a connection may be.
#[derive(Clone)]
pub(super) struct Expected {
    /// Configuration of TLS, if it is offered.
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Whether connections without TLS are refused.
    pub(super) is_tls_required: bool,
    /// Part of a client's certificate that names its user.
    pub(super) client_name: Option<CertificateName>,
}

/// Progress of a connection.
pub(super) enum Progress {
    /// More bytes must arrive, or leave.
    Waiting,
    /// A PROXY header named this client, of which the address may be refused.
    Named(SocketAddr),
    /// A TLS handshake begins, of which there may be too many.
    Begins,
    /// A shard can have the connection, of which the certificate names this user.
    Complete(Box<Arrival>, Option<Box<str>>),
    /// The connection is refused, in words that are sent to a client without TLS.
    Refused(TcpStream, Code, &'static str),
    /// The handshake failed for this reason.
    Failed(String),
    /// The peer has closed the connection.
    Gone,
}

/// Part of the first bytes that comes next.
enum Next {
    ProxyHeader,
    Preface,
    Begin(Arc<ServerConfig>),
    Handshake(Box<Handshake>),
}

/// TLS handshake under way.
struct Handshake {
    connection: UnbufferedServerConnection,
    input: Vec<u8>,
    output: Vec<u8>,
    /// Content that arrived behind the handshake.
    content: Vec<u8>,
    /// Whether the client sends nothing more.
    has_ended: bool,
    /// Whether the handshake is over, apart from what is to be sent.
    is_over: bool,
}

/// Connection whose first bytes are awaited.
pub(super) struct Opening {
    /// Socket; `None` once it is handed over.
    stream: Option<TcpStream>,
    next: Next,
}

impl Opening {
    /// Creates the state of an accepted connection, of which a proxy announces the client.
    pub(super) fn new(stream: TcpStream, is_from_proxy: bool) -> Self {
        let next = if is_from_proxy { Next::ProxyHeader } else { Next::Preface };
        Self { stream: Some(stream), next }
    }

    /// Returns the socket, to be watched.
    pub(super) fn stream_mut(&mut self) -> Option<&mut TcpStream> {
        self.stream.as_mut()
    }

    /// Returns the socket of a client that reads frames without TLS, unless it is handed over.
    pub(super) fn into_plain_stream(self) -> Option<TcpStream> {
        match self.next {
            Next::ProxyHeader | Next::Preface => self.stream,
            Next::Begin(_) | Next::Handshake(_) => None,
        }
    }

    /// Processes the bytes that have arrived, and sends what the socket takes. To be called again after
    /// [`Progress::Named`] and [`Progress::Begins`].
    pub(super) fn advance(&mut self, expected: &Expected) -> Progress {
        match self.step(expected) {
            Ok(progress) => progress,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Progress::Waiting
            }
            Err(_) => Progress::Gone,
        }
    }

    fn step(&mut self, expected: &Expected) -> io::Result<Progress> {
        let Some(stream) = &self.stream else { return Ok(Progress::Gone) };
        if let Next::ProxyHeader = self.next {
            let Some((client, length)) = read_header(stream)? else {
                return Ok(
                    self.refuse(Code::UnknownFraming, "this proxy must send a complete PROXY header first")
                );
            };
            let mut header = [0; HEADER_MAX];
            // All of it has arrived.
            transfer::read(stream, &mut header[..length])?;
            self.next = Next::Preface;
            if let Some(client) = client {
                return Ok(Progress::Named(client));
            }
        }
        if let Next::Preface = self.next {
            let mut first = [0];
            let is_tls = match stream.peek(&mut first)? {
                0 => return Ok(Progress::Gone),
                _ => first[0] == TLS_FIRST,
            };
            match &expected.tls {
                Some(config) if is_tls => {
                    self.next = Next::Begin(Arc::clone(config));
                    return Ok(Progress::Begins);
                }
                _ if expected.is_tls_required => {
                    let reason = if is_proxy_header(stream)? { FOREIGN_PROXY_HEADER } else { "" };
                    return Ok(self.refuse(Code::TlsRequired, reason));
                }
                _ => return Ok(self.complete(None, None)),
            }
        }
        if let Next::Begin(config) = &self.next {
            match UnbufferedServerConnection::new(Arc::clone(config)) {
                Ok(connection) => self.next = Next::Handshake(Box::new(Handshake::new(connection))),
                Err(error) => return Ok(Progress::Failed(error.to_string())),
            }
        }
        let (Some(stream), Next::Handshake(handshake)) = (&self.stream, &mut self.next) else {
            return Ok(Progress::Waiting);
        };
        match handshake.advance(stream)? {
            Ok(false) => Ok(Progress::Waiting),
            Ok(true) => {
                let Next::Handshake(done) = std::mem::replace(&mut self.next, Next::Preface) else {
                    return Ok(Progress::Gone);
                };
                let Handshake { connection, input, content, has_ended, .. } = *done;
                if is_whole_record(&input) && !has_ended {
                    return Ok(Progress::Failed("a message in several records".to_owned()));
                }
                let user = expected.client_name.and_then(|part| part.of(connection.peer_certificates()));
                let session = TlsSession::new(connection, &input, content, has_ended);
                Ok(self.complete(Some(Box::new(session)), user))
            }
            Err(reason) => Ok(Progress::Failed(reason)),
        }
    }

    fn complete(&mut self, tls: Option<Box<TlsSession>>, user: Option<Box<str>>) -> Progress {
        match self.stream.take() {
            Some(stream) => Progress::Complete(Box::new(Arrival { stream, tls }), user),
            None => Progress::Gone,
        }
    }

    fn refuse(&mut self, code: Code, reason: &'static str) -> Progress {
        self.stream.take().map_or(Progress::Gone, |stream| Progress::Refused(stream, code, reason))
    }
}

impl Handshake {
    fn new(connection: UnbufferedServerConnection) -> Self {
        let (input, output, content) = (Vec::new(), Vec::new(), Vec::new());
        Self { connection, input, output, content, has_ended: false, is_over: false }
    }

    /// Reads, processes and writes; returns whether the handshake is over and all of it is sent.
    fn advance(&mut self, stream: &TcpStream) -> io::Result<Result<bool, String>> {
        loop {
            self.send(stream)?;
            if self.is_over {
                return Ok(Ok(true));
            }
            let kept = self.input.len();
            if kept == INPUT_MAX {
                return Ok(Err("more than one record without its end".to_owned()));
            }
            self.input.resize(INPUT_MAX, 0);
            let received = transfer::read(stream, &mut self.input[kept..]);
            self.input.truncate(kept + received.as_ref().copied().unwrap_or(0));
            match received {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) => {
                    self.input.shrink_to_fit();
                    return Err(error);
                }
            }
            let content = &mut self.content;
            let (consumed, state) =
                process(&mut self.connection, &mut self.input, &mut self.output, |received| {
                    content.extend_from_slice(received);
                });
            self.input.drain(..consumed);
            match state {
                Ok(TlsState::Open) => self.is_over = true,
                Ok(TlsState::Handshaking) => {}
                Ok(TlsState::PeerClosed) if self.connection.is_handshaking() => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Ok(TlsState::PeerClosed) => (self.is_over, self.has_ended) = (true, true),
                Err(error) => {
                    // The alert says why; the connection ends in any case.
                    self.send(stream).ok();
                    return Ok(Err(error.to_string()));
                }
            }
            if self.output.len() > OUTPUT_MAX || self.content.len() > INPUT_MAX {
                return Ok(Err("the client sends without reading".to_owned()));
            }
        }
    }

    fn send(&mut self, stream: &TcpStream) -> io::Result<()> {
        while !self.output.is_empty() {
            let written = transfer::write(stream, &self.output)?;
            self.output.drain(..written);
        }
        Ok(())
    }
}

/// Returns whether the bytes that have arrived begin with a PROXY header.
fn is_proxy_header(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0; 16];
    let length = stream.peek(&mut first)?;
    Ok(matches!(detect(&first[..length]), Detect::Found(Preface::ProxyV1 | Preface::ProxyV2)))
}

/// Looks at a PROXY header that has arrived. Returns the client that it names, `None` for a connection of the proxy
/// itself such as a health check, and its length; `None` if there is no such header.
fn read_header(stream: &TcpStream) -> io::Result<Option<(Option<SocketAddr>, usize)>> {
    let mut bytes = [0; HEADER_MAX];
    let available = stream.peek(&mut bytes)?;
    if available == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    match ProxyHeader::parse(&bytes[..available], ParseConfig::default()) {
        Ok((header, length)) => Ok(Some((header.proxied_address().map(|address| address.source), length))),
        Err(proxy_header::Error::BufferTooShort) if available < HEADER_MAX => {
            Err(ErrorKind::WouldBlock.into())
        }
        Err(_) => Ok(None),
    }
}
