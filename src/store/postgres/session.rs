//! A borrowed connection: statements sent together, within a time, in a transaction that is never left open.

use std::{pin::Pin, time::Duration};

use deadpool_postgres::{Object, Pool};
use futures_util::future::join_all;
use tokio::time::timeout;
use tokio_postgres::{Row, Statement, types::ToSql};

use super::error::{Trouble, at_commit};
use crate::store::StoreError;

/// How many statements are on their way at once; more would not be sent in order.
const TOGETHER: usize = 24;

/// A value of a statement.
pub(super) type Value<'a> = &'a (dyn ToSql + Sync);

/// A statement with its values.
pub(super) struct Call<'a> {
    sql: &'static str,
    values: Vec<Value<'a>>,
}

/// `sql` with these values for `$1`, `$2`, …
pub(super) fn call<'a>(sql: &'static str, values: &[Value<'a>]) -> Call<'a> {
    Call { sql, values: values.to_vec() }
}

impl<'a> Call<'a> {
    /// More values.
    pub(super) fn add(&mut self, values: &[Value<'a>]) {
        self.values.extend_from_slice(values);
    }
}

/// One snapshot for all that is read.
const READ: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A connection while it is in use. One that was left in the middle of a transaction, or of an answer, is closed: nobody
/// else ever gets it.
pub(super) struct Session {
    object: Option<Object>,
    clean: bool,
    wait: Duration,
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.clean {
            drop(self.object.take().map(Object::take));
        }
    }
}

impl Session {
    /// A free connection, or a new one. `wait` is for each turn to the server.
    pub(super) async fn take(pool: &Pool, wait: Duration) -> Result<Self, Trouble> {
        Ok(Self { object: Some(Box::pin(pool.get()).await?), clean: true, wait })
    }

    fn client(&self) -> Result<&Object, Trouble> {
        self.object.as_ref().ok_or_else(|| Trouble::Away("the connection is gone".to_owned()))
    }

    /// On the heap, because what is sent together is large.
    fn in_time<'a, T, F>(&self, turn: F) -> impl Future<Output = Result<T, Trouble>> + Send + use<'a, T, F>
    where
        F: Future<Output = T> + Send + 'a,
    {
        let turn: Pin<Box<dyn Future<Output = T> + Send + 'a>> = Box::pin(turn);
        let turn = timeout(self.wait, turn);
        async move { turn.await.map_err(|_| Trouble::Away("the server did not answer in time".to_owned())) }
    }

    async fn prepare(&self, calls: &[Call<'_>]) -> Result<Vec<Statement>, Trouble> {
        let client = self.client()?;
        let mut statements = Vec::with_capacity(calls.len());
        for call in calls {
            statements.push(self.in_time(client.prepare_cached(call.sql)).await??);
        }
        Ok(statements)
    }

    /// Reads in one snapshot, in one turn to the server.
    pub(super) async fn read(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, Trouble> {
        let statements = self.prepare(calls).await?;
        self.clean = false;
        // One statement is one snapshot by itself, for a third of the work.
        if let ([call], [statement]) = (calls, &statements[..]) {
            let rows = self.in_time(self.client()?.query(statement, &call.values)).await?;
            self.clean = rows.as_ref().err().is_none_or(|error| error.as_db_error().is_some());
            return Ok(vec![rows?]);
        }
        let client = self.client()?;
        let work = async {
            // Each is sent at its first poll, so in this order.
            let rows = join_all(
                calls.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
            );
            let begin_and_rows = futures_util::future::join(client.batch_execute(READ), rows);
            futures_util::future::join(begin_and_rows, client.batch_execute("COMMIT")).await
        };
        let ((begun, rows), ended) = self.in_time(work).await?;
        self.clean = ended.is_ok();
        begun?;
        let rows: Result<_, _> = rows.into_iter().collect();
        Ok(rows?)
    }

    /// Begins a transaction and does these in it.
    pub(super) async fn begin(
        &mut self,
        begin: &'static str,
        calls: &[Call<'_>],
    ) -> Result<Vec<Vec<Row>>, Trouble> {
        let statements = self.prepare(calls).await?;
        self.clean = false;
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

    /// Goes on in the transaction.
    pub(super) async fn go_on(&mut self, calls: &[Call<'_>]) -> Result<Vec<Vec<Row>>, Trouble> {
        let mut all = Vec::with_capacity(calls.len());
        for some in calls.chunks(TOGETHER) {
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

    /// Whether so many can be sent together with the end of the transaction.
    pub(super) fn fit(calls: &[Call<'_>]) -> bool {
        calls.len() < TOGETHER
    }

    /// Does the last of a transaction and ends it, in one turn: when this is Ok, it is durable. What the server refuses, it takes back
    /// with everything before.
    pub(super) async fn finish(&mut self, calls: &[Call<'_>]) -> Result<(), Trouble> {
        let statements = self.prepare(calls).await?;
        let client = self.client()?;
        if client.is_closed() {
            return Err(Trouble::Away("the server has ended the connection".to_owned()));
        }
        let work = async {
            let rows = join_all(
                calls.iter().zip(&statements).map(|(call, statement)| client.query(statement, &call.values)),
            );
            futures_util::future::join(rows, client.batch_execute("COMMIT")).await
        };
        let (rows, ended) = self.in_time(work).await.map_err(|_| no_answer_to_commit())?;
        self.clean = ended.is_ok();
        for row in rows {
            row.map_err(
                |error| if error.as_db_error().is_some() { error.into() } else { at_commit(&error) },
            )?;
        }
        ended.map_err(|error| at_commit(&error))
    }

    /// Changes tables, in the transaction.
    pub(super) async fn change(&mut self, sql: &str) -> Result<(), Trouble> {
        Ok(self.in_time(self.client()?.batch_execute(sql)).await??)
    }

    /// Ends it: when this is Ok, it is durable.
    pub(super) async fn commit(&mut self) -> Result<(), Trouble> {
        let turn = self.in_time(self.client()?.batch_execute("COMMIT")).await;
        let answer = turn.map_err(|_| no_answer_to_commit())?;
        answer.map_err(|error| at_commit(&error))?;
        self.clean = true;
        Ok(())
    }

    /// Takes it back, so that the connection can be used again; one where that fails is closed.
    pub(super) async fn roll_back(&mut self) {
        if self.clean {
            return;
        }
        let Ok(client) = self.client() else { return };
        self.clean = matches!(self.in_time(client.batch_execute("ROLLBACK")).await, Ok(Ok(())));
    }
}

fn no_answer_to_commit() -> Trouble {
    Trouble::Store(StoreError::Unknown("the server did not answer the commit in time".to_owned()))
}
