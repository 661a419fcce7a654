//! Clients of a rollout: they use JSON lines, reconnect whenever a connection is closed, and count all messages.

use std::{
    collections::BTreeMap,
    fmt,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::TcpStream,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::{Endpoints, plan::Place};
use crate::shell;

/// Interval between two messages of one client.
const SEND_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Limit on the retries of one operation: far longer than a node takes to drain.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// Pairs of clients, one of which writes and one of which receives.
pub(crate) struct Talk {
    over: Arc<AtomicBool>,
    /// Whether the clients must end without a verdict.
    alone: Arc<AtomicBool>,
    pairs: Vec<(Ending<Sent>, Ending<Got>)>,
}

/// Thread of a client, which returns its messages at the end.
type Ending<T> = JoinHandle<anyhow::Result<T>>;

/// Acks of a writer.
struct Sent {
    /// Number of each message, by the seq of its ack.
    acked: BTreeMap<u64, u64>,
    /// Longest wait for an ack, and the time from the first message to its start.
    longest: (Duration, Duration),
    logins: usize,
}

/// Messages of a receiver.
struct Got {
    /// Number of each message, by seq.
    received: BTreeMap<u64, u64>,
    logins: usize,
}

impl Talk {
    /// Starts the clients, which log in where a Service would send them.
    pub(crate) fn begin(pairs: usize, endpoints: &Endpoints, place: &Place) -> anyhow::Result<Self> {
        let [over, alone] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut talk = Self { over: Arc::clone(&over), alone: Arc::clone(&alone), pairs: Vec::new() };
        // New users in each run, so that conversations begin with seq 1.
        let run = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_millis();
        for nth in 0..pairs {
            let person = |role: &str| -> anyhow::Result<Person> {
                let user = format!("{role}{nth}-{run}");
                let mut token = Command::new(&place.program);
                token.args(["token", &user, "--data"]).arg(&place.keys);
                let token = shell::output(&mut token)?.0.trim().to_owned();
                let (endpoints, alone) = (Arc::clone(endpoints), Arc::clone(&alone));
                Ok(Person { user, token, endpoints, alone, first: nth, logins: 0 })
            };
            // The conversation names the users in order.
            let (writer, receiver) = (person("w")?, person("r")?);
            let last = Arc::new(AtomicUsize::new(usize::MAX));
            let conversation = format!("d:{}:{}", receiver.user, writer.user);
            let (to, ended, over) = (receiver.user.clone(), Arc::clone(&last), Arc::clone(&over));
            let write = thread::spawn(move || {
                let sent = write(writer, &to, &over);
                let count =
                    sent.as_ref().map_or(0, |sent| sent.acked.last_key_value().map_or(0, |(seq, _)| *seq));
                ended.store(usize::try_from(count).unwrap_or(0), Ordering::SeqCst);
                sent
            });
            talk.pairs.push((write, thread::spawn(move || receive(receiver, &conversation, &last))));
        }
        Ok(talk)
    }

    /// Ends the clients without a verdict, after another failure.
    pub(crate) fn abandon(self) {
        self.over.store(true, Ordering::SeqCst);
        self.alone.store(true, Ordering::SeqCst);
    }

    /// Ends the clients, and returns their figures.
    ///
    /// # Errors
    /// A message is missing, was received at another seq than that of its ack, or was never acked; the seqs are not in the
    /// writer's order.
    pub(crate) fn end(self) -> anyhow::Result<String> {
        self.over.store(true, Ordering::SeqCst);
        let (mut messages, mut logins, mut longest) = (0, 0, (Duration::ZERO, Duration::ZERO));
        for (write, receive) in self.pairs {
            let sent = write.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?;
            let got = receive.join().map_err(|_| anyhow::anyhow!("a receiver panicked"))?;
            let (sent, got) = (sent?, got?);
            judge(&sent.acked, &got.received)?;
            messages += sent.acked.len();
            logins += sent.logins + got.logins;
            longest = longest.max(sent.longest);
        }
        if messages == 0 {
            bail!("no message was acked");
        }
        Ok(format!(
            "{messages} messages acked, each received at the seq of its ack, in the writer's order; {logins} logins; \
             longest wait for an ack {:.1} s, from {:.1} s on",
            longest.0.as_secs_f64(),
            longest.1.as_secs_f64()
        ))
    }
}

/// Checks that the messages received are exactly those acked, at the same seqs, in the writer's order.
fn judge(acked: &BTreeMap<u64, u64>, received: &BTreeMap<u64, u64>) -> anyhow::Result<()> {
    for (seq, number) in acked {
        match received.get(seq) {
            Some(got) if got == number => {}
            Some(got) => bail!("seq {seq} was acked for message {number} and received as {got}"),
            None => bail!("message {number} was acked with seq {seq} and never received"),
        }
    }
    if let Some((seq, number)) = received.iter().find(|(seq, _)| !acked.contains_key(seq)) {
        bail!("message {number} was received with seq {seq}, which was never acked");
    }
    if !acked.values().zip(1..).all(|(number, nth)| *number == nth) {
        bail!("the seqs are not in the order of the messages: {acked:?}");
    }
    Ok(())
}

/// Sends 1, 2, 3 and so on, each until it is acked.
fn write(mut me: Person, to: &str, over: &AtomicBool) -> anyhow::Result<Sent> {
    let mut conn = me.login()?;
    let mut sent = Sent { acked: BTreeMap::new(), longest: Default::default(), logins: 0 };
    let first = Instant::now();
    for number in 1.. {
        if over.load(Ordering::SeqCst) {
            break;
        }
        let began = Instant::now();
        let mut attempt = 0;
        let seq = loop {
            if began.elapsed() > RETRY_TIMEOUT {
                bail!("{}: message {number} was not acked in {RETRY_TIMEOUT:?}", me.user);
            }
            match conn.send(number, attempt, to) {
                Ok(Some(seq)) => break seq,
                Ok(None) => thread::sleep(RETRY_DELAY),
                Err(_) => conn = me.login()?,
            }
            attempt += 1;
        };
        if sent.acked.insert(seq, number).is_some() {
            bail!("{}: seq {seq} was given twice", me.user);
        }
        sent.longest = sent.longest.max((began.elapsed(), began - first));
        thread::sleep(SEND_INTERVAL);
    }
    sent.logins = me.logins;
    Ok(sent)
}

/// Receives until it has every message up to `last`, which is set when the writer has ended.
fn receive(mut me: Person, conversation: &str, last: &AtomicUsize) -> anyhow::Result<Got> {
    let mut conn = me.login()?;
    let mut received: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut waited, mut pulled) = (None::<Instant>, Instant::now());
    loop {
        let whole = received.keys().zip(1..).take_while(|(seq, nth)| **seq == *nth).count();
        let wanted = last.load(Ordering::SeqCst);
        if wanted <= whole {
            return Ok(Got { received, logins: me.logins });
        }
        if wanted != usize::MAX && waited.get_or_insert_with(Instant::now).elapsed() > RETRY_TIMEOUT {
            bail!("{}: {whole} of {wanted} messages came", me.user);
        }
        // Pull what is missing, at a hole or at the end.
        let behind = wanted != usize::MAX || received.len() > whole;
        let mut step = || -> anyhow::Result<()> {
            if behind && pulled.elapsed() > READ_TIMEOUT {
                pulled = Instant::now();
                conn.pull(conversation, whole as u64)?;
            }
            let Some(frame) = conn.next()? else { return Ok(()) };
            let pushes = frame["page"]["messages"].as_array().into_iter().flatten().chain(frame.get("push"));
            for push in pushes {
                let (seq, number) = numbers(push)?;
                if let Some(before) = received.insert(seq, number)
                    && before != number
                {
                    bail!("seq {seq} was received as {before} and as {number}");
                }
                conn.ack(conversation, seq)?;
            }
            Ok(())
        };
        if let Err(error) = step() {
            if !error.is::<Lost>() {
                return Err(error);
            }
            conn = me.login()?;
            // The messages sent while the client was disconnected.
            conn.pull(conversation, whole as u64).ok();
        }
    }
}

fn numbers(push: &Value) -> anyhow::Result<(u64, u64)> {
    let number = push["msgId"].as_str().and_then(|id| id.strip_prefix('m')?.parse().ok());
    Ok((push["seq"].as_u64().context("a push without seq")?, number.context("a push without msgId")?))
}

/// Client that reconnects.
struct Person {
    user: String,
    token: String,
    endpoints: Endpoints,
    alone: Arc<AtomicBool>,
    first: usize,
    logins: usize,
}

/// Error of a closed connection; the client may reconnect to any node.
#[derive(Debug)]
struct Lost(String);

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection is over: {}", self.0)
    }
}

impl std::error::Error for Lost {}

struct Conn {
    reader: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Person {
    /// Connects to a node that the Service names.
    fn login(&mut self) -> anyhow::Result<Conn> {
        let began = Instant::now();
        while began.elapsed() < RETRY_TIMEOUT && !self.alone.load(Ordering::SeqCst) {
            let ports = self.endpoints.lock().clone();
            if let Some(port) = ports.get((self.first + self.logins) % ports.len().max(1)) {
                self.logins += 1;
                if let Ok(conn) = Conn::open(*port, &self.token) {
                    return Ok(conn);
                }
            }
            thread::sleep(RETRY_DELAY);
        }
        bail!("{} could not log in for {RETRY_TIMEOUT:?}", self.user)
    }
}

impl Conn {
    fn open(port: u16, token: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        let mut conn = Self { reader: BufReader::new(stream), line: Vec::new() };
        conn.say(&json!({"id": 1, "hello": {"version": 1, "token": token, "device": "d"}}))?;
        let began = Instant::now();
        while began.elapsed() < RETRY_TIMEOUT {
            if let Some(frame) = conn.next()?
                && frame["welcome"].is_object()
            {
                return Ok(conn);
            }
        }
        bail!(Lost("no welcome".to_owned()))
    }

    fn say(&mut self, frame: &Value) -> anyhow::Result<()> {
        let line = format!("{frame}\n");
        self.reader.get_mut().write_all(line.as_bytes()).map_err(|error| Lost(error.to_string()))?;
        Ok(())
    }

    /// Returns the next frame; `None` if none arrives in a short time.
    fn next(&mut self) -> anyhow::Result<Option<Value>> {
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(0) => bail!(Lost("closed".to_owned())),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) => bail!(Lost(error.to_string())),
        }
        if !self.line.ends_with(b"\n") {
            bail!(Lost("closed within a frame".to_owned()));
        }
        if self.line.trim_ascii().is_empty() {
            self.line.clear();
            return Ok(None);
        }
        let frame: Value = serde_json::from_slice(&self.line).context("a frame is no JSON")?;
        self.line.clear();
        if frame["close"].is_object() {
            bail!(Lost(frame["close"].to_string()));
        }
        Ok(Some(frame))
    }

    /// Returns the seq of the message; `None` if it must be retried.
    fn send(&mut self, number: u64, attempt: u32, to: &str) -> anyhow::Result<Option<u64>> {
        let id = number * 1_000 + u64::from(attempt);
        let content = json!({"text": number.to_string()});
        let msg_id = format!("m{number}");
        let send = json!({"toUser": to, "msgId": msg_id, "attempt": attempt, "content": content});
        self.say(&json!({"id": id, "send": send}))?;
        let began = Instant::now();
        while began.elapsed() < RETRY_TIMEOUT {
            match self.next()? {
                Some(frame) if frame["id"] == id => return Ok(frame["sendAck"]["seq"].as_u64()),
                _ => {}
            }
        }
        Ok(None)
    }

    fn pull(&mut self, conversation: &str, from: u64) -> anyhow::Result<()> {
        let direction = "DIRECTION_FORWARD";
        let pull =
            json!({"conversation": conversation, "cursor": from, "limit": 200, "direction": direction});
        self.say(&json!({"id": 2, "pull": pull}))
    }

    fn ack(&mut self, conversation: &str, seq: u64) -> anyhow::Result<()> {
        self.say(&json!({"ack": {"conversation": conversation, "seq": seq}}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_doubled_or_out_of_order_is_found() {
        let of = |pairs: &[(u64, u64)]| pairs.iter().copied().collect::<BTreeMap<u64, u64>>();
        let acked = of(&[(1, 1), (2, 2), (3, 3)]);
        assert!(judge(&acked, &acked).is_ok());
        for (received, what) in [
            (of(&[(1, 1), (3, 3)]), "never received"),
            (of(&[(1, 1), (2, 3), (3, 2)]), "received as 3"),
            (of(&[(1, 1), (2, 2), (3, 3), (4, 3)]), "never acked"),
        ] {
            let message = judge(&acked, &received).expect_err("it is wrong").to_string();
            assert!(message.contains(what), "{message}");
        }
        let turned = of(&[(1, 2), (2, 1)]);
        assert!(judge(&turned, &turned).is_err(), "another order than the writer's");
    }
}
