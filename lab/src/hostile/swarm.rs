//! The connections of an attack: one thread keeps all of them open and busy, and comes back after each close.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::setpriority_process;
use serde::Serialize;
use socket2::SockRef;
use tidegate_protocol::{
    Code,
    pb::{self, server_frame::Body as ServerBody},
};

use super::{
    attacks::{Attack, Pace, Place, Port, Target},
    frames,
    replay::{Recording, SCRATCH_BYTES, Step, connect},
};

/// Pause between the end of a connection and its next start.
const REOPEN_DELAY: Duration = Duration::from_millis(5);
/// Pauses of a swarm that has nothing to do, the shortest and the longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(5)];
/// Reads of one connection in one turn.
const READS_MAX: usize = 4;
/// Receive buffer of connections that do not read.
const DEAF_BUFFER_BYTES: usize = 16 * 1024;
/// Priority of threads that attack: the honest pair, whose CPU they may share, goes first.
const NICENESS: i32 = 15;

/// What an attack did, and what the node did about it.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct AttackLog {
    /// Bytes written.
    pub(super) bytes: u64,
    /// Bytes read.
    pub(super) bytes_back: u64,
    /// Chunks begun.
    pub(super) chunks: u64,
    /// Connections opened.
    pub(super) opened: u64,
    /// Connections that the node did not accept in time.
    pub(super) not_accepted: u64,
    /// Connections that ended without a `close`.
    pub(super) cut: u64,
    /// `welcome` frames.
    pub(super) logins: u64,
    /// `close` frames by name.
    pub(super) closes: BTreeMap<String, u64>,
    /// `error` frames by name.
    pub(super) refusals: BTreeMap<String, u64>,
}

/// A connection of the attack.
struct Bot {
    stream: Option<TcpStream>,
    place: Place,
    due: Instant,
    /// Bytes of the present chunk, and how many of them are written.
    out: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    is_ready: bool,
    is_answered: bool,
    /// Whether the node sent `close`.
    is_closed: bool,
    is_over: bool,
}

/// All connections of an attack.
struct Swarm<'a> {
    attack: &'a Attack,
    target: &'a Target,
    bots: Vec<Bot>,
    began: Instant,
    log: AttackLog,
    recording: Recording,
    scratch: Vec<u8>,
}

/// Attacks until `stop`. Returns what happened, and what was written when.
pub(super) fn attack(attack: &Attack, target: &Target, stop: &AtomicBool) -> Result<(AttackLog, Recording)> {
    give_way();
    let began = Instant::now();
    let bots = (0..attack.conns).map(|conn| Bot::new(conn, began)).collect();
    let (log, recording, scratch) = (AttackLog::default(), Recording::default(), vec![0; SCRATCH_BYTES]);
    let mut swarm = Swarm { attack, target, bots, began, log, recording, scratch };
    let mut pause = PAUSES[0];
    while !stop.load(Ordering::Relaxed) {
        let mut has_moved = false;
        for conn in 0..swarm.bots.len() {
            has_moved |= swarm.turn(conn)?;
        }
        if has_moved {
            pause = PAUSES[0];
        } else {
            thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
        }
    }
    Ok((swarm.log, swarm.recording))
}

/// Lowers the priority of this thread. A system that refuses that only makes the honest pair slower, on both sides.
pub(super) fn give_way() {
    setpriority_process(None, NICENESS).ok();
}

impl Bot {
    const fn new(conn: usize, due: Instant) -> Self {
        Self {
            stream: None,
            place: Place { conn, life: 0, nth: 0 },
            due,
            out: Vec::new(),
            written: 0,
            input: Vec::new(),
            is_ready: false,
            is_answered: false,
            is_closed: false,
            is_over: false,
        }
    }

    /// Notes a frame of the node.
    fn take(&mut self, frame: pb::ServerFrame, log: &mut AttackLog) {
        match frame.body {
            Some(ServerBody::Welcome(_)) => {
                log.logins += 1;
                (self.is_ready, self.is_answered) = (true, true);
            }
            Some(ServerBody::Close(close)) => {
                *log.closes.entry(name(close.code, close.name)).or_default() += 1;
                (self.is_closed, self.is_over) = (true, true);
            }
            Some(ServerBody::Error(error)) => {
                *log.refusals.entry(name(error.code, error.name)).or_default() += 1;
                self.is_answered = true;
            }
            Some(ServerBody::Page(_) | ServerBody::SyncEnd(_) | ServerBody::Pong(_)) => {
                self.is_answered = true
            }
            _ => {}
        }
    }
}

/// Returns the name of a code; a node that does not send it is of another version.
fn name(code: u32, sent: String) -> String {
    let known = u16::try_from(code).ok().and_then(Code::from_number).map(Code::name);
    if sent.is_empty() { known.map_or_else(|| code.to_string(), str::to_owned) } else { sent }
}

impl Swarm<'_> {
    /// Runs one turn of a connection. Returns whether it did anything.
    fn turn(&mut self, conn: usize) -> Result<bool> {
        if self.bots[conn].stream.is_none() {
            return self.open(conn);
        }
        let has_read = self.read(conn);
        let has_ended =
            self.bots[conn].is_over || (self.attack.pace == Pace::Churn && self.bots[conn].is_answered);
        if has_ended {
            self.close(conn);
            return Ok(true);
        }
        Ok(self.write(conn) || has_read)
    }

    fn open(&mut self, conn: usize) -> Result<bool> {
        let bot = &mut self.bots[conn];
        if Instant::now() < bot.due {
            return Ok(false);
        }
        let address = if self.attack.port == Port::Admin { &self.target.admin } else { &self.target.clients };
        let Ok(stream) = connect(address) else {
            self.log.not_accepted += 1;
            bot.due = Instant::now() + REOPEN_DELAY;
            return Ok(true);
        };
        if (self.attack.is_deaf)(conn) {
            SockRef::from(&stream).set_recv_buffer_size(DEAF_BUFFER_BYTES)?;
        }
        bot.stream = Some(stream);
        bot.out = (self.attack.opening)(self.target, bot.place);
        bot.is_ready = self.attack.port != Port::Users;
        (bot.written, bot.is_answered) = (0, false);
        bot.due = Instant::now();
        self.log.opened += 1;
        self.recording.add(self.began.elapsed(), conn, Step::Open);
        self.write(conn);
        Ok(true)
    }

    fn close(&mut self, conn: usize) {
        let bot = &mut self.bots[conn];
        self.log.cut += u64::from(bot.is_over && !bot.is_closed);
        let life = bot.place.life + 1;
        *bot = Bot::new(conn, Instant::now() + REOPEN_DELAY);
        bot.place.life = life;
        self.recording.add(self.began.elapsed(), conn, Step::Close);
    }

    /// Reads what has come, unless the connection is deaf. Returns whether anything came.
    fn read(&mut self, conn: usize) -> bool {
        let bot = &mut self.bots[conn];
        if bot.is_ready && (self.attack.is_deaf)(conn) {
            return false;
        }
        let mut has_read = false;
        for _ in 0..READS_MAX {
            let Some(stream) = bot.stream.as_mut() else { break };
            match stream.read(&mut self.scratch) {
                Ok(0) => bot.is_over = true,
                Ok(count) => {
                    self.log.bytes_back += count as u64;
                    has_read = true;
                    if self.attack.port != Port::Admin {
                        bot.input.extend_from_slice(&self.scratch[..count]);
                    }
                    if count == self.scratch.len() {
                        continue;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => bot.is_over = true,
            }
            break;
        }
        let mut input = std::mem::take(&mut bot.input);
        let log = &mut self.log;
        let were_frames = frames::cut(&mut input, |frame| bot.take(frame, log)).is_ok();
        bot.input = input;
        bot.is_over |= !were_frames;
        has_read
    }

    /// Writes what the socket takes of the present chunk, or begins the next one. Returns whether anything was written.
    fn write(&mut self, conn: usize) -> bool {
        let bot = &mut self.bots[conn];
        if bot.written == bot.out.len() {
            let is_due = match self.attack.pace {
                Pace::FlatOut => true,
                Pace::Answered => bot.is_answered,
                Pace::Churn => false,
                Pace::Every(_) => Instant::now() >= bot.due,
            };
            if !(bot.is_ready && is_due) {
                return false;
            }
            bot.out = (self.attack.chunk)(bot.place);
            bot.written = 0;
            if bot.out.is_empty() {
                return false;
            }
            bot.place.nth += 1;
            bot.is_answered = false;
            self.log.chunks += 1;
            if let Pace::Every(interval) = self.attack.pace {
                bot.due += interval;
            }
        }
        let Some(stream) = bot.stream.as_mut() else { return false };
        match stream.write(&bot.out[bot.written..]) {
            Ok(count) => {
                bot.written += count;
                self.log.bytes += count as u64;
                self.recording.add(self.began.elapsed(), conn, Step::Write(count as u32));
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            // What the node sent before it closed is read in the next turn.
            Err(_) => {
                bot.is_over = true;
                false
            }
        }
    }
}
