//! Transport of a shard, as a trait: registration, reads, writes, half close and reset of streams; no call waits.
//!
//! A shard is generic over this trait alone, and nothing above the shard is generic (ADR 20). The product has one
//! implementation, [`super::tcp::Tcp`]; the tests of the shard have a second one, in memory.

use std::io::{self, IoSlice};

/// Readiness of one stream, since it was last reported.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// Slot under which the stream is registered.
    pub slot: u32,
    /// Whether bytes, the end of input or an error can be read.
    pub readable: bool,
    /// Whether a write may take bytes.
    pub writable: bool,
    /// Whether the peer has shut its write side; earlier input may still be unread.
    pub ended: bool,
}

/// Transport of the connections of one shard. Readiness is edge-triggered, as with epoll.
pub trait Io {
    /// Connection that is not registered; dropping it closes the connection.
    type Arrival;

    /// Stream of one registered connection; dropping it closes the connection.
    type Stream;

    /// Registers a connection: from now on its readiness is reported under `slot`, first what holds already.
    ///
    /// # Errors
    /// Fails if the transport can't watch another stream; the connection is closed then.
    fn register(&mut self, arrival: Self::Arrival, slot: u32) -> io::Result<Self::Stream>;

    /// Ends the reports for a registered stream.
    ///
    /// # Errors
    /// Fails if the stream is not registered.
    fn deregister(&mut self, stream: &mut Self::Stream) -> io::Result<()>;

    /// Returns whether bytes can be read although no readiness is reported for them.
    fn has_input(&self, _stream: &Self::Stream) -> bool {
        false
    }

    /// Returns whether a part of a record has arrived whose rest has not: the peer owes bytes.
    fn has_partial(&self, _stream: &Self::Stream) -> bool {
        false
    }

    /// Returns whether written bytes wait in this transport, and [`Self::flush`] has to be called when the stream takes
    /// bytes.
    fn has_output(&self, _stream: &Self::Stream) -> bool {
        false
    }

    /// Returns the bytes that this transport holds for the stream.
    fn held(&self, _stream: &Self::Stream) -> usize {
        0
    }

    /// Writes the bytes that wait in this transport.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    fn flush(&mut self, _stream: &Self::Stream) -> io::Result<()> {
        Ok(())
    }

    /// Reads the available bytes; returns 0 if the peer has shut its write side.
    ///
    /// # Errors
    /// `WouldBlock` if no bytes are available, `Interrupted` if the call must be repeated; any other error means that
    /// the stream is unusable.
    fn read(&mut self, stream: &Self::Stream, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes as many bytes as the stream takes now.
    ///
    /// # Errors
    /// `WouldBlock` if the stream is full, `Interrupted` if the call must be repeated; any other error means that the
    /// stream is unusable.
    fn write(&mut self, stream: &Self::Stream, bytes: &[u8]) -> io::Result<usize>;

    /// Writes as many bytes of several slices as the stream takes now, in one call.
    ///
    /// # Errors
    /// The errors of [`Self::write`].
    fn write_slices(&mut self, stream: &Self::Stream, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Shuts the write side: the peer reads what was written, then the end. Input still arrives.
    ///
    /// # Errors
    /// `WouldBlock` if the end is only queued: the call must be repeated once [`Self::has_output`] is false. Any other
    /// error means that the peer has closed the connection already.
    fn shutdown_write(&mut self, stream: &Self::Stream) -> io::Result<()>;

    /// Makes the drop of the stream discard what either side has not read.
    ///
    /// # Errors
    /// Fails if the stream is unusable; its drop then closes it without a reset.
    fn reset(&mut self, stream: &Self::Stream) -> io::Result<()>;
}
