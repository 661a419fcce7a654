//! Shared connection to Redis. Every call has a deadline, and none waits for a server that is known to be unavailable.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared, join_all},
};
use parking_lot::{Mutex, MutexGuard};
use redis::{
    Cmd, ErrorKind, FromRedisValue, RedisError, RetryMethod, ServerErrorKind, Value, from_redis_value,
};
use tokio::time::{timeout, timeout_at};

use super::{
    ConnectError, RedisKey, Script,
    connect::{Conn, Source},
};
use crate::{
    breaker::{GuardedCall, GuardedService, ServiceBreaker},
    config, supervised,
};

/// Limit on the calls of one pipeline. More are sent as consecutive pipelines, each with its own deadline.
const PIPELINE_CALLS_MAX: usize = 500;

/// Timeout of a connection attempt, in the background of the calls that wait for it. It exceeds a call's deadline,
/// since the first of several sentinels may be unavailable, and the driver waits a second for each.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Redis command or script call.
#[derive(Debug)]
pub(crate) struct Call {
    script: Option<&'static Script>,
    keys: Vec<String>,
    args: Vec<String>,
}

/// Failed or unconfirmed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallError {
    /// Call without effect: the server is unavailable.
    Unavailable(String),
    /// Call without effect: refused because recent replies were late. No other failure is known.
    Slow(String),
    /// Call in doubt.
    Unknown(String),
    /// Call in doubt that may still take effect: no reply in time, over an intact connection.
    Late(String),
}

/// Client of Redis. Connects with the first call, and again after a failure; its tasks run on the first caller's
/// runtime.
pub(crate) struct RedisClient {
    source: Arc<Source>,
    timeout: Duration,
    prefix: String,
    breaker: Arc<ServiceBreaker>,
    conn: Mutex<Option<SharedConn>>,
    servers: Arc<ServerTracker>,
}

/// Tracker of the server that the client is connected to.
#[derive(Default)]
struct ServerTracker {
    /// Server of the last connection, with `Some(None)` if it could not be identified; `None` before the first.
    last: Mutex<Option<Option<String>>>,
    changes: AtomicU64,
}

/// Connection attempt and its result, shared by the calls that wait for it.
type SharedConn = Shared<BoxFuture<'static, Result<Conn, String>>>;

impl Call {
    /// Creates a command from its name, keys and arguments.
    pub(crate) fn command<const N: usize>(words: [&str; N]) -> Self {
        Self { script: None, keys: Vec::new(), args: words.map(str::to_owned).into() }
    }

    /// Creates a call of a script, with keys of one slot.
    pub(crate) fn script(script: &'static Script, keys: impl Into<Vec<String>>) -> Self {
        Self { script: Some(script), keys: keys.into(), args: Vec::new() }
    }

    pub(crate) fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }

    /// Returns the number of bytes that the call sends to a server that has its script.
    #[cfg(test)]
    pub(crate) fn sent_bytes(&self) -> usize {
        self.build(false).get_packed_command().len()
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

impl RedisClient {
    pub(crate) fn new(config: &config::RedisConfig) -> Result<Self, ConnectError> {
        Ok(Self {
            source: Arc::new(Source::new(config)?),
            timeout: config.timeout(),
            prefix: config.prefix.clone(),
            breaker: ServiceBreaker::new(GuardedService::Redis, config.timeout()),
            conn: Mutex::default(),
            servers: Arc::default(),
        })
    }

    /// Sets the service as which the breaker reports, for a client in addition to that of the node.
    pub(crate) fn reporting_as(self, service: GuardedService) -> Self {
        Self { breaker: ServiceBreaker::new(service, self.timeout), ..self }
    }

    /// Returns a prefixed key. The part of `name` in braces selects the slot.
    pub(crate) fn key(&self, kind: RedisKey, name: &str) -> String {
        format!("{}:{}:{name}", self.prefix, kind.name())
    }

    /// Returns how often the client has connected to another server than before, or may have. The new one may lack
    /// writes that the old one acknowledged.
    pub(crate) fn changes(&self) -> u64 {
        self.servers.changes.load(Ordering::SeqCst)
    }

    /// Sends one call and returns its reply.
    pub(crate) async fn one<T: FromRedisValue>(&self, call: Call) -> Result<T, CallError> {
        let mut replies = self.all(vec![call]).await?;
        replies.pop().ok_or_else(|| CallError::Unknown("no reply from Redis".to_owned()))
    }

    /// Sends the calls as one pipeline, or to all slots concurrently in a cluster; returns one reply each, in order.
    ///
    /// Nothing is atomic across calls. The first failure fails all of them, although others may have taken effect.
    pub(crate) async fn all<T: FromRedisValue>(&self, calls: Vec<Call>) -> Result<Vec<T>, CallError> {
        let mut replies = Vec::with_capacity(calls.len());
        for part in calls.chunks(PIPELINE_CALLS_MAX) {
            let some_executed = !replies.is_empty();
            for value in self.send_guarded(part).await.map_err(|error| error.after(some_executed))? {
                let reply = from_redis_value(value);
                let unreadable = |error| CallError::Unknown(format!("unexpected reply from Redis: {error}"));
                replies.push(reply.map_err(unreadable)?);
            }
        }
        Ok(replies)
    }

    /// Sends a pipeline if the breaker permits it, within the deadline.
    async fn send_guarded(&self, calls: &[Call]) -> Result<Vec<Value>, CallError> {
        let call = self.permitted()?;
        let deadline = tokio::time::Instant::now() + self.timeout;
        let outcome = match timeout_at(deadline, self.connection()).await {
            Ok(Ok(conn)) => {
                let sent = timeout_at(deadline, Self::send(conn, calls)).await;
                sent.unwrap_or_else(|_| Err(CallFailure::late(self.timeout, CallError::Late)))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(CallFailure::late(self.timeout, CallError::Unavailable)),
        };
        match outcome {
            Ok(values) => {
                call.succeeded();
                Ok(values)
            }
            Err(failure) => {
                if !failure.server_works {
                    let is_late = matches!(failure.error, CallError::Late(_));
                    let opened = if is_late { call.late() } else { call.failed() };
                    if opened || failure.reconnect {
                        self.disconnect();
                    }
                } else {
                    call.succeeded();
                }
                Err(failure.error)
            }
        }
    }

    async fn send(mut conn: Conn, calls: &[Call]) -> Result<Vec<Value>, CallFailure> {
        let mut values = conn.send(calls.iter().map(|call| call.build(false)).collect()).await?;
        let missing: Vec<usize> = (0..values.len()).filter(|&at| is_no_script(&values[at])).collect();
        if !missing.is_empty() {
            // S33: EVAL with the text also loads the script, on the server that lacked it.
            let with_text = missing.iter().map(|&at| calls[at].build(true)).collect();
            for (at, value) in missing.into_iter().zip(conn.send(with_text).await?) {
                values[at] = value;
            }
        }
        let some_executed = values.iter().any(|value| !matches!(value, Value::ServerError(_)));
        for value in &values {
            if let Value::ServerError(error) = value {
                return Err(CallFailure::of(&RedisError::from(error.clone()), some_executed));
            }
        }
        Ok(values)
    }

    async fn connection(&self) -> Result<Conn, CallFailure> {
        let conn = self.shared_conn();
        conn.await.map_err(CallFailure::no_connection)
    }

    /// Returns the connection or the attempt in progress; otherwise starts an attempt, which outlives a cancelled
    /// caller.
    fn shared_conn(&self) -> SharedConn {
        let mut conn = self.conn();
        if let Some(conn) = conn.as_ref().filter(|conn| !matches!(conn.peek(), Some(Err(_)))) {
            return conn.clone();
        }
        let (source, call_timeout) = (Arc::clone(&self.source), self.timeout);
        let servers = Arc::clone(&self.servers);
        let attempt = async move {
            let connected = timeout(CONNECT_TIMEOUT, source.connect(call_timeout)).await;
            let connected = connected.map_err(|_| format!("no connection within {CONNECT_TIMEOUT:?}"))?;
            let mut connected = connected.map_err(|error| error.to_string())?;
            servers.record(connected.server().await);
            Ok(connected)
        };
        let attempt = conn.insert(attempt.boxed().shared());
        // Spawned, since the waiting calls may time out before it completes.
        supervised::spawn("a connection attempt to Redis", attempt.clone());
        attempt.clone()
    }

    /// Drops the connection, except one still being established, which is new anyway.
    fn disconnect(&self) {
        let mut conn = self.conn();
        if conn.as_ref().is_some_and(|conn| conn.peek().is_some()) {
            *conn = None;
        }
    }

    fn conn(&self) -> MutexGuard<'_, Option<SharedConn>> {
        self.conn.lock()
    }

    /// Returns the permit of a call, or the error with which it fails at once.
    fn permitted(&self) -> Result<GuardedCall, CallError> {
        self.breaker.acquire().ok_or_else(|| match self.breaker.is_only_late() {
            true => CallError::Slow("recent replies from Redis were late".to_owned()),
            false => CallError::Unavailable("recent calls to Redis failed".to_owned()),
        })
    }
}

impl ServerTracker {
    /// Records the server of a new connection; one that can't be identified counts as another server.
    fn record(&self, server: Option<String>) {
        let mut last = self.last.lock();
        if last.as_ref().is_some_and(|last| *last != server || server.is_none()) {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        *last = Some(server);
    }
}

impl Conn {
    /// Returns one reply for each command; errors of the server are replies, too.
    async fn send(&mut self, cmds: Vec<Cmd>) -> Result<Vec<Value>, CallFailure> {
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
                // A pipeline may not cross slots, but the driver batches concurrent commands automatically.
                let routed = cmds.into_iter().map(|cmd| {
                    let mut conn = conn.clone();
                    async move { redis::aio::ConnectionLike::req_packed_command(&mut conn, &cmd).await }
                });
                join_all(routed).await.into_iter().map(as_value).collect()
            }
        };
        sent.map_err(|error| CallFailure::of(&error, true))
    }
}

/// Converts NOSCRIPT to a value, as in a pipeline's replies; a cluster connection returns it as its own error.
fn as_value(reply: Result<Value, RedisError>) -> Result<Value, RedisError> {
    match reply {
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
    /// Puts the error in doubt if earlier calls of the batch were executed.
    fn after(self, some_executed: bool) -> Self {
        match self {
            Self::Unavailable(why) | Self::Slow(why) if some_executed => Self::Unknown(why),
            error => error,
        }
    }
}

/// Error codes returned before any execution by a server that can't serve any call now.
const SERVER_ERROR_CODES: [&str; 7] =
    ["LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "TRYAGAIN", "MISCONF", "NOREPLICAS"];
/// Error codes returned before any execution that concern this call only.
const CALL_ERROR_CODES: [&str; 9] =
    ["NOSCRIPT", "OOM", "BUSY", "MOVED", "ASK", "CROSSSLOT", "NOAUTH", "NOPERM", "WRONGPASS"];

/// Failure of a call, with its consequences for the connection and the breaker.
struct CallFailure {
    error: CallError,
    reconnect: bool,
    /// Whether the server works and refused this call only.
    server_works: bool,
}

impl CallFailure {
    fn late(after: Duration, error: fn(String) -> CallError) -> Self {
        let error = error(format!("no reply from Redis within {after:?}"));
        Self { error, reconnect: false, server_works: false }
    }

    fn no_connection(why: String) -> Self {
        Self { error: CallError::Unavailable(why), reconnect: true, server_works: false }
    }

    fn of(error: &RedisError, some_executed: bool) -> Self {
        let why = error.to_string();
        // Redis 6.2 wraps the error of a command inside a script into a script error.
        let read_only = error.code() == Some("READONLY") || why.contains("READONLY");
        let code = if read_only { "READONLY" } else { error.code().unwrap_or_default() };
        let cant_serve = SERVER_ERROR_CODES.contains(&code);
        let is_refusal = cant_serve || CALL_ERROR_CODES.contains(&code);
        let is_disconnected = matches!(
            error.retry_method(),
            RetryMethod::Reconnect | RetryMethod::ReconnectFromInitialConnections
        );
        let from_server = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
        let error = match () {
            () if is_refusal && !some_executed => CallError::Unavailable(why),
            // The driver's own deadline may fire slightly before the client's.
            () if error.is_timeout() => CallError::Late(why),
            () => CallError::Unknown(why),
        };
        let server_works = from_server && !cant_serve;
        Self { error, reconnect: read_only || is_disconnected, server_works }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, time::Instant};

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// Accepts connections, and never answers.
    fn hung() -> (TcpListener, RedisClient) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let urls = vec![format!("redis://{}", server.local_addr().unwrap())];
        let config =
            config::RedisConfig { urls, timeout_ms: TIMEOUT.as_millis() as u64, ..Default::default() };
        (server, RedisClient::new(&config).unwrap())
    }

    #[tokio::test]
    async fn hung_server_costs_few_timeouts_and_not_one_per_call() {
        let (_server, client) = hung();
        let began = Instant::now();
        for _ in 0..40 {
            client.one::<String>(Call::command(["PING"])).await.unwrap_err();
        }
        // Three open the breaker; probes follow after half of 100 ms at the earliest.
        assert!(began.elapsed() < 10 * TIMEOUT, "{:?}", began.elapsed());
    }
}
