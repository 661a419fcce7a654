//! Receiver of webhooks in a bench: takes everything, and notes how late it came.

use crate::{bench::host::wall_ms, webhook_request};
use anyhow::Result;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde::Deserialize;
use std::{net::SocketAddr, sync::Arc};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
};

/// Receiver on a port of its own, which serves until it is dropped.
pub(super) struct Receiver {
    pub(super) address: SocketAddr,
    taken: Arc<Mutex<Taken>>,
    _runtime: Runtime,
}

/// What a receiver has taken.
pub(super) struct Taken {
    pub(super) events: u64,
    pub(super) requests: u64,
    /// Time from the receipt of a message by the node to that of its event here, in ms.
    pub(super) lag_ms: Histogram<u64>,
}

#[derive(Deserialize)]
struct Event {
    data: EventData,
}

#[derive(Deserialize)]
struct EventData {
    time: u64,
}

impl Taken {
    fn new() -> Result<Self> {
        Ok(Self { events: 0, requests: 0, lag_ms: Histogram::new(3)? })
    }
}

impl Receiver {
    pub(super) fn start() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let taken = Arc::new(Mutex::new(Taken::new()?));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let (address, of_tasks) = (listener.local_addr()?, Arc::clone(&taken));
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&of_tasks)));
            }
        });
        Ok(Self { address, taken, _runtime: runtime })
    }

    /// Returns the number of events so far.
    pub(super) fn events(&self) -> u64 {
        self.taken.lock().events
    }

    /// Returns what was taken since the last call.
    pub(super) fn take(&self) -> Result<Taken> {
        Ok(std::mem::replace(&mut *self.taken.lock(), Taken::new()?))
    }
}

/// Serves one connection until its end.
async fn serve(stream: TcpStream, taken: Arc<Mutex<Taken>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (_, body) = webhook_request::read(&mut stream).await?;
        let now = wall_ms();
        let events: Vec<Event> = serde_json::from_slice(&body).ok()?;
        {
            let mut taken = taken.lock();
            taken.requests += 1;
            taken.events += events.len() as u64;
            for event in &events {
                taken.lag_ms.record(now.saturating_sub(event.data.time)).ok()?;
            }
        }
        stream.get_mut().write_all(b"HTTP/1.1 204 Taken\r\n\r\n").await.ok()?;
    }
}
