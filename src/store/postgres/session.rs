//! Session on a pooled connection: pipelined statements with a timeout, in a transaction that is never left open.

use std::{pin::Pin, sync::Arc, time::Duration};

use deadpool_postgres::{Object, Pool};
use futures_util::future::join_all;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_postgres::{Row, Statement, types::ToSql};

use super::error::{PostgresError, commit_error};
use crate::store::StoreError;

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
    /// Permit of a read of a client. Fields are dropped in order, so the connection is free before it.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_clean {
            drop(self.object.take().map(Object::take));
        }
    }
}

impl Session {
    /// Takes a free connection or opens one. `wait` is the timeout of each round trip.
    pub(super) async fn take(pool: &Pool, wait: Duration) -> Result<Self, PostgresError> {
        Ok(Self { object: Some(Box::pin(pool.get()).await?), is_clean: true, wait, _permit: None })
    }

    /// Waits for a permit, then takes a connection, and keeps both.
    pub(super) async fn take_permitted(
        permits: &Arc<Semaphore>,
        pool: &Pool,
        wait: Duration,
    ) -> Result<Self, PostgresError> {
        let busy =
            || PostgresError::NoConnection("all connections for reads of clients are in use".to_owned());
        let permit = timeout(wait, Arc::clone(permits).acquire_owned()).await.map_err(|_| busy())?;
        let permit = Some(permit.map_err(|_| busy())?);
        Ok(Self { object: Some(Box::pin(pool.get()).await?), is_clean: true, wait, _permit: permit })
    }

    fn client(&self) -> Result<&Object, PostgresError> {
        self.object.as_ref().ok_or_else(|| PostgresError::Unavailable("the connection is closed".to_owned()))
    }

    /// Limits `work` to the timeout; boxed, because the future of pipelined statements is large.
    fn in_time<'a, T, F>(
        &self,
        work: F,
    ) -> impl Future<Output = Result<T, PostgresError>> + Send + use<'a, T, F>
    where
        F: Future<Output = T> + Send + 'a,
    {
        let work: Pin<Box<dyn Future<Output = T> + Send + 'a>> = Box::pin(work);
        let work = timeout(self.wait, work);
        async move {
            work.await.map_err(|_| PostgresError::Unavailable("the server did not answer in time".to_owned()))
        }
    }

    async fn prepare(&self, calls: &[Call<'_>]) -> Result<Vec<Statement>, PostgresError> {
        let client = self.client()?;
        let mut statements = Vec::with_capacity(calls.len());
        for call in calls {
            statements.push(self.in_time(client.prepare_cached(call.sql)).await??);
        }
        Ok(statements)
    }

    /// Reads in one snapshot, in one round trip.
    pub(super) async fn read(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, PostgresError> {
        let statements = self.prepare(calls).await?;
        self.is_clean = false;
        // A single statement is its own snapshot, and costs a third of a transaction.
        if let ([call], [statement]) = (calls, &statements[..]) {
            let rows = self.in_time(self.client()?.query(statement, &call.values)).await?;
            self.is_clean = rows.as_ref().err().is_none_or(|error| error.as_db_error().is_some());
            return Ok(vec![rows?]);
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
        begun?;
        let rows: Result<_, _> = rows.into_iter().collect();
        Ok(rows?)
    }

    /// Begins a transaction and executes the calls in it.
    pub(super) async fn begin(
        &mut self,
        begin: &'static str,
        calls: &[Call<'_>],
    ) -> Result<Vec<Vec<Row>>, PostgresError> {
        let statements = self.prepare(calls).await?;
        self.is_clean = false;
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

fn no_reply_to_commit() -> PostgresError {
    PostgresError::Store(StoreError::Unknown("the server did not answer the commit in time".to_owned()))
}
