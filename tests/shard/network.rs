//! Transports under the stories: sockets of this machine, and pipes in memory.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    task::Waker,
    time::Instant,
};

use tidegate::{
    config,
    shard::{Context, Now, Shard, newcomer::NewcomerQueue},
};
use tidegate_protocol::codec::{Framing, Wire};

use crate::{
    manual_shards::{ManualShards, Sockets, Transport},
    pipes::{self, ClientEnd, Pipes, Received, ShardEnd},
    support::{Client, ClientBody, Incoming, Link, MemoryLink, ServerBody, ask, cut, hello},
};

/// Bytes that a connection in memory holds for the shard, as the receive buffer of a socket.
const INPUT_MAX: usize = 4 << 20;

/// Bytes that a connection in memory holds for the client, where the test sets no send buffer.
const OUTPUT_MAX: usize = 64 * 1024;

/// Transport with the client side of its connections.
pub(crate) trait Network: Transport + Sized {
    /// Connects a client, which has sent only the preface.
    fn connect(shards: &mut ManualShards<Self>) -> Client;

    /// Returns how often shards wrote two slices or more, refused writes included.
    fn writes(&self) -> u64;

    /// Returns whether the client's connection was reset.
    fn is_reset(client: &Client) -> bool;
}

impl Network for Sockets {
    fn connect(shards: &mut ManualShards<Self>) -> Client {
        Client::connect(shards.address(), Wire::Tcp)
    }

    /// Counts `write` and `writev` calls of this thread, failed ones included; two slices are written by `writev`.
    fn writes(&self) -> u64 {
        let counts = std::fs::read_to_string("/proc/thread-self/io").expect("the kernel counts");
        counts.lines().find_map(|line| line.strip_prefix("syscw: ")?.parse().ok()).expect("a count")
    }

    /// The kernel hands out what came before a reset; only the error shows it.
    fn is_reset(client: &Client) -> bool {
        client.link.stream().take_error().expect("a socket has an error state").is_some()
    }
}

/// Pipes in memory, with a transport for each shard.
pub(crate) struct Memory {
    shards: Vec<(Shard<Pipes>, Pipes)>,
    backlog: VecDeque<ShardEnd>,
    output_max: usize,
}

impl Memory {
    /// Connects a client that has sent these bytes.
    pub(crate) fn connect_raw(shards: &mut ManualShards<Self>, bytes: &[u8]) -> ClientEnd {
        let (stream, end) = pipes::connection(INPUT_MAX, shards.transport.output_max);
        shards.transport.backlog.push_back(stream);
        end.write(bytes);
        end
    }

    /// Returns the transport of a shard.
    pub(crate) fn pipes(&self, shard: usize) -> &Pipes {
        &self.shards[shard].1
    }
}

impl ManualShards<Memory> {
    /// Connects a client from an address, without its login.
    pub(crate) fn connect_from(&mut self, shard: usize, address: Option<IpAddr>) -> Client {
        let client = Memory::connect(self);
        self.accept_from(shard, address);
        self.turn(shard);
        client
    }

    /// Connects a client from an address, which logs in with a token; returns it with the answer.
    pub(crate) fn log_in(
        &mut self,
        shard: usize,
        token: &str,
        device: &str,
        address: Option<IpAddr>,
    ) -> (Client, ServerBody) {
        let mut client = self.connect_from(shard, address);
        client.say(ask::hello(hello(token, device)));
        for _ in 0..3 {
            self.turn(shard);
            self.answer_logins(shard, &[]);
        }
        let answer = client.reply(1);
        (client, answer)
    }

    /// Sends a request, and returns its answer once the shard has handled it; `None` if it has none here, as an admitted
    /// send.
    pub(crate) fn ask(&mut self, shard: usize, client: &mut Client, body: ClientBody) -> Option<ServerBody> {
        let id = client.say(body);
        let ping = client.say(ask::ping());
        (0..5).for_each(|_| self.turn(shard));
        client.reply(ping);
        answer_to(client, id)
    }
}

/// Takes the first answer to a request; `None` if none has come.
pub(crate) fn answer_to(client: &mut Client, id: u64) -> Option<ServerBody> {
    while client.pump(Instant::now()) {}
    let at = client.inbox.iter().position(|frame| frame.id == id)?;
    client.inbox.remove(at)?.body
}

impl Transport for Memory {
    type Arrival = ShardEnd;

    fn open(socket: config::SocketConfig) -> Self {
        let output_max = if socket.send_buffer_bytes > 0 { socket.send_buffer_bytes } else { OUTPUT_MAX };
        Self { shards: Vec::new(), backlog: VecDeque::new(), output_max }
    }

    fn add_shard(&mut self, context: Context) -> NewcomerQueue<ShardEnd> {
        let pipes = Pipes::new();
        let (shard, newcomers) = Shard::new(context, pipes.clone(), Waker::noop().clone());
        self.shards.push((shard, pipes));
        newcomers
    }

    fn accept(&mut self) -> (ShardEnd, SocketAddr) {
        let stream = self.backlog.pop_front().expect("a client has connected");
        (stream, ([127, 0, 0, 1], 1).into())
    }

    fn turn(&mut self, shard: usize, now: Now, events_max: usize) {
        let (shard, pipes) = &mut self.shards[shard];
        let (ready, is_complete) = pipes.ready(events_max);
        shard.turn(now, ready.into_iter(), || is_complete);
    }
}

impl Network for Memory {
    fn connect(shards: &mut ManualShards<Self>) -> Client {
        let end = Self::connect_raw(shards, b"TG/1\n");
        let framing = Framing::Proto;
        let end = Box::new(MemoryClient { end, buffer: Vec::new(), framing });
        Client::over(Link::Memory { end, framing }, Wire::Tcp)
    }

    fn writes(&self) -> u64 {
        self.shards.iter().map(|(_, pipes)| pipes.writes()).sum()
    }

    fn is_reset(client: &Client) -> bool {
        let Link::Memory { end, .. } = &client.link else { panic!("a connection in memory") };
        end.is_reset()
    }
}

/// Client side of a connection in memory, which cuts frames out of the bytes.
struct MemoryClient {
    end: ClientEnd,
    buffer: Vec<u8>,
    framing: Framing,
}

impl MemoryLink for MemoryClient {
    fn send(&mut self, bytes: &[u8]) {
        self.end.write(bytes);
    }

    fn receive(&mut self) -> Incoming {
        loop {
            if let Some(frame) = cut(&mut self.buffer, self.framing) {
                return Incoming::Frame(Box::new(frame));
            }
            match self.end.read() {
                Received::Bytes(bytes) => self.buffer.extend(bytes),
                Received::End => {
                    assert!(self.buffer.is_empty(), "the stream ends inside a frame: {:?}", self.buffer);
                    return Incoming::End;
                }
                Received::Reset => return Incoming::Broken("reset".to_owned()),
                Received::Nothing => return Incoming::Nothing,
            }
        }
    }

    fn half_close(&self) {
        self.end.shutdown_write();
    }

    fn is_reset(&self) -> bool {
        self.end.is_reset()
    }
}
