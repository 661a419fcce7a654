//! WebSocket echo server on the broker's own upgrade and framing, for the Autobahn cases; one thread per connection.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Parser;
use tidegate::net::upgrade::{Policy, UpgradeProgress, upgrade};
use tidegate_protocol::ws::{
    Decoder, Kind, Opcode, WsEvent, WsLimits, WsStep, encode_close, encode_close_reply, encode_server,
};

/// Limits that the cases of group 9 need: they send 16 MiB at once, and 4 MiB in 64-byte fragments.
const LIMITS: WsLimits = WsLimits { message_bytes_max: 32 << 20, fragments_max: 1 << 20 };

const READ_BYTES: usize = 64 << 10;

#[derive(Parser)]
struct Args {
    /// Port on loopback to listen on; 0 selects a free one, which the first line of the output names
    #[arg(long, default_value_t = 0)]
    port: u16,
}

fn main() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, Args::parse().port))?;
    println!("{}", listener.local_addr()?.port());
    for socket in listener.incoming() {
        let socket = socket?;
        thread::spawn(move || {
            if let Err(error) = serve(socket) {
                eprintln!("{error:#}");
            }
        });
    }
    Ok(())
}

/// Buffer of received bytes that are not consumed yet.
struct Input {
    bytes: Vec<u8>,
    len: usize,
}

impl Input {
    /// Reads once into a buffer of at least `whole` bytes; returns false at the end of the stream.
    fn read(&mut self, socket: &mut TcpStream, whole: usize) -> Result<bool> {
        self.bytes.resize(whole.max(self.len + READ_BYTES).max(self.bytes.len()), 0);
        let n = socket.read(&mut self.bytes[self.len..])?;
        self.len += n;
        Ok(n > 0)
    }

    fn consume(&mut self, n: usize) {
        self.bytes.copy_within(n..self.len, 0);
        self.len -= n;
    }
}

fn serve(mut socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut input = Input { bytes: Vec::new(), len: 0 };
    if !handshake(&mut socket, &mut input)? {
        return Ok(());
    }
    let mut decoder = Decoder::server();
    let mut out = Vec::new();
    loop {
        let mut taken = 0;
        let need = loop {
            match decoder.next(&mut input.bytes[taken..input.len], &LIMITS) {
                Ok(WsStep::Need { at_least }) => break Some(at_least),
                Ok(WsStep::Frame { consumed, event }) => {
                    taken += consumed;
                    if !answer(event, &mut out) {
                        break None;
                    }
                }
                Err(violation) => {
                    encode_close(violation.close_code(), &violation.to_string(), &mut out);
                    break None;
                }
            }
        };
        input.consume(taken);
        socket.write_all(&out)?;
        out.clear();
        match need {
            Some(whole) if input.read(&mut socket, whole)? => {}
            Some(_) => return Ok(()),
            None => return linger(&mut socket),
        }
    }
}

fn handshake(socket: &mut TcpStream, input: &mut Input) -> Result<bool> {
    let policy = Policy { origins: vec!["*".to_owned()], ..Policy::default() };
    loop {
        match upgrade(&input.bytes[..input.len], &policy) {
            Ok(UpgradeProgress::NeedMore) => {
                if !input.read(socket, 0)? {
                    return Ok(false);
                }
            }
            Ok(UpgradeProgress::Done { consumed, response, .. }) => {
                input.consume(consumed);
                socket.write_all(&response)?;
                return Ok(true);
            }
            // This server assigns no nodes.
            Ok(UpgradeProgress::Assign(_)) => return Ok(false),
            Err(refusal) => {
                socket.write_all(&refusal.response)?;
                linger(socket)?;
                return Err(anyhow!("{refusal:?}"));
            }
        }
    }
}

/// Queues the echo of a frame; returns false after a close.
fn answer(event: WsEvent<'_>, out: &mut Vec<u8>) -> bool {
    match event {
        WsEvent::Message { kind: Kind::Text, payload } => encode_server(Opcode::Text, &payload, out),
        WsEvent::Message { kind: Kind::Binary, payload } => encode_server(Opcode::Binary, &payload, out),
        WsEvent::Ping(payload) => encode_server(Opcode::Pong, payload, out),
        WsEvent::Part | WsEvent::Pong(_) => {}
        WsEvent::Close { code, .. } => {
            encode_close_reply(code, out);
            return false;
        }
    }
    true
}

/// Ends the stream, then discards input for a while: a close with unread input would send a reset and destroy what
/// was written.
fn linger(socket: &mut TcpStream) -> Result<()> {
    socket.shutdown(Shutdown::Write)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut discarded = [0; 4096];
    while matches!(socket.read(&mut discarded), Ok(1..)) {}
    Ok(())
}
