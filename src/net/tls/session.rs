//! Content of an established TLS connection, read from and written to its socket.

use std::io::{self, ErrorKind, IoSlice};

use mio::net::TcpStream;
use rustls::{
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncryptError},
};

use super::{RECORD_MAX, RECORD_OVERHEAD_MAX, TlsState, append, is_whole_record, process};
use crate::net::transfer;

/// Bytes of input that one read returns at most.
const READ_BYTES: usize = 16 * 1024;

/// Buffers that all TLS connections of one thread share; what they have between calls has no meaning.
pub struct SharedBuffers {
    input: Vec<u8>,
    content: Vec<u8>,
    /// Space for records; it grows if a record needs more.
    output: Vec<u8>,
}

impl Default for SharedBuffers {
    fn default() -> Self {
        Self {
            input: vec![0; RECORD_MAX + RECORD_OVERHEAD_MAX + READ_BYTES],
            content: Vec::with_capacity(RECORD_MAX),
            output: vec![0; RECORD_MAX + RECORD_OVERHEAD_MAX],
        }
    }
}

/// State of an established TLS connection. What it holds is empty while the peer reads and sends whole records.
pub struct TlsSession {
    connection: UnbufferedServerConnection,
    /// Record whose rest has not arrived.
    incomplete: Vec<u8>,
    /// Content that did not fit the reader's buffer.
    unread: Vec<u8>,
    /// Records that the socket has not taken: at most one with content.
    unsent: Vec<u8>,
    has_ended: bool,
    /// Whether the reader knows the end of the input.
    is_end_read: bool,
    /// Whether the announcement of the end is sent, or waits.
    is_closing: bool,
    /// Whether the socket may have more input, of which no event will tell.
    has_more: bool,
    /// Failure that is reported once all content before it is read.
    failure: Option<rustls::Error>,
}

impl TlsSession {
    /// Creates the state of a connection after its handshake, with the input that arrived behind it: an incomplete
    /// record, content, and the end.
    pub fn new(
        connection: UnbufferedServerConnection,
        incomplete: &[u8],
        content: Vec<u8>,
        has_ended: bool,
    ) -> Self {
        Self {
            connection,
            incomplete: incomplete.to_vec(),
            unread: content,
            unsent: Vec::new(),
            has_ended,
            is_end_read: false,
            is_closing: false,
            has_more: false,
            failure: None,
        }
    }

    /// Returns whether a part of a record has arrived whose rest has not.
    pub fn has_partial(&self) -> bool {
        !self.incomplete.is_empty()
    }

    /// Returns whether a read may return something without an event of the socket.
    pub fn has_input(&self) -> bool {
        let is_end_unread = self.has_ended && !self.is_end_read;
        !self.unread.is_empty() || self.has_more || is_end_unread || self.failure.is_some()
    }

    /// Returns whether records wait until the socket takes them.
    pub fn has_output(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Returns the bytes that the connection makes the node hold.
    pub fn held(&self) -> usize {
        self.incomplete.capacity() + self.unread.capacity() + self.unsent.capacity()
    }

    /// Reads content, with at most one call of the system; returns 0 at the end of the input. Afterwards
    /// [`Self::has_input`] tells whether to read again.
    ///
    /// # Errors
    /// `WouldBlock` if no content is available; any other error means that the connection is unusable.
    pub fn read(
        &mut self,
        stream: &TcpStream,
        buffer: &mut [u8],
        buffers: &mut SharedBuffers,
    ) -> io::Result<usize> {
        let mut filled = self.unread.len().min(buffer.len());
        buffer[..filled].copy_from_slice(&self.unread[..filled]);
        self.unread.drain(..filled);
        if self.unread.is_empty() && !self.has_ended && self.failure.is_none() && filled < buffer.len() {
            self.unread = Vec::new();
            self.receive(stream, buffer, &mut filled, buffers)?;
            match self.flush(stream) {
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        if filled > 0 || buffer.is_empty() {
            return Ok(filled);
        }
        if let Some(failure) = self.failure.take() {
            return Err(io::Error::new(ErrorKind::InvalidData, failure));
        }
        if self.has_ended {
            self.is_end_read = true;
            return Ok(0);
        }
        Err(ErrorKind::WouldBlock.into())
    }

    /// Receives input once, and appends its content to the `filled` part of `buffer`.
    fn receive(
        &mut self,
        stream: &TcpStream,
        buffer: &mut [u8],
        filled: &mut usize,
        buffers: &mut SharedBuffers,
    ) -> io::Result<()> {
        self.has_more = false;
        let kept = self.incomplete.len();
        buffers.input[..kept].copy_from_slice(&self.incomplete);
        let space = READ_BYTES.min(buffers.input.len() - kept);
        let received = match transfer::read(stream, &mut buffers.input[kept..kept + space]) {
            Ok(received) => received,
            // Content that was read before is handed over first; the error comes again.
            Err(_) if *filled > 0 => {
                self.has_more = true;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if received == 0 {
            self.has_ended = true;
            return Ok(());
        }
        let (before, end) = (*filled, kept + received);
        let (connection, unread) = (&mut self.connection, &mut self.unread);
        let input = &mut buffers.input[..end];
        let (consumed, state) = process(connection, input, &mut self.unsent, |content| {
            let fits = content.len().min(buffer.len() - *filled);
            buffer[*filled..*filled + fits].copy_from_slice(&content[..fits]);
            *filled += fits;
            unread.extend_from_slice(&content[fits..]);
        });
        // Without content the end of the stream may be behind what was read, and its event is over.
        self.has_more = received == space || *filled == before;
        let rest = &buffers.input[consumed..end];
        match state {
            Ok(TlsState::PeerClosed) => self.has_ended = true,
            Ok(_) if is_whole_record(rest) => {
                self.failure = Some(rustls::Error::General("a message in several records".to_owned()));
            }
            Ok(TlsState::Open | TlsState::Handshaking) => self.keep_incomplete(rest),
            Err(error) => self.failure = Some(error),
        }
        if self.has_ended || self.failure.is_some() {
            (self.incomplete, self.has_more) = (Vec::new(), false);
        }
        Ok(())
    }

    fn keep_incomplete(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            self.incomplete = Vec::new();
        } else {
            self.incomplete.clear();
            self.incomplete.extend_from_slice(rest);
        }
    }

    /// Writes content as records, of which at most one waits for the socket; returns the bytes of content taken.
    ///
    /// # Errors
    /// `WouldBlock` if an earlier record waits still; any other error means that the connection is unusable.
    pub fn write(
        &mut self,
        stream: &TcpStream,
        slices: &[IoSlice<'_>],
        buffers: &mut SharedBuffers,
    ) -> io::Result<usize> {
        self.flush(stream)?;
        let SharedBuffers { content, output, .. } = buffers;
        // A push, which needs no copy.
        if let [one] = slices
            && (1..=RECORD_MAX).contains(&one.len())
        {
            self.write_record(stream, one, output)?;
            return Ok(one.len());
        }
        let mut taken = 0;
        let mut slices = slices.iter().map(|slice| &slice[..]).filter(|slice| !slice.is_empty());
        let mut rest: &[u8] = &[];
        loop {
            content.clear();
            while content.len() < RECORD_MAX {
                if rest.is_empty() {
                    let Some(next) = slices.next() else { break };
                    rest = next;
                }
                let (now, later) = rest.split_at(rest.len().min(RECORD_MAX - content.len()));
                content.extend_from_slice(now);
                rest = later;
            }
            if content.is_empty() {
                return Ok(taken);
            }
            let is_sent = self.write_record(stream, content, output)?;
            taken += content.len();
            if !is_sent {
                return Ok(taken);
            }
        }
    }

    /// Writes one record, and keeps what the socket does not take. Returns whether it took all.
    fn write_record(&mut self, stream: &TcpStream, content: &[u8], output: &mut Vec<u8>) -> io::Result<bool> {
        let length = self.encrypt(content, output)?;
        let written = match transfer::write(stream, &output[..length]) {
            Ok(written) => written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        if written < length {
            self.unsent = output[written..length].to_vec();
        }
        Ok(written == length)
    }

    /// Writes the records that wait.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take all of them; any other error means that the connection is unusable.
    pub fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let written = transfer::write(stream, &self.unsent)?;
            self.unsent.drain(..written);
        }
        self.unsent = Vec::new();
        Ok(())
    }

    /// Announces that nothing more is sent.
    ///
    /// # Errors
    /// `WouldBlock` if the socket does not take all of the announcement: call again when it does. Any other error means
    /// that the connection is unusable.
    pub fn close(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.flush(stream)?;
        if std::mem::replace(&mut self.is_closing, true) {
            return Ok(());
        }
        let mut alert = [0; RECORD_OVERHEAD_MAX];
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) =
            self.connection.process_tls_records(&mut []).state
            && let Ok(length) = traffic.queue_close_notify(&mut alert)
        {
            // Half of it would look like an attack.
            self.unsent = alert[..length].to_vec();
        }
        self.flush(stream)
    }

    /// Puts one record with this content into `output`, behind what the connection has to send before it, and returns their
    /// length. The space is not zeroed for each record, which would cost as much as a copy of the content.
    fn encrypt(&mut self, content: &[u8], output: &mut Vec<u8>) -> io::Result<usize> {
        let broken = |error: String| io::Error::new(ErrorKind::BrokenPipe, error);
        let mut filled = 0;
        loop {
            match self.connection.process_tls_records(&mut []).state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => loop {
                    match traffic.encrypt(content, &mut output[filled..]) {
                        Ok(written) => return Ok(filled + written),
                        Err(EncryptError::InsufficientSize(error))
                            if filled + error.required_size > output.len() =>
                        {
                            output.resize(filled + error.required_size, 0);
                        }
                        Err(error) => return Err(broken(error.to_string())),
                    }
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    // Rare: what the protocol itself has to send.
                    let mut before = Vec::new();
                    append(&mut before, |free| data.encode(free))
                        .map_err(|error| broken(error.to_string()))?;
                    let end = filled + before.len();
                    output.resize(output.len().max(end), 0);
                    output[filled..end].copy_from_slice(&before);
                    filled = end;
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.has_ended = true,
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(Ok(record)) = traffic.next_record() {
                        self.unread.extend_from_slice(record.payload);
                    }
                }
                Ok(_) => return Err(broken("the TLS connection is closed".to_owned())),
                Err(error) => return Err(broken(error.to_string())),
            }
        }
    }
}
