//! Transport of an API connection that ends when the caller reads nothing for a while.
//!
//! A response that streams would otherwise hold its connection and its buffers for as long as the caller likes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// Stream whose writes fail if none has succeeded for a time.
pub(super) struct StallGuard<S> {
    stream: S,
    timeout: Duration,
    /// Timer that runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    /// Guards a stream.
    pub(super) fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, stalled: None }
    }

    /// Returns the stream.
    pub(super) fn get_ref(&self) -> &S {
        &self.stream
    }

    /// Passes on the outcome of a write, or an error if it has waited for too long.
    fn watch<T>(&mut self, outcome: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        stalled.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(outcome, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(outcome, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::{Instant, timeout},
    };

    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn reader_that_stalls_ends_the_stream_and_a_slow_one_does_not() {
        let (near, mut far) = duplex(8);
        let mut near = StallGuard::new(near, STALL);
        let writing = near.write_all(&[1; 64]);
        let reading = async {
            let mut read = [0; 8];
            for _ in 0..8 {
                // Each read is in time, all of them together are not.
                timeout(STALL * 3 / 4, std::future::pending::<()>()).await.unwrap_err();
                far.read_exact(&mut read).await.unwrap();
            }
        };
        assert!(tokio::join!(writing, reading).0.is_ok());
        let began = Instant::now();
        let error = near.write_all(&[1; 64]).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, STALL));
    }
}
