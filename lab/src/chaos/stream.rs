//! Reader of the stream of events in a run: it connects to the running nodes in turn, goes on after its last cursor, and has
//! to have everything at the end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{taken::Taken, world::World};
use crate::checker::STREAM;

/// Pause before the next node.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// Longest silence of a node, which sends a comment after 15 s.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Longest chunk of a response.
const CHUNK_BYTES_MAX: usize = 16 << 20;

/// Reader of the stream of all events.
pub(super) struct StreamReader {
    pub(super) taken: Taken,
    /// Cursor after which it continues; empty before the first one.
    cursor: Mutex<String>,
}

impl StreamReader {
    /// Starts a reader, which begins with the oldest event.
    pub(super) fn begin(world: &Arc<World>) -> Arc<Self> {
        let taken = Taken::new(STREAM, Arc::clone(&world.recorder));
        let it = Arc::new(Self { taken, cursor: Mutex::default() });
        let (reader, world) = (Arc::clone(&it), Arc::clone(world));
        tokio::spawn(async move {
            loop {
                if let Some(address) = world.admin.address()
                    && let Err(error) = reader.read(address).await
                    && error.is::<StreamGap>()
                {
                    return world.fail(format!("the stream of events: {error:#}"));
                }
                sleep(RECONNECT_INTERVAL).await;
            }
        });
        it
    }

    /// Reads from one node until its end.
    async fn read(&self, address: SocketAddr) -> anyhow::Result<()> {
        let connected = timeout(Duration::from_secs(2), TcpStream::connect(address)).await;
        let mut stream = BufReader::new(connected??);
        let cursor = self.cursor.lock().clone();
        let resumed = if cursor.is_empty() { String::new() } else { format!("last-event-id: {cursor}\r\n") };
        let request = format!(
            "GET /v1/events/stream?content=true&from=oldest HTTP/1.1\r\nhost: {address}\r\n{resumed}\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut line = String::new();
        while line != "\r\n" {
            let is_status = line.is_empty();
            line.clear();
            if timeout(SILENCE_MAX, stream.read_line(&mut line)).await?? == 0 {
                bail!("no response");
            }
            if is_status && !line.contains(" 200 ") {
                bail!("{line}");
            }
        }
        let (mut kind, mut text) = (String::new(), Vec::new());
        loop {
            timeout(SILENCE_MAX, chunk(&mut stream, &mut text)).await??;
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                self.take(std::str::from_utf8(&line)?.trim_end(), &mut kind)?;
            }
        }
    }

    /// Takes a line of the stream.
    fn take(&self, line: &str, kind: &mut String) -> anyhow::Result<()> {
        match line.split_once(": ") {
            Some(("event", value)) => value.clone_into(kind),
            Some(("data", value)) if kind == "gap" => return Err(StreamGap(value.to_owned()).into()),
            Some(("data", value)) => self.taken.note(&serde_json::from_str::<Value>(value)?),
            Some(("id", value)) => value.clone_into(&mut self.cursor.lock()),
            _ => {}
        }
        Ok(())
    }
}

/// Events that are no longer in the feed, which is kept for longer than a run.
#[derive(Debug, thiserror::Error)]
#[error("events are missing: {0}")]
struct StreamGap(String);

/// Reads a chunk of a response, and adds it to the text.
async fn chunk(stream: &mut BufReader<TcpStream>, text: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut size = String::new();
    stream.read_line(&mut size).await?;
    let size = usize::from_str_radix(size.trim(), 16).context("the end of the stream")?;
    if size == 0 || size > CHUNK_BYTES_MAX {
        bail!("a chunk of {size} bytes");
    }
    let begin = text.len();
    text.resize(begin + size, 0);
    stream.read_exact(&mut text[begin..]).await?;
    stream.read_exact(&mut [0; 2]).await?;
    Ok(())
}
