//! One shared connection to Redis: every call has a deadline, and none waits for a server that is known to be away.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared, join_all},
};
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RetryMethod, ServerErrorKind, Value, from_redis_value,
};
use tidegate_protocol::Time;
use tokio::time::{timeout, timeout_at};

use super::{
    ConnectError, Script,
    breaker::{Breaker, Pass},
    connect::{Conn, Source},
};
use crate::config;

/// Calls that go in one pipeline; more are sent one pipeline after the other, each with a deadline of its own.
const PIPELINE_MAX: usize = 500;

/// How long a connection may take to be made, beside the calls that want it: of several sentinels the first may be away, and
/// the driver gives each a second, which is more than a call has.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// A command or a run of a script.
#[derive(Debug)]
pub(crate) struct Call {
    script: Option<&'static Script>,
    keys: Vec<String>,
    args: Vec<String>,
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// Nothing happened.
    Away(String),
    /// Nothing happened: the server was late just now, which is all that is known against it.
    Slow(String),
    /// It may have happened.
    Unknown(String),
    /// It may have happened, or happen yet: nothing came in time over a connection that stands.
    Late(String),
}

/// A connection to Redis, made when it is first needed and again when it broke. Its tasks live on the runtime of
/// whoever calls first.
pub(crate) struct Client {
    source: Arc<Source>,
    timeout: Duration,
    prefix: String,
    begun: Instant,
    breaker: Mutex<Breaker>,
    conn: Mutex<Option<Connecting>>,
    servers: Arc<Servers>,
}

/// Which server answers.
#[derive(Default)]
struct Servers {
    /// What the last connection was to, if that was to be learnt; none before the first.
    last: Mutex<Option<Option<String>>>,
    changes: AtomicU64,
}

/// A connection that is being made, or was, or why there is none.
type Connecting = Shared<BoxFuture<'static, Result<Conn, String>>>;

impl Call {
    /// A command: its name, then keys and arguments.
    pub(crate) fn command<const N: usize>(words: [&str; N]) -> Self {
        Self { script: None, keys: Vec::new(), args: words.map(str::to_owned).into() }
    }

    /// A script over keys of one slot.
    pub(crate) fn script<const N: usize>(script: &'static Script, keys: [String; N]) -> Self {
        Self { script: Some(script), keys: keys.into(), args: Vec::new() }
    }

    pub(crate) fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }

    fn build(&self, by_text: bool) -> Cmd {
        let mut cmd = match self.script {
            None => Cmd::new(),
            Some(script) => {
                let mut cmd = if by_text { script.by_text() } else { script.by_hash() };
                cmd.arg(self.keys.len()).arg(&self.keys);
                cmd
            }
        };
        cmd.arg(&self.args);
        cmd
    }
}

impl Client {
    pub(crate) fn new(config: &config::Redis) -> Result<Self, ConnectError> {
        Ok(Self {
            source: Arc::new(Source::new(config)?),
            timeout: config.timeout(),
            prefix: config.prefix.clone(),
            begun: Instant::now(),
            breaker: Mutex::default(),
            conn: Mutex::default(),
            servers: Arc::default(),
        })
    }

    /// A key; what is in braces decides its slot.
    pub(crate) fn key(&self, kind: &str, name: &str) -> String {
        format!("{}:{kind}:{name}", self.prefix)
    }

    /// How often another server answered than before, or may have: what was acked by the old one may be missing there.
    pub(crate) fn changes(&self) -> u64 {
        self.servers.changes.load(Ordering::SeqCst)
    }

    /// Makes one call and reads its answer.
    pub(crate) async fn one<T: FromRedisValue>(&self, call: Call) -> Result<T, CallError> {
        let mut answers = self.all(vec![call]).await?;
        answers.pop().ok_or_else(|| CallError::Unknown("no answer".to_owned()))
    }

    /// Makes the calls as one pipeline (in a cluster: each to its place at the same time); one answer each, in order.
    /// Nothing is atomic across them. The first that failed fails all; then others may have happened.
    pub(crate) async fn all<T: FromRedisValue>(&self, calls: Vec<Call>) -> Result<Vec<T>, CallError> {
        let mut answers = Vec::with_capacity(calls.len());
        for part in calls.chunks(PIPELINE_MAX) {
            let some_happened = !answers.is_empty();
            for value in self.guarded(part).await.map_err(|error| error.after(some_happened))? {
                let answer = from_redis_value(value);
                answers.push(answer.map_err(|error| CallError::Unknown(format!("not understood: {error}")))?);
            }
        }
        Ok(answers)
    }

    /// A pipeline behind the breaker, within the deadline.
    async fn guarded(&self, calls: &[Call]) -> Result<Vec<Value>, CallError> {
        let mut permit = Permit::new(self)?;
        let deadline = tokio::time::Instant::now() + self.timeout;
        let outcome = match timeout_at(deadline, self.connected()).await {
            Ok(Ok(conn)) => {
                let sent = timeout_at(deadline, Self::attempt(conn, calls)).await;
                sent.unwrap_or_else(|_| Err(Failed::late(self.timeout, CallError::Late)))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Failed::late(self.timeout, CallError::Away)),
        };
        match outcome {
            Ok(values) => {
                permit.answered();
                Ok(values)
            }
            Err(failed) => {
                if !failed.serves {
                    let opened = permit.failed(matches!(failed.error, CallError::Late(_)));
                    if opened || failed.reconnect {
                        self.disconnect();
                    }
                } else {
                    permit.answered();
                }
                Err(failed.error)
            }
        }
    }

    async fn attempt(mut conn: Conn, calls: &[Call]) -> Result<Vec<Value>, Failed> {
        let mut values = conn.send(calls.iter().map(|call| call.build(false)).collect()).await?;
        let missing: Vec<usize> = (0..values.len()).filter(|&at| is_no_script(&values[at])).collect();
        if !missing.is_empty() {
            // S33: by its text, which loads it wherever the call went.
            let again = missing.iter().map(|&at| calls[at].build(true)).collect();
            for (at, value) in missing.into_iter().zip(conn.send(again).await?) {
                values[at] = value;
            }
        }
        let some_happened = values.iter().any(|value| !matches!(value, Value::ServerError(_)));
        for value in &values {
            if let Value::ServerError(error) = value {
                return Err(Failed::of(&RedisError::from(error.clone()), some_happened));
            }
        }
        Ok(values)
    }

    async fn connected(&self) -> Result<Conn, Failed> {
        let connecting = self.connecting();
        connecting.await.map_err(Failed::connecting)
    }

    /// The connection, if there is one that was not given up; else one is made, whether the call waits for it or not.
    fn connecting(&self) -> Connecting {
        let mut conn = self.conn();
        if let Some(conn) = conn.as_ref().filter(|conn| !matches!(conn.peek(), Some(Err(_)))) {
            return conn.clone();
        }
        let (source, within) = (Arc::clone(&self.source), self.timeout);
        let servers = Arc::clone(&self.servers);
        let made = async move {
            let made = timeout(CONNECT_MAX, source.connect(within)).await;
            let made = made.map_err(|_| format!("no connection within {CONNECT_MAX:?}"))?;
            let mut made = made.map_err(|error| error.to_string())?;
            servers.connected(made.server().await);
            Ok(made)
        };
        let made = conn.insert(made.boxed().shared());
        // Whoever waits for it may not stay until it is made.
        tokio::spawn(made.clone());
        made.clone()
    }

    /// Forgets the connection. If one is being made right now, it is a fresh one anyway.
    fn disconnect(&self) {
        let mut conn = self.conn();
        if conn.as_ref().is_some_and(|conn| conn.peek().is_some()) {
            *conn = None;
        }
    }

    fn conn(&self) -> MutexGuard<'_, Option<Connecting>> {
        self.conn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Time {
        Time::from_millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Servers {
    /// A server that can't be told from another one counts as another.
    fn connected(&self, to: Option<String>) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_some_and(|last| *last != to || to.is_none()) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        *last = Some(to);
    }
}

impl Conn {
    /// One answer for each command, errors of the server included.
    async fn send(&mut self, cmds: Vec<Cmd>) -> Result<Vec<Value>, Failed> {
        let sent = match self {
            Self::One(conn) => {
                let mut pipeline = redis::Pipeline::with_capacity(cmds.len());
                for cmd in cmds {
                    pipeline.add_command(cmd);
                }
                let count = pipeline.len();
                conn.send_packed_commands(&pipeline, 0, count).await
            }
            Self::Cluster(conn) => {
                // A pipeline may not cross slots there; the driver sends what waits together by itself.
                let routed = cmds.into_iter().map(|cmd| {
                    let mut conn = conn.clone();
                    async move { redis::aio::ConnectionLike::req_packed_command(&mut conn, &cmd).await }
                });
                join_all(routed).await.into_iter().map(as_value).collect()
            }
        };
        sent.map_err(|error| Failed::of(&error, true))
    }
}

/// A cluster connection tells an error of the server as its own; a pipeline tells it as a value.
fn as_value(answer: Result<Value, RedisError>) -> Result<Value, RedisError> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            redis::parse_redis_value(b"-NOSCRIPT\r\n")
        }
        other => other,
    }
}

fn is_no_script(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}

impl CallError {
    fn after(self, some_happened: bool) -> Self {
        match self {
            Self::Away(why) | Self::Slow(why) if some_happened => Self::Unknown(why),
            error => error,
        }
    }
}

/// Errors that come before anything is done, from a server that can do nothing now.
const CANT_SERVE: [&str; 7] =
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "TRYAGAIN", "MISCONF", "NOREPLICAS"];
/// Errors that come before anything is done, about this call.
const REFUSES: [&str; 9] =
    ["NOSCRIPT", "OOM", "BUSY", "MOVED", "ASK", "CROSSSLOT", "NOAUTH", "NOPERM", "WRONGPASS"];

/// A failure and what it says of the connection and the server.
struct Failed {
    error: CallError,
    reconnect: bool,
    /// The server works and refused this call alone.
    serves: bool,
}

impl Failed {
    fn late(after: Duration, error: fn(String) -> CallError) -> Self {
        Self { error: error(format!("no answer within {after:?}")), reconnect: false, serves: false }
    }

    fn connecting(why: String) -> Self {
        Self { error: CallError::Away(why), reconnect: true, serves: false }
    }

    fn of(error: &RedisError, some_happened: bool) -> Self {
        let why = error.to_string();
        // Redis 6.2 wraps what a script was told into an error of the script.
        let read_only = error.code() == Some("READONLY") || why.contains("READONLY");
        let code = if read_only { "READONLY" } else { error.code().unwrap_or_default() };
        let cant_serve = CANT_SERVE.contains(&code);
        let refused = cant_serve || REFUSES.contains(&code);
        let broken = matches!(
            error.retry_method(),
            RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
        );
        let from_server = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        let error = match () {
            () if refused && !some_happened => CallError::Away(why),
            // The driver has a deadline of its own, which may come a moment before ours.
            () if error.is_timeout() => CallError::Late(why),
            () => CallError::Unknown(why),
        };
        Self { error, reconnect: read_only || broken, serves: from_server && !cant_serve }
    }
}

/// A pass of the breaker that is given back whatever becomes of the call.
struct Permit<'a> {
    client: &'a Client,
    pass: Option<Pass>,
}

impl<'a> Permit<'a> {
    fn new(client: &'a Client) -> Result<Self, CallError> {
        let mut breaker = client.breaker();
        match breaker.pass(client.now()) {
            Pass::Refused if breaker.is_only_late() => {
                Err(CallError::Slow("it was late just now".to_owned()))
            }
            Pass::Refused => Err(CallError::Away("it did not answer just now".to_owned())),
            pass => Ok(Self { client, pass: Some(pass) }),
        }
    }

    fn answered(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.client.breaker().answered(pass);
        }
    }

    fn failed(&mut self, late: bool) -> bool {
        self.pass.take().is_some_and(|pass| self.client.breaker().failed(pass, late, self.client.now()))
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.client.breaker().dropped(pass);
        }
    }
}
