//! Receiver of webhooks that reads requests and never answers one.

use std::{
    io::{self, BufReader},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use super::webhook_receiver::{read_head, serve_each};

/// Silent receiver on a free port, until the test ends.
pub struct SilentReceiver {
    address: SocketAddr,
    counts: Arc<RequestCounts>,
}

/// Requests of a silent receiver.
#[derive(Default)]
struct RequestCounts {
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl SilentReceiver {
    /// Starts a receiver.
    pub fn start() -> Self {
        let counts = Arc::new(RequestCounts::default());
        let shared = Arc::clone(&counts);
        Self { address: serve_each(move |stream| hold(stream, &shared)), counts }
    }

    /// Returns the URL of the receiver.
    pub fn url(&self) -> String {
        format!("http://{}/tg", self.address)
    }

    /// Returns the number of requests that it has got, and of those that the node has given up.
    pub fn requests(&self) -> (usize, usize) {
        (self.counts.begun.load(SeqCst), self.counts.ended.load(SeqCst))
    }
}

/// Holds a request until its connection ends.
fn hold(stream: TcpStream, counts: &RequestCounts) -> Option<()> {
    let mut reader = BufReader::new(stream);
    read_head(&mut reader)?;
    counts.begun.fetch_add(1, SeqCst);
    io::copy(&mut reader, &mut io::sink()).ok();
    counts.ended.fetch_add(1, SeqCst);
    Some(())
}
