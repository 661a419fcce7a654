//! Limit on the messages of a stream until its connection is authenticated.
//!
//! The limit of tonic is the same for all messages of a stream, and its decoders get a message only when all of it is
//! in memory. So the length of each message is read here, from the body below tonic, which reserves nothing for a
//! message that is too long.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::connection_limit::Authenticated;

/// Limit on a message until the connection is authenticated; a hello or proof has less than 300 bytes.
const FIRST_MESSAGE_BYTES_MAX: u32 = 4 * 1024;

/// Size of the prefix of each message: a flag for compression, then the length.
const PREFIX_BYTES: usize = 5;

/// Body of a request whose messages are small until the connection is authenticated.
pub(super) struct FirstMessages {
    body: Body,
    authenticated: Authenticated,
    lengths: MessageLengths,
}

/// Reader of the lengths of messages in the chunks of a body.
#[derive(Default)]
struct MessageLengths {
    /// Bytes of the next prefix that have arrived.
    prefix: Vec<u8>,
    /// Bytes of the present message that have not arrived.
    left: usize,
}

impl FirstMessages {
    pub(super) fn new(body: Body, authenticated: Authenticated) -> Self {
        Self { body, authenticated, lengths: MessageLengths::default() }
    }
}

impl hyper::body::Body for FirstMessages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &polled
            && let Some(chunk) = frame.data_ref()
            && !self.authenticated.is_set()
            && let Err(status) = self.lengths.read(chunk)
        {
            return Poll::Ready(Some(Err(status)));
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl MessageLengths {
    /// Reads the next chunk, and fails if a message that begins in it is too long.
    fn read(&mut self, mut chunk: &[u8]) -> Result<(), Status> {
        while !chunk.is_empty() {
            let of_message = self.left.min(chunk.len());
            self.left -= of_message;
            let of_prefix = (PREFIX_BYTES - self.prefix.len()).min(chunk.len() - of_message);
            self.prefix.extend_from_slice(&chunk[of_message..of_message + of_prefix]);
            chunk = &chunk[of_message + of_prefix..];
            if let [_, a, b, c, d] = self.prefix[..] {
                let length = u32::from_be_bytes([a, b, c, d]);
                if length > FIRST_MESSAGE_BYTES_MAX {
                    let most = FIRST_MESSAGE_BYTES_MAX;
                    let why =
                        format!("a message of {length} bytes before the proof; at most {most} are accepted");
                    return Err(Status::resource_exhausted(why));
                }
                self.left = length as usize;
                self.prefix.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; length as usize]);
        bytes
    }

    #[test]
    fn x15_lengths_are_read_in_chunks_of_any_size() {
        let small: Vec<u8> =
            [0, 1, 200, FIRST_MESSAGE_BYTES_MAX, 0, 3].into_iter().flat_map(message).collect();
        for size in [1, 2, 3, 4, 5, 6, 7, 64, 1_000, 4_096, 4_101, small.len()] {
            let mut lengths = MessageLengths::default();
            for chunk in small.chunks(size) {
                lengths.read(chunk).unwrap();
            }
            assert_eq!((lengths.left, lengths.prefix.len()), (0, 0), "chunks of {size}");
            // The prefix alone is refused, before any byte of its message.
            let large = &message(FIRST_MESSAGE_BYTES_MAX + 1)[..PREFIX_BYTES];
            assert!(large.chunks(size).any(|chunk| lengths.read(chunk).is_err()), "chunks of {size}");
        }
    }
}
