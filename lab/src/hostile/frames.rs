//! Frames of clients over `TG/1`, and blocking connections of the honest pair.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tidegate_protocol::{
    codec::{self, Decoded, Framing, Split},
    content::Content,
    pb::{self, client_frame::Body as ClientBody, server_frame::Body as ServerBody},
};

/// First bytes of a connection with protobuf frames.
pub(super) const PREFACE: &[u8] = b"TG/1\n";

/// Largest frame that a client accepts.
const FRAME_MAX: usize = 1 << 20;

/// Appends a frame.
pub(super) fn put(id: u64, body: ClientBody, out: &mut Vec<u8>) {
    let mut payload = Vec::new();
    codec::encode_client(&pb::ClientFrame { id, body: Some(body) }, Framing::Proto, &mut payload);
    codec::tcp::put_length(payload.len(), out);
    out.extend_from_slice(&payload);
}

/// Returns the bytes with which a client begins: the preface and `hello`.
pub(super) fn greeting(hello: pb::Hello) -> Vec<u8> {
    let mut out = PREFACE.to_vec();
    put(1, ClientBody::Hello(pb::Hello { version: 1, ..hello }), &mut out);
    out
}

/// Returns a message with `bytes` bytes of text.
pub(super) fn message(conversation: &str, msg_id: &str, bytes: usize) -> pb::Send {
    let content = Some(Content::text("x".repeat(bytes)));
    pb::Send {
        conversation: conversation.to_owned(),
        msg_id: msg_id.to_owned(),
        content,
        ..pb::Send::default()
    }
}

/// Takes all complete frames off `input`, and passes each to `take`.
///
/// # Errors
/// The bytes are no frames.
pub(super) fn cut(input: &mut Vec<u8>, mut take: impl FnMut(pb::ServerFrame)) -> Result<()> {
    let mut from = 0;
    while let Split::Frame { payload, consumed } = codec::tcp::split(&input[from..], FRAME_MAX)? {
        let payload = &input[from..][payload];
        if let Decoded::Frame(frame) = codec::decode_server(payload, Framing::Proto)? {
            take(frame);
        }
        from += consumed;
    }
    input.drain(..from);
    Ok(())
}

/// A blocking connection that is logged in.
pub(super) struct Session {
    stream: TcpStream,
    input: Vec<u8>,
    /// Frames that were read and not returned yet, in reverse order.
    ready: Vec<pb::ServerFrame>,
}

impl Session {
    /// Connects and logs in. `timeout` limits each read and write.
    pub(super) fn log_in(address: &str, hello: pb::Hello, timeout: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        let mut session = Self { stream, input: Vec::new(), ready: Vec::new() };
        session.stream.write_all(&greeting(hello))?;
        match session.next()?.body {
            Some(ServerBody::Welcome(_)) => Ok(session),
            other => bail!("no welcome: {other:?}"),
        }
    }

    /// Sends a frame.
    pub(super) fn send(&mut self, id: u64, body: ClientBody) -> Result<()> {
        let mut out = Vec::new();
        put(id, body, &mut out);
        Ok(self.stream.write_all(&out)?)
    }

    /// Waits for the next frame. Answers pings of the node on the way.
    ///
    /// # Errors
    /// The node closed the connection, or said nothing for the timeout.
    pub(super) fn next(&mut self) -> Result<pb::ServerFrame> {
        let mut buffer = [0; 16 * 1024];
        loop {
            if let Some(frame) = self.ready.pop() {
                match &frame.body {
                    Some(ServerBody::Ping(_)) => self.send(0, ClientBody::Pong(pb::Pong::default()))?,
                    Some(ServerBody::Close(close)) => bail!("closed with {} {}", close.code, close.name),
                    _ => return Ok(frame),
                }
                continue;
            }
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                bail!("the end of the stream");
            }
            self.input.extend_from_slice(&buffer[..count]);
            let ready = &mut self.ready;
            cut(&mut self.input, |frame| ready.push(frame)).context("bytes that are no frames")?;
            ready.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_cut_where_they_end() {
        let mut bytes = Vec::new();
        for id in 1..=2 {
            let frame = pb::ServerFrame { id, body: Some(ServerBody::Done(pb::Done {})) };
            let mut payload = Vec::new();
            codec::encode_server(&frame, Framing::Proto, &mut payload);
            codec::tcp::put_length(payload.len(), &mut bytes);
            bytes.extend_from_slice(&payload);
        }
        let last = bytes.pop().unwrap();
        let mut ids = Vec::new();
        cut(&mut bytes, |frame| ids.push(frame.id)).unwrap();
        assert_eq!(ids, [1]);
        bytes.push(last);
        cut(&mut bytes, |frame| ids.push(frame.id)).unwrap();
        assert_eq!((ids, bytes.len()), (vec![1, 2], 0));
    }
}
