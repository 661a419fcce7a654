//! Session on a pooled connection: pipelined statements with a timeout, in a transaction that is never left open.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use deadpool_postgres::{Object, Pool, PoolError, TimeoutType};
use futures_util::future::join_all;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_postgres::{Row, Statement, error::SqlState, types::ToSql};

use super::error::{PostgresError, commit_error};
use crate::{
    breaker::{GuardedCall, ServiceBreaker},
    store::StoreError,
};

/// Statements in flight at once; more would not be sent in order.
const PIPELINED_CALLS_MAX: usize = 24;

/// Parameter of a statement.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// Statement with its parameters.
pub(super) struct Call<'a> {
    sql: &'static str,
    values: Vec<Value<'a>>,
}

/// Creates a call of `sql` with these values for `$1`, `$2`, …
pub(super) fn call<'a>(sql: &'static str, values: &[Value<'a>]) -> Call<'a> {
    Call { sql, values: values.to_vec() }
}

impl<'a> Call<'a> {
    /// Adds more parameters.
    pub(super) fn add(&mut self, values: &[Value<'a>]) {
        self.values.extend_from_slice(values);
    }
}

/// Begin of a transaction whose reads share one snapshot.
const BEGIN_READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Connection in use. If it is dropped within a transaction or a reply, it is closed and never reused.
pub(super) struct Session {
    object: Option<Object>,
    is_clean: bool,
    wait: Duration,
    /// Permits of a read. Fields are dropped in order, so the connection is free before them.
    _permits: Vec<OwnedSemaphorePermit>,
    /// Call that a breaker has permitted.
    call: Option<GuardedCall>,
    /// Time after which the server counts as too slow for the breaker; `None` if a slow read says nothing about it.
    late_at: Option<Instant>,
    /// Whether the server did not answer in time.
    is_late: AtomicBool,
    /// Whether the server has reported that it can't serve.
    has_failed: AtomicBool,
    /// Whether an error was none of the server.
    is_broken: AtomicBool,
}

/// Callers of reads with permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadsOf {
    /// Clients.
    Clients,
    /// Back ends, whose reads are larger and fewer.
    BackEnds,
}

/// What a read needs before it takes a connection.
pub(super) struct ReadPermits<'a> {
    pub(super) breaker: &'a Arc<ServiceBreaker>,
    /// Permit that the read takes before it asks the breaker: while it waits, it must not hold the breaker's only probe.
    pub(super) before: Option<&'a Arc<Semaphore>>,
    /// Permit that the read takes then.
    pub(super) connections: &'a Arc<Semaphore>,
    /// Time from which a read on its connection counts as late, also if its caller does not wait any longer.
    pub(super) late_after: Option<Duration>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_clean {
            drop(self.object.take().map(Object::take));
        }
        let Some(call) = self.call.take() else { return };
        // A session that is nothing of this was cancelled early, or its connection broke.
        if *self.has_failed.get_mut() {
            call.failed();
        } else if self.late_at.is_some_and(|at| *self.is_late.get_mut() || Instant::now() >= at) {
            call.late();
        } else if self.is_clean {
            call.succeeded();
        }
    }
}

impl Session {
    /// Takes a free connection or opens one. `wait` is the timeout of each round trip.
    pub(super) async fn take(pool: &Pool, wait: Duration) -> Result<Self, PostgresError> {
        let object = Box::pin(pool.get()).await?;
        Ok(Self::on(object, wait))
    }

    fn on(object: Object, wait: Duration) -> Self {
        Self {
            object: Some(object),
            is_clean: true,
            wait,
            _permits: Vec::new(),
            call: None,
            late_at: None,
            is_late: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Waits for a permit, then takes a connection, and keeps both. Fails at once while the breaker is open, also if it
    /// opened during the wait.
    pub(super) async fn take_permitted(
        permits: ReadPermits<'_>,
        pool: &Pool,
        wait: Duration,
    ) -> Result<Self, PostgresError> {
        let failing = || PostgresError::NoConnection("recent reads in Postgres failed".to_owned());
        let permit = async |of: &Arc<Semaphore>| {
            let busy = "all connections for reads of clients are in use";
            let taken = timeout(wait, Arc::clone(of).acquire_owned()).await.ok().and_then(Result::ok);
            taken.ok_or_else(|| PostgresError::NoConnection(busy.to_owned()))
        };
        let mut taken = Vec::with_capacity(2);
        if let Some(before) = permits.before {
            taken.push(permit(before).await?);
        }
        let call = permits.breaker.acquire().ok_or_else(failing)?;
        taken.push(permit(permits.connections).await?);
        if !call.is_current() {
            return Err(failing());
        }
        let object = match Box::pin(pool.get()).await {
            Ok(object) => object,
            Err(error) => {
                // The wait for other sessions of this node says nothing about the server.
                if !matches!(error, PoolError::Timeout(TimeoutType::Wait)) {
                    call.failed();
                }
                return Err(error.into());
            }
        };
        let mut session = Self::on(object, wait);
        (session._permits, session.call) = (taken, Some(call));
        session.late_at = permits.late_after.map(|after| Instant::now() + after);
        Ok(session)
    }

    fn client(&self) -> Result<&Object, PostgresError> {
        self.object.as_ref().ok_or_else(|| PostgresError::Unavailable("the connection is closed".to_owned()))
    }

    /// Limits `work` to the timeout; boxed, because the future of pipelined statements is large.
    fn in_time<'a, T, F>(
        &'a self,
        work: F,
    ) -> impl Future<Output = Result<T, PostgresError>> + Send + use<'a, T, F>
    where
        F: Future<Output = T> + Send + 'a,
    {
        let work: Pin<Box<dyn Future<Output = T> + Send + 'a>> = Box::pin(work);
        let work = timeout(self.wait, work);
        async move {
            work.await.map_err(|_| {
                self.is_late.store(true, Ordering::Relaxed);
                PostgresError::Unavailable("the server did not answer in time".to_owned())
            })
        }
    }

    async fn prepare(&self, calls: &[Call<'_>]) -> Result<Vec<Statement>, PostgresError> {
        let client = self.client()?;
        let mut statements = Vec::with_capacity(calls.len());
        for call in calls {
            let prepared = self.in_time(client.prepare_cached(call.sql)).await?;
            statements.push(prepared.map_err(|error| self.noted(error))?);
        }
        Ok(statements)
    }

    /// Prepares the first calls of a session, which stays clean if the server refuses one of them.
    async fn prepare_first(&mut self, calls: &[Call<'_>]) -> Result<Vec<Statement>, PostgresError> {
        self.is_clean = false;
        let prepared = self.prepare(calls).await;
        self.is_clean = prepared.is_err() && !*self.is_broken.get_mut() && !*self.is_late.get_mut();
        prepared
    }

    /// Notes whether the server reports that it can't serve, or the connection broke.
    fn noted(&self, error: tokio_postgres::Error) -> PostgresError {
        match error.code() {
            Some(code) if cant_serve(code) => self.has_failed.store(true, Ordering::Relaxed),
            Some(_) => {}
            None => self.is_broken.store(true, Ordering::Relaxed),
        }
        error.into()
    }

    /// Reads in one snapshot, in one round trip.
    pub(super) async fn read(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, PostgresError> {
        let statements = self.prepare_first(calls).await?;
        // A single statement is its own snapshot, and costs a third of a transaction.
        if let ([call], [statement]) = (calls, &statements[..]) {
            let rows = self.in_time(self.client()?.query(statement, &call.values)).await?;
            self.is_clean = rows.as_ref().err().is_none_or(|error| error.as_db_error().is_some());
            return Ok(vec![rows.map_err(|error| self.noted(error))?]);
        }
        let client = self.client()?;
        let work = async {
            // Each statement is sent at its first poll, so they are sent in this order.
            let rows = join_all(
                calls.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
            );
            let begin_and_rows = futures_util::future::join(client.batch_execute(BEGIN_READ), rows);
            futures_util::future::join(begin_and_rows, client.batch_execute("COMMIT")).await
        };
        let ((begun, rows), ended) = self.in_time(work).await?;
        self.is_clean = ended.is_ok();
        begun.map_err(|error| self.noted(error))?;
        let rows: Result<_, _> = rows.into_iter().collect();
        rows.map_err(|error| self.noted(error))
    }

    /// Begins a transaction and executes the calls in it.
    pub(super) async fn begin(
        &mut self,
        begin: &'static str,
        calls: &[Call<'_>],
    ) -> Result<Vec<Vec<Row>>, PostgresError> {
        let statements = self.prepare_first(calls).await?;
        let client = self.client()?;
        let rows = join_all(
            calls.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
        );
        let both = futures_util::future::join(client.batch_execute(begin), rows);
        let (begun, rows) = self.in_time(both).await?;
        begun?;
        let rows: Result<_, _> = rows.into_iter().collect();
        Ok(rows?)
    }

    /// Executes more calls in the transaction.
    pub(super) async fn execute(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, PostgresError> {
        let mut all = Vec::with_capacity(calls.len());
        for some in calls.chunks(PIPELINED_CALLS_MAX) {
            let statements = self.prepare(some).await?;
            let client = self.client()?;
            let rows = join_all(
                some.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
            );
            for rows in self.in_time(rows).await? {
                all.push(rows?);
            }
        }
        Ok(all)
    }

    /// Returns whether the calls can be sent together with the COMMIT.
    pub(super) fn fit(calls: &[Call<'_>]) -> bool {
        calls.len() < PIPELINED_CALLS_MAX
    }

    /// Executes the last calls of a transaction and commits it, in one round trip. `Ok` means that it is durable.
    ///
    /// If the server refuses a call, it rolls the whole transaction back.
    pub(super) async fn finish(&mut self, calls: &[Call<'_>]) -> Result<(), PostgresError> {
        let statements = self.prepare(calls).await?;
        let client = self.client()?;
        if client.is_closed() {
            return Err(PostgresError::Unavailable("the server has ended the connection".to_owned()));
        }
        let work = async {
            let rows = join_all(
                calls.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
            );
            futures_util::future::join(rows, client.batch_execute("COMMIT")).await
        };
        let (rows, ended) = self.in_time(work).await.map_err(|_| no_reply_to_commit())?;
        self.is_clean = ended.is_ok();
        for row in rows {
            row.map_err(
                |error| if error.as_db_error().is_some() { error.into() } else { commit_error(&error) },
            )?;
        }
        ended.map_err(|error| commit_error(&error))
    }

    /// Changes tables in the transaction.
    pub(super) async fn change(&mut self, sql: &str) -> Result<(), PostgresError> {
        Ok(self.in_time(self.client()?.batch_execute(sql)).await??)
    }

    /// Commits the transaction. `Ok` means that it is durable.
    pub(super) async fn commit(&mut self) -> Result<(), PostgresError> {
        let committed = self.in_time(self.client()?.batch_execute("COMMIT")).await;
        let answer = committed.map_err(|_| no_reply_to_commit())?;
        answer.map_err(|error| commit_error(&error))?;
        self.is_clean = true;
        Ok(())
    }

    /// Rolls the transaction back, so that the connection can be reused. If that fails, the connection is closed.
    pub(super) async fn roll_back(&mut self) {
        if self.is_clean {
            return;
        }
        let Ok(client) = self.client() else { return };
        self.is_clean = matches!(self.in_time(client.batch_execute("ROLLBACK")).await, Ok(Ok(())));
    }
}

/// Returns whether the code says that the server can't serve now: no resources, an intervention of the operator, which a
/// statement timeout is too, an error of the system, or an internal one.
fn cant_serve(code: &SqlState) -> bool {
    ["53", "57", "58", "XX"].iter().any(|class| code.code().starts_with(class))
}

fn no_reply_to_commit() -> PostgresError {
    PostgresError::Store(StoreError::Unknown("the server did not answer the commit in time".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::{io, net::TcpListener};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{breaker::GuardedService, config::PostgresConfig, store::postgres::connect::Source};

    #[tokio::test]
    async fn hung_server_costs_reads_one_timeout_after_another_and_not_one_each() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://ann@{}/chat", server.local_addr().unwrap());
        let config = PostgresConfig { url, connect_ms: 100, ..PostgresConfig::default() };
        let pool = Source::new(&config).unwrap().pool(&config, 2).unwrap();
        let breaker = ServiceBreaker::new(GuardedService::Postgres, Duration::from_secs(1));
        let connections = Arc::new(Semaphore::new(2));
        let read = || {
            let late_after = Some(Duration::from_secs(2));
            let permits =
                ReadPermits { breaker: &breaker, before: None, connections: &connections, late_after };
            Session::take_permitted(permits, &pool, Duration::from_secs(10))
        };
        let began = Instant::now();
        let taken = join_all((0..60).map(|_| read())).await;
        assert!(taken.iter().all(Result::is_err));
        // Without the breaker, two at a time take 3 s.
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        assert!(matches!(read().await, Err(PostgresError::NoConnection(_))));
    }

    /// What a server does when a statement is to be prepared.
    #[derive(Clone, Copy)]
    enum Reply {
        Nothing,
        EndOfStream,
        Error(&'static str),
    }

    /// Starts a server that lets everyone log in, and returns a pool of its connections.
    async fn pool(reply: Reply, size: usize) -> Pool {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("postgres://ann@{}/chat", server.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = server.accept().await {
                tokio::spawn(serve(stream, reply));
            }
        });
        let config = PostgresConfig { url, connect_ms: 100, ..PostgresConfig::default() };
        Source::new(&config).unwrap().pool(&config, size).unwrap()
    }

    async fn serve(mut stream: tokio::net::TcpStream, reply: Reply) -> io::Result<()> {
        const READY: &[u8] = b"Z\0\0\0\x05I";
        const AUTHENTICATED: &[u8] = b"R\0\0\0\x08\0\0\0\0";
        // One row of one column with the text `off`.
        const SETTING: &[u8] = b"T\0\0\0\x1a\0\x01x\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0\
            D\0\0\0\x0d\0\x01\0\0\0\x03offC\0\0\0\x08SET\0";
        let startup = stream.read_u32().await? as usize;
        stream.read_exact(&mut vec![0; startup - 4]).await?;
        stream.write_all(&[AUTHENTICATED, READY].concat()).await?;
        loop {
            let kind = stream.read_u8().await?;
            let length = stream.read_u32().await? as usize;
            stream.read_exact(&mut vec![0; length - 4]).await?;
            match (kind, reply) {
                (b'Q', _) => stream.write_all(&[SETTING, READY].concat()).await?,
                (b'S', Reply::EndOfStream) => return Ok(()),
                (b'S', Reply::Error(code)) => {
                    let fields = format!("SERROR\0C{code}\0Mno\0\0");
                    let length = (fields.len() as u32 + 4).to_be_bytes();
                    stream.write_all(&[b"E", &length[..], fields.as_bytes(), READY].concat()).await?;
                }
                _ => {}
            }
        }
    }

    /// Returns a breaker that opens with the next failure.
    fn failing() -> Arc<ServiceBreaker> {
        let breaker = ServiceBreaker::new(GuardedService::Postgres, Duration::from_secs(1));
        (0..2).for_each(|_| _ = breaker.acquire().unwrap().failed());
        breaker
    }

    /// Returns the number of failures that still open the breaker.
    fn failures_left(breaker: &Arc<ServiceBreaker>) -> usize {
        std::iter::from_fn(|| breaker.acquire().map(GuardedCall::late)).count()
    }

    /// Reads with a timeout, after two failures; returns the number of failures that then open the breaker.
    async fn left_after_read(reply: Reply, late_after: Duration) -> usize {
        let (pool, breaker, connections) = (pool(reply, 2).await, failing(), Arc::new(Semaphore::new(2)));
        let permits = ReadPermits {
            breaker: &breaker,
            before: None,
            connections: &connections,
            late_after: Some(late_after),
        };
        let mut session = Session::take_permitted(permits, &pool, Duration::from_secs(10)).await.unwrap();
        let calls = [call("SELECT 1", &[])];
        let read = timeout(Duration::from_millis(100), session.read(&calls)).await;
        assert!(read.is_err() || read.unwrap().is_err());
        drop(session);
        failures_left(&breaker)
    }

    #[tokio::test]
    async fn read_that_the_server_cant_serve_or_that_is_late_is_a_failure() {
        let long = Duration::from_secs(10);
        for code in ["53300", "57014", "58030", "XX000"] {
            assert_eq!(left_after_read(Reply::Error(code), long).await, 0, "{code}");
        }
        assert_eq!(left_after_read(Reply::Error("42P01"), long).await, 3, "the server works");
        assert_eq!(left_after_read(Reply::EndOfStream, long).await, 1, "neither success nor failure");
        assert_eq!(left_after_read(Reply::Nothing, long).await, 1, "cancelled early");
        assert_eq!(left_after_read(Reply::Nothing, Duration::from_millis(50)).await, 0, "cancelled late");
    }

    #[tokio::test]
    async fn wait_for_other_sessions_is_no_failure_of_the_server() {
        let (pool, breaker, connections) =
            (pool(Reply::Nothing, 1).await, failing(), Arc::new(Semaphore::new(2)));
        let _other = Session::take(&pool, Duration::from_secs(10)).await.unwrap();
        let late_after = Duration::from_secs(10);
        let permits = ReadPermits {
            breaker: &breaker,
            before: None,
            connections: &connections,
            late_after: Some(late_after),
        };
        assert!(Session::take_permitted(permits, &pool, Duration::from_secs(10)).await.is_err());
        assert_eq!(failures_left(&breaker), 1);
    }
}
