//! TLS on client connections: certificates, the handshake before a shard gets the connection, and the records after it.
//!
//! Records are processed in buffers that all connections of a thread share, so that an idle connection holds its keys
//! and little more.

mod by_name;
mod certificates;
mod client_name;
mod files;
mod session;

use rustls::{
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, UnbufferedStatus},
};

pub use self::{
    certificates::{Certificates, ClientAuthority, TlsFiles},
    client_name::CertificateName,
    files::{
        FileVersion, WatchedCertificates, expiry, read_authorities, read_certificates, read_pair,
        read_private_key, versions,
    },
    session::{SharedBuffers, TlsSession},
};

/// First byte of a TLS connection, with which neither HTTP nor another preface begins.
pub const TLS_FIRST: u8 = 0x16;

/// Bytes of a record's content at most.
const RECORD_MAX: usize = 16 * 1024;

/// Bytes that a record has beyond its content at most: header, nonce, type, tag, and the padding that TLS 1.2 allows.
const RECORD_OVERHEAD_MAX: usize = 5 + 2_048;

/// State of a connection once all complete records of its input are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsState {
    /// The handshake needs more input.
    Handshaking,
    /// Content may be sent, and may arrive.
    Open,
    /// The peer sends nothing more.
    PeerClosed,
}

/// Processes the complete records at the start of `input`: appends what must be sent to `output`, and passes content to
/// `receive`. Returns the number of processed bytes, and the state or the reason to end the connection; an alert for the
/// peer is in `output` then.
pub fn process(
    connection: &mut UnbufferedServerConnection,
    input: &mut [u8],
    output: &mut Vec<u8>,
    mut receive: impl FnMut(&[u8]),
) -> (usize, Result<TlsState, rustls::Error>) {
    let mut at = 0;
    let mut failure = None;
    let mut has_ended = false;
    loop {
        let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(&mut input[at..]);
        let mut consumed = discard;
        let reached = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(record) = traffic.next_record() {
                    match record {
                        Ok(record) => {
                            consumed += record.discard;
                            receive(record.payload);
                        }
                        Err(error) => failure = failure.or(Some(error)),
                    }
                }
                None
            }
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                if let Err(error) = append(output, |free| data.encode(free)) {
                    failure = failure.or(Some(error));
                }
                None
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                None
            }
            Ok(ConnectionState::PeerClosed) => {
                has_ended = true;
                None
            }
            Ok(ConnectionState::Closed) => Some(TlsState::PeerClosed),
            Ok(ConnectionState::WriteTraffic(_)) if has_ended => Some(TlsState::PeerClosed),
            Ok(ConnectionState::WriteTraffic(_)) => Some(TlsState::Open),
            Ok(ConnectionState::BlockedHandshake) => Some(TlsState::Handshaking),
            Ok(_) => {
                failure =
                    failure.or_else(|| Some(rustls::Error::General("early data is not offered".into())));
                Some(TlsState::PeerClosed)
            }
            Err(error) => {
                encode_waiting(connection, output);
                return (at + consumed, Err(failure.unwrap_or(error)));
            }
        };
        at += consumed;
        if let Some(state) = reached {
            return (at, failure.map_or(Ok(state), Err));
        }
    }
}

/// Appends what waits to be sent, such as an alert, without a look at the input.
fn encode_waiting(connection: &mut UnbufferedServerConnection, output: &mut Vec<u8>) {
    while connection.wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = connection.process_tls_records(&mut []).state
        else {
            return;
        };
        if append(output, |free| data.encode(free)).is_err() {
            return;
        }
    }
}

/// Returns whether the start of `input` is a whole record. The library keeps one only if a message continues in the next
/// record, which no message does after the handshake.
pub fn is_whole_record(input: &[u8]) -> bool {
    input.first_chunk().is_some_and(|[_, _, _, high, low]: &[u8; 5]| {
        input.len() >= 5 + usize::from(u16::from_be_bytes([*high, *low]))
    })
}

/// Appends what `encode` writes into the free space that it is offered, with as much space as it asks for.
fn append(
    output: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), rustls::Error> {
    let start = output.len();
    let mut space = 0;
    loop {
        output.resize(start + space, 0);
        match encode(&mut output[start..]) {
            Ok(written) => {
                output.truncate(start + written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(error)) if error.required_size > space => {
                space = error.required_size
            }
            Err(error) => {
                output.truncate(start);
                return Err(rustls::Error::General(error.to_string()));
            }
        }
    }
}
